// SPDX-License-Identifier: Apache-2.0
//! `shrink`: holds a cgroup as small as possible without harm, based on the curve of what less
//! memory would cost.
//!
//! It moves no page: it sets a limit, checks the waiting that the limit causes, and removes it.
//! [`crate::whatif::keep`] decides how. Whoever carries out policies does so if [`Policy::shrinks`]
//! asks for it, and does nothing if it has no limit to set.

use super::arguments::Arguments;
use super::{Built, Entry, Facts, GuardParams, Pace, Policy, Reason, Wish};
use crate::whatif::keep::Wanted;
use crate::workingset::Intervals;

/// The keeper of the curves evaluates it, not each look.
const DECIDE_MS: u64 = 60_000;

pub(super) const ENTRY: Entry = Entry {
    name: "shrink",
    usage: "shrink",
    build,
};

#[derive(Clone, Debug)]
struct Shrink(Wanted);

fn build(arguments: &mut Arguments<'_>) -> Built {
    let policy = Shrink(Wanted {
        wait_max: arguments.share("max_wait", 0.002, 0.0001..=0.5)?,
        floor_bytes: arguments.size("least", 0, 0..=1 << 50)?,
    });
    Ok((Box::new(policy), GuardParams::default()))
}

impl Policy for Shrink {
    fn wish(&mut self, facts: &Facts<'_>) -> Wish {
        Wish::nothing(Reason::NoMover, facts.time_ms + DECIDE_MS)
    }

    fn pace(&self) -> Pace {
        Pace {
            decide_ms: DECIDE_MS,
            look_ms: None,
            bounds: Intervals::default(),
            hold: None,
        }
    }

    fn shrinks(&self) -> Option<Wanted> {
        Some(self.0)
    }
}
