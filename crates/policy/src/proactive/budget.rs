// SPDX-License-Identifier: Apache-2.0
//! `budget`: holds resident memory below B, a little ahead of the kernel's limit, in steps of
//! milliseconds, so that programs rarely enter direct reclaim.
//!
//! The headroom below B follows the growth of memory: enough for one and a half steps at the
//! fastest recent growth; at least `headroom` of B and 1 MiB (1.5 % if B is small), at most an
//! eighth. The order (`by`) decides what goes first (without a record of single pages, their age),
//! in runs. If memory grows faster than it is moved and reaches the limit anyway, the reason says
//! `behind`.

use super::arguments::Arguments;
use super::{
    Action, Built, Entry, Facts, Figure, Grounds, GuardParams, Hold, Pace, Policy, Reason, Wish,
};
use crate::budget::{Measure, Order};
use crate::generations::ByType;
use crate::workingset::Intervals;

/// Minimum headroom: kernels charge memory in advance, up to 64 pages per CPU.
const HEADROOM_MIN_BYTES: f64 = 1024.0 * 1024.0;
/// Unless that is more than this share of the budget.
const HEADROOM_MIN_SHARE: f64 = 0.015;
/// The headroom is at most this part of the budget.
const HEADROOM_MAX_PART: f64 = 8.0;
/// Recent growth is forgotten by half in this time, in ms.
const HALF_LIFE_MS: f64 = 500.0;
/// If there is room to spare, the policy sleeps longer than a step, at most this long, in ms.
const SLEEP_MAX_MS: u64 = 250;
/// Reclaim by the kernel hides growth of memory: each time the kernel had to reclaim, growth is
/// multiplied by this factor. While both evict, the kernel's order is worse than when it is left
/// alone (looks clear the accessed bits that it goes by), so it is better to get ahead of it.
const BEHIND_FACTOR: f64 = 1.25;
/// Unless the headroom would be more than this part of the budget for it.
const BEHIND_PART: f64 = 16.0;
/// Steps of growth that fit into the headroom: one until the next move, a half for being late.
const HEADROOM_STEPS: f64 = 1.5;
/// The limit of a cgroup counts as holding the budget if it is above the budget by at most this
/// part.
pub(crate) const KERNEL_SLACK_PART: u64 = 16;
/// A move more steps ago than this, or longer if scans took the time (in ms), proves nothing: in
/// between the kernel held the limit alone, and memory is at the limit.
const RECENT_STEPS: u64 = 4;
const RECENT_MS: u64 = 1_000;
/// Steps are at least this long, in ms.
const STEP_MIN_MS: u64 = 2;
/// If more than this part of the charged memory is page cache, only cache goes while the kernel
/// holds the limit as well: the kernel drops cache first, so room made for cache by moving
/// anonymous memory would not last. If cache cannot be observed page by page, the choice is left to
/// the kernel.
const CACHE_PART: u64 = 8;
/// If more than this part of the charged memory cannot be moved, it does not count against the
/// budget unless the kernel holds the limit as well, which can reclaim it: no room can be made for
/// it but by squeezing the rest.
const UNMOVABLE_PART: u64 = 8;
/// A move of at least this size is worth a call; below it, the step waits for more.
const MOVE_MIN_BYTES: u64 = 64 * 1024;

/// The orders that are offered; there is another one for tests.
const BY: &str = "reuse or heat";
const MEASURE: &str = "on, off or kernel_first";

pub(super) const ENTRY: Entry = Entry {
    name: "budget",
    usage: "budget:BYTES",
    build,
};

#[derive(Clone, Debug)]
struct Budget {
    budget_bytes: u64,
    step_ms: u64,
    look_ms: u64,
    headroom: f64,
    order: Order,
    measure: Measure,
    before: Option<Before>,
    /// Fastest recent growth, in bytes per ms.
    growth: f64,
}

#[derive(Clone, Copy, Debug)]
struct Before {
    time_ms: u64,
    charged_bytes: u64,
    moved: bool,
}

fn build(arguments: &mut Arguments<'_>) -> Built {
    let bytes = arguments.positional().ok_or_else(|| arguments.usage())?;
    let policy = Budget {
        budget_bytes: arguments.size_of("budget", bytes, 1 << 16..=1 << 50)?,
        step_ms: arguments.duration("step", 8, 1..=10_000)?,
        look_ms: arguments.duration("look", 250, 10..=60_000)?,
        headroom: arguments.share("headroom", 0.005, 0.001..=0.125)?,
        order: arguments.one_of("by", Order::NAMES, BY)?,
        measure: arguments.one_of("measure", Measure::NAMES, MEASURE)?,
        before: None,
        growth: 0.0,
    };
    let guard = GuardParams {
        rate_bytes_per_s: 1 << 30,
        ..GuardParams::default()
    };
    Ok((Box::new(policy), guard))
}

impl Budget {
    /// The budget, or the limit if that is lower.
    fn ceiling(&self, facts: &Facts<'_>) -> u64 {
        facts
            .limit_bytes
            .map_or(self.budget_bytes, |limit| limit.min(self.budget_bytes))
    }

    /// Whether the kernel could hold the limit instead of the budget.
    fn kernel_holds(&self, facts: &Facts<'_>) -> bool {
        let slack = self.budget_bytes / KERNEL_SLACK_PART;
        let most = self.budget_bytes.saturating_add(slack);
        facts.limit_bytes.is_some_and(|limit| limit <= most)
    }

    /// What counts against the budget.
    fn counted_bytes(&self, facts: &Facts<'_>, charged_bytes: u64) -> u64 {
        let is_much = facts.unmovable_bytes > charged_bytes / UNMOVABLE_PART;
        match is_much && !self.kernel_holds(facts) {
            true => charged_bytes.saturating_sub(facts.unmovable_bytes),
            false => charged_bytes,
        }
    }

    fn has_just_moved(&self, now_ms: u64) -> bool {
        let recent_ms = RECENT_MS.max(RECENT_STEPS * self.step_ms);
        self.before
            .is_some_and(|before| before.moved && now_ms - before.time_ms <= recent_ms)
    }

    /// Assumes more growth, because the kernel had to reclaim.
    fn suspect_more_growth(&mut self, ceiling: u64, step_ms: u64) {
        let growth_max = ceiling as f64 / BEHIND_PART / (HEADROOM_STEPS * step_ms as f64);
        let hidden = (self.growth * BEHIND_FACTOR).min(growth_max);
        self.growth = self.growth.max(hidden);
    }

    fn follow_growth(&mut self, facts: &Facts<'_>, charged_bytes: u64) {
        let Some(before) = self.before else { return };
        let passed_ms = facts.time_ms - before.time_ms;
        if passed_ms == 0 {
            return;
        }
        let left = facts
            .outcome
            .map_or(0, |o| o.left_bytes[0].saturating_add(o.left_bytes[1]));
        let grown = charged_bytes
            .saturating_add(left)
            .saturating_sub(before.charged_bytes);
        let kept = self.growth * 0.5f64.powf(passed_ms as f64 / HALF_LIFE_MS);
        self.growth = kept.max(grown as f64 / passed_ms as f64);
    }
}

/// How this many bytes of these types leave here; `None` if they cannot.
fn action(facts: &Facts<'_>, types: ByType<bool>, bytes_max: u64) -> Option<Action> {
    match facts.hands {
        hands if hands.coldest => Some(Action::Coldest { types, bytes_max }),
        hands if hands.page_out => Some(Action::PageOut {
            older_than_ms: types.map(|takes| takes.then_some(0)),
            bytes_max,
        }),
        hands if hands.reclaim => Some(Action::Reclaim {
            bytes: bytes_max,
            anon: types[0],
        }),
        _ => None,
    }
}

/// Why nothing has to leave: there is room, or what is too much cannot.
fn no_need(facts: &Facts<'_>, charged_bytes: u64, aim: u64, room_bytes: u64) -> Reason {
    match charged_bytes.saturating_sub(aim) < MOVE_MIN_BYTES {
        true => Reason::WithinBudget { room_bytes },
        false => Reason::Own(Grounds::new(
            "unmovable",
            &[("unmovable_bytes", Figure::Count(facts.unmovable_bytes))],
        )),
    }
}

impl Policy for Budget {
    fn wish(&mut self, facts: &Facts<'_>) -> Wish {
        let now_ms = facts.time_ms;
        let charged_bytes = facts.charged_bytes.unwrap_or_else(|| facts.resident());
        self.follow_growth(facts, charged_bytes);
        let ceiling = self.ceiling(facts);
        let small = HEADROOM_MIN_BYTES.min(ceiling as f64 * HEADROOM_MIN_SHARE);
        let least = small.max(ceiling as f64 * self.headroom);
        // Where memory grows fast, shorter steps cost less than memory that stays unused.
        let grows = HEADROOM_STEPS * self.growth;
        let step_ms =
            ((least / grows.max(1e-9)) as u64).clamp(STEP_MIN_MS, self.step_ms.max(STEP_MIN_MS));
        let headroom =
            (grows * step_ms as f64).clamp(least, ceiling as f64 / HEADROOM_MAX_PART) as u64;
        let aim = ceiling - headroom;
        let moved = self.has_just_moved(now_ms);
        let counted_bytes = self.counted_bytes(facts, charged_bytes);
        // The kernel reclaims in batches at the limit: near the limit means that it was reached.
        let behind = moved && counted_bytes.saturating_add(headroom / 8) >= ceiling;
        let file_bytes = facts.resident_bytes[1];
        let much_cache = self.kernel_holds(facts) && file_bytes > charged_bytes / CACHE_PART;
        if behind {
            self.suspect_more_growth(ceiling, step_ms);
        }
        let mut next = Before {
            time_ms: now_ms,
            charged_bytes,
            moved: false,
        };
        let bytes_max = counted_bytes.saturating_sub(aim);
        if bytes_max < MOVE_MIN_BYTES {
            self.before = Some(next);
            let room_bytes = aim.saturating_sub(counted_bytes);
            let until_full_ms = room_bytes as f64 / self.growth.max(1e-9) / 2.0;
            let sleep_ms = (until_full_ms as u64).clamp(step_ms, SLEEP_MAX_MS.max(step_ms));
            let reason = no_need(facts, charged_bytes, aim, room_bytes);
            return Wish::nothing(reason, now_ms + sleep_ms);
        }
        if much_cache && !facts.hands.cache {
            self.before = Some(next);
            let grounds =
                Grounds::new("cache_unseen", &[("file_bytes", Figure::Count(file_bytes))]);
            return Wish::nothing(Reason::Own(grounds), now_ms + SLEEP_MAX_MS);
        }
        let types = [facts.backend != super::Backend::None && !much_cache, true];
        let Some(action) = action(facts, types, bytes_max) else {
            self.before = Some(next);
            return Wish::nothing(Reason::NoMover, now_ms + SLEEP_MAX_MS);
        };
        next.moved = true;
        self.before = Some(next);
        Wish {
            action,
            reason: Reason::OverBudget {
                over_bytes: bytes_max,
                headroom_bytes: headroom,
                behind,
            },
            next_ms: now_ms + step_ms,
            forced: true,
        }
    }

    fn pace(&self) -> Pace {
        Pace {
            decide_ms: self.step_ms,
            look_ms: Some(self.look_ms),
            bounds: Intervals::new(vec![1_000, 10_000, 60_000]).expect("bounds increase"),
            hold: Some(Hold {
                budget_bytes: self.budget_bytes,
                order: self.order,
                measure: self.measure,
            }),
        }
    }
}
