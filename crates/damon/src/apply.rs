// SPDX-License-Identifier: Apache-2.0
//! Applying schemes to regions (mm/damon/core.c: `kdamond_apply_schemes`, `damos_apply_scheme`).

use super::action::Action;
use super::attrs::Attrs;
use super::filter::PageFilters;
use super::profile::Profile;
use super::region::Region;
use super::scheme::Scheme;
use super::score::{MAX_SCORE, score};
use super::space::Space;
use super::target::Target;

/// Values that are fixed while the due schemes are applied once.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    /// The kernel whose rules are followed.
    pub profile: Profile,
    /// Attributes in force.
    pub attrs: &'a Attrs,
    /// Largest region, in bytes.
    pub limit_bytes: u64,
}

impl Pass<'_> {
    /// Applies all due schemes to all regions, region by region, with schemes in list order.
    pub fn apply(
        &self,
        targets: &mut [Target],
        schemes: &mut [Scheme],
        due: &[bool],
        space: &mut impl Space,
    ) {
        for (scheme, _) in schemes.iter_mut().zip(due).filter(|(_, due)| **due) {
            self.renew_quota(targets, scheme, space);
        }
        for target in targets {
            let mut index = 0;
            while index < target.regions.len() {
                for (scheme, _) in schemes.iter_mut().zip(due).filter(|(_, due)| **due) {
                    let mut at = At {
                        target,
                        index,
                        granule: self.attrs.min_region_bytes,
                    };
                    let skips = at.skips(scheme, self.exact());
                    index = at.index;
                    if !skips && self.fits(scheme, at.region()) {
                        at.act(scheme, space);
                    }
                }
                let joined = self.profile.rejoins_regions
                    && rejoin(&mut target.regions, index, self.limit_bytes);
                index += usize::from(!joined);
            }
        }
    }

    /// Whether a quota needs room for a whole smallest region.
    fn exact(&self) -> bool {
        self.profile.quota_is_exact
    }

    /// Starts a new quota window if it is due, and finds the lowest score to be served in it.
    fn renew_quota(&self, targets: &[Target], scheme: &mut Scheme, space: &impl Space) {
        if !scheme.quota.is_set() {
            return;
        }
        let granule = self.attrs.min_region_bytes;
        if scheme.quota.renew(space, self.exact(), granule) {
            scheme.stats.qt_exceeds += 1;
        }
        let mut bytes_by_score = [0u64; MAX_SCORE as usize + 1];
        for target in targets {
            for region in &target.regions {
                if scheme.pattern.fits(region) {
                    let slot = &mut bytes_by_score[self.score_of(scheme, region) as usize];
                    *slot = slot.saturating_add(region.size());
                }
            }
        }
        scheme.quota.set_min_score(&bytes_by_score);
    }

    fn score_of(&self, scheme: &Scheme, region: &Region) -> u32 {
        score(
            region,
            self.attrs.max_nr_accesses(),
            self.attrs.aggr_us,
            scheme.quota.limits.weights,
            scheme.action.wants(),
        )
    }

    fn fits(&self, scheme: &Scheme, region: &Region) -> bool {
        let quota = &scheme.quota;
        quota.has_room(self.exact(), self.attrs.min_region_bytes)
            && scheme.pattern.fits(region)
            && (!quota.is_set() || self.score_of(scheme, region) >= quota.min_score())
    }
}

/// Merges a region with its left neighbour if schemes have split them in vain (7.2).
fn rejoin(regions: &mut Vec<Region>, index: usize, limit_bytes: u64) -> bool {
    let Some(before) = index.checked_sub(1) else {
        return false;
    };
    let (left, right) = (&regions[before], &regions[index]);
    let alike = left.end == right.start
        && left.age == right.age
        && left.nr_accesses == right.nr_accesses
        && left.last_nr_accesses == right.last_nr_accesses
        && left.size() + right.size() <= limit_bytes;
    if alike {
        regions[before].end = regions.remove(index).end;
    }
    alike
}

/// The region of a target to which schemes are being applied.
struct At<'a> {
    target: &'a mut Target,
    index: usize,
    /// Smallest region, in bytes.
    granule: u64,
}

impl At<'_> {
    fn region(&self) -> &Region {
        &self.target.regions[self.index]
    }

    fn split(&mut self, bytes: u64) {
        let right = self.target.regions[self.index].split_off(bytes);
        self.target.regions.insert(self.index + 1, right);
    }

    /// Whether to skip the region because the previous window, which ended full, already served it
    /// (`damos_skip_charged_region`). A region served in part is split, and its rest becomes
    /// current.
    fn skips(&mut self, scheme: &mut Scheme, exact: bool) -> bool {
        let Some((target, addr)) = scheme.quota.resume else {
            return false;
        };
        if !scheme.quota.has_room(exact, self.granule) || self.target.id != target {
            return true;
        }
        if self.index + 1 == self.target.regions.len() {
            scheme.quota.resume = None;
            return true;
        }
        let (start, end, size) = (self.region().start, self.region().end, self.region().size());
        if end <= addr {
            return true;
        }
        if start < addr {
            let mut skip = (addr - start) - (addr - start) % self.granule;
            if skip == 0 {
                if size <= self.granule {
                    return true;
                }
                skip = self.granule;
            }
            self.split(skip);
            self.index += 1;
        }
        scheme.quota.resume = None;
        false
    }

    /// Applies the action within quota and filters, and accounts for it.
    fn act(&mut self, scheme: &mut Scheme, space: &mut impl Space) {
        let size = self.region().size();
        let fitting = scheme.quota.room_for(size, self.granule);
        if fitting == 0 {
            scheme.stats.nr_tried += 1;
            return;
        }
        if fitting < size {
            self.split(fitting);
        }
        let (start, end, size) = (self.region().start, self.region().end, self.region().size());
        let filters = PageFilters::of(scheme.action, &scheme.filters);
        let applied = space.apply(self.target.id, start, end, scheme.action, &filters);
        if scheme.quota.charge(size, applied.cost_ns) {
            scheme.quota.resume = Some((self.target.id, end));
        }
        if scheme.action != Action::Stat {
            self.target.regions[self.index].age = 0;
        }
        let stats = &mut scheme.stats;
        stats.nr_tried += 1;
        stats.sz_tried += size;
        stats.nr_applied += u64::from(applied.bytes > 0);
        stats.sz_applied += applied.bytes;
        stats.sz_ops_filter_passed += applied.filter_passed_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::super::quota::{Limits, Quota};
    use super::super::scheme::AccessPattern;
    use super::super::target::TargetId;
    use super::super::testing::HotRange;
    use super::*;

    fn target(pages: u64) -> Target {
        Target {
            id: TargetId(0),
            regions: vec![Region::new(0, pages * 4096)],
        }
    }

    fn scheme(action: Action) -> Scheme {
        let pattern = AccessPattern {
            size_bytes: 0..=u64::MAX,
            nr_accesses: 0..=0,
            age: 0..=u32::MAX,
        };
        Scheme::new(pattern, action, Quota::unlimited())
    }

    fn run(profile: Profile, target: &mut Target, schemes: &mut [Scheme], space: &mut HotRange) {
        let due = vec![true; schemes.len()];
        let targets = std::slice::from_mut(target);
        let pass = Pass {
            profile,
            attrs: &Attrs::default(),
            limit_bytes: u64::MAX,
        };
        pass.apply(targets, schemes, &due, space);
    }

    #[test]
    fn acting_starts_the_age_again_but_counting_does_not() {
        for (action, age) in [(Action::Stat, 9), (Action::Cold, 0)] {
            let mut target = target(10);
            target.regions[0].age = 9;
            let mut space = HotRange::new(10, 0..0);
            run(
                Profile::V7_2,
                &mut target,
                &mut [scheme(action)],
                &mut space,
            );
            assert_eq!(target.regions[0].age, age, "{action:?}");
            assert_eq!(space.applied, [(action, 0, 10)]);
        }
    }

    #[test]
    fn a_region_cut_by_a_full_quota_is_joined_again_in_7_2() {
        let quota = Quota::new(Limits {
            bytes: 4 * 4096,
            reset_interval_ms: 1000,
            ..Limits::default()
        });
        for (profile, regions) in [(Profile::V6_12, 2), (Profile::V7_2, 1)] {
            let mut target = target(10);
            let mut schemes = [Scheme {
                quota: quota.clone(),
                ..scheme(Action::Stat)
            }];
            let mut space = HotRange::new(10, 0..0);
            // The first window of 6.12 has no limit: skip it.
            run(profile, &mut target, &mut schemes, &mut space);
            space.now_us = 1_000_000;
            run(profile, &mut target, &mut schemes, &mut space);
            assert_eq!(target.regions.len(), regions, "{profile:?}");
        }
    }
}
