// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;

use super::*;
use crate::whatif::Decider;
use crate::whatif::waiting::SECOND_MS;

const FULL: u64 = 1 << 30;
const PRICES: Prices = Prices::exact(10_000.0, 0.0);

/// No faults from `knee` percent of the full size on; below, `steep` more per second for each
/// percent.
fn curves(knee: f64, steep: f64) -> Curves {
    Curves::of_anon(FULL, 900_000, |percent| {
        Estimate::exact((knee - f64::from(percent)).max(0.0) * steep)
    })
}

/// A cgroup that behaves as one curve says, whatever the keeper believes.
struct World {
    now_ms: u64,
    faults: f64,
    swap_free_bytes: u64,
    /// Memory that no curve covers. It leaves first.
    cache_bytes: u64,
    /// How long waiting has exceeded the allowance, and the longest time it did so far.
    over_ms: u64,
    over_most_ms: u64,
    changes: Vec<(u64, Change)>,
}

impl World {
    fn new() -> Self {
        World {
            now_ms: 1000,
            faults: 0.0,
            swap_free_bytes: 4 * FULL,
            cache_bytes: 0,
            over_ms: 0,
            over_most_ms: 0,
            changes: Vec::new(),
        }
    }

    fn room(&self, keeper: &Keeper) -> Room {
        let free_bytes = FULL + self.cache_bytes;
        let usage_bytes = keeper.limit_bytes().unwrap_or(free_bytes).min(free_bytes);
        Room {
            usage_bytes,
            beyond_bytes: usage_bytes.saturating_sub(FULL),
            swap_free_bytes: self.swap_free_bytes,
            floor_bytes: 0,
            prices: PRICES,
        }
    }

    fn run(&mut self, keeper: &mut Keeper, told: &Curves, truth: &Curves, seconds: u64) {
        for _ in 0..seconds * 2 {
            let facts = Facts {
                now_ms: self.now_ms,
                faults: [self.faults as u64, 0],
                waited_us: None,
                usage_bytes: Some(self.room(keeper).usage_bytes),
                // A look every ten seconds.
                is_blind: self.now_ms % 10_000 < 2000,
            };
            let before_bytes = keeper.limit_bytes().unwrap_or(u64::MAX);
            if let Some(change) = keeper.next(facts, &self.room(keeper), Some(told)) {
                assert_eq!(change.limit_bytes, keeper.limit_bytes());
                let is_lower = change.limit_bytes.is_some_and(|bytes| bytes < before_bytes);
                // If it hurts, the keeper may return to an earlier limit at any time.
                assert!(!(facts.is_blind && is_lower && change.why == Why::Curve));
                self.changes.push((self.now_ms, change));
            }
            self.now_ms += 500;
            let memory = keeper.limit_bytes().unwrap_or(2 * FULL);
            let rate = truth.at(Decider::Kernel, memory).faults_per_second().likely;
            self.faults += rate / 2.0;
            // Less than one fault per second too much cannot be detected.
            let counted = (rate - 1000.0 / SECOND_MS as f64).max(0.0);
            let is_over = counted * PRICES.anon_ns.likely / 1e9 > keeper.wanted.wait_max;
            self.over_ms = if is_over { self.over_ms + 500 } else { 0 };
            self.over_most_ms = self.over_most_ms.max(self.over_ms);
        }
    }
}

const WANTED: Wanted = Wanted {
    wait_max: 0.002,
    floor_bytes: 0,
};

fn percent(bytes: Option<u64>) -> u64 {
    bytes.unwrap_or(FULL) * 100 / FULL
}

#[test]
fn it_goes_down_and_stays_there() {
    let (mut world, mut keeper) = (World::new(), Keeper::new(WANTED));
    let (told, truth) = (curves(62.0, 100.0), curves(60.0, 100.0));
    world.run(&mut keeper, &told, &truth, 3600);
    assert!(
        (58..66).contains(&percent(keeper.limit_bytes())),
        "{keeper:?}"
    );
    assert_eq!(world.over_most_ms, 0);
    let downs = world.changes.len();
    world.run(&mut keeper, &told, &truth, 3600);
    assert_eq!(world.changes.len(), downs, "what is well stays");
    assert!(
        world
            .changes
            .iter()
            .all(|(_, change)| change.why == Why::Curve)
    );
}

#[test]
fn what_the_curve_does_not_cover_is_not_taken_bit_by_bit() {
    let (mut world, mut keeper) = (World::new(), Keeper::new(WANTED));
    world.cache_bytes = FULL;
    let told = curves(60.0, 100.0);
    world.run(&mut keeper, &told, &told, 7200);
    assert!(
        (158..166).contains(&percent(keeper.limit_bytes())),
        "{keeper:?}"
    );
}

#[test]
fn when_the_program_changes_it_gets_its_memory_back_and_keeps_it_for_long() {
    let (mut world, mut keeper) = (World::new(), Keeper::new(WANTED));
    let calm = curves(50.0, 100.0);
    world.run(&mut keeper, &calm, &calm, 1200);
    assert!(percent(keeper.limit_bytes()) < 56);
    // The keeper still gets the old curve for another quarter of an hour.
    world.changes.clear();
    let busy = curves(90.0, 200.0);
    world.run(&mut keeper, &calm, &busy, 300);
    assert!(percent(keeper.limit_bytes()) >= 88, "{keeper:?}");
    assert!(
        world
            .changes
            .iter()
            .all(|(_, change)| change.why == Why::Waiting)
    );
    // If it continues to believe the wrong curve, it tries again, ever more rarely.
    world.changes.clear();
    world.run(&mut keeper, &calm, &busy, 24 * 3600);
    let attempts = world
        .changes
        .iter()
        .filter(|(_, change)| change.why == Why::Curve);
    let mut attempts: Vec<u64> = attempts.map(|(at_ms, _)| *at_ms).collect();
    // Half a step and a quarter belong to the same attempt.
    attempts.dedup_by(|next, before| *next < *before + REST_MS);
    assert!((2..10).contains(&attempts.len()), "{attempts:?}");
    let gaps: Vec<u64> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.last() > gaps.first(), "{gaps:?}");
}

#[test]
fn without_room_in_swap_nothing_is_held() {
    let (mut world, mut keeper) = (World::new(), Keeper::new(WANTED));
    let truth = curves(50.0, 100.0);
    world.swap_free_bytes = FULL / 4;
    world.run(&mut keeper, &truth, &truth, 60);
    assert_eq!(keeper.limit_bytes(), None, "what would leave does not fit");
    world.swap_free_bytes = FULL * 4;
    world.run(&mut keeper, &truth, &truth, 1200);
    assert!(keeper.limit_bytes().is_some());
    world.swap_free_bytes = 1 << 20;
    world.changes.clear();
    world.run(&mut keeper, &truth, &truth, 1);
    assert_eq!(keeper.limit_bytes(), None);
    assert_eq!(world.changes[0].1.why, Why::SwapFull);
}

#[test]
fn floors_hold_and_rehearsals_say_what_would_be() {
    let truth = curves(20.0, 100.0);
    let mut keeper = Keeper::new(Wanted {
        floor_bytes: FULL / 100 * 70,
        ..WANTED
    });
    let mut world = World::new();
    world.run(&mut keeper, &truth, &truth, 1200);
    assert!(
        (70..80).contains(&percent(keeper.limit_bytes())),
        "{keeper:?}"
    );
    let mut keeper = Keeper::new(WANTED);
    let room = world.room(&keeper);
    let said = keeper.rehearse(1000, &room, Some(&truth)).unwrap();
    assert!(percent(said.limit_bytes) < 25 && said.predicted_wait_ratio.is_some());
    assert_eq!(
        keeper.rehearse(2000, &room, Some(&truth)),
        None,
        "once in a while"
    );
    assert_eq!(keeper.limit_bytes(), None);
}

/// A limit that rises amid an attempt rises because of waiting, and the attempt goes on.
#[test]
fn a_harmful_step_is_taken_back_and_half_of_it_follows() {
    let (world, mut keeper) = (World::new(), Keeper::new(WANTED));
    let calm = curves(50.0, 100.0);
    let mut at = |now_ms, waited_ms: u64| {
        let facts = Facts {
            now_ms,
            waited_us: Some(waited_ms * 1000),
            ..Facts::default()
        };
        let room = world.room(&keeper);
        let change = keeper.next(facts, &room, Some(&calm));
        (change.map(|of| (of.limit_bytes, of.why)), keeper.is_busy())
    };
    let (Some((Some(first), Why::Curve)), true) = at(1000, 0) else {
        panic!("it lowers nothing");
    };
    assert_eq!(at(2000, 0), (None, true));
    assert_eq!(at(4000, 1000), (Some((None, Why::Waiting)), true));
    assert_eq!(at(7999, 1000), (None, true));
    let (Some((Some(half), Why::Curve)), true) = at(8000, 1000) else {
        panic!("nothing follows");
    };
    assert_eq!(FULL - half, (FULL - first) / 2);
}

proptest! {
    /// Whatever the keeper believes and whatever is true: never over the target for long, never
    /// many changes, and no limit below the requested minimum.
    #[test]
    fn it_never_hurts_for_long_nor_flaps(
        told in 10.0f64..100.0,
        truths in prop::collection::vec(10.0f64..99.0, 1..5),
        steep in 1.0f64..300.0,
        wait_max in 0.0005f64..0.02,
        floor in 0u64..60,
    ) {
        let wanted = Wanted { wait_max, floor_bytes: FULL / 100 * floor };
        let (mut world, mut keeper) = (World::new(), Keeper::new(wanted));
        let told = curves(told, steep);
        for truth in &truths {
            world.run(&mut keeper, &told, &curves(*truth, steep), 3600);
            prop_assert!(keeper.limit_bytes().is_none_or(|limit| limit >= wanted.floor_bytes));
        }
        let hours = truths.len();
        // The last step, one step back, no limit: two and a half seconds each.
        prop_assert!(world.over_most_ms <= 8_000, "{}", world.over_most_ms);
        prop_assert!(world.changes.len() <= hours * 120, "{}", world.changes.len());
    }
}
