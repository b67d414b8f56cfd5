// SPDX-License-Identifier: Apache-2.0
//! Selects the subjects to show: the largest within a number of levels. The rest is summed, and no
//! byte counts twice.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::state::{Reason, Reclaimed, Snapshot, SubjectView};

/// The name of the rest. No cgroup has this name: paths begin with `/`.
pub const OTHER: &str = "other";

/// A subject remains shown until another is larger by this factor, so that two of about the same
/// size do not alternate: each change ends one time series and begins another.
const STAY: f64 = 1.1;

/// Limits of what is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum number of subjects shown that are not containers; the largest are selected.
    pub subjects_max: usize,
    /// Maximum number of containers shown, at any depth; the largest are selected.
    pub containers_max: usize,
    /// Levels below the root. Deeper subjects that are no containers only count as part of those
    /// above.
    pub depth_max: usize,
}

/// Counters of a subject, or of all that are not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Memory that came back from swap.
    pub refaulted_bytes: u64,
    /// Memory that the daemon moved out.
    pub reclaimed: Reclaimed,
    /// Memory that would have been moved out.
    pub rehearsed_bytes: u64,
}

impl Counts {
    pub(super) fn of(subject: &SubjectView) -> Self {
        Counts {
            refaulted_bytes: subject.refaulted_bytes,
            reclaimed: subject.reclaimed,
            rehearsed_bytes: subject.rehearsed_bytes,
        }
    }

    /// Adds what was counted since `before`. A counter that decreased has restarted.
    fn add_since(&mut self, now: &Self, before: &Self) {
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(
            &mut self.refaulted_bytes,
            since(now.refaulted_bytes, before.refaulted_bytes),
        );
        add(
            &mut self.rehearsed_bytes,
            since(now.rehearsed_bytes, before.rehearsed_bytes),
        );
        for reason in Reason::all() {
            let bytes = since(now.reclaimed.bytes(reason), before.reclaimed.bytes(reason));
            self.reclaimed.add(reason, bytes);
        }
        let (now, before) = (now.reclaimed.file_bytes, before.reclaimed.file_bytes);
        self.reclaimed.add_files(since(now, before));
    }
}

/// The selection from one snapshot, as indices into [`Snapshot::subjects`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Subjects shown by name, in the order of the snapshot.
    pub subjects: Vec<usize>,
    /// Subjects summed as [`OTHER`]. None of them is below another, or below one in `subjects` just
    /// because it is too deep.
    pub others: Vec<usize>,
    /// Number of subjects not shown by name, at any depth, without those that never had memory.
    pub cut: usize,
    /// Counters of the others, and of what was moved out of all that are not shown by name. They
    /// never decrease: they exclude what a subject counted before it joined, and keep what a
    /// subject counted that left.
    pub other_counts: Counts,
}

type Key = (Arc<str>, u64);

/// Selects subjects, snapshot by snapshot.
#[derive(Debug)]
pub struct Chooser {
    /// May change at any time: the next snapshot is chosen from accordingly.
    pub limits: Limits,
    shown: HashSet<Key>,
    counts: HashMap<Key, Counts>,
    other_counts: Counts,
    sequence: Option<u64>,
    last: Arc<Shown>,
}

fn size_bytes(subject: &SubjectView) -> u64 {
    let [anon, file] = subject.resident_bytes();
    anon.saturating_add(file)
}

/// Whether there is nothing to show: most units of systemd that are mounts never have any memory.
fn is_blank(subject: &SubjectView) -> bool {
    let outside_bytes = subject
        .swapped_bytes
        .max(subject.unmapped_cache_bytes.unwrap_or(0));
    subject.processes == 0
        && size_bytes(subject).max(outside_bytes) == 0
        && subject.policy.is_none()
        // Its processes may be those that could not be looked at.
        && subject.troubles.is_empty()
        && Counts::of(subject) == Counts::default()
}

fn is_below(name: &str, above: &str) -> bool {
    match name.strip_prefix(above) {
        Some(rest) => (above == "/" && !rest.is_empty()) || rest.starts_with('/'),
        None => false,
    }
}

fn key(subject: &SubjectView) -> Key {
    (Arc::clone(&subject.name), subject.id)
}

impl Chooser {
    /// Starts with nothing shown.
    pub fn new(limits: Limits) -> Self {
        Chooser {
            limits,
            shown: HashSet::new(),
            counts: HashMap::new(),
            other_counts: Counts::default(),
            sequence: None,
            last: Arc::default(),
        }
    }

    /// The selection from this snapshot; the same for the same snapshot.
    pub fn choose(&mut self, snapshot: &Snapshot) -> Arc<Shown> {
        if self.sequence == Some(snapshot.sequence) {
            return Arc::clone(&self.last);
        }
        let mut shown = self.place(snapshot);
        let subjects = &snapshot.subjects;
        let counts = || subjects.iter().map(|s| (key(s), Counts::of(s))).collect();
        if self.sequence.is_none() && snapshot.sequence > 1 {
            // The daemon counted long before this: the rest restarts at 0. With all of that, it
            // would jump as soon as the process that serves, or a part of the configuration, is
            // replaced.
            self.counts = counts();
        }
        for (at, subject) in subjects.iter().enumerate() {
            if shown.subjects.binary_search(&at).is_ok() {
                continue;
            }
            let before = self.counts.get(&key(subject)).copied().unwrap_or_default();
            let mut now = Counts::of(subject);
            if shown.others.binary_search(&at).is_err() {
                // What came back to it also counts for one above it; what was moved out does not.
                now.refaulted_bytes = before.refaulted_bytes;
            }
            self.other_counts.add_since(&now, &before);
        }
        shown.other_counts = self.other_counts;
        self.counts = counts();
        self.shown = shown
            .subjects
            .iter()
            .map(|at| key(&subjects[*at]))
            .collect();
        self.sequence = Some(snapshot.sequence);
        self.last = Arc::new(shown);
        Arc::clone(&self.last)
    }

    /// The largest subjects of a kind.
    fn largest(
        &self,
        subjects: &[SubjectView],
        most: usize,
        is_one: impl Fn(&SubjectView) -> bool,
    ) -> Vec<usize> {
        let ranked = subjects.iter().enumerate().filter(|(_, one)| is_one(one));
        let mut ranked: Vec<(u64, usize)> = ranked
            .map(|(at, subject)| {
                let stays = !self.shown.is_empty() && self.shown.contains(&key(subject));
                let weight = size_bytes(subject) as f64 * if stays { STAY } else { 1.0 };
                (weight as u64, at)
            })
            .collect();
        ranked.sort_by_key(|(weight, at)| (std::cmp::Reverse(*weight), *at));
        ranked.truncate(most);
        ranked.into_iter().map(|(_, at)| at).collect()
    }

    fn place(&self, snapshot: &Snapshot) -> Shown {
        let subjects = &snapshot.subjects;
        let limits = self.limits;
        // One that has become empty stays: its series would end and begin again.
        let is_left_out = |one: &SubjectView| is_blank(one) && !self.shown.contains(&key(one));
        let mut by_name = self.largest(subjects, limits.containers_max, |one| {
            one.is_container() && !is_left_out(one)
        });
        by_name.extend(self.largest(subjects, limits.subjects_max, |one| {
            !one.is_container() && one.depth <= limits.depth_max && !is_left_out(one)
        }));
        by_name.sort_unstable();
        let mut left_out = 0;
        let mut others = Vec::new();
        // The ancestors of the current subject, each with whether it is among the others.
        let mut above: Vec<(&str, bool)> = Vec::new();
        for (at, subject) in subjects.iter().enumerate() {
            if is_left_out(subject) {
                left_out += 1;
                continue;
            }
            while above
                .last()
                .is_some_and(|(name, _)| !is_below(&subject.name, name))
            {
                above.pop();
            }
            let is_deep = subject.depth > self.limits.depth_max;
            let is_counted = above.iter().any(|(_, is_other)| *is_other);
            let is_other = by_name.binary_search(&at).is_err()
                && !is_counted
                && (!is_deep || above.is_empty());
            if is_other {
                others.push(at);
            }
            if subject.is_cgroup {
                above.push((&subject.name, is_other));
            }
        }
        Shown {
            cut: subjects.len() - by_name.len() - left_out,
            subjects: by_name,
            others,
            other_counts: Counts::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use agewise_host::container::Container;

    use super::*;
    use crate::demo;

    fn limits(subjects_max: usize, depth_max: usize) -> Limits {
        Limits {
            subjects_max,
            containers_max: 50,
            depth_max,
        }
    }

    /// A container of this size, at this depth.
    fn container(snapshot: &Snapshot, name: &str, depth: usize) -> SubjectView {
        let container = Container {
            container_id: Some(name.into()),
            ..Container::default()
        };
        SubjectView {
            name: name.into(),
            container: Some(container),
            depth,
            ..snapshot.subjects[2].clone()
        }
    }

    #[test]
    fn containers_are_shown_however_deep_and_take_nobodys_place() {
        let mut snapshot = demo::snapshot(1, 100_000);
        let pod = ["/batch/job-1/pod/a", "/batch/job-1/pod/b"];
        let containers = pod.map(|name| container(&snapshot, name, 4));
        snapshot.subjects.splice(3..3, containers);
        let of = |subjects_max, containers_max| {
            let limits = Limits {
                containers_max,
                ..limits(subjects_max, 1)
            };
            Chooser::new(limits).choose(&snapshot)
        };
        let all = of(1, 50);
        assert_eq!(names(&snapshot, &all.subjects), ["/", pod[0], pod[1]]);
        let one = of(1, 1);
        assert_eq!(names(&snapshot, &one.subjects), ["/", pod[0]]);
        assert_eq!(
            (one.others.clone(), one.cut),
            (all.others.clone(), all.cut + 1)
        );
        assert_eq!(names(&snapshot, &of(1, 0).subjects), ["/"]);
    }

    fn names<'a>(snapshot: &'a Snapshot, at: &[usize]) -> Vec<&'a str> {
        at.iter().map(|at| &*snapshot.subjects[*at].name).collect()
    }

    #[test]
    fn the_largest_are_shown_and_nobody_is_counted_twice() {
        let snapshot = demo::snapshot(1, 100_000);
        let all = Chooser::new(limits(50, 3)).choose(&snapshot);
        assert_eq!((all.subjects.len(), all.others.len(), all.cut), (6, 0, 0));
        let few = Chooser::new(limits(2, 3)).choose(&snapshot);
        assert_eq!(names(&snapshot, &few.subjects), ["/", "/web"]);
        // Its jobs are already included in /batch.
        assert_eq!(
            names(&snapshot, &few.others),
            ["/batch", "4711 (redis-server)"]
        );
        assert_eq!(few.cut, 4);
        let flat = Chooser::new(limits(50, 1)).choose(&snapshot);
        assert_eq!(
            (flat.subjects.len(), flat.others.len(), flat.cut),
            (4, 0, 2)
        );
    }

    /// The daemon counts what it moves out for the cgroup with the rule alone.
    #[test]
    fn what_was_moved_out_of_deep_cgroups_is_counted() {
        let mut snapshot = demo::snapshot(1, 100_000);
        for subject in &mut snapshot.subjects {
            (subject.reclaimed, subject.rehearsed_bytes) = Default::default();
        }
        let deep = SubjectView {
            name: "/batch/job-1/a/b/c".into(),
            depth: 5,
            refaulted_bytes: 100,
            rehearsed_bytes: 4096,
            ..snapshot.subjects[2].clone()
        };
        snapshot.subjects.insert(3, deep);
        let mut chooser = Chooser::new(limits(50, 3));
        for (sequence, bytes) in [(1, 8192), (2, 12_288)] {
            snapshot.sequence = sequence;
            let deep = &mut snapshot.subjects[3];
            deep.reclaimed = Reclaimed::default();
            deep.reclaimed.add(Reason::PROTECT, bytes);
            deep.reclaimed.add_files(4096);
            let shown = chooser.choose(&snapshot);
            assert!(!shown.subjects.contains(&3) && shown.others.is_empty());
            let counts = &shown.other_counts;
            assert_eq!(counts.reclaimed.total_bytes(), bytes);
            assert_eq!(counts.reclaimed.file_bytes, 4096);
            assert_eq!((counts.rehearsed_bytes, counts.refaulted_bytes), (4096, 0));
        }
    }

    #[test]
    fn what_never_had_memory_is_in_no_series() {
        let mut snapshot = demo::snapshot(1, 100_000);
        let mut chooser = Chooser::new(limits(50, 3));
        let empty = |of: &SubjectView| SubjectView {
            processes: 0,
            nodes: Vec::new(),
            swapped_bytes: 0,
            unmapped_cache_bytes: Some(0),
            refaulted_bytes: 0,
            reclaimed: Reclaimed::default(),
            rehearsed_bytes: 0,
            policy: None,
            ..of.clone()
        };
        let mount = SubjectView {
            name: "/dev-mqueue.mount".into(),
            depth: 1,
            ..empty(&snapshot.subjects[1])
        };
        snapshot.subjects.insert(1, mount);
        let shown = chooser.choose(&snapshot);
        assert_eq!((shown.subjects.len(), shown.cut), (6, 0));
        assert!(!shown.subjects.contains(&1) && shown.others.is_empty());
        // None of its processes could be looked at.
        let mut unseen = snapshot.clone();
        unseen.subjects[1].troubles.push("7: no answer".to_owned());
        let shown = Chooser::new(limits(50, 3)).choose(&unseen);
        assert!(shown.subjects.contains(&1));
        // It had memory meanwhile.
        snapshot.sequence = 2;
        snapshot.subjects[1].processes = 1;
        assert!(chooser.choose(&snapshot).subjects.contains(&1));
        snapshot.sequence = 3;
        snapshot.subjects[1].processes = 0;
        assert!(chooser.choose(&snapshot).subjects.contains(&1));
    }

    #[test]
    fn the_rest_restarts_at_zero_with_a_new_chooser() {
        let at = |sequence: u64| {
            let mut snapshot = demo::snapshot(sequence, sequence * 10_000);
            for subject in &mut snapshot.subjects {
                subject.refaulted_bytes = sequence * 4096;
            }
            snapshot
        };
        let count = |chooser: &mut Chooser, sequence| {
            let shown = chooser.choose(&at(sequence));
            assert_eq!(shown.others.len(), 2);
            shown.other_counts.refaulted_bytes
        };
        let mut first = Chooser::new(limits(2, 3));
        let counted = [1, 2, 3].map(|sequence| count(&mut first, sequence));
        assert_eq!(counted, [2 * 4096, 4 * 4096, 6 * 4096]);
        let mut second = Chooser::new(limits(2, 3));
        let counted = [3, 4].map(|sequence| count(&mut second, sequence));
        assert_eq!(counted, [0, 2 * 4096]);
    }

    #[test]
    fn what_is_too_deep_with_nobody_above_it_is_not_lost() {
        let mut snapshot = demo::snapshot(1, 100_000);
        snapshot.subjects.retain(|subject| subject.depth == 2);
        let shown = Chooser::new(limits(50, 1)).choose(&snapshot);
        assert!(shown.subjects.is_empty());
        assert_eq!(shown.others.len(), 2);
    }

    #[test]
    fn two_of_a_size_do_not_take_turns() {
        let mut snapshot = demo::snapshot(1, 100_000);
        let web = snapshot
            .subjects
            .iter()
            .position(|s| &*s.name == "/web")
            .unwrap();
        let mut rival = snapshot.subjects[web].clone();
        rival.name = "/zeb".into();
        rival.id = 7;
        snapshot.subjects.insert(web + 1, rival);
        let mut chooser = Chooser::new(limits(2, 3));
        assert_eq!(
            names(&snapshot, &chooser.choose(&snapshot).subjects),
            ["/", "/web"]
        );
        snapshot.sequence = 2;
        snapshot.subjects[web + 1].nodes[0].resident_bytes[0] += 1 << 20;
        assert_eq!(
            names(&snapshot, &chooser.choose(&snapshot).subjects),
            ["/", "/web"]
        );
        snapshot.sequence = 3;
        snapshot.subjects[web + 1].nodes[0].resident_bytes[0] += 1 << 30;
        assert_eq!(
            names(&snapshot, &chooser.choose(&snapshot).subjects),
            ["/", "/zeb"]
        );
    }

    proptest! {
        /// Counters of the rest never decrease, whoever joins, leaves or restarts; if everything is
        /// in the rest, they are the sum of what was counted.
        #[test]
        fn counters_of_the_rest_never_go_back(
            steps in prop::collection::vec(
                (1usize..7, prop::collection::vec((0u64..5000, any::<bool>()), 6)), 1..20),
        ) {
            let mut chooser = Chooser::new(limits(2, 3));
            let mut before = 0;
            for (at, (count, grown)) in (1..).zip(&steps) {
                let mut snapshot = demo::snapshot(at, at * 1000);
                snapshot.subjects.truncate(*count);
                for (subject, (bytes, is_new)) in snapshot.subjects.iter_mut().zip(grown) {
                    subject.refaulted_bytes = at * 1000 + bytes;
                    subject.id += u64::from(*is_new);
                    subject.nodes[0].resident_bytes[0] += bytes << 20;
                }
                let shown = chooser.choose(&snapshot);
                prop_assert!(shown.subjects.len() <= 2);
                prop_assert_eq!(shown.cut, snapshot.subjects.len() - shown.subjects.len());
                let now = shown.other_counts.refaulted_bytes;
                prop_assert!(now >= before);
                before = now;
                for (at, other) in shown.others.iter().enumerate() {
                    let name = &snapshot.subjects[*other].name;
                    prop_assert!(!shown.subjects.contains(other));
                    for above in &shown.others[..at] {
                        prop_assert!(!is_below(name, &snapshot.subjects[*above].name));
                    }
                }
            }
        }
    }
}
