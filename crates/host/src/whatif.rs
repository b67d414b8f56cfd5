// SPDX-License-Identifier: Apache-2.0
//! Feeds a [`WhatIf`] from looks at processes: listens to the agent and reports for each page of
//! the sample whether it was used.
//!
//! A page that several processes map is one page, if its frame can be seen: a page of a file or of
//! shared memory by its place there, memory that was forked and not written since as a page of the
//! first process that has it. In swap, forked memory counts once per process.

use std::collections::BTreeMap;

use agewise_policy::generations::PageType;
use agewise_policy::sample::Level;
use agewise_policy::table::{PageSet, TableBits};
use agewise_policy::whatif::{Fact, Kernel, Look, WhatIf};

use crate::access::{LeafRun, PAGE_BYTES, TABLE_BYTES, TableSight, Target};
use crate::agent::{Agent, Cached, Judged, Space, Tap};
use crate::cgroup::{Cgroup, MemoryStat};
use crate::root::Roots;
use crate::vma::{Vma, VmaKind};

/// The eviction order the running kernel uses: generations if `CONFIG_LRU_GEN` is built in and
/// switched on (`/sys/kernel/mm/lru_gen/enabled`).
pub fn kernel_in_use(roots: &Roots) -> Kernel {
    let path = roots.sys.join("kernel/mm/lru_gen/enabled");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let bits = u32::from_str_radix(text.trim().trim_start_matches("0x"), 16);
    match bits {
        Ok(bits) if bits & 1 == 1 => Kernel::MultiGen,
        _ => Kernel::Classic,
    }
}

/// One table as read.
#[derive(Debug)]
struct SeenTable {
    va: u64,
    young: PageSet,
    /// Counted in another process.
    elsewhere: PageSet,
    bits: TableBits,
}

/// Adjacent leaves as read.
#[derive(Debug)]
struct SeenLeaves {
    va: u64,
    tables: u64,
    is_young: bool,
}

/// Everything read of one process.
#[derive(Debug, Default)]
struct Seen {
    tables: Vec<SeenTable>,
    leaves: Vec<SeenLeaves>,
}

/// What a tick showed, by process: pass it to [`Agent::tick_tapped`], then [`show`](Self::show) it.
#[derive(Debug, Default)]
pub struct Sights {
    by_pid: BTreeMap<u32, Seen>,
}

/// Which files charged to a cgroup its curve covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// None: those that its processes map are charged to others. Pages of programs and libraries
    /// often are, to the cgroup that read them first, so a limit of this one does not affect them.
    None,
    /// Those that its processes map.
    Mapped,
    /// All: they are followed in the page cache, even if not by every look.
    All,
}

impl Files {
    /// Those that can be covered.
    pub fn of(is_cached: bool, has_files: bool) -> Self {
        match (is_cached, has_files) {
            (true, _) => Files::All,
            (false, true) => Files::Mapped,
            (false, false) => Files::None,
        }
    }

    /// What a cgroup is charged for these and for anonymous memory, in bytes. Shared memory that is
    /// mapped is seen like anonymous memory, but counted with files.
    pub fn charged_bytes(self, stat: &MemoryStat) -> u64 {
        let file_bytes = match self {
            Files::None => stat.mapped_shmem_bytes(),
            Files::Mapped => stat.file_mapped_bytes,
            Files::All => stat.file_bytes,
        };
        stat.anon_bytes.saturating_add(file_bytes)
    }
}

/// Additional inputs of a look.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    /// Which file pages count.
    pub files: Files,
    /// The cgroup, if it is one.
    pub cgroup: Option<&'a Cgroup>,
    /// What is known about the page cache, for [`Files::All`].
    pub cached: Option<&'a Cached<'a>>,
    /// How long looking took, in ms.
    pub blind_ms: f64,
}

/// Whether a cgroup is charged for most of the file pages its processes map. True without a cgroup.
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
    fn table(&mut self, target: &Target, sight: &TableSight<'_>, judged: Judged<'_>) {
        if (sight.bits.present | sight.bits.swapped).is_empty() {
            return;
        }
        self.of(target).tables.push(SeenTable {
            va: sight.va,
            young: *judged.young,
            elsewhere: *judged.elsewhere,
            bits: *sight.bits,
        });
    }

    fn leaves(&mut self, target: &Target, run: &LeafRun<'_>) {
        self.of(target).leaves.push(SeenLeaves {
            va: run.first().va,
            tables: run.tables(),
            is_young: run.is_young(),
        });
    }
}

impl Sights {
    /// Forgets what was shown, but keeps the memory for the next tick.
    pub fn clear(&mut self) {
        self.by_pid.retain(|_, seen| {
            let is_alive = !seen.tables.is_empty() || !seen.leaves.is_empty();
            seen.tables.clear();
            seen.leaves.clear();
            is_alive
        });
    }

    fn of(&mut self, target: &Target) -> &mut Seen {
        self.by_pid.entry(target.pid).or_default()
    }

    /// Shows the pages of these processes to a simulation.
    pub fn show(&self, agent: &Agent, pids: &[u32], what_if: &mut WhatIf, around: Around<'_>) {
        let is_first = what_if.looks() == 0;
        let mut look = what_if.look(agent.last_tick_ms());
        look.blind(around.blind_ms);
        let spaces: Vec<&Space> = pids.iter().filter_map(|pid| agent.space(*pid)).collect();
        for space in &spaces {
            let Some(seen) = self.by_pid.get(&space.process().pid()) else {
                continue;
            };
            let has_files = around.files == Files::Mapped;
            for table in &seen.tables {
                show_table(&mut look, space, table, has_files);
            }
            for leaves in &seen.leaves {
                show_leaves(&mut look, space, leaves, has_files);
            }
        }
        let cached = around.cgroup.zip(around.cached);
        if let Some((cgroup, cached)) = cached {
            cached.show(cgroup, &mut look);
        }
        let is_whole =
            around.files != Files::All || cached.is_some_and(|(_, cached)| cached.is_look());
        let is_missed = spaces.iter().any(|space| space.is_missed());
        // A first look without the page cache does not show how much one of its pages stands for.
        let shows_share = is_whole || !is_first;
        let resident = resident_pages(&spaces, around).filter(|_| shows_share);
        let resident = resident.unwrap_or(0);
        look.finish(resident, is_whole && !is_missed);
    }
}

/// How many pages are resident, sampled or not, as far as that is known. Shared pages count once:
/// if everything is followed, what was shown says how many there are; a sample of forked processes
/// says little about it, as it follows the same few blocks in all of them, so that what a cgroup is
/// charged for is used instead.
fn resident_pages(spaces: &[&Space], around: Around<'_>) -> Option<u64> {
    let counted = |space: &Space| {
        let [anon, file] = space.counted_pages();
        anon + if around.files == Files::Mapped {
            file
        } else {
            0
        }
    };
    if let ([space], Files::None | Files::Mapped) = (spaces, around.files) {
        return Some(counted(space));
    }
    let is_sample = spaces.iter().any(|space| space.is_sample());
    if !is_sample || spaces.iter().any(|space| space.is_missed()) {
        return None;
    }
    let stat = around.cgroup?.stat().ok()?;
    let pages = around.files.charged_bytes(&stat) / PAGE_BYTES;
    // Memory of processes that were moved into the cgroup is charged elsewhere.
    let largest = spaces.iter().map(|space| counted(space)).max();
    Some(pages.max(largest.unwrap_or(0)))
}

fn show_table(look: &mut Look<'_>, space: &Space, seen: &SeenTable, has_files: bool) {
    let SeenTable {
        va,
        young,
        elsewhere,
        bits,
    } = seen;
    let there = bits.present | bits.swapped;
    let at = va / PAGE_BYTES;
    let first = there.pages().next().map(|first| at + first as u64);
    let Some(mut shower) = first.and_then(|first| Shower::new(look, space, first)) else {
        return;
    };
    let file = shower.vma.kind.files(bits) & there;
    let anon = match shower.vma.kind {
        // Known by its place in the file, like the pages of files.
        VmaKind::Shmem => there,
        _ => there.without(&file).without(elsewhere),
    };
    let of_types = [(PageType::Anon, anon), (PageType::File, file)];
    for (page_type, pages) in of_types {
        if pages.is_empty() || (!has_files && page_type == PageType::File) {
            continue;
        }
        shower.pages(at, 1, page_type, |page| {
            let page = (page - at) as usize;
            let fact = match bits.present.contains(page) {
                false => Fact::Out,
                true if young.contains(page) => Fact::Used,
                true => Fact::Idle,
            };
            pages.contains(page).then_some(fact)
        });
    }
}

fn show_leaves(look: &mut Look<'_>, space: &Space, seen: &SeenLeaves, has_files: bool) {
    let first = seen.va / PAGE_BYTES;
    let Some(mut shower) = Shower::new(look, space, first) else {
        return;
    };
    // Leaves are shown together only if all their pages are of one type.
    let page_type = match shower.vma.kind {
        VmaKind::FileShared => PageType::File,
        _ => PageType::Anon,
    };
    let fact = if seen.is_young {
        Fact::Used
    } else {
        Fact::Idle
    };
    if has_files || page_type == PageType::Anon {
        shower.pages(first, seen.tables, page_type, |_| Some(fact));
    }
}

/// Shows pages of one mapping.
struct Shower<'a, 'w> {
    look: &'a mut Look<'w>,
    vma: &'a Vma,
    /// Identifies the memory that is private to the process.
    own: u64,
    level: Level,
}

impl<'a, 'w> Shower<'a, 'w> {
    /// For the mapping that contains a page; everything read together lies in one mapping. `None`
    /// if that mapping is not tracked.
    fn new(look: &'a mut Look<'w>, space: &'a Space, page: u64) -> Option<Self> {
        let process = space.process();
        Some(Shower {
            look,
            vma: space.vmas().find(page * PAGE_BYTES)?,
            own: u64::from(process.pid()) << 32 ^ process.start_ticks(),
            level: space.level_at(page)?,
        })
    }

    /// Shows those pages of adjacent tables that are in the sample and count, by their number in
    /// the address space.
    fn pages(
        &mut self,
        first: u64,
        tables: u64,
        page_type: PageType,
        fact: impl Fn(u64) -> Option<Fact>,
    ) {
        let vma = self.vma;
        let [start, end] = [vma.range.start, vma.range.end].map(|at| at / PAGE_BYTES);
        let pages_end = first + tables * (TABLE_BYTES / PAGE_BYTES);
        let pages = first.max(start)..pages_end.min(end);
        let is_of_file = page_type == PageType::File || vma.kind == VmaKind::Shmem;
        // A file page is identified by its offset in the file, wherever it is mapped.
        let (of, from) = match is_of_file && vma.inode != 0 {
            true => {
                let file = vma.inode ^ vma.device.rotate_left(40);
                (!file, (vma.offset / PAGE_BYTES).wrapping_sub(start))
            }
            false => (self.own, 0),
        };
        let named = pages.start.wrapping_add(from)..pages.end.wrapping_add(from);
        let (look, level) = (&mut *self.look, self.level);
        look.filter().each(of, named, level, |page, hash| {
            if let Some(fact) = fact(page.wrapping_sub(from)) {
                look.page(hash, level, page_type, fact);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use agewise_policy::whatif::Params;

    use super::*;
    use crate::access::AccessError;
    use crate::access::fake::{FakeSource, FakeTable};
    use crate::agent::tests::{Changing, Sleeper, agent, present};

    /// What a process that could never be looked at has is in no simulation, so it does not matter
    /// for the others of its cgroup; what one has that cannot be looked at any more may be there.
    #[test]
    fn pages_are_forgotten_unless_the_look_at_them_failed() {
        let (refused, seen) = (Sleeper::new(), Sleeper::new());
        let pids = [refused.pid(), seen.pid()];
        let fail = |source: &mut FakeSource, pid| {
            source.fail(pid, |_| AccessError::NoPrivilege {
                what: "reading its memory".to_owned(),
                hint: "ask somebody else",
            });
        };
        let showing = |table| {
            let mut source = FakeSource::new();
            source.set(seen.pid(), seen.table(), table);
            fail(&mut source, refused.pid());
            source
        };
        let source = Changing(Rc::new(RefCell::new(showing(present()))));
        let mut agent = agent(source.clone(), &pids);
        let (mut sights, mut what_if) = (Sights::default(), WhatIf::new(Params::default()));
        let mut look = || {
            sights.clear();
            agent.tick_tapped(Some(&mut sights)).unwrap();
            let around = Around {
                files: Files::Mapped,
                cgroup: None,
                cached: None,
                blind_ms: 0.0,
            };
            sights.show(&agent, &pids, &mut what_if, around);
            what_if.sampled_pages()
        };
        let pages = look();
        assert!(pages > 0);
        fail(&mut source.0.borrow_mut(), seen.pid());
        assert_eq!(look(), pages);
        let empty = FakeTable {
            bits: TableBits::default(),
            ..present()
        };
        *source.0.borrow_mut() = showing(empty);
        assert_eq!(look(), 0);
    }

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
