// SPDX-License-Identifier: Apache-2.0
//! `age`: everything older than T goes, every P.
//!
//! Source: the policy of the working-set report's benchmarks (cover letter of v4: everything older
//! than 10 s, every 40 s). It considers no cost; with `backoff=off` it is exactly that policy.

use super::arguments::Arguments;
use super::{
    Action, Built, Entry, Facts, Figure, Grounds, GuardParams, Pace, Policy, Reason, Wish,
};
use crate::workingset::{Bin, Intervals};

/// A week: nobody waits longer.
const AGE_MAX_MS: u64 = 7 * 86_400_000;

pub(super) const ENTRY: Entry = Entry {
    name: "age",
    usage: "age:OLDER_THAN/EVERY",
    build,
};

#[derive(Clone, Debug)]
struct Age {
    older_than_ms: u64,
    every_ms: u64,
    due_ms: Option<u64>,
    /// Bytes that were old enough at the newest look, anon and file.
    cold_bytes: Option<[u64; 2]>,
}

fn build(arguments: &mut Arguments<'_>) -> Built {
    let both = arguments.positional().ok_or_else(|| arguments.usage())?;
    let (older_than, every) = both.split_once('/').ok_or_else(|| arguments.usage())?;
    let policy = Age {
        older_than_ms: arguments.duration_of("older_than", older_than, 1..=AGE_MAX_MS)?,
        every_ms: arguments.duration_of("every", every, 10..=AGE_MAX_MS)?,
        due_ms: None,
        cold_bytes: None,
    };
    Ok((Box::new(policy), GuardParams::default()))
}

/// Bytes in the bins that lie wholly above an age.
pub(super) fn older_than(bins: &[Bin], age_ms: u64) -> [u64; 2] {
    let from = bins.partition_point(|bin| bin.upper_ms <= age_ms);
    // The bin that contains the age begins below it, unless a bound lies exactly there.
    let exact = age_ms == 0 || (from > 0 && bins[from - 1].upper_ms == age_ms);
    let wholly = bins.iter().skip(if exact { from } else { from + 1 });
    wholly.fold([0; 2], |sum: [u64; 2], bin| {
        [0, 1].map(|t| sum[t].saturating_add(bin.amounts[t]))
    })
}

impl Policy for Age {
    fn wish(&mut self, facts: &Facts<'_>) -> Wish {
        let now_ms = facts.time_ms;
        if let Some(looked) = facts.looked {
            self.cold_bytes = Some(older_than(looked.bins, self.older_than_ms));
        }
        let due_ms = *self.due_ms.get_or_insert(now_ms + self.every_ms);
        if now_ms < due_ms {
            return Wish::nothing(Reason::NotDue, due_ms);
        }
        let Some(cold) = self.cold_bytes else {
            // Better late by one look than blind.
            let soon_ms = now_ms + self.pace().look_ms.unwrap_or(self.every_ms);
            return Wish::nothing(Reason::NoAges, soon_ms);
        };
        // Count from the time it was due, so that late calls do not stretch the period; missed
        // periods are not made up for.
        let missed = (now_ms - due_ms) / self.every_ms;
        let next_ms = due_ms + (missed + 1) * self.every_ms;
        self.due_ms = Some(next_ms);
        if !facts.hands.page_out {
            return Wish::nothing(Reason::NoMover, next_ms);
        }
        let cold_bytes = cold[0].saturating_add(cold[1]);
        if cold_bytes == 0 {
            return Wish::nothing(Reason::NothingCold, next_ms);
        }
        Wish {
            action: Action::PageOut {
                older_than_ms: [Some(self.older_than_ms); 2],
                bytes_max: cold_bytes,
            },
            reason: Reason::Own(Grounds::new(
                "older",
                &[
                    ("idle_ms", Figure::Count(self.older_than_ms)),
                    ("cold_bytes", Figure::Count(cold_bytes)),
                ],
            )),
            next_ms,
            forced: false,
        }
    }

    fn pace(&self) -> Pace {
        let look_ms = (self.older_than_ms / 5).min(self.every_ms).max(1);
        Pace {
            decide_ms: self.every_ms,
            look_ms: Some(look_ms),
            bounds: Intervals::new(vec![self.older_than_ms]).expect("one bound above 0"),
            hold: None,
        }
    }
}
