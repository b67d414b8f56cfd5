// SPDX-License-Identifier: Apache-2.0
//! From looks at processes to [`WhatIf`]: listens to the agent, and says of each page of the sample
//! whether it was used.
//!
//! A page that several processes map from a file or from shared memory is one page. Memory that was
//! forked and not written since is one page for each process.

use std::collections::BTreeMap;

use agewise_policy::generations::PageType;
use agewise_policy::table::{PageSet, TableBits};
use agewise_policy::whatif::{Fact, Filter, Kernel, Look, WhatIf, page_hash};

use crate::access::{PAGE_BYTES, TableSight, Target};
use crate::agent::{Agent, Space, Tap};
use crate::cgroup::Cgroup;
use crate::root::Roots;
use crate::vma::{Vma, VmaKind};

/// The order in which the kernel that runs evicts: generations where `CONFIG_LRU_GEN` is built in
/// and switched on (`/sys/kernel/mm/lru_gen/enabled`).
pub fn kernel_in_use(roots: &Roots) -> Kernel {
    let path = roots.sys.join("kernel/mm/lru_gen/enabled");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let bits = u32::from_str_radix(text.trim().trim_start_matches("0x"), 16);
    match bits {
        Ok(bits) if bits & 1 == 1 => Kernel::MultiGen,
        _ => Kernel::Classic,
    }
}

/// One table as it was read.
#[derive(Debug)]
struct Seen {
    va: u64,
    young: PageSet,
    bits: TableBits,
}

/// What a tick showed, by process: give it to [`Agent::tick_tapped`], then [`show`](Self::show) it.
#[derive(Debug, Default)]
pub struct Sights {
    by_pid: BTreeMap<u32, Vec<Seen>>,
}

/// What a look is to know besides what it shows.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// All processes could be looked at.
    pub is_whole: bool,
    /// Pages of files count. Those of programs and libraries that a cgroup maps are often charged
    /// to another one, which read them first: a limit of this one does not touch them.
    pub has_files: bool,
    /// How long looking took.
    pub blind_ms: f64,
}

/// Whether a cgroup is charged for most of the pages of files that its processes map. Without a
/// cgroup they count.
pub fn is_charged_for_files(cgroup: Option<&Cgroup>, agent: &Agent, pids: &[u32]) -> bool {
    let Some(charged) = cgroup.and_then(|cgroup| cgroup.stat().ok()) else {
        return true;
    };
    let spaces = pids.iter().filter_map(|pid| agent.space(*pid));
    let statuses = spaces.filter_map(|space| space.process().status().ok());
    let mapped: u64 = statuses.map(|status| status.rss_file_bytes).sum();
    charged.file_mapped_bytes >= mapped / 2
}

impl Tap for Sights {
    fn table(&mut self, target: &Target, sight: &TableSight<'_>, young: &PageSet) {
        if (sight.bits.present | sight.bits.swapped).is_empty() {
            return;
        }
        self.by_pid.entry(target.pid).or_default().push(Seen {
            va: sight.va,
            young: *young,
            bits: *sight.bits,
        });
    }
}

impl Sights {
    /// Forgets what was shown, and keeps its memory for the next tick.
    pub fn clear(&mut self) {
        self.by_pid.retain(|_, seen| {
            let is_alive = !seen.is_empty();
            seen.clear();
            is_alive
        });
    }

    /// Shows the pages of these processes to a simulation.
    pub fn show(&self, agent: &Agent, pids: &[u32], what_if: &mut WhatIf, around: Around) {
        let mut look = what_if.look(agent.last_tick_ms());
        look.blind(around.blind_ms);
        let spaces: Vec<&Space> = pids.iter().filter_map(|pid| agent.space(*pid)).collect();
        for space in &spaces {
            let seen = self.by_pid.get(&space.process().pid());
            for seen in seen.into_iter().flatten() {
                show_table(&mut look, space, seen, around.has_files);
            }
        }
        // Pages that several share count once: then only the sample tells how many there are.
        let resident = match spaces[..] {
            [space] => space
                .sizes()
                .iter()
                .map(|[anon, file]| anon + if around.has_files { *file } else { 0 })
                .sum(),
            _ => 0,
        };
        look.finish(resident, around.is_whole);
    }
}

fn show_table(look: &mut Look<'_>, space: &Space, seen: &Seen, has_files: bool) {
    let there = seen.bits.present | seen.bits.swapped;
    let Some(first) = there.pages().next() else {
        return;
    };
    let first = seen.va / PAGE_BYTES + first as u64;
    let Some(level) = space.level_at(first) else {
        return;
    };
    // A sight is of one mapping.
    let Some(vma) = space.vmas().find(first * PAGE_BYTES) else {
        return;
    };
    let own = u64::from(space.process().pid()) << 32 ^ space.process().start_ticks();
    let filter = look.filter();
    let files = vma.kind.files(&seen.bits);
    for at in there.pages() {
        let page = seen.va / PAGE_BYTES + at as u64;
        let page_type = match files.contains(at) {
            true => PageType::File,
            false => PageType::Anon,
        };
        if page_type == PageType::File && !has_files {
            continue;
        }
        let hash = hash_of(vma, own, page, page_type);
        if !Filter::takes(filter, hash, level) {
            continue;
        }
        let fact = match seen.bits.present.contains(at) {
            false => Fact::Out,
            true if seen.young.contains(at) => Fact::Used,
            true => Fact::Idle,
        };
        look.page(hash, level, page_type, fact);
    }
}

fn hash_of(vma: &Vma, own: u64, page: u64, page_type: PageType) -> u64 {
    let is_of_file = page_type == PageType::File || vma.kind == VmaKind::Shmem;
    if vma.inode == 0 || !is_of_file {
        return page_hash(own, page);
    }
    let file = vma.inode ^ vma.device.rotate_left(40);
    let within = page - vma.range.start / PAGE_BYTES;
    page_hash(!file, vma.offset / PAGE_BYTES + within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lru_in_use_is_what_the_kernel_says() {
        let top = tempfile::tempdir().unwrap();
        let roots = Roots::below(top.path());
        assert_eq!(kernel_in_use(&roots), Kernel::Classic);
        let dir = top.path().join("sys/kernel/mm/lru_gen");
        std::fs::create_dir_all(&dir).unwrap();
        for (text, kernel) in [
            ("0x0007\n", Kernel::MultiGen),
            ("0x0001\n", Kernel::MultiGen),
            ("0x0000\n", Kernel::Classic),
            ("what?\n", Kernel::Classic),
        ] {
            std::fs::write(dir.join("enabled"), text).unwrap();
            assert_eq!(kernel_in_use(&roots), kernel, "{text}");
        }
    }
}
