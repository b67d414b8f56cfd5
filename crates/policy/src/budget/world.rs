// SPDX-License-Identifier: Apache-2.0
//! Carrying out what a pacer decides.

use super::{Moved, Pacer, Scanned, Step};
use crate::proactive::{Decision, Facts};

/// The target of a budget: real processes, or those of a simulated machine.
pub trait World {
    /// Now, us. Never goes back.
    fn now_us(&mut self) -> u64;

    /// What is known of the target; the pacer fills in the time and the outcome of the decision
    /// before.
    fn facts(&mut self) -> Facts<'static>;

    /// Called with every decision, before anything of it moves. `false`: it could not be written
    /// down, so nothing of it may move; the policy is asked again later.
    fn decided(&mut self, decision: &Decision) -> bool;

    /// Looks at all memory and queues the `queue_pages` coldest of each address space
    /// ([`HeatQueue::scan`](super::HeatQueue::scan)). If the scan `counts`, accessed bits are
    /// cleared.
    fn scan(&mut self, queue_pages: u64, counts: bool) -> Scanned;

    /// Moves up to `pages` of what is queued, by [`share`] where there are several address spaces.
    /// A rehearsal does everything but the move.
    fn move_out(&mut self, pages: u64, rehearse: bool) -> Moved;
}

impl Pacer {
    /// Does what is due in `world`: scans, decides, and moves at most one slice, so that others get
    /// their turn. Returns when to call again, us.
    pub fn turn(&mut self, world: &mut impl World) -> u64 {
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

/// Divides `pages` among address spaces by what each has queued. The parts sum to `pages`, or to all
/// there is; none is more than what is queued there.
pub fn share(pages: u64, queued: &[u64]) -> Vec<u64> {
    let all: u128 = queued.iter().map(|pages| u128::from(*pages)).sum();
    let pages = u128::from(pages).min(all);
    let mut before = 0;
    let mut given = 0;
    let part = |queued: &u64| {
        before += u128::from(*queued);
        let until = pages * before / all.max(1);
        let part = until - given;
        given = until;
        part as u64
    };
    queued.iter().map(part).collect()
}
