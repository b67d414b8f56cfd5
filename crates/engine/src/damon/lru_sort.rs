// SPDX-License-Identifier: Apache-2.0
//! Proactive LRU sorting (mm/damon/lru_sort.c): hot regions up, long idle ones down, so that the
//! kernel's own reclaim meets the right pages first.

use super::module::{Monitoring, ParamsError};
use super::monitor::{Monitor, Profile};
use super::quota::{Goal, GoalMetric, Limits, Quota, Weights};
use super::region::BP;
use super::scheme::{AccessPattern, Action, Filter, FilterKind, Scheme, Watermarks};
use super::space::TargetId;

/// Parameters of `DAMON_LRU_SORT`, with the kernel's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The monitor behind it.
    pub monitoring: Monitoring,
    /// `hot_thres_access_freq`: accessed in at least this share of looks, in 1/1000.
    pub hot_freq_permille: u64,
    /// `cold_min_age`, us.
    pub cold_min_age_us: u64,
    /// `quota_ms`: time both schemes together may take in a window.
    pub quota_ms: u64,
    /// `quota_reset_interval_ms`.
    pub quota_reset_interval_ms: u64,
    /// `wmarks_*`.
    pub watermarks: Watermarks,
    /// `active_mem_bp` (7.2): wanted share of active memory; 0 is off.
    pub active_mem_bp: u64,
    /// `filter_young_pages` (7.2).
    pub filter_young_pages: bool,
    /// Weights of rate and age in the priorities of the hot and of the cold scheme; `None` takes
    /// the profile's (6.12: 1, 0 for both; 7.2: 1, 1 for both). The document this comes from has
    /// (1, 0) for hot and (0, 1) for cold.
    pub weights: Option<(Weights, Weights)>,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            monitoring: Monitoring::default(),
            hot_freq_permille: 500,
            cold_min_age_us: 120_000_000,
            quota_ms: 10,
            quota_reset_interval_ms: 1000,
            watermarks: Watermarks {
                interval_us: 5_000_000,
                high: 200,
                mid: 150,
                low: 50,
            },
            active_mem_bp: 0,
            filter_young_pages: false,
            weights: None,
        }
    }
}

/// Position of the hot scheme among the monitor's schemes.
pub const HOT: usize = 0;

/// Position of the cold scheme among the monitor's schemes.
pub const COLD: usize = 1;

impl Params {
    /// The monitor with its hot and its cold scheme.
    ///
    /// # Errors
    /// What the module refuses with EINVAL, and parameters the profile's kernel does not have.
    pub fn monitor(
        &self,
        profile: Profile,
        target: TargetId,
        seed: u64,
    ) -> Result<Monitor, ParamsError> {
        if self.monitoring.sample_us == 0 {
            return Err(ParamsError::ZeroInterval("sample_interval"));
        }
        let attrs = self.monitoring.attrs(profile)?;
        self.check_profile(profile)?;
        let hot_min = u128::from(attrs.max_nr_accesses()) * u128::from(self.hot_freq_permille);
        let hot_min = u32::try_from(hot_min / 1000).unwrap_or(u32::MAX);
        let cold_age = self.cold_min_age_us / attrs.aggr_us.max(1);
        let cold_age = u32::try_from(cold_age).unwrap_or(u32::MAX);
        let size_bytes = 4096..=u64::MAX;
        let hot = AccessPattern {
            size_bytes: size_bytes.clone(),
            nr_accesses: hot_min..=u32::MAX,
            age: 0..=u32::MAX,
        };
        let cold = AccessPattern {
            size_bytes,
            nr_accesses: 0..=0,
            age: cold_age..=u32::MAX,
        };
        let (hot_weights, cold_weights) = self.weights_of(profile);
        let hot = self.scheme(hot, Action::LruPrio, hot_weights);
        let cold = self.scheme(cold, Action::LruDeprio, cold_weights);
        Ok(Monitor::new(
            profile,
            attrs,
            &[target],
            vec![hot, cold],
            seed,
        )?)
    }

    fn check_profile(&self, profile: Profile) -> Result<(), ParamsError> {
        if self.active_mem_bp > BP {
            return Err(ParamsError::Share {
                name: "active_mem_bp",
                value: self.active_mem_bp,
            });
        }
        let name = match self {
            Params {
                active_mem_bp: 1.., ..
            } => "active_mem_bp",
            Params {
                filter_young_pages: true,
                ..
            } => "filter_young_pages",
            _ => return Ok(()),
        };
        if profile == Profile::V6_12 {
            Err(ParamsError::Unknown { name })
        } else {
            Ok(())
        }
    }

    fn weights_of(&self, profile: Profile) -> (Weights, Weights) {
        let of = |age| Weights {
            size: 0,
            nr_accesses: 1,
            age,
        };
        self.weights.unwrap_or(match profile {
            Profile::V6_12 => (of(0), of(0)),
            Profile::V7_2 => (of(1), of(1)),
        })
    }

    fn scheme(&self, pattern: AccessPattern, action: Action, weights: Weights) -> Scheme {
        let hot = action == Action::LruPrio;
        let mut limits = Limits {
            // Half each. The kernel turns an odd ms into less and 1 into "no limit": round up.
            ms: self.quota_ms.div_ceil(2),
            reset_interval_ms: self.quota_reset_interval_ms,
            weights,
            ..Limits::default()
        };
        if self.active_mem_bp > 0 {
            let goal = if hot {
                Goal::new(GoalMetric::ActiveMem, self.active_mem_bp)
            } else {
                Goal::new(GoalMetric::InactiveMem, BP - self.active_mem_bp + 2)
            };
            limits.goals.push(goal);
        }
        let mut scheme = Scheme::new(pattern, action, Quota::new(limits));
        scheme.watermarks = Some(self.watermarks);
        if self.filter_young_pages {
            // Hot keeps out what is not young, cold what is.
            scheme.filters.push(Filter {
                kind: FilterKind::Young,
                matching: !hot,
                allow: false,
            });
        }
        scheme
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::HotRange;
    use super::*;

    const TARGET: TargetId = TargetId(0);

    #[test]
    fn defaults_translate_as_in_the_kernel() {
        let monitor = Params::default().monitor(Profile::V7_2, TARGET, 1).unwrap();
        let [hot, cold] = monitor.schemes() else {
            panic!("two schemes")
        };
        assert_eq!(hot.pattern.nr_accesses, 10..=u32::MAX);
        assert_eq!(cold.pattern.age, 1200..=u32::MAX);
        assert_eq!((hot.quota.limits.ms, cold.quota.limits.ms), (5, 5));
    }

    #[test]
    fn a_quota_of_one_ms_stays_a_limit() {
        let params = Params {
            quota_ms: 1,
            ..Params::default()
        };
        let monitor = params.monitor(Profile::V7_2, TARGET, 1).unwrap();
        assert!(
            monitor
                .schemes()
                .iter()
                .all(|scheme| scheme.quota.limits.ms == 1)
        );
    }

    #[test]
    fn what_the_kernel_refuses_is_refused() {
        let with = |change: fn(&mut Params)| {
            let mut params = Params::default();
            change(&mut params);
            params
        };
        let new = |params: Params| params.monitor(Profile::V7_2, TARGET, 1).unwrap_err();
        assert_eq!(
            new(with(|p| p.monitoring.sample_us = 0)),
            ParamsError::ZeroInterval("sample_interval")
        );
        assert!(matches!(
            new(with(|p| p.monitoring.sample_us = 200_000)),
            ParamsError::Attrs(_)
        ));
        assert!(matches!(
            new(with(|p| p.monitoring.min_nr_regions = 2)),
            ParamsError::Attrs(_)
        ));
        assert_eq!(
            new(with(|p| p.monitoring.region = (2, 1))),
            ParamsError::Region { start: 2, end: 1 }
        );
        assert!(matches!(
            new(with(|p| p.active_mem_bp = 10_001)),
            ParamsError::Share { .. }
        ));
        let young = with(|p| p.filter_young_pages = true);
        assert_eq!(
            young.monitor(Profile::V6_12, TARGET, 1).unwrap_err(),
            ParamsError::Unknown {
                name: "filter_young_pages"
            }
        );
    }

    #[test]
    fn it_raises_the_hot_range_and_lowers_the_idle_rest() {
        let params = Params {
            cold_min_age_us: 500_000,
            ..Params::default()
        };
        let mut monitor = params.monitor(Profile::V7_2, TARGET, 1).unwrap();
        let mut space = HotRange::new(10_000, 2_000..4_000);
        monitor.start(&mut space);
        for _ in 0..20 * 60 {
            monitor.wait(&space);
            monitor.prepare(&mut space);
            space.now_us += 5_000;
            monitor.check(&mut space);
        }
        let (mut raised, mut lowered) = (vec![false; 10_000], vec![false; 10_000]);
        for &(action, first, pages) in &space.applied {
            let range = first as usize..(first + pages) as usize;
            match action {
                Action::LruPrio => raised[range].fill(true),
                _ => lowered[range].fill(true),
            }
        }
        let count = |pages: &[bool]| pages.iter().filter(|&&page| page).count();
        assert!(count(&raised[2_000..4_000]) > 1_900);
        assert!(count(&lowered[..1_500]) + count(&lowered[4_500..]) > 6_000);
    }
}
