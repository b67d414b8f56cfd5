// SPDX-License-Identifier: Apache-2.0
//! `pressure`: takes a little, watches whether tasks wait, and takes less or nothing if they do.
//!
//! Written from the published behaviour of senpai and TMO (Weiner et al., ASPLOS 2022): every
//! period, reclaim `resident x probe x max(0, 1 - share / target)`, where share is the part of the
//! period in which tasks waited for memory (theirs also count I/O). It uses no ages: the kernel's
//! own lists select what goes (`memory.reclaim`). If that is not available, or not permitted, the
//! pages go that agewise knows to be oldest. Waiting for refaults counts as well, because a page
//! returns from zram too quickly for PSI to see it.

use super::arguments::Arguments;
use super::{
    Action, Built, Entry, Facts, Figure, Grounds, GuardParams, Pace, Policy, Reason, Wish,
};
use crate::table::PAGE_BYTES;
use crate::workingset::Intervals;

pub(super) const ENTRY: Entry = Entry {
    name: "pressure",
    usage: "pressure[:some=0.1%,probe=1%,period=6s]",
    build,
};

#[derive(Clone, Debug)]
struct Pressure {
    some: f64,
    probe: f64,
    period_ms: u64,
    since_ms: Option<u64>,
    /// Time that tasks have waited since then, in us.
    waited_us: f64,
    /// Whether it needs ages: the kernel's own reclaim is not available here.
    looks: bool,
}

fn build(arguments: &mut Arguments<'_>) -> Built {
    let policy = Pressure {
        some: arguments.share("some", 0.001, 0.00001..=1.0)?,
        probe: arguments.share("probe", 0.01, 0.00001..=1.0)?,
        period_ms: arguments.duration("period", 6_000, 100..=86_400_000)?,
        since_ms: None,
        waited_us: 0.0,
        looks: false,
    };
    let guard = GuardParams {
        // Its small probes replace the slow start.
        start: 1.0,
        // PSI cannot see the short waits for rare reads; this rule can.
        harm: 0.005,
        ..GuardParams::default()
    };
    Ok((Box::new(policy), guard))
}

impl Policy for Pressure {
    fn wish(&mut self, facts: &Facts<'_>) -> Wish {
        let now_ms = facts.time_ms;
        self.looks = !facts.hands.reclaim;
        let Some(since_ms) = self.since_ms else {
            self.since_ms = Some(now_ms);
            return Wish::nothing(Reason::NotDue, now_ms + self.period_ms);
        };
        let psi = facts.psi.unwrap_or_default();
        self.waited_us += (psi.some_us as f64).max(refault_us(facts));
        let next_ms = since_ms + self.period_ms;
        if now_ms < next_ms {
            return Wish::nothing(Reason::NotDue, next_ms);
        }
        let share = self.waited_us / ((now_ms - since_ms) as f64 * 1e3);
        self.since_ms = Some(now_ms);
        self.waited_us = 0.0;
        let next_ms = now_ms + self.period_ms;
        if share >= self.some {
            let share_max = self.some;
            return Wish::nothing(Reason::PressureHigh { share, share_max }, next_ms);
        }
        let probe = self.probe * (1.0 - share / self.some);
        let bytes = (facts.resident() as f64 * probe) as u64;
        let action = match facts.hands {
            hands if hands.reclaim => Action::Reclaim { bytes, anon: true },
            hands if hands.page_out => Action::PageOut {
                older_than_ms: [Some(0); 2],
                bytes_max: bytes,
            },
            _ => return Wish::nothing(Reason::NoMover, next_ms),
        };
        Wish {
            action,
            reason: Reason::Own(Grounds::new(
                "probe",
                &[
                    ("share", Figure::Share(share)),
                    ("probe", Figure::Share(probe)),
                ],
            )),
            next_ms,
            forced: false,
        }
    }

    fn pace(&self) -> Pace {
        Pace {
            decide_ms: self.period_ms,
            look_ms: self.looks.then_some(self.period_ms),
            bounds: Intervals::default(),
            hold: None,
        }
    }
}

/// Time that tasks waited for pages that came back, in us.
fn refault_us(facts: &Facts<'_>) -> f64 {
    let of = |t: usize, default_ns: u64| {
        let ns = match facts.refaults.latency_ns[t] {
            0 => default_ns,
            measured => measured,
        };
        facts.refaults.bytes[t] as f64 / PAGE_BYTES as f64 * ns as f64 / 1e3
    };
    of(0, facts.backend.refault_ns()) + of(1, super::Backend::Ssd.refault_ns())
}
