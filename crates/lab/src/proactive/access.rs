// SPDX-License-Identifier: Apache-2.0
//! What the agent knows of ages.

use std::collections::BTreeMap;

use agewise_kernel::ids::MemcgId;
use agewise_policy::agemap::{AgeMap, Facts};
use agewise_policy::generations::PageType;
use agewise_policy::proactive::Pace;
use agewise_policy::workingset::{Bin, Histogram, Intervals, OldestPages, Slice};

use super::PAGE_BYTES;
use super::truth::{Truth, earth_mover};
use crate::machine::{Clearing, Machine, ProcessId, TableSeen};

/// Ages of all processes of a cgroup.
pub(super) struct Source {
    intervals: Intervals,
    spaces: BTreeMap<ProcessId, AgeMap>,
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

    /// Resident bytes by age at the last look.
    pub fn bins(&self) -> &[Bin] {
        self.histogram.bins()
    }

    /// Bytes found accessed in it, by how long they had been idle; empty where that is not known.
    pub fn returned(&self) -> &[Bin] {
        self.returned.as_ref().map_or(&[], Histogram::bins)
    }

    /// Ages of each process.
    pub fn spaces(&self) -> &BTreeMap<ProcessId, AgeMap> {
        &self.spaces
    }

    /// Looks at all page tables and clears accessed bits; with the truth, tells by how many bins a page
    /// is misplaced. `filter` may leave out tables, and hides what the look misses of others.
    pub fn look_at_tables(
        &mut self,
        machine: &mut Machine,
        memcg: MemcgId,
        truth: Option<&Truth>,
        clearing: Clearing,
        mut filter: impl FnMut(ProcessId, &TableSeen) -> Option<TableSeen>,
    ) -> Option<f64> {
        let now_ms = machine.now_ns() / 1_000_000;
        let processes = machine.live_processes(memcg);
        self.spaces.retain(|process, _| machine.is_alive(*process));
        let mut histogram = Histogram::new(&self.intervals);
        let mut returned = Histogram::new(&self.intervals);
        let bounds = self.intervals.bounds_ms();
        let mut true_bins = vec![0; bounds.len() + 1];
        for process in processes {
            let (born_ms, horizon_ms) = (self.looked_ms, self.intervals.horizon_ms());
            let newborn = || AgeMap::newborn(born_ms, horizon_ms);
            let ages = self.spaces.entry(process).or_insert_with(newborn);
            let mut look = ages.look();
            machine.look_at(process, clearing, |seen| {
                let Some(seen) = filter(process, seen) else {
                    return;
                };
                let facts = Facts {
                    index: seen.index,
                    bits: &seen.bits,
                    files: seen.files,
                    parts: &[],
                };
                look.table(facts).expect("tables come in ascending order");
                if let Some(truth) = truth {
                    let present = &seen.bits.present;
                    truth.count(process, seen.index, present, now_ms, bounds, &mut true_bins);
                }
            });
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

    /// Opens a generation and reads the sizes of all.
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
