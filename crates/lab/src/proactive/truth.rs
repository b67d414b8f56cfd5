// SPDX-License-Identifier: Apache-2.0
//! Real times of last access of all pages, to judge an agent's histograms.

use std::collections::BTreeMap;

use agewise_policy::table::{PAGES_PER_TABLE, PageSet};

use super::spaces::Space;

const NEVER: u32 = u32::MAX;

/// Times of last access, in ms, of all pages of all processes and files.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    tables: BTreeMap<(Space, u64), Box<[u32; PAGES_PER_TABLE]>>,
}

impl Truth {
    /// Records an access to a page.
    pub fn note(&mut self, space: Space, page: u64, now_ns: u64) {
        let key = (space, page / PAGES_PER_TABLE as u64);
        let table = self
            .tables
            .entry(key)
            .or_insert_with(|| Box::new([NEVER; PAGES_PER_TABLE]));
        // Covers 49 days of simulated time.
        table[page as usize % PAGES_PER_TABLE] = (now_ns / 1_000_000).min(NEVER as u64 - 1) as u32;
    }

    /// Adds the present pages of a table to the bins with these upper bounds.
    pub(super) fn count(
        &self,
        space: Space,
        index: u64,
        present: &PageSet,
        now_ms: u64,
        bounds_ms: &[u64],
        bins: &mut [u64],
    ) {
        let table = self.tables.get(&(space, index));
        for slot in present.pages() {
            let age_ms = match table.map_or(NEVER, |table| table[slot]) {
                NEVER => now_ms,
                at_ms => now_ms.saturating_sub(at_ms.into()),
            };
            bins[bounds_ms.partition_point(|&upper| upper < age_ms)] += 1;
        }
    }
}

/// Earth-mover distance of two histograms of the same pages: by how many bins a page is misplaced
/// on average; 0 if there are no pages.
pub(super) fn earth_mover(found: &[u64], truth: &[u64]) -> f64 {
    let all: u64 = truth.iter().sum();
    let (mut carried, mut moved) = (0i64, 0u64);
    for (found, truth) in found.iter().zip(truth) {
        carried += *found as i64 - *truth as i64;
        moved += carried.unsigned_abs();
    }
    moved as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_two_bins_off_is_moved_by_two() {
        assert_eq!(earth_mover(&[4, 0, 0], &[4, 0, 0]), 0.0);
        assert_eq!(earth_mover(&[3, 0, 1], &[4, 0, 0]), 0.5);
        assert_eq!(earth_mover(&[0, 4, 0], &[2, 0, 2]), 1.0);
        assert_eq!(earth_mover(&[], &[]), 0.0);
    }

    #[test]
    fn bounds_belong_to_the_younger_bin() {
        let mut machine = crate::machine::Machine::new(crate::machine::MachineConfig::new(4096));
        let process = machine.add_process(agewise_kernel::ids::MemcgId::ROOT);
        let space = Space::Process(process);
        let mut truth = Truth::default();
        truth.note(space, 512, 5_000_000_000);
        truth.note(space, 513, 8_999_000_000);
        let mut present = PageSet::default();
        present[0] = 0b111;
        let mut bins = [0; 3];
        truth.count(space, 1, &present, 10_000, &[1_001, 5_000], &mut bins);
        assert_eq!(bins, [1, 1, 1], "1001 ms, 5000 ms, never");
    }
}
