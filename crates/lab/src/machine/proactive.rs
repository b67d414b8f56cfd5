// SPDX-License-Identifier: Apache-2.0
//! What an agent in user space can do on the machine: look at page tables, clear accessed bits,
//! page out, sort. It runs beside the processes, on its own time.
//!
//! | operation | ns | source |
//! |---|---|---|
//! | leaf entry read | 1.1 | reading page tables from eBPF, measured on Linux 6.18 (2 cores) |
//! | accessed bit cleared in a run | 56 | `process_madvise(MADV_COLD)`, measured there |
//! | the same, a lone page | 420 | measured there |
//! | accessed bits cleared, a mapped page | 55 | `clear_refs`, 12 to 17 ms a GiB, measured there |
//! | page given to `process_madvise(MADV_PAGEOUT)` | 200 | rest of 7 us, after device and policy |
//! | call with up to 1024 runs | 2000 | system call and pidfd |

use std::ops::Range;

use agewise_kernel::folio::{Flag, FolioType, Pfn};
use agewise_kernel::ids::MemcgId;
use agewise_kernel::mglru::{self, Command, MemcgNames};
use agewise_kernel::page_table::{PAGES_PER_PMD, Pmd};
use agewise_kernel::reclaim::chosen::reclaim_chosen;
use agewise_policy::generations::ByType;
use agewise_policy::table::{PageSet, TableBits};

use super::address_space::Backing;
use super::page_tables::swap_slot;
use super::{FileId, Machine, ProcessId};

const LOOK_PS: u64 = 1_100;
const CLEAR_IN_RUN_NS: u64 = 56;
const CLEAR_LONE_NS: u64 = 420;
const CLEAR_REFS_NS: u64 = 55;
const PAGEOUT_NS: u64 = 200;
const CALL_NS: u64 = 2_000;
/// `IOV_MAX`: runs one call accepts.
const RUNS_PER_CALL: u64 = 1024;

/// Which accessed bits a look clears, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    None,
    /// Only those that are set, run by run.
    Accessed,
    /// Those of all anonymous memory, page by page.
    Anon,
    /// Those of all memory, page by page.
    All,
}

/// State of the 512 pages of one last-level table.
#[derive(Clone, Copy, Debug)]
pub struct TableSeen {
    /// Page number of the first page / 512.
    pub index: u64,
    /// Present, accessed, dirty and swapped pages.
    pub bits: TableBits,
    /// The file the pages belong to, and the first page's position in it.
    pub file: Option<(FileId, u64)>,
}

impl TableSeen {
    /// The pages that belong to a file.
    pub fn files(&self) -> PageSet {
        match self.file {
            Some(_) => PageSet::ALL,
            None => PageSet::NONE,
        }
    }
}

impl Machine {
    /// Runs `work` at `at_ns` beside the processes; returns its result and the CPU time it took.
    /// Its changes are visible at once.
    pub fn beside<T>(&mut self, at_ns: u64, work: impl FnOnce(&mut Machine) -> T) -> (T, u64) {
        let now_ns = std::mem::replace(&mut self.sys.now_ns, at_ns);
        if at_ns >= self.sys.events.next_ns() {
            self.run_events();
        }
        let waited_ns = self.sys.waited_ns;
        let result = work(self);
        let waited_ns = self.sys.waited_ns - std::mem::replace(&mut self.sys.waited_ns, waited_ns);
        let busy_ns = (self.sys.now_ns - at_ns).saturating_sub(waited_ns);
        self.sys.now_ns = now_ns;
        (result, busy_ns)
    }

    /// Spends CPU time beside the processes without touching memory.
    pub fn wait_busy(&mut self, ns: u64) {
        self.sys.now_ns += ns;
    }

    /// Processes that run in a cgroup or below it.
    pub fn live_processes(&self, memcg: MemcgId) -> Vec<ProcessId> {
        let lives = |mm: &agewise_kernel::ids::MmId| {
            let space = &self.sys.spaces[*mm];
            space.alive && self.sys.memcgs.is_descendant(space.memcg, memcg)
        };
        self.sys.spaces.ids().filter(lives).map(ProcessId).collect()
    }

    /// Mapped pages of a process, anon and file.
    pub fn mapped_pages(&self, process: ProcessId) -> ByType<u64> {
        self.sys.spaces[process.mm()].resident_pages
    }

    /// Pages of a process in swap.
    pub fn swapped_pages(&self, process: ProcessId) -> u64 {
        self.sys.spaces[process.mm()].swapped_pages
    }

    /// Free and total pages of swap.
    pub fn swap_room_pages(&self) -> [u64; 2] {
        let swap = &self.sys.swap;
        match self.sys.swap_device {
            Some(_) => [swap.free().into(), swap.capacity().into()],
            None => [0, 0],
        }
    }

    /// Looks at the page tables of a process in ascending order, and clears accessed bits.
    pub fn look_at(
        &mut self,
        process: ProcessId,
        clearing: Clearing,
        mut visit: impl FnMut(&TableSeen),
    ) {
        let mm = process.mm();
        let (mut read, mut cleared_ns) = (0, 0);
        for vpn in self.sys.tables.ranges(mm) {
            let file = self.file_at(process, vpn);
            let clear = match clearing {
                Clearing::None => false,
                Clearing::Accessed | Clearing::All => true,
                Clearing::Anon => file.is_none(),
            };
            let mut bits = TableBits::default();
            match self.sys.tables.pmd(mm, vpn) {
                Pmd::None => continue,
                Pmd::Leaf(leaf) => {
                    read += 1;
                    let is_young = leaf.young();
                    bits.present = PageSet::ALL;
                    bits.young = if is_young {
                        PageSet::ALL
                    } else {
                        PageSet::NONE
                    };
                    let was_young = clear && leaf.test_clear_young();
                    cleared_ns += match clearing {
                        Clearing::Accessed if was_young => CLEAR_LONE_NS,
                        Clearing::Anon | Clearing::All if clear => CLEAR_REFS_NS,
                        _ => 0,
                    };
                }
                Pmd::Table(table) => {
                    read += PAGES_PER_PMD;
                    for (at, leaf) in table.iter_mut().enumerate() {
                        let (word, bit) = (at / 64, 1u64 << (at % 64));
                        if swap_slot(*leaf).is_some() {
                            bits.swapped[word] |= bit;
                        } else if leaf.present() && !leaf.is_special() {
                            bits.present[word] |= bit;
                            let young = leaf.young();
                            bits.young[word] |= if young { bit } else { 0 };
                            if clear && young {
                                leaf.test_clear_young();
                            }
                        }
                    }
                    cleared_ns += match clearing {
                        Clearing::Accessed => price_of_clearing(&bits.young),
                        Clearing::Anon | Clearing::All if clear => {
                            bits.present.len() * CLEAR_REFS_NS
                        }
                        _ => 0,
                    };
                }
            }
            visit(&TableSeen {
                index: vpn / PAGES_PER_PMD,
                bits,
                file,
            });
        }
        self.sys.now_ns += read * LOOK_PS / 1_000 + cleared_ns;
    }

    /// The file that a page of a process belongs to, and the page's position in it.
    pub fn file_at(&self, process: ProcessId, vpn: u64) -> Option<(FileId, u64)> {
        // Each range has page tables of its own, so a table has pages of only one range.
        let range = self.sys.spaces.from(process.mm(), vpn)?;
        match range.backing {
            Backing::File { file, first_page } => {
                let offset = vpn.saturating_sub(range.vma.start_vpn);
                Some((FileId(file), u64::from(first_page) + offset))
            }
            Backing::Anon => None,
        }
    }

    /// Looks at some pages (ascending runs) without changing anything. Returns the state of these
    /// pages, by table.
    pub fn look_at_pages(&mut self, process: ProcessId, runs: &[Range<u64>]) -> Vec<TableSeen> {
        let mm = process.mm();
        let mut seen: Vec<TableSeen> = Vec::new();
        let mut read = 0;
        for vpn in runs.iter().cloned().flatten() {
            read += 1;
            let Some(leaf) = self.sys.tables.leaf(mm, vpn) else {
                continue;
            };
            let index = vpn / PAGES_PER_PMD;
            if seen.last().is_none_or(|last| last.index != index) {
                seen.push(TableSeen {
                    index,
                    bits: TableBits::default(),
                    file: None,
                });
            }
            let Some(table) = seen.last_mut() else {
                continue;
            };
            let slot = (vpn % PAGES_PER_PMD) as usize;
            if leaf.present() && !leaf.is_special() {
                table.bits.present.insert(slot);
                if leaf.young() {
                    table.bits.young.insert(slot);
                }
            }
        }
        self.sys.now_ns += read * LOOK_PS / 1_000;
        seen
    }

    /// Pages out the mapped idle pages of these runs (a look right before spares pages accessed
    /// meanwhile). Returns how many were tried and how many left the address space, by type.
    ///
    /// On a slow device the writes are still in progress; [`reap`](Self::reap) frees the pages
    /// later.
    pub fn page_out(
        &mut self,
        process: ProcessId,
        runs: &[Range<u64>],
        even_young: bool,
    ) -> (ByType<u64>, ByType<u64>) {
        let mm = process.mm();
        let (mut tried, mut folios) = ([0; 2], Vec::new());
        for vpn in runs.iter().cloned().flatten() {
            let Some(leaf) = self.sys.tables.leaf_mut(mm, vpn) else {
                continue;
            };
            if !leaf.present() || leaf.is_special() || (leaf.young() && !even_young) {
                continue;
            }
            leaf.test_clear_young();
            let pfn = leaf.pfn();
            // Pages mapped by several processes stay (`madvise_cold_or_pageout_pte_range`).
            if self.sys.frames.mapcount(pfn) == 1 {
                tried[self.lru.folios[pfn].folio_type().index()] += 1;
                folios.push(pfn);
            }
        }
        let calls = (runs.len() as u64).div_ceil(RUNS_PER_CALL);
        self.sys.now_ns += calls * CALL_NS + folios.len() as u64 * PAGEOUT_NS;
        let before = self.mapped_pages(process);
        self.reclaim_folios(&folios);
        let after = self.mapped_pages(process);
        let left = [0, 1].map(|t| before[t].saturating_sub(after[t]));
        (tried, left)
    }

    /// Frees paged-out pages that the device has written by now: anonymous pages of the cgroup that
    /// no process maps and only the swap cache keeps. Returns how many.
    pub fn reap(&mut self, memcg: MemcgId) -> u64 {
        let done: Vec<Pfn> = (0..self.lru.folios.len() as u32)
            .map(Pfn)
            .filter(|&pfn| {
                let folio = &self.lru.folios[pfn];
                folio.has(Flag::Swapcache)
                    && folio.has(Flag::Lru)
                    && !folio.has_any(Flag::Mapped as u32 | Flag::Writeback as u32)
                    && self
                        .lru
                        .is_descendant(self.sys.memcg_of_lruvec(folio.lruvec), memcg)
            })
            .collect();
        if done.is_empty() {
            return 0;
        }
        let freed = self.reclaim_folios(&done);
        freed[0] + freed[1]
    }

    pub(super) fn reclaim_folios(&mut self, folios: &[Pfn]) -> ByType<u64> {
        let begun = self.begin_work();
        let cpu = self.sys.cpu;
        let freed = reclaim_chosen(&mut self.lru, &mut self.sys, cpu, folios);
        self.pay_for_work(&begun);
        self.end_victims();
        freed
    }

    /// Makes the pages of these runs the first to be reclaimed (`MADV_COLD`).
    pub fn sort_cold(&mut self, process: ProcessId, runs: &[Range<u64>]) {
        let begun = self.begin_work();
        let mut sorted = 0;
        for vpn in runs.iter().cloned().flatten() {
            let leaf = self.sys.tables.leaf_mut(process.mm(), vpn);
            let Some(leaf) = leaf.filter(|leaf| leaf.present() && !leaf.is_special()) else {
                continue;
            };
            leaf.test_clear_young();
            let pfn = leaf.pfn();
            self.lru.deactivate(pfn, self.sys.cpu);
            sorted += 1;
        }
        self.sys.now_ns +=
            CALL_NS * (runs.len() as u64).div_ceil(RUNS_PER_CALL) + sorted * CLEAR_IN_RUN_NS;
        self.pay_for_work(&begun);
    }

    /// Generations of a cgroup and its descendants: births in ns with their pages by type, youngest
    /// first, one list per lruvec. Empty under the classic LRU.
    pub fn generations(&self, memcg: MemcgId) -> Vec<Vec<(u64, ByType<u64>)>> {
        let lruvecs = self.lru.lruvecs.iter();
        lruvecs
            .filter(|lruvec| lruvec.mglru.enabled && self.lru.is_descendant(lruvec.memcg, memcg))
            .map(|lruvec| {
                let state = &lruvec.mglru;
                let oldest = state.min_seq[0].min(state.min_seq[1]);
                let generation = |seq| {
                    let pages = FolioType::ALL.map(|t| match seq >= state.min_seq[t.index()] {
                        true => state.pages_of(seq, t),
                        false => 0,
                    });
                    (state.birth_ns(seq), pages)
                };
                (oldest..=state.max_seq).rev().map(generation).collect()
            })
            .collect()
    }

    /// Opens a generation in every lruvec of a cgroup and its descendants, as a write to `lru_gen`
    /// does with swap allowed and by force.
    pub fn age_generations(&mut self, memcg: MemcgId) {
        let begun = self.begin_work();
        for at in self.lru.tree_order(memcg) {
            for node in 0..self.config.all_nodes() {
                let lruvec = self.lru.lruvec_id(at, agewise_kernel::ids::NodeId(node));
                let seq = self.lru.lruvecs[lruvec.index()].mglru.max_seq;
                let command = Command {
                    verb: b'+',
                    memcg_id: at.index() as u64,
                    node,
                    seq,
                    swappiness: None,
                    option: Some(1),
                };
                // Nothing to age is not an error for a caller that only wants to read ages.
                let _ = mglru::run(&mut self.lru, &mut self.sys, &ByIndex, command);
            }
        }
        self.pay_for_work(&begun);
    }
}

/// Cgroups by the machine's own number.
struct ByIndex;

impl MemcgNames for ByIndex {
    fn id(&self, memcg: MemcgId) -> u64 {
        memcg.index() as u64
    }

    fn path(&self, _: MemcgId) -> String {
        String::new()
    }

    fn by_id(&self, id: u64) -> Option<MemcgId> {
        u32::try_from(id).ok().map(MemcgId)
    }
}

/// Cost of clearing accessed bits: neighbours are cleared as runs; lone pages cost more.
fn price_of_clearing(young: &PageSet) -> u64 {
    let starts = young.runs().count() as u64;
    // The first page of a run bears the cost of the call, the others only their own.
    starts * CLEAR_LONE_NS + (young.len() - starts) * CLEAR_IN_RUN_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cheaper_to_clear_than_lone_pages() {
        let mut young = PageSet::NONE;
        assert_eq!(price_of_clearing(&young), 0);
        // One run across two words.
        young[0] = 1 << 63;
        young[1] = 0b111;
        assert_eq!(price_of_clearing(&young), 420 + 3 * 56);
        young[7] = 0b1010;
        assert_eq!(price_of_clearing(&young), 3 * 420 + 3 * 56);
    }
}
