// SPDX-License-Identifier: Apache-2.0
//! Whether holding a budget pays: found out by leaving the limit to the kernel now and then.
//!
//! Time is cut into epochs. After some in which the budget is held, they come in pairs: in one of
//! each the kernel alone holds the limit, which one is drawn by chance. What a second of the
//! program's own work costs in faults, in waiting and in CPU time is compared between the two
//! kinds, by Welch's interval. Of each epoch only the second half counts, since the first one lives
//! on what the epoch before left resident. Where the budget does harm, or shows no gain in
//! [`PAIRS_MAX`] pairs, it is left to the kernel, and tried again rarely.

use std::collections::VecDeque;

use crate::mix;

/// Length of an epoch, ms.
pub const EPOCH_MS: u64 = 3_000;
/// Epochs held before the first comparison: something has to be learnt first.
pub const EPOCHS_BEFORE: u32 = 4;
/// Pairs before anything is concluded.
pub const PAIRS_MIN: usize = 4;
/// Pairs after which a gain has to be shown.
pub const PAIRS_MAX: usize = 24;
/// Once it is shown, there is a pair for every so many epochs.
pub const EPOCHS_A_PAIR: u32 = 16;
/// A budget that was left to the kernel is tried again after this time, doubled each time, ms.
pub const BACK_MS: u64 = 10 * 60_000;
/// But not longer than this, ms.
pub const BACK_MAX_MS: u64 = 4 * 3_600_000;
/// Epochs in which the program worked for less than this share of time say nothing.
const WORK_SHARE_MIN: f64 = 0.01;

/// Counters that never go back, of the program under the budget and of whoever holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// CPU time that the program spent in its own code, us: what it gets done.
    pub work_us: u64,
    /// Pages that it had to wait for.
    pub faults: u64,
    /// Time its tasks waited for memory, us.
    pub waited_us: u64,
    /// CPU time of the program, in the kernel too, and of holding the budget, us.
    pub cpu_us: u64,
}

/// Who holds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The budget, ahead of the limit.
    Budget,
    /// The kernel alone.
    Kernel,
}

/// A change against the kernel alone, for the same work, with its 95 % interval; -0.2 is a fifth
/// less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The best guess.
    pub mean: f64,
    /// Half of the interval.
    pub half: f64,
}

impl Change {
    fn is_less(&self) -> bool {
        self.mean + self.half < 0.0
    }

    fn is_more(&self) -> bool {
        self.mean - self.half > 0.0
    }
}

/// What holding the budget changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Faults.
    pub faults: Change,
    /// Waiting and CPU time together.
    pub time: Change,
    /// CPU time.
    pub cpu: Change,
    /// Pairs of epochs that were compared.
    pub pairs: usize,
}

/// What was concluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing yet.
    Open,
    /// It pays.
    Pays,
    /// It does not: the kernel holds the limit.
    Back {
        /// When it is tried again, ms.
        until_ms: u64,
    },
}

/// Draws epochs and compares them. Its answers depend on nothing but what it was handed.
#[derive(Clone, Debug)]
pub struct Epochs {
    random: u64,
    verdict: Verdict,
    backs: u32,
    /// When the epoch under way began; `None`: none did yet.
    began_ms: Option<u64>,
    /// Counters in the middle of it.
    middle: Option<(u64, Counted)>,
    holder: Holder,
    /// The second of the pair under way.
    second: Option<Holder>,
    /// Epochs to hold before the next pair.
    before: u32,
    /// What a second of work took, the newest last: held, and left to the kernel.
    held: VecDeque<[f64; 3]>,
    alone: VecDeque<[f64; 3]>,
}

impl Epochs {
    /// Nothing is known; `seed` decides which epochs are the kernel's.
    pub fn new(seed: u64) -> Self {
        Epochs {
            random: seed,
            verdict: Verdict::Open,
            backs: 0,
            began_ms: None,
            middle: None,
            holder: Holder::Budget,
            second: None,
            before: EPOCHS_BEFORE,
            held: VecDeque::new(),
            alone: VecDeque::new(),
        }
    }

    /// Who holds the limit now.
    pub fn holder(&self) -> Holder {
        self.holder
    }

    /// What was concluded.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// When [`turn`](Self::turn) wants to be called next, ms.
    pub fn due_ms(&self) -> u64 {
        match (self.verdict, self.began_ms) {
            (_, None) => 0,
            (Verdict::Back { until_ms }, _) => until_ms,
            (_, Some(began_ms)) if self.middle.is_none() => began_ms.saturating_add(EPOCH_MS / 2),
            (_, Some(began_ms)) => began_ms.saturating_add(EPOCH_MS),
        }
    }

    /// Takes the counters when it is due, and says who holds the limit from now on.
    pub fn turn(&mut self, now_ms: u64, counted: &Counted) -> Holder {
        if now_ms < self.due_ms() {
            return self.holder;
        }
        if let Verdict::Back { .. } = self.verdict {
            // Tried again, and judged by what it does now.
            self.held.clear();
            self.alone.clear();
            self.verdict = Verdict::Open;
            self.before = EPOCHS_BEFORE;
            self.begin(now_ms, Holder::Budget);
        } else if self.began_ms.is_none() {
            self.begin(now_ms, Holder::Budget);
        } else if let Some((since_ms, before)) = self.middle {
            self.note(now_ms - since_ms, &before, counted);
            self.judge(now_ms);
            let holder = self.draw();
            self.begin(now_ms, holder);
        } else {
            self.middle = Some((now_ms, *counted));
        }
        self.holder
    }

    /// Nothing can be compared now: the budget is held, and an epoch begins anew later.
    pub fn put_off(&mut self, now_ms: u64) {
        self.verdict = Verdict::Open;
        self.second = None;
        self.begin(now_ms, Holder::Budget);
    }

    /// What holding the budget changes, as far as it is known.
    pub fn gain(&self) -> Option<Gain> {
        if self.pairs() < PAIRS_MIN {
            return None;
        }
        let change = |of: usize| change(&self.held, &self.alone, of);
        Some(Gain {
            faults: change(0),
            time: change(1),
            cpu: change(2),
            pairs: self.pairs(),
        })
    }

    fn pairs(&self) -> usize {
        self.held.len().min(self.alone.len())
    }

    fn begin(&mut self, now_ms: u64, holder: Holder) {
        self.began_ms = Some(now_ms);
        self.middle = None;
        self.holder = holder;
    }

    /// The holder of the next epoch.
    fn draw(&mut self) -> Holder {
        if let Verdict::Back { .. } = self.verdict {
            self.second = None;
            return Holder::Kernel;
        }
        if let Some(second) = self.second.take() {
            return second;
        }
        if self.before > 0 {
            self.before -= 1;
            return Holder::Budget;
        }
        if self.verdict == Verdict::Pays {
            self.before = EPOCHS_A_PAIR;
        }
        self.random = mix::hash(self.random);
        let (first, second) = match self.random & 1 {
            0 => (Holder::Budget, Holder::Kernel),
            _ => (Holder::Kernel, Holder::Budget),
        };
        self.second = Some(second);
        first
    }

    fn note(&mut self, passed_ms: u64, before: &Counted, now: &Counted) {
        let since = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let work_us = since(now.work_us, before.work_us);
        // Epochs before the first pair are not compared: nothing was learnt yet.
        let is_first = self.before > 0 && self.verdict == Verdict::Open;
        if is_first || work_us < passed_ms as f64 * 1e3 * WORK_SHARE_MIN {
            return;
        }
        let cpu_us = since(now.cpu_us, before.cpu_us);
        let time_us = cpu_us + since(now.waited_us, before.waited_us);
        let taken = [since(now.faults, before.faults), time_us, cpu_us].map(|n| n / work_us);
        let epochs = match self.holder {
            Holder::Budget => &mut self.held,
            Holder::Kernel => &mut self.alone,
        };
        epochs.push_back(taken);
        if epochs.len() > PAIRS_MAX {
            epochs.pop_front();
        }
    }

    fn judge(&mut self, now_ms: u64) {
        let Some(gain) = self.gain() else { return };
        let pays = gain.time.is_less() || (gain.faults.is_less() && !gain.time.is_more());
        let harms = gain.time.is_more() || (gain.faults.is_more() && !gain.time.is_less());
        if pays {
            self.verdict = Verdict::Pays;
            self.backs = 0;
        } else if harms || gain.pairs >= PAIRS_MAX {
            let pause_ms = BACK_MS.saturating_mul(1 << self.backs.min(8));
            self.backs += 1;
            self.verdict = Verdict::Back {
                until_ms: now_ms.saturating_add(pause_ms.min(BACK_MAX_MS)),
            };
        } else {
            self.verdict = Verdict::Open;
        }
    }
}

fn change(held: &VecDeque<[f64; 3]>, alone: &VecDeque<[f64; 3]>, of: usize) -> Change {
    let moments = |epochs: &VecDeque<[f64; 3]>| {
        let count = epochs.len() as f64;
        let mean = epochs.iter().map(|taken| taken[of]).sum::<f64>() / count;
        let square = |taken: &[f64; 3]| (taken[of] - mean).powi(2);
        let variance = epochs.iter().map(square).sum::<f64>() / (count - 1.0);
        (mean, variance / count, count)
    };
    let ((held, held_error, held_count), (alone, alone_error, alone_count)) =
        (moments(held), moments(alone));
    let error = held_error + alone_error;
    if error <= 0.0 {
        let mean = if held == alone {
            0.0
        } else {
            (held - alone) / alone.max(1e-9)
        };
        return Change { mean, half: 0.0 };
    }
    // Welch and Satterthwaite.
    let freedom = error.powi(2)
        / (held_error.powi(2) / (held_count - 1.0) + alone_error.powi(2) / (alone_count - 1.0));
    let base = alone.max(1e-9);
    Change {
        mean: (held - alone) / base,
        half: student(freedom) * error.sqrt() / base,
    }
}

/// The 97.5 % quantile of Student's t, by the expansion of Cornish and Fisher: within 2 % from 3
/// degrees of freedom on.
fn student(freedom: f64) -> f64 {
    const NORMAL: f64 = 1.959_964;
    let (z, f) = (NORMAL, freedom.max(1.0));
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / f + second / f.powi(2) + third / f.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose work takes `cost` (faults, waiting, CPU) by who holds the limit, with noise;
    /// returns the time it was left to the kernel first, and the share of time it was held.
    fn run(seed: u64, ms: u64, cost: impl Fn(Holder) -> f64) -> (Epochs, Option<u64>, f64) {
        let mut epochs = Epochs::new(seed);
        let (mut counted, mut random) = (Counted::default(), seed ^ 7);
        let (mut back_ms, mut held_ms) = (None, 0);
        for now_ms in (0..ms).step_by(10) {
            let holder = epochs.turn(now_ms, &counted);
            random = mix::hash(random);
            let noise = 0.7 + (random % 600) as f64 / 1000.0;
            let cost = cost(holder) * noise;
            counted.work_us += 5_000;
            counted.faults += (100.0 * cost) as u64;
            counted.waited_us += (1_000.0 * cost) as u64;
            counted.cpu_us += 6_000 + (500.0 * cost) as u64;
            held_ms += if holder == Holder::Budget { 10 } else { 0 };
            if back_ms.is_none() && matches!(epochs.verdict(), Verdict::Back { .. }) {
                back_ms = Some(now_ms);
            }
        }
        (epochs, back_ms, held_ms as f64 / ms as f64)
    }

    fn twice_as_dear(holder: Holder) -> f64 {
        if holder == Holder::Budget { 2.0 } else { 1.0 }
    }

    #[test]
    fn harm_is_stepped_back_from_within_a_minute_and_tried_again_rarely() {
        for seed in 0..20 {
            let (_, back_ms, _) = run(seed, 120_000, twice_as_dear);
            assert!(back_ms.is_some_and(|ms| ms <= 60_000), "{back_ms:?}");
        }
        let (_, _, held) = run(1, 4 * 3_600_000, twice_as_dear);
        assert!(held < 0.02, "held {held} of four hours");
    }

    #[test]
    fn a_gain_is_kept_and_told_right() {
        let cost = |holder| if holder == Holder::Budget { 0.8 } else { 1.0 };
        for seed in 0..20 {
            let (epochs, back_ms, held) = run(seed, 1_800_000, cost);
            assert_eq!((back_ms, epochs.verdict()), (None, Verdict::Pays));
            let gain = epochs.gain().unwrap();
            assert!(
                (gain.faults.mean + 0.2).abs() < gain.faults.half + 0.02,
                "{gain:?}"
            );
            assert!(gain.faults.half < 0.05, "{gain:?}");
            assert!(held > 0.85, "{held}");
        }
    }

    /// No difference: in the long run the kernel has it.
    #[test]
    fn without_a_gain_the_kernel_has_it() {
        let mut held = 0.0;
        for seed in 0..20 {
            held += run(seed, 7_200_000, |_| 1.0).2 / 20.0;
        }
        assert!(held < 0.35, "{held}");
    }

    /// A program that sleeps tells nothing, and nothing is concluded.
    #[test]
    fn an_idle_program_decides_nothing() {
        let mut epochs = Epochs::new(3);
        for now_ms in (0..600_000).step_by(100) {
            epochs.turn(now_ms, &Counted::default());
        }
        assert_eq!((epochs.verdict(), epochs.gain()), (Verdict::Open, None));
    }

    #[test]
    fn quantiles_are_those_of_student() {
        for (freedom, quantile) in [(3.0, 3.182), (6.0, 2.447), (20.0, 2.086), (1e6, 1.960)] {
            assert!(
                (student(freedom) / quantile - 1.0).abs() < 0.02,
                "{freedom}"
            );
        }
    }
}
