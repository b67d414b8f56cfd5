// SPDX-License-Identifier: Apache-2.0
//! Whether holding a budget pays: measured by leaving the limit to the kernel now and then.
//!
//! Time is divided into epochs. After some in which the budget is held, they come in pairs: in one
//! of each pair, selected at random, only the kernel holds the limit. The cost of the program's own
//! work (major faults, and time) is compared between the two kinds with Welch's interval. Only the
//! second half of each epoch counts, because the first half still uses what the previous epoch left
//! resident. To replace that, as many pages have to come in as are resident; epochs last twice as
//! long as this takes. (Redis at 55 % of its memory takes 20 s to replace what is resident: epochs
//! of 3 s show almost nothing of a fifth fewer faults.) Before that, a few short pairs detect what
//! is clearly bad.
//!
//! The budget pays if work takes less time, or has fewer faults in no more time. It does harm if
//! work takes more time, or has more faults in no less time. If it does harm, or shows no gain in
//! [`PAIRS_MAX`] pairs, the limit is left to the kernel, and the budget is tried again rarely.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::counted::{Counted, Taken};
use crate::mix;
use crate::statistics::Change;

/// Length of the first epochs, and the minimum for later ones, ms.
pub const EPOCH_MS: u64 = 3_000;
/// The maximum for later ones, ms.
pub const EPOCH_MAX_MS: u64 = 60_000;
/// Epochs held before the first comparison: something must be learned first.
pub const EPOCHS_BEFORE: u32 = 4;
/// Pairs before anything is concluded.
pub const PAIRS_MIN: usize = 4;
/// Full-length pairs within which a gain must show.
pub const PAIRS_MAX: usize = 16;
/// Epochs held before each such pair until a gain shows.
pub const EPOCHS_A_PAIR_OPEN: u32 = 2;
/// Once the budget is shown to pay, there is one pair per this many epochs.
pub const EPOCHS_A_PAIR: u32 = 16;
/// A budget that was left to the kernel is tried again after this time, which doubles each time,
/// ms.
pub const BACK_MS: u64 = 10 * 60_000;
/// The longest such time, ms.
pub const BACK_MAX_MS: u64 = 4 * 3_600_000;
/// Epochs in which the program worked for less than this share of time are ignored.
const WORK_SHARE_MIN: f64 = 0.01;

/// Who holds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The budget: memory is moved before the limit is reached.
    Budget,
    /// The kernel alone.
    Kernel,
}

/// The effect of holding the budget compared with the kernel alone, for the same work of the
/// program: -0.2 is a fifth less. `None` if the figure under the kernel alone is too small to
/// compare with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// What was concluded.
    pub verdict: Verdict,
    /// Pairs of epochs that were compared.
    pub pairs: usize,
    /// Major faults.
    pub faults_change: Option<Change>,
    /// CPU time, including that of holding the budget.
    pub cpu_change: Option<Change>,
    /// The time that decides.
    pub time_change: Option<Change>,
}

/// What was concluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing yet.
    Open,
    /// It pays.
    Pays,
    /// It does not pay: the kernel alone holds the limit for some minutes.
    Back,
}

/// Draws epochs and compares them. Its answers depend only on its inputs.
#[derive(Clone, Debug)]
pub struct Epochs {
    random: u64,
    verdict: Verdict,
    backs: u32,
    /// When a budget that was left to the kernel is tried again.
    again_ms: u64,
    /// When the current epoch started; `None`: none has started yet.
    began_ms: Option<u64>,
    /// The current epoch is short, and only shows what is clearly good or bad.
    quick: bool,
    /// Length of the current epoch.
    epoch_ms: u64,
    /// When the middle of the current epoch was, and the counters then.
    middle: Option<(u64, Counted)>,
    holder: Holder,
    /// Who holds the second epoch of the current pair.
    second: Option<Holder>,
    /// Epochs to hold before the next pair.
    before: u32,
    /// The cost of work in each epoch, newest last: while held, and while left to the kernel.
    held: VecDeque<Taken>,
    alone: VecDeque<Taken>,
}

impl Epochs {
    /// Starts without knowledge; `seed` decides which epochs are the kernel's.
    pub fn new(seed: u64) -> Self {
        Epochs {
            random: seed,
            verdict: Verdict::Open,
            backs: 0,
            again_ms: 0,
            began_ms: None,
            quick: true,
            epoch_ms: EPOCH_MS,
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
            (Verdict::Back, _) => self.again_ms,
            (_, Some(began_ms)) if self.middle.is_none() => {
                began_ms.saturating_add(self.epoch_ms / 2)
            }
            (_, Some(began_ms)) => began_ms.saturating_add(self.epoch_ms),
        }
    }

    /// Takes the counters of a program that has this much memory, if they are due, and returns who
    /// holds the limit from now on.
    pub fn turn(&mut self, now_ms: u64, counted: &Counted, memory_pages: u64) -> Holder {
        if now_ms < self.due_ms() {
            return self.holder;
        }
        if self.verdict == Verdict::Back {
            // The budget is tried again, and judged by what it does from now on.
            self.forget();
            self.quick = true;
            self.epoch_ms = EPOCH_MS;
            self.verdict = Verdict::Open;
            self.before = EPOCHS_BEFORE;
            self.begin(now_ms, Holder::Budget);
        } else if self.began_ms.is_none() {
            self.begin(now_ms, Holder::Budget);
        } else if let Some((since_ms, before)) = self.middle {
            let counted = counted.since(&before);
            self.note(now_ms - since_ms, &counted);
            self.judge(now_ms);
            if !self.quick {
                self.epoch_ms = epoch_ms(now_ms - since_ms, counted.faults, memory_pages);
            }
            let holder = self.draw();
            self.begin(now_ms, holder);
        } else {
            self.middle = Some((now_ms, *counted));
        }
        self.holder
    }

    /// Nothing can be compared now: the budget is held, and a new epoch starts.
    pub fn put_off(&mut self, now_ms: u64) {
        self.verdict = Verdict::Open;
        self.second = None;
        self.begin(now_ms, Holder::Budget);
    }

    /// The effect of holding the budget; `None` if too little is known.
    pub fn gain(&self) -> Option<Gain> {
        let relative = |of: fn(&Taken) -> f64| {
            let alone = self.alone.iter().map(of).sum::<f64>() / self.alone.len() as f64;
            self.change(of).relative_to(alone)
        };
        (self.pairs() >= PAIRS_MIN).then(|| Gain {
            verdict: self.verdict,
            pairs: self.pairs(),
            faults_change: relative(|taken| taken.faults),
            cpu_change: relative(|taken| taken.cpu),
            time_change: relative(|taken| taken.time),
        })
    }

    fn change(&self, of: fn(&Taken) -> f64) -> Change {
        Change::between(self.alone.iter().map(of), self.held.iter().map(of))
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
        if self.verdict == Verdict::Back {
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
        self.before = match self.verdict {
            Verdict::Pays => EPOCHS_A_PAIR,
            _ if self.quick => 0,
            _ => EPOCHS_A_PAIR_OPEN,
        };
        self.random = mix::hash(self.random);
        let (first, second) = match self.random & 1 {
            0 => (Holder::Budget, Holder::Kernel),
            _ => (Holder::Kernel, Holder::Budget),
        };
        self.second = Some(second);
        first
    }

    fn note(&mut self, passed_ms: u64, counted: &Counted) {
        let passed_us = passed_ms as f64 * 1e3;
        // Epochs before the first pair are not compared: nothing was learned yet.
        let is_first = self.quick && self.before > 0;
        if is_first || (counted.work_us as f64) < passed_us * WORK_SHARE_MIN {
            return;
        }
        let epochs = match self.holder {
            Holder::Budget => &mut self.held,
            Holder::Kernel => &mut self.alone,
        };
        epochs.push_back(Taken::of(passed_us, counted));
        if epochs.len() > PAIRS_MAX {
            epochs.pop_front();
        }
    }

    fn judge(&mut self, now_ms: u64) {
        if self.pairs() < PAIRS_MIN {
            return;
        }
        let faults = self.change(|taken| taken.faults);
        let time = self.change(|taken| taken.time);
        let pays = time.is_less() || (faults.is_less() && !time.is_more());
        let harms = time.is_more() || (faults.is_more() && !time.is_less());
        let whole_pairs = if self.quick { 0 } else { self.pairs() };
        self.verdict = if pays {
            self.backs = 0;
            Verdict::Pays
        } else if harms || whole_pairs >= PAIRS_MAX {
            let pause_ms = BACK_MS.saturating_mul(1 << self.backs.min(8));
            self.again_ms = now_ms.saturating_add(pause_ms.min(BACK_MAX_MS));
            self.backs += 1;
            Verdict::Back
        } else {
            Verdict::Open
        };
        if self.quick && self.verdict == Verdict::Open {
            self.forget();
        }
        self.quick = false;
    }

    fn forget(&mut self) {
        self.held.clear();
        self.alone.clear();
    }
}

/// Twice the time in which as many pages come in as there are, at the rate of `faults` in
/// `passed_ms`.
fn epoch_ms(passed_ms: u64, faults: u64, memory_pages: u64) -> u64 {
    let turnover_ms = passed_ms.saturating_mul(memory_pages) / faults.max(1);
    turnover_ms.saturating_mul(2).clamp(EPOCH_MS, EPOCH_MAX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program, and the cost of holding its budget.
    struct Case {
        /// What faults cost it, depending on who holds the limit: waiting, and CPU time in the
        /// kernel.
        cost: fn(Holder) -> f64,
        /// CPU time of the holder, us per 5 ms of work.
        holder_us: u64,
        is_contended: bool,
    }

    impl Case {
        /// A holder that takes almost no CPU time.
        fn of(cost: fn(Holder) -> f64) -> Case {
            Case {
                cost,
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
                let cost = (self.cost)(holder) * noise;
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
            assert!((-0.18..-0.12).contains(&faults.mean), "{faults:?}");
        }
    }

    /// Without a difference, the kernel holds the limit in the long run.
    #[test]
    fn without_a_gain_the_kernel_has_it() {
        let held = |seed| Case::of(|_| 1.0).run(seed, 7_200_000).2;
        let mean = (0..20).map(held).sum::<f64>() / 20.0;
        assert!(mean < 0.35, "{mean}");
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

    /// A program that sleeps provides no evidence, so nothing is concluded.
    #[test]
    fn an_idle_program_decides_nothing() {
        let mut epochs = Epochs::new(3);
        for now_ms in (0..600_000).step_by(100) {
            epochs.turn(now_ms, &Counted::default(), 1);
        }
        assert_eq!((epochs.verdict(), epochs.gain()), (Verdict::Open, None));
    }
}
