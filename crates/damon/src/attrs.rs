// SPDX-License-Identifier: Apache-2.0
//! Intervals and region limits of a monitor (`struct damon_attrs`).

use thiserror::Error;

/// Smallest region of the default address unit, in bytes (`DAMON_MIN_REGION`).
pub const PAGE_BYTES: u64 = 4096;

/// Monitoring attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attrs {
    /// Time between two checks of a region's sampled page.
    pub sample_us: u64,
    /// Time over which checks are aggregated.
    pub aggr_us: u64,
    /// Time between two refreshes of the monitored ranges.
    pub ops_update_us: u64,
    /// Minimum number of regions, at least 3.
    pub min_nr_regions: u64,
    /// Maximum number of regions.
    pub max_nr_regions: u64,
    /// Automatic tuning of the two intervals, if enabled (7.2).
    pub tune: Option<IntervalsGoal>,
    /// Smallest region, and the alignment of all regions, in bytes. A page, unless the unit of
    /// addresses is larger (7.2).
    pub min_region_bytes: u64,
}

/// Goal of the automatic interval tuning (`struct damon_intervals_goal`, since 6.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalsGoal {
    /// Wanted share of observed access events, in 1/10000.
    pub access_bp: u64,
    /// Aggregations between two adjustments; not 0.
    pub aggrs: u64,
    /// Lower bound of the sampling interval.
    pub min_sample_us: u64,
    /// Upper bound of the sampling interval.
    pub max_sample_us: u64,
}

/// Attributes that the kernel refuses with EINVAL.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AttrsError {
    /// With fewer than three regions nothing can be distinguished.
    #[error("min_nr_regions is {0}; it must be from 3 to max_nr_regions")]
    TooFewRegions(u64),
    /// The bounds on the number of regions cross.
    #[error("min_nr_regions {min} is greater than max_nr_regions {max}; both are at least 3")]
    RegionBounds {
        /// Lower bound.
        min: u64,
        /// Upper bound.
        max: u64,
    },
    /// Sampling would be less frequent than aggregation.
    #[error(
        "sampling interval {sample_us} us is longer than aggregation interval {aggr_us} us; \
         it may be at most as long"
    )]
    SampleOverAggr {
        /// Sampling interval.
        sample_us: u64,
        /// Aggregation interval.
        aggr_us: u64,
    },
    /// The sampling interval is outside the bounds of its own tuning.
    #[error("sampling interval {sample_us} us is not within the tuning goal's {min}..={max} us")]
    OutsideGoal {
        /// Sampling interval.
        sample_us: u64,
        /// Goal's lower bound.
        min: u64,
        /// Goal's upper bound.
        max: u64,
    },
    /// The smallest region has no bytes.
    #[error("min_region_bytes is 0; a region holds at least a byte")]
    EmptyRegion,
}

impl Default for Attrs {
    /// The kernel's defaults: 5 ms, 100 ms, 60 s, 10 to 1000 regions, no tuning.
    fn default() -> Self {
        Attrs {
            sample_us: 5_000,
            aggr_us: 100_000,
            ops_update_us: 60_000_000,
            min_nr_regions: 10,
            max_nr_regions: 1_000,
            tune: None,
            min_region_bytes: PAGE_BYTES,
        }
    }
}

impl Attrs {
    /// Validates as `damon_set_attrs` does.
    ///
    /// # Errors
    /// The first violated rule, in the kernel's order.
    pub fn validate(&self) -> Result<(), AttrsError> {
        if let Some(goal) = self.tune.filter(|goal| goal.aggrs != 0) {
            let (min, max) = (goal.min_sample_us, goal.max_sample_us);
            if min > max || !(min..=max).contains(&self.sample_us) {
                return Err(AttrsError::OutsideGoal {
                    sample_us: self.sample_us,
                    min,
                    max,
                });
            }
        }
        if self.min_region_bytes == 0 {
            return Err(AttrsError::EmptyRegion);
        }
        if self.min_nr_regions < 3 {
            return Err(AttrsError::TooFewRegions(self.min_nr_regions));
        }
        if self.min_nr_regions > self.max_nr_regions {
            return Err(AttrsError::RegionBounds {
                min: self.min_nr_regions,
                max: self.max_nr_regions,
            });
        }
        if self.sample_us > self.aggr_us {
            return Err(AttrsError::SampleOverAggr {
                sample_us: self.sample_us,
                aggr_us: self.aggr_us,
            });
        }
        Ok(())
    }

    /// The largest number of accesses in one aggregation: samples per aggregation, at least 1
    /// (`damon_max_nr_accesses`).
    #[must_use]
    pub fn max_nr_accesses(&self) -> u32 {
        let looks = self.aggr_us / self.sample_us.max(1);
        u32::try_from(looks).unwrap_or(u32::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_pass_and_count_twenty_looks() {
        let attrs = Attrs::default();
        assert_eq!(attrs.validate(), Ok(()));
        assert_eq!(attrs.max_nr_accesses(), 20);
    }

    #[test]
    fn each_rule_is_refused() {
        let base = Attrs::default();
        let few = Attrs {
            min_nr_regions: 2,
            ..base
        };
        assert_eq!(few.validate(), Err(AttrsError::TooFewRegions(2)));
        let crossed = Attrs {
            min_nr_regions: 11,
            max_nr_regions: 10,
            ..base
        };
        assert_eq!(
            crossed.validate(),
            Err(AttrsError::RegionBounds { min: 11, max: 10 })
        );
        let rare = Attrs {
            sample_us: 100_001,
            ..base
        };
        assert!(matches!(
            rare.validate(),
            Err(AttrsError::SampleOverAggr { .. })
        ));
        let goal = |aggrs| IntervalsGoal {
            access_bp: 40,
            aggrs,
            min_sample_us: 6_000,
            max_sample_us: 10_000,
        };
        let outside = Attrs {
            tune: Some(goal(3)),
            ..base
        };
        assert!(matches!(
            outside.validate(),
            Err(AttrsError::OutsideGoal { .. })
        ));
        // A goal without aggregations is disabled, so its bounds do not matter.
        assert_eq!(
            Attrs {
                tune: Some(goal(0)),
                ..base
            }
            .validate(),
            Ok(())
        );
    }

    #[test]
    fn a_zero_sampling_interval_counts_as_one() {
        let attrs = Attrs {
            sample_us: 0,
            aggr_us: 7,
            ..Attrs::default()
        };
        assert_eq!(attrs.max_nr_accesses(), 7);
        assert_eq!(
            Attrs {
                aggr_us: 0,
                ..attrs
            }
            .max_nr_accesses(),
            1
        );
    }
}
