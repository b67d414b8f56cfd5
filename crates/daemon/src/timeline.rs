// SPDX-License-Identifier: Apache-2.0
//! Recent history, bounded: ages of the largest subjects, tick by tick, for a heat map.

use std::collections::VecDeque;
use std::sync::Arc;

use super::state::{Snapshot, SubjectView};

/// Maximum number of moments kept.
pub const MOMENTS_MAX: usize = 720;
/// Maximum number of subjects per moment; the largest are kept.
pub const ROWS_MAX: usize = 32;

/// One tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// The number of its snapshot.
    pub sequence: u64,
    /// Time since 1970, ms.
    pub unix_ms: u64,
    /// Bounds of [`Row::ages_bytes`], ms; the last bin has no bound.
    pub bounds_ms: Vec<u64>,
    /// Sorted by resident memory, largest first.
    pub rows: Vec<Row>,
}

/// A subject at that moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub name: Arc<str>,
    /// Bytes in each bin of age, of all nodes and types.
    pub ages_bytes: Vec<u64>,
    /// Memory that came back from swap since the previous moment.
    pub refaulted_bytes: u64,
    /// Memory that the daemon moved out since the previous moment.
    pub reclaimed_bytes: u64,
}

impl Moment {
    /// What to keep of a snapshot, and what happened since the previous one.
    pub fn of(snapshot: &Snapshot, before: &Snapshot) -> Self {
        let mut ranked: Vec<&SubjectView> = snapshot.subjects.iter().collect();
        ranked.sort_by_cached_key(|subject| {
            let [anon_bytes, file_bytes] = subject.resident_bytes();
            std::cmp::Reverse(anon_bytes.saturating_add(file_bytes))
        });
        ranked.truncate(ROWS_MAX);
        let row = |subject: &SubjectView| {
            // Another subject with the same name starts over.
            let mut olds = before.subjects.iter();
            let old = olds.find(|old| old.id == subject.id && old.name == subject.name);
            let since = |now: u64, old: Option<u64>| now.saturating_sub(old.unwrap_or(0));
            Row {
                name: Arc::clone(&subject.name),
                ages_bytes: subject
                    .ages(&snapshot.intervals)
                    .bins()
                    .iter()
                    .map(|bin| bin.amounts[0].saturating_add(bin.amounts[1]))
                    .collect(),
                refaulted_bytes: since(subject.refaulted_bytes, old.map(|old| old.refaulted_bytes)),
                reclaimed_bytes: since(
                    subject.reclaimed.total_bytes(),
                    old.map(|old| old.reclaimed.total_bytes()),
                ),
            }
        };
        Moment {
            sequence: snapshot.sequence,
            unix_ms: snapshot.unix_ms,
            bounds_ms: snapshot.intervals.bounds_ms().to_vec(),
            rows: ranked.into_iter().map(row).collect(),
        }
    }

    /// Whether it has a row of this subject.
    pub fn has(&self, name: &str) -> bool {
        self.rows.iter().any(|row| &*row.name == name)
    }
}

/// The last [`MOMENTS_MAX`] moments.
#[derive(Debug, Default)]
pub struct Timeline(VecDeque<Arc<Moment>>);

impl Timeline {
    /// Adds a moment, and drops the oldest if there are too many.
    pub fn push(&mut self, moment: Moment) {
        if self.0.len() == MOMENTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Arc::new(moment));
    }

    /// All moments, oldest first.
    pub fn moments(&self) -> Vec<Arc<Moment>> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::demo;
    use super::super::state::{Hub, Reason};
    use super::*;

    fn reason(name: &str) -> Reason {
        Reason::by_name(name).expect("a policy")
    }

    #[test]
    fn it_keeps_the_last_moments_and_differences() {
        let hub = Hub::new(demo::settings());
        hub.publish(demo::snapshot(0, 0));
        assert!(hub.timeline().is_empty(), "nobody shows it");
        hub.keep_timeline();
        for sequence in 1..=MOMENTS_MAX as u64 + 3 {
            let mut snapshot = demo::snapshot(sequence, sequence * 1000);
            for subject in &mut snapshot.subjects {
                subject.refaulted_bytes = sequence * 10;
                subject.reclaimed = Default::default();
                subject.reclaimed.add(reason("age"), sequence * 7);
                subject.reclaimed.add(reason("cost"), sequence);
            }
            hub.publish(snapshot);
        }
        let moments = hub.timeline();
        assert_eq!(moments.len(), MOMENTS_MAX);
        assert_eq!(moments[0].sequence, 4);
        for row in &moments[5].rows {
            assert_eq!((row.refaulted_bytes, row.reclaimed_bytes), (10, 8));
        }
        let total = |row: &Row| row.ages_bytes.iter().sum::<u64>();
        assert!(
            moments[0]
                .rows
                .windows(2)
                .all(|pair| total(&pair[0]) >= total(&pair[1]))
        );
    }

    #[test]
    fn a_new_cgroup_of_an_old_name_begins_anew() {
        let mut first = demo::snapshot(1, 1000);
        first.subjects[1].refaulted_bytes = 1000;
        let mut second = demo::snapshot(2, 2000);
        second.subjects[1].id += 1;
        second.subjects[1].refaulted_bytes = 5;
        let moment = Moment::of(&second, &first);
        let name = &second.subjects[1].name;
        let row = moment.rows.iter().find(|row| row.name == *name).unwrap();
        assert_eq!(row.refaulted_bytes, 5);
    }
}
