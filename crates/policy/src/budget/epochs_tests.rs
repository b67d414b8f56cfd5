// SPDX-License-Identifier: Apache-2.0
use super::*;

/// A program, and the cost of holding its budget.
struct Case {
    /// What faults cost it, depending on who holds the limit: waiting, and CPU time in the
    /// kernel.
    cost: fn(Holder) -> f64,
    /// From then on, this is doubled.
    dearer_from_ms: u64,
    /// CPU time of the holder, us per 5 ms of work.
    holder_us: u64,
    is_contended: bool,
}

impl Case {
    /// A holder that takes almost no CPU time.
    fn of(cost: fn(Holder) -> f64) -> Case {
        Case {
            cost,
            dearer_from_ms: u64::MAX,
            holder_us: 10,
            is_contended: false,
        }
    }

    /// Runs with noise. Returns when the limit was first left to the kernel, and the share of
    /// time for which the budget was held.
    fn run(&self, seed: u64, ms: u64) -> (Epochs, Option<u64>, f64) {
        let mut epochs = Epochs::new(seed);
        let (mut counted, mut random) = (Counted::default(), seed ^ 7);
        let (mut back_ms, mut held_ms) = (None, 0);
        for now_ms in (0..ms).step_by(10) {
            let holder = epochs.turn(now_ms, &counted, 40_000);
            random = mix::hash(random);
            let noise = 0.7 + (random % 600) as f64 / 1000.0;
            let load = if now_ms < self.dearer_from_ms {
                1.0
            } else {
                2.0
            };
            let cost = (self.cost)(holder) * load * noise;
            counted.work_us += 5_000;
            counted.faults += (100.0 * cost) as u64;
            counted.waited_us += (1_000.0 * cost) as u64;
            counted.kernel_us += 500 + (500.0 * cost) as u64;
            counted.cpu_waited_us += u64::from(self.is_contended) * 10_000;
            if holder == Holder::Budget {
                counted.holder_us += self.holder_us;
                held_ms += 10;
            }
            if back_ms.is_none() && epochs.verdict() == Verdict::Back {
                back_ms = Some(now_ms);
            }
        }
        (epochs, back_ms, held_ms as f64 / ms as f64)
    }
}

fn twice_as_dear(holder: Holder) -> f64 {
    if holder == Holder::Budget { 2.0 } else { 1.0 }
}

fn a_fifth_cheaper(holder: Holder) -> f64 {
    if holder == Holder::Budget { 0.8 } else { 1.0 }
}

#[test]
fn harm_is_stepped_back_from_within_a_minute_and_tried_again_rarely() {
    for seed in 0..20 {
        let (_, back_ms, _) = Case::of(twice_as_dear).run(seed, 120_000);
        assert!(back_ms.is_some_and(|ms| ms <= 60_000), "{back_ms:?}");
    }
    let (_, _, held) = Case::of(twice_as_dear).run(1, 4 * 3_600_000);
    assert!(held < 0.02, "held {held} of four hours");
}

#[test]
fn a_gain_is_kept_and_told_right() {
    for seed in 0..20 {
        let (epochs, back_ms, held) = Case::of(a_fifth_cheaper).run(seed, 1_800_000);
        assert_eq!((back_ms, epochs.verdict()), (None, Verdict::Pays));
        let faults = epochs.gain().unwrap().faults_change.unwrap();
        assert!((faults.mean + 0.2).abs() < faults.half + 0.02, "{faults:?}");
        assert!(faults.half < 0.05, "{faults:?}");
        assert!(held > 0.85, "{held}");
    }
}

/// A gain of 200 us for 800 us of holding: worth it if those CPUs would have been idle, and
/// harm if others wait for them. The reported CPU time is the same in both cases.
#[test]
fn holding_costs_what_others_would_have_done_with_the_cpu() {
    for (is_contended, verdict) in [(false, Verdict::Pays), (true, Verdict::Back)] {
        for seed in 0..20 {
            let case = Case {
                holder_us: 800,
                is_contended,
                ..Case::of(a_fifth_cheaper)
            };
            let (epochs, back_ms, _) = case.run(seed, 120_000);
            let gain = epochs.gain().unwrap();
            assert_eq!(gain.verdict, verdict, "seed {seed}: {gain:?}");
            assert_eq!(back_ms.is_some(), is_contended, "seed {seed}");
            assert!(gain.cpu_change.unwrap().mean > 0.05, "{gain:?}");
        }
    }
}

/// The holder of the limit chooses what is resident as it comes in: after a change of holder,
/// faults change only as fast as memory is replaced, here within 20 s.
#[test]
fn a_gain_that_comes_slowly_is_found() {
    const PAGES: f64 = 170_000.0;
    for seed in 0..20 {
        let mut epochs = Epochs::new(seed);
        let (mut counted, mut faults, mut random) = (Counted::default(), 0.0, seed);
        // Share of memory that the budget has chosen.
        let mut chosen: f64 = 0.0;
        for now_ms in (0..3_600_000).step_by(10) {
            let holder = epochs.turn(now_ms, &counted, PAGES as u64);
            random = mix::hash(random);
            let noise = 0.7 + (random % 600) as f64 / 1000.0;
            let came = (85.0 - 15.0 * chosen) * noise;
            let towards = f64::from(u8::from(holder == Holder::Budget));
            chosen += (towards - chosen) * came / PAGES;
            faults += came;
            counted.faults = faults as u64;
            counted.work_us += 5_000;
            counted.kernel_us += (10.0 * came) as u64;
        }
        let gain = epochs.gain().unwrap();
        assert_eq!(gain.verdict, Verdict::Pays, "seed {seed}: {gain:?}");
        let faults = gain.faults_change.unwrap();
        // Half of the pairs are still the short ones, which show less of it.
        assert!((-0.18..-0.10).contains(&faults.mean), "{faults:?}");
    }
}

/// Without a difference, the kernel holds the limit in the long run.
#[test]
fn without_a_gain_the_kernel_has_it() {
    for dearer_from_ms in [900_000, u64::MAX] {
        let case = Case {
            dearer_from_ms,
            ..Case::of(|_| 1.0)
        };
        let held = |seed| case.run(seed, 7_200_000).2;
        let mean = (0..20).map(held).sum::<f64>() / 20.0;
        assert!(mean < 0.35, "{mean}");
    }
}

/// Epochs before and after a change of load are not compared.
#[test]
fn a_program_that_has_more_to_do_is_no_harm() {
    for seed in 0..20 {
        let case = Case {
            dearer_from_ms: 900_000,
            ..Case::of(a_fifth_cheaper)
        };
        let (epochs, back_ms, _) = case.run(seed, 1_800_000);
        assert_eq!((back_ms, epochs.verdict()), (None, Verdict::Pays));
    }
}

/// If the kernel alone causes no faults, no relative change exists, but the harm is detected.
#[test]
fn faults_where_there_were_none_are_harm() {
    let cost = |holder| f64::from(u8::from(holder == Holder::Budget));
    let (epochs, back_ms, _) = Case::of(cost).run(5, 60_000);
    assert!(back_ms.is_some());
    let gain = epochs.gain().unwrap();
    assert_eq!((gain.verdict, gain.faults_change), (Verdict::Back, None));
}

/// Each epoch has a half that counts, however late a turn comes.
#[test]
fn late_turns_give_no_empty_epochs() {
    let mut epochs = Epochs::new(3);
    let (mut now_ms, mut counted) = (0, Counted::default());
    for _ in 0..100 {
        epochs.turn(now_ms, &counted, 1);
        now_ms += EPOCH_MS + 200;
        counted.work_us += 1_000_000;
        epochs.turn(now_ms, &counted, 1);
        epochs.turn(now_ms, &counted, 1);
    }
    let gain = epochs.gain().unwrap();
    let time = gain.time_change.unwrap();
    assert!(time.mean.is_finite() && time.half.is_finite(), "{gain:?}");
}

/// A program that sleeps provides no evidence, so nothing is concluded.
#[test]
fn an_idle_program_decides_nothing() {
    let mut epochs = Epochs::new(3);
    for now_ms in (0..600_000).step_by(100) {
        epochs.turn(now_ms, &Counted::default(), 1);
    }
    assert_eq!((epochs.verdict(), epochs.gain()), (Verdict::Open, None));
}

#[test]
fn a_futile_budget_is_left_twice_as_long_each_time_until_it_was_held_for_longer() {
    let mut epochs = Epochs::new(1);
    let counted = Counted::default();
    // Returns for how long the limit is left to the kernel from `now_ms` on.
    let mut left_ms = |now_ms| {
        assert_eq!(epochs.leave(now_ms), Holder::Kernel);
        let again_ms = epochs.due_ms();
        assert_eq!(epochs.turn(again_ms - 1, &counted, 1), Holder::Kernel);
        assert_eq!(epochs.turn(again_ms, &counted, 1), Holder::Budget);
        again_ms - now_ms
    };
    let mut now_ms = 5_000;
    for times in [1, 2, 4, 8] {
        let ms = left_ms(now_ms);
        assert_eq!(ms, times * FUTILE_MS);
        now_ms += ms + 500;
    }
    now_ms += 8 * FUTILE_MS * CALM_PAUSES;
    assert_eq!(left_ms(now_ms), FUTILE_MS);
    for _ in 0..30 {
        now_ms += BACK_MS;
        assert!(left_ms(now_ms) <= BACK_MS);
    }
}

#[test]
fn the_kernel_has_the_limit_first_until_memory_was_replaced_twice() {
    let mut epochs = Epochs::new(1).kernel_first();
    let mut counted = Counted {
        faults: 5_000,
        ..Counted::default()
    };
    let mut now_ms = 0;
    let mut turn = |faults, due: Option<u64>| {
        counted.faults += faults;
        let holder = epochs.turn(now_ms, &counted, 1_000);
        if let Some(ms) = due {
            assert_eq!(epochs.due_ms(), now_ms + ms);
        }
        now_ms = epochs.due_ms();
        holder
    };
    // Pages that came in before do not count.
    assert_eq!(turn(0, Some(FIRST_COUNT_MS)), Holder::Kernel);
    assert_eq!(turn(1_999, Some(FIRST_COUNT_MS)), Holder::Kernel);
    // Then it is held, and measured, as without that.
    assert_eq!(turn(1, Some(EPOCH_MS / 2)), Holder::Budget);
    assert_eq!(turn(0, Some(EPOCH_MS / 2)), Holder::Budget);
}

#[test]
fn without_a_limit_the_kernel_is_not_first() {
    let mut epochs = Epochs::new(1).kernel_first();
    let counted = Counted::default();
    assert_eq!(epochs.turn(0, &counted, 1_000), Holder::Kernel);
    epochs.put_off(1_000);
    assert_eq!(
        (epochs.holder(), epochs.due_ms()),
        (Holder::Budget, 1_000 + EPOCH_MS)
    );
    // There is one again: what came in meanwhile does not count.
    let counted = Counted {
        faults: 1_000_000,
        ..counted
    };
    assert_eq!(
        epochs.turn(1_000 + EPOCH_MS, &counted, 1_000),
        Holder::Kernel
    );
}
