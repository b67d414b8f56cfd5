// SPDX-License-Identifier: Apache-2.0
//! Runs a workload to its end or for some time and measures it by name. Shared by all documents
//! whose benchmarks are workloads.

use std::error::Error;

use super::Pair;
use crate::experiment::machine_run::{MEASURES, Measured, Plan, Run};

/// Simulated time to measure, after a ramp that is not measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub ramp_ns: u64,
    pub run_ns: u64,
}

/// Measures of a run.
pub(super) struct Values {
    before: Option<Measured>,
    after: Measured,
    time_ns: u64,
    /// Durations of laps through phases, in ms, sorted.
    laps_ms: Vec<f64>,
}

impl Values {
    /// Runs a plan to its end, or through the window.
    ///
    /// # Errors
    /// Fails if the plan cannot be carried out, or all processes ended too early.
    pub fn of(plan: &Plan, window: Option<Window>) -> Result<Values, Box<dyn Error + Send + Sync>> {
        let mut run = Run::new(plan)?;
        let Some(Window { ramp_ns, run_ns }) = window else {
            run.run_until(u64::MAX)?;
            return Ok(Values::since(&run, None, 0, run.end_ns()));
        };
        run.run_until(ramp_ns)?;
        let before = run.measures();
        run.run_until(ramp_ns + run_ns)?;
        if run.is_done() {
            let ended_ms = run.end_ns() / 1_000_000;
            return Err(format!("all processes ended after {ended_ms} ms").into());
        }
        Ok(Values::since(&run, Some(before), ramp_ns, run_ns))
    }

    fn since(run: &Run, before: Option<Measured>, start_ns: u64, time_ns: u64) -> Values {
        let laps = run.laps().iter().filter(|lap| lap.start_ns >= start_ns);
        let mut laps_ms: Vec<f64> = laps
            .map(|lap| (lap.end_ns - lap.start_ns) as f64 / 1e6)
            .collect();
        laps_ms.sort_by(f64::total_cmp);
        Values {
            before,
            after: run.measures(),
            time_ns,
            laps_ms,
        }
    }

    /// The value of one of [`MEASURES`], in a window its increase; 0 for an unknown name.
    pub fn measure(&self, name: &str) -> f64 {
        let at = MEASURES.iter().position(|(known, _)| *known == name);
        let Some(at) = at else { return 0.0 };
        let before = self.before.as_ref().map_or(0.0, |before| before[at]);
        self.after[at] - before
    }

    /// The measure per second.
    pub fn rate(&self, name: &str) -> f64 {
        self.measure(name) * 1e9 / self.time_ns.max(1) as f64
    }

    /// Simulated time, in ms.
    pub fn time_ms(&self) -> f64 {
        self.time_ns as f64 / 1e6
    }

    /// Quantile `share` of the laps, in ms; 0 without laps.
    pub fn lap_ms(&self, share: f64) -> f64 {
        let last = self.laps_ms.len().saturating_sub(1);
        let at = (last as f64 * share) as usize;
        self.laps_ms.get(at).copied().unwrap_or(0.0)
    }
}

/// Pairs of values before and after.
pub(super) fn pairs(
    before: impl IntoIterator<Item = f64>,
    after: impl IntoIterator<Item = f64>,
) -> Vec<Pair> {
    let both = before.into_iter().zip(after);
    both.map(|(before, after)| Pair { before, after }).collect()
}
