// SPDX-License-Identifier: Apache-2.0
//! Filters of schemes (`struct damos_filter`): the first filter that matches decides.

use super::action::Action;
use super::region::Region;
use super::target::TargetId;

/// What a filter checks. The monitor itself evaluates the first two ("core" filters), the space
/// evaluates the others page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterKind {
    /// Addresses `start..end`.
    Address(u64, u64),
    /// A target.
    Target(TargetId),
    /// Anonymous pages.
    Anon,
    /// Pages charged to a memory cgroup, by the number the world gives it.
    Memcg(u32),
    /// Pages accessed since the last check; testing makes them old.
    Young,
    /// Pages on an active list (7.2).
    Active,
    /// Pages of a folio of this size in bytes, both bounds inclusive (7.2).
    HugepageSize(u64, u64),
    /// Pages that no page table maps (7.2).
    Unmapped,
}

impl FilterKind {
    /// Whether the monitor itself evaluates it.
    #[must_use]
    pub fn is_core(self) -> bool {
        matches!(self, FilterKind::Address(..) | FilterKind::Target(_))
    }
}

/// A filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// What it checks.
    pub kind: FilterKind,
    /// Whether it applies to what matches the kind or to everything else.
    pub matching: bool,
    /// Whether that is allowed (7.2) or rejected.
    pub allow: bool,
}

impl Filter {
    /// A filter that rejects what matches the kind (`matching`), or everything else.
    #[must_use]
    pub fn reject(kind: FilterKind, matching: bool) -> Filter {
        Filter {
            kind,
            matching,
            allow: false,
        }
    }
}

/// The decision of the core filters on a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Allowed without checking pages.
    Pass,
    /// Rejected.
    Reject,
    /// The page filters decide.
    AskPages,
}

/// The decision of the core filters on a region that is completely inside or outside of every
/// address filter. A region to which no filter applies is rejected if the last filter is an
/// allowing one, unless page filters are still to be checked.
#[must_use]
pub fn core_verdict(filters: &[Filter], target: TargetId, region: &Region) -> Verdict {
    let mut rest = Verdict::Pass;
    for filter in filters {
        let of_kind = match filter.kind {
            FilterKind::Target(wanted) => wanted == target,
            FilterKind::Address(start, end) => start <= region.start && region.end <= end,
            _ => continue,
        };
        if of_kind == filter.matching {
            return if filter.allow {
                Verdict::Pass
            } else {
                Verdict::Reject
            };
        }
        rest = if filter.allow {
            Verdict::Reject
        } else {
            Verdict::Pass
        };
    }
    if filters.iter().any(|filter| !filter.kind.is_core()) {
        Verdict::AskPages
    } else {
        rest
    }
}

/// The filters that a space applies page by page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageFilters {
    /// In the order in which they are checked.
    pub list: Vec<Filter>,
    /// Whether a page to which no filter applies is rejected.
    pub rejects_rest: bool,
}

impl PageFilters {
    /// The page filters of a scheme. Reclaim gets a final filter against young pages unless the
    /// scheme has its own (`damon_pa_pageout`); this does not change the default for other pages.
    #[must_use]
    pub fn of(action: Action, filters: &[Filter], verdict: Verdict) -> PageFilters {
        let mut list: Vec<Filter> = filters
            .iter()
            .copied()
            .filter(|filter| !filter.kind.is_core())
            .collect();
        let rejects_rest = list.last().is_some_and(|filter| filter.allow);
        if verdict == Verdict::Pass {
            list.clear();
        }
        let has_young = list.iter().any(|filter| filter.kind == FilterKind::Young);
        if action == Action::Pageout && !has_young {
            list.push(Filter::reject(FilterKind::Young, true));
        }
        PageFilters {
            list,
            rejects_rest: rejects_rest && verdict == Verdict::AskPages,
        }
    }

    /// Whether a page passes; `is` returns whether it is of a kind. Kinds after the deciding one
    /// are not queried, since querying [`FilterKind::Young`] makes a page old.
    pub fn passes(&self, mut is: impl FnMut(FilterKind) -> bool) -> bool {
        for filter in &self.list {
            if is(filter.kind) == filter.matching {
                return filter.allow;
            }
        }
        !self.rejects_rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: TargetId = TargetId(0);

    fn allow(kind: FilterKind) -> Filter {
        Filter {
            kind,
            matching: true,
            allow: true,
        }
    }

    #[test]
    fn the_first_core_filter_that_matches_decides() {
        let (inside, outside) = (Region::new(4096, 8192), Region::new(8192, 12288));
        let verdict = |filters: &[Filter], region| core_verdict(filters, TARGET, region);
        assert_eq!(verdict(&[], &inside), Verdict::Pass, "no filter at all");
        let range = FilterKind::Address(0, 8192);
        let mut filters = vec![allow(range)];
        assert_eq!(verdict(&filters, &inside), Verdict::Pass);
        assert_eq!(verdict(&filters, &outside), Verdict::Reject);
        filters.push(Filter::reject(FilterKind::Anon, true));
        assert_eq!(verdict(&filters, &outside), Verdict::AskPages);
        let keep_out = [Filter::reject(range, false)];
        assert_eq!(verdict(&keep_out, &inside), Verdict::Pass);
        assert_eq!(verdict(&keep_out, &outside), Verdict::Reject);
    }

    #[test]
    fn what_the_core_lets_through_skips_the_page_filters() {
        let filters = [
            allow(FilterKind::Address(0, 8192)),
            Filter::reject(FilterKind::Anon, true),
        ];
        let inside = Region::new(0, 8192);
        let verdict = core_verdict(&filters, TARGET, &inside);
        let pages = PageFilters::of(Action::LruPrio, &filters, verdict);
        assert!(
            pages.passes(|_| true),
            "an anonymous page, but allowed whole"
        );
        let pages = PageFilters::of(Action::LruPrio, &filters, Verdict::AskPages);
        assert!(!pages.passes(|kind| kind == FilterKind::Anon));
    }

    #[test]
    fn reclaim_never_takes_young_pages_unasked() {
        let pages = PageFilters::of(Action::Pageout, &[], Verdict::Pass);
        assert!(!pages.passes(|kind| kind == FilterKind::Young));
        assert!(pages.passes(|_| false));
        assert!(
            PageFilters::of(Action::Cold, &[], Verdict::Pass)
                .list
                .is_empty()
        );
        // Its temporary filter does not change the default that "allow anon" implies.
        let anon = [allow(FilterKind::Anon)];
        let pages = PageFilters::of(Action::Pageout, &anon, Verdict::AskPages);
        assert!(!pages.passes(|_| false), "neither anon nor young: the rest");
        let own = [Filter::reject(FilterKind::Young, false)];
        let pages = PageFilters::of(Action::Pageout, &own, Verdict::AskPages);
        assert!(pages.passes(|_| true), "the scheme wants young pages");
    }

    #[test]
    fn kinds_after_the_one_that_decides_are_not_asked() {
        let filters = [
            Filter::reject(FilterKind::Anon, true),
            Filter::reject(FilterKind::Young, true),
        ];
        let pages = PageFilters::of(Action::LruDeprio, &filters, Verdict::AskPages);
        let mut asked = Vec::new();
        pages.passes(|kind| {
            asked.push(kind);
            true
        });
        assert_eq!(asked, [FilterKind::Anon]);
    }
}
