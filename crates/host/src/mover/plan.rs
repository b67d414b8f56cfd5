// SPDX-License-Identifier: Apache-2.0
//! What to page out of one address space, and the limits.

use std::collections::VecDeque;

use super::look::Found;
use super::report::{SkipReason, Skipped};
use super::runs::RunSet;
use crate::access::AddressRange;
use crate::vma::{Vma, VmaKind, VmaTable};

/// Size of a huge page, mapped by one page-middle-directory entry (x86-64, and others with 4 KiB
/// pages).
pub const HUGE_BYTES: u64 = 2 << 20;

/// Pages to move out. Touching runs are joined, overlaps count once, and partial pages are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    base: RunSet,
    huge: RunSet,
    /// Where shared memory is mapped, which page tables show as files.
    shmem: RunSet,
    skipped: Skipped,
}

impl Plan {
    /// `base` is memory mapped by small pages, `huge` by huge ones, in any order. Only whole huge
    /// pages are taken from `huge`, since a part of one could leave only if it were split.
    pub fn new(
        base: impl IntoIterator<Item = AddressRange>,
        huge: impl IntoIterator<Item = AddressRange>,
    ) -> Self {
        let page_bytes = rustix::param::page_size() as u64;
        let huge = RunSet::from_runs(huge).shrunk_to(page_bytes);
        let base = RunSet::from_runs(base)
            .shrunk_to(page_bytes)
            .subtract(&huge);
        let mut plan = Self {
            base,
            ..Self::default()
        };
        plan.keep_whole(huge);
        plan
    }

    fn keep_whole(&mut self, huge: RunSet) {
        let whole = huge.shrunk_to(HUGE_BYTES);
        self.skipped
            .add(SkipReason::PartialHuge, huge.bytes() - whole.bytes());
        self.huge = whole;
    }

    /// Takes what a look found, without parts of huge pages.
    pub fn of(found: Found) -> Self {
        Self::new(found.base.runs().to_vec(), found.huge.runs().to_vec())
    }

    /// Takes memory mapped by small pages only.
    pub fn of_base(runs: impl IntoIterator<Item = AddressRange>) -> Self {
        Self::new(runs, [])
    }

    /// The small pages.
    pub fn base(&self) -> &RunSet {
        &self.base
    }

    /// The whole huge pages.
    pub fn huge(&self) -> &RunSet {
        &self.huge
    }

    /// Where shared memory and tmpfs are mapped; empty before [`Plan::heed`].
    pub fn shmem(&self) -> &RunSet {
        &self.shmem
    }

    /// All pages, of both sizes.
    pub fn pages(&self) -> RunSet {
        self.base.union(&self.huge)
    }

    /// Bytes asked for but left out, by reason.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    pub fn asked_bytes(&self) -> u64 {
        self.base.bytes() + self.huge.bytes() + self.skipped.total_bytes()
    }

    /// Removes `ranges` from the plan; they are reported under `reason`.
    pub fn exclude(&mut self, ranges: &RunSet, reason: SkipReason) {
        let before = self.base.bytes() + self.huge.bytes();
        self.base = self.base.subtract(ranges);
        let huge = self.huge.subtract(ranges);
        self.skipped
            .add(reason, before - (self.base.bytes() + huge.bytes()));
        self.keep_whole(huge);
    }

    /// Takes the mappings into account. Removes those that the kernel does not page out: mlocked
    /// (as marked by [`VmaTable::mark_locked`]), hugetlb, device memory; this only saves calls,
    /// since the eviction continues after refusals anyway. Notes which are shared memory: it goes
    /// to swap.
    pub fn heed(&mut self, table: &VmaTable) {
        let ranges = |want: &dyn Fn(&Vma) -> bool| -> RunSet {
            let vmas = table.vmas().iter().filter(|vma| want(vma));
            vmas.map(|vma| vma.range).collect()
        };
        let fixed = |kind| matches!(kind, VmaKind::Hugetlb | VmaKind::Special);
        let unevictable = ranges(&|vma| vma.locked || fixed(vma.kind));
        self.exclude(&unevictable, SkipReason::Unevictable);
        self.shmem = ranges(&|vma| vma.kind == VmaKind::Shmem);
    }
}

/// Bounds of one eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageoutLimits {
    /// Most bytes that leave. Pages that the kernel keeps (because others map them too, say) do not
    /// count, as they would stand in the way of those that can leave.
    pub bytes_max: u64,
    /// Most bytes per call, but at least one (huge) page. A call of 8 MiB takes about 15 ms: that
    /// is how stale the accessed bits checked before it can be, and how long a signal waits.
    pub call_bytes_max: u64,
    /// Average rate; `None` is unlimited.
    pub rate_bytes_per_s: Option<u64>,
    /// Resident memory is not reduced below this.
    pub floor_bytes: u64,
    /// Look, but do not move anything.
    pub rehearse: bool,
    /// Free swap that the rehearsals of other processes would have taken.
    pub swap_taken_bytes: u64,
    /// Assume that the pages returned by the second look are present, anonymous, and leave.
    /// Otherwise each is checked again before and after, for a tenth of the cost of a move. For
    /// callers that move a little at a time, often, and verify now and then. Which pages left is
    /// not recorded.
    pub unverified: bool,
}

impl Default for PageoutLimits {
    /// No limits except 8 MiB per call.
    fn default() -> Self {
        Self {
            bytes_max: u64::MAX,
            call_bytes_max: 8 << 20,
            rate_bytes_per_s: None,
            floor_bytes: 0,
            rehearse: false,
            swap_taken_bytes: 0,
            unverified: false,
        }
    }
}

/// Splits a plan into batches that fit one call. Huge pages come first, since they are the
/// cheapest.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    parts: [Part; 2],
}

/// Pages of one size.
#[derive(Clone, Debug)]
struct Part {
    runs: VecDeque<AddressRange>,
    unit_bytes: u64,
}

/// One batch: pages of one size.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub runs: RunSet,
    /// The unit that must not be split.
    pub unit_bytes: u64,
}

impl Queue {
    pub fn new(plan: &Plan) -> Self {
        let page_bytes = rustix::param::page_size() as u64;
        let part = |set: &RunSet, unit_bytes| Part {
            runs: set.runs().iter().copied().collect(),
            unit_bytes,
        };
        Self {
            parts: [part(&plan.huge, HUGE_BYTES), part(&plan.base, page_bytes)],
        }
    }

    /// The unit of the next batch; `None` if the queue is empty.
    pub fn unit_bytes(&self) -> Option<u64> {
        let mut parts = self.parts.iter();
        let next = parts.find(|part| !part.runs.is_empty());
        next.map(|part| part.unit_bytes)
    }

    /// The part of the next batch.
    fn next_part(&mut self) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| !part.runs.is_empty())
    }

    /// Takes the next batch: at most `runs_max` runs and `bytes_max` bytes, but at least one unit.
    pub fn next(&mut self, bytes_max: u64, runs_max: usize) -> Option<Batch> {
        let part = self.next_part()?;
        let unit_bytes = part.unit_bytes;
        let mut room = (bytes_max / unit_bytes).max(1) * unit_bytes;
        let mut runs = RunSet::default();
        while room > 0
            && runs.runs().len() < runs_max
            && let Some(run) = part.runs.front_mut()
        {
            let piece = AddressRange::new(run.start, run.len().min(room));
            room -= piece.len();
            runs.push(piece);
            run.start = piece.end;
            if run.start >= run.end {
                part.runs.pop_front();
            }
        }
        Some(Batch { runs, unit_bytes })
    }

    /// Bytes not returned yet.
    pub fn bytes(&self) -> u64 {
        self.parts
            .iter()
            .flat_map(|part| &part.runs)
            .map(|run| run.len())
            .sum()
    }

    /// Drops the rest of the current page size, and returns its bytes.
    pub fn skip_part(&mut self) -> u64 {
        let part = self.next_part();
        part.map_or(0, |part| part.runs.drain(..).map(|run| run.len()).sum())
    }

    pub fn clear(&mut self) {
        for part in &mut self.parts {
            part.runs.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn overlaps_count_once_and_parts_of_pages_not_at_all() {
        let plan = Plan::of_base([
            AddressRange::new(PAGE, 3 * PAGE),
            AddressRange::new(2 * PAGE, PAGE),
            AddressRange::new(9, 5),
        ]);
        assert_eq!(plan.asked_bytes(), 3 * PAGE);
        assert_eq!(plan.base().runs(), [AddressRange::new(PAGE, 3 * PAGE)]);
        // Listed as both, it is huge.
        let run = AddressRange::new(HUGE_BYTES, HUGE_BYTES);
        let plan = Plan::new([run], [run]);
        assert_eq!((plan.base().bytes(), plan.huge().bytes()), (0, HUGE_BYTES));
    }

    #[test]
    fn what_is_left_out_stays_in_the_sum() {
        let huge = [AddressRange::new(HUGE_BYTES + PAGE, 3 * HUGE_BYTES)];
        let mut plan = Plan::new([AddressRange::new(0, 10 * PAGE)], huge);
        assert_eq!(plan.asked_bytes(), 3 * HUGE_BYTES + 10 * PAGE);
        assert_eq!(plan.skipped().bytes(SkipReason::PartialHuge), HUGE_BYTES);
        let locked = RunSet::from_runs([
            AddressRange::new(0, 4 * PAGE),
            AddressRange::new(2 * HUGE_BYTES, PAGE),
        ]);
        plan.exclude(&locked, SkipReason::Unevictable);
        assert_eq!(plan.skipped().bytes(SkipReason::Unevictable), 5 * PAGE);
        assert_eq!(
            plan.huge().runs(),
            [AddressRange::new(3 * HUGE_BYTES, HUGE_BYTES)]
        );
        assert_eq!(
            plan.skipped().bytes(SkipReason::PartialHuge),
            2 * HUGE_BYTES - PAGE
        );
        assert_eq!(plan.asked_bytes(), 3 * HUGE_BYTES + 10 * PAGE);
    }

    #[test]
    fn batches_hand_out_everything_once_within_bounds() {
        let runs = [
            AddressRange::new(0, 7 * PAGE),
            AddressRange::new(9 * PAGE, PAGE),
            AddressRange::new(20 * PAGE, 30 * PAGE),
        ];
        let plan = Plan::new(runs, [AddressRange::new(HUGE_BYTES, 5 * HUGE_BYTES)]);
        let mut queue = Queue::new(&plan);
        let (mut base, mut huge) = (Vec::new(), Vec::new());
        while let Some(batch) = queue.next(5 * PAGE, 2) {
            assert!(batch.runs.bytes() <= (5 * PAGE).max(batch.unit_bytes));
            assert!(batch.runs.runs().len() <= 2);
            let seen = if batch.unit_bytes == HUGE_BYTES {
                &mut huge
            } else {
                &mut base
            };
            seen.extend_from_slice(batch.runs.runs());
        }
        assert_eq!(
            base.iter().map(|run| run.len()).sum::<u64>(),
            plan.base().bytes()
        );
        assert_eq!(&RunSet::from_runs(base), plan.base());
        assert_eq!(huge.len(), 5);
        assert_eq!(&RunSet::from_runs(huge), plan.huge());
        assert_eq!((queue.bytes(), queue.unit_bytes()), (0, None));
    }
}
