// SPDX-License-Identifier: Apache-2.0
//! The summary that `agewise run` prints at the end.

use std::fmt;
use std::time::Duration;

use agewise_host::pagecache::DropReport;
use agewise_host::untrusted::clean;
use agewise_policy::budget::{Gain, KernelFirst, Verdict};
use agewise_policy::statistics::Change;
use serde::Serialize;

use crate::command::reclaim::files::kept;
use agewise_cli::units::{bytes_text, count_text, duration_text};

/// The summary of one run. Memory is that of the command and all its descendants; a page shared by
/// several of them counts in each.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// `run`.
    pub record: &'static str,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The command's exit status, or 128 plus the signal that ended it.
    pub exit_code: u8,
    /// Run time.
    pub elapsed_ms: u64,
    /// Peak resident memory among the samples.
    pub resident_peak_bytes: u64,
    /// Mean resident memory over time.
    pub resident_mean_bytes: u64,
    /// The threshold for cold memory, with `--older-than`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than_ms: Option<u64>,
    /// The limit that was set, with `--memory`; none in a rehearsal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// The policy that held the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// How often the limit was reached, so that the kernel had to reclaim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_hits: Option<u64>,
    /// Processes killed by the kernel because there was nothing to reclaim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Major faults: the program waited for a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_faults: Option<u64>,
    /// What the policy gained compared with the kernel alone.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub gain: Option<Gain>,
    /// Why the budget was not held at the end: the kernel had the limit first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_held: Option<KernelFirst>,
    /// Moved out in all passes.
    pub reclaimed_bytes: u64,
    /// The part of it that went to swap.
    pub reclaimed_anon_bytes: u64,
    /// The part of it that is file-backed.
    pub reclaimed_file_bytes: u64,
    /// What became of cold pages of files, with `--older-than --files`; of those that stayed, at
    /// the last look.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<DropReport>,
    /// How much of what was moved out came back; with `--older-than`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refaulted_bytes: Option<u64>,
    /// Number of looks at all of its memory.
    pub scans: u64,
    /// Total CPU time of agewise itself.
    pub agewise_cpu_ms: f64,
    /// The same as a share of one core over the time that agewise ran, its own start included.
    pub agewise_cpu_ratio: f64,
    /// CPU time of the command and of the children it waited for.
    pub command_cpu_ms: f64,
    /// Distinct notes on what went wrong; empty if nothing did.
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
        let reclaimed = bytes_text(self.reclaimed_bytes);
        if let Some(older_than_ms) = self.older_than_ms {
            writeln!(
                f,
                "  reclaimed    {reclaimed} not touched for {} ({} to swap, {} of files)",
                time(older_than_ms as f64),
                bytes_text(self.reclaimed_anon_bytes),
                bytes_text(self.reclaimed_file_bytes)
            )?;
        }
        if let Some(dropped) = &self.dropped {
            cold_files(f, dropped)?;
        }
        if let Some(refaulted_bytes) = self.refaulted_bytes {
            writeln!(f, "  refaulted    {}", bytes_text(refaulted_bytes))?;
        }
        if let Some(limit_bytes) = self.limit_bytes {
            let limit = bytes_text(limit_bytes);
            write!(
                f,
                "  limit        {limit}, {} moved to swap",
                bytes_text(self.reclaimed_anon_bytes)
            )?;
            if self.reclaimed_file_bytes > 0 {
                let dropped = bytes_text(self.reclaimed_file_bytes);
                write!(f, " and {dropped} of files dropped")?;
            }
            write!(f, " ahead of it")?;
            if let (Some(hits), Some(faults)) = (self.limit_hits, self.major_faults) {
                let hits = count_text(hits, "time", "times");
                let faults = count_text(faults, "major fault", "major faults");
                write!(f, "; reached {hits}, {faults}")?;
            }
            writeln!(f)?;
        }
        if let Some(gain) = &self.gain {
            worth(f, gain)?;
        } else if let Some(first) = &self.not_held {
            not_held(f, first)?;
        }
        writeln!(
            f,
            "  cost         {} CPU of agewise ({:.2} % of one core, {} scans) beside {} of the \
             command",
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

/// Describes what became of cold pages of files.
fn cold_files(f: &mut fmt::Formatter<'_>, dropped: &DropReport) -> fmt::Result {
    write!(
        f,
        "  files        {} dropped",
        bytes_text(dropped.left_bytes)
    )?;
    let others = [
        (
            dropped.unreachable_bytes,
            "without a path, or on network and FUSE file systems",
        ),
        (dropped.limited_bytes, "not reached yet"),
    ];
    let kept = kept(dropped).into_iter().chain(others);
    for (bytes, why) in kept.filter(|(bytes, _)| *bytes > 0) {
        write!(f, "; {} kept: {why}", bytes_text(bytes))?;
    }
    writeln!(f)
}

/// Says that only the kernel held the limit.
fn not_held(f: &mut fmt::Formatter<'_>, first: &KernelFirst) -> fmt::Result {
    writeln!(
        f,
        "  worth        only the kernel held the limit: {} came in, fewer than {} \
         (--from-start: at once)",
        count_text(first.came_in_pages, "page", "pages"),
        first.until_pages
    )
}

/// Describes what holding the limit gained.
fn worth(f: &mut fmt::Formatter<'_>, gain: &Gain) -> fmt::Result {
    let verdict = match gain.verdict {
        Verdict::Open => "not decided yet",
        Verdict::Pays => "it pays",
        Verdict::Back => "it does not pay, so the kernel alone holds the limit",
    };
    write!(f, "  worth        ")?;
    for (name, change) in [("faults", gain.faults_change), ("time", gain.time_change)] {
        if let Some(Change { mean, half }) = change {
            write!(
                f,
                "{name} {:+.1} % \u{b1} {:.1} %, ",
                mean * 100.0,
                half * 100.0
            )?;
        }
    }
    writeln!(f, "by {} pairs of epochs: {verdict}", gain.pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holding_a_limit_was_worth_is_told() {
        let summary = Summary {
            command: vec!["job".into()],
            limit_bytes: Some(512 << 20),
            reclaimed_bytes: 100 << 20,
            reclaimed_anon_bytes: 100 << 20,
            limit_hits: Some(3),
            major_faults: Some(41),
            gain: Some(Gain {
                verdict: Verdict::Pays,
                pairs: 8,
                faults_change: Some(Change {
                    mean: -0.18,
                    half: 0.03,
                }),
                cpu_change: None,
                time_change: None,
            }),
            ..Summary::default()
        };
        let text = summary.to_string();
        let lines: Vec<&str> = text.lines().skip(2).take(2).collect();
        assert_eq!(
            lines,
            [
                "  limit        512.0 MiB, 100.0 MiB moved to swap ahead of it; reached 3 times, \
                 41 major faults",
                "  worth        faults -18.0 % \u{b1} 3.0 %, by 8 pairs of epochs: it pays",
            ]
        );
    }

    #[test]
    fn that_the_kernel_held_the_limit_is_told() {
        let summary = Summary {
            command: vec!["job".into()],
            limit_bytes: Some(512 << 20),
            not_held: Some(KernelFirst {
                came_in_pages: 1,
                until_pages: 262_144,
            }),
            ..Summary::default()
        };
        let text = summary.to_string();
        assert_eq!(
            text.lines().nth(3),
            Some(
                "  worth        only the kernel held the limit: 1 page came in, fewer than 262144 \
                 (--from-start: at once)"
            )
        );
    }

    #[test]
    fn text_is_for_people() {
        let summary = Summary {
            record: "run",
            command: vec!["make".into(), "all".into()],
            elapsed_ms: 65_000,
            resident_peak_bytes: 512 << 20,
            resident_mean_bytes: 300 << 20,
            older_than_ms: Some(30_000),
            reclaimed_bytes: 212 << 20,
            reclaimed_anon_bytes: 200 << 20,
            reclaimed_file_bytes: 12 << 20,
            dropped: Some(DropReport {
                asked_bytes: 9 << 20,
                left_bytes: 8 << 20,
                dirty_bytes: 1 << 20,
                ..DropReport::default()
            }),
            refaulted_bytes: Some(1 << 20),
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
          files        8.0 MiB dropped; 1.0 MiB kept: dirty or being written
          refaulted    1.0 MiB
          cost         650 ms CPU of agewise (1.00 % of one core, 8 scans) beside 1 m of the command
          note         no swap: only pages of files can leave
        ");
    }
}
