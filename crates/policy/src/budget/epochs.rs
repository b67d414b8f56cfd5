// SPDX-License-Identifier: Apache-2.0
//! Whether holding a budget pays: measured by leaving the limit to the kernel now and then.
//!
//! Time is divided into epochs. After some in which the budget is held, they come in pairs: in one
//! of each pair, selected at random, only the kernel holds the limit. The cost of the program's own
//! work (major faults, and time) is compared within each pair: what it is at other times depends on
//! what the program does then. The mean of these comparisons has Student's interval. Only the
//! second half of each epoch counts, because the first half still uses what the previous epoch left
//! resident. To replace that, as many pages have to come in as are resident; epochs last twice as
//! long as this takes. (Redis at 55 % of its memory takes 20 s to replace what is resident: epochs
//! of 3 s show almost nothing of a fifth fewer faults.) Before that, a few short pairs detect what
//! is clearly bad.
//!
//! The budget pays if work takes less time, or has fewer faults in no more time. It does harm if
//! work takes more time, or has more faults in no less time. If it does harm, or shows no gain in
//! [`PAIRS_MAX`] pairs, the limit is left to the kernel, and the budget is tried again rarely.
//!
//! That takes half a minute. Moves that are undone at once ([`JUDGED_MIN`](super::JUDGED_MIN)) are
//! noticed sooner, and the limit is left to the kernel for a moment.
//!
//! Where memory nearly suffices, half a minute of harm is more than a budget can gain. So with
//! [`Measure::KernelFirst`] the kernel alone has the limit, and nothing is looked at, until as many
//! pages have come in twice as the limit holds.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::counted::{Counted, Taken};
use crate::mix;
use crate::statistics::Change;

/// With [`Measure::KernelFirst`], the budget is held once the kernel has brought in this many times
/// as many pages as the limit holds. After half as many, programs whose memory nearly suffices may
/// still have more faults than without a budget.
pub const TURNOVERS_FIRST: u64 = 2;
/// Until then, they are counted this far apart, ms.
pub const FIRST_COUNT_MS: u64 = 250;
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
/// A budget under which most of what is moved comes back at once is tried again after this time,
/// which doubles each time up to [`BACK_MS`], ms.
pub const FUTILE_MS: u64 = 1_000;
/// If it was held for this many times as long in between, the time begins anew.
const CALM_PAUSES: u64 = 4;
/// Epochs in which the program worked for less than this share of time are ignored.
const WORK_SHARE_MIN: f64 = 0.01;
/// A change by more than a factor of a million only shows that there was almost nothing before.
const ALMOST_NOTHING: f64 = 2e-6;

/// Whether the worth of a budget is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// It is not: the budget is always held.
    Off,
    /// From the start.
    On,
    /// Once the kernel alone has brought in twice as many pages as the limit holds: if memory
    /// nearly suffices, the budget is never held.
    #[default]
    KernelFirst,
}

impl Measure {
    /// All of them, with their names.
    pub const NAMES: &'static [(&'static str, Measure)] = &[
        ("on", Measure::On),
        ("off", Measure::Off),
        ("kernel_first", Measure::KernelFirst),
    ];
}

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
    /// Set while the kernel still has the limit first.
    first: Option<First>,
    verdict: Verdict,
    backs: u32,
    /// When a budget that was left to the kernel is tried again.
    again_ms: u64,
    /// For how long it was left to the kernel when holding was futile last.
    futile_ms: u64,
    /// When the current epoch started; `None`: none has started yet.
    began_ms: Option<u64>,
    /// The current epoch is short, and only shows what is clearly good or bad.
    quick: bool,
    /// Length of the current epoch.
    epoch_ms: u64,
    /// When the middle of the current epoch was, and the counters then.
    middle: Option<(u64, Counted)>,
    holder: Holder,
    place: Place,
    /// Epochs to hold before the next pair.
    before: u32,
    /// Newest last.
    pairs: VecDeque<Pair>,
}

/// The kernel has the limit first: how far that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename = "kernel_first")]
pub struct KernelFirst {
    /// Pages that have come in.
    pub came_in_pages: u64,
    /// The budget is held once this many have.
    pub until_pages: u64,
}

impl KernelFirst {
    /// How far it is, 0 to 1.
    pub fn ratio(&self) -> f64 {
        (self.came_in_pages as f64 / self.until_pages.max(1) as f64).min(1.0)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct First {
    /// Pages that had come in before.
    before: Option<u64>,
    /// When to count them next.
    due_ms: u64,
    so_far: KernelFirst,
}

/// Where the current epoch is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Between pairs: it is not compared.
    Between,
    /// The first of a pair; this one holds the second.
    First(Holder),
    /// The second of a pair, and what the first cost; `None` if the program hardly worked.
    Second(Option<Taken>),
}

/// What work cost in a pair: while the budget was held, and while the kernel held the limit alone.
#[derive(Clone, Copy, Debug)]
struct Pair {
    held: Taken,
    alone: Taken,
}

impl Pair {
    /// The difference of a cost as a share of the sum of both, -1 to 1: however much the program
    /// has to do in a pair, all pairs weigh the same.
    fn difference(&self, of: fn(&Taken) -> f64) -> f64 {
        let (held, alone) = (of(&self.held), of(&self.alone));
        match held + alone {
            0.0 => 0.0,
            sum => (held - alone) / sum,
        }
    }
}

impl Epochs {
    /// Starts without knowledge; `seed` decides which epochs are the kernel's.
    pub fn new(seed: u64) -> Self {
        Epochs {
            random: seed,
            first: None,
            verdict: Verdict::Open,
            backs: 0,
            again_ms: 0,
            futile_ms: 0,
            began_ms: None,
            quick: true,
            epoch_ms: EPOCH_MS,
            middle: None,
            holder: Holder::Budget,
            place: Place::Between,
            before: EPOCHS_BEFORE,
            pairs: VecDeque::new(),
        }
    }

    /// The kernel has the limit first ([`Measure::KernelFirst`]).
    #[must_use]
    pub fn kernel_first(mut self) -> Self {
        self.first = Some(First::default());
        self
    }

    /// How far it is, while the kernel has the limit first; `None` also if it has no limit.
    pub fn first(&self) -> Option<KernelFirst> {
        let has_limit = self.holder == Holder::Kernel;
        self.first.filter(|_| has_limit).map(|first| first.so_far)
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
        if let Some(first) = self.first {
            return first.due_ms;
        }
        match (self.verdict, self.began_ms) {
            (_, None) => 0,
            (Verdict::Back, _) => self.again_ms,
            (_, Some(began_ms)) => {
                // If the middle came late, the half that counts is still as long.
                let since_ms = self.middle.map_or(began_ms, |(since_ms, _)| since_ms);
                since_ms.saturating_add(self.epoch_ms / 2)
            }
        }
    }

    /// Takes the counters of a program that has this much memory, if they are due, and returns who
    /// holds the limit from now on.
    pub fn turn(&mut self, now_ms: u64, counted: &Counted, memory_pages: u64) -> Holder {
        if now_ms < self.due_ms() {
            return self.holder;
        }
        if self.is_first(now_ms, counted.faults, memory_pages) {
            self.holder = Holder::Kernel;
        } else if self.verdict == Verdict::Back {
            self.begin_anew(now_ms);
        } else if self.began_ms.is_none() {
            self.begin(now_ms, Holder::Budget);
        } else if let Some((since_ms, before)) = self.middle {
            let counted = counted.since(&before);
            let taken = taken(now_ms - since_ms, &counted);
            if let Place::Second(first) = self.place
                && let (Some(first), Some(second)) = (first, taken)
            {
                self.note(first, second);
                self.judge(now_ms);
            }
            if !self.quick {
                self.epoch_ms = epoch_ms(now_ms - since_ms, counted.faults, memory_pages);
            }
            let holder = self.draw(taken);
            self.begin(now_ms, holder);
        } else {
            self.middle = Some((now_ms, *counted));
        }
        self.holder
    }

    /// Whether the kernel still has the limit first.
    fn is_first(&mut self, now_ms: u64, faults: u64, memory_pages: u64) -> bool {
        let Some(first) = &mut self.first else {
            return false;
        };
        let before = *first.before.get_or_insert(faults);
        first.due_ms = now_ms.saturating_add(FIRST_COUNT_MS);
        first.so_far = KernelFirst {
            came_in_pages: faults.saturating_sub(before),
            until_pages: memory_pages.saturating_mul(TURNOVERS_FIRST),
        };
        let is_first = first.so_far.came_in_pages < first.so_far.until_pages;
        if !is_first {
            self.first = None;
            // What was begun while there was no limit is not compared.
            self.began_ms = None;
        }
        is_first
    }

    /// Most of what is moved comes back at once: the limit is left to the kernel for a moment,
    /// twice as long each time. Returns who holds it.
    pub fn leave(&mut self, now_ms: u64) -> Holder {
        let held_ms = now_ms.saturating_sub(self.again_ms);
        self.futile_ms = match held_ms > CALM_PAUSES * self.futile_ms {
            true => FUTILE_MS,
            false => (self.futile_ms * 2).clamp(FUTILE_MS, BACK_MS),
        };
        self.verdict = Verdict::Back;
        self.again_ms = now_ms.saturating_add(self.futile_ms);
        self.begin(now_ms, Holder::Kernel);
        self.holder
    }

    /// Nothing can be compared now: the budget is held, and everything is forgotten, as it was
    /// learned under a limit that is gone.
    pub fn put_off(&mut self, now_ms: u64) {
        self.backs = 0;
        self.begin_anew(now_ms);
        if let Some(first) = &mut self.first {
            *first = First {
                due_ms: now_ms.saturating_add(EPOCH_MS),
                ..First::default()
            };
        }
    }

    /// The effect of holding the budget; `None` if too little is known.
    pub fn gain(&self) -> Option<Gain> {
        let relative = |of| of_alone(self.difference(of));
        (self.pairs.len() >= PAIRS_MIN).then(|| Gain {
            verdict: self.verdict,
            pairs: self.pairs.len(),
            faults_change: relative(|taken| taken.faults),
            cpu_change: relative(|taken| taken.cpu),
            time_change: relative(|taken| taken.time),
        })
    }

    fn difference(&self, of: fn(&Taken) -> f64) -> Change {
        Change::mean_of(self.pairs.iter().map(|pair| pair.difference(of)))
    }

    /// The budget is tried, and judged by what it does from now on.
    fn begin_anew(&mut self, now_ms: u64) {
        self.pairs.clear();
        self.place = Place::Between;
        self.quick = true;
        self.epoch_ms = EPOCH_MS;
        self.verdict = Verdict::Open;
        self.before = EPOCHS_BEFORE;
        self.begin(now_ms, Holder::Budget);
    }

    fn begin(&mut self, now_ms: u64, holder: Holder) {
        self.began_ms = Some(now_ms);
        self.middle = None;
        self.holder = holder;
    }

    /// The holder of the next epoch, after one in which work cost `taken`.
    fn draw(&mut self, taken: Option<Taken>) -> Holder {
        let place = std::mem::replace(&mut self.place, Place::Between);
        if self.verdict == Verdict::Back {
            return Holder::Kernel;
        }
        if let Place::First(second) = place {
            self.place = Place::Second(taken);
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
        self.place = Place::First(second);
        first
    }

    /// Takes in what work cost in the two epochs of the current pair.
    fn note(&mut self, first: Taken, second: Taken) {
        let (held, alone) = match self.holder {
            Holder::Budget => (second, first),
            Holder::Kernel => (first, second),
        };
        self.pairs.push_back(Pair { held, alone });
        if self.pairs.len() > PAIRS_MAX {
            self.pairs.pop_front();
        }
    }

    fn judge(&mut self, now_ms: u64) {
        if self.pairs.len() < PAIRS_MIN {
            return;
        }
        let faults = self.difference(|taken| taken.faults);
        let time = self.difference(|taken| taken.time);
        let pays = time.is_less() || (faults.is_less() && !time.is_more());
        let harms = time.is_more() || (faults.is_more() && !time.is_less());
        let whole_pairs = if self.quick { 0 } else { self.pairs.len() };
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
            self.pairs.clear();
        }
        self.quick = false;
    }
}

/// What work cost in an epoch; `None` if the program hardly worked.
fn taken(passed_ms: u64, counted: &Counted) -> Option<Taken> {
    let passed_us = passed_ms as f64 * 1e3;
    let has_worked = counted.work_us as f64 >= passed_us * WORK_SHARE_MIN;
    has_worked.then(|| Taken::of(passed_us, counted))
}

/// A share of what both cost, as a share of what it costs under the kernel alone; `None` if that is
/// almost nothing. The interval is as wide as towards zero, so it says as much about the sign.
fn of_alone(of_both: Change) -> Option<Change> {
    // d = (h - a) / (h + a), so h / a - 1 = 2 d / (1 - d).
    let of = |share: f64| 2.0 * share / (1.0 - share);
    let (mean, end) = (
        of_both.mean,
        of_both.mean - of_both.half.copysign(of_both.mean),
    );
    (1.0 - mean.max(end) > ALMOST_NOTHING).then(|| Change {
        mean: of(mean),
        half: (of(mean) - of(end)).abs(),
    })
}

/// Twice the time in which as many pages come in as there are, at the rate of `faults` in
/// `passed_ms`.
fn epoch_ms(passed_ms: u64, faults: u64, memory_pages: u64) -> u64 {
    let turnover_ms = passed_ms.saturating_mul(memory_pages) / faults.max(1);
    turnover_ms.saturating_mul(2).clamp(EPOCH_MS, EPOCH_MAX_MS)
}

#[cfg(test)]
#[path = "epochs_tests.rs"]
mod tests;
