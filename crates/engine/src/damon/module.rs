// SPDX-License-Identifier: Apache-2.0
//! What the two ready-made uses of DAMON have in common: monitoring parameters and their errors
//! (mm/damon/modules-common.h). Names and defaults are those of
//! `/sys/module/damon_{lru_sort,reclaim}/parameters/`.

use thiserror::Error;

use super::attrs::{Attrs, AttrsError, IntervalsGoal};
use super::monitor::Profile;

/// Parameters the kernel refuses with EINVAL.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ParamsError {
    /// See [`AttrsError`].
    #[error(transparent)]
    Attrs(#[from] AttrsError),
    /// An interval of no length.
    #[error("{0} is 0; give it in us")]
    ZeroInterval(&'static str),
    /// The monitored range is upside down.
    #[error("monitor_region_start {start} lies after monitor_region_end {end}")]
    Region {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// A share above the whole.
    #[error("{name} is {value}; it is given in 1/10000 and cannot exceed 10000")]
    Share {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: u64,
    },
    /// A parameter the kernel of the profile does not have.
    #[error("{name} does not exist before Linux 7.2; use the 7.2 profile")]
    Unknown {
        /// The parameter.
        name: &'static str,
    },
}

/// Parameters of the monitor behind a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Monitoring {
    /// `sample_interval`, us.
    pub sample_us: u64,
    /// `aggr_interval`, us.
    pub aggr_us: u64,
    /// `min_nr_regions`.
    pub min_nr_regions: u64,
    /// `max_nr_regions`.
    pub max_nr_regions: u64,
    /// `monitor_region_start` and `_end`; both 0 means all memory.
    pub region: (u64, u64),
    /// `autotune_monitoring_intervals` (7.2): starts from 5 ms and 100 ms whatever is set above.
    pub autotune: bool,
}

impl Default for Monitoring {
    fn default() -> Self {
        let attrs = Attrs::default();
        Monitoring {
            sample_us: attrs.sample_us,
            aggr_us: attrs.aggr_us,
            min_nr_regions: attrs.min_nr_regions,
            max_nr_regions: attrs.max_nr_regions,
            region: (0, 0),
            autotune: false,
        }
    }
}

impl Monitoring {
    /// The attributes of the monitor.
    ///
    /// # Errors
    /// What both modules refuse.
    pub(super) fn attrs(&self, profile: Profile) -> Result<Attrs, ParamsError> {
        let (start, end) = self.region;
        if start > end {
            return Err(ParamsError::Region { start, end });
        }
        if self.autotune && profile == Profile::V6_12 {
            return Err(ParamsError::Unknown {
                name: "autotune_monitoring_intervals",
            });
        }
        let mut attrs = Attrs {
            sample_us: self.sample_us,
            aggr_us: self.aggr_us,
            // Both modules refresh their ranges with every sample.
            ops_update_us: 0,
            min_nr_regions: self.min_nr_regions,
            max_nr_regions: self.max_nr_regions,
            tune: None,
        };
        if self.autotune {
            attrs.sample_us = 5_000;
            attrs.aggr_us = 100_000;
            attrs.tune = Some(IntervalsGoal {
                access_bp: 40,
                aggrs: 3,
                min_sample_us: 5_000,
                max_sample_us: 10_000_000,
            });
        }
        attrs.validate()?;
        Ok(attrs)
    }
}
