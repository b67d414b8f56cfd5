// SPDX-License-Identifier: Apache-2.0
//! The ranges of a scan, and the position of the walk in them.

use super::layout::{self, Entry};
use super::leaf::leaf_bits;
use super::machine::Machine;
use crate::access::{AddressRange, TABLE_BYTES};

/// Finds the ranges that contain addresses, given in ascending order.
pub(super) struct Cursor<'a> {
    pub ranges: &'a [AddressRange],
    pub at: usize,
}

impl Cursor<'_> {
    /// The range that contains all of the 2 MiB from `va` on.
    pub fn whole(&mut self, va: u64) -> Option<usize> {
        let is_behind = |range: &AddressRange| range.end <= va;
        while self.ranges.get(self.at).is_some_and(is_behind) {
            self.at += 1;
        }
        let range = self.ranges.get(self.at)?;
        let is_whole = va.is_multiple_of(TABLE_BYTES)
            && range.start <= va
            && va.checked_add(TABLE_BYTES)? <= range.end;
        is_whole.then_some(self.at)
    }

    /// Calls `show(index, range)` for every range that overlaps `from..to`.
    pub fn each(&mut self, from: u64, to: u64, mut show: impl FnMut(usize, AddressRange)) {
        while self.at < self.ranges.len() && self.ranges[self.at].end <= from {
            self.at += 1;
        }
        for (index, range) in self.ranges.iter().enumerate().skip(self.at) {
            if range.start >= to {
                break;
            }
            show(index, *range);
        }
    }
}

/// Joins ranges that share a part of a table of `part_bytes`, so that it is copied once.
pub(super) fn join(ranges: &[AddressRange], part_bytes: u64, out: &mut Vec<AddressRange>) {
    out.clear();
    for range in ranges {
        match out.last_mut() {
            Some(last) if (last.end - 1) / part_bytes >= range.start / part_bytes => {
                last.end = range.end;
            }
            _ => out.push(*range),
        }
    }
}

/// Finds adjacent 2 MiB leaves at the start of `entries` that look alike and lie in one range.
/// Returns the number of that range and of the leaves; `None` if there are fewer than two.
pub(super) fn leaves_alike(
    machine: &Machine,
    entries: &[Entry],
    cursor: &mut Cursor<'_>,
) -> Option<(usize, usize)> {
    let first = match entries {
        _ if machine.format.shape.entry_bytes(1) != TABLE_BYTES => return None,
        [first, second, ..] if [first.kind, second.kind] == [layout::KIND_PMD; 2] => first,
        _ => return None,
    };
    let seen = leaf_bits(machine, first.entry);
    if !seen.present.is_full() {
        return None;
    }
    let range = cursor.whole(first.va)?;
    let within = cursor.ranges[range].end.saturating_sub(first.va) / TABLE_BYTES;
    let places = (first.va..).step_by(TABLE_BYTES as usize);
    let candidates = entries.iter().zip(places).take(within as usize);
    let alike = candidates.take_while(|(entry, va)| {
        entry.kind == layout::KIND_PMD
            && entry.va == *va
            && std::ptr::eq(leaf_bits(machine, entry.entry), seen)
    });
    let alike = alike.count();
    (alike > 1).then_some((range, alike))
}

/// One past the last address of the slot of `span` bytes that contains `va`.
pub(super) fn slot_end(va: u64, span: u64) -> u64 {
    (va & !(span - 1)).saturating_add(span)
}
