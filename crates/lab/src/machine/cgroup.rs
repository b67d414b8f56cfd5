// SPDX-License-Identifier: Apache-2.0
//! Creating, changing and removing memory cgroups.

use agewise_kernel::ids::{MemcgId, NodeId};
use agewise_kernel::reclaim::MAX_RECLAIM_RETRIES;
use agewise_kernel::reclaim::memcg_limit::{CgroupRequest, try_to_free_mem_cgroup_pages};
use thiserror::Error;

use super::memcg::Limits;
use super::stall::Pressure;
use super::{Machine, ProcessId};

/// A cgroup that cannot be removed or changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CgroupError {
    /// It still has tasks or children (`EBUSY`).
    #[error("cgroup {0} still has tasks or children")]
    Busy(String),
    #[error("cgroup {0} cannot be removed")]
    NotRemovable(String),
}

/// Outcome of one step of changing a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// The limit is set.
    Done,
    /// Usage is still above it; something was reclaimed.
    Again,
    /// Usage is still above it, and nothing could be reclaimed (`EBUSY`).
    Busy,
}

impl Machine {
    /// Makes a cgroup under `parent`.
    pub fn add_memcg(&mut self, parent: MemcgId, name: &str, limits: Limits) -> MemcgId {
        let swappiness = self.lru.memcgs[parent.index()].swappiness;
        let now_ns = self.sys.now_ns;
        let id = self.lru.memcg_online(parent, swappiness, now_ns);
        let above = &self.sys.memcgs[parent].path;
        let path = format!("{}/{name}", above.trim_end_matches('/'));
        let counted = self.sys.memcgs.add(parent, path);
        debug_assert_eq!(id, counted);
        self.sys.memcgs[id].limits = limits;
        self.sys.stalls.groups.push(Pressure::default());
        self.note_lruvecs();
        id
    }

    /// Changes the limits of a cgroup. A changed `memory.max` or `memory.high` is reclaimed down to
    /// at once, as by a write to its file.
    pub fn set_limits(&mut self, memcg: MemcgId, limits: Limits) {
        let before = std::mem::replace(&mut self.sys.memcgs[memcg].limits, limits);
        if limits.max_pages != before.max_pages {
            self.shrink_to(memcg, limits.max_pages, true);
        }
        if limits.high_pages != before.high_pages {
            self.shrink_to(memcg, limits.high_pages, false);
        }
    }

    /// Reclaims until usage is not above `pages`, or until 16 attempts have reclaimed nothing. Then
    /// a hard limit has tasks killed until none is left (`memory_max_write`), and a soft one is
    /// tried once more (`memory_high_write`).
    pub(super) fn shrink_to(&mut self, memcg: MemcgId, pages: u64, is_hard: bool) {
        let mut is_drained = false;
        let mut retries = MAX_RECLAIM_RETRIES;
        loop {
            let over = self.sys.memcgs[memcg].usage_pages.saturating_sub(pages);
            if over == 0 {
                return;
            }
            if !is_drained {
                self.sys.memcgs.drain_stocks(memcg);
                is_drained = true;
            } else if retries == 0 && is_hard {
                if !self.memcg_oom(memcg) {
                    return;
                }
            } else if self.shrink_once(memcg, over) == 0 {
                if retries == 0 {
                    return;
                }
                retries -= 1;
            }
            // Pages whose writeback ended meanwhile can be reclaimed by the next attempt.
            if self.sys.now_ns >= self.sys.events.next_ns() {
                self.run_events();
            }
        }
    }

    /// Reclaims `pages` from a cgroup for its limit, in the name of no process of the machine.
    /// Returns the pages reclaimed.
    fn shrink_once(&mut self, memcg: MemcgId, pages: u64) -> u64 {
        let begun = self.begin_work();
        self.trace_outside();
        let request = CgroupRequest {
            nr_pages: pages,
            ..CgroupRequest::limit(memcg, self.sys.cpu, NodeId(0))
        };
        let reclaimed = try_to_free_mem_cgroup_pages(&mut self.lru, &mut self.sys, request);
        self.pay_for_work(&begun);
        self.end_victims();
        reclaimed
    }

    /// One step of writing `memory.limit_in_bytes` (cgroup v1, `mem_cgroup_resize_max`), the first
    /// of which returns stocks. It sets the limit if usage fits; otherwise it reclaims a little,
    /// and the next step is due after the time that took. The cgroup runs on meanwhile, and no task
    /// is killed.
    pub fn resize_step(&mut self, memcg: MemcgId, max_pages: u64, is_first: bool) -> Resize {
        if is_first && self.sys.memcgs[memcg].usage_pages > max_pages {
            self.sys.memcgs.drain_stocks(memcg);
        }
        if self.sys.memcgs[memcg].usage_pages <= max_pages {
            self.sys.memcgs[memcg].limits.max_pages = max_pages;
            return Resize::Done;
        }
        if self.shrink_once(memcg, 1) > 0 {
            Resize::Again
        } else {
            Resize::Busy
        }
    }

    /// Sets `memory.swappiness` of a cgroup, 0..=200.
    pub fn set_swappiness(&mut self, memcg: MemcgId, swappiness: u32) {
        self.lru.memcgs[memcg.index()].swappiness = swappiness.min(200);
    }

    /// Removes a cgroup that has no tasks or children. Its pages stay charged to its ancestors; in
    /// 7.2 they move to the parent's lists at once.
    ///
    /// # Errors
    /// [`CgroupError`] if it is in use, is the root or is gone.
    pub fn remove_memcg(&mut self, memcg: MemcgId) -> Result<(), CgroupError> {
        let group = &self.sys.memcgs[memcg];
        let path = group.path.clone();
        if memcg == MemcgId::ROOT || !group.online {
            return Err(CgroupError::NotRemovable(path));
        }
        if group.tasks > 0 || !self.sys.memcgs.children(memcg).is_empty() {
            return Err(CgroupError::Busy(path));
        }
        self.sys.memcgs.drain_stocks(memcg);
        let now_ns = self.sys.now_ns;
        self.lru.memcg_offline(memcg, now_ns);
        self.sys.memcgs.detach(memcg);
        if self.lru.mglru.profile.reparents_on_offline {
            self.move_counts(memcg);
        }
        Ok(())
    }

    /// Moves the counts of a removed cgroup's pages and kernel objects to its parent. Usage is
    /// counted along the tree and needs no move beyond the cgroup itself.
    fn move_counts(&mut self, memcg: MemcgId) {
        let parent = self.sys.memcgs.parent(memcg);
        let pages = std::mem::take(&mut self.sys.memcgs[memcg].resident_pages);
        for (into, pages) in self.sys.memcgs[parent].resident_pages.iter_mut().zip(pages) {
            *into += pages;
        }
        let moved: u64 = pages.iter().sum();
        self.sys.memcgs.move_objects(memcg);
        for file in &mut self.sys.files {
            if file.memcg == memcg {
                file.memcg = parent;
            }
        }
        let group = &mut self.sys.memcgs[memcg];
        group.usage_pages = group.usage_pages.saturating_sub(moved);
        let dirty = std::mem::take(&mut group.dirty_pages);
        self.sys.memcgs[parent].dirty_pages += dirty;
    }

    /// The cgroup of a process.
    pub fn memcg_of_process(&self, process: ProcessId) -> MemcgId {
        self.memcg_of_mm(process.mm())
    }
}

#[cfg(test)]
mod tests {
    use super::super::address_space::Advice;
    use super::super::{Machine, MachineConfig};
    use super::*;

    #[test]
    fn what_a_removed_cgroup_leaves_is_its_parents() {
        let mut machine = Machine::new(MachineConfig::new(1 << 14));
        let top = machine.add_memcg(MemcgId::ROOT, "top", Limits::default());
        let memcg = machine.add_memcg(top, "below", Limits::default());
        let process = machine.add_process(memcg);
        let file = machine.add_file(1000, memcg, Advice::Random);
        machine.write(process, file, 0, 1000);
        let (dirty, slab) = (
            machine.sys.memcgs[memcg].dirty_pages,
            machine.sys.memcgs[memcg].slab_bytes,
        );
        assert!(dirty > 0 && slab > 0);
        machine.exit(process);
        machine.remove_memcg(memcg).unwrap();
        assert_eq!(machine.sys.memcgs[top].dirty_pages, dirty);
        assert_eq!(machine.sys.memcgs[top].slab_bytes, slab);
        assert_eq!(machine.check(), Ok(()));
        while !machine.sync() {
            machine.wait_ns(1_000_000);
        }
        // What is no longer dirty may still be under writeback.
        machine.wait_ns(1_000_000_000);
        machine.sync();
        machine.reclaim_memcg(top, 2000, None).ok();
        assert!(machine.sys.memcgs[top].slab_bytes < slab / 2);
        assert_eq!(machine.check(), Ok(()));
    }
}
