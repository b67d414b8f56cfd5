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
    fn schedule(&mut self) {
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
#[path = "monitor_tests.rs"]
mod tests;
