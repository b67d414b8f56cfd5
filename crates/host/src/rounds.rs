// SPDX-License-Identifier: Apache-2.0
//! Memory that was idle for long is not read in every look: most memory is idle most of the time,
//! and reading page tables that nobody uses is reading them from memory, not from a cache. The kernel
//! leaves them out too: its walks go to the tables that a Bloom filter remembers as worth it
//! (`walk_pmd_range`, mm/vmscan.c).
//!
//! Anonymous memory is taken in blocks of 64 MiB. A block in which a few looks found nothing accessed
//! is then read in every eighth look only, each block in its own turn; in the looks between, one of
//! its tables, another each time, stands for all. A block whose table shows an access is read again
//! from the next look on. So an access is noticed late only where its block had been idle, and by so
//! many looks at most. Policies that move memory look at a page right before they do, whatever was
//! left out.
//!
//! Pages come and go without being accessed as well: where resident memory does not agree any more
//! with what the looks know of, everything is read.

use std::ops::ControlFlow;

use agewise_policy::table::PAGES_PER_TABLE;

use crate::eye::{
    AccessSource, AddressRange, Batch, EyeError, Leaf, LeafRun, Resolution, ScanReport, SightSink,
    TABLE_BYTES, TableSight, Target,
};

/// Tables of a block.
pub(crate) const BLOCK_TABLES: usize = 32;
const BLOCK_BYTES: u64 = BLOCK_TABLES as u64 * TABLE_BYTES;
/// Looks that find a block idle before it is left out.
const IDLE_LOOKS: u32 = 4;
/// A block is read once in so many looks,
const UNREAD_LOOKS: u32 = 8;
/// and in this time.
const UNREAD_NS: u64 = 60_000_000_000;
/// What resident memory and what is known of it may differ by: this part of it,
const DRIFT_PART: u64 = 256;
/// or as many pages. Kernels count in batches for each CPU.
const DRIFT_PAGES: u64 = 1024;

/// What is known of a block that holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    start: u64,
    /// Where its mapping begins.
    mapping: u64,
    /// Looks in a row that read it and found nothing accessed.
    idle: u32,
    /// Looks since that left it out.
    unread: u32,
    /// When it was read, `CLOCK_MONOTONIC` ns.
    read_ns: u64,
    /// Pages that were present then.
    present: u64,
    /// In the look under way: it is left out, its pages that were shown, and what they told.
    left_out: bool,
    shown: u64,
    busy: bool,
}

impl Block {
    fn new(start: u64, mapping: u64) -> Self {
        Block {
            start,
            mapping,
            idle: 0,
            unread: 0,
            read_ns: 0,
            present: 0,
            left_out: false,
            shown: 0,
            busy: false,
        }
    }

    fn end(&self) -> u64 {
        self.start + BLOCK_BYTES
    }

    fn may_wait(&self, now_ns: u64) -> bool {
        self.idle >= IDLE_LOOKS
            && self.unread + 1 < UNREAD_LOOKS
            && now_ns.saturating_sub(self.read_ns) < UNREAD_NS
    }

    /// A number of its own, to take turns by.
    fn number(&self) -> u64 {
        (self.start / BLOCK_BYTES).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33
    }

    /// The look has ended: what it showed is what is known.
    fn settle(&mut self, now_ns: u64) {
        if self.left_out {
            self.unread += 1;
        } else {
            self.idle += 1;
            // The first time anywhere in its round, so that not all are read in the same look.
            let is_first = self.idle == IDLE_LOOKS;
            self.unread = match is_first {
                true => (self.number() % u64::from(UNREAD_LOOKS)) as u32,
                false => 0,
            };
            self.read_ns = now_ns;
            self.present = self.shown;
        }
        if self.busy {
            self.idle = 0;
        }
        (self.left_out, self.shown, self.busy) = (false, 0, false);
    }
}

/// Memory that is not read on purpose in a look: around the one table that stands for its block.
#[derive(Clone, Copy, Debug)]
struct Gap {
    range: AddressRange,
    mapping: u64,
    /// Its block ends here.
    is_last: bool,
}

/// What to leave out of the looks at one process.
#[derive(Debug, Default)]
pub struct Rounds {
    /// Of the last look, rising.
    blocks: Vec<Block>,
    looks: u64,
    /// The next look reads everything.
    read_all: bool,
    /// Resident pages that no look shows.
    unseen_pages: Option<i64>,
}

/// What one look reads.
#[derive(Debug, Default)]
struct Plan {
    pieces: Vec<AddressRange>,
    /// Number of the range each of them is of.
    of: Vec<usize>,
    gaps: Vec<Gap>,
}

impl Plan {
    fn read(&mut self, of: usize, start: u64, end: u64) {
        if start < end {
            self.pieces.push(AddressRange { start, end });
            self.of.push(of);
        }
    }
}

/// What to look at, and on what terms.
pub struct Terms<'a> {
    /// Ranges of the target, as for [`AccessSource::scan`].
    pub ranges: &'a [AddressRange],
    /// Which of them may be left out: memory that nobody else maps, and whose accessed bits nobody but
    /// us clears where we do not see them.
    pub may: &'a [bool],
    /// `CLOCK_MONOTONIC`, ns.
    pub now_ns: u64,
    /// Resident memory as the kernel counted it a moment ago, in pages. `None`: not known now.
    pub resident_pages: Option<u64>,
}

impl Terms<'_> {
    /// Whether the range number `of` may be left out; one of which nothing is said is read.
    fn may_leave_out(&self, of: usize) -> bool {
        self.may.get(of).copied().unwrap_or(false)
    }
}

impl Rounds {
    /// Looks once. `sink` is shown what was read, and told what was not, all in rising order.
    ///
    /// # Errors
    /// As [`AccessSource::scan`].
    pub fn scan(
        &mut self,
        eye: &mut dyn AccessSource,
        target: &Target,
        terms: &Terms<'_>,
        sink: &mut dyn SightSink,
    ) -> Result<ScanReport, EyeError> {
        let can_tell = eye.abilities();
        let is_fine = can_tell.resolution == Resolution::Page && can_tell.leaf;
        // Most processes are too small for any of this.
        let mut some = terms.ranges.iter().zip(terms.may);
        if !is_fine || !some.any(|(range, may)| *may && holds_block(range)) {
            self.blocks = Vec::new();
            return eye.scan(target, terms.ranges, sink);
        }
        let plan = self.plan(terms);
        let mut turn = Turn {
            terms,
            plan: &plan,
            old: self.blocks.iter().peekable(),
            next: Vec::with_capacity(self.blocks.len()),
            gap: 0,
            left_out_pages: 0,
            read_again: false,
            sink,
        };
        let mut report = eye.scan(target, &plan.pieces, &mut turn)?;
        self.looks += 1;
        if report.complete {
            turn.pass_gaps(u64::MAX);
            report.left_out_pages = turn.left_out_pages;
            self.read_all = turn.read_again;
            let mut next = turn.next;
            next.iter_mut().for_each(|block| block.settle(terms.now_ns));
            next.shrink_to_fit();
            self.blocks = next;
            self.compare(&report, !plan.gaps.is_empty(), terms);
        }
        Ok(report)
    }

    /// Where the kernel's count does not agree with what is known, the next look reads everything.
    fn compare(&mut self, report: &ScanReport, has_left_out: bool, terms: &Terms<'_>) {
        let may_soon = self.blocks.iter().any(|block| block.idle >= IDLE_LOOKS);
        if !may_soon && !has_left_out {
            return;
        }
        let Some(resident) = terms.resident_pages else {
            return;
        };
        let known = report.cost.present_pages + report.left_out_pages;
        let difference = resident.cast_signed().wrapping_sub(known.cast_signed());
        if !has_left_out {
            self.unseen_pages = Some(difference);
            return;
        }
        let before = self.unseen_pages.unwrap_or(difference);
        self.read_all |= difference.abs_diff(before) > (resident / DRIFT_PART).max(DRIFT_PAGES);
    }

    /// Chooses the pieces to be read.
    fn plan(&self, terms: &Terms<'_>) -> Plan {
        let mut plan = Plan::default();
        let mut blocks = self.blocks.iter().peekable();
        for (of, range) in terms.ranges.iter().enumerate() {
            let mut at = range.start;
            while blocks.next_if(|block| block.start < range.start).is_some() {}
            while let Some(block) = blocks.next_if(|block| block.end() <= range.end) {
                let may = terms.may_leave_out(of) && block.mapping == range.start;
                if self.read_all || !may || !block.may_wait(terms.now_ns) {
                    continue;
                }
                // Neither the first nor the last: there is something left out on both sides.
                let table = 1 + (self.looks + block.number()) % (BLOCK_TABLES as u64 - 2);
                let stand_in = block.start + table * TABLE_BYTES;
                plan.read(of, at, block.start);
                plan.read(of, stand_in, stand_in + TABLE_BYTES);
                let gap = |start, end, is_last| Gap {
                    range: AddressRange { start, end },
                    mapping: block.mapping,
                    is_last,
                };
                plan.gaps.push(gap(block.start, stand_in, false));
                plan.gaps
                    .push(gap(stand_in + TABLE_BYTES, block.end(), true));
                at = block.end();
            }
            plan.read(of, at, range.end);
        }
        plan
    }

    /// Bytes of memory held, about.
    pub fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
    }
}

/// Whether a whole block lies in `range`.
fn holds_block(range: &AddressRange) -> bool {
    let first = range.start.next_multiple_of(BLOCK_BYTES);
    first
        .checked_add(BLOCK_BYTES)
        .is_some_and(|end| end <= range.end)
}

/// One look: takes what the eye shows of the pieces, and shows it as of the ranges.
struct Turn<'a> {
    terms: &'a Terms<'a>,
    plan: &'a Plan,
    old: std::iter::Peekable<std::slice::Iter<'a, Block>>,
    next: Vec<Block>,
    /// The next gap.
    gap: usize,
    left_out_pages: u64,
    /// Something could not be read, so that blocks are not known as they should be.
    read_again: bool,
    sink: &'a mut dyn SightSink,
}

impl Turn<'_> {
    /// The block of the mapping that begins at `mapping`, with what was known of it. Upwards.
    fn enter(&mut self, start: u64, mapping: u64, left_out: bool) {
        while self.old.next_if(|block| block.start < start).is_some() {}
        let old = self.old.next_if(|block| block.start == start);
        let known = old.filter(|old| old.mapping == mapping).copied();
        self.next.push(Block {
            left_out,
            ..known.unwrap_or_else(|| Block::new(start, mapping))
        });
    }

    /// Tells of what was left out below `va`.
    fn pass_gaps(&mut self, va: u64) {
        while let Some(gap) = self.plan.gaps.get(self.gap)
            && gap.range.start < va
        {
            self.gap += 1;
            if !gap.is_last {
                self.enter(gap.range.start, gap.mapping, true);
                self.sink.left_out(gap.range, 0);
                continue;
            }
            let block = self.next.last();
            let pages = block.map_or(0, |block| block.present.saturating_sub(block.shown));
            self.left_out_pages += pages;
            self.sink.left_out(gap.range, pages);
        }
    }

    /// The number of the range, of those given, that piece number `piece` is of.
    fn range_of(&self, piece: usize) -> usize {
        self.plan.of.get(piece).copied().unwrap_or(usize::MAX)
    }

    /// Takes a table of the range number `of`, of which `pages` are present, into its block.
    fn note(&mut self, va: u64, of: usize, pages: u64, is_busy: bool) {
        let start = va - va % BLOCK_BYTES;
        let Some(range) = self.terms.ranges.get(of) else {
            return;
        };
        let is_whole = range.start <= start && start + BLOCK_BYTES <= range.end;
        if !is_whole || !self.terms.may_leave_out(of) {
            return;
        }
        if self.next.last().is_none_or(|block| block.start != start) {
            self.enter(start, range.start, false);
        }
        if let Some(block) = self.next.last_mut() {
            block.shown += pages;
            block.busy |= is_busy;
        }
    }
}

impl SightSink for Turn<'_> {
    fn table(&mut self, sight: &TableSight<'_>) {
        self.pass_gaps(sight.va);
        let of = self.range_of(sight.range);
        // Huge pages are cheap to read, and glanced at where somebody else clears.
        let is_busy = sight.leaf != Leaf::Page || !sight.bits.young.is_empty();
        self.note(sight.va, of, sight.bits.present.len(), is_busy);
        self.sink.table(&TableSight {
            range: of,
            ..*sight
        });
    }

    fn leaves(&mut self, run: &LeafRun<'_>) {
        let first = run.first();
        // Neighbours: nothing was left out between them.
        self.pass_gaps(first.va);
        let of = self.range_of(first.range);
        for at in 0..run.tables() {
            self.note(run.va(at), of, PAGES_PER_TABLE as u64, true);
        }
        self.sink.leaves(&run.of_range(of));
    }

    fn unreadable(&mut self, range: AddressRange) {
        self.pass_gaps(range.start);
        self.read_again = true;
        self.sink.unreadable(range);
    }

    fn batch_end(&mut self, batch: &Batch) -> ControlFlow<()> {
        self.sink.batch_end(batch)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use agewise_policy::table::{PageSet, TableBits};
    use proptest::prelude::*;

    use super::*;
    use crate::eye::fake::{FakeSource, FakeTable};

    const PID: u32 = 7;
    const SECOND: u64 = 1_000_000_000;
    const EVERY: PageSet = PageSet::ALL;

    fn table(young: bool, leaf: Leaf) -> FakeTable {
        FakeTable {
            bits: TableBits {
                present: EVERY,
                young: if young { EVERY } else { PageSet::NONE },
                ..TableBits::default()
            },
            leaf,
        }
    }

    /// A process with two mappings of whole tables and some tables in each, looked at once a second.
    struct Machine {
        eye: FakeSource,
        ranges: Vec<AddressRange>,
        may: Vec<bool>,
        rounds: Rounds,
        now_ns: u64,
        resident: Option<u64>,
    }

    /// What one look showed (table: range, young), and told to be left out (table).
    #[derive(Default)]
    struct Told {
        shown: BTreeMap<u64, (usize, bool)>,
        left_out: Vec<u64>,
        pages: u64,
        last: u64,
    }

    impl SightSink for Told {
        fn table(&mut self, sight: &TableSight<'_>) {
            assert!(
                sight.va >= self.last,
                "{:#x} after {:#x}",
                sight.va,
                self.last
            );
            self.last = sight.va + TABLE_BYTES;
            let young = !sight.bits.young.is_empty();
            self.shown
                .insert(sight.va / TABLE_BYTES, (sight.range, young));
        }

        fn left_out(&mut self, range: AddressRange, pages: u64) {
            assert!(range.start >= self.last && !range.is_empty());
            self.last = range.end;
            self.left_out
                .extend(range.start / TABLE_BYTES..range.end / TABLE_BYTES);
            self.pages += pages;
        }
    }

    impl Machine {
        fn new(
            tables: impl IntoIterator<Item = u64>,
            split: u64,
            end: u64,
            may: [bool; 2],
        ) -> Self {
            let mut eye = FakeSource::new();
            for at in tables {
                eye.set(PID, at * TABLE_BYTES, table(false, Leaf::Page));
            }
            let range = |from: u64, to: u64| AddressRange {
                start: from * TABLE_BYTES,
                end: to * TABLE_BYTES,
            };
            Machine {
                eye,
                ranges: vec![range(0, split), range(split, end)],
                may: may.to_vec(),
                rounds: Rounds::default(),
                now_ns: SECOND,
                resident: None,
            }
        }

        fn access(&mut self, at: u64) {
            let young = |table: &mut FakeTable| table.bits.young = EVERY;
            self.eye.update(PID, at * TABLE_BYTES, young);
        }

        /// A look, after which what was shown is clear.
        fn look(&mut self) -> Told {
            self.now_ns += SECOND;
            let mut told = Told::default();
            let target = Target::by_pid(PID);
            let terms = Terms {
                ranges: &self.ranges,
                may: &self.may,
                now_ns: self.now_ns,
                resident_pages: self.resident,
            };
            let report = self
                .rounds
                .scan(&mut self.eye, &target, &terms, &mut told)
                .unwrap();
            assert_eq!(report.left_out_pages, told.pages);
            for at in told.shown.keys() {
                let idle = |table: &mut FakeTable| table.bits.young = PageSet::NONE;
                self.eye.update(PID, at * TABLE_BYTES, idle);
            }
            told
        }
    }

    #[test]
    fn idle_blocks_are_read_in_turns() {
        let mut machine = Machine::new(0..256, 128, 256, [true, true]);
        for _ in 0..IDLE_LOOKS {
            assert_eq!(machine.look().shown.len(), 256);
        }
        let looks: Vec<usize> = (0..32).map(|_| machine.look().shown.len()).collect();
        let shown = looks.iter().sum::<usize>();
        // One look in eight reads a block, the others one table of 32.
        assert_eq!(shown, 32 / 8 * 256 + 8 * 28, "{looks:?}");
        assert!(
            looks.iter().max() <= Some(&160),
            "not all at once: {looks:?}"
        );
        assert_eq!(machine.look().pages % 512, 0);
    }

    #[test]
    fn what_may_not_wait_is_always_read() {
        let mut machine = Machine::new(0..128, 64, 128, [false, true]);
        machine
            .eye
            .set(PID, 70 * TABLE_BYTES, table(false, Leaf::Huge));
        for look in 0..30 {
            machine.access(100);
            let told = machine.look();
            assert_eq!(told.shown.len(), 128, "look {look}");
            assert_eq!(told.shown[&3].0, 0);
            assert_eq!(told.shown[&70].0, 1);
        }
        // A mapping that is not whole blocks keeps its edges.
        let mut machine = Machine::new(5..100, 100, 101, [true, true]);
        machine.ranges[0].start = 5 * TABLE_BYTES;
        let least = (0..30).map(|_| machine.look().shown.len()).min();
        assert_eq!(least, Some(95 - 2 * 31));
    }

    #[test]
    fn a_range_of_which_nothing_is_said_is_read() {
        let mut machine = Machine::new(0..384, 256, 384, [true, true]);
        machine.may.truncate(1);
        for look in 0..12 {
            let told = machine.look();
            assert!((256..384).all(|at| told.shown.contains_key(&at)), "{look}");
        }
        assert!(machine.look().shown.len() < 384);
    }

    #[test]
    fn pages_that_come_and_go_unseen_are_looked_for() {
        let mut machine = Machine::new(0..256, 256, 257, [true, true]);
        let pages = 256 * 512;
        // The kernel's count has 300 pages that no look shows.
        machine.resident = Some(pages + 300);
        for _ in 0..20 {
            let told = machine.look();
            let present = told.shown.len() as u64 * 512 + told.pages;
            assert_eq!(present, pages, "what is left out counts");
        }
        assert!(machine.look().shown.len() < 256);
        machine.resident = Some(pages + 300 - 900);
        machine.look();
        assert!(machine.look().shown.len() < 256, "within its tolerance");
        machine.resident = Some(pages + 300 - 2000);
        machine.look();
        assert_eq!(machine.look().shown.len(), 256);
        // Then that is how it is.
        assert!(machine.look().shown.len() < 256);
        assert!(machine.look().shown.len() < 256);
    }

    #[test]
    fn after_a_table_that_could_not_be_read_everything_is() {
        let mut machine = Machine::new(0..256, 256, 257, [true, true]);
        for _ in 0..12 {
            machine.look();
        }
        // Whichever stands for its block: one of them is read in thirty looks.
        (0..32).for_each(|at| machine.eye.hide(at * TABLE_BYTES));
        let looks: Vec<usize> = (0..3).map(|_| machine.look().shown.len()).collect();
        assert!(looks[0] < 256 - 32, "{looks:?}");
        assert_eq!(looks[1..], [256 - 32, 256 - 32]);
    }

    #[test]
    fn slow_looks_leave_nothing_out() {
        let mut machine = Machine::new(0..64, 64, 65, [true, true]);
        for _ in 0..20 {
            machine.now_ns += UNREAD_NS;
            assert_eq!(machine.look().shown.len(), 64);
        }
    }

    proptest! {
        /// Each table is shown or left out, once, and shown within eight looks; an access is seen as
        /// late as that at most; what was accessed in the last looks is read in every one.
        #[test]
        fn nothing_is_lost(
            holes in prop::collection::btree_set(0u64..200, 0..60),
            split in 1u64..200,
            may in any::<[bool; 2]>(),
            accesses in prop::collection::vec(prop::option::of(0u64..200), 60),
        ) {
            let tables: Vec<u64> = (0..200).filter(|at| !holes.contains(at)).collect();
            let mut machine = Machine::new(tables.clone(), split, 200, may);
            let mut unseen: BTreeMap<u64, u32> = BTreeMap::new();
            let mut waiting: BTreeMap<u64, u32> = BTreeMap::new();
            for access in accesses {
                if let Some(at) = access.filter(|at| tables.contains(at)) {
                    machine.access(at);
                    waiting.entry(at).or_insert(0);
                }
                let told = machine.look();
                for at in &tables {
                    let left_out = told.left_out.contains(at);
                    prop_assert!(told.shown.contains_key(at) != left_out, "table {}", at);
                    let looks = unseen.entry(*at).or_insert(0);
                    *looks = if left_out { *looks + 1 } else { 0 };
                    prop_assert!(*looks < UNREAD_LOOKS);
                    let range = usize::from(*at >= split);
                    prop_assert!(may[range] || !left_out);
                    if let Some((of, young)) = told.shown.get(at) {
                        prop_assert_eq!(*of, range);
                        prop_assert_eq!(*young, waiting.remove(at).is_some());
                    }
                }
            }
        }
    }
}
