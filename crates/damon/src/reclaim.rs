// SPDX-License-Identifier: Apache-2.0
//! Proactive reclaim with DAMON (mm/damon/reclaim.c): pages out regions that were idle for long.

use super::action::Action;
use super::attrs::Attrs;
use super::filter::{Filter, FilterKind};
use super::goal::{Goal, GoalMetric};
use super::module::{Common, Module, number_param, switch_param};
use super::params::{Param, ParamsError, SWITCH, number, put, switch, yes_no};
use super::profile::Profile;
use super::quota::{Limits, Quota};
use super::region::BP;
use super::scheme::{AccessPattern, Scheme};
use super::score::Weights;

/// Parameters of `DAMON_RECLAIM`, with the kernel's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Parameters common to both modules.
    pub common: Common,
    /// `min_age` in us.
    pub min_age_us: u64,
    /// `quota_sz` in bytes.
    pub quota_bytes: u64,
    /// `quota_mem_pressure_us`: target stall per window; 0 is off.
    pub quota_mem_pressure_us: u64,
    /// `quota_autotune_feedback`: an external score, 10000 when satisfied; 0 is off.
    pub quota_autotune_feedback: u64,
    /// `skip_anon`.
    pub skip_anon: bool,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            common: Common::new(500, 400, 200),
            min_age_us: 120_000_000,
            quota_bytes: 128 << 20,
            quota_mem_pressure_us: 0,
            quota_autotune_feedback: 0,
            skip_anon: false,
        }
    }
}

impl Module for Params {
    const NAME: &'static str = "reclaim";

    const OWN: &'static [Param<Params>] = &[
        number_param!("min_age" => min_age_us, "microseconds from 0 to 2^64-1",
            "reclaim memory idle for this long, us (120000000)"),
        number_param!("quota_sz" => quota_bytes, "bytes from 0 to 2^64-1",
            "bytes per window it may try; 0: no limit (134217728)"),
        number_param!("quota_mem_pressure_us" => quota_mem_pressure_us,
            "microseconds from 0 to 2^64-1",
            "target stall per window for tuning the quota, us; 0: off (0)"),
        number_param!("quota_autotune_feedback" => quota_autotune_feedback,
            "ten-thousandths from 0 to 2^64-1",
            "score fed to the quota, 10000 when satisfied; 0: off (0)"),
        switch_param!("skip_anon" => skip_anon, "leave anonymous memory alone (N)"),
    ];

    const READ_ONLY: &'static [&'static str] = &[
        "kdamond_pid",
        "nr_reclaim_tried_regions",
        "bytes_reclaim_tried_regions",
        "nr_reclaimed_regions",
        "bytes_reclaimed_regions",
        "nr_quota_exceeds",
    ];

    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn schemes(&self, profile: Profile) -> Result<(Attrs, Vec<Scheme>), ParamsError> {
        if self.common.aggr_us == 0 {
            let given = [("aggr_interval", 0)];
            let reason = "it must be at least 1 and at least sample_interval (us)";
            return Err(ParamsError::invalid(&given, reason));
        }
        let attrs = self.common.attrs(profile)?;
        let age = u32::try_from(self.min_age_us / attrs.aggr_us.max(1)).unwrap_or(u32::MAX);
        let pattern = AccessPattern {
            size_bytes: attrs.min_region_bytes..=u64::MAX,
            nr_accesses: 0..=0,
            age: age..=u32::MAX,
        };
        let mut scheme = Scheme::new(pattern, Action::Pageout, Quota::new(self.limits()));
        scheme.watermarks = Some(self.common.watermarks);
        if self.skip_anon {
            let filter = Filter::reject(FilterKind::Anon, true);
            scheme.filters.push(filter);
        }
        Ok((attrs, vec![scheme]))
    }
}

impl Params {
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
            ms: self.common.quota_ms,
            bytes: self.quota_bytes,
            reset_interval_ms: self.common.quota_reset_interval_ms,
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
    use super::super::target::TargetId;
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
    }
}
