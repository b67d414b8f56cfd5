// SPDX-License-Identifier: Apache-2.0
//! `agewise reclaim --files`: drops cold file pages, whichever process reads them.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agewise_host::access::PAGE_BYTES;
use agewise_host::pagecache::{
    CachedFile, Cold, DropLimits, DropReport, Dropper, FileAges, Mounts, Place, check_cachestat,
};
use agewise_host::root::ProcRoot;
use agewise_host::untrusted::Untrusted;
use anyhow::ensure;
use serde::Serialize;

use super::Args;
use super::record::{LINES_MAX, more};
use crate::command::files::{CORE_SHARE, Cgroups};
use agewise_cli::observe::{EXIT_TARGETS_GONE, millis};
use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
use agewise_cli::units::{bytes_text, count_text, duration_text};

/// What happened to the pages of one file, or of all of them.
#[derive(Serialize)]
struct Dropped<'a> {
    /// `file`, or `total` for the last line.
    record: &'static str,
    /// Empty if no path leads to the file, and for the total.
    path: &'a Untrusted,
    inode: u64,
    resident_bytes: u64,
    #[serde(flatten)]
    report: DropReport,
    /// Only planned; nothing was dropped.
    dry_run: bool,
}

/// The columns of CSV: the fields of JSON.
const COLUMNS: &str = "record,path,inode,resident_bytes,asked_bytes,left_bytes,rehearsed_bytes,\
    young_bytes,unknown_bytes,dirty_bytes,stayed_bytes,vanished_bytes,unreachable_bytes,\
    limited_bytes,dry_run";

/// Runs the command with `--files`.
///
/// # Errors
/// The kernel lacks `cachestat`, the cgroup does not exist, privileges are missing, or output
/// cannot be written.
pub fn run(args: &Args, interval: Duration, observation: Duration) -> anyhow::Result<ExitCode> {
    check_cachestat()?;
    let cgroups = Cgroups::find(args.target.cgroup.as_deref())?;
    let older_than_ms = millis(args.older_than);
    let mut ages = FileAges::open(older_than_ms)?;
    let stop = Stop::install()?;
    let mut watch = Observation::new(Instant::now(), observation);
    loop {
        let began = Instant::now();
        let look = ages.look(&|id| cgroups.owns(id))?;
        if let Some(signal) = stop.requested() {
            agewise_cli::note!("interrupted while observing; nothing was moved");
            return Ok(ExitCode::from(Stop::exit_code(signal)));
        }
        if let Some(gone) = cgroups.gone() {
            agewise_cli::note!("{gone}; nothing was moved");
            return Ok(ExitCode::from(EXIT_TARGETS_GONE));
        }
        if watch.is_over(began, ages.has_lost_within(older_than_ms)) {
            break;
        }
        let pause = interval.max(Duration::from_nanos(look.cpu_ns) * CORE_SHARE);
        stop.wait_until((began + pause).min(watch.end));
    }
    ensure!(
        !ages.has_lost_within(older_than_ms),
        "too many accesses to files were not noted, so it is not known which pages are cold; \
         nothing was moved; try again"
    );
    let dropped = drop_all(args, &mut ages, &stop)?;
    let written = print(args, &dropped);
    let status = match stop.requested() {
        Some(signal) => ExitCode::from(Stop::exit_code(signal)),
        None if cgroups.gone().is_some() => ExitCode::from(EXIT_TARGETS_GONE),
        None => ExitCode::SUCCESS,
    };
    output::status(written, status)
}

/// How long the files are observed: once more if accesses were lost, since what was seen before
/// says nothing then.
struct Observation {
    length: Duration,
    end: Instant,
    is_repeated: bool,
}

impl Observation {
    fn new(now: Instant, length: Duration) -> Self {
        Observation {
            length,
            end: now + length,
            is_repeated: false,
        }
    }

    /// Whether this look was the last one, given whether too many accesses were lost.
    fn is_over(&mut self, now: Instant, has_lost: bool) -> bool {
        if now < self.end {
            return false;
        }
        if !has_lost || self.is_repeated {
            return true;
        }
        agewise_cli::note!(
            "too many accesses to files were not noted: observing for {} once more",
            duration_text(self.length)
        );
        (self.end, self.is_repeated) = (now + self.length, true);
        false
    }
}

/// A file and the report of dropping its cold pages.
type Outcome = (CachedFile, Option<Untrusted>, DropReport);

/// Drops all cold pages.
fn drop_all(args: &Args, ages: &mut FileAges, stop: &Stop) -> anyhow::Result<Vec<Outcome>> {
    let limits = DropLimits {
        bytes_max: args.max_bytes.unwrap_or(u64::MAX),
        rate_bytes_per_s: args.rate,
        rehearse: args.dry_run,
        far: args.far,
        files_max: usize::MAX,
    };
    let cold = Cold {
        since_ms: ages.idle_for(millis(args.older_than)),
        // Pages of other cgroups are not followed, so no filter is needed here.
        owns: &|_| true,
    };
    let mounts = Mounts::read(&ProcRoot::default())?;
    let mut outcomes = Vec::new();
    let mut tell = |file: &CachedFile, place: Option<&Place>, report: &DropReport| {
        let path = place.map(|place| Untrusted::from(&*place.path));
        outcomes.push((file.clone(), path, *report));
    };
    Dropper::new(limits, stop.flag()).drop_cold(ages, &cold, &mounts, &mut tell)?;
    Ok(outcomes)
}

fn print(args: &Args, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let mut total = DropReport::default();
    outcomes.iter().for_each(|(.., report)| total.add(report));
    let mut out = std::io::stdout().lock();
    let nameless = Untrusted::default();
    let files = outcomes.iter().map(|(file, path, report)| Dropped {
        record: "file",
        path: path.as_ref().unwrap_or(&nameless),
        inode: file.inode.number,
        resident_bytes: file.pages * PAGE_BYTES,
        report: *report,
        dry_run: args.dry_run,
    });
    let all = outcomes.iter().map(|(file, ..)| file.pages * PAGE_BYTES);
    let total_record = Dropped {
        record: "total",
        path: &nameless,
        inode: 0,
        resident_bytes: all.sum(),
        report: total,
        dry_run: args.dry_run,
    };
    let mut records = files.chain([total_record]);
    match args.format {
        Format::Json => records.try_for_each(|dropped| output::json_line(&mut out, &dropped))?,
        Format::Csv => output::csv(&mut out, COLUMNS, records)?,
        Format::Text => text(&mut out, args, outcomes, &total)?,
    }
    Ok(out.flush()?)
}

/// Lists the files that most of left.
fn list(out: &mut impl Write, mut files: Vec<(String, &DropReport)>) -> std::io::Result<()> {
    let count = files.len();
    files.sort_by_key(|(_, report)| std::cmp::Reverse(report.went_bytes()));
    for (name, report) in files.into_iter().take(LINES_MAX) {
        let (gone, asked) = (
            bytes_text(report.went_bytes()),
            bytes_text(report.asked_bytes),
        );
        writeln!(out, "  {gone:>10} of {asked:>10}  {name}")?;
    }
    more(out, count)
}

fn text(
    out: &mut impl Write,
    args: &Args,
    outcomes: &[Outcome],
    total: &DropReport,
) -> std::io::Result<()> {
    writeln!(
        out,
        "{} of {} not accessed for {}: {} {}",
        bytes_text(total.asked_bytes),
        count_text(outcomes.len() as u64, "file", "files"),
        duration_text(args.older_than),
        bytes_text(total.went_bytes()),
        if args.dry_run { "would leave" } else { "left" },
    )?;
    let name = |file: &CachedFile, path: &Option<Untrusted>| match path {
        Some(path) => path.terminal().to_string(),
        None => format!("{}:inode {}", file.on.fs_type, file.inode.number),
    };
    let named = outcomes
        .iter()
        .map(|(file, path, report)| (name(file, path), report));
    list(out, named.collect())?;
    let others = [
        (
            total.unreachable_bytes,
            "of files that no path leads to, that cannot be opened, or of network and FUSE file \
             systems (--far)",
        ),
        (
            total.limited_bytes,
            "not reached: --max-bytes, or interrupted",
        ),
    ];
    for (bytes, why) in kept(total).into_iter().chain(others) {
        if bytes > 0 {
            writeln!(out, "  {:>10} kept: {why}", bytes_text(bytes))?;
        }
    }
    Ok(())
}

/// What was not dropped although it was tried, and why.
pub fn kept(report: &DropReport) -> [(u64, &'static str); 5] {
    [
        (report.young_bytes, "accessed since they were looked at"),
        (
            report.unknown_bytes,
            "accesses were lost since they were looked at, so whether they were used is not known",
        ),
        (report.dirty_bytes, "dirty or being written"),
        (
            report.stayed_bytes,
            "mapped, locked, or in a large folio that is used",
        ),
        (report.vanished_bytes, "gone already"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_cut_says_so() {
        let report = DropReport::default();
        let lines = |count: usize| {
            let mut out = Vec::new();
            let files = (0..count).map(|number| (number.to_string(), &report));
            list(&mut out, files.collect()).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(!lines(LINES_MAX).contains("more"));
        let cut = lines(LINES_MAX + 5);
        assert!(
            cut.ends_with("… and 5 more; --format json shows all\n"),
            "{cut}"
        );
        assert_eq!(cut.lines().count(), LINES_MAX + 1);
    }

    #[test]
    fn after_a_loss_everything_is_observed_once_more() {
        let (start, length) = (Instant::now(), Duration::from_secs(10));
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(Observation::new(start, length).is_over(after(10), false));
        let mut watch = Observation::new(start, length);
        assert!(!watch.is_over(after(9), true));
        assert!(!watch.is_over(after(11), true), "observed again");
        assert!(!watch.is_over(after(20), false));
        assert!(watch.is_over(after(21), false));
        assert!(watch.is_over(after(21), true), "but not for ever");
    }

    #[test]
    fn csv_has_the_fields_of_json() {
        let record = Dropped {
            record: "file",
            path: &Untrusted::from("/var/data"),
            inode: 7,
            resident_bytes: 8192,
            report: DropReport::default(),
            dry_run: true,
        };
        let json = serde_json::to_value(record).unwrap();
        let json: Vec<&String> = json.as_object().unwrap().keys().collect();
        let mut columns: Vec<&str> = COLUMNS.split(',').collect();
        columns.sort_unstable();
        assert_eq!(json, columns);
    }
}
