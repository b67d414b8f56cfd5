// SPDX-License-Identifier: Apache-2.0
//! `agewise whatif`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use agewise_cli::observe::OneTarget;
use agewise_cli::output::{self, Format};
use agewise_cli::prices::Costs;
use agewise_cli::signal::Stop;
use agewise_cli::units::{bound_text, percent_text};
use agewise_cli::whatif::{Found, Watching, watch};
use agewise_cli::{observe, units};
use agewise_host::untrusted::clean;
use agewise_policy::whatif::{Curve, PERCENTS, POLICIES, Point};
use clap::builder::PossibleValuesParser;
use serde::Serialize;

/// Estimate how fast a running program would be with less memory.
///
/// Watches a process or cgroup for a while and simulates it with other amounts of memory: how many
/// faults per second each would cause, and how long its threads would wait for them at this
/// machine's prices, all together, as a share of the time watched. No memory is taken from the
/// program.
///
/// `kernel` is the order in which the running kernel evicts (active and inactive lists, or
/// generations), simulated in miniature; `lru` is an exact LRU; `reuse` is agewise's own order, by
/// which the policy `budget` and `agewise run --memory` hold a limit. Every figure has a 95 %
/// interval for a time as long as the one watched: it covers the order of uses between two looks,
/// which accessed bits do not reveal, the sample, the difference between parts of the time watched,
/// uses of pages whose previous use lies before the observation, and, below 100 %, further uses of
/// pages that came meanwhile. The upper bound of file faults is doubled for readahead and large
/// folios. A size that is smaller than what is used from one look to the next has no upper bound:
/// look more often. Anything rarer than --duration is not known at all; the amount of memory that
/// was not used meanwhile is printed.
///
/// 100 % is the peak resident size; above it is what has been in swap and came back. Page cache
/// that no process maps counts with --files.
///
/// Exit status: 0 done; 1 an error; 2 a wrong argument; 3 the target was gone before the end;
/// 128 + the signal when interrupted (what was known by then is printed).
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: OneTarget,

    /// Only these sizes, separated by commas: a share of what is resident (60%) or bytes (512M).
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = memory)]
    memory: Vec<Memory>,

    #[command(flatten)]
    watching: Watching,

    /// Time between two looks, at least 100ms and at most a quarter of --duration; `auto` starts
    /// with a second, or an eighth of --duration if that is less, and looks more often while much
    /// is used in between.
    #[arg(long, value_name = "DURATION", default_value = "auto", value_parser = interval)]
    interval: Interval,

    /// Which policy decides what leaves memory.
    #[arg(long, value_name = "NAME", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(POLICIES), default_values = POLICIES)]
    policy: Vec<String>,

    /// Output format; json has one object per size and policy.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// A memory size as given on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    /// Percent of the peak resident size.
    Percent(f64),
    Bytes(u64),
}

impl Memory {
    /// The size in bytes.
    pub fn bytes(self, full_bytes: u64) -> u64 {
        match self {
            Memory::Percent(percent) => (full_bytes as f64 * percent / 100.0) as u64,
            Memory::Bytes(bytes) => bytes,
        }
    }

    /// The size as a share of the peak resident size: as it was given, if it was.
    fn ratio(self, full_bytes: u64) -> f64 {
        match self {
            Memory::Percent(percent) => percent / 100.0,
            Memory::Bytes(bytes) => bytes as f64 / full_bytes.max(1) as f64,
        }
    }
}

/// A smaller number of bytes without a unit is a slip.
const BARE_MIN: u64 = 1 << 20;

/// Parses a size: `60%` or `512M`.
pub fn memory(text: &str) -> Result<Memory, String> {
    match text.strip_suffix('%') {
        Some(percent) => match percent.trim().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 1000.0 => Ok(Memory::Percent(percent)),
            _ => Err(format!("'{text}' is not a share above 0% and up to 1000%")),
        },
        None => match units::positive_size(text)? {
            bytes if bytes < BARE_MIN && text.bytes().all(|c| c.is_ascii_digit()) => Err(format!(
                "'{text}' would be {bytes} bytes: give a share ({text}%) or a unit ({text}M)"
            )),
            bytes => Ok(Memory::Bytes(bytes)),
        },
    }
}

#[derive(Clone, Copy, Debug)]
struct Interval(Option<Duration>);

fn interval(text: &str) -> Result<Interval, String> {
    if text == "auto" {
        return Ok(Interval(None));
    }
    agewise_cli::whatif::interval(text).map(|interval| Interval(Some(interval)))
}

/// A point of the curve as printed.
#[derive(Debug, Serialize)]
struct Record<'a> {
    record: &'static str,
    memory_bytes: u64,
    memory_ratio: f64,
    policy: &'a str,
    faults_per_second: f64,
    faults_low: f64,
    /// Null, empty in CSV: no upper bound.
    #[serde(serialize_with = "output::bound")]
    faults_high: f64,
    wait_ratio: f64,
    wait_low: f64,
    #[serde(serialize_with = "output::bound")]
    wait_high: f64,
    anon_faults_per_second: f64,
    file_faults_per_second: f64,
    observed_seconds: f64,
    /// Resident memory that was not used meanwhile; nobody knows when it will be.
    unused_bytes: u64,
    /// Uses that were the first since watching began.
    first_uses_per_second: f64,
    /// Price of a page from swap and from a file.
    refault_us: f64,
    file_refault_us: f64,
    /// Processes that could not be looked at.
    unseen_processes: usize,
    /// What of the target is left out or seen only roughly.
    note: Option<String>,
    /// Why watching ended early.
    gone: Option<&'a str>,
}

impl<'a> Record<'a> {
    fn new(
        found: &'a Found,
        costs: &Costs,
        (policy, curve): (&'a str, &Curve),
        (memory_bytes, memory_ratio): (u64, f64),
    ) -> Self {
        let point: Point = curve.at(found.curves.percent_of(memory_bytes));
        let (faults, wait) = (point.faults_per_second(), point.wait_ratio(costs.prices));
        Record {
            record: "point",
            memory_bytes,
            memory_ratio,
            policy,
            faults_per_second: faults.likely,
            faults_low: faults.low,
            faults_high: faults.high,
            wait_ratio: wait.likely,
            wait_low: wait.low,
            wait_high: wait.high,
            anon_faults_per_second: point.faults[0].likely,
            file_faults_per_second: point.faults[1].likely,
            observed_seconds: found.curves.observed_ms as f64 / 1000.0,
            unused_bytes: found.curves.unused_bytes,
            first_uses_per_second: found.curves.unknown_per_second,
            refault_us: costs.prices.anon_ns.likely / 1e3,
            file_refault_us: costs.prices.file_ns.likely / 1e3,
            unseen_processes: found.unseen_processes,
            note: found.caveat(),
            gone: found.gone.as_deref(),
        }
    }
}

/// Watches the target and prints the estimate.
///
/// # Errors
/// The target cannot be watched.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = args
        .watching
        .plan(args.interval.0, args.target.cgroup.is_some())?;
    let targets = args.target.find()?;
    let stop = Stop::install()?;
    let found = watch(targets, plan, &stop)?;
    let costs = found.costs;
    let full = found.curves.full_bytes;
    let sizes: Vec<Memory> = match args.memory[..] {
        [] => PERCENTS.map(|of| Memory::Percent(f64::from(of))).to_vec(),
        _ => args.memory.clone(),
    };
    let curves = args.policy.iter().filter_map(|policy| {
        let curve = found.curves.named(policy)?;
        Some((policy.as_str(), curve))
    });
    let records: Vec<Vec<Record<'_>>> = curves
        .map(|of| {
            let record = |size: &Memory| {
                Record::new(&found, &costs, of, (size.bytes(full), size.ratio(full)))
            };
            sizes.iter().map(record).collect()
        })
        .collect();
    let written = print(args, &found, &costs, &records);
    output::status(written, ended(&stop, found.gone.as_deref()))
}

/// The exit status after watching, which an interruption or the end of the target cut short.
pub fn ended(stop: &Stop, gone: Option<&str>) -> ExitCode {
    match (stop.requested(), gone) {
        (Some(signal), _) => ExitCode::from(Stop::exit_code(signal)),
        (None, Some(_)) => ExitCode::from(observe::EXIT_TARGETS_GONE),
        (None, None) => ExitCode::SUCCESS,
    }
}

fn print(args: &Args, found: &Found, costs: &Costs, by: &[Vec<Record<'_>>]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match args.format {
        Format::Text => text(&mut out, found, costs, by)?,
        format => output::rows(&mut out, format, by.iter().flatten())?,
    }
    Ok(())
}

/// Width of the plot in columns.
const PLOT: f64 = 24.0;

fn text(
    out: &mut impl Write,
    found: &Found,
    costs: &Costs,
    by: &[Vec<Record<'_>>],
) -> std::io::Result<()> {
    for records in by {
        let Some(first) = records.first() else {
            continue;
        };
        writeln!(out, "policy {}", first.policy)?;
        writeln!(
            out,
            "{:>10} {:>6} {:>10} {:>23} {:>9} {:>9}",
            "memory", "", "faults/s", "interval", "waiting", "at most"
        )?;
        let most = records
            .iter()
            .map(|of| of.faults_per_second)
            .fold(1.0, f64::max);
        for record in records {
            let bar = "#".repeat((record.faults_per_second / most * PLOT).ceil() as usize);
            writeln!(
                out,
                "{:>10} {:>5.0}% {:>10.1} {:>10.1} .. {:>9} {:>9} {:>9} {bar}",
                units::bytes_text(record.memory_bytes),
                record.memory_ratio * 100.0,
                record.faults_per_second,
                record.faults_low,
                bound_text(record.faults_high, |high| format!("{high:.1}")),
                percent_text(record.wait_ratio),
                bound_text(record.wait_high, percent_text),
            )?;
        }
    }
    if let Some(remark) = beyond(by) {
        writeln!(out, "{remark}")?;
    }
    remarks(out, found, costs)
}

/// What waiting of more than all the time means, if there is any: it is right, but surprises.
fn beyond(by: &[Vec<Record<'_>>]) -> Option<String> {
    let most = by.iter().flatten().map(|of| of.wait_ratio);
    let most = most.fold(1.0, f64::max);
    (most > 1.0).then(|| {
        format!(
            "waiting above 100 %: at {}, {:.1} threads would wait all the time, or one would take \
             {:.1} times as long",
            percent_text(most),
            most,
            most + 1.0
        )
    })
}

/// Prints how the curve was obtained and what it does not cover.
fn remarks(out: &mut impl Write, found: &Found, costs: &Costs) -> std::io::Result<()> {
    let curves = &found.curves;
    writeln!(
        out,
        "{:.0} s counted, a look every {}, {} pages simulated; resident at most {}",
        curves.observed_ms as f64 / 1000.0,
        units::duration_text(found.interval),
        found.sampled_pages,
        units::bytes_text(curves.full_bytes),
    )?;
    writeln!(
        out,
        "as it is: {:.1} pages per second came back; prices: {}",
        curves.seen_per_second,
        costs.text()
    )?;
    writeln!(
        out,
        "not known: {} was not used meanwhile and may be needed later; {:.1} uses per second \
         were the first since watching began",
        units::bytes_text(curves.unused_bytes),
        curves.unknown_per_second,
    )?;
    writeln!(
        out,
        "cost: {:.0} ms of CPU time for looking, {:.0} ms for simulating",
        found.look_cpu_ms, found.simulate_cpu_ms
    )?;
    if let Some([resident, unused]) = found.cache_bytes {
        writeln!(
            out,
            "page cache: {} charged to it, {} of that was not used again meanwhile",
            units::bytes_text(resident),
            units::bytes_text(unused),
        )?;
    }
    if let Some(gone) = &found.gone {
        writeln!(out, "# gone: {}", clean(gone))?;
    }
    found
        .caveats()
        .iter()
        .try_for_each(|caveat| writeln!(out, "{caveat}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shares_or_bytes() {
        assert_eq!(memory("60%"), Ok(Memory::Percent(60.0)));
        assert_eq!(memory("512M"), Ok(Memory::Bytes(512 << 20)));
        assert_eq!(memory("1048576"), Ok(Memory::Bytes(1 << 20)));
        assert!(memory("60").unwrap_err().contains("60%"));
        for bad in ["0%", "-1%", "x%", "", "0", "nan%", "inf%"] {
            assert!(memory(bad).is_err(), "{bad}");
        }
        assert_eq!(Memory::Percent(50.0).bytes(4096), 2048);
        assert_eq!(Memory::Percent(60.0).ratio(4097), 0.6);
        assert_eq!(Memory::Bytes(1024).ratio(4096), 0.25);
    }

    #[test]
    fn waiting_of_several_threads_is_explained() {
        let record = |wait_ratio| Record {
            record: "point",
            memory_bytes: 0,
            memory_ratio: 0.5,
            policy: "lru",
            faults_per_second: 0.0,
            faults_low: 0.0,
            faults_high: 0.0,
            wait_ratio,
            wait_low: 0.0,
            wait_high: f64::INFINITY,
            anon_faults_per_second: 0.0,
            file_faults_per_second: 0.0,
            observed_seconds: 1.0,
            unused_bytes: 0,
            first_uses_per_second: 0.0,
            refault_us: 10.0,
            file_refault_us: 100.0,
            unseen_processes: 0,
            note: None,
            gone: None,
        };
        assert_eq!(beyond(&[vec![record(0.2), record(1.0)]]), None);
        let said = beyond(&[vec![record(0.2)], vec![record(2.5)]]);
        let expected = "waiting above 100 %: at 250.000 %, 2.5 threads would wait all the time, or \
                        one would take 3.5 times as long";
        assert_eq!(said.as_deref(), Some(expected));
    }

    #[test]
    fn what_has_no_bound_says_so() {
        assert_eq!(bound_text(f64::INFINITY, percent_text), "?");
        assert_eq!(bound_text(0.5, percent_text), "50.000 %");
    }
}
