// SPDX-License-Identifier: Apache-2.0
//! When to scan, decide and move: a state machine without a clock of its own.

use super::{
    Epochs, Holder, JUDGED_MIN, LATE_SLICES_MAX, LIMIT_CHECK_US, MOVE_BEHIND_US, MOVE_MAX_US,
    Measure, Moved, NEWCOMERS_OF_MOVES_PERCENT, PAGE_BYTES, QUEUE_FACTOR, QUEUE_MAX_PAGES,
    QUEUE_MIN_PAGES, REFILL_FACTOR, REFILL_PERCENT, REHEARSAL_US, RETRY_US, SCAN_DEFAULT_MS,
    SCAN_MAX_MS, SCAN_OF_MOVES_PERCENT, SCAN_PERCENT, SLICE_MAX_US, SLICE_MIN_US, SLICE_PAGES,
    SLICES_A_STEP, Scanned, World, YOUNG_SHARE, YOUNG_SHARE_MAX,
};
use crate::proactive::{
    Action, Controller, Decision, Facts, Hold, KERNEL_SLACK_PART, Outcome, Reason, Spec,
};

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Scan all memory, clear accessed bits, queue the coldest; then [`Pacer::scanned`].
    Scan {
        /// Pages to queue.
        queue_pages: u64,
    },
    /// Scan without clearing anything, since the queue ran dry; then [`Pacer::refilled`].
    Refill {
        /// Pages to queue.
        queue_pages: u64,
    },
    /// Gather facts; then [`Pacer::decide`].
    Decide,
    /// Move queued pages; then [`Pacer::moved`].
    Move {
        /// Upper limit.
        pages: u64,
    },
    /// Nothing is due.
    Wait {
        /// Until this time, us.
        until_us: u64,
    },
}

/// Decides for one target. Its answers depend only on its inputs, in their order.
#[derive(Debug)]
pub struct Pacer {
    controller: Controller,
    rehearsal: bool,
    scan_due_us: u64,
    scan_interval_ms: u64,
    /// CPU time of the last scan, including the accessed bits that the target must set again, ns.
    scan_cost_ns: u64,
    /// When the last scan that cleared accessed bits started, and CPU time of moves since then, ns.
    scanned_us: u64,
    move_cpu_ns: u64,
    /// CPU time that looking for newcomers may take by now, and the time it took last, ns.
    newcomers_ns: f64,
    newcomers_cost_ns: f64,
    /// A queue that ran dry is not refilled before this time.
    refill_due_us: u64,
    /// When the next decision or slice is due; `None` before the first decision.
    due_us: Option<u64>,
    /// Pages decided on but not moved yet, and the slices they are moved in.
    backlog_pages: u64,
    slice_pages: u64,
    slice_us: u64,
    slice: Option<Slice>,
    /// When to ask the policy again after its decision was carried out.
    decide_us: u64,
    /// The outcome of the decision so far.
    done: Moved,
    outcome: Option<Outcome>,
    /// Pages that left since the last scan, and between the two scans before it.
    went_pages: u64,
    went_before_pages: u64,
    /// Pages that may be moved out, by a scan since the last decision.
    movable_pages: Option<u64>,
    /// Charged memory that may not, as of the last scan.
    unmovable_bytes: u64,
    /// What the last scan alone says of that.
    found_unmovable_bytes: u64,
    /// Measures what holding the budget is worth.
    epochs: Option<Epochs>,
    /// While the kernel holds the limit, when to check that it still has one.
    limit_due_us: u64,
    /// Of the pages that left, those judged so far, and those of them that came back at once.
    judged_pages: u64,
    back_pages: u64,
    /// Most of what is moved comes back at once.
    is_futile: bool,
}

/// A slice under way.
#[derive(Clone, Copy, Debug)]
struct Slice {
    began_us: u64,
    asked_pages: u64,
    left_pages: u64,
    refill: Refill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refill {
    NotNeeded,
    Wanted,
    Done,
}

impl Pacer {
    /// Holds a target under `spec`. In a rehearsal, memory that should leave is never assumed gone.
    pub fn new(spec: &Spec, rehearsal: bool) -> Self {
        Pacer {
            controller: Controller::new(spec),
            rehearsal,
            scan_due_us: 0,
            scan_interval_ms: 0,
            scan_cost_ns: u64::MAX,
            scanned_us: 0,
            move_cpu_ns: 0,
            newcomers_ns: 0.0,
            newcomers_cost_ns: f64::INFINITY,
            refill_due_us: 0,
            due_us: None,
            backlog_pages: 0,
            slice_pages: 0,
            slice_us: SLICE_MIN_US,
            slice: None,
            decide_us: 0,
            done: Moved::default(),
            outcome: None,
            went_pages: 0,
            went_before_pages: 0,
            movable_pages: None,
            found_unmovable_bytes: u64::MAX,
            unmovable_bytes: 0,
            epochs: None,
            limit_due_us: 0,
            judged_pages: 0,
            back_pages: 0,
            is_futile: false,
        }
    }

    /// Measures the value of the budget, if the policy asks for it: the limit is left to the kernel
    /// from time to time, at times that depend on `seed`.
    #[must_use]
    pub fn measuring(mut self, seed: u64) -> Self {
        let measure = |hold: Hold| hold.measure;
        self.epochs = match self.controller.pace().hold.map_or(Measure::Off, measure) {
            Measure::Off => None,
            Measure::On => Some(Epochs::new(seed)),
            Measure::KernelFirst => Some(Epochs::new(seed).kernel_first()),
        };
        self
    }

    /// The result of these measurements; `None` if there are none.
    pub fn epochs(&self) -> Option<&Epochs> {
        self.epochs.as_ref()
    }

    /// Who holds the limit. Reads the counters when they are due, and the limit now and then while
    /// the kernel holds it. Without counters, or without a limit that the kernel could hold
    /// instead, the budget is held.
    pub(super) fn holder(&mut self, world: &mut impl World) -> Holder {
        let now_us = world.now_us();
        let now_ms = now_us / 1000;
        let rehearsal = self.rehearsal;
        let budget_bytes = self
            .controller
            .pace()
            .hold
            .map_or(0, |hold| hold.budget_bytes);
        let Some(epochs) = self.epochs.as_mut().filter(|_| !rehearsal) else {
            return Holder::Budget;
        };
        let is_kernel = epochs.holder() == Holder::Kernel;
        let is_due =
            now_ms >= epochs.due_ms() || is_kernel && now_us >= self.limit_due_us || self.is_futile;
        if self.slice.is_some() || !is_due {
            return epochs.holder();
        }
        self.limit_due_us = now_us.saturating_add(LIMIT_CHECK_US);
        let is_futile = std::mem::take(&mut self.is_futile);
        let slack = budget_bytes / KERNEL_SLACK_PART;
        let kernel_holds = |limit: u64| limit <= budget_bytes.saturating_add(slack);
        match world.limited() {
            Some(of) if kernel_holds(of.limit_bytes) && is_futile => epochs.leave(now_ms),
            Some(of) if kernel_holds(of.limit_bytes) => {
                epochs.turn(now_ms, &of.counted, of.limit_bytes / PAGE_BYTES)
            }
            _ => {
                epochs.put_off(now_ms);
                Holder::Budget
            }
        }
    }

    /// Drops what was decided but not moved yet: it stays where it is.
    pub fn drop_backlog(&mut self) {
        if self.backlog_pages > 0 && self.done.tried_bytes > 0 {
            self.settle();
        }
        self.backlog_pages = 0;
    }

    /// Whether moves are rehearsed.
    pub fn is_rehearsal(&self) -> bool {
        self.rehearsal
    }

    /// Rehearses from now on, or no longer.
    pub fn set_rehearsal(&mut self, rehearsal: bool) {
        self.rehearsal = rehearsal;
    }

    /// New memory appeared that no scan has seen: the next step is a scan.
    pub fn scan_soon(&mut self) {
        self.scan_due_us = 0;
    }

    /// Whether a slice is under way: what was asked for has not been reported in full.
    pub fn is_moving(&self) -> bool {
        self.slice.is_some()
    }

    /// When something is due next, us.
    pub fn due_us(&self) -> u64 {
        let own_us = self.due_us.unwrap_or(0).min(self.scan_due_us);
        let Some(epochs) = self.epochs.as_ref().filter(|_| !self.rehearsal) else {
            return own_us;
        };
        let other_us = match self.is_left_to_kernel() {
            true => self.limit_due_us,
            false => own_us,
        };
        other_us.min(epochs.due_ms().saturating_mul(1000))
    }

    /// Whether only the kernel holds the limit now.
    pub fn is_left_to_kernel(&self) -> bool {
        let holder = self.epochs.as_ref().map(Epochs::holder);
        !self.rehearsal && holder == Some(Holder::Kernel)
    }

    /// Current time between scans, ms; 0 before the first scan.
    pub fn scan_interval_ms(&self) -> u64 {
        self.scan_interval_ms
    }

    /// What to do at `now_us`. Repeats its answer if called again before the step is reported as
    /// done.
    pub fn next(&mut self, now_us: u64) -> Step {
        if let Some(slice) = self.slice {
            return self.step_of(slice);
        }
        if now_us >= self.scan_due_us {
            return Step::Scan {
                queue_pages: self.queue_pages(),
            };
        }
        let due_us = self.due_us.unwrap_or(now_us);
        if now_us < due_us {
            return Step::Wait {
                until_us: self.due_us(),
            };
        }
        if self.backlog_pages == 0 {
            return Step::Decide;
        }
        let slices = (1 + (now_us - due_us) / self.slice_us).min(LATE_SLICES_MAX);
        let pages = match self.rehearsal {
            // Nothing moves, so nobody waits for it. A part would say less than would have left.
            true => self.backlog_pages,
            false => slices
                .saturating_mul(self.slice_pages)
                .min(self.backlog_pages),
        };
        let may_look_for_newcomers = self.newcomers_ns >= self.newcomers_cost_ns;
        let slice = Slice {
            began_us: now_us,
            asked_pages: pages,
            left_pages: pages,
            refill: match may_look_for_newcomers {
                true => Refill::Wanted,
                false => Refill::NotNeeded,
            },
        };
        self.slice = Some(slice);
        self.step_of(slice)
    }

    fn step_of(&self, slice: Slice) -> Step {
        match slice.refill {
            Refill::Wanted => Step::Refill {
                queue_pages: (slice.left_pages.saturating_mul(REFILL_FACTOR))
                    .max(self.queue_pages())
                    .clamp(QUEUE_MIN_PAGES, QUEUE_MAX_PAGES),
            },
            Refill::NotNeeded | Refill::Done => Step::Move {
                pages: slice.left_pages,
            },
        }
    }

    /// How many pages a scan queues: what left recently, and spare ones for those touched again.
    fn queue_pages(&self) -> u64 {
        let went = self.went_pages.max(self.went_before_pages / 2);
        QUEUE_FACTOR
            .saturating_mul(went)
            .clamp(QUEUE_MIN_PAGES, QUEUE_MAX_PAGES)
    }

    /// A scan that started at `began_us` is done.
    pub fn scanned(&mut self, began_us: u64, scanned: &Scanned) {
        self.judge(scanned);
        self.movable_pages = scanned.movable_pages;
        self.went_before_pages = std::mem::take(&mut self.went_pages);
        let cost_ns = scanned.cost_ns();
        // A scan may be expensive by accident, for example next to a build, which says little about
        // the next one: use the cheaper of the last two.
        let cost_ns = cost_ns.min(std::mem::replace(&mut self.scan_cost_ns, cost_ns));
        let least_ms = self.affordable_ms(began_us, cost_ns).max(1);
        (self.scanned_us, self.move_cpu_ns) = (began_us, 0);
        // Go half of the way to the interval at which the share of accessed memory is as wanted.
        let factor = match scanned.present_pages {
            // A program that is only just starting: how fast it touches its memory is unknown.
            0 => 1.0,
            _ => (YOUNG_SHARE / scanned.young_share().max(0.01))
                .sqrt()
                .clamp(0.5, 2.0),
        };
        let before_ms = match self.scan_interval_ms {
            0 => self.controller.pace().look_ms.unwrap_or(SCAN_DEFAULT_MS),
            ms => ms,
        };
        let wanted_ms = (before_ms as f64 * factor) as u64;
        self.scan_interval_ms = wanted_ms.clamp(least_ms, SCAN_MAX_MS.max(least_ms));
        self.scan_due_us = began_us.saturating_add(self.scan_interval_ms.saturating_mul(1000));
        let hold = self.controller.pace().hold;
        if hold.is_some_and(|hold| hold.order.takes_newcomers())
            && self.newcomers_cost_ns.is_infinite()
        {
            // Not known yet: at most the cost of a scan that clears.
            self.newcomers_cost_ns = scanned.cpu_ns as f64;
        }
    }

    /// Least time between scans that cost `cost_ns`, ms, given what moving took from the last one
    /// to `now_us`.
    fn affordable_ms(&self, now_us: u64, cost_ns: u64) -> u64 {
        let passed_ns = now_us.saturating_sub(self.scanned_us).max(1) as f64 * 1e3;
        let moving_percent = self.move_cpu_ns as f64 / passed_ns * SCAN_OF_MOVES_PERCENT;
        (cost_ns as f64 / 1e6 * 100.0 / moving_percent.max(SCAN_PERCENT)) as u64
    }

    /// Takes in how much of what left came back at once.
    fn judge(&mut self, scanned: &Scanned) {
        self.judged_pages += scanned.judged_pages;
        self.back_pages += scanned.back_pages;
        if self.judged_pages >= JUDGED_MIN {
            let judged = std::mem::take(&mut self.judged_pages);
            self.is_futile = std::mem::take(&mut self.back_pages) > judged / 2;
        }
    }

    /// A scan without clearing refilled the queue.
    pub fn refilled(&mut self, scanned: &Scanned) {
        self.judge(scanned);
        let now_us = self.slice.map_or(self.scanned_us, |slice| slice.began_us);
        let least_us = self
            .affordable_ms(now_us, scanned.cost_ns())
            .saturating_mul(1000);
        // So much was accessed since the last counting scan that the order means little.
        if scanned.young_share() > YOUNG_SHARE_MAX
            && now_us.saturating_sub(self.scanned_us) >= least_us
        {
            self.scan_due_us = self.scan_due_us.min(now_us);
        }
        let pause_us = (scanned.cpu_ns as f64 / 1e3 * 100.0 / REFILL_PERCENT) as u64;
        self.newcomers_ns = 0.0;
        if self.newcomers_cost_ns.is_finite() {
            self.newcomers_cost_ns = scanned.cpu_ns as f64;
        }
        if let Some(slice) = &mut self.slice {
            slice.refill = Refill::Done;
            self.refill_due_us = slice.began_us.saturating_add(pause_us);
        }
    }

    /// Asks the policy. Fills in the time and the outcome of the previous decision.
    pub fn decide(&mut self, now_us: u64, facts: Facts<'static>) -> Decision {
        if let (Some(pages), Some(bytes)) = (self.movable_pages.take(), facts.charged_bytes) {
            // More may have come in between a scan and this charge: two scans have to find it.
            let found_bytes = bytes.saturating_sub(pages.saturating_mul(PAGE_BYTES));
            let before_bytes = std::mem::replace(&mut self.found_unmovable_bytes, found_bytes);
            self.unmovable_bytes = found_bytes.min(before_bytes);
        }
        let facts = Facts {
            time_ms: now_us / 1000,
            unmovable_bytes: self.unmovable_bytes,
            outcome: self.outcome.take(),
            ..facts
        };
        let has_cache = facts.hands.cache;
        let decision = self.controller.decide(&facts);
        self.done = Moved::default();
        self.decide_us = decision.next_ms.saturating_mul(1000);
        let asked_bytes = decision.action.bytes();
        self.backlog_pages = match decision.action {
            Action::Coldest {
                types: [anon, file],
                ..
            } if anon || file && has_cache => asked_bytes / PAGE_BYTES,
            // The queue contains anonymous memory, and the page cache if that is observed;
            // otherwise file pages are left to the kernel to drop.
            _ => 0,
        };
        if self.backlog_pages == 0 {
            self.due_us = Some(self.decide_us);
            if asked_bytes > 0 {
                self.settle();
            }
            return decision;
        }
        let behind = matches!(decision.reason, Reason::OverBudget { behind: true, .. });
        // Everything must have left when the policy is asked again.
        let until_us = self.decide_us.saturating_sub(facts.time_ms * 1000);
        let move_us = match behind {
            true => MOVE_BEHIND_US,
            false => until_us.clamp(MOVE_BEHIND_US, MOVE_MAX_US),
        };
        self.slice_us = (until_us / SLICES_A_STEP).clamp(SLICE_MIN_US, SLICE_MAX_US);
        self.slice_pages = (SLICE_PAGES * self.slice_us / SLICE_MIN_US)
            .max(self.backlog_pages * self.slice_us / move_us);
        // The first slice goes at once; if the decision came late, so does the slice.
        self.due_us = Some(self.due_us.unwrap_or(now_us));
        decision
    }

    /// Drops a decision that must not be carried out; the next one is made after [`RETRY_US`].
    pub fn withdraw(&mut self, now_us: u64) {
        self.slice = None;
        self.backlog_pages = 0;
        self.due_us = Some(now_us.saturating_add(RETRY_US).max(self.decide_us));
    }

    /// Part of a slice was moved. If the queue ran dry, it is refilled once.
    pub fn moved(&mut self, moved: &Moved) {
        let Some(slice) = &mut self.slice else { return };
        let tried = (moved.tried_bytes / PAGE_BYTES).min(slice.left_pages);
        slice.left_pages -= tried;
        self.went_pages = self.went_pages.saturating_add(tried);
        self.done.add(moved);
        self.move_cpu_ns += moved.cpu_ns;
        self.newcomers_ns += moved.cpu_ns as f64 * NEWCOMERS_OF_MOVES_PERCENT / 100.0;
        let is_short = slice.left_pages > 0;
        let may_refill = slice.began_us >= self.refill_due_us;
        if is_short && may_refill && slice.refill == Refill::NotNeeded {
            slice.refill = Refill::Wanted;
            return;
        }
        let Slice {
            began_us,
            asked_pages,
            refill,
            ..
        } = *slice;
        self.slice = None;
        if self.rehearsal {
            self.backlog_pages = 0;
            self.due_us = Some(began_us.saturating_add(REHEARSAL_US));
            return;
        }
        let next_us = began_us.saturating_add(self.slice_us);
        if is_short {
            // Drop the rest. If even a refill found too little idle memory, ask the policy again at
            // the time it chose; otherwise as soon as the queue may be refilled.
            let retry_us = match refill {
                Refill::Done => self.decide_us,
                _ => self.refill_due_us.min(self.decide_us),
            };
            self.backlog_pages = 0;
            self.due_us = Some(next_us.max(retry_us));
        } else {
            self.backlog_pages -= asked_pages;
            self.due_us = Some(next_us);
        }
        if self.backlog_pages == 0 {
            self.settle();
        }
    }

    /// Stores the outcome of the decision for the next one.
    fn settle(&mut self) {
        self.outcome = Some(Outcome {
            tried_bytes: self.done.tried_bytes,
            left_bytes: [self.done.left_bytes, 0],
            cpu_ns: self.done.cpu_ns,
        });
    }
}
