// SPDX-License-Identifier: Apache-2.0
//! Whom metrics are about.

use agewise_host::untrusted::Untrusted;

use super::shown::{Counts, OTHER, Shown};
use crate::state::{Snapshot, SubjectView};

/// A row: a subject, or all that are not shown.
pub(super) struct Row<'a> {
    pub(super) label: (&'static str, String),
    pub(super) subjects: Vec<&'a SubjectView>,
    pub(super) counts: Counts,
}

fn label_of(is_cgroup: bool) -> &'static str {
    if is_cgroup { "cgroup" } else { "process" }
}

/// Those shown by name, then the rest.
pub(super) fn rows<'a>(snapshot: &'a Snapshot, shown: &Shown) -> Vec<Row<'a>> {
    let mut rows: Vec<Row> = shown
        .subjects
        .iter()
        .map(|at| {
            let subject = &snapshot.subjects[*at];
            Row {
                label: (
                    label_of(subject.is_cgroup),
                    Untrusted::from(&*subject.name).terminal().to_string(),
                ),
                subjects: vec![subject],
                counts: Counts {
                    refaulted_bytes: subject.refaulted_bytes,
                    reclaimed: subject.reclaimed,
                    rehearsed_bytes: subject.rehearsed_bytes,
                },
            }
        })
        .collect();
    // Once there was one, its counters have to stay.
    if !shown.others.is_empty() || shown.other_counts != Counts::default() {
        rows.push(Row {
            label: ("cgroup", OTHER.to_owned()),
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
