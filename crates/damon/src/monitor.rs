// SPDX-License-Identifier: Apache-2.0
//! The monitor (mm/damon/core.c: `kdamond_fn`): checks one page per region and sample, sums up over
//! an aggregation, and splits and merges regions so that few of them separate hot from cold.
//!
//! The world drives it: `wait`, then `prepare`, then a pause of `attrs().sample_us`, then `check`.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::apply::Pass;
use super::attrs::{Attrs, AttrsError, IntervalsGoal};
use super::profile::Profile;
use super::region::{self, Region};
use super::scheme::Scheme;
use super::space::Space;
use super::target::{Target, TargetId, fit_ranges};

/// What the world must do before the next sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Sample now.
    Sample,
    /// All schemes are inactive because of their watermarks: call `wait` again after this time.
    /// Nothing is monitored meanwhile.
    Inactive {
        /// Time until the next check of the watermarks.
        interval_us: u64,
    },
}

/// A monitor with its schemes.
#[derive(Clone, Debug)]
pub struct Monitor {
    pub(super) profile: Profile,
    pub(super) attrs: Attrs,
    pub(super) targets: Vec<Target>,
    pub(super) schemes: Vec<Scheme>,
    pub(super) rng: Pcg64,
    /// Samples taken.
    pub(super) samples: u64,
    pub(super) next_aggr_sample: u64,
    pub(super) next_update_sample: u64,
    pub(super) next_tune_sample: u64,
    /// The next sample at which each scheme is due.
    pub(super) next_apply_sample: Vec<u64>,
    /// Largest region, in bytes. Splits and merges keep the total size, so it only changes with the
    /// ranges.
    pub(super) limit_bytes: u64,
    /// Ranges of each target when last read.
    pub(super) ranges: Vec<Vec<(u64, u64)>>,
    /// Regions before the last split. Separate for each monitor; the kernels share one variable.
    pub(super) last_nr_regions: usize,
    /// Samples per aggregation, which interval tuning preserves.
    pub(super) looks_kept: u64,
}

impl Monitor {
    /// A monitor over `targets`. `seed` decides every random choice.
    ///
    /// # Errors
    /// Attributes the kernel would refuse.
    pub fn new(
        profile: Profile,
        attrs: Attrs,
        targets: &[TargetId],
        schemes: Vec<Scheme>,
        seed: u64,
    ) -> Result<Monitor, AttrsError> {
        attrs.validate()?;
        let targets = targets
            .iter()
            .map(|&id| Target {
                id,
                regions: Vec::new(),
            })
            .collect::<Vec<_>>();
        let mut monitor = Monitor {
            profile,
            attrs,
            ranges: vec![Vec::new(); targets.len()],
            targets,
            next_apply_sample: vec![0; schemes.len()],
            schemes,
            rng: Pcg64::seed_from_u64(seed),
            samples: 0,
            next_aggr_sample: 0,
            next_update_sample: 0,
            next_tune_sample: 0,
            limit_bytes: attrs.min_region_bytes,
            last_nr_regions: 0,
            looks_kept: u64::from(attrs.max_nr_accesses()),
        };
        monitor.schedule();
        Ok(monitor)
    }

    /// Schedules all periodic work, starting from the current sample.
    pub(super) fn schedule(&mut self) {
        self.next_aggr_sample = self.samples + self.samples_in(self.attrs.aggr_us);
        self.next_update_sample = self.samples + self.attrs.ops_update_us / self.sample_us();
        if let Some(goal) = self.attrs.tune {
            self.next_tune_sample = self.samples + self.tune_samples(&goal);
        }
        for (next, scheme) in self.next_apply_sample.iter_mut().zip(&self.schemes) {
            *next = self.samples + apply_samples(&self.attrs, scheme);
        }
    }

    pub(super) fn sample_us(&self) -> u64 {
        self.attrs.sample_us.max(1)
    }

    pub(super) fn samples_in(&self, interval_us: u64) -> u64 {
        (interval_us / self.sample_us()).max(1)
    }

    pub(super) fn tune_samples(&self, goal: &IntervalsGoal) -> u64 {
        self.samples_in(self.attrs.aggr_us)
            .saturating_mul(goal.aggrs.max(1))
    }

    /// The attributes in force; interval tuning may have changed them.
    #[must_use]
    pub fn attrs(&self) -> &Attrs {
        &self.attrs
    }

    /// The targets with their current regions.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// The schemes and their statistics.
    #[must_use]
    pub fn schemes(&self) -> &[Scheme] {
        &self.schemes
    }

    /// The schemes, mutable, for updating goals or quotas.
    pub fn schemes_mut(&mut self) -> &mut [Scheme] {
        &mut self.schemes
    }

    /// Number of regions of all targets.
    #[must_use]
    pub fn nr_regions(&self) -> usize {
        self.targets.iter().map(|target| target.regions.len()).sum()
    }

    /// Reads the ranges and creates the first regions.
    pub fn start(&mut self, space: &mut impl Space) {
        self.update_ranges(space);
        if self.profile.limits_first_regions || !space.is_physical() {
            for target in &mut self.targets {
                region::enforce_limit(&mut target.regions, self.limit_bytes);
            }
        }
    }

    /// Checks the watermarks of the schemes.
    pub fn wait(&mut self, space: &impl Space) -> Wait {
        let free_permille = space.free_mem_permille();
        let mut shortest_us = None;
        for scheme in &mut self.schemes {
            let Some(marks) = scheme.watermarks else {
                continue;
            };
            scheme.active = marks.active(scheme.active, free_permille);
            if !scheme.active {
                let interval_us = marks.interval_us.max(1);
                shortest_us = Some(shortest_us.map_or(interval_us, |us: u64| us.min(interval_us)));
            }
        }
        match shortest_us {
            Some(interval_us) if self.schemes.iter().all(|scheme| !scheme.active) => {
                Wait::Inactive { interval_us }
            }
            _ => Wait::Sample,
        }
    }

    /// Selects a page in each region and makes it old.
    pub fn prepare(&mut self, space: &mut impl Space) {
        for target in &mut self.targets {
            for region in &mut target.regions {
                region.sampling_addr = self.rng.random_range(region.start..region.end);
                space.make_old(target.id, region.sampling_addr);
            }
        }
    }

    /// Checks the selected pages, then does what is due: merge, apply schemes, tune, start the next
    /// aggregation and split, update the ranges. Returns true when an aggregation ended: its result
    /// is `last_nr_accesses` of the regions.
    pub fn check(&mut self, space: &mut impl Space) -> bool {
        self.samples += 1;
        let max_seen = self.look(space);
        let aggregated = self.samples >= self.next_aggr_sample;
        if aggregated {
            self.merge(max_seen / 10);
        }
        self.apply_schemes(space);
        if aggregated {
            self.next_aggr_sample = self.samples + self.samples_in(self.attrs.aggr_us);
            if self.profile.tunes_intervals {
                self.tune();
            }
            self.targets
                .iter_mut()
                .flat_map(|t| &mut t.regions)
                .for_each(Region::reset);
            self.split();
        }
        if self.samples >= self.next_update_sample {
            self.next_update_sample = self.samples + self.attrs.ops_update_us / self.sample_us();
            if !space.is_physical() {
                self.update_ranges(space);
            }
        }
        aggregated
    }

    /// Processes one check per region; returns the largest count.
    fn look(&mut self, space: &mut impl Space) -> u32 {
        let looks = self.attrs.max_nr_accesses();
        let mut max_seen = 0;
        for target in &mut self.targets {
            for region in &mut target.regions {
                region.update(space.accessed(target.id, region.sampling_addr), looks);
                max_seen = max_seen.max(region.nr_accesses);
            }
        }
        max_seen
    }

    fn merge(&mut self, mut threshold: u32) {
        let most = self.attrs.max_nr_accesses();
        for target in &mut self.targets {
            region::count_ages(&mut target.regions, threshold);
        }
        loop {
            for target in &mut self.targets {
                region::merge(&mut target.regions, threshold, self.limit_bytes);
            }
            let too_many = self.nr_regions() as u64 > self.attrs.max_nr_regions;
            if !too_many || threshold >= most {
                break;
            }
            threshold = if threshold < most / 2 {
                (threshold * 2).max(1)
            } else {
                most
            };
        }
        if self.profile.limits_merged_regions {
            for target in &mut self.targets {
                region::enforce_limit(&mut target.regions, self.limit_bytes);
            }
        }
    }

    fn split(&mut self) {
        let nr_regions = self.nr_regions();
        let most = usize::try_from(self.attrs.max_nr_regions).unwrap_or(usize::MAX);
        if nr_regions > most / 2 {
            return;
        }
        let parts = if nr_regions == self.last_nr_regions && nr_regions < most / 3 {
            3
        } else {
            2
        };
        for target in &mut self.targets {
            region::split(
                &mut target.regions,
                parts,
                self.attrs.min_region_bytes,
                &mut self.rng,
            );
        }
        self.last_nr_regions = nr_regions;
    }

    fn update_limit(&mut self) {
        let bytes: u64 = self
            .targets
            .iter()
            .flat_map(|t| &t.regions)
            .map(Region::size)
            .sum();
        let granule = self.attrs.min_region_bytes;
        let limit = (bytes / self.attrs.min_nr_regions).max(granule);
        // Regions are split at the limit, so it must keep them aligned.
        self.limit_bytes = if self.profile.rounds_limit_up {
            limit.next_multiple_of(granule)
        } else {
            limit - limit % granule
        };
    }

    fn update_ranges(&mut self, space: &mut impl Space) {
        let granule = self.attrs.min_region_bytes;
        let mut now = Vec::new();
        let mut changed = false;
        for (target, known) in self.targets.iter_mut().zip(&mut self.ranges) {
            now.clear();
            space.ranges(target.id, &mut now);
            for range in &mut now {
                *range = (range.0 - range.0 % granule, range.1 - range.1 % granule);
            }
            if now == *known {
                continue;
            }
            known.clone_from(&now);
            target.regions = fit_ranges(std::mem::take(&mut target.regions), known);
            changed = true;
        }
        if changed {
            self.update_limit();
        }
    }

    fn apply_schemes(&mut self, space: &mut impl Space) {
        let mut due = vec![false; self.schemes.len()];
        for ((due, next), scheme) in due
            .iter_mut()
            .zip(&mut self.next_apply_sample)
            .zip(&self.schemes)
        {
            if self.samples >= *next {
                *next = self.samples + apply_samples(&self.attrs, scheme);
                *due = scheme.active;
            }
        }
        if due.contains(&true) {
            let pass = Pass {
                profile: self.profile,
                attrs: &self.attrs,
                limit_bytes: self.limit_bytes,
            };
            pass.apply(&mut self.targets, &mut self.schemes, &due, space);
        }
    }
}

/// Samples between two applications of a scheme.
pub(super) fn apply_samples(attrs: &Attrs, scheme: &Scheme) -> u64 {
    let interval_us = if scheme.apply_interval_us == 0 {
        attrs.aggr_us
    } else {
        scheme.apply_interval_us
    };
    (interval_us / attrs.sample_us.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::action::Action;
    use super::super::quota::{Limits, Quota};
    use super::super::region::Region;
    use super::super::scheme::{AccessPattern, Watermarks};
    use super::super::score::Weights;
    use super::super::testing::{HotRange, run};
    use super::*;

    fn any_pattern() -> AccessPattern {
        AccessPattern {
            size_bytes: 0..=u64::MAX,
            nr_accesses: 0..=u32::MAX,
            age: 0..=u32::MAX,
        }
    }

    /// Bytes in regions wrongly taken for hot (accessed in more than half of the checks) or not.
    fn wrong_pages(monitor: &Monitor, hot: &std::ops::Range<u64>) -> u64 {
        let half = monitor.attrs().max_nr_accesses() / 2;
        let mut wrong = 0;
        for region in &monitor.targets()[0].regions {
            for page in region.start / 4096..region.end / 4096 {
                wrong += u64::from((region.last_nr_accesses > half) != hot.contains(&page));
            }
        }
        wrong
    }

    #[test]
    fn it_finds_a_hot_range() {
        for profile in [Profile::V6_12, Profile::V7_2] {
            let mut space = HotRange::new(100_000, 20_000..30_000);
            let mut monitor =
                Monitor::new(profile, Attrs::default(), &[TargetId(0)], Vec::new(), 1).unwrap();
            monitor.start(&mut space);
            run(&mut monitor, &mut space, 20 * 100);
            let wrong = wrong_pages(&monitor, &space.hot);
            assert!(
                wrong < 4_000,
                "{profile:?}: {wrong} of 100000 pages in wrong regions"
            );
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_regions() {
        let regions = |seed| {
            let mut space = HotRange::new(50_000, 100..9_000);
            let mut monitor = Monitor::new(
                Profile::V7_2,
                Attrs::default(),
                &[TargetId(0)],
                Vec::new(),
                seed,
            )
            .unwrap();
            monitor.start(&mut space);
            run(&mut monitor, &mut space, 500);
            monitor.targets()[0].regions.clone()
        };
        assert_eq!(regions(7), regions(7));
        assert_ne!(regions(7), regions(8));
    }

    /// The kernels use one variable for the number of regions before the last split.
    #[test]
    fn two_monitors_do_not_touch_each_other() {
        let new = |pages, seed| {
            let mut space = HotRange::new(pages, 0..pages / 3);
            let attrs = Attrs::default();
            let mut monitor =
                Monitor::new(Profile::V7_2, attrs, &[TargetId(0)], Vec::new(), seed).unwrap();
            monitor.start(&mut space);
            (monitor, space)
        };
        let (mut alone, mut its_space) = new(50_000, 1);
        run(&mut alone, &mut its_space, 400);
        let (mut one, mut space_one) = new(50_000, 1);
        let (mut two, mut space_two) = new(900, 2);
        for _ in 0..400 {
            run(&mut one, &mut space_one, 1);
            run(&mut two, &mut space_two, 1);
        }
        assert_eq!(one.targets()[0].regions, alone.targets()[0].regions);
    }

    #[test]
    fn inactive_schemes_put_it_to_sleep() {
        let marks = Watermarks {
            interval_us: 5_000_000,
            high: 200,
            mid: 150,
            low: 50,
        };
        let mut scheme = Scheme::new(any_pattern(), Action::Stat, Quota::unlimited());
        scheme.watermarks = Some(marks);
        let mut monitor = Monitor::new(
            Profile::V7_2,
            Attrs::default(),
            &[TargetId(0)],
            vec![scheme.clone(), scheme],
            1,
        )
        .unwrap();
        let mut space = HotRange::new(1000, 0..1);
        space.free_permille = 500;
        assert_eq!(
            monitor.wait(&space),
            Wait::Inactive {
                interval_us: 5_000_000
            }
        );
        monitor.schemes_mut()[1].watermarks = None;
        monitor.schemes_mut()[1].active = true;
        assert_eq!(
            monitor.wait(&space),
            Wait::Sample,
            "one active scheme keeps sampling going"
        );
    }

    #[test]
    fn a_quota_bounds_the_bytes_of_a_window() {
        let quota = Quota::new(Limits {
            bytes: 64 * 4096,
            reset_interval_ms: 1000,
            weights: Weights {
                size: 0,
                nr_accesses: 0,
                age: 1,
            },
            ..Limits::default()
        });
        let cold = AccessPattern {
            nr_accesses: 0..=0,
            ..any_pattern()
        };
        let mut monitor = Monitor::new(
            Profile::V7_2,
            Attrs::default(),
            &[TargetId(0)],
            vec![Scheme::new(cold, Action::Pageout, quota)],
            1,
        )
        .unwrap();
        let mut space = HotRange::new(10_000, 0..100);
        monitor.start(&mut space);
        // 10 windows of 1 s and a bit more.
        run(&mut monitor, &mut space, 2_010);
        let pages: u64 = space.applied.iter().map(|&(_, _, pages)| pages).sum();
        assert!(
            (9 * 64..=11 * 64).contains(&pages),
            "{pages} pages in 10 windows of 64"
        );
        assert!(monitor.schemes()[0].stats.qt_exceeds >= 8);
        // The hundred hot pages only share a region at their border.
        assert!(space.applied.iter().all(|&(_, first, _)| first >= 50));
    }

    #[test]
    fn a_full_window_goes_on_where_it_stopped() {
        let quota = Quota::new(Limits {
            bytes: 100 * 4096,
            reset_interval_ms: 100,
            ..Limits::default()
        });
        let mut monitor = Monitor::new(
            Profile::V7_2,
            Attrs::default(),
            &[TargetId(0)],
            vec![Scheme::new(any_pattern(), Action::Willneed, quota)],
            1,
        )
        .unwrap();
        let mut space = HotRange::new(1000, 0..0);
        monitor.start(&mut space);
        run(&mut monitor, &mut space, 20 * 9 + 19);
        let mut touched = vec![false; 1000];
        for &(_, first, pages) in &space.applied {
            touched[first as usize..(first + pages) as usize].fill(true);
        }
        let covered = touched.iter().filter(|&&page| page).count();
        assert!(
            covered >= 800,
            "9 windows of 100 pages covered {covered} of 1000"
        );
    }

    proptest! {
        /// Regions always stay within their ranges, sorted, disjoint and not too many.
        #[test]
        fn regions_stay_sound(
            pages in 64u64..20_000,
            hot in 0u64..20_000,
            hot_pages in 0u64..5_000,
            seed: u64,
            new in any::<bool>(),
        ) {
            let profile = if new { Profile::V7_2 } else { Profile::V6_12 };
            let attrs = Attrs { max_nr_regions: 60, ..Attrs::default() };
            let mut space = HotRange::new(pages, hot..hot + hot_pages);
            let mut monitor = Monitor::new(profile, attrs, &[TargetId(0)], Vec::new(), seed).unwrap();
            monitor.start(&mut space);
            for _ in 0..30 {
                run(&mut monitor, &mut space, 20);
                let regions = &monitor.targets()[0].regions;
                prop_assert_eq!(regions.iter().map(Region::size).sum::<u64>(), pages * 4096);
                for pair in regions.windows(2) {
                    prop_assert!(pair[0].end <= pair[1].start);
                }
                prop_assert!(regions.len() <= 60 + 12, "{} regions", regions.len());
            }
            prop_assert!(monitor.nr_regions() >= 3);
        }
    }
}
