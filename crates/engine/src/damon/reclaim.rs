// SPDX-License-Identifier: Apache-2.0
//! Proactive reclaim by DAMON (mm/damon/reclaim.c): regions idle for long are paged out.

use super::module::{Monitoring, ParamsError};
use super::monitor::{Monitor, Profile};
use super::quota::{Goal, GoalMetric, Limits, Quota, Weights};
use super::region::BP;
use super::scheme::{AccessPattern, Action, Filter, FilterKind, Scheme, Watermarks};
use super::space::TargetId;

/// Parameters of `DAMON_RECLAIM`, with the kernel's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The monitor behind it.
    pub monitoring: Monitoring,
    /// `min_age`, us.
    pub min_age_us: u64,
    /// `quota_ms`.
    pub quota_ms: u64,
    /// `quota_sz`, bytes.
    pub quota_bytes: u64,
    /// `quota_reset_interval_ms`.
    pub quota_reset_interval_ms: u64,
    /// `quota_mem_pressure_us`: wanted stall a window; 0 is off.
    pub quota_mem_pressure_us: u64,
    /// `quota_autotune_feedback`: a score fed in, 10000 when content; 0 is off.
    pub quota_autotune_feedback: u64,
    /// `wmarks_*`.
    pub watermarks: Watermarks,
    /// `skip_anon`.
    pub skip_anon: bool,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            monitoring: Monitoring::default(),
            min_age_us: 120_000_000,
            quota_ms: 10,
            quota_bytes: 128 << 20,
            quota_reset_interval_ms: 1000,
            quota_mem_pressure_us: 0,
            quota_autotune_feedback: 0,
            watermarks: Watermarks {
                interval_us: 5_000_000,
                high: 500,
                mid: 400,
                low: 200,
            },
            skip_anon: false,
        }
    }
}

impl Params {
    /// The monitor with its one scheme.
    ///
    /// # Errors
    /// What the module refuses with EINVAL, and parameters the profile's kernel does not have.
    pub fn monitor(
        &self,
        profile: Profile,
        target: TargetId,
        seed: u64,
    ) -> Result<Monitor, ParamsError> {
        if self.monitoring.aggr_us == 0 {
            return Err(ParamsError::ZeroInterval("aggr_interval"));
        }
        let attrs = self.monitoring.attrs(profile)?;
        let age = u32::try_from(self.min_age_us / attrs.aggr_us.max(1)).unwrap_or(u32::MAX);
        let pattern = AccessPattern {
            size_bytes: 4096..=u64::MAX,
            nr_accesses: 0..=0,
            age: age..=u32::MAX,
        };
        let mut scheme = Scheme::new(pattern, Action::Pageout, Quota::new(self.limits()));
        scheme.watermarks = Some(self.watermarks);
        if self.skip_anon {
            scheme.filters.push(Filter {
                kind: FilterKind::Anon,
                matching: true,
                allow: false,
            });
        }
        Ok(Monitor::new(profile, attrs, &[target], vec![scheme], seed)?)
    }

    fn limits(&self) -> Limits {
        let mut goals = Vec::new();
        if self.quota_mem_pressure_us > 0 {
            goals.push(Goal::new(
                GoalMetric::SomeMemPsi,
                self.quota_mem_pressure_us,
            ));
        }
        if self.quota_autotune_feedback > 0 {
            let mut goal = Goal::new(GoalMetric::UserInput, BP);
            goal.current = self.quota_autotune_feedback;
            goals.push(goal);
        }
        Limits {
            ms: self.quota_ms,
            bytes: self.quota_bytes,
            reset_interval_ms: self.quota_reset_interval_ms,
            goals,
            weights: Weights {
                size: 0,
                nr_accesses: 0,
                age: 1,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::HotRange;
    use super::*;

    const TARGET: TargetId = TargetId(0);

    #[test]
    fn it_reclaims_what_is_idle_and_only_that() {
        let params = Params {
            min_age_us: 1_000_000,
            ..Params::default()
        };
        let mut monitor = params.monitor(Profile::V6_12, TARGET, 3).unwrap();
        let mut space = HotRange::new(20_000, 0..5_000);
        space.free_permille = 300;
        monitor.start(&mut space);
        for _ in 0..20 * 60 {
            monitor.wait(&space);
            monitor.prepare(&mut space);
            space.now_us += 5_000;
            monitor.check(&mut space);
        }
        let of_hot: u64 = space
            .applied
            .iter()
            .map(|&(_, first, pages)| (first + pages).min(5_000).saturating_sub(first))
            .sum();
        let all: u64 = space.applied.iter().map(|&(_, _, pages)| pages).sum();
        assert!(all > 10_000, "{all} pages reclaimed");
        assert!(of_hot * 100 < all, "{of_hot} of {all} were hot");
    }

    #[test]
    fn goals_filters_and_errors() {
        let params = Params {
            quota_mem_pressure_us: 500,
            quota_autotune_feedback: 8_000,
            skip_anon: true,
            ..Params::default()
        };
        let monitor = params.monitor(Profile::V7_2, TARGET, 1).unwrap();
        let scheme = &monitor.schemes()[0];
        assert_eq!(scheme.quota.limits.goals.len(), 2);
        assert_eq!(scheme.filters[0].kind, FilterKind::Anon);
        assert_eq!(scheme.pattern.age, 1200..=u32::MAX);
        let mut zero = Params::default();
        zero.monitoring.aggr_us = 0;
        assert_eq!(
            zero.monitor(Profile::V7_2, TARGET, 1).unwrap_err(),
            ParamsError::ZeroInterval("aggr_interval")
        );
    }
}
