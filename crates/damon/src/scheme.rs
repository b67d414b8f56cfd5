// SPDX-License-Identifier: Apache-2.0
//! Schemes: actions for regions with a given access pattern (`struct damos`).

use std::ops::RangeInclusive;

use super::action::Action;
use super::filter::Filter;
use super::quota::Quota;
use super::region::Region;

/// The regions that a scheme applies to; all bounds are inclusive (`struct damos_access_pattern`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessPattern {
    /// Size in bytes.
    pub size_bytes: RangeInclusive<u64>,
    /// Accesses per aggregation.
    pub nr_accesses: RangeInclusive<u32>,
    /// Age in aggregations.
    pub age: RangeInclusive<u32>,
}

impl AccessPattern {
    /// Whether a region matches. The access rate is taken from the moving sum, so that a scheme may
    /// be applied in the middle of an aggregation.
    #[must_use]
    pub fn fits(&self, region: &Region) -> bool {
        let rate = u32::try_from(region.nr_accesses_bp / super::region::BP).unwrap_or(u32::MAX);
        self.size_bytes.contains(&region.size())
            && self.nr_accesses.contains(&rate)
            && self.age.contains(&region.age)
    }
}

/// When a scheme is active (`struct damos_watermarks`), in 1/1000 of memory free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Time between two checks while inactive.
    pub interval_us: u64,
    /// Inactive above this.
    pub high: u64,
    /// Becomes active at or below this.
    pub mid: u64,
    /// Inactive below this, since memory is too short.
    pub low: u64,
}

impl Watermarks {
    /// The state after checking the metric: `Some(())` if active, `None` if the scheme has to wait.
    #[must_use]
    pub fn active(&self, was_active: bool, free_permille: u64) -> bool {
        if free_permille > self.high || free_permille < self.low {
            return false;
        }
        was_active || free_permille < self.mid
    }
}

/// Statistics of a scheme (`struct damos_stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Regions it was tried on.
    pub nr_tried: u64,
    /// Bytes of these regions.
    pub sz_tried: u64,
    /// Regions it was applied to.
    pub nr_applied: u64,
    /// Bytes it was applied to.
    pub sz_applied: u64,
    /// Bytes that passed the page filters.
    pub sz_ops_filter_passed: u64,
    /// Quota windows that ended full.
    pub qt_exceeds: u64,
}

/// A scheme.
#[derive(Clone, Debug)]
pub struct Scheme {
    /// The regions it applies to.
    pub pattern: AccessPattern,
    /// Its action.
    pub action: Action,
    /// Time between two applications; 0 means once per aggregation.
    pub apply_interval_us: u64,
    /// Its quota.
    pub quota: Quota,
    /// When it is active; `None` means always.
    pub watermarks: Option<Watermarks>,
    /// Its filters.
    pub filters: Vec<Filter>,
    /// Its statistics.
    pub stats: Stats,
    /// Whether its watermarks allow it to run.
    pub active: bool,
}

impl Scheme {
    /// A scheme that is always active, with empty statistics.
    #[must_use]
    pub fn new(pattern: AccessPattern, action: Action, quota: Quota) -> Scheme {
        Scheme {
            pattern,
            action,
            apply_interval_us: 0,
            quota,
            watermarks: None,
            filters: Vec::new(),
            stats: Stats::default(),
            active: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_have_hysteresis() {
        let marks = Watermarks {
            interval_us: 5_000_000,
            high: 200,
            mid: 150,
            low: 50,
        };
        // Coming from above: inactive until free memory falls to mid.
        assert!(!marks.active(false, 201));
        assert!(!marks.active(false, 150));
        assert!(marks.active(false, 149));
        // Once active, it stays active up to high.
        assert!(marks.active(true, 200));
        assert!(!marks.active(true, 201));
        // Too little memory: inactive.
        assert!(!marks.active(true, 49));
    }

    #[test]
    fn pattern_bounds_are_inclusive() {
        let pattern = AccessPattern {
            size_bytes: 4096..=8192,
            nr_accesses: 0..=0,
            age: 10..=u32::MAX,
        };
        let mut region = Region::new(0, 8192);
        region.age = 10;
        assert!(pattern.fits(&region));
        region.nr_accesses_bp = 9_999;
        assert!(pattern.fits(&region), "less than one access counts as none");
        region.nr_accesses_bp = 10_000;
        assert!(!pattern.fits(&region));
        assert!(!pattern.fits(&Region {
            age: 9,
            ..Region::new(0, 8192)
        }));
        assert!(!pattern.fits(&Region {
            age: 10,
            ..Region::new(0, 12288)
        }));
    }
}
