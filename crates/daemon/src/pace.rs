// SPDX-License-Identifier: Apache-2.0
//! When to look next: at the requested tick, or as often as the CPU budget allows.
//!
//! The budget is an account. Its share of the time that passes is credited; each look is debited,
//! together with what readers have cost since the previous one; and there is no look while it is
//! overdrawn. So the share holds over any long time, whatever single looks cost.

use super::state::Budget;

/// The account is capped at the credit of this time: after a quiet period, looks may be a little
/// more frequent for a while, but not for long.
const SAVINGS_MS: f64 = 60_000.0;
/// However short the budget, there is a look after this time.
const LONGEST_MS: u64 = 600_000;
/// Looks differ in what they take, those at files most of all: only when all looks for so long
/// could have been on time is the budget enough.
const STEADY_MS: u64 = 60_000;
/// Weight of the newest look in the expected cost of a look.
const LEARN: f64 = 0.3;

/// Keeps to a budget. Times are in ms, of any clock that does not go back.
#[derive(Clone, Debug)]
pub struct Pace {
    percent: f64,
    /// The configured time from look to look.
    tick_ms: u64,
    /// The time from look to look that is wanted now: policies may want more looks.
    pace_ms: u64,
    /// CPU ms that may be spent.
    account_ms: f64,
    filled_ms: Option<u64>,
    look_cpu_ms: Option<f64>,
    planned_ms: Option<u64>,
    late_ms: u64,
    late_max_ms: u64,
    /// When the budget was last too little for the configured pace.
    short_ms: Option<u64>,
    was_short: bool,
}

impl Pace {
    /// A pace of one look per `tick_ms`, within `percent` of one core.
    pub fn new(percent: f64, tick_ms: u64) -> Self {
        let mut pace = Pace {
            percent,
            tick_ms,
            pace_ms: tick_ms,
            account_ms: 0.0,
            filled_ms: None,
            look_cpu_ms: None,
            planned_ms: None,
            late_ms: 0,
            late_max_ms: 0,
            short_ms: None,
            was_short: false,
        };
        pace.account_ms = pace.savings_ms();
        pace
    }

    fn savings_ms(&self) -> f64 {
        SAVINGS_MS * self.percent / 100.0
    }

    /// Changes the settings, with a look every `pace_ms` as far as the budget allows; what was
    /// spent stays spent.
    pub fn set(&mut self, percent: f64, tick_ms: u64, pace_ms: u64) {
        self.percent = percent;
        self.tick_ms = tick_ms;
        self.pace_ms = pace_ms;
        self.account_ms = self.account_ms.min(self.savings_ms());
    }

    /// Starts a look.
    pub fn begin(&mut self, now_ms: u64) {
        let planned_ms = self.planned_ms.take().unwrap_or(now_ms);
        self.late_ms = now_ms.saturating_sub(planned_ms);
        self.late_max_ms = self.late_max_ms.max(self.late_ms);
    }

    /// Debits `cpu_ms` of CPU time for a look that began at `began_ms` and for other work. Returns
    /// when the next look is due.
    pub fn spent(&mut self, began_ms: u64, now_ms: u64, cpu_ms: f64) -> u64 {
        let filled_ms = self.filled_ms.replace(now_ms).unwrap_or(began_ms);
        let passed_ms = now_ms.saturating_sub(filled_ms) as f64;
        self.account_ms =
            (self.account_ms + passed_ms * self.percent / 100.0).min(self.savings_ms());
        // A debt that takes longer to pay off than there may be no look is worth no more: looks are
        // as rare as they can be.
        let debt_max_ms = LONGEST_MS as f64 * self.percent / 100.0;
        self.account_ms = (self.account_ms - cpu_ms).max(-debt_max_ms);
        let known = self.look_cpu_ms.unwrap_or(cpu_ms);
        self.look_cpu_ms = Some(known + LEARN * (cpu_ms - known));
        if self.budget().is_short() {
            self.short_ms = Some(now_ms);
        }
        let due_ms = began_ms.saturating_add(self.pace_ms);
        let next_ms = due_ms.max(now_ms.saturating_add(self.debt_ms()));
        self.planned_ms = Some(next_ms);
        next_ms
    }

    /// When the next look is due.
    pub fn next_ms(&self) -> u64 {
        self.planned_ms.unwrap_or(0)
    }

    /// How long until the account can pay for a look, in ms; 0 if it can now.
    pub fn debt_ms(&self) -> u64 {
        if self.account_ms >= 0.0 {
            return 0;
        }
        let ms = -self.account_ms * 100.0 / self.percent;
        (ms.ceil() as u64).min(LONGEST_MS)
    }

    /// How much later than planned the last look began, in ms.
    pub fn late_ms(&self) -> u64 {
        self.late_ms
    }

    /// The maximum of [`late_ms`](Self::late_ms) so far.
    pub fn late_max_ms(&self) -> u64 {
        self.late_max_ms
    }

    /// Whether the budget was too little for the configured pace within the last minute.
    pub fn is_short(&self, now_ms: u64) -> bool {
        let until_ms = self.short_ms.map(|at_ms| at_ms.saturating_add(STEADY_MS));
        until_ms.is_some_and(|until_ms| now_ms < until_ms)
    }

    /// Whether the budget is too little for the configured pace, if that has changed.
    pub fn short_news(&mut self, now_ms: u64) -> Option<bool> {
        let is_short = self.is_short(now_ms);
        let was_short = std::mem::replace(&mut self.was_short, is_short);
        (is_short != was_short).then_some(is_short)
    }

    /// How often the budget could pay for a look, ms: also if that is more often than wanted.
    pub fn affordable_ms(&self) -> u64 {
        (self.look_cpu_ms.unwrap_or(0.0) * 100.0 / self.percent) as u64
    }

    /// The effect of the budget on the pace.
    pub fn budget(&self) -> Budget {
        Budget {
            percent: self.percent,
            tick_ms: self.tick_ms,
            actual_ms: self
                .affordable_ms()
                .clamp(self.pace_ms, LONGEST_MS.max(self.pace_ms)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Makes looks with costs according to `cost` until `end_ms`; returns CPU ms spent and the
    /// number of looks.
    fn run(pace: &mut Pace, end_ms: u64, mut cost: impl FnMut(u64) -> f64) -> (f64, u64) {
        let (mut now_ms, mut cpu_ms, mut looks) = (0, 0.0, 0);
        while now_ms < end_ms {
            pace.begin(now_ms);
            let look_ms = cost(now_ms);
            let ended_ms = now_ms + look_ms as u64;
            cpu_ms += look_ms;
            looks += 1;
            now_ms = pace.spent(now_ms, ended_ms, look_ms);
        }
        (cpu_ms, looks)
    }

    #[test]
    fn a_cheap_look_keeps_the_tick_and_a_dear_one_the_budget() {
        let mut pace = Pace::new(1.0, 5000);
        let (cpu_ms, looks) = run(&mut pace, 3_600_000, |_| 20.0);
        assert_eq!((looks, pace.budget().actual_ms), (720, 5000));
        assert!(cpu_ms <= 36_000.0 && !pace.budget().is_short());
        let mut pace = Pace::new(1.0, 5000);
        let (cpu_ms, looks) = run(&mut pace, 3_600_000, |_| 200.0);
        assert!(cpu_ms < 36_000.0 * 1.03, "{cpu_ms}");
        assert!((175..=190).contains(&looks), "{looks}");
        assert_eq!(pace.budget().actual_ms, 20_000);
        assert!(pace.budget().is_short());
        run(&mut pace, 3_600_000, |_| 20.0);
        assert!((2000..2100).contains(&pace.affordable_ms()));
        assert_eq!(pace.budget().actual_ms, 5000);
    }

    #[test]
    fn a_budget_that_some_looks_exceed_is_short_until_none_does() {
        let mut pace = Pace::new(5.0, 2000);
        let mut says = Vec::new();
        // A look at files now and then.
        for (look, at_ms) in (0..120).zip((0..).step_by(3000)) {
            let cpu_ms = if look % 4 == 0 && look < 60 {
                250.0
            } else {
                60.0
            };
            pace.begin(at_ms);
            pace.spent(at_ms, at_ms + 100, cpu_ms);
            says.push(pace.is_short(at_ms + 100));
        }
        says.dedup();
        assert_eq!(says, [true, false]);
    }

    #[test]
    fn a_stall_is_late_and_does_not_run_after_lost_ticks() {
        let mut pace = Pace::new(1.0, 1000);
        let next_ms = pace.spent(0, 5, 5.0);
        assert_eq!(next_ms, 1000);
        pace.begin(11_000);
        assert_eq!((pace.late_ms(), pace.late_max_ms()), (10_000, 10_000));
        assert_eq!(pace.spent(11_000, 11_005, 5.0), 12_000);
        pace.begin(12_003);
        assert_eq!((pace.late_ms(), pace.late_max_ms()), (3, 10_000));
    }

    #[test]
    fn a_debt_is_paid_off_within_the_longest_pause() {
        let mut pace = Pace::new(1.0, 5000);
        run(&mut pace, 86_400_000, |_| 20_000.0);
        let (_, looks) = run(&mut pace, 3_600_000, |_| 20.0);
        assert!(looks > 3_600 / 5 / 2, "{looks}");
    }

    #[test]
    fn a_budget_for_the_tick_but_not_for_what_policies_want_is_not_short() {
        let mut pace = Pace::new(1.0, 5000);
        pace.set(1.0, 5000, 2000);
        run(&mut pace, 3_600_000, |_| 30.0);
        let budget = pace.budget();
        assert_eq!((budget.tick_ms, budget.actual_ms), (5000, 3000));
        assert!(!budget.is_short());
        run(&mut pace, 3_600_000, |_| 60.0);
        assert!(pace.budget().is_short());
    }

    proptest! {
        #[test]
        fn the_budget_holds_over_any_long_time(
            percent in 0.1f64..20.0,
            tick_ms in 100u64..20_000,
            costs in prop::collection::vec(0.0f64..500.0, 1..20),
        ) {
            let mut pace = Pace::new(percent, tick_ms);
            let mut at = 0;
            let end_ms = 7_200_000;
            let (cpu_ms, _) = run(&mut pace, end_ms, |_| {
                at += 1;
                costs[at % costs.len()]
            });
            // What was saved at first, and one look too many.
            let granted_ms = (end_ms as f64 + SAVINGS_MS) * percent / 100.0 + 500.0;
            prop_assert!(cpu_ms <= granted_ms, "{} of {}", cpu_ms, granted_ms);
        }
    }
}
