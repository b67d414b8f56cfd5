// SPDX-License-Identifier: Apache-2.0
//! Which cgroup takes the memory: by its growth, and by what it reads back in place of others'
//! pages.

use super::{Config, GroupSample};
use crate::table::PAGE_BYTES;

/// What a cgroup demanded of memory in one window.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand<G> {
    /// The cgroup.
    pub group: G,
    /// Growth of its memory and swap together, bytes per second.
    pub growth_bytes_per_s: f64,
    /// What it read back, bytes per second: each of these pages took the place of another.
    pub refault_bytes_per_s: f64,
    /// Memory it holds now.
    pub resident_bytes: u64,
    /// Whether it must not be acted on.
    pub is_untouchable: bool,
    /// Whether its own working set is protected.
    pub is_protected: bool,
}

impl<G: Clone> Demand<G> {
    /// The demand between two samples.
    pub fn between(before: &GroupSample<G>, now: &GroupSample<G>, window_ms: u64) -> Self {
        let per_s = |bytes: u64| bytes as f64 * 1000.0 / window_ms.max(1) as f64;
        let footprint =
            |sample: &GroupSample<G>| sample.resident_bytes.saturating_add(sample.swapped_bytes);
        let refaults = now.refaulted_pages.saturating_sub(before.refaulted_pages);
        Demand {
            group: now.group.clone(),
            growth_bytes_per_s: per_s(footprint(now).saturating_sub(footprint(before))),
            refault_bytes_per_s: per_s(refaults.saturating_mul(PAGE_BYTES)),
            resident_bytes: now.resident_bytes,
            is_untouchable: now.is_untouchable,
            is_protected: now.is_protected,
        }
    }

    /// Growth and refaults together.
    pub fn bytes_per_s(&self) -> f64 {
        self.growth_bytes_per_s + self.refault_bytes_per_s
    }
}

/// The cgroup to blame, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Blame<G> {
    /// The cgroup.
    pub group: G,
    /// The cgroup to act on: this one, or the one in it that causes its demand.
    pub part: G,
    /// Growth of its memory and swap, bytes per second.
    pub growth_bytes_per_s: f64,
    /// What it read back, bytes per second.
    pub refault_bytes_per_s: f64,
    /// Its share of the demand of all cgroups except the suffering one.
    pub share: f64,
    /// Memory it holds.
    pub resident_bytes: u64,
    /// It must not be acted on, or is protected itself: then it is only reported.
    pub is_untouchable: bool,
}

impl<G: Clone + PartialEq> Blame<G> {
    /// Blames the one of the others with the greatest demand, if that would be enough to make a
    /// window bad: a leak is slow beside what the suffering cgroup reads back. Returns `None` if
    /// that one itself grows faster: squeezing others that do not grow would never end.
    pub fn find(suffers: &G, demands: &[Demand<G>], config: &Config) -> Option<Self> {
        let others = demands.iter().filter(|demand| demand.group != *suffers);
        let total: f64 = others.clone().map(Demand::bytes_per_s).sum();
        // Spare other protected cgroups as long as there is another culprit.
        let most = others.max_by(|a, b| {
            let rank = |demand: &Demand<G>| (!demand.is_protected, demand.bytes_per_s());
            let ((spared_a, bytes_a), (spared_b, bytes_b)) = (rank(a), rank(b));
            let blamed = |bytes: f64| bytes >= total * config.blame_share;
            (spared_a && blamed(bytes_a))
                .cmp(&(spared_b && blamed(bytes_b)))
                .then(bytes_a.total_cmp(&bytes_b))
        })?;
        let own = demands.iter().find(|demand| demand.group == *suffers);
        let own_growth = own.map_or(0.0, |demand| demand.growth_bytes_per_s);
        let share = if total > 0.0 {
            most.bytes_per_s() / total
        } else {
            0.0
        };
        let enough = config.refaults_per_s * PAGE_BYTES as f64;
        let outgrows = most.bytes_per_s() >= own_growth.max(enough);
        (share >= config.blame_share && outgrows).then(|| Blame {
            group: most.group.clone(),
            part: most.group.clone(),
            growth_bytes_per_s: most.growth_bytes_per_s,
            refault_bytes_per_s: most.refault_bytes_per_s,
            share,
            resident_bytes: most.resident_bytes,
            is_untouchable: most.is_untouchable || most.is_protected,
        })
    }

    /// Names a cgroup whose restraints are removed, and the one that it was restrained for.
    pub(super) fn only(group: &G, part: &G) -> Self {
        Blame {
            group: group.clone(),
            part: part.clone(),
            growth_bytes_per_s: 0.0,
            refault_bytes_per_s: 0.0,
            share: 0.0,
            resident_bytes: 0,
            is_untouchable: false,
        }
    }
}
