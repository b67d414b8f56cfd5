// SPDX-License-Identifier: Apache-2.0
//! An agent that holds a budget: the very pacer and queue that hold real processes, at the prices
//! measured there.
//!
//! As on a real host it scans and moves anonymous memory, clears all accessed bits with a scan
//! (`clear_refs`), and looks again before each slice. Of what was accessed it misses a share
//! (`agent_missed`): bits are cleared without a TLB flush, so that a page whose translation stays
//! cached looks idle, to the scan and to the look before the move alike.

use std::collections::BTreeMap;

use agewise_kernel::ids::MemcgId;
use agewise_policy::budget::{
    Counted as Taken, Gone, Moved, Order, Pacer, PageQueue, Scanned, Seen, World,
};
use agewise_policy::proactive::{Action, Controller, Decision, Facts, Hands};
use agewise_policy::table::{PAGES_PER_TABLE, PageSet};

use super::access::Source;
use super::facts::{Counted, gather};
use super::{DECIDE_NS, Ledger, PAGE_BYTES, ProactivePlan, Truth};
use crate::machine::{Clearing, Machine, ProcessId, TableSeen, UNLIMITED};

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
    queue: PageQueue<ProcessId>,
    /// Ages by the same scans, as the daemon keeps them.
    source: Source,
    counted: Counted,
    /// Scans so far: each misses other pages.
    scans: u64,
}

impl Held {
    pub fn new(plan: &ProactivePlan, memcg: MemcgId) -> Held {
        let pace = Controller::new(&plan.spec).pace();
        Held {
            pacer: Pacer::new(&plan.spec, false).measuring(u64::from(memcg.0)),
            spaces: Spaces {
                memcg,
                queue: PageQueue::new(pace.hold.map_or(Order::default(), |hold| hold.order)),
                source: Source::new(&pace),
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
            .queue
            .retain(|process| processes.contains(&process));
        self.spaces.scans += u64::from(counts);
        let tables = match counts {
            true => self.look(),
            false => self.look_again(&processes),
        };
        let mut sum = self.spaces.queue.scan(&tables, counts, queue_pages);
        sum.cpu_ns = self.machine.now_ns() - began_ns;
        sum
    }

    fn counted(&mut self) -> Option<(u64, Taken)> {
        let memcg = self.spaces.memcg;
        let machine = &self.machine;
        let limit_pages = machine.limits(memcg).max_pages;
        let config = machine.config();
        // Who works beside as many processes as there are CPUs takes theirs.
        let is_contended = machine.live_processes(memcg).len() >= config.cpus;
        (limit_pages != UNLIMITED).then(|| {
            let taken = Taken {
                work_us: machine.accesses() * config.cost.hit_ns / 1_000,
                kernel_us: machine.cpu_ns().iter().sum::<u64>() / 1_000,
                faults: machine.counters().pgmajfault,
                waited_us: machine.pressure(memcg).some_ns / 1_000,
                holder_us: self.ledger.stats.cpu_ns / 1_000,
                cpu_waited_us: u64::from(is_contended) * machine.now_ns() / 1_000,
            };
            (limit_pages.saturating_mul(PAGE_BYTES), taken)
        })
    }

    fn move_out(&mut self, pages: u64, rehearse: bool) -> Moved {
        let before_ns = self.machine.now_ns() - self.machine.waited_ns();
        let misses = self.misses();
        let machine = &mut *self.machine;
        let mut sum = self.spaces.queue.move_out(pages, |process, runs, choose| {
            machine.wait_busy(SLICE_NS);
            let mut seen = Vec::new();
            for mut table in machine.look_at_pages(process, runs) {
                misses.hide(process, table.index, &mut table.bits.young);
                seen.push(of(&table));
            }
            let chosen = choose(&seen);
            if rehearse || chosen.is_empty() {
                return Gone::default();
            }
            // Those go as well that were chosen though they had been accessed, or whose access was
            // missed.
            let (_, left) = machine.page_out(process, &chosen, true);
            Gone {
                left_pages: left[0] + left[1],
                calls: 1,
            }
        });
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
                tables.entry(process).or_default().push(of(&table));
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
                let mut table = *table;
                misses.hide(process, table.index, &mut table.bits.young);
                tables.entry(process).or_default().push(of(&table));
            });
        }
        tables
    }
}

/// What the queue is told of a table.
fn of(table: &TableSeen) -> Seen {
    Seen {
        index: table.index,
        bits: table.bits,
        movable: PageSet::ALL,
    }
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
