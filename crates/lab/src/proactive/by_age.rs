// SPDX-License-Identifier: Apache-2.0
//! An agent that decides by ages. It scans, decides and acts whenever each is due.

use agewise_kernel::ids::MemcgId;
use agewise_policy::proactive::{Action, Controller, Decision, Facts, Hands, Looked, Outcome};

use super::access::Source;
use super::facts::{Counted, gather};
use super::spaces::{FileMemory, Spaces};
use super::{DECIDE_NS, Ledger, ProactivePlan, Sight, Truth, bytes, mover};
use crate::machine::{Clearing, Machine};

pub(super) struct ByAge {
    controller: Controller,
    source: Source,
    sight: Sight,
    spaces: Spaces,
    looked_ns: u64,
    counted: Counted,
    outcome: Option<Outcome>,
}

impl ByAge {
    pub fn new(plan: &ProactivePlan, memcg: MemcgId) -> ByAge {
        let controller = Controller::new(&plan.spec);
        ByAge {
            source: Source::new(&controller.pace()),
            controller,
            sight: plan.sight,
            spaces: Spaces::new(
                memcg,
                match plan.sight {
                    Sight::PageCache => FileMemory::Cached,
                    Sight::PageTables | Sight::Generations => FileMemory::Mapped,
                },
            ),
            looked_ns: 0,
            counted: Counted::default(),
            outcome: None,
        }
    }

    /// Time of its first turn, in ns.
    pub fn first_ns(&self) -> u64 {
        let first_ms = self.look_ms().unwrap_or(self.controller.pace().decide_ms);
        first_ms * 1_000_000
    }

    /// Takes a turn; returns when the next one is due, in ns.
    pub fn turn(
        &mut self,
        machine: &mut Machine,
        truth: Option<&Truth>,
        ledger: &mut Ledger,
    ) -> u64 {
        let now_ns = machine.now_ns();
        let is_due = |ms| now_ns >= self.looked_ns + ms * 1_000_000;
        let looks = self.look_ms().is_some_and(is_due);
        if looks {
            self.looked_ns = now_ns;
            let misplaced = match self.sight {
                Sight::PageCache | Sight::PageTables => {
                    let now_ms = now_ns / 1_000_000;
                    let tables = self.spaces.look(machine, Clearing::Accessed, |_, _| {});
                    self.source.take_in(&tables, now_ms, truth)
                }
                Sight::Generations => {
                    self.source.look_at_generations(machine, self.spaces.memcg);
                    None
                }
            };
            ledger.looked(misplaced);
        }
        let decision = self.decide(machine, looks);
        ledger.decided(now_ns, &decision);
        if decision.action != Action::Nothing {
            self.carry_out(machine, &decision.action, ledger);
        }
        let decide_ns = decision.next_ms.saturating_mul(1_000_000);
        let look_ns = match self.look_ms() {
            Some(ms) => self.looked_ns + ms * 1_000_000,
            None => u64::MAX,
        };
        decide_ns.min(look_ns)
    }

    fn decide(&mut self, machine: &mut Machine, looks: bool) -> Decision {
        let facts = gather(machine, &mut self.spaces, &mut self.counted);
        let time_ms = facts.time_ms;
        let facts = Facts {
            looked: looks.then(|| Looked {
                time_ms,
                watched_ms: time_ms,
                bins: self.source.bins(),
                returned: self.source.returned(),
            }),
            hands: Hands {
                page_out: true,
                reclaim: true,
                sort: self.sight != Sight::Generations,
                coldest: false,
                cache: self.spaces.has_cache(),
            },
            outcome: self.outcome.take(),
            ..facts
        };
        machine.wait_busy(DECIDE_NS);
        self.controller.decide(&facts)
    }

    fn carry_out(&mut self, machine: &mut Machine, action: &Action, ledger: &mut Ledger) {
        let before_ns = machine.now_ns();
        let waited_ns = machine.waited_ns();
        let done = match self.sight {
            Sight::PageCache | Sight::PageTables => {
                mover::by_pages(machine, &self.source, &mut self.spaces, action)
            }
            Sight::Generations => mover::by_bytes(machine, self.spaces.memcg, action),
        };
        let waited_ns = machine.waited_ns() - waited_ns;
        let stats = &mut ledger.stats;
        if action.bytes() == 0 {
            return;
        }
        stats.moves += 1;
        stats.tried_pages += done.tried;
        for (sum, pages) in stats.left_pages.iter_mut().zip(done.left) {
            *sum += pages;
        }
        self.outcome = Some(Outcome {
            tried_bytes: bytes(done.tried),
            left_bytes: done.left.map(bytes),
            cpu_ns: (machine.now_ns() - before_ns).saturating_sub(waited_ns),
        });
    }

    /// Time between scans, in ms. A kernel has four generations: if they are opened too often, they
    /// do not reach back to the first bound.
    fn look_ms(&self) -> Option<u64> {
        let pace = self.controller.pace();
        let reach_ms = pace.bounds.bounds_ms().first().map_or(0, |first| first / 2);
        let look_ms = pace.look_ms?;
        match self.sight {
            Sight::PageCache | Sight::PageTables => Some(look_ms),
            Sight::Generations => Some(look_ms.max(reach_ms)),
        }
    }
}
