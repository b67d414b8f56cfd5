// SPDX-License-Identifier: Apache-2.0
//! An agent that holds a budget: the very pacer and queue that hold real processes, at the prices
//! measured there.
//!
//! As on a real host it scans and moves anonymous memory, clears all accessed bits with a scan
//! (`clear_refs`), and looks again before each slice. Of what was accessed it misses a share
//! (`agent_missed`): bits are cleared without a TLB flush, so that a page whose translation stays
//! cached looks idle, to the scan and to the look before the move alike.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;

use agewise_kernel::ids::MemcgId;
use agewise_policy::budget::{Gone, HeatQueue, Moved, Pacer, Scanned, Seen, World, share};
use agewise_policy::proactive::{Action, Controller, Decision, Facts, Hands};
use agewise_policy::table::{PAGES_PER_TABLE, PageSet};

use super::access::Source;
use super::facts::{Counted, gather};
use super::{DECIDE_NS, Ledger, PAGE_BYTES, ProactivePlan, Truth};
use crate::machine::{Clearing, Machine, ProcessId};

/// CPU time of a slice beside its pages, ns: waking up and looking at a few tables again (8 pages
/// take 0.1 ms in all, 7 us each).
const SLICE_NS: u64 = 40_000;

/// A budget's agent.
pub(super) struct Held {
    pacer: Pacer,
    spaces: Spaces,
}

/// What it knows of the processes of a cgroup.
struct Spaces {
    memcg: MemcgId,
    heat: BTreeMap<ProcessId, HeatQueue>,
    /// Ages by the same scans, as the daemon keeps them.
    source: Source,
    counted: Counted,
    /// Scans so far: each misses other pages.
    scans: u64,
}

impl Held {
    pub fn new(plan: &ProactivePlan, memcg: MemcgId) -> Held {
        Held {
            pacer: Pacer::new(&plan.spec, false),
            spaces: Spaces {
                memcg,
                heat: BTreeMap::new(),
                source: Source::new(&Controller::new(&plan.spec).pace()),
                counted: Counted::default(),
                scans: 0,
            },
        }
    }

    /// Its turn; returns when it wants the next one, ns.
    pub fn turn(
        &mut self,
        machine: &mut Machine,
        truth: Option<&Truth>,
        ledger: &mut Ledger,
    ) -> u64 {
        let mut turn = Turn {
            spaces: &mut self.spaces,
            machine,
            truth,
            ledger,
        };
        self.pacer.turn(&mut turn).saturating_mul(1_000)
    }
}

struct Turn<'a> {
    spaces: &'a mut Spaces,
    machine: &'a mut Machine,
    truth: Option<&'a Truth>,
    ledger: &'a mut Ledger,
}

impl World for Turn<'_> {
    fn now_us(&mut self) -> u64 {
        self.machine.now_ns() / 1_000
    }

    fn facts(&mut self) -> Facts<'static> {
        let memcg = self.spaces.memcg;
        let swap = self.machine.config().swap;
        if swap.is_some_and(|swap| !swap.device.synchronous) {
            // What had to be written first and is by now.
            self.machine.reap(memcg);
        }
        self.machine.wait_busy(DECIDE_NS);
        Facts {
            hands: Hands {
                coldest: swap.is_some(),
                page_out: swap.is_some(),
                reclaim: false,
                sort: false,
            },
            ..gather(self.machine, memcg, &mut self.spaces.counted)
        }
    }

    fn decided(&mut self, decision: &Decision) -> bool {
        self.ledger.decided(self.machine.now_ns(), decision);
        self.ledger.stats.moves += u64::from(decision.action != Action::Nothing);
        true
    }

    fn scan(&mut self, queue_pages: u64, counts: bool) -> Scanned {
        let began_ns = self.machine.now_ns();
        let processes = self.machine.live_processes(self.spaces.memcg);
        self.spaces
            .heat
            .retain(|process, _| processes.contains(process));
        self.spaces.scans += u64::from(counts);
        let tables = match counts {
            true => self.look(),
            false => self.look_again(&processes),
        };
        let mut sum = Scanned::default();
        for (process, tables) in &tables {
            let heat = self.spaces.heat.entry(*process).or_default();
            sum.add(&heat.scan(tables, counts, queue_pages));
        }
        sum.cpu_ns = self.machine.now_ns() - began_ns;
        sum
    }

    fn move_out(&mut self, pages: u64, rehearse: bool) -> Moved {
        let before_ns = self.machine.now_ns() - self.machine.waited_ns();
        let misses = self.misses();
        let machine = &mut *self.machine;
        let queued: Vec<u64> = self
            .spaces
            .heat
            .values()
            .map(HeatQueue::queued_pages)
            .collect();
        let mut sum = Moved::default();
        for ((&process, heat), part) in self.spaces.heat.iter_mut().zip(share(pages, &queued)) {
            if part == 0 {
                continue;
            }
            let moved = heat.move_out(part, |runs| {
                machine.wait_busy(SLICE_NS);
                Ok::<_, Infallible>(match rehearse {
                    true => Gone::default(),
                    false => page_out(machine, process, runs, &misses),
                })
            });
            let Ok(moved) = moved;
            sum.add(&moved);
        }
        sum.cpu_ns = self.machine.now_ns() - self.machine.waited_ns() - before_ns;
        let stats = &mut self.ledger.stats;
        stats.slices += 1;
        stats.tried_pages += sum.tried_bytes / PAGE_BYTES;
        stats.young_again_pages += sum.young_again_bytes / PAGE_BYTES;
        stats.left_pages[0] += sum.left_bytes / PAGE_BYTES;
        sum
    }
}

impl Turn<'_> {
    fn misses(&self) -> Misses {
        Misses {
            share: self.machine.config().agent_missed,
            scan: self.spaces.scans,
        }
    }

    /// A look that counts: ages, heat, and accessed bits cleared.
    fn look(&mut self) -> BTreeMap<ProcessId, Vec<Seen>> {
        let misses = self.misses();
        let mut tables = BTreeMap::<ProcessId, Vec<Seen>>::new();
        let spaces = &mut *self.spaces;
        let misplaced = spaces.source.look_at_tables(
            self.machine,
            spaces.memcg,
            self.truth,
            Clearing::Anon,
            |process, table| {
                if table.files[0] != 0 {
                    return None;
                }
                let mut table = *table;
                misses.hide(process, table.index, &mut table.bits.young);
                tables.entry(process).or_default().push(Seen {
                    index: table.index,
                    bits: table.bits,
                    movable: PageSet::ALL,
                });
                Some(table)
            },
        );
        self.ledger.looked(misplaced);
        tables
    }

    /// A look that only fills the queue, and clears nothing.
    fn look_again(&mut self, processes: &[ProcessId]) -> BTreeMap<ProcessId, Vec<Seen>> {
        let misses = self.misses();
        self.ledger.stats.refills += 1;
        let mut tables = BTreeMap::<ProcessId, Vec<Seen>>::new();
        for &process in processes {
            self.machine.look_at(process, Clearing::None, |table| {
                if table.files[0] != 0 {
                    return;
                }
                let mut bits = table.bits;
                misses.hide(process, table.index, &mut bits.young);
                tables.entry(process).or_default().push(Seen {
                    index: table.index,
                    bits,
                    movable: PageSet::ALL,
                });
            });
        }
        tables
    }
}

/// Pages out what looks idle: those whose access was missed, too.
fn page_out(
    machine: &mut Machine,
    process: ProcessId,
    runs: &[Range<u64>],
    misses: &Misses,
) -> Gone {
    let mut gone = Gone::default();
    let mut add = |(tried, left): ([u64; 2], [u64; 2])| {
        gone.idle_pages += tried[0] + tried[1];
        gone.left_pages += left[0] + left[1];
        gone.calls += 1;
    };
    add(machine.page_out(process, runs, false));
    let missed: Vec<Range<u64>> = runs
        .iter()
        .cloned()
        .flatten()
        .filter(|page| misses.is_missed(process, *page))
        .map(|page| page..page + 1)
        .collect();
    if !missed.is_empty() {
        add(machine.page_out(process, &missed, true));
    }
    gone
}

/// Which pages look idle though they were accessed; the same in every run.
#[derive(Clone, Copy, Debug)]
struct Misses {
    share: f64,
    scan: u64,
}

impl Misses {
    fn is_missed(&self, process: ProcessId, page: u64) -> bool {
        if self.share <= 0.0 {
            return false;
        }
        // splitmix64
        let mut z = (page ^ (process.index() as u64) << 48 ^ self.scan << 32)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ z >> 31) >> 11) as f64 / (1u64 << 53) as f64 <= self.share
    }

    /// Takes what is missed out of what was seen.
    fn hide(&self, process: ProcessId, index: u64, young: &mut PageSet) {
        let seen = *young;
        for page in seen.pages() {
            if self.is_missed(process, index * PAGES_PER_TABLE as u64 + page as u64) {
                young[page / 64] &= !(1 << (page % 64));
            }
        }
    }
}
