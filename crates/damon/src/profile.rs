// SPDX-License-Identifier: Apache-2.0
//! Kernel profiles: all differences between versions, as data. Nothing else in this crate depends
//! on a version.

/// The rules of a kernel that the monitor and its schemes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Profile {
    /// The kernel version.
    pub name: &'static str,
    /// The first regions of physical memory are also split to the size limit.
    pub limits_first_regions: bool,
    /// Regions are split to the size limit after each merge.
    pub limits_merged_regions: bool,
    /// The size limit is rounded up to whole granules, not down.
    pub rounds_limit_up: bool,
    /// Intervals can be tuned towards a goal, at each aggregation.
    pub tunes_intervals: bool,
    /// A region that was split for a scheme is merged again after the scheme was applied.
    pub rejoins_regions: bool,
    /// A quota needs room for a whole smallest region.
    pub quota_is_exact: bool,
    /// Weights of accesses and age in the scores of `lru_sort`, unless given.
    pub sort_weights: (u32, u32),
    /// The parameters introduced with self-tuning exist.
    pub has_tuning_params: bool,
    /// `commit_inputs` is refused if the module was never started, instead of being read later.
    pub refuses_early_commit: bool,
    /// The folio lock is tried for all mapped folios, not only for file folios.
    pub locks_anon_folios: bool,
    /// An action handles a folio that spans two regions only once.
    pub remembers_last_folio: bool,
    /// `stat` checks pages if there are filters for them.
    pub stat_applies_filters: bool,
    /// `lru_prio` activates a folio at once; otherwise it counts as one access.
    pub prio_activates: bool,
}

impl Profile {
    /// Linux 6.12.
    pub const V6_12: Profile = Profile {
        name: "6.12",
        limits_first_regions: false,
        limits_merged_regions: false,
        rounds_limit_up: false,
        tunes_intervals: false,
        rejoins_regions: false,
        quota_is_exact: false,
        sort_weights: (1, 0),
        has_tuning_params: false,
        refuses_early_commit: false,
        locks_anon_folios: false,
        remembers_last_folio: false,
        stat_applies_filters: false,
        prio_activates: false,
    };

    /// Linux 7.2.
    pub const V7_2: Profile = Profile {
        name: "7.2",
        limits_first_regions: true,
        limits_merged_regions: true,
        rounds_limit_up: true,
        tunes_intervals: true,
        rejoins_regions: true,
        quota_is_exact: true,
        sort_weights: (1, 1),
        has_tuning_params: true,
        refuses_early_commit: true,
        locks_anon_folios: true,
        remembers_last_folio: true,
        stat_applies_filters: true,
        prio_activates: true,
    };
}
