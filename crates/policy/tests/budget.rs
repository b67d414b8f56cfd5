// SPDX-License-Identifier: Apache-2.0
//! A budget's pacer and queue: what must hold whatever the world does.

use std::collections::BTreeMap;
use std::ops::Range;

use agewise_policy::budget::{
    Gone, LATE_SLICES_MAX, MOVE_BEHIND_US, MOVE_MAX_US, Moved, NEWCOMERS_OF_MOVES_PERCENT, Order,
    PAGE_BYTES, Pacer, PageQueue, QUEUE_MAX_PAGES, QUEUE_MIN_PAGES, QUEUE_TIERS, REFILL_PERCENT,
    REHEARSAL_US, SCAN_MAX_MS, SCAN_OF_MOVES_PERCENT, SCAN_PERCENT, SLICE_MAX_US, SLICE_MIN_US,
    SLICE_PAGES, SLICES_A_STEP, Scanned, Seen, Step, World, YOUNG_AGAIN_NS,
};
use agewise_policy::proactive::{Backend, Decision, Facts, Hands, Reason, Spec, SwapRoom};
use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits};
use proptest::prelude::*;

fn spec(text: &str) -> Spec {
    text.parse().unwrap()
}

const PLENTY: SwapRoom = SwapRoom {
    free_bytes: 1 << 50,
    total_bytes: 1 << 50,
};

/// A growing target of anonymous pages without identity, some of them idle, with its own clock.
#[derive(Debug)]
struct Model {
    now_us: u64,
    resident_pages: u64,
    /// Pages that can go at all; the others are in use.
    idle_pages: u64,
    queued_pages: u64,
    floor_bytes: u64,
    grows_pages_per_ms: u64,
    grown_until_ms: u64,
    young_share: f64,
    scan_ns: u64,
    room: SwapRoom,
    /// Pages of the decision under way.
    asked_pages: u64,
    went_pages: u64,
    decisions: Vec<(u64, Decision)>,
    queues: Vec<u64>,
    scans_us: Vec<u64>,
    refill_ns: u64,
    move_ns: u64,
    slices: Vec<u64>,
}

impl Model {
    fn new(resident_pages: u64, idle_pages: u64) -> Self {
        Model {
            now_us: 0,
            resident_pages,
            idle_pages,
            queued_pages: 0,
            floor_bytes: 0,
            grows_pages_per_ms: 0,
            grown_until_ms: 0,
            young_share: 0.35,
            scan_ns: 100_000,
            room: PLENTY,
            asked_pages: 0,
            went_pages: 0,
            decisions: Vec::new(),
            queues: Vec::new(),
            scans_us: Vec::new(),
            refill_ns: 0,
            move_ns: 0,
            slices: Vec::new(),
        }
    }

    /// Lets time pass; turns come `late_us` later than due.
    fn run(&mut self, pacer: &mut Pacer, ms: u64, late_us: u64) {
        let end_us = self.now_us + ms * 1000;
        while self.now_us < end_us {
            let due_us = pacer.turn(self);
            self.now_us = due_us.max(self.now_us) + late_us.max(1);
            while self.grown_until_ms < self.now_us / 1000 {
                self.grown_until_ms += 1;
                self.resident_pages += self.grows_pages_per_ms;
                self.idle_pages += self.grows_pages_per_ms;
            }
        }
    }

    fn resident_bytes(&self) -> u64 {
        self.resident_pages * PAGE_BYTES
    }
}

impl World for Model {
    fn now_us(&mut self) -> u64 {
        self.now_us
    }

    fn facts(&mut self) -> Facts<'static> {
        Facts {
            resident_bytes: [self.resident_bytes(), 0],
            charged_bytes: Some(self.resident_bytes()),
            swap: Some(self.room),
            floor_bytes: self.floor_bytes,
            backend: Backend::Zram,
            hands: Hands {
                coldest: true,
                ..Hands::default()
            },
            ..Facts::default()
        }
    }

    fn decided(&mut self, decision: &Decision) -> bool {
        self.asked_pages = decision.action.bytes() / PAGE_BYTES;
        self.went_pages = 0;
        self.decisions.push((self.now_us, *decision));
        true
    }

    fn scan(&mut self, queue_pages: u64, counts: bool) -> Scanned {
        self.queues.push(queue_pages);
        self.queued_pages = queue_pages.min(self.idle_pages);
        if counts {
            self.scans_us.push(self.now_us);
        } else {
            self.refill_ns += self.scan_ns;
        }
        Scanned {
            present_pages: self.resident_pages,
            young_pages: (self.resident_pages as f64 * self.young_share) as u64,
            cleared_pages: (self.resident_pages as f64 * self.young_share) as u64,
            cpu_ns: self.scan_ns,
            ..Scanned::default()
        }
    }

    fn move_out(&mut self, pages: u64, rehearse: bool) -> Moved {
        let tried = pages.min(self.queued_pages);
        self.queued_pages -= tried;
        self.slices.push(pages);
        self.went_pages += tried;
        self.move_ns += tried * 7_000;
        assert!(self.went_pages <= self.asked_pages, "more than was decided");
        if !rehearse {
            self.resident_pages -= tried;
            self.idle_pages -= tried;
        }
        Moved {
            tried_bytes: tried * PAGE_BYTES,
            left_bytes: if rehearse { 0 } else { tried * PAGE_BYTES },
            calls: 1,
            cpu_ns: tried * 7_000,
            ..Moved::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// However much is resident, idle, in use, growing or late: memory never goes below the floor
    /// (or further below the budget than the headroom), never more leaves than was decided, and
    /// queues and paces are within bounds.
    #[test]
    fn bounds_hold_in_any_world(
        resident in 1_000u64..200_000,
        idle in 0.0f64..1.0,
        budget_pages in 500u64..150_000,
        floor_pages in 0u64..150_000,
        grows in 0u64..40,
        young in 0.0f64..1.0,
        scan_us in 10u64..400_000,
        late_us in 0u64..3_000,
    ) {
        let mut world = Model::new(resident, (resident as f64 * idle) as u64);
        world.floor_bytes = floor_pages * PAGE_BYTES;
        world.grows_pages_per_ms = grows;
        world.young_share = young;
        world.scan_ns = scan_us * 1000;
        let budget = budget_pages * PAGE_BYTES;
        let mut pacer = Pacer::new(&spec(&format!("budget:{budget},look=100ms")), false);
        let (mut lowest, mut before) = (resident, world.resident_pages);
        for _ in 0..40 {
            world.run(&mut pacer, 50, late_us);
            if world.resident_pages < before {
                lowest = lowest.min(world.resident_pages);
            }
            before = world.resident_pages;
        }
        let least = floor_pages.max(budget_pages - budget_pages / 8).min(resident);
        prop_assert!(lowest + 1 >= least, "{lowest} pages, {least} have to stay");
        let bounds = QUEUE_MIN_PAGES..=QUEUE_MAX_PAGES;
        prop_assert!(world.queues.iter().all(|pages| bounds.contains(pages)));
        // Scans cost the target as well, and may take a quarter of the time that moves take.
        let scans = world.scans_us.len() as f64;
        let young_ns = world.resident_pages.max(resident) as f64 * young * YOUNG_AGAIN_NS as f64;
        let cost_ns = world.scan_ns as f64 + young_ns;
        let seconds = world.now_us as f64 / 1e6;
        let most_ns = seconds * 1e9 * SCAN_PERCENT / 100.0
            + world.move_ns as f64 * SCAN_OF_MOVES_PERCENT / 100.0;
        // The first two scans come before anything is known.
        prop_assert!((scans - 2.0) * world.scan_ns as f64 <= most_ns, "{scans} scans");
        let pace_ms = (cost_ns / 1e6 * 100.0 / SCAN_PERCENT) as u64;
        prop_assert!(pacer.scan_interval_ms() <= SCAN_MAX_MS.max(pace_ms) + 1);
        let share = world.refill_ns as f64 / (world.now_us as f64 * 1e3);
        // One refill may have begun just now; looking for newcomers comes in addition.
        let newcomers_ns = world.move_ns as f64 * NEWCOMERS_OF_MOVES_PERCENT / 100.0;
        let one_ns = 2.0 * world.scan_ns as f64 + newcomers_ns;
        let most = REFILL_PERCENT / 100.0 + one_ns / (world.now_us as f64 * 1e3);
        prop_assert!(share <= most, "refills take {share} of a core");
    }

    /// Compared with a float per page: queued pages are present, idle and movable, as many as
    /// requested, and none is warmer than one that was left (a quarter of an octave counts as
    /// equal).
    #[test]
    fn the_queue_is_the_naive_models(
        scans in prop::collection::vec(prop::collection::vec(any::<bool>(), 600), 1..15),
        fixed in prop::collection::vec(any::<bool>(), 600),
        pages in 1u64..700,
    ) {
        let mut queue = PageQueue::new(Order::Heat);
        let mut heat = vec![0.0f64; 600];
        for (at, young) in scans.iter().enumerate() {
            for (heat, young) in heat.iter_mut().zip(young) {
                *heat = *heat * 0.97 + f64::from(u8::from(*young));
            }
            let is_last = at + 1 == scans.len();
            queue.scan(&one(tables(young, &fixed)), true, if is_last { pages } else { 1 });
        }
        let young = scans.last().unwrap();
        let may_go = |page: &u64| !young[*page as usize] && !fixed[*page as usize];
        let in_order: Vec<u64> = queue.queued().flat_map(|(_, run)| run).collect();
        let mut queued = in_order.clone();
        queued.sort_unstable();
        queued.dedup();
        prop_assert_eq!(queued.len(), in_order.len(), "none twice");
        prop_assert!(queued.iter().all(may_go));
        prop_assert_eq!(queued.len() as u64, pages.min((0..600).filter(may_go).count() as u64));
        let heat_of = |page: &u64| heat[*page as usize];
        let warmest = queued.iter().map(heat_of).fold(0.0, f64::max);
        for page in (0..600).filter(|page| may_go(page) && !queued.contains(page)) {
            // Levels are 4 % apart and randomly rounded once per scan.
            prop_assert!(heat_of(&page) * 1.35 + 0.05 >= warmest, "{page} stays, {warmest} goes");
        }
        // And in tiers: no page is much warmer than one of a later tier.
        let tier = pages.div_ceil(QUEUE_TIERS) as usize;
        for (first, later) in [(0..tier, tier..3 * tier), (tier..3 * tier, 3 * tier..700)] {
            let of = |range: Range<usize>| in_order.iter().skip(range.start).take(range.len());
            let warmest = of(first).map(heat_of).fold(0.0, f64::max);
            let coldest = of(later).map(heat_of).fold(f64::INFINITY, f64::min);
            prop_assert!(coldest * 1.35 + 0.05 >= warmest, "{warmest} before {coldest}");
        }
    }

    /// Queued pages go until enough were tried. By heat, those touched since stay; by reuse, they
    /// go if they are worth no more than what is left.
    #[test]
    fn what_was_touched_since_is_replaced_by_the_next(
        warm in prop::collection::vec(any::<bool>(), 600),
        touched in prop::collection::vec(any::<bool>(), 600),
        pages in 1u64..600,
        order in prop_oneof![Just(Order::Heat), Just(Order::Reuse)],
    ) {
        let mut queue = PageQueue::new(order);
        for young in [vec![false; 600], warm, vec![false; 600]] {
            queue.scan(&one(tables(&young, &[false; 600])), true, 600);
        }
        let now = tables(&touched, &[false; 600]);
        let mut gone = vec![false; 600];
        let moved = queue.move_out(pages, |space, runs, choose| {
            assert_eq!(space, 1);
            assert!(runs.is_sorted_by(|a, b| a.end <= b.start), "{runs:?}");
            let chosen: Vec<u64> = choose(&now).into_iter().flatten().collect();
            for page in &chosen {
                assert!(runs.iter().any(|run| run.contains(page)), "{page} was not handed out");
                assert!(!std::mem::replace(&mut gone[*page as usize], true), "{page} twice");
            }
            Gone { left_pages: chosen.len() as u64 / 2, calls: 1 }
        });
        let tried = gone.iter().filter(|gone| **gone).count() as u64;
        let idle = touched.iter().filter(|touched| !**touched).count() as u64;
        prop_assert_eq!(moved.tried_bytes, tried * PAGE_BYTES);
        prop_assert!(moved.left_bytes <= moved.tried_bytes);
        match order {
            Order::Heat => prop_assert_eq!(tried, pages.min(idle)),
            _ => prop_assert!(tried >= pages.min(idle) && tried <= pages),
        }
        prop_assert!(tried == pages || queue.queued().all(|(_, run)| run.is_empty()));
    }
}

/// A target of one address space.
fn one(tables: Vec<Seen>) -> BTreeMap<u32, Vec<Seen>> {
    BTreeMap::from([(1, tables)])
}

fn tables(young: &[bool], fixed: &[bool]) -> Vec<Seen> {
    let mut tables = BTreeMap::<u64, Seen>::new();
    for (page, (young, fixed)) in young.iter().zip(fixed).enumerate() {
        let index = (page / PAGES_PER_TABLE) as u64;
        let seen = tables.entry(index).or_insert_with(|| Seen {
            index,
            bits: TableBits::default(),
            movable: PageSet::NONE,
        });
        let slot = page % PAGES_PER_TABLE;
        seen.bits.present.insert(slot);
        if *young {
            seen.bits.young.insert(slot);
        }
        if !fixed {
            seen.movable.insert(slot);
        }
    }
    tables.into_values().collect()
}

/// A page takes little more than two bytes, whether resident or in swap; a page that is gone takes
/// none.
#[test]
fn a_page_takes_two_bytes() {
    let mut queue = PageQueue::new(Order::Reuse);
    let empty = queue.memory_bytes();
    let mut seen = tables(&[true; 1 << 18], &[false; 1 << 18]);
    queue.scan(&one(seen.clone()), true, 0);
    let bytes = (queue.memory_bytes() - empty) as f64 / f64::from(1 << 18);
    assert!(bytes < 2.2, "{bytes} bytes a page");
    for table in &mut seen {
        table.bits.swapped = std::mem::take(&mut table.bits.present);
        table.bits.young = PageSet::NONE;
    }
    queue.scan(&one(seen), true, 0);
    let bytes = (queue.memory_bytes() - empty) as f64 / f64::from(1 << 18);
    assert!((2.0..2.2).contains(&bytes), "{bytes} bytes a page");
    queue.scan(&one(Vec::new()), true, 0);
    assert!(queue.memory_bytes() < empty + 4096);
}

#[test]
fn scans_come_as_often_as_a_quarter_of_memory_is_accessed() {
    // A quarter is as wanted; if all is accessed, the share of a core decides: 41 ms in 4.1 s.
    for (young, interval_ms) in [(0.25, 110), (1.0, 409), (0.02, SCAN_MAX_MS)] {
        let mut world = Model::new(10_000, 10_000);
        world.young_share = young;
        let mut pacer = Pacer::new(&spec("budget:1G,look=100ms"), false);
        world.run(&mut pacer, 60_000, 0);
        assert_eq!(pacer.scan_interval_ms(), interval_ms, "{young} accessed");
    }
    // A terabyte takes 14 s to scan: the share of a core is kept there as well.
    let mut world = Model::new(1 << 28, 0);
    world.scan_ns = 14_000_000_000;
    world.young_share = 0.0;
    let mut pacer = Pacer::new(&spec("budget:2T"), false);
    world.run(&mut pacer, 3_000_000, 0);
    assert_eq!(pacer.scan_interval_ms(), 1_400_000);
}

/// Once most of the memory was accessed the order says little, so the next scan does not wait for
/// its interval; a start, with nothing there yet, does not lengthen it.
#[test]
fn a_scan_comes_early_once_most_of_the_memory_was_accessed() {
    for (young, early) in [(0.4, false), (0.9, true)] {
        let mut world = Model::new(20_000, 20_000);
        world.young_share = young;
        world.grows_pages_per_ms = 40;
        let mut pacer = Pacer::new(&spec("budget:80M,look=1s"), false);
        world.run(&mut pacer, 2_000, 0);
        let second_us = world.scans_us[1];
        assert_eq!(
            second_us < 500_000,
            early,
            "{young} accessed: {second_us} us"
        );
    }
    let mut world = Model::new(0, 0);
    let mut pacer = Pacer::new(&spec("budget:80M,look=1s"), false);
    world.run(&mut pacer, 10, 0);
    assert_eq!(pacer.scan_interval_ms(), 1_000);
}

/// The queue follows what leaves: twice as much, the minimum if nothing does.
#[test]
fn the_queue_follows_what_goes() {
    let mut world = Model::new(100_000, 100_000);
    world.grows_pages_per_ms = 20;
    let mut pacer = Pacer::new(&spec("budget:200M,look=500ms"), false);
    world.run(&mut pacer, 4_000, 0);
    let last = world.queues.last().copied().unwrap();
    assert!(
        (15_000..30_000).contains(&last),
        "{last} queued, 10000 a scan go"
    );
    world.grows_pages_per_ms = 0;
    world.run(&mut pacer, 4_000, 0);
    assert_eq!(world.queues.last().copied(), Some(QUEUE_MIN_PAGES));
}

/// Pages in a slice of this many us.
fn slice_pages(slice_us: u64) -> u64 {
    SLICE_PAGES * slice_us / SLICE_MIN_US
}

/// A move is divided into slices of half a ms of work; larger ones if it would take too long.
#[test]
fn a_move_goes_in_slices_and_late_ones_take_more() {
    let mut world = Model::new(26_000, 26_000);
    let mut pacer = Pacer::new(&spec("budget:100M,step=40ms"), false);
    world.run(&mut pacer, 100, 0);
    let moved = |decision: &Decision| decision.action.bytes() / PAGE_BYTES;
    let first = world
        .decisions
        .iter()
        .map(|(_, d)| moved(d))
        .find(|pages| *pages > 0)
        .unwrap();
    // Done long before the policy is asked again.
    let slice = (first / (MOVE_MAX_US / SLICE_MAX_US)).max(slice_pages(SLICE_MAX_US));
    assert_eq!(world.slices[0], slice);
    assert!(world.slices.len() as u64 >= first / slice);
    let mut late = Model::new(26_000, 26_000);
    let mut pacer = Pacer::new(&spec("budget:100M,step=40ms"), false);
    late.run(&mut pacer, 100, 10 * SLICE_MAX_US);
    let most = late.slices.iter().max().unwrap();
    assert!(*most <= LATE_SLICES_MAX * slice, "{most}");
    assert_eq!(*most, LATE_SLICES_MAX * slice);
}

/// When behind, it takes larger slices; when it has caught up, it returns to small ones.
#[test]
fn it_catches_up_in_larger_slices_and_steps_back() {
    let mut world = Model::new(25_000, 25_000);
    world.grows_pages_per_ms = 100;
    let mut pacer = Pacer::new(&spec("budget:100M"), false);
    world.run(&mut pacer, 400, 0);
    let is_behind = |entry: &&(u64, Decision)| {
        matches!(entry.1.reason, Reason::OverBudget { behind: true, .. })
    };
    let behind = world
        .decisions
        .iter()
        .find(is_behind)
        .expect("growth outruns it");
    let pages = behind.1.action.bytes() / PAGE_BYTES;
    let until_us = behind.1.next_ms * 1_000 - behind.0;
    let slice_us = (until_us / SLICES_A_STEP).clamp(SLICE_MIN_US, SLICE_MAX_US);
    assert_eq!(slice_us, SLICE_MIN_US, "fast growth");
    assert!(
        world.slices.contains(&(pages * slice_us / MOVE_BEHIND_US)),
        "{pages} in {MOVE_BEHIND_US} us"
    );
    world.grows_pages_per_ms = 1;
    world.run(&mut pacer, 8_000, 0);
    let from = world.slices.len();
    world.run(&mut pacer, 1_000, 0);
    let since = &world.slices[from..];
    let is_small = |pages: &u64| *pages <= slice_pages(SLICE_MAX_US);
    assert!(!since.is_empty() && since.iter().all(is_small), "{since:?}");
}

/// If nothing is idle, it neither spins nor scans without end.
#[test]
fn without_idle_memory_it_waits_for_its_step() {
    let mut world = Model::new(50_000, 0);
    let mut pacer = Pacer::new(&spec("budget:100M,step=8ms"), false);
    world.run(&mut pacer, 4_000, 0);
    assert_eq!(world.resident_pages, 50_000);
    let decisions = world.decisions.len();
    assert!(decisions <= 4_000 / 8 + 2, "{decisions} decisions in 4 s");
}

#[test]
fn a_full_swap_moves_nothing_and_gives_the_rate_back() {
    let mut world = Model::new(50_000, 50_000);
    world.room.free_bytes = 0;
    let mut pacer = Pacer::new(&spec("budget:100M,rate=1M"), false);
    world.run(&mut pacer, 2_000, 0);
    assert_eq!(world.resident_pages, 50_000);
    world.room = PLENTY;
    world.run(&mut pacer, 10_000, 0);
    let went = (50_000 - world.resident_pages) * PAGE_BYTES;
    assert!((9 << 20..=12 << 20).contains(&went), "{went} at 1 MiB/s");
}

#[test]
fn a_rehearsal_decides_once_a_second_and_asking_twice_changes_nothing() {
    let mut world = Model::new(50_000, 50_000);
    let mut pacer = Pacer::new(&spec("budget:100M"), true);
    world.run(&mut pacer, 5_000, 0);
    assert_eq!(world.resident_pages, 50_000);
    let decisions = world.decisions.len() as u64;
    let most = 5_000_000 / REHEARSAL_US + 1;
    assert!((1..=most).contains(&decisions), "{decisions}");
    // All that would have left.
    assert_eq!(world.went_pages, world.asked_pages);
    let mut pacer = Pacer::new(&spec("budget:100M"), false);
    assert_eq!(pacer.next(7), pacer.next(7));
    let Step::Scan { queue_pages } = pacer.next(7) else {
        panic!("a scan comes first");
    };
    assert_eq!(queue_pages, QUEUE_MIN_PAGES);
}
