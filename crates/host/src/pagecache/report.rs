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
    /// Perhaps accessed since planning: accesses were lost.
    pub unknown_bytes: u64,
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
    /// The report for what left only.
    pub fn only_left(&self) -> DropReport {
        DropReport {
            asked_bytes: self.left_bytes,
            left_bytes: self.left_bytes,
            ..DropReport::default()
        }
    }

    /// What left, or would have.
    pub fn went_bytes(&self) -> u64 {
        self.left_bytes.saturating_add(self.rehearsed_bytes)
    }

    /// Adds the report of another file.
    pub fn add(&mut self, other: &DropReport) {
        for (sum, more) in [
            (&mut self.asked_bytes, other.asked_bytes),
            (&mut self.left_bytes, other.left_bytes),
            (&mut self.rehearsed_bytes, other.rehearsed_bytes),
            (&mut self.young_bytes, other.young_bytes),
            (&mut self.unknown_bytes, other.unknown_bytes),
            (&mut self.dirty_bytes, other.dirty_bytes),
            (&mut self.stayed_bytes, other.stayed_bytes),
            (&mut self.vanished_bytes, other.vanished_bytes),
            (&mut self.unreachable_bytes, other.unreachable_bytes),
            (&mut self.limited_bytes, other.limited_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_adds_up() {
        let one = DropReport {
            asked_bytes: 1,
            left_bytes: 2,
            rehearsed_bytes: 3,
            young_bytes: 4,
            dirty_bytes: 5,
            stayed_bytes: 6,
            vanished_bytes: 7,
            unreachable_bytes: 8,
            limited_bytes: 9,
            unknown_bytes: 10,
        };
        let mut sum = DropReport::default();
        sum.add(&one);
        assert_eq!(sum, one);
    }
}
