// SPDX-License-Identifier: Apache-2.0
//! Filters of schemes (`struct damos_filter`): pages that a scheme leaves alone. Of the kernel's
//! kinds there are those that its modules set, all of which reject and are evaluated page by page.

use super::action::Action;

/// What a filter checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterKind {
    /// Anonymous pages.
    Anon,
    /// Pages accessed since the last check; testing makes them old.
    Young,
}

/// A filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// What it checks.
    pub kind: FilterKind,
    /// Whether it rejects what matches the kind or everything else.
    pub matching: bool,
}

impl Filter {
    /// A filter that rejects what matches the kind (`matching`), or everything else.
    #[must_use]
    pub fn reject(kind: FilterKind, matching: bool) -> Filter {
        Filter { kind, matching }
    }
}

/// The filters that a space applies page by page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageFilters {
    /// In the order in which they are checked.
    pub list: Vec<Filter>,
}

impl PageFilters {
    /// The filters of a scheme. Reclaim gets a final one against young pages unless the scheme has
    /// its own (`damon_pa_pageout`).
    #[must_use]
    pub fn of(action: Action, filters: &[Filter]) -> PageFilters {
        let mut list = filters.to_vec();
        let has_young = list.iter().any(|filter| filter.kind == FilterKind::Young);
        if action == Action::Pageout && !has_young {
            list.push(Filter::reject(FilterKind::Young, true));
        }
        PageFilters { list }
    }

    /// Whether a page passes; `is` returns whether it is of a kind. Kinds after the rejecting one
    /// are not queried, since querying [`FilterKind::Young`] makes a page old.
    pub fn passes(&self, mut is: impl FnMut(FilterKind) -> bool) -> bool {
        let rejects = |filter: &Filter| is(filter.kind) == filter.matching;
        !self.list.iter().any(rejects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaim_never_takes_young_pages_unasked() {
        let pages = PageFilters::of(Action::Pageout, &[]);
        assert!(!pages.passes(|kind| kind == FilterKind::Young));
        assert!(pages.passes(|_| false));
        assert!(PageFilters::of(Action::Cold, &[]).list.is_empty());
        let own = [Filter::reject(FilterKind::Young, false)];
        let pages = PageFilters::of(Action::Pageout, &own);
        assert!(pages.passes(|_| true), "the scheme wants young pages");
    }

    #[test]
    fn kinds_after_the_one_that_decides_are_not_asked() {
        let filters = [
            Filter::reject(FilterKind::Anon, true),
            Filter::reject(FilterKind::Young, true),
        ];
        let pages = PageFilters::of(Action::LruDeprio, &filters);
        let mut asked = Vec::new();
        pages.passes(|kind| {
            asked.push(kind);
            true
        });
        assert_eq!(asked, [FilterKind::Anon]);
    }
}
