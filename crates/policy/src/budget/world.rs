// SPDX-License-Identifier: Apache-2.0
//! Carries out what a pacer decides.

use super::{Counted, Holder, Moved, Pacer, Scanned, Step};
use crate::proactive::{Decision, Facts};

/// A target below a limit that the kernel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The limit.
    pub limit_bytes: u64,
    /// What the target and the holder of the budget have consumed so far.
    pub counted: Counted,
}

/// The target of a budget: real processes, or those of a simulated machine.
pub trait World {
    /// Now, us. Never goes back.
    fn now_us(&mut self) -> u64;

    /// What is known about the target; the pacer fills in the time and the outcome of the previous
    /// decision.
    fn facts(&mut self) -> Facts<'static>;

    /// Called with every decision, before any of it is moved. Returns `false` if it could not be
    /// recorded: then nothing may move, and the policy is asked again later.
    fn decided(&mut self, decision: &Decision) -> bool;

    /// Looks at all memory and queues the `queue_pages` that go first
    /// ([`PageQueue::scan`](super::PageQueue::scan)). If the scan `counts`, accessed bits are
    /// cleared.
    fn scan(&mut self, queue_pages: u64, counts: bool) -> Scanned;

    /// What the kernel's limit costs the target; `None` if there is no limit, or consumption cannot
    /// be counted.
    fn limited(&mut self) -> Option<Limited> {
        None
    }

    /// The kernel alone holds the limit for a while
    /// ([`PageQueue::left_to_kernel`](super::PageQueue::left_to_kernel)).
    fn left_to_kernel(&mut self) {}

    /// Moves up to `pages` pages of the queue
    /// ([`PageQueue::move_out`](super::PageQueue::move_out)). A rehearsal does everything except
    /// the move.
    fn move_out(&mut self, pages: u64, rehearse: bool) -> Moved;
}

impl Pacer {
    /// Does what is due in `world`: scans, decides, and moves at most one slice, so that other
    /// targets get their turn. Returns when to call again, us.
    pub fn turn(&mut self, world: &mut impl World) -> u64 {
        if self.holder(world) == Holder::Kernel {
            self.drop_backlog();
            world.left_to_kernel();
            return self.due_us();
        }
        loop {
            let now_us = world.now_us();
            match self.next(now_us) {
                Step::Wait { until_us } => return until_us,
                Step::Scan { queue_pages } => {
                    let scanned = world.scan(queue_pages, true);
                    self.scanned(now_us, &scanned);
                }
                Step::Refill { queue_pages } => {
                    let scanned = world.scan(queue_pages, false);
                    self.refilled(&scanned);
                }
                Step::Decide => {
                    let facts = world.facts();
                    let decision = self.decide(now_us, facts);
                    if !world.decided(&decision) {
                        self.withdraw(now_us);
                    }
                }
                Step::Move { pages } => {
                    let moved = world.move_out(pages, self.is_rehearsal());
                    self.moved(&moved);
                    if !self.is_moving() {
                        return self.due_us();
                    }
                }
            }
        }
    }
}
