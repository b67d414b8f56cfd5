// SPDX-License-Identifier: Apache-2.0
//! The report on dropping file pages.

use serde::Serialize;

/// What became of the pages. `asked_bytes` is the sum of all other fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DropReport {
    /// Cold at planning time.
    pub asked_bytes: u64,
    /// Left memory.
    pub left_bytes: u64,
    /// Would have been dropped, in a rehearsal.
    pub rehearsed_bytes: u64,
    /// Accessed since planning.
    pub young_bytes: u64,
    /// Dirty or under writeback; never touched.
    pub dirty_bytes: u64,
    /// Stayed although asked to leave: mapped by a process, locked, or part of a large folio in
    /// use. If much of a file stays, the rest of it counts as well.
    pub stayed_bytes: u64,
    /// Left on their own since planning.
    pub vanished_bytes: u64,
    /// Of a file that has no path any more, is on a network, or cannot be opened.
    pub unreachable_bytes: u64,
    /// Not reached because of limits or cancellation, or perhaps part of a large folio for which
    /// limits left no room.
    pub limited_bytes: u64,
}

impl DropReport {
    /// Names of the [`values`](Self::values).
    pub const NAMES: [&'static str; 9] = [
        "asked_bytes",
        "left_bytes",
        "rehearsed_bytes",
        "young_bytes",
        "dirty_bytes",
        "stayed_bytes",
        "vanished_bytes",
        "unreachable_bytes",
        "limited_bytes",
    ];

    /// All fields, in the order of [`NAMES`](Self::NAMES).
    pub fn values(mut self) -> [u64; Self::NAMES.len()] {
        self.fields().map(|field| *field)
    }

    fn fields(&mut self) -> [&mut u64; Self::NAMES.len()] {
        let DropReport {
            asked_bytes,
            left_bytes,
            rehearsed_bytes,
            young_bytes,
            dirty_bytes,
            stayed_bytes,
            vanished_bytes,
            unreachable_bytes,
            limited_bytes,
        } = self;
        [
            asked_bytes,
            left_bytes,
            rehearsed_bytes,
            young_bytes,
            dirty_bytes,
            stayed_bytes,
            vanished_bytes,
            unreachable_bytes,
            limited_bytes,
        ]
    }

    /// The report for what left only.
    pub fn only_left(&self) -> DropReport {
        DropReport {
            asked_bytes: self.left_bytes,
            left_bytes: self.left_bytes,
            ..DropReport::default()
        }
    }

    /// Adds the report of another file.
    pub fn add(&mut self, other: &DropReport) {
        for (sum, more) in self.fields().into_iter().zip(other.values()) {
            *sum = sum.saturating_add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_under_their_names() {
        let one = DropReport {
            asked_bytes: 3,
            left_bytes: 1,
            limited_bytes: 2,
            ..DropReport::default()
        };
        let mut sum = one;
        sum.add(&one);
        let text = format!("{sum:?}");
        for (name, value) in DropReport::NAMES.iter().zip(sum.values()) {
            assert!(text.contains(&format!("{name}: {value}")), "{name}: {text}");
        }
        assert_eq!(sum.values().iter().sum::<u64>(), 12);
    }
}
