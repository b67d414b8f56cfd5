// SPDX-License-Identifier: Apache-2.0
//! Clearing accessed bits. This is nearly the whole cost of observing, so it clears only what it
//! has to, by the cheapest means.
//!
//! There are two means, with these side effects:
//!
//! | | `process_madvise(MADV_COLD)` on runs | write to `/proc/PID/clear_refs` |
//! |---|---|---|
//! | clears | the ranges given, just seen young | every page (or all anonymous, or all file ones) |
//! | our CPU | 45 ns a page in long ranges, and a TLB flush a range | 24 to 30 ns a present page |
//! | target stands still | no | all its page faults and mappings, 7 ms/GiB |
//! | mmap lock | for reading, a few 100 us per call | for writing |
//! | TLB | flushed: the next access is seen | not flushed, see below |
//! | kernel's LRU | deactivates the pages, see below | also clears PG_referenced |
//! | MGLRU | the pages go to the oldest generation | as above |
//! | pages others map too | skipped | cleared |
//! | mlocked, hugetlb | refused | mlocked: cleared |
//! | part of a huge page or large folio | splits it: only whole ones are passed | clears all |
//! | needs | CAP_SYS_NICE and the right to trace the target, if another | to be its user |
//!
//! A TLB flush takes 0.3 us, and 18 us while the target runs on another virtual CPU. Without it,
//! accesses through remaining TLB entries are missed: 0.05 to 0.3 % of a hot set. Under pressure
//! the kernel reclaims deactivated pages first, unless they are accessed again, which it notices by
//! the accessed bit; pages without PG_referenced have one second chance fewer.
//!
//! The target pays too, with either means: about 400 ns for each page it accesses again. So
//! histograms come from a sample ([`agewise_policy::sample`]).
//!
//! One [`Clearer`] serves one process. A scan calls [`begin`](Clearer::begin), then
//! [`judge`](Clearer::judge) for every sight as it comes, [`clear`](Clearer::clear) at the end of
//! each batch, and [`finish`](Clearer::finish) at the end. Clearing per batch keeps the time
//! between reading a table and clearing it short, because accesses in between are lost. If much
//! time has passed anyway, because the observer was preempted, the batch is not cleared.

use std::collections::HashMap;
use std::sync::Arc;

use agewise_policy::clear::CostModel;

use crate::access::{Leaf, LeafRun, PAGE_BYTES, TABLE_BYTES, TableSight};
use crate::vma::{Vma, VmaKind};
use hand::{MapCounts, RefsScope};
use runs::{Notes, Run};

mod carry_out;
mod folios;
pub mod hand;
mod policy;
mod report;
mod runs;
#[cfg(test)]
mod tests;

pub use policy::{ClearPolicy, Means};
pub use report::{ClearError, ClearReport};

/// How the pages of a mapping are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Cold,
    Refs(RefsScope),
    Nothing,
}

/// One mapping during a scan.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    is_file: bool,
    way: Way,
    /// Whether to find out in this scan if other processes map its pages.
    ask: bool,
    /// Pages checked for other mappings, and how many had some.
    probed: (u8, u8),
}

/// What is remembered about a mapping: whether `MADV_COLD` skips it, because others map its pages
/// too or because it is locked, and when that was found out.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    shared: bool,
    scan: u32,
}

/// Clearing scans after which the cost of the last one predicts that of the next.
const SETTLED: u32 = 4;
/// A flush of more than 33 pages flushes the whole TLB (x86, `tlb_single_page_flush_ceiling`, 4.20
/// to 6.18); about twice that leaves a margin.
const FLUSHES_ALL_BYTES: u64 = 64 * PAGE_BYTES;
/// About 0.1 ms pass between reading a table and clearing it, or a few ms if we wait for a CPU. A
/// longer pause (a stop, a stall of the machine) would lose too many accesses.
const LATE_NS: u64 = 20_000_000;
/// If looks are far apart, a pause up to this fraction of the minimum time between clears (a
/// quarter of the time between looks) still counts as short: at most a quarter of the accesses are
/// lost, while in a batch that is not cleared every page that has just become idle counts as
/// accessed once more.
const LATE_PART: u64 = 2;
/// A write to `clear_refs` for a few pages waits at most this long.
const REFS_WAIT_NS: u64 = 60_000_000_000;
/// Longest time for which `clear_refs` may stall page faults of the target, if it is not the only
/// means.
const STALL_NS_MAX: f64 = 1e8;
/// Pages checked for other mappings, per mapping.
const PROBES: u8 = 8;
/// Clearing scans after which a mapping is checked again.
const PROBE_AGAIN: u32 = 32;

/// Clears the accessed bits of one process, scan after scan.
#[derive(Debug)]
pub struct Clearer {
    pid: u32,
    policy: ClearPolicy,
    cost: CostModel,
    /// What this batch showed, kept until it is cleared.
    notes: Notes,
    counts: Arc<MapCounts>,
    sharing: HashMap<u64, Sharing>,
    mappings: Vec<Mapping>,
    /// Number of scans over which tables take turns, to stay within the budget.
    rotate: u32,
    scan: u32,
    last_clear_ns: Option<u64>,
    last_refs_ns: Option<u64>,
    now_ns: u64,
    /// Whether this scan clears everything by one write at its end.
    by_refs: bool,
    /// Resident pages of the process, if the scan shows only a part of them.
    resident_pages: Option<u64>,
    cold_denied: bool,
    /// Young pages waiting for `clear_refs`: anonymous, file.
    waiting: [u64; 2],
    /// A run to clear after `clear_refs`, so that its flush serves both.
    held: Option<Run>,
    /// Present pages of this scan: anonymous, file.
    present: [u64; 2],
    report: ClearReport,
    last: ClearReport,
    last_present: u64,
}

impl Clearer {
    /// Creates a clearer for process `pid`.
    pub fn new(pid: u32, policy: ClearPolicy) -> Self {
        Self::with_counts(pid, policy, Arc::new(MapCounts::open()))
    }

    /// Like [`new`](Self::new), with a file that several clearers share.
    pub fn with_counts(pid: u32, policy: ClearPolicy, counts: Arc<MapCounts>) -> Self {
        Clearer {
            pid,
            policy,
            cost: CostModel::default(),
            notes: Notes::default(),
            counts,
            sharing: HashMap::new(),
            mappings: Vec::new(),
            rotate: 1,
            scan: 0,
            last_clear_ns: None,
            last_refs_ns: None,
            now_ns: 0,
            by_refs: false,
            resident_pages: None,
            cold_denied: false,
            waiting: [0; 2],
            held: None,
            present: [0; 2],
            report: ClearReport::default(),
            last: ClearReport::default(),
            last_present: 0,
        }
    }

    /// Approximate bytes of memory used.
    pub fn memory_bytes(&self) -> usize {
        self.notes.memory_bytes()
            + self.mappings.capacity() * size_of::<Mapping>()
            + self.sharing.capacity() * 2 * size_of::<Sharing>()
    }

    /// Begins a scan at `now_ns` over these mappings, in the order of the ranges given to the
    /// source.
    pub fn begin<'v>(&mut self, now_ns: u64, vmas: impl IntoIterator<Item = &'v Vma>) {
        self.now_ns = now_ns;
        let due = self
            .last_clear_ns
            .is_none_or(|last| now_ns.saturating_sub(last) >= self.policy.min_interval_ns);
        if self.report.due {
            self.last = self.report;
            self.last_present = self.present.iter().sum();
        }
        self.report = ClearReport {
            due,
            ..Default::default()
        };
        self.present = [0; 2];
        self.waiting = [0; 2];
        self.held = None;
        self.notes.forget();
        if due {
            self.scan += 1;
            self.by_refs = self.choose_refs(now_ns);
            self.rotate = self.next_rotate();
        }
        self.mappings.clear();
        for vma in vmas {
            let is_file = !matches!(vma.kind, VmaKind::Anon);
            let way = self.way(vma, is_file);
            let known = self.sharing.get(&vma.range.start);
            let mapping = Mapping {
                start: vma.range.start,
                end: vma.range.end,
                is_file,
                way,
                ask: way == Way::Cold && known.is_none_or(|k| self.scan - k.scan >= PROBE_AGAIN),
                probed: (0, 0),
            };
            self.mappings.push(mapping);
        }
    }

    fn way(&self, vma: &Vma, is_file: bool) -> Way {
        let refs = Way::Refs(if is_file {
            RefsScope::File
        } else {
            RefsScope::Anon
        });
        match vma.kind {
            VmaKind::Hugetlb | VmaKind::Special => Way::Nothing,
            _ if self.by_refs || self.cold_denied => refs,
            _ if self.policy.means == Means::Cold => Way::Cold,
            _ if vma.locked => refs,
            _ if self.is_left_alone(vma.range.start) => refs,
            _ => Way::Cold,
        }
    }

    /// Whether `MADV_COLD` had no effect on the mapping at `start` when last tried.
    fn is_left_alone(&self, start: u64) -> bool {
        let known = self.sharing.get(&start);
        known.is_some_and(|known| known.shared && self.scan - known.scan < PROBE_AGAIN)
    }

    /// Sets the resident pages of the process if the next scans show only a sample of them: a write
    /// to `clear_refs` takes time for all, and clears all. `None` if everything is shown.
    pub fn set_resident_pages(&mut self, pages: Option<u64>) {
        self.resident_pages = pages;
    }

    /// Marks a gap: what follows is not adjacent to what came before, and no range may span both.
    pub fn gap(&mut self) {
        self.notes.close();
    }

    /// Whether `MADV_COLD` clears the mapping at `start`, as far as earlier scans found out: it is
    /// permitted, and nobody else maps the pages.
    pub fn is_cleared_by_advice(&self, start: u64) -> bool {
        !self.cold_denied && self.policy.means != Means::Refs && !self.is_left_alone(start)
    }

    /// Whether to use one write instead of many ranges: if it costs less than half and does not
    /// stall the target for too long. It does not flush the TLB, so it must win clearly. Never
    /// instead of a sample's ranges: the target would pay for all the bits that the sample spares.
    fn choose_refs(&self, now_ns: u64) -> bool {
        match self.policy.means {
            Means::Refs => return true,
            Means::Cold => return false,
            Means::Auto => {}
        }
        if self.cold_denied {
            return true;
        }
        if self.resident_pages.is_some() {
            return false;
        }
        let cold = self.cost.cold_ns(self.last.ranges, self.last.range_pages);
        let refs = self.cost.refs_ns(self.last_present);
        self.scan > SETTLED && refs < cold / 2.0 && self.may_stall(refs, now_ns)
    }

    fn may_stall(&self, stall_ns: f64, now_ns: u64) -> bool {
        let pause = self
            .last_refs_ns
            .map_or(f64::MAX, |last| now_ns.saturating_sub(last) as f64);
        stall_ns <= STALL_NS_MAX && stall_ns <= pause * self.policy.max_stall_share
    }

    /// Sets another policy from the next scan on. What was learned is kept.
    pub fn set_policy(&mut self, policy: ClearPolicy) {
        self.policy = policy;
    }

    /// Over how many scans tables must take turns to stay within the budget.
    fn next_rotate(&self) -> u32 {
        let Some(budget) = self.policy.budget_ns else {
            return 1;
        };
        if self.last.ranges == 0 {
            return self.rotate;
        }
        // The cost of the last scan, as if it had not taken turns.
        let whole = self.last.cpu_ns.saturating_mul(u64::from(self.rotate));
        whole.div_ceil(budget.max(1)).clamp(1, 64) as u32
    }

    /// Notes what to clear of `sight`. Returns the start of the period its young bits cover, in
    /// `CLOCK_MONOTONIC` ns. `None` in the first scan: accessed at any time since they were mapped.
    pub fn judge(&mut self, sight: &TableSight<'_>) -> Option<u64> {
        self.judge_alike(sight, 1)
    }

    /// Like [`judge`](Self::judge), for a run of leaves.
    pub fn judge_leaves(&mut self, run: &LeafRun<'_>) {
        self.judge_alike(run.first(), run.tables());
    }

    /// Handles `tables` adjacent tables that look like this one; more than one only for leaves.
    fn judge_alike(&mut self, sight: &TableSight<'_>, tables: u64) -> Option<u64> {
        let present = sight.bits.present.len() * tables;
        let mapping = *self.mappings.get(sight.range)?;
        self.present[usize::from(mapping.is_file)] += present;
        let since_ns = self.since_ns(mapping.way);
        if sight.bits.young.is_empty() {
            self.notes.pass(if sight.leaf == Leaf::Page {
                present as u32
            } else {
                tables as u32
            });
            return since_ns;
        }
        self.report.tables_young += tables;
        if !self.report.due {
            return since_ns;
        }
        self.probe(sight);
        let way = match mapping.way {
            // A call for 2 MiB of a larger leaf would split it.
            Way::Cold if sight.leaf == Leaf::Giant => Way::Nothing,
            way => way,
        };
        match way {
            Way::Nothing => {
                self.report.uncleared_pages += present;
                return None;
            }
            Way::Refs(scope) => {
                let waiting = &mut self.waiting[usize::from(scope == RefsScope::File)];
                *waiting += sight.bits.young.len() * tables;
            }
            Way::Cold if self.is_its_turn(sight) => self.note(sight, tables),
            Way::Cold => self.notes.close(),
        }
        since_ns
    }

    /// Tables take turns to keep the budget. Until its turn, bits of a table stay set and count as
    /// accesses.
    fn is_its_turn(&self, sight: &TableSight<'_>) -> bool {
        let turn = sight.va / TABLE_BYTES + u64::from(self.scan);
        turn.is_multiple_of(u64::from(self.rotate))
    }

    /// The last time everything of this kind was cleared.
    fn since_ns(&self, way: Way) -> Option<u64> {
        match way {
            Way::Refs(_) if !self.by_refs => self.last_refs_ns.or(self.last_clear_ns),
            _ => self.last_clear_ns,
        }
    }

    fn note(&mut self, sight: &TableSight<'_>, tables: u64) {
        self.report.tables_cleared += tables;
        if sight.leaf == Leaf::Page {
            let mapping = self.mappings.get(sight.range);
            let wanted = match mapping.filter(|mapping| mapping.is_file) {
                Some(mapping) => folios::whole(&sight.bits.young, |page| {
                    let va = sight.va + page as u64 * PAGE_BYTES;
                    let is_its = (mapping.start..mapping.end).contains(&va);
                    sight.frame(page).filter(|_| is_its)
                }),
                None => sight.bits.young,
            };
            self.notes
                .table(sight.range, sight.va, wanted, sight.bits.present);
        } else {
            // The whole leaf, even if only a part was requested: no mapping has just a part of one.
            self.notes.leaves(sight.range, sight.va, tables);
        }
    }

    /// Checks for a few young pages of the mapping whether others map them too.
    fn probe(&mut self, sight: &TableSight<'_>) {
        let mapping = &mut self.mappings[sight.range];
        if !mapping.ask || mapping.probed.0 >= PROBES {
            return;
        }
        // At most two per table, so that they come from all over the mapping.
        let bits = sight
            .bits
            .young
            .words()
            .iter()
            .enumerate()
            .filter(|(_, word)| **word != 0)
            .take(2);
        for (word, bits) in bits {
            let page = word * 64 + bits.trailing_zeros() as usize;
            let shared = sight.pfn(page).and_then(|pfn| self.counts.is_shared(pfn));
            if let Some(shared) = shared {
                mapping.probed.0 += 1;
                mapping.probed.1 += u8::from(shared);
            }
        }
        let (asked, shared) = mapping.probed;
        if asked > 0 {
            let sharing = Sharing {
                shared: shared * 2 >= asked,
                scan: self.scan,
            };
            self.sharing.insert(mapping.start, sharing);
        }
    }

    /// Forgets everything about the memory of the process, after an exec.
    pub fn forget(&mut self) {
        *self = Clearer {
            cost: self.cost,
            ..Clearer::with_counts(self.pid, self.policy, Arc::clone(&self.counts))
        };
    }
}
