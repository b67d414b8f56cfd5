// SPDX-License-Identifier: Apache-2.0
//! The gain that a budget measured itself, compared with that shown by pairs of runs.

use std::io::Write;

use agewise_cli::output::{self, Format};
use agewise_policy::budget::Gain;
use agewise_policy::statistics::Change as OwnChange;
use serde::Serialize;

use super::super::statistics::Change;
use super::{OfPairs, Pairs, Record};

/// Both measurements.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct SelfMeasured {
    /// By epochs of one run; `None` if the run was too short.
    measured: Option<Gain>,
    /// By pairs of runs.
    pairs: Pairs,
    /// Whether their intervals for major faults overlap; `None` if one is missing.
    major_faults_agree: Option<bool>,
    /// The same for CPU time.
    cpu_agrees: Option<bool>,
}

impl SelfMeasured {
    pub fn of(measured: Option<Gain>, pairs: Pairs) -> Self {
        let agrees = |own: fn(&Gain) -> Option<OwnChange>, by_pairs: Option<OfPairs>| {
            Some(meet(own(&measured?)?, by_pairs?.change))
        };
        SelfMeasured {
            measured,
            pairs,
            major_faults_agree: agrees(|gain| gain.faults_change, pairs.major_faults),
            cpu_agrees: agrees(|gain| gain.cpu_change, pairs.cpu),
        }
    }

    pub fn print(&self, out: &mut impl Write, format: Format) -> anyhow::Result<()> {
        if format == Format::Json {
            let record = Record {
                record: "reclaim_self_measured",
                fields: self,
            };
            return Ok(output::json_line(out, &record)?);
        }
        let Some(gain) = &self.measured else {
            writeln!(
                out,
                "   the daemon has not compared enough of its own epochs yet"
            )?;
            return Ok(());
        };
        writeln!(
            out,
            "   the daemon itself, by {} pairs of epochs:",
            gain.pairs
        )?;
        let named = [
            ("major faults", gain.faults_change, self.major_faults_agree),
            ("CPU", gain.cpu_change, self.cpu_agrees),
        ];
        for (name, change, agrees) in named {
            let Some(change) = change else { continue };
            let word = match agrees {
                Some(true) => ": agrees",
                Some(false) => ": does not agree",
                None => "",
            };
            writeln!(
                out,
                "   {name}: {:+.1} % ({:+.1} to {:+.1} %){word}",
                change.mean * 100.0,
                (change.mean - change.half) * 100.0,
                (change.mean + change.half) * 100.0,
            )?;
        }
        Ok(out.flush()?)
    }
}

/// Whether two intervals overlap.
fn meet(own: OwnChange, pairs: Change) -> bool {
    own.mean - own.half <= pairs.change_high_ratio && own.mean + own.half >= pairs.change_low_ratio
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_meet_or_do_not() {
        let pairs = Change {
            change_ratio: -0.2,
            change_low_ratio: -0.25,
            change_high_ratio: -0.15,
        };
        for (mean, half, agrees) in [
            (-0.2, 0.0, true),
            (-0.1, 0.06, true),
            (-0.1, 0.04, false),
            (-0.3, 0.04, false),
            (-0.3, 0.06, true),
        ] {
            assert_eq!(meet(OwnChange { mean, half }, pairs), agrees, "{mean}");
        }
    }
}
