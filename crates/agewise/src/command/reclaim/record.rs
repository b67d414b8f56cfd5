// SPDX-License-Identifier: Apache-2.0
//! Output of `agewise reclaim`: the plan, the result for each process, and the total, as JSON
//! lines, CSV or text.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use agewise_host::mover::{PageoutReport, SkipReason};
use agewise_host::untrusted::{Untrusted, clean};
use serde::Serialize;

use agewise_cli::output::{self, Format};
use agewise_cli::units::{bytes_text, duration_text};

/// The most processes or files listed in text output; the total covers the rest.
pub(super) const LINES_MAX: usize = 20;

/// Why it is not known whether some of what left has come back.
const UNWATCHED: &str = "left in too many pieces to know what comes back";

/// The cold memory of one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Planned {
    /// `plan`.
    pub record: &'static str,
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: Untrusted,
    /// Its resident memory.
    pub resident_bytes: u64,
    /// Anonymous memory not touched for longer than `--older-than`; only swap can take it.
    pub cold_anon_bytes: u64,
    /// File-backed memory not touched for longer than `--older-than`.
    pub cold_file_bytes: u64,
}

/// The result for one process, or with pid 0 for all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reclaimed {
    /// `result`, or `total` for the last line.
    pub record: &'static str,
    /// The process; 0 for the sum.
    pub pid: u32,
    /// Its name; empty for the sum.
    pub comm: Untrusted,
    /// Resident memory before reclaim. In the sum, memory that several processes share counts once.
    pub resident_before_bytes: u64,
    /// Resident memory right after reclaim.
    pub resident_after_bytes: u64,
    /// Bytes asked for, left, kept and skipped.
    #[serde(flatten)]
    pub report: PageoutReport,
    /// How much of what left was resident again when last checked.
    pub refaulted_bytes: u64,
    /// Time from leaving to that check; 0 if there was none.
    pub refault_watch_ms: u64,
    /// The part of what left that was in too many pieces to be watched.
    pub unwatched_bytes: u64,
    /// Only planned; nothing was moved.
    pub dry_run: bool,
    /// Why reclaim ended early; empty if it did not.
    pub error: String,
}

impl Reclaimed {
    /// Whether the process was gone before all its memory was dealt with.
    pub fn is_cut_short(&self) -> bool {
        self.report.skipped_bytes.bytes(SkipReason::ProcessGone) > 0
    }

    /// An empty result for a process.
    pub fn new(pid: u32, comm: &Untrusted, dry_run: bool) -> Self {
        Self {
            record: "result",
            pid,
            comm: comm.clone(),
            dry_run,
            ..Self::default()
        }
    }

    /// The sum of all results. Resident memory before and after is given, since processes may share
    /// some.
    pub fn total(results: &[Self], resident_bytes: [u64; 2], dry_run: bool) -> Self {
        let [resident_before_bytes, resident_after_bytes] = resident_bytes;
        let mut total = Self {
            record: "total",
            resident_before_bytes,
            resident_after_bytes,
            ..Self::new(0, &Untrusted::default(), dry_run)
        };
        for result in results {
            total.report.add(&result.report);
            total.refaulted_bytes += result.refaulted_bytes;
            total.refault_watch_ms = total.refault_watch_ms.max(result.refault_watch_ms);
            total.unwatched_bytes += result.unwatched_bytes;
        }
        total
    }
}

/// Prints the plan.
///
/// # Errors
/// Output cannot be written.
pub fn print_plan(
    out: &mut impl Write,
    format: Format,
    plan: &[Planned],
    older_than: Duration,
) -> io::Result<()> {
    match format {
        Format::Json => plan
            .iter()
            .try_for_each(|planned| output::json_line(out, planned)),
        // A CSV file has one header, which is that of the results.
        Format::Csv => Ok(()),
        Format::Text => {
            let cold: u64 = plan
                .iter()
                .map(|p| p.cold_anon_bytes + p.cold_file_bytes)
                .sum();
            let (cold, older) = (bytes_text(cold), duration_text(older_than));
            writeln!(out, "plan: {cold} not touched for {older}")?;
            writeln!(
                out,
                "  {:>8}  {:<16}  {:>10}  {:>10}  {:>10}",
                "PID", "COMMAND", "RESIDENT", "COLD ANON", "COLD FILE"
            )?;
            for planned in plan.iter().take(LINES_MAX) {
                writeln!(
                    out,
                    "  {:>8}  {:<16}  {:>10}  {:>10}  {:>10}",
                    planned.pid,
                    planned.comm.terminal(),
                    bytes_text(planned.resident_bytes),
                    bytes_text(planned.cold_anon_bytes),
                    bytes_text(planned.cold_file_bytes)
                )?;
            }
            more(out, plan.len())
        }
    }
}

/// Says how many of `count` were not listed.
pub(super) fn more(out: &mut impl Write, count: usize) -> io::Result<()> {
    match count.checked_sub(LINES_MAX) {
        None | Some(0) => Ok(()),
        Some(left) => writeln!(out, "  … and {left} more; --format json shows all"),
    }
}

/// Prints the results.
///
/// # Errors
/// Output cannot be written.
pub fn print_results(
    out: &mut impl Write,
    format: Format,
    results: &[Reclaimed],
    total: &Reclaimed,
) -> io::Result<()> {
    match format {
        Format::Json => results
            .iter()
            .chain([total])
            .try_for_each(|result| output::json_line(out, result)),
        Format::Csv => print_csv(out, results.iter().chain([total])),
        Format::Text => {
            if results.len() > 1 {
                for result in results.iter().take(LINES_MAX) {
                    writeln!(
                        out,
                        "  {:>8}  {:<16}  left {:>10}  resident {:>10} -> {:>10}{}",
                        result.pid,
                        result.comm.terminal(),
                        bytes_text(result.report.left_bytes),
                        bytes_text(result.resident_before_bytes),
                        bytes_text(result.resident_after_bytes),
                        if result.error.is_empty() {
                            ""
                        } else {
                            "  ended early"
                        }
                    )?;
                }
                more(out, results.len())?;
            }
            for result in results.iter().filter(|result| !result.error.is_empty()) {
                let (comm, error) = (result.comm.terminal(), clean(&result.error));
                writeln!(out, "  {} ({comm}): {error}", result.pid)?;
            }
            print_total(out, total)
        }
    }
}

fn print_total(out: &mut impl Write, total: &Reclaimed) -> io::Result<()> {
    let report = &total.report;
    let mut line = |name: &str, bytes: u64, note: &str| {
        let bytes = bytes_text(bytes);
        writeln!(
            out,
            "  {name:<12} {bytes:>10}{}{note}",
            if note.is_empty() { "" } else { "  " }
        )
    };
    line("asked", report.asked_bytes, "")?;
    if total.dry_run {
        let anon = bytes_text(report.rehearsed_anon_bytes);
        line(
            "would leave",
            report.rehearsed_bytes,
            &format!("{anon} of it to swap; nothing was moved (--dry-run)"),
        )?;
    } else {
        let anon = bytes_text(report.left_anon_bytes);
        let file = bytes_text(report.left_file_bytes);
        line(
            "left",
            report.left_bytes,
            &format!("{anon} to swap, {file} of files"),
        )?;
    }
    if report.young_again_bytes > 0 {
        line(
            "touched",
            report.young_again_bytes,
            "since it was called cold: left alone",
        )?;
    }
    if report.kept_bytes > 0 {
        let (name, why) = match total.dry_run {
            true => (
                "would stay",
                "pages that other processes map too, or that swap has no room for",
            ),
            false => (
                "kept",
                "by the kernel: shared, pinned, under writeback, or touched at once",
            ),
        };
        line(name, report.kept_bytes, why)?;
    }
    for (reason, bytes) in report.skipped_bytes.iter() {
        line("skipped", bytes, reason.explanation())?;
    }
    if total.dry_run {
        return Ok(());
    }
    if total.refault_watch_ms > 0 {
        let watch = duration_text(Duration::from_millis(total.refault_watch_ms));
        let within = format!("within {watch}");
        line("refaulted", total.refaulted_bytes, &within)?;
        if total.unwatched_bytes > 0 {
            line("not watched", total.unwatched_bytes, UNWATCHED)?;
        }
    }
    let before = bytes_text(total.resident_before_bytes);
    let after = bytes_text(total.resident_after_bytes);
    let cost = duration_text(Duration::from_nanos(report.cpu_ns));
    let time = duration_text(Duration::from_nanos(report.elapsed_ns));
    writeln!(
        out,
        "  resident     {before:>10}  -> {after}; {cost} CPU, {time}"
    )
}

/// A result as CSV: for skipped bytes there is a column for each reason.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    result: &'a Reclaimed,
    #[serde(flatten)]
    skipped: BTreeMap<String, u64>,
}

fn print_csv<'a>(
    out: &mut impl Write,
    results: impl Iterator<Item = &'a Reclaimed>,
) -> io::Result<()> {
    let name = |reason: SkipReason| format!("skipped_{}_bytes", reason.name());
    let columns = format!(
        "record,pid,comm,resident_before_bytes,resident_after_bytes,asked_bytes,left_bytes,\
         left_anon_bytes,left_file_bytes,young_again_bytes,kept_bytes,rehearsed_bytes,\
         rehearsed_anon_bytes,{},refaulted_bytes,refault_watch_ms,unwatched_bytes,calls,cpu_ns,\
         elapsed_ns,dry_run,error",
        SkipReason::ALL.map(name).join(",")
    );
    let rows = results.map(|result| {
        let skipped = |reason| (name(reason), result.report.skipped_bytes.bytes(reason));
        Row {
            result,
            skipped: SkipReason::ALL.map(skipped).into(),
        }
    });
    output::csv(out, &columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(pid: u32, left_bytes: u64) -> Reclaimed {
        let mut report = PageoutReport {
            asked_bytes: left_bytes + 8192,
            left_bytes,
            left_anon_bytes: left_bytes,
            cpu_ns: 3_000_000,
            elapsed_ns: 250_000_000,
            ..Default::default()
        };
        report.skipped_bytes.add(SkipReason::NoSwap, 8192);
        Reclaimed {
            record: "result",
            pid,
            comm: "re,dis".into(),
            resident_before_bytes: 512 << 20,
            resident_after_bytes: (512 << 20) - left_bytes,
            report,
            refaulted_bytes: 4096,
            refault_watch_ms: 10_000,
            unwatched_bytes: 8192,
            dry_run: false,
            error: String::new(),
        }
    }

    fn printed(format: Format) -> String {
        let results = [result(10, 256 << 20), result(11, 128 << 20)];
        let mut out = Vec::new();
        print_results(
            &mut out,
            format,
            &results,
            &Reclaimed::total(&results, [1 << 30, 640 << 20], false),
        )
        .expect("out");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn a_process_that_exits_in_the_middle_is_cut_short() {
        let mut result = result(10, 4096);
        assert!(!result.is_cut_short());
        let skipped = &mut result.report.skipped_bytes;
        skipped.add(SkipReason::ProcessGone, 4096);
        assert!(result.is_cut_short());
    }

    #[test]
    fn text_tells_what_became_of_everything() {
        let text = printed(Format::Text);
        // insta strips common indentation, so begin with a line that is not indented.
        insta::assert_snapshot!(format!("result\n{text}"), @r"
        result
                10  re,dis            left  256.0 MiB  resident  512.0 MiB ->  256.0 MiB
                11  re,dis            left  128.0 MiB  resident  512.0 MiB ->  384.0 MiB
          asked         384.0 MiB
          left          384.0 MiB  384.0 MiB to swap, 0 B of files
          skipped        16.0 KiB  needs swap; none is free, or memory.swap.max allows no more
          refaulted       8.0 KiB  within 10 s
          not watched    16.0 KiB  left in too many pieces to know what comes back
          resident        1.0 GiB  -> 640.0 MiB; 6 ms CPU, 500 ms
        ");
    }

    #[test]
    fn csv_has_as_many_fields_as_its_header() {
        let text = printed(Format::Csv);
        let mut lines = text.lines();
        let fields = lines.next().expect("header").split(',').count();
        for line in lines {
            // Replace the name, which contains a quoted comma.
            assert_eq!(
                line.replace("\"re,dis\"", "redis").split(',').count(),
                fields,
                "{line}"
            );
        }
    }

    #[test]
    fn names_cannot_write_to_the_terminal() {
        let mut result = result(10, 4096);
        result.comm = b"\x1b]0;x\x07,\xff\xe2\x80\xae".as_slice().into();
        result.error = "no permission for \x1b[2J".into();
        let total = Reclaimed::total(&[], [0; 2], false);
        for format in [Format::Text, Format::Csv, Format::Json] {
            let mut out = Vec::new();
            let results = [result.clone(), result.clone()];
            print_results(&mut out, format, &results, &total).expect("out");
            let text = String::from_utf8(out).expect("UTF-8");
            let hidden = |c: char| c != '\n' && agewise_host::untrusted::is_hidden(c);
            assert!(!text.contains(hidden), "{text:?}");
            assert!(text.contains("]0;x"), "{text}");
        }
    }

    #[test]
    fn json_has_one_object_a_line_and_a_total() {
        let lines: Vec<serde_json::Value> = printed(Format::Json)
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[2]["record"], "total");
        assert_eq!(lines[2]["left_bytes"], 384u64 << 20);
        assert_eq!(lines[2]["refaulted_bytes"], 8192);
    }
}
