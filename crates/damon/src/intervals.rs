// SPDX-License-Identifier: Apache-2.0
//! Tuning the intervals of a running monitor towards a share of access events (mm/damon/core.c:
//! `kdamond_tune_intervals`).

use super::attrs::IntervalsGoal;
use super::goal::feed;
use super::monitor::{Monitor, apply_samples};
use super::region::BP;

impl Monitor {
    /// Adjusts the sampling interval so that the wanted share of checks finds an access
    /// (`kdamond_tune_intervals`, since 6.15).
    pub(super) fn tune(&mut self) {
        let Some(goal) = self.attrs.tune.filter(|goal| goal.aggrs != 0) else {
            return;
        };
        if self.samples < self.next_tune_sample {
            return;
        }
        let score = self.access_score(&goal);
        let bp = feed(100_000_000, score) / BP;
        let bp = if bp <= BP { BP / 2 + bp / 2 } else { bp };
        let sample_us = u128::from(self.attrs.sample_us) * u128::from(bp) / u128::from(BP);
        let sample_us = u64::try_from(sample_us).unwrap_or(u64::MAX);
        let sample_us = sample_us.min(goal.max_sample_us).max(goal.min_sample_us);
        let aggr_us = sample_us.saturating_mul(self.looks_kept);
        self.change_intervals(sample_us, aggr_us);
        self.next_tune_sample = self.samples + self.tune_samples(&goal);
    }

    fn access_score(&self, goal: &IntervalsGoal) -> u64 {
        let looks = u128::from(self.attrs.max_nr_accesses());
        let (mut events, mut most) = (0u128, 0u128);
        for region in self.targets.iter().flat_map(|target| &target.regions) {
            events += u128::from(region.size()) * u128::from(region.nr_accesses);
            most += u128::from(region.size()) * looks;
        }
        let wanted = (most * u128::from(goal.access_bp) / u128::from(BP)).max(1);
        u64::try_from(events * u128::from(BP) / wanted).unwrap_or(u64::MAX)
    }

    /// Converts counts and ages to the new intervals. Call when an aggregation has just ended, so
    /// that `nr_accesses` is complete.
    fn change_intervals(&mut self, sample_us: u64, aggr_us: u64) {
        let old = self.attrs;
        self.attrs.sample_us = sample_us;
        self.attrs.aggr_us = aggr_us;
        let (old_most, new_most) = (old.max_nr_accesses(), self.attrs.max_nr_accesses());
        let convert = |nr: u32| {
            let bp = u64::from(nr) * BP / u64::from(old_most);
            u32::try_from(bp * u64::from(new_most) / BP).unwrap_or(u32::MAX)
        };
        for region in self
            .targets
            .iter_mut()
            .flat_map(|target| &mut target.regions)
        {
            let age = u128::from(region.age) * u128::from(old.aggr_us) / u128::from(aggr_us.max(1));
            region.age = u32::try_from(age).unwrap_or(u32::MAX);
            region.last_nr_accesses = convert(region.last_nr_accesses);
            region.nr_accesses = convert(region.nr_accesses);
            region.nr_accesses_bp = u64::from(region.nr_accesses) * BP;
        }
        self.next_aggr_sample = self.samples + self.samples_in(aggr_us);
        self.next_update_sample = self.samples + self.attrs.ops_update_us / self.sample_us();
        for (next, scheme) in self.next_apply_sample.iter_mut().zip(&self.schemes) {
            *next = self.samples + apply_samples(&self.attrs, scheme);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::attrs::{Attrs, IntervalsGoal};
    use super::super::profile::Profile;
    use super::super::target::TargetId;
    use super::super::testing::{HotRange, run};
    use super::*;

    #[test]
    fn tuning_shortens_the_interval_when_too_much_is_seen() {
        let goal = IntervalsGoal {
            access_bp: 40,
            aggrs: 3,
            min_sample_us: 1_000,
            max_sample_us: 10_000_000,
        };
        let attrs = Attrs {
            tune: Some(goal),
            ..Attrs::default()
        };
        let tuned = |hot| {
            let mut space = HotRange::new(10_000, hot);
            let mut monitor =
                Monitor::new(Profile::V7_2, attrs, &[TargetId(0)], Vec::new(), 1).unwrap();
            monitor.start(&mut space);
            run(&mut monitor, &mut space, 20 * 30);
            (monitor.attrs().sample_us, monitor.attrs().aggr_us)
        };
        let (busy_us, busy_aggr_us) = tuned(0..5_000);
        assert_eq!(
            (busy_us, busy_aggr_us),
            (1_000, 20_000),
            "down to the lower bound"
        );
        let (idle_us, _) = tuned(0..0);
        assert!(idle_us > 5_000, "nothing seen: look less often, {idle_us}");
    }

    #[test]
    fn changed_intervals_convert_counts_and_ages() {
        let mut space = HotRange::new(100, 0..100);
        let mut monitor = Monitor::new(
            Profile::V7_2,
            Attrs::default(),
            &[TargetId(0)],
            Vec::new(),
            1,
        )
        .unwrap();
        monitor.start(&mut space);
        run(&mut monitor, &mut space, 20 * 10);
        let age = monitor.targets()[0].regions[0].age;
        monitor.change_intervals(5_000, 50_000);
        let region = &monitor.targets()[0].regions[0];
        assert_eq!(
            region.age,
            age * 2,
            "the same time in aggregations half as long"
        );
        assert_eq!(region.last_nr_accesses, 10, "all of 20 looks is all of 10");
    }
}
