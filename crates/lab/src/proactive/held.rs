// SPDX-License-Identifier: Apache-2.0
//! An agent that keeps a budget, using the same pacer and queue as for real processes, at the costs
//! measured there.
//!
//! It scans and moves anonymous memory and, if it follows the page cache, file memory. Each scan
//! clears all accessed bits (`clear_refs`), and each slice is checked again before it is moved. The
//! agent misses a share (`agent_missed`) of accesses through page tables: bits are cleared without
//! a TLB flush, so a page whose translation stays cached looks idle both to the scan and to the
//! check before the move.

use agewise_policy::table::PAGE_BYTES;
use std::collections::BTreeMap;

use agewise_kernel::ids::MemcgId;
use agewise_policy::budget::{
    Counted as Taken, Gone, Limited, Moved, Order, Pacer, PageQueue, Scanned, Seen, World,
};
use agewise_policy::generations::PageType;
use agewise_policy::mix::mix;
use agewise_policy::proactive::{Action, Controller, Decision, Facts, Hands};
use agewise_policy::table::{PAGES_PER_TABLE, PageSet};

use super::access::Source;
use super::facts::{Counted, gather};
use super::spaces::{FileMemory, Space, Spaces, Tables};
use super::{DECIDE_NS, Ledger, ProactivePlan, Sight, Truth};
use crate::machine::{Clearing, Machine, ProcessId, TableSeen, UNLIMITED};

/// CPU time of a slice on top of its pages, in ns: waking up and checking a few tables again (8
/// pages take 0.1 ms in all, 7 us each).
const SLICE_NS: u64 = 40_000;

/// The agent of a budget.
pub(super) struct Held {
    pacer: Pacer,
    known: Known,
}

/// What the agent knows about the memory of a cgroup.
struct Known {
    spaces: Spaces,
    queue: PageQueue<Space>,
    /// Ages from the same scans, as kept by the daemon.
    source: Source,
    counted: Counted,
    /// Scans so far; each misses different pages.
    scans: u64,
}

impl Held {
    pub fn new(plan: &ProactivePlan, memcg: MemcgId) -> Held {
        let pace = Controller::new(&plan.spec).pace();
        Held {
            pacer: Pacer::new(&plan.spec, false).measuring(u64::from(memcg.0)),
            known: Known {
                spaces: Spaces::new(
                    memcg,
                    match plan.sight {
                        Sight::PageCache => FileMemory::Cached,
                        Sight::PageTables | Sight::Generations => FileMemory::None,
                    },
                ),
                queue: PageQueue::new(pace.hold.map_or(Order::default(), |hold| hold.order))
                    .with_types(type_of),
                source: Source::new(&pace),
                counted: Counted::default(),
                scans: 0,
            },
        }
    }

    /// Takes a turn; returns when the next one is due, in ns.
    pub fn turn(
        &mut self,
        machine: &mut Machine,
        truth: Option<&Truth>,
        ledger: &mut Ledger,
    ) -> u64 {
        let mut turn = Turn {
            known: &mut self.known,
            machine,
            truth,
            ledger,
        };
        self.pacer.turn(&mut turn).saturating_mul(1_000)
    }
}

struct Turn<'a> {
    known: &'a mut Known,
    machine: &'a mut Machine,
    truth: Option<&'a Truth>,
    ledger: &'a mut Ledger,
}

impl World for Turn<'_> {
    fn now_us(&mut self) -> u64 {
        self.machine.now_ns() / 1_000
    }

    fn facts(&mut self) -> Facts<'static> {
        let spaces = &mut self.known.spaces;
        let swap = self.machine.config().swap;
        if swap.is_some_and(|swap| !swap.device.synchronous) {
            // Frees pages whose write has finished since.
            self.machine.reap(spaces.memcg);
        }
        self.machine.wait_busy(DECIDE_NS);
        let cache = spaces.has_cache();
        Facts {
            hands: Hands {
                coldest: swap.is_some() || cache,
                page_out: swap.is_some() || cache,
                reclaim: false,
                sort: false,
                cache,
            },
            ..gather(self.machine, spaces, &mut self.known.counted)
        }
    }

    fn decided(&mut self, decision: &Decision) -> bool {
        self.ledger.decided(self.machine.now_ns(), decision);
        self.ledger.stats.moves += u64::from(decision.action != Action::Nothing);
        self.known.queue.decided(decision);
        true
    }

    fn scan(&mut self, queue_pages: u64, counts: bool) -> Scanned {
        let began_ns = self.machine.now_ns();
        self.known.scans += u64::from(counts);
        let tables = self.look(counts);
        let seen = tables
            .into_iter()
            .map(|(space, tables)| (space, tables.iter().map(of).collect()));
        let seen = seen.collect();
        let queue = &mut self.known.queue;
        queue.retain(|space| BTreeMap::contains_key(&seen, &space));
        let mut sum = queue.scan(&seen, counts, queue_pages);
        sum.cpu_ns = self.machine.now_ns() - began_ns;
        sum
    }

    fn limited(&mut self) -> Option<Limited> {
        let memcg = self.known.spaces.memcg;
        let machine = &self.machine;
        let limit_pages = machine.limits(memcg).max_pages;
        let config = machine.config();
        // With as many processes as CPUs, the agent takes CPU time from them.
        let is_contended = machine.live_processes(memcg).len() >= config.cpus;
        (limit_pages != UNLIMITED).then(|| {
            let (counters, cost) = (machine.counters(), &config.cost);
            let [touched, read] = machine.accesses();
            let waited_ns = machine.pressure(memcg).some_ns + machine.first_read_ns();
            let counted = Taken {
                // Copying what it reads is work that the program asked for.
                work_us: (touched * cost.hit_ns + read * cost.file_io_ns) / 1_000,
                kernel_us: machine.cpu_ns().iter().sum::<u64>() / 1_000,
                faults: counters.pswpin + counters.pgpgin,
                waited_us: waited_ns / 1_000,
                holder_us: self.ledger.stats.cpu_ns / 1_000,
                cpu_waited_us: u64::from(is_contended) * machine.now_ns() / 1_000,
            };
            Limited {
                limit_bytes: limit_pages.saturating_mul(PAGE_BYTES),
                counted,
            }
        })
    }

    fn left_to_kernel(&mut self) {
        self.known.queue.left_to_kernel();
    }

    fn move_out(&mut self, pages: u64, rehearse: bool) -> Moved {
        let before_ns = self.machine.now_ns() - self.machine.waited_ns();
        let misses = self.misses();
        let machine = &mut *self.machine;
        let Known { spaces, queue, .. } = &mut *self.known;
        let stats = &mut self.ledger.stats;
        let mut sum = queue.move_out(pages, |space, runs, choose| {
            machine.wait_busy(SLICE_NS);
            let mut seen = Vec::new();
            for mut table in spaces.look_at_pages(machine, space, runs) {
                if let Space::Process(process) = space {
                    misses.hide(process, table.index, &mut table.bits.young);
                }
                seen.push(of(&table));
            }
            let chosen = choose(&seen);
            if rehearse || chosen.is_empty() {
                return Gone::default();
            }
            // Pages chosen despite an access, or because their access was missed, are moved out
            // too.
            let (_, left) = spaces.move_out(machine, space, &chosen, true);
            stats.left_pages = [0, 1].map(|t| stats.left_pages[t] + left[t]);
            Gone {
                left_pages: left[0] + left[1],
                calls: 1,
            }
        });
        sum.cpu_ns = self.machine.now_ns() - self.machine.waited_ns() - before_ns;
        stats.slices += 1;
        stats.tried_pages += sum.tried_bytes / PAGE_BYTES;
        stats.young_again_pages += sum.young_again_bytes / PAGE_BYTES;
        sum
    }
}

impl Turn<'_> {
    fn misses(&self) -> Misses {
        Misses {
            share: self.machine.config().agent_missed,
            scan: self.known.scans,
        }
    }

    /// A scan that counts (ages, heat, cleared accessed bits), or one that only fills the queue.
    fn look(&mut self, counts: bool) -> Tables {
        let misses = self.misses();
        let (known, now_ms) = (&mut *self.known, self.machine.now_ns() / 1_000_000);
        let clearing = match counts {
            true if known.spaces.has_cache() => Clearing::All,
            true => Clearing::Anon,
            false => Clearing::None,
        };
        let tables = known.spaces.look(self.machine, clearing, |process, table| {
            misses.hide(process, table.index, &mut table.bits.young);
        });
        if counts {
            let misplaced = known.source.take_in(&tables, now_ms, self.truth);
            self.ledger.looked(misplaced);
        }
        tables
    }
}

fn type_of(space: Space) -> PageType {
    match space {
        Space::Process(_) => PageType::Anon,
        Space::File(_) => PageType::File,
    }
}

/// What the queue needs to know about a table. Dirty file pages cannot be moved.
fn of(table: &TableSeen) -> Seen {
    Seen {
        index: table.index,
        bits: table.bits,
        movable: !table.bits.dirty,
    }
}

/// Pages that look idle although they were accessed; the same in every run.
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
        let which = page ^ (process.index() as u64) << 48 ^ self.scan << 32;
        let drawn = mix(which.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        (drawn >> 11) as f64 / (1u64 << 53) as f64 <= self.share
    }

    /// Removes missed accesses from what a scan found.
    fn hide(&self, process: ProcessId, index: u64, young: &mut PageSet) {
        let seen = *young;
        for page in seen.pages() {
            if self.is_missed(process, index * PAGES_PER_TABLE as u64 + page as u64) {
                young[page / 64] &= !(1 << (page % 64));
            }
        }
    }
}
