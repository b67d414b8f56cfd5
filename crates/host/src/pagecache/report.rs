// SPDX-License-Identifier: Apache-2.0
//! What became of pages of files that were to leave.

use serde::Serialize;

/// What happened. `asked_bytes` is the sum of all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DropReport {
    /// Cold when it was planned.
    pub asked_bytes: u64,
    /// Left memory.
    pub left_bytes: u64,
    /// Would have been asked to leave, in a rehearsal.
    pub rehearsed_bytes: u64,
    /// Accessed since it was planned.
    pub young_bytes: u64,
    /// Dirty, or being written: never touched.
    pub dirty_bytes: u64,
    /// Stayed although asked: mapped by a process, locked, or part of a large folio that is used.
    pub stayed_bytes: u64,
    /// Gone on its own since it was planned.
    pub vanished_bytes: u64,
    /// Of a file that no path leads to any more, on a network, or that cannot be opened.
    pub unreachable_bytes: u64,
    /// Not reached: limits, or an end that was asked for.
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

    /// All figures, in the order of [`NAMES`](Self::NAMES).
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

    /// Adds another one, of another file.
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
