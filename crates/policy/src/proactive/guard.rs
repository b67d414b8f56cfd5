// SPDX-License-Identifier: Apache-2.0
//! What applies to every policy: floor, rate, room in swap, no progress, backing off.
//!
//! - *Floor*: what must stay resident is not moved.
//! - *Rate*: a token bucket that holds one second's worth: in any window of w seconds at most rate
//!   x (w + 1) bytes leave.
//! - *Swap*: a share of swap stays free; below it only file memory goes.
//! - *No progress*: a pause of minutes at most if what was tried did not leave, three times in a
//!   row.
//! - *Backing off*: a pause if more of what is out came back within the window than `regret`
//!   allows, twice as long each time it happens again; after it, the next move is small (`start`)
//!   and doubles while nothing is regretted. The very first moves are small as well.
//! - *Harm*: refaults stay below a share of what programs access ([`Harm`]).
//! - *Pressure*: moves shrink with the time tasks wait for memory, down to nothing at `pressure`.
//!
//! The last three do not apply to memory that must go in any case ([`Wish::forced`]).

use super::arguments::Arguments;
use super::harm::Harm;
use super::{Action, Cause, Decision, Facts, Limit, Reason, SpecError, Wish};
use crate::table::PAGE_BYTES;

const MIB: u64 = 1 << 20;
/// Fewer refaults than this are noise: they prove and disprove nothing.
const NOISE_BYTES: f64 = 64.0 * 1024.0;
/// This many fruitless moves in a row cause a pause.
const FRUITLESS_MAX: u32 = 3;
/// A move was fruitless if less than this share of it left.
const FRUITLESS_SHARE: f64 = 0.05;
/// Pauses become shorter again after this many times their length without regret.
const CALM_PAUSES: u64 = 4;
/// The longest pause after such moves: what stays does no harm, and what grows cold has to wait.
const FRUITLESS_PAUSE_MAX_MS: u64 = 300_000;
/// The longest pause for memory that must go in any case.
const FORCED_PAUSE_MAX_MS: u64 = 1_000;
const DAY_MS: u64 = 86_400_000;

/// Parameters of a guard. Each policy has its own defaults; the keys are the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardParams {
    /// `floor`: bytes that stay resident.
    pub floor_bytes: u64,
    /// `rate`: bytes per second.
    pub rate_bytes_per_s: u64,
    /// `swap_free`: share of swap that stays free.
    pub swap_free: f64,
    /// `backoff`: whether refaults and pressure slow a policy down.
    pub backoff: bool,
    /// `regret`: share of what is out that may come back within `window` without backing off.
    pub regret: f64,
    /// `window`, in ms.
    pub window_ms: u64,
    /// `harm`: share of the memory found accessed that may refault; 1 means no limit.
    pub harm: f64,
    /// `start`: share of resident memory that the very first move, and the first after a pause, may
    /// take.
    pub start: f64,
    /// `pause`: the first pause, in ms.
    pub pause_ms: u64,
    /// `pause_max`: the longest pause, in ms.
    pub pause_max_ms: u64,
    /// `pressure`: if tasks wait for memory for this share of time, nothing is moved.
    pub pressure: f64,
}

impl Default for GuardParams {
    fn default() -> Self {
        GuardParams {
            floor_bytes: 0,
            rate_bytes_per_s: 256 * MIB,
            swap_free: 0.1,
            backoff: true,
            regret: 0.2,
            window_ms: 60_000,
            harm: 1.0,
            start: 0.02,
            pause_ms: 10_000,
            pause_max_ms: 3_600_000,
            pressure: 0.1,
        }
    }
}

impl GuardParams {
    /// These parameters, except those that the text changes.
    pub(super) fn with(self, from: &mut Arguments<'_>) -> Result<Self, SpecError> {
        let pause_ms = from.duration("pause", self.pause_ms, 100..=DAY_MS)?;
        let longest_ms = self.pause_max_ms.max(pause_ms);
        Ok(GuardParams {
            floor_bytes: from.size("floor", self.floor_bytes, 0..=1 << 50)?,
            rate_bytes_per_s: from.size("rate", self.rate_bytes_per_s, PAGE_BYTES..=1 << 40)?,
            swap_free: from.share("swap_free", self.swap_free, 0.0..=1.0)?,
            pause_ms,
            pause_max_ms: from.duration("pause_max", longest_ms, pause_ms..=DAY_MS)?,
            ..self
        })
    }

    /// The same for those that have no effect on memory that must go in any case.
    pub(super) fn with_backing_off(self, from: &mut Arguments<'_>) -> Result<Self, SpecError> {
        Ok(GuardParams {
            backoff: from.switch("backoff", self.backoff)?,
            regret: from.share("regret", self.regret, 0.001..=1.0)?,
            window_ms: from.duration("window", self.window_ms, 1000..=DAY_MS)?,
            harm: from.share("harm", self.harm, 0.0..=1.0)?,
            start: from.share("start", self.start, 0.0001..=1.0)?,
            pressure: from.share("pressure", self.pressure, 0.0001..=1.0)?,
            ..self
        })
    }
}

/// The state of one target's guard.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    params: GuardParams,
    last_ms: Option<u64>,
    /// Bytes that the rate still allows.
    tokens: f64,
    /// How many of them the last decision took.
    taken: u64,
    /// Refaulted bytes, decayed over the window.
    returned: f64,
    /// File bytes that left and have not come back, as far as known.
    file_out: f64,
    /// The share of the time since the previous facts in which tasks waited.
    pressure: f64,
    /// Share of resident memory that the next voluntary move may take.
    quantum: f64,
    pause: Option<(u64, Cause)>,
    /// Pauses in a row.
    level: u32,
    /// Since when nothing has been regretted.
    calm_ms: u64,
    fruitless: u32,
    /// When the last voluntary move was, until it has been judged.
    moved_ms: Option<u64>,
    harm: Harm,
}

impl Guard {
    /// A guard without observations.
    pub fn new(params: GuardParams) -> Self {
        Guard {
            params,
            last_ms: None,
            tokens: params.rate_bytes_per_s as f64,
            taken: 0,
            returned: 0.0,
            file_out: 0.0,
            pressure: 0.0,
            quantum: params.start,
            pause: None,
            level: 0,
            calm_ms: 0,
            fruitless: 0,
            moved_ms: None,
            harm: Harm::new(params.harm, params.window_ms as f64 / 1e3),
        }
    }

    /// Takes in the facts, before the policy is asked.
    pub(super) fn observe(&mut self, facts: &Facts<'_>) {
        let before_ms = self.last_ms.replace(facts.time_ms).unwrap_or(facts.time_ms);
        let passed_ms = facts.time_ms - before_ms;
        let rate = self.params.rate_bytes_per_s as f64;
        self.tokens += rate * passed_ms as f64 / 1e3;
        self.settle(facts);
        self.tokens = self.tokens.min(rate);

        self.pressure = match facts.psi {
            Some(psi) if passed_ms > 0 => psi.some_us as f64 / (passed_ms as f64 * 1e3),
            Some(_) => self.pressure,
            None => 0.0,
        };
        let keep = 0.5f64.powf(passed_ms as f64 * 2.0 / self.params.window_ms as f64);
        let [anon, file] = facts.refaults.bytes;
        self.returned = self.returned * keep + anon as f64 + file as f64;
        self.file_out = (self.file_out - file as f64).max(0.0);
        let accessed = |looked: super::Looked<'_>| {
            let bytes = looked.returned.iter().flat_map(|bin| bin.amounts);
            bytes.fold(0u64, u64::saturating_add)
        };
        self.harm.pass(
            passed_ms as f64 / 1e3,
            facts.resident(),
            self.out_bytes(facts),
            anon as f64 + file as f64,
            facts
                .looked
                .filter(|l| !l.returned.is_empty())
                .map(accessed),
        );
        self.judge(facts);
    }

    /// Evaluates the last decision: returns the tokens it did not use, and counts moves that
    /// achieved nothing.
    fn settle(&mut self, facts: &Facts<'_>) {
        let taken = std::mem::take(&mut self.taken);
        let Some(outcome) = facts.outcome else {
            return;
        };
        let [anon, file] = outcome.left_bytes;
        let left = anon.saturating_add(file);
        self.tokens += taken.saturating_sub(left) as f64;
        self.file_out += file as f64;
        let tried = outcome.tried_bytes;
        if tried == 0 {
            return;
        }
        if left as f64 >= tried as f64 * FRUITLESS_SHARE {
            self.fruitless = 0;
            return;
        }
        self.fruitless += 1;
        if self.fruitless >= FRUITLESS_MAX {
            self.fruitless = 0;
            self.hold_still(facts.time_ms, Cause::NoProgress);
        }
    }

    /// Pauses if too much came back; if a move went well for long enough, more may go next time.
    fn judge(&mut self, facts: &Facts<'_>) {
        if let Some((until_ms, _)) = self.pause {
            if facts.time_ms < until_ms {
                return;
            }
            // The pause already paid for what came back during it.
            self.pause = None;
            self.returned = 0.0;
        }
        if !self.params.backoff {
            return;
        }
        let out = self.out_bytes(facts);
        let regretted = self.returned - self.params.regret * (out + self.returned);
        if regretted > NOISE_BYTES {
            self.hold_still(facts.time_ms, Cause::Refaults);
        } else if self.moved_ms.is_some_and(|at_ms| facts.time_ms > at_ms) {
            self.moved_ms = None;
            self.quantum = (self.quantum * 2.0).min(1.0);
            self.forgive(facts.time_ms);
        }
    }

    /// Bytes that are out, as far as known.
    fn out_bytes(&self, facts: &Facts<'_>) -> f64 {
        facts.out_bytes as f64 + self.file_out
    }

    /// Forgets a pause once things have gone well for several times its length.
    fn forgive(&mut self, now_ms: u64) {
        if self.level > 0 && now_ms >= self.calm_ms + CALM_PAUSES * self.pause_ms(self.level - 1) {
            self.level -= 1;
            self.calm_ms = now_ms;
        }
    }

    fn pause_ms(&self, level: u32) -> u64 {
        let factor = 1u64 << level.min(30);
        let pause_ms = self.params.pause_ms.saturating_mul(factor);
        pause_ms.min(self.params.pause_max_ms)
    }

    fn hold_still(&mut self, now_ms: u64, cause: Cause) {
        let longest_ms = match cause {
            Cause::Refaults => self.params.pause_max_ms,
            Cause::NoProgress => self.params.pause_max_ms.min(FRUITLESS_PAUSE_MAX_MS),
        };
        let pause_ms = self.pause_ms(self.level);
        let until_ms = now_ms.saturating_add(pause_ms.min(longest_ms));
        self.pause = Some((until_ms, cause));
        self.calm_ms = until_ms;
        // No further than pauses grow: each level takes its time to be forgiven.
        if pause_ms < longest_ms {
            self.level += 1;
        }
        self.quantum = self.params.start;
        self.moved_ms = None;
    }

    /// Reduces a wish to what may be done.
    pub(super) fn check(&mut self, facts: &Facts<'_>, wish: Wish) -> Decision {
        let Wish {
            mut action,
            mut reason,
            mut next_ms,
            forced,
        } = wish;
        let mut limit = None;
        if action.bytes() > 0 {
            let cuts: [Rule; 7] = [
                Self::cut_by_pause,
                Self::cut_by_swap,
                Self::cut_by_floor,
                Self::cut_by_start,
                Self::cut_by_harm,
                Self::cut_by_pressure,
                Self::cut_by_rate,
            ];
            for cut in cuts {
                let cut = cut(self, facts, action, forced);
                if cut.action != action {
                    limit = cut.limit.or(limit);
                }
                action = cut.action;
                if action.bytes() == 0 {
                    reason = cut.reason;
                    next_ms = cut.next_ms.map_or(next_ms, |ms| next_ms.min(ms));
                    limit = None;
                    break;
                }
            }
        }
        let bytes = action.bytes();
        self.tokens -= bytes as f64;
        self.taken = bytes;
        if bytes > 0 && !forced {
            self.moved_ms = Some(facts.time_ms);
        }
        Decision {
            action,
            reason,
            limit,
            next_ms,
        }
    }

    fn cut_by_pause(&mut self, facts: &Facts<'_>, action: Action, forced: bool) -> Cut {
        let Some((until_ms, cause)) = self.pause else {
            return Cut::none(action);
        };
        let until_ms = match forced {
            true if cause == Cause::Refaults => return Cut::none(action),
            true => until_ms.min(facts.time_ms + FORCED_PAUSE_MAX_MS),
            false => until_ms,
        };
        if forced {
            // Forced moves are asked for every few ms, so the pause itself must be shortened.
            self.pause = Some((until_ms, cause));
        }
        Cut {
            action: Action::Nothing,
            limit: None,
            reason: Reason::CoolingDown {
                for_ms: until_ms.saturating_sub(facts.time_ms),
                cause,
            },
            next_ms: None,
        }
    }

    fn cut_by_swap(&mut self, facts: &Facts<'_>, action: Action, _: bool) -> Cut {
        let Some(swap) = facts.swap.filter(|_| action.takes_anon()) else {
            return Cut::none(action);
        };
        let reserve = (swap.total_bytes as f64 * self.params.swap_free) as u64;
        let room = swap.free_bytes.saturating_sub(reserve);
        let cut = match room {
            0 => action.without_anon().at_most(facts.resident_bytes[1]),
            room => action.at_most(room),
        };
        let free_bytes = swap.free_bytes;
        Cut::by(cut, Limit::Swap, Reason::SwapFull { free_bytes })
    }

    fn cut_by_floor(&mut self, facts: &Facts<'_>, action: Action, _: bool) -> Cut {
        let floor_bytes = self.params.floor_bytes.max(facts.floor_bytes);
        let room = facts.resident().saturating_sub(floor_bytes);
        let reason = Reason::AtFloor { floor_bytes };
        Cut::by(action.at_most(room), Limit::Floor, reason)
    }

    fn cut_by_start(&mut self, facts: &Facts<'_>, action: Action, forced: bool) -> Cut {
        if forced || !self.params.backoff || self.quantum >= 1.0 {
            return Cut::none(action);
        }
        // At least one page, or a small target would never start.
        let bytes = ((facts.resident() as f64 * self.quantum) as u64).max(PAGE_BYTES);
        Cut::by(action.at_most(bytes), Limit::SlowStart, Reason::RateSpent)
    }

    fn cut_by_harm(&mut self, facts: &Facts<'_>, action: Action, forced: bool) -> Cut {
        let room = self.harm.room_bytes(self.out_bytes(facts));
        let Some(room) = room.filter(|_| !forced && self.params.backoff) else {
            return Cut::none(action);
        };
        Cut::by(action.at_most(room), Limit::Harm, Reason::ComesBack)
    }

    fn cut_by_pressure(&mut self, _: &Facts<'_>, action: Action, forced: bool) -> Cut {
        if forced || !self.params.backoff || self.pressure <= 0.0 {
            return Cut::none(action);
        }
        let reason = Reason::PressureHigh {
            share: self.pressure,
            share_max: self.params.pressure,
        };
        let room = (1.0 - self.pressure / self.params.pressure).max(0.0);
        let bytes = (action.bytes() as f64 * room) as u64;
        Cut::by(action.at_most(bytes), Limit::Pressure, reason)
    }

    fn cut_by_rate(&mut self, facts: &Facts<'_>, action: Action, _: bool) -> Cut {
        let room = self.tokens.max(0.0) as u64;
        let mut cut = Cut::by(action.at_most(room), Limit::Rate, Reason::RateSpent);
        if cut.action == action {
            return cut;
        }
        // Soon enough for the rest, and late enough for the rest to be worth a call.
        let rate = self.params.rate_bytes_per_s;
        let rest = action.bytes().min(rate / 4);
        let wait_ms = (rest as f64 * 1e3 / rate as f64).ceil() as u64;
        cut.next_ms = Some(facts.time_ms + wait_ms.max(1));
        cut
    }
}

/// A rule: returns how much of an action may be done. The last parameter is [`Wish::forced`].
type Rule = fn(&mut Guard, &Facts<'_>, Action, bool) -> Cut;

/// What a rule left of an action.
struct Cut {
    action: Action,
    limit: Option<Limit>,
    /// The reason if nothing is left.
    reason: Reason,
    next_ms: Option<u64>,
}

impl Cut {
    fn none(action: Action) -> Self {
        Cut::by(action, Limit::Rate, Reason::NotDue)
    }

    fn by(action: Action, limit: Limit, reason: Reason) -> Self {
        Cut {
            action,
            limit: Some(limit),
            reason,
            next_ms: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each level takes hours to be forgiven.
    #[test]
    fn a_day_of_moves_without_effect_makes_no_pause_of_an_hour() {
        let mut guard = Guard::new(GuardParams::default());
        let mut hold_still = |now_ms, cause| {
            guard.hold_still(now_ms, cause);
            guard.pause.map_or(now_ms, |(until_ms, _)| until_ms)
        };
        let mut now_ms = 0;
        while now_ms < 86_400_000 {
            now_ms = hold_still(now_ms, Cause::NoProgress);
        }
        let pause_ms = hold_still(now_ms, Cause::Refaults) - now_ms;
        assert!(pause_ms <= 2 * FRUITLESS_PAUSE_MAX_MS, "{pause_ms}");
    }
}
