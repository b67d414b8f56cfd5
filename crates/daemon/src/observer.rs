// SPDX-License-Identifier: Apache-2.0
//! Converts what the agent knows after a tick to what a snapshot shows.

use std::path::PathBuf;
use std::sync::Arc;

use agewise_host::agent::{Agent, SubjectReport};
use agewise_host::cgroup::Cgroup;
use agewise_host::container::{Container, Containers};
use agewise_policy::workingset::Intervals;

use super::state::{NodeView, Settings, SubjectView};
pub use super::tracked::Key;
use super::tracked::Tracked;
use super::world;

/// Maximum number of problems shown for a subject.
const TROUBLES_MAX: usize = 3;

/// A subject after a tick.
#[derive(Debug)]
pub struct Seen {
    /// Its index in the agent's list.
    pub at: usize,
    /// Its name and id.
    pub key: Key,
    pub cgroup: Option<Cgroup>,
    /// The container or pod that the cgroup is.
    pub container: Option<Container>,
    /// Its processes.
    pub pids: Vec<u32>,
}

impl Seen {
    /// Number of cgroups above it; 0 for the root and for processes.
    pub fn depth(&self) -> usize {
        match &self.cgroup {
            Some(cgroup) if !cgroup.is_root() => self.key.0.matches('/').count(),
            _ => 0,
        }
    }
}

/// Of nested targets, the lowest keeps its processes for itself: a process that is a target, then
/// cgroups from the deepest up.
pub fn sort_lowest_first(targets: &mut [&Seen]) {
    targets.sort_by_key(|seen| (seen.cgroup.is_some(), std::cmp::Reverse(seen.depth())));
}

/// The subjects that exist after a tick.
pub fn subjects(agent: &Agent, containers: &mut Containers) -> Vec<Seen> {
    let mut all: Vec<Seen> = agent
        .subjects()
        .enumerate()
        .filter(|(_, (subject, _))| subject.gone.is_none())
        .map(|(at, (subject, pids))| {
            let id = match &subject.cgroup {
                Some(cgroup) => cgroup.id(),
                None => subject.start_ticks.unwrap_or(0),
            };
            Seen {
                at,
                key: (
                    match &subject.cgroup {
                        // Unique for every path, even if it is not UTF-8.
                        Some(cgroup) => Arc::from(cgroup.name()),
                        None => Arc::from(String::from_utf8_lossy(subject.name.as_bytes())),
                    },
                    id,
                ),
                cgroup: subject.cgroup.clone(),
                container: None,
                pids,
            }
        })
        .collect();
    let mut cgroups: Vec<&mut Seen> = all.iter_mut().filter(|s| s.cgroup.is_some()).collect();
    let paths: Vec<_> = cgroups
        .iter()
        .filter_map(|seen| Some(seen.cgroup.as_ref()?.path().to_owned()))
        .collect();
    let found = containers.look(paths.iter().map(PathBuf::as_path));
    for (seen, container) in cgroups.iter_mut().zip(found) {
        seen.container = container;
    }
    all
}

/// What a snapshot shows about the subjects.
pub fn views(
    agent: &Agent,
    seen: &[Seen],
    intervals: &Intervals,
    settings: &Settings,
    tracked: &mut Tracked,
) -> Vec<SubjectView> {
    let by_default = agent.report_by(|_| intervals.clone());
    // Each report reads files of every cgroup, and the bounds only differ where somebody set them.
    let is_own = |node: &u32| settings.intervals_of(*node) != *intervals;
    let differs = agent.nodes().iter().any(is_own);
    let by_node = differs.then(|| agent.report_by(|node| settings.intervals_of(node)));
    let by_node = by_node.as_ref().unwrap_or(&by_default);
    seen.iter()
        .map(|seen| {
            let actor = tracked.actors.get(&seen.key);
            let mut view = view(seen, &by_default[seen.at], &by_node[seen.at]);
            if let Some(actor) = actor {
                view.policy = Some(actor.reason);
                view.is_rehearsal = actor.dry_run;
                view.budget_gain = actor.budget_gain;
                view.kernel_first = actor.kernel_first;
            }
            let counted = actor.map(|actor| &actor.counted);
            if let Some(counted) = counted.or_else(|| tracked.retired.get(&seen.key)) {
                view.reclaimed = counted.reclaimed;
                view.rehearsed_bytes = counted.rehearsed_bytes;
            }
            let counted_bytes = by_default[seen.at].counted_refaulted_bytes;
            let refaulted = tracked.refaulted.entry(seen.key.clone()).or_default();
            // When a process ends, what the agent counted for it disappears.
            let found_bytes = agent.last_refaulted_bytes(&seen.pids);
            view.refaulted_bytes = refaulted.add(counted_bytes, found_bytes);
            view.found_refaulted_bytes = refaulted.found_bytes;
            if let Some(cgroup) = &seen.cgroup {
                view.psi = world::psi_of(cgroup);
                view.is_under_reclaim = tracked.hit_limit(&seen.key, cgroup);
            }
            view
        })
        .collect()
}

fn view(seen: &Seen, ages: &SubjectReport, reports: &SubjectReport) -> SubjectView {
    let nodes = ages.nodes.iter().zip(&reports.nodes);
    let name = &seen.key.0;
    SubjectView {
        name: Arc::clone(name),
        is_cgroup: seen.cgroup.is_some(),
        container: seen.container.clone(),
        depth: seen.depth(),
        id: seen.key.1,
        policy: None,
        is_rehearsal: false,
        processes: ages.processes,
        nodes: nodes
            .map(|((node, ages), (_, report))| NodeView {
                node: *node,
                resident_bytes: ages.total(),
                ages: ages.clone(),
                report: report.clone(),
            })
            .collect(),
        observed_ms: ages.observed_ms,
        swapped_bytes: ages.swapped_bytes,
        unmapped_cache_bytes: ages.unmapped_cache_bytes,
        sampled_bytes: sampled_bytes(ages),
        refaulted_bytes: ages.refaulted_bytes,
        found_refaulted_bytes: ages.refaulted_bytes,
        reclaimed: Default::default(),
        rehearsed_bytes: 0,
        budget_gain: None,
        kernel_first: None,
        psi: None,
        less: Vec::new(),
        shrink_limit_bytes: None,
        is_under_reclaim: false,
        guest_hosts: ages.guest_hosts.clone(),
        troubles: ages.troubles.iter().take(TROUBLES_MAX).cloned().collect(),
    }
}

/// The resident memory whose ages are those of a sample.
fn sampled_bytes(ages: &SubjectReport) -> u64 {
    if ages.margins_bytes.is_empty() {
        return 0;
    }
    let [anon, file] = ages.histogram().total();
    anon.saturating_add(file)
        .saturating_sub(ages.followed_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agewise_host::cgroup::{Hierarchy, Version};

    #[test]
    fn the_root_comes_after_all_in_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("job/part")).unwrap();
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        let seen = |name: &str| Seen {
            at: 0,
            key: (name.into(), 1),
            cgroup: Some(Cgroup::open(&hierarchy, name).unwrap()),
            container: None,
            pids: Vec::new(),
        };
        let mut process = seen("/");
        (process.key.0, process.cgroup) = ("7 (a/b/c)".into(), None);
        let all = ["/", "/job", "/job/part"].map(seen);
        let mut sorted: Vec<&Seen> = all.iter().chain([&process]).collect();
        sort_lowest_first(&mut sorted);
        let names: Vec<&str> = sorted.iter().map(|seen| &*seen.key.0).collect();
        assert_eq!(names, ["7 (a/b/c)", "/job/part", "/job", "/"]);
        assert_eq!(all.map(|seen| seen.depth()), [0, 1, 2]);
    }
}
