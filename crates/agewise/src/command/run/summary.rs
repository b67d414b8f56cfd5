// SPDX-License-Identifier: Apache-2.0
//! What `agewise run` says at the end.

use std::fmt;
use std::time::Duration;

use agewise_host::untrusted::clean;
use serde::Serialize;

use agewise_cli::units::{bytes_text, duration_text};

/// One run of a command. Memory is that of the command and all that came from it; pages that
/// several of them share count in each.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// `run`.
    pub record: &'static str,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Its exit status; 128 plus the number of the signal that ended it.
    pub exit_code: u8,
    /// How long it ran.
    pub elapsed_ms: u64,
    /// The most memory resident at once, among samples.
    pub resident_peak_bytes: u64,
    /// Mean resident memory over time.
    pub resident_mean_bytes: u64,
    /// What not being touched for so long made cold.
    pub older_than_ms: u64,
    /// Moved out, all passes together.
    pub reclaimed_bytes: u64,
    /// The part of it that went to swap.
    pub reclaimed_anon_bytes: u64,
    /// The part of it that a file backs.
    pub reclaimed_file_bytes: u64,
    /// Of what was moved out, how much came back.
    pub refaulted_bytes: u64,
    /// Looks at all of its memory.
    pub scans: u64,
    /// CPU time of agewise itself, all of it.
    pub agewise_cpu_ms: f64,
    /// The same as a share of one core over the run.
    pub agewise_cpu_ratio: f64,
    /// CPU time of the command and those of its children it waited for.
    pub command_cpu_ms: f64,
    /// What stood in the way, each once; empty if nothing did.
    pub notes: Vec<String>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |ms: f64| duration_text(Duration::from_secs_f64(ms.max(0.0) / 1e3));
        writeln!(
            f,
            "agewise: {} ran for {}",
            clean(&self.command.join(" ")),
            time(self.elapsed_ms as f64)
        )?;
        writeln!(
            f,
            "  resident     peak {}, mean {}",
            bytes_text(self.resident_peak_bytes),
            bytes_text(self.resident_mean_bytes)
        )?;
        writeln!(
            f,
            "  reclaimed    {} not touched for {} ({} to swap, {} of files)",
            bytes_text(self.reclaimed_bytes),
            time(self.older_than_ms as f64),
            bytes_text(self.reclaimed_anon_bytes),
            bytes_text(self.reclaimed_file_bytes)
        )?;
        writeln!(f, "  refaulted    {}", bytes_text(self.refaulted_bytes))?;
        writeln!(
            f,
            "  cost         {} CPU of agewise ({:.2} % of one core, {} scans) beside {} of the command",
            time(self.agewise_cpu_ms),
            self.agewise_cpu_ratio * 100.0,
            self.scans,
            time(self.command_cpu_ms)
        )?;
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "  note         {}", clean(note)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_for_people() {
        let summary = Summary {
            record: "run",
            command: vec!["make".into(), "all".into()],
            elapsed_ms: 65_000,
            resident_peak_bytes: 512 << 20,
            resident_mean_bytes: 300 << 20,
            older_than_ms: 30_000,
            reclaimed_bytes: 212 << 20,
            reclaimed_anon_bytes: 200 << 20,
            reclaimed_file_bytes: 12 << 20,
            refaulted_bytes: 1 << 20,
            scans: 8,
            agewise_cpu_ms: 650.0,
            agewise_cpu_ratio: 0.01,
            command_cpu_ms: 60_000.0,
            notes: vec!["no swap: only pages of files can leave".into()],
            ..Summary::default()
        };
        insta::assert_snapshot!(summary.to_string(), @r"
        agewise: make all ran for 1 m 5 s
          resident     peak 512.0 MiB, mean 300.0 MiB
          reclaimed    212.0 MiB not touched for 30 s (200.0 MiB to swap, 12.0 MiB of files)
          refaulted    1.0 MiB
          cost         650 ms CPU of agewise (1.00 % of one core, 8 scans) beside 1 m 0 s of the command
          note         no swap: only pages of files can leave
        ");
    }
}
