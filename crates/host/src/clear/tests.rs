// SPDX-License-Identifier: Apache-2.0
//! The clearer against a fake that behaves, and fails, like the kernel.

use std::collections::BTreeSet;
use std::io;

use agewise_policy::table::{PageSet, TableBits};

use super::hand::{ClearHand, MAX_RANGES};
use super::*;
use crate::access::fake::{FakeSource, FakeTable};
use crate::access::{AccessSource, AddressRange, Batch, SightSink, Target};
use crate::clock::monotonic_ns;
use crate::vma::VmaTable;

const PID: u32 = 77;
const BASE: u64 = 0x10_0000_0000;
const SECOND: u64 = 1_000_000_000;

/// Records what was cleared; fails on request.
#[derive(Default)]
struct FakeHand {
    cleared: Vec<AddressRange>,
    refs: Vec<RefsScope>,
    /// `c` for each call of `cold`, `r` for each call of `refs`.
    order: String,
    /// Ranges that start here are refused, like locked ones.
    locked: BTreeSet<u64>,
    cold_error: Option<i32>,
    refs_error: Option<i32>,
}

impl ClearHand for FakeHand {
    fn cold(&mut self, ranges: &[AddressRange]) -> io::Result<usize> {
        assert!(!ranges.is_empty() && ranges.len() <= MAX_RANGES);
        if let Some(error) = self.cold_error {
            return Err(io::Error::from_raw_os_error(error));
        }
        let fine = ranges
            .iter()
            .take_while(|range| !self.locked.contains(&range.start))
            .count();
        if fine == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.order.push('c');
        self.cleared.extend(&ranges[..fine]);
        Ok(fine)
    }

    fn refs(&mut self, scope: RefsScope) -> io::Result<()> {
        if let Some(error) = self.refs_error {
            return Err(io::Error::from_raw_os_error(error));
        }
        self.order.push('r');
        self.refs.push(scope);
        Ok(())
    }
}

impl FakeHand {
    fn covers(&self, va: u64) -> bool {
        self.cleared
            .iter()
            .any(|range| range.start <= va && va < range.end)
    }
}

#[derive(Debug)]
struct Judged {
    young: PageSet,
    since_ns: Option<u64>,
}

struct Watch<'a> {
    clearer: &'a mut Clearer,
    judged: Vec<Judged>,
}

impl SightSink for Watch<'_> {
    fn table(&mut self, sight: &TableSight<'_>) {
        self.judged.push(Judged {
            young: sight.bits.young,
            since_ns: self.clearer.judge(sight),
        });
    }
}

/// A process with these mappings from [`BASE`] on, each with this many tables, one table apart.
struct World {
    source: FakeSource,
    vmas: VmaTable,
    clearer: Clearer,
    hand: FakeHand,
    now_ns: u64,
    /// Time between reading a table and clearing it.
    late_ns: u64,
}

const ALL: PageSet = PageSet::ALL;
const NONE: PageSet = PageSet::NONE;

impl World {
    fn new(policy: ClearPolicy, mappings: &[(&str, u64)]) -> Self {
        let mut text = String::new();
        let mut at = BASE;
        for (kind, tables) in mappings {
            let end = at + tables * TABLE_BYTES;
            let (perms, file) = match *kind {
                "anon" => ("rw-p", "00:00 0"),
                "file" => ("r--s", "fe:01 42 /data"),
                "special" => ("r-xp", "00:00 0 [vdso]"),
                other => panic!("{other}"),
            };
            text.push_str(&format!("{at:x}-{end:x} {perms} 00000000 {file}\n"));
            at = end + TABLE_BYTES;
        }
        World {
            source: FakeSource::new(),
            vmas: VmaTable::from_text(&text),
            clearer: Clearer::new(PID, policy),
            hand: FakeHand::default(),
            now_ns: SECOND,
            late_ns: 0,
        }
    }

    /// Makes table number `table` from [`BASE`] on fully present, with these pages young.
    fn set(&mut self, table: u64, leaf: Leaf, young: PageSet) {
        let bits = TableBits {
            present: ALL,
            young,
            ..Default::default()
        };
        self.source
            .set(PID, BASE + table * TABLE_BYTES, FakeTable { bits, leaf });
    }

    fn scan(&mut self) -> Result<(Vec<Judged>, ClearReport), ClearError> {
        self.now_ns += SECOND;
        let ranges: Vec<AddressRange> = self.vmas.vmas().iter().map(|vma| vma.range).collect();
        self.clearer.begin(self.now_ns, self.vmas.vmas());
        let mut watch = Watch {
            clearer: &mut self.clearer,
            judged: Vec::new(),
        };
        self.source
            .scan(&Target::by_pid(PID), &ranges, &mut watch)
            .unwrap();
        let judged = watch.judged;
        let batch = Batch {
            begin_ns: monotonic_ns() - self.late_ns,
            ..Batch::default()
        };
        self.clearer.clear(&mut self.hand, &batch)?;
        Ok((judged, self.clearer.finish(&mut self.hand)?))
    }
}

fn cold() -> ClearPolicy {
    ClearPolicy {
        means: Means::Cold,
        ..ClearPolicy::exact()
    }
}

/// Accesses while we are stopped between reading a table and clearing it must not be lost.
#[test]
fn what_was_read_too_long_ago_is_left_as_it_is() {
    let mut world = World::new(cold(), &[("anon", 4)]);
    for table in 0..4 {
        world.set(table, Leaf::Page, ALL);
    }
    world.scan().unwrap();
    assert!(world.hand.covers(BASE));
    world.hand.cleared.clear();
    world.late_ns = 10 * SECOND;
    let (_, report) = world.scan().unwrap();
    assert_eq!((report.tables_late, report.ranges), (4, 0));
    assert!(world.hand.cleared.is_empty());
    // The next scan still sees the bits.
    world.late_ns = 0;
    let (judged, report) = world.scan().unwrap();
    assert_eq!((report.tables_late, report.tables_cleared), (0, 4));
    assert!(judged.iter().all(|judged| judged.young == ALL));
}

#[test]
fn clears_what_was_young_and_knows_since_when() {
    let mut world = World::new(cold(), &[("anon", 4)]);
    world.set(0, Leaf::Page, [0, 511].into_iter().collect());
    world.set(1, Leaf::Page, NONE);
    world.set(2, Leaf::Huge, ALL);
    let (judged, report) = world.scan().unwrap();
    assert_eq!(judged[0].since_ns, None, "nobody knows what was before");
    assert!(world.hand.covers(BASE) && world.hand.covers(BASE + 511 * 4096));
    assert!(!world.hand.covers(BASE + TABLE_BYTES), "idle");
    assert!(world.hand.covers(BASE + 2 * TABLE_BYTES));
    assert!(
        world.hand.covers(BASE + 3 * TABLE_BYTES - 1),
        "a huge page goes as a whole"
    );
    assert_eq!(
        (
            report.tables_young,
            report.tables_cleared,
            report.refs_writes
        ),
        (2, 2, 0)
    );
    let (judged, _) = world.scan().unwrap();
    assert!(
        judged
            .iter()
            .all(|judged| judged.since_ns == Some(2 * SECOND))
    );
    assert_eq!(judged[0].young[7], 1 << 63);
}

#[test]
fn goes_on_behind_what_is_refused() {
    let mut world = World::new(cold(), &[("anon", 1), ("anon", 1), ("anon", 1)]);
    for table in [0, 2, 4] {
        world.set(table, Leaf::Page, ALL);
    }
    for locked in [0, 2, 4] {
        world.hand = FakeHand::default();
        world.hand.locked.insert(BASE + locked * TABLE_BYTES);
        let (_, report) = world.scan().unwrap();
        assert_eq!(report.ranges_refused, 1, "{locked}");
        for table in [0, 2, 4] {
            assert_eq!(
                world.hand.covers(BASE + table * TABLE_BYTES),
                table != locked
            );
        }
    }
}

#[test]
fn without_the_right_to_advise_it_writes_clear_refs() {
    let policy = ClearPolicy {
        means: Means::Auto,
        ..ClearPolicy::exact()
    };
    for (error, is_denied) in [
        (libc::EPERM, true),
        (libc::ENOSYS, true),
        (libc::ESRCH, false),
    ] {
        let mut world = World::new(policy, &[("anon", 1)]);
        world.set(0, Leaf::Page, ALL);
        world.hand.cold_error = Some(error);
        let result = world.scan();
        if !is_denied {
            assert!(
                matches!(result, Err(ClearError::Gone { pid: PID })),
                "{result:?}"
            );
            continue;
        }
        assert_eq!(result.unwrap().1.refs_writes, 1);
        assert_eq!(
            world.hand.refs,
            [RefsScope::Anon],
            "no more than was asked for"
        );
        world.scan().unwrap();
        assert_eq!(world.hand.refs[1], RefsScope::Anon, "it does not try again");
        // Nor may it write to `clear_refs`.
        world.hand.refs_error = Some(libc::EACCES);
        assert!(matches!(
            world.scan(),
            Err(ClearError::Denied { pid: PID, .. })
        ));
    }
}

#[test]
fn leaves_alone_what_has_no_age() {
    let mut world = World::new(cold(), &[("special", 1), ("anon", 1)]);
    world.set(0, Leaf::Page, ALL);
    world.set(2, Leaf::Page, ALL);
    let (judged, report) = world.scan().unwrap();
    assert_eq!(judged[0].since_ns, None);
    assert_eq!(report.uncleared_pages, 512);
    assert!(!world.hand.covers(BASE) && world.hand.covers(BASE + 2 * TABLE_BYTES));
}

#[test]
fn locked_memory_is_cleared_by_a_write_of_its_kind() {
    let policy = ClearPolicy {
        means: Means::Auto,
        ..ClearPolicy::exact()
    };
    let mut world = World::new(policy, &[("file", 1), ("anon", 1)]);
    world.vmas.set_locked(0);
    world.set(0, Leaf::Page, ALL);
    world.set(2, Leaf::Page, ALL);
    let (_, report) = world.scan().unwrap();
    assert_eq!(world.hand.refs, [RefsScope::File]);
    assert_eq!(report.refs_writes, 1);
    assert!(world.hand.covers(BASE + 2 * TABLE_BYTES) && !world.hand.covers(BASE));
    assert_eq!(
        world.hand.order, "rc",
        "the flush of the long run serves the write as well"
    );
    // A second later a write would exceed the target's share of stall time, so it waits.
    let policy = ClearPolicy {
        max_stall_share: 1e-9,
        ..policy
    };
    let mut world = World::new(policy, &[("file", 1)]);
    world.vmas.set_locked(0);
    world.set(0, Leaf::Page, ALL);
    world.scan().unwrap();
    let (_, report) = world.scan().unwrap();
    assert_eq!((report.refs_writes, report.uncleared_pages), (0, 512));
    assert_eq!(world.hand.refs.len(), 1);
}

#[test]
fn clears_no_more_often_than_asked() {
    let policy = ClearPolicy {
        min_interval_ns: 3 * SECOND,
        ..cold()
    };
    let mut world = World::new(policy, &[("anon", 1)]);
    world.set(0, Leaf::Page, ALL);
    let due: Vec<bool> = (0..7).map(|_| world.scan().unwrap().1.due).collect();
    assert_eq!(due, [true, false, false, true, false, false, true]);
    assert_eq!(world.hand.cleared.len(), 3);
    world.scan().unwrap();
    let (judged, _) = world.scan().unwrap();
    assert_eq!(
        judged[0].since_ns,
        Some(8 * SECOND),
        "the bits tell since the last clear"
    );
}

#[test]
fn a_budget_is_kept_by_taking_turns() {
    // The fake costs a little time, so this budget is always too small.
    let policy = ClearPolicy {
        budget_ns: Some(1),
        ..cold()
    };
    let mut world = World::new(policy, &[("anon", 128)]);
    for table in 0..128 {
        world.set(table, Leaf::Page, ALL);
    }
    let cleared: Vec<u64> = (0..10)
        .map(|_| world.scan().unwrap().1.tables_cleared)
        .collect();
    assert_eq!(cleared[0], 128, "at first everything has to be cleared");
    assert!(
        cleared[3..].iter().all(|&tables| tables <= 16),
        "{cleared:?}"
    );
}

/// A sample shows parts of tables: what lies between them is not cleared, and a huge page is
/// cleared whole, once.
#[test]
fn what_was_not_shown_is_not_cleared() {
    let mut clearer = Clearer::new(PID, ClearPolicy::exact());
    clearer.policy.means = Means::Cold;
    let mut world = World::new(cold(), &[("anon", 96)]);
    let mut hand = FakeHand::default();
    for (table, leaf) in [(0, Leaf::Page), (1, Leaf::Page), (95, Leaf::Huge)] {
        world.set(table, leaf, ALL);
    }
    let pages = |table: u64, pages: std::ops::Range<u64>| AddressRange {
        start: BASE + table * TABLE_BYTES + pages.start * PAGE_BYTES,
        end: BASE + table * TABLE_BYTES + pages.end * PAGE_BYTES,
    };
    let shown = [
        pages(0, 16..32),
        pages(0, 480..496),
        pages(1, 0..16),
        pages(95, 0..16),
        pages(95, 64..80),
    ];
    clearer.begin(SECOND, world.vmas.vmas());
    let mut judge = |sight: &TableSight<'_>| {
        clearer.gap();
        let _ = clearer.judge(&TableSight { range: 0, ..*sight });
    };
    let target = Target::by_pid(PID);
    world.source.scan(&target, &shown, &mut judge).unwrap();
    let batch = Batch {
        begin_ns: monotonic_ns(),
        ..Batch::default()
    };
    clearer.clear(&mut hand, &batch).unwrap();
    let cleared = [shown[0], shown[1], shown[2], pages(95, 0..512)];
    assert_eq!(hand.cleared, cleared);
}

/// A write that is cheaper for us is not for the target, whose bits it clears beyond the sample.
#[test]
fn one_write_takes_the_place_of_ranges_except_in_a_sample() {
    for (resident_pages, by_refs) in [(None, true), (Some(512), false)] {
        let mut world = World::new(ClearPolicy::exact(), &[("anon", 1)]);
        world.clearer.set_resident_pages(resident_pages);
        world.set(0, Leaf::Page, ALL);
        for _ in 0..=SETTLED {
            world.scan().unwrap();
        }
        for _ in 0..40 {
            // The target runs on another CPU, so a range of one page takes 30 us.
            world.clearer.cost.learn_cold(1000, 1000, 30_000_000);
        }
        let (_, report) = world.scan().unwrap();
        let expected = if by_refs { (0, 1) } else { (1, 0) };
        assert_eq!((report.ranges, report.refs_writes), expected);
    }
}

/// A write walks more than a sample shows, and only what is of its kind.
#[test]
fn a_write_is_expected_to_walk_what_its_part_of_the_sample_stands_for() {
    let mut world = World::new(ClearPolicy::exact(), &[("file", 1), ("anon", 3)]);
    world.clearer.set_resident_pages(Some(4 * 512 * 1000));
    world.vmas.set_locked(0);
    for table in [0, 2, 3, 4] {
        world.set(table, Leaf::Page, ALL);
    }
    world.scan().unwrap();
    assert_eq!(world.hand.refs, [RefsScope::File]);
    world.clearer.policy.max_stall_share = 0.0;
    let (_, report) = world.scan().unwrap();
    assert_eq!((report.refs_writes, report.uncleared_pages), (0, 512_000));
}
