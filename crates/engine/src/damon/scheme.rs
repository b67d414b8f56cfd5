// SPDX-License-Identifier: Apache-2.0
//! Schemes: what to do with regions of an access pattern (`struct damos`).

use std::ops::RangeInclusive;

use super::quota::Quota;
use super::region::Region;
use super::space::TargetId;

/// What a scheme does with a region that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Counts only.
    Stat,
    /// Reclaims now.
    Pageout,
    /// Raises its place in the LRU lists.
    LruPrio,
    /// Lowers its place in the LRU lists.
    LruDeprio,
    /// `MADV_COLD`.
    Cold,
    /// `MADV_WILLNEED`.
    Willneed,
}

impl Action {
    /// Whether the action wants the hottest regions first, the coldest, or does not care.
    #[must_use]
    pub fn wants(self) -> Wanted {
        match self {
            Action::LruPrio => Wanted::Hot,
            Action::Pageout | Action::LruDeprio => Wanted::Cold,
            Action::Stat | Action::Cold | Action::Willneed => Wanted::Any,
        }
    }
}

/// Which regions come first when a quota cannot take all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Hot ones.
    Hot,
    /// Cold ones.
    Cold,
    /// All the same.
    Any,
}

/// The regions a scheme is for; all bounds inclusive (`struct damos_access_pattern`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessPattern {
    /// Size in bytes.
    pub size_bytes: RangeInclusive<u64>,
    /// Accesses an aggregation.
    pub nr_accesses: RangeInclusive<u32>,
    /// Age in aggregations.
    pub age: RangeInclusive<u32>,
}

impl AccessPattern {
    /// Whether a region fits. The access rate is that of the moving sum, so that a scheme may act
    /// in the middle of an aggregation.
    #[must_use]
    pub fn fits(&self, region: &Region) -> bool {
        let rate = u32::try_from(region.nr_accesses_bp / super::region::BP).unwrap_or(u32::MAX);
        self.size_bytes.contains(&region.size())
            && self.nr_accesses.contains(&rate)
            && self.age.contains(&region.age)
    }
}

/// What a filter looks at. The first two are decided by the monitor ("core"), the rest page by page
/// by the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterKind {
    /// Addresses `start..end`.
    Address(u64, u64),
    /// A target.
    Target(TargetId),
    /// Anonymous pages.
    Anon,
    /// Pages accessed since the last look; testing makes them old.
    Young,
    /// Pages on an active list (7.2).
    Active,
}

impl FilterKind {
    /// Whether the monitor itself decides.
    #[must_use]
    pub fn is_core(self) -> bool {
        matches!(self, FilterKind::Address(..) | FilterKind::Target(_))
    }
}

/// A filter (`struct damos_filter`): the first one that matches decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// What it looks at.
    pub kind: FilterKind,
    /// Whether it speaks of what matches the kind, or of what does not.
    pub matching: bool,
    /// Whether that is let through (7.2) or kept out.
    pub allow: bool,
}

/// When a scheme is active (`struct damos_watermarks`), in 1/1000 of free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Time between two checks while inactive.
    pub interval_us: u64,
    /// Above: inactive.
    pub high: u64,
    /// At or below: becomes active.
    pub mid: u64,
    /// Below: inactive, memory is too short for this.
    pub low: u64,
}

impl Watermarks {
    /// The state after a look at the metric; `None` when it has to wait, `Some(())` when active.
    #[must_use]
    pub fn active(&self, was_active: bool, free_permille: u64) -> bool {
        if free_permille > self.high || free_permille < self.low {
            return false;
        }
        was_active || free_permille < self.mid
    }
}

/// What a scheme did so far (`struct damos_stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Regions it was tried on.
    pub nr_tried: u64,
    /// Their bytes.
    pub sz_tried: u64,
    /// Regions it was carried out on.
    pub nr_applied: u64,
    /// Bytes it was carried out on.
    pub sz_applied: u64,
    /// Bytes that passed the page filters.
    pub sz_ops_filter_passed: u64,
    /// Quota windows that ended full.
    pub qt_exceeds: u64,
}

/// A scheme.
#[derive(Clone, Debug)]
pub struct Scheme {
    /// The regions it is for.
    pub pattern: AccessPattern,
    /// What it does.
    pub action: Action,
    /// Time between two applications; 0 means once an aggregation.
    pub apply_interval_us: u64,
    /// How much it may do.
    pub quota: Quota,
    /// When it is active; `None` means always.
    pub watermarks: Option<Watermarks>,
    /// What it leaves out.
    pub filters: Vec<Filter>,
    /// What it did.
    pub stats: Stats,
    /// Whether its watermarks let it run.
    pub active: bool,
}

impl Scheme {
    /// A scheme that always runs and has done nothing yet.
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

    /// Whether the monitor's own filters keep out a region that lies wholly inside or outside of
    /// every address filter.
    pub(super) fn core_rejects(&self, target: TargetId, region: &Region) -> bool {
        for filter in self.filters.iter().filter(|filter| filter.kind.is_core()) {
            let of_kind = match filter.kind {
                FilterKind::Target(wanted) => wanted == target,
                FilterKind::Address(start, end) => start <= region.start && region.end <= end,
                FilterKind::Anon | FilterKind::Young | FilterKind::Active => false,
            };
            if of_kind == filter.matching {
                return !filter.allow;
            }
        }
        self.rejects_by_default()
    }

    /// The core default: what no core filter speaks of is kept out when the last one lets its own
    /// through, unless page filters are still to be asked.
    fn rejects_by_default(&self) -> bool {
        if self.filters.iter().any(|filter| !filter.kind.is_core()) {
            return false;
        }
        self.filters.last().is_some_and(|filter| filter.allow)
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
        // From above: inactive until free memory falls under mid.
        assert!(!marks.active(false, 201));
        assert!(!marks.active(false, 150));
        assert!(marks.active(false, 149));
        // Once active it stays so up to high.
        assert!(marks.active(true, 200));
        assert!(!marks.active(true, 201));
        // Too little memory: off.
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

    #[test]
    fn the_first_core_filter_that_matches_decides() {
        let quota = Quota::unlimited();
        let pattern = AccessPattern {
            size_bytes: 0..=u64::MAX,
            nr_accesses: 0..=0,
            age: 0..=u32::MAX,
        };
        let mut scheme = Scheme::new(pattern, Action::Stat, quota);
        let region = Region::new(4096, 8192);
        let target = TargetId(0);
        assert!(
            !scheme.core_rejects(target, &region),
            "no filter lets everything through"
        );
        let inside = FilterKind::Address(0, 8192);
        scheme.filters = vec![Filter {
            kind: inside,
            matching: true,
            allow: true,
        }];
        assert!(!scheme.core_rejects(target, &region));
        assert!(
            scheme.core_rejects(target, &Region::new(8192, 12288)),
            "allow keeps out the rest"
        );
        scheme.filters.push(Filter {
            kind: FilterKind::Anon,
            matching: true,
            allow: false,
        });
        assert!(
            !scheme.core_rejects(target, &Region::new(8192, 12288)),
            "pages are still asked"
        );
        scheme.filters = vec![Filter {
            kind: inside,
            matching: false,
            allow: false,
        }];
        assert!(scheme.core_rejects(target, &Region::new(8192, 12288)));
    }
}
