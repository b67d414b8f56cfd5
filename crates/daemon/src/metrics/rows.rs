// SPDX-License-Identifier: Apache-2.0
//! The subjects of the metrics.

use agewise_host::cgroup::name;
use agewise_host::container::Container;
use agewise_host::untrusted::Untrusted;

use super::family::{Family, Labels, Unit, gauge};
use super::shown::{Counts, OTHER, Shown};
use crate::state::{Snapshot, SubjectView};

/// A row: one subject, or all that are not shown.
pub(super) struct Row<'a> {
    pub(super) labels: Labels,
    pub(super) subjects: Vec<&'a SubjectView>,
    pub(super) counts: Counts,
}

impl Row<'_> {
    /// Whether this row is all that are not shown.
    pub(super) fn is_rest(&self) -> bool {
        self.labels.first().is_some_and(|(_, value)| value == OTHER)
    }
}

/// The labels that identify a subject, and those names of its container or pod that survive a
/// restart.
pub(super) fn labels_of(subject: &SubjectView) -> Labels {
    let (kind, name) = if subject.is_cgroup {
        ("cgroup", name::shown(&subject.name))
    } else {
        ("process", Untrusted::from(&*subject.name))
    };
    let mut labels = vec![(kind, name.terminal().to_string())];
    labels.extend(names(subject, STABLE));
    labels
}

/// How many names of a container survive a restart: the first ones.
const STABLE: usize = 3;

/// The known ones among the first `count` fields of its container or pod.
fn names(subject: &SubjectView, count: usize) -> impl Iterator<Item = (&'static str, String)> {
    let fields = subject.container.iter().flat_map(move |container| {
        let fields = Container::NAMES.into_iter().zip(container.fields());
        fields.take(count)
    });
    fields.filter_map(|(name, value)| Some((name, value?.terminal().to_string())))
}

/// The existing containers, with the labels that change when one is restarted.
pub(super) fn containers(snapshot: &Snapshot, shown: &Shown) -> Family {
    let mut info = gauge(
        "container_info",
        Unit::None,
        "Always 1; labels: the container of a cgroup, its id and its image",
    );
    let subjects = shown.subjects.iter().map(|at| &snapshot.subjects[*at]);
    for subject in subjects.filter(|subject| subject.is_container()) {
        let mut labels = labels_of(subject);
        labels.truncate(1);
        labels.extend(names(subject, Container::NAMES.len()));
        info.add(labels, 1u64);
    }
    info
}

/// Subjects shown by name, then the rest.
pub(super) fn rows<'a>(snapshot: &'a Snapshot, shown: &Shown) -> Vec<Row<'a>> {
    let mut rows: Vec<Row> = shown
        .subjects
        .iter()
        .map(|at| {
            let subject = &snapshot.subjects[*at];
            Row {
                labels: labels_of(subject),
                subjects: vec![subject],
                counts: Counts::of(subject),
            }
        })
        .collect();
    // Once there was a rest, its counters must stay.
    if !shown.others.is_empty() || shown.other_counts != Counts::default() {
        rows.push(Row {
            labels: vec![("cgroup", OTHER.to_owned())],
            subjects: shown
                .others
                .iter()
                .map(|at| &snapshot.subjects[*at])
                .collect(),
            counts: shown.other_counts,
        });
    }
    rows
}
