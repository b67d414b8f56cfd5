// SPDX-License-Identifier: Apache-2.0
//! Keeps the kernel from killing at hard limits while swap has room (`protect.at_limit`).

use agewise_host::cgroup::{Cgroup, FreshStatistics};
use agewise_host::whatif::kernel_in_use;
use agewise_policy::whatif::Kernel;

use super::Daemon;
use crate::news::News;
use crate::observer::Seen;

/// Statistics of this many cgroups are kept fresh. While one limit is hit all are asked whether
/// theirs is, 0.7 us each a hundred times a second: 0.5 % of a core more. Each that is hit as well
/// takes another 0.07 %.
const CGROUPS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct AtLimit {
    fresh: FreshStatistics,
    trouble: News,
}

impl Daemon {
    /// Has the kernel renew the statistics of the cgroups that are nearest to their hard limit.
    /// The multi-gen LRU does not need that.
    pub(super) fn renew_statistics(&mut self, seen: &[Seen]) {
        let is_asked = !self.config.protect.at_limit.is_empty();
        let is_needed = is_asked && kernel_in_use(&self.around.roots) == Kernel::Classic;
        let chosen = seen
            .iter()
            .filter(|seen| is_needed && self.matcher.is_at_limit(&*seen.key.0))
            .filter_map(|seen| seen.cgroup.as_ref());
        let limited: Vec<(f64, &Cgroup)> = chosen
            .filter_map(|cgroup| Some((fullness(cgroup)?, cgroup)))
            .collect();
        if limited.is_empty() {
            self.at_limit.fresh = FreshStatistics::default();
            return;
        }
        let (nearest, left_out) = nearest(limited);
        let trouble = match self.at_limit.keep(&nearest) {
            Err(error) => format!("protect.at_limit: cannot start a thread: {error}"),
            Ok(()) if left_out > 0 => format!(
                "protect.at_limit: {left_out} more cgroups have a hard limit; the kernel may kill \
                 there although swap has room: name fewer"
            ),
            Ok(()) => return,
        };
        if self.at_limit.trouble.is_news(self.now_ms(), &trouble) {
            self.say("trouble", trouble);
        }
    }
}

impl AtLimit {
    fn keep(&mut self, cgroups: &[&Cgroup]) -> std::io::Result<()> {
        self.fresh
            .retain(|dir| cgroups.iter().any(|cgroup| cgroup.dir() == dir));
        cgroups.iter().try_for_each(|cgroup| self.fresh.add(cgroup))
    }
}

/// Those nearest to their limit, and how many are left out.
fn nearest<T>(mut limited: Vec<(f64, T)>) -> (Vec<T>, usize) {
    limited.sort_by(|one, other| other.0.total_cmp(&one.0));
    let left_out = limited.len().saturating_sub(CGROUPS_MAX);
    let nearest = limited.into_iter().take(CGROUPS_MAX);
    (nearest.map(|(_, one)| one).collect(), left_out)
}

/// The share of its hard limit that a cgroup uses; `None` without a limit.
fn fullness(cgroup: &Cgroup) -> Option<f64> {
    let limit_bytes = cgroup.limits().ok()?.max_bytes?;
    let usage_bytes = cgroup.usage_bytes().ok()??;
    Some(usage_bytes as f64 / limit_bytes.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_nearest_to_their_limit_are_kept() {
        let (all, left_out) = nearest(vec![(0.2, "a"), (1.0, "b"), (0.9, "c")]);
        assert_eq!((all, left_out), (vec!["b", "c", "a"], 0));
        let many = (0..100).map(|one| (f64::from(one) / 100.0, one)).collect();
        let (some, left_out) = nearest(many);
        assert_eq!((some.len(), left_out), (CGROUPS_MAX, 100 - CGROUPS_MAX));
        assert!(some.iter().all(|one| *one >= 100 - CGROUPS_MAX as i32));
    }
}
