// SPDX-License-Identifier: Apache-2.0
//! The agent's access source: ages of pages.

use agewise_policy::table::PAGE_BYTES;
use std::collections::BTreeMap;

use agewise_kernel::ids::MemcgId;
use agewise_policy::agemap::{AgeMap, Facts};
use agewise_policy::generations::PageType;
use agewise_policy::proactive::Pace;
use agewise_policy::workingset::{Bin, Histogram, Intervals, OldestPages, Slice};

use super::spaces::{Space, Tables};
use super::truth::{Truth, earth_mover};
use crate::machine::Machine;

/// Ages of all memory of a cgroup.
pub(super) struct Source {
    intervals: Intervals,
    spaces: BTreeMap<Space, AgeMap>,
    looked_ms: u64,
    histogram: Histogram,
    returned: Option<Histogram>,
}

impl Source {
    pub fn new(pace: &Pace) -> Source {
        let histogram = Histogram::new(&pace.bounds);
        Source {
            intervals: pace.bounds.clone(),
            spaces: BTreeMap::new(),
            looked_ms: 0,
            histogram,
            returned: None,
        }
    }

    /// Resident bytes by age at the last scan.
    pub fn bins(&self) -> &[Bin] {
        self.histogram.bins()
    }

    /// Bytes found accessed at the last scan, by previous idle time; empty if unknown.
    pub fn returned(&self) -> &[Bin] {
        self.returned.as_ref().map_or(&[], Histogram::bins)
    }

    /// Ages of each process and file.
    pub fn spaces(&self) -> &BTreeMap<Space, AgeMap> {
        &self.spaces
    }

    /// Updates the ages with a scan of all memory. If the truth is given, returns by how many bins
    /// the histogram misplaces a page.
    pub fn take_in(&mut self, tables: &Tables, now_ms: u64, truth: Option<&Truth>) -> Option<f64> {
        self.spaces.retain(|space, _| tables.contains_key(space));
        let mut histogram = Histogram::new(&self.intervals);
        let mut returned = Histogram::new(&self.intervals);
        let bounds = self.intervals.bounds_ms();
        let mut true_bins = vec![0; bounds.len() + 1];
        for (space, tables) in tables {
            let (born_ms, horizon_ms) = (self.looked_ms, self.intervals.horizon_ms());
            let newborn = || AgeMap::newborn(born_ms, horizon_ms);
            let ages = self.spaces.entry(*space).or_insert_with(newborn);
            let mut look = ages.look();
            for seen in tables {
                let facts = Facts {
                    index: seen.index,
                    bits: &seen.bits,
                    files: seen.files(),
                    parts: &[],
                };
                look.table(facts).expect("tables come in ascending order");
                if let Some(truth) = truth {
                    let present = &seen.bits.present;
                    truth.count(*space, seen.index, present, now_ms, bounds, &mut true_bins);
                }
            }
            let (_, back) = look.finish_with_returned();
            let oldest = OldestPages::AtLeast;
            histogram.add_window(
                ages.generations(),
                ages.generations().sizes(),
                now_ms,
                oldest,
            );
            returned.add_window(ages.generations(), &back, now_ms, oldest);
            ages.advance(now_ms);
        }
        self.looked_ms = now_ms;
        let misplaced = truth.map(|_| {
            let found: Vec<u64> = histogram
                .bins()
                .iter()
                .map(|bin| bin.amounts[0] + bin.amounts[1])
                .collect();
            earth_mover(&found, &true_bins)
        });
        self.histogram = histogram.scaled(PAGE_BYTES);
        self.returned = Some(returned.scaled(PAGE_BYTES));
        misplaced
    }

    /// Opens a generation and reads the sizes of all generations.
    pub fn look_at_generations(&mut self, machine: &mut Machine, memcg: MemcgId) {
        machine.age_generations(memcg);
        let now_ms = machine.now_ns() / 1_000_000;
        let mut histogram = Histogram::new(&self.intervals);
        for generations in machine.generations(memcg) {
            for page_type in PageType::ALL {
                let slices = generations.iter().map(|(birth_ns, pages)| Slice {
                    birth_ms: birth_ns / 1_000_000,
                    pages: pages[page_type as usize],
                    drained_pages: 0,
                });
                histogram.add_generations(page_type, slices, now_ms, OldestPages::AtLeast);
            }
        }
        self.looked_ms = now_ms;
        self.histogram = histogram.scaled(PAGE_BYTES);
    }
}
