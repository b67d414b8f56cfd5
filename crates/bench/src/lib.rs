// SPDX-License-Identifier: Apache-2.0
//! `agewise bench`: what agewise costs on this machine, how accurate it is, and whether it does
//! harm.

pub mod ages;
mod calibrate;
pub mod daemon;
pub mod evict;
pub mod exercise;
mod files;
pub mod harm;
pub mod hotcold;
mod installed;
pub mod judge;
pub mod lab;
pub mod live;
mod pairs;
pub mod proc_files;
pub mod reclaim;
pub mod record;
pub mod scale;
mod servant;
mod service;
mod shrink;
pub mod sort;
pub mod statistics;
pub mod steady;
mod subject;
pub mod tally;
mod whatif;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use agewise_host::cgroup::{Hierarchy, OwnCgroup};
use agewise_host::root::ProcRoot;
use anyhow::{Context, bail};
use clap::Subcommand;
use serde::Serialize;
use serde_json::{Map, Value};

use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
use agewise_cli::units;

/// Size of a base page in bytes.
const PAGE_BYTES: u64 = agewise_host::access::PAGE_BYTES;

/// Arguments of an exerciser that uses half of its memory with zipf 0.99 and never touches the
/// other half again.
fn half_idle(size_bytes: u64) -> Vec<String> {
    let size = size_bytes.to_string();
    ["--size", &size, "--pattern", "zipf:0.99", "--active", "0.5"]
        .map(str::to_owned)
        .into()
}

/// Measure what agewise costs on this machine, how accurate it is, and whether it slows programs
/// down.
///
/// Every measurement runs on exercisers of its own (`agewise exercise`), which know when they
/// touched each of their pages, and on a zram device of its own where something has to leave. All
/// of it is removed again. Figures of CPU time are medians and depend on what else the machine
/// does; the ratios to smaps and pagemap, measured in the same minute, depend less.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

/// What is measured.
#[derive(Debug, Subcommand)]
enum What {
    /// Cost of each part of a scan and of eviction, and the accuracy of the ages.
    ///
    /// The exerciser touches half of its memory by zipf 0.99 and leaves the other half alone; a
    /// mapped file beside it likewise. Targets: walk_ms_per_gib + classify_ms_per_gib at most 0.6
    /// (huge pages: 0.05), agemap_bytes_per_page at most 1.1, evict_us_per_page at most 8,
    /// missed_ratio at most 0.005, false_ratio at most 0.01, histogram_ratio within 0.01 of 1,
    /// cold_taken_ratio at least 0.99, hot_taken_ratio at most 0.005.
    ///
    /// A look costs some 0.1 ms besides, whatever the size: with `--size 4G` that is less of each
    /// GiB. Names with `thp_` are of the mapping in huge pages alone. Names with `sampled_` are of
    /// the same load as `report` and `watch` look at it, which follow a sample
    /// (sampled_histogram_error_ratio).
    Live(LiveArgs),
    /// Operations per second of an exerciser with and without agewise watching it every second.
    ///
    /// Many short spans of both kinds, in pairs of random order; the change is given with its 95 %
    /// confidence interval. Target: at most 2 % fewer. The histograms reported meanwhile are
    /// compared with the truth (histogram_error_ratio).
    Harm(HarmArgs),
    /// Share of a core and memory that watching much memory at a slow pace takes.
    ///
    /// Targets: at most 0.3 % of a core for 8 GiB every 10 s, and 40 MiB + 1.1 byte per page. The
    /// first scans are not timed.
    Steady(SteadyArgs),
    /// Share of a core, memory and accuracy where a program has a terabyte of present page-table
    /// entries.
    ///
    /// A few MiB are mapped many times, so that nearly only page tables take memory: 2 GiB of them.
    /// Half of what is busy stays so for four looks, half is drawn anew for each. Targets:
    /// core_ratio at most 0.003, error_ratio at most 0.015, covered_ratio at least 0.95,
    /// memory_bytes at most 100 MB.
    Scale(scale::Args),
    /// Operations per second of an exerciser with and without `agewise trace record`, and the
    /// recorded working set of each second beside the true one.
    ///
    /// Targets: at most 5 % fewer operations; working sets within 2 %.
    Record(RecordArgs),
    /// What the daemon's policies save on real programs, and what that costs them.
    ///
    /// A program (--program) with 60 % of its keys never read again, with all keys read
    /// alike, a parallel compile, and the program under a limit; each without a daemon and under
    /// each policy, in alternating runs, with counts per operation and, from three runs on, 95
    /// % intervals of pairs. Targets: cost saves 45 % of resident memory at no more than 2 % more
    /// CPU time per operation (program and daemon together); where all is read alike, at most 0.01
    /// more faults per operation; under a limit, 20 % fewer major faults than with the kernel's
    /// reclaim alone, at no more CPU time and no higher 99th percentile. Needs the program and cc;
    /// missing programs are skipped with a note.
    Reclaim(ReclaimArgs),
    /// Refaults after sudden pressure with and without `agewise sort`.
    ///
    /// An exerciser runs in a memory cgroup of its own, v1 or v2, whose limit is then lowered at
    /// once, to 60 % of its memory, or 75 % for the uniform load. Counted are refaults per
    /// operation in the 3 s from there. Loads: hot half and cold half, the same with hot pages
    /// scattered, and every page alike. Runs with and without sorting take turns; the change is
    /// given with its 95 % interval (Fieller's, for the ratio of paired means). Targets:
    /// hotcold_change_ratio at most -0.3, core_ratio at most 0.01, and 0 within the interval of the
    /// uniform load or below.
    Sort(SortArgs),
    /// Speed of the simulated machine: accesses per second of one thread, and memory per page.
    ///
    /// One process touches twice what its cgroup may hold, by zipf 0.99 (most accesses hit) and
    /// with all pages equally likely (half of them miss), with page tables, reclaim and compressed
    /// swap simulated. Targets with mglru:7.2: 20 million accesses per second by zipf, 5 million
    /// otherwise, 64 bytes per page.
    Lab(lab::Args),
    /// This machine's prices of faults, reclaim and devices, as settings for the lab.
    ///
    /// Each is that of an operation on memory and a file of its own, in CPU time or, for devices,
    /// as waited for. What cannot be timed from outside the kernel (unmapping, the LRU lock, zones,
    /// kdamond) is not in the list, and keeps the lab's price. Swap is the machine's, or a zram
    /// device where it has none.
    Calibrate(calibrate::Args),
    /// What `agewise daemon` takes where many processes in many cgroups come and go, and what it
    /// leaves when it is killed.
    ///
    /// Starts processes of its own in cgroups of its own, and a daemon with files, metrics and
    /// protection; replaces processes and cgroups by others all the time; kills the daemon and
    /// starts it again. Targets: cpu_ratio at most granted_ratio (a minute of that may have been
    /// saved up before: measure for minutes), resident_max_bytes at most granted_bytes,
    /// growth_bytes about 0, left_behind 0. Takes mapped times touched of memory.
    Daemon(daemon::Args),
    /// Whether the daemon stays as it is for hours of faults, beside processes that come and go.
    ///
    /// The load is that of `bench daemon`. Every --fault-every something goes wrong: the disk of
    /// the journal and the ledger is full, a configuration is broken, the daemon is stopped,
    /// clients hang, its servers are killed, cgroups are made by the hundred, programs fork,
    /// execute others and end. Prints a line per minute and the verdict, with exit status 1 unless
    /// it holds: memory grew by at most 1 % or 1 MiB, descriptors by 2 % (there is one for each
    /// process) and threads by none from the second quarter of the time to the last, CPU time is at
    /// most 2 % above what is granted with the minute that may have been saved up before, the
    /// daemon lived and left nothing. Needs root.
    Soak(daemon::soak::Args),
    /// Compare the predictions of `agewise whatif` with what then happens.
    ///
    /// A load runs in a memory cgroup of its own with a zram device, is watched, and is then
    /// limited to 90, 75, 60 and 50 % of what it has. Refaults per second are predicted and
    /// measured. Targets: half of the points within 15 % or one fault per second of what happens
    /// (near), 90 % of them inside their interval (within).
    Whatif(whatif::Args),
    /// How small `agewise shrink` makes a program, beside the smallest fixed limit that does not
    /// hurt.
    ///
    /// The program runs in a memory cgroup of its own with a zram device. Waiting is the kernel's
    /// count for that cgroup; with v1, the unified hierarchy has to be mounted, too, where it gets
    /// a second one. Targets: no more than five seconds in a row in which more was waited than
    /// --max-wait (over_seconds); 85 % of what the best fixed limit saves (saved_ratio).
    Shrink(shrink::Args),
    /// What following the page cache costs, and how accurate it is.
    ///
    /// A program in a cgroup of its own reads known places of a file by pread, sendfile, io_uring
    /// and a mapping; loops of cached reads run with and without the programs on the tracepoints,
    /// and reads of a hot half while a cold one is dropped and is not, in pairs of random order.
    /// Targets: missed at most 0.005 and false at most 0.01, resident_error_ratio within 0.01,
    /// machine_error_ratio within 0.02, pread_4k_change_ratio at most 0.05, pread_64k_change_ratio
    /// at most 0.01, dropping_cold_ratio at least 0.99, dropping_hot_ratio at most 0.005,
    /// dropping_change_ratio about 0, maps_bytes_per_page at most 1, walk_ms_per_gib at most 1
    /// (with a --directory on a file system of its own; elsewhere what others do to the cache is in
    /// it). Takes the size of the file as page cache, and a memory cgroup.
    Files(files::Args),
    /// The program that `bench files` has read its file.
    #[command(hide = true)]
    Reader { file: PathBuf },
    /// The program that `bench scale` watches.
    #[command(hide = true)]
    Sea,
    /// Many processes, at the command of `bench daemon`.
    #[command(hide = true)]
    Nest,
}

/// Creates a cgroup below the root for one measurement; removed when dropped.
fn own_cgroup(name: &str) -> anyhow::Result<OwnCgroup> {
    let hierarchy = Hierarchy::discover(&ProcRoot::default())?;
    let name = format!("agewise-bench-{}-{name}", std::process::id());
    Ok(OwnCgroup::make(&hierarchy, Path::new("/"), &name)?)
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a number from 0 to 1".to_owned()),
    }
}

#[derive(Debug, clap::Args)]
struct LiveArgs {
    /// Anonymous memory of the exerciser.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::positive_size)]
    size: u64,
    /// Its mapped file.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = units::size)]
    file_size: u64,
    /// Where that file is made; not on tmpfs.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Time from scan to scan.
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    #[arg(value_parser = units::positive_duration)]
    interval: Duration,
    /// Scans that are judged, and as many that are timed.
    #[arg(long, value_name = "N", default_value_t = 10)]
    scans: usize,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct HarmArgs {
    /// Memory of the exerciser.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::positive_size)]
    size: u64,
    /// Operations per second of the exerciser; 0 for as many as it can.
    #[arg(long, value_name = "N", default_value_t = 0)]
    rate: u64,
    /// Pairs of spans.
    #[arg(long, value_name = "N", default_value_t = 40)]
    pairs: usize,
    /// Length of a span.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    #[arg(value_parser = units::positive_duration)]
    span: Duration,
    /// Time from scan to scan while watching.
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    #[arg(value_parser = units::positive_duration)]
    interval: Duration,
    /// Follow every page, as `reclaim`, `run` and the acting daemon do, not a sample, as `report`
    /// and `watch` do.
    #[arg(long)]
    pages: bool,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct SteadyArgs {
    /// Memory of the exerciser.
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = units::positive_size)]
    size: u64,
    /// Time from scan to scan.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = units::positive_duration)]
    interval: Duration,
    /// Scans after the first.
    #[arg(long, value_name = "N", default_value_t = 6)]
    scans: usize,
    /// Follow every page, as `reclaim`, `run` and the acting daemon do, not a sample, as `report`
    /// and `watch` do.
    #[arg(long)]
    pages: bool,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct RecordArgs {
    /// Memory of the exerciser, all of it touched alike.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::positive_size)]
    size: u64,
    /// Operations per second of the exerciser; 0 for as many as it can.
    #[arg(long, value_name = "N", default_value_t = 0)]
    rate: u64,
    /// Pairs of spans.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pairs: usize,
    /// Length of a span.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    #[arg(value_parser = units::positive_duration)]
    span: Duration,
    /// Time from look to look while recording.
    #[arg(long, value_name = "DURATION", default_value = "100ms")]
    #[arg(value_parser = units::positive_duration)]
    interval: Duration,
    /// As of `agewise trace record`; `none` sees every access.
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = units::slowdown)]
    max_slowdown: f64,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct ReclaimArgs {
    /// What runs.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "cold,uniform,compile,budget"
    )]
    load: Vec<reclaim::Load>,
    /// Policies, but for the budget.
    #[arg(long, num_args = 1.., default_values = ["age:10s/40s", "pressure", "cost"])]
    policy: Vec<String>,
    /// More parameters of the budget, each with its comma. It does not measure itself in the pairs:
    /// that leaves part of the time to the kernel.
    #[arg(long, value_name = "TEXT", default_value = "", hide = true)]
    budget_options: String,
    /// After the pairs of the budget one more run of so many operations in which it measures
    /// itself; what it says of its gain is printed beside what the pairs show. It takes minutes
    /// until it says anything: at 256M some 15 million operations of redis.
    #[arg(long, value_name = "N")]
    self_measured: Option<u64>,
    /// What runs beside it. The bar is then that faults, CPU time and 99th percentile under a limit
    /// are at most 2 % above those with the kernel alone.
    #[arg(long, value_enum)]
    beside: Option<reclaim::Beside>,
    /// What holds the values: by its name, installed by the package of that name.
    #[arg(long, value_enum, default_value_t)]
    program: reclaim::Program,
    /// Memory of its values.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::positive_size)]
    size: u64,
    /// Operations measured.
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    operations: u64,
    /// Operations before, in which the daemon settles.
    #[arg(long, value_name = "N", default_value_t = 2_500_000)]
    warm_operations: u64,
    /// Files compiled.
    #[arg(long, value_name = "N", default_value_t = 60)]
    files: usize,
    /// Runs of each.
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeats: usize,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct SortArgs {
    /// Memory of the exerciser.
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = units::positive_size)]
    size: u64,
    /// Pairs of runs for each load, 3 or more; a pair takes half a minute.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(3..))]
    pairs: u16,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs the selected measurement.
///
/// # Errors
/// Missing privileges, no BPF or zram here, or an exerciser that found a changed page.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find agewise itself")?;
    match &args.what {
        What::Nest => return daemon::nest::serve(),
        What::Sea => return scale::sea::serve(),
        What::Reader { file } => return files::reader::serve(file),
        _ => {}
    }
    let stop = Stop::install()?;
    let done = match &args.what {
        What::Live(args) => live::measure(&program, args, &stop)
            .and_then(|record| print("live", args.format, &record)),
        What::Harm(args) => harm::measure(&program, args, &stop)
            .and_then(|record| print("harm", args.format, &record)),
        What::Steady(args) => steady::measure(&program, args, &stop)
            .and_then(|record| print("steady", args.format, &record)),
        What::Scale(args) => scale::measure(&program, args, &stop)
            .and_then(|record| print("scale", args.format, &record)),
        What::Record(args) => record::measure(&program, args, &stop)
            .and_then(|record| print("record", args.format, &record)),
        What::Reclaim(args) => reclaim::measure(&program, args, &stop),
        What::Sort(args) => sort::measure(&program, args, &stop)
            .and_then(|record| print("sort", args.format, &record)),
        What::Lab(args) => lab::measure(args).and_then(|record| print("lab", args.format, &record)),
        What::Calibrate(args) => calibrate::run(args, &stop, &mut std::io::stdout().lock()),
        What::Soak(args) => {
            // The exit status is the verdict.
            let verdict = daemon::soak::measure(&program, args, &stop);
            return finish(&stop, verdict);
        }
        What::Daemon(args) => daemon::measure(&program, args, &stop)
            .and_then(|record| print("daemon", args.format, &record)),
        What::Whatif(args) => whatif::measure(&program, args, &stop),
        What::Shrink(args) => shrink::measure(&program, args, &stop),
        What::Files(args) => files::measure(&program, args, &stop)
            .and_then(|record| print("files", args.format, &record)),
        What::Nest | What::Sea | What::Reader { .. } => Ok(()),
    };
    finish(&stop, done.map(|()| ExitCode::SUCCESS))
}

/// The exit status, or that of the signal if one arrived.
fn finish(stop: &Stop, done: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    match stop.requested() {
        Some(signal) => {
            agewise_cli::note!("interrupted; nothing was measured to the end");
            Ok(ExitCode::from(Stop::exit_code(signal)))
        }
        None => done,
    }
}

/// Prints a record as a JSON line, a table, or two lines of CSV. Fields of records within it are
/// named after both: `cpu_change_ratio`.
fn print(name: &str, format: Format, record: &impl Serialize) -> anyhow::Result<()> {
    let Value::Object(nested) = serde_json::to_value(record)? else {
        bail!("a record has fields");
    };
    let mut fields = Map::new();
    for (field, value) in nested {
        match value {
            Value::Object(inner) => {
                let named = |(of, value)| (format!("{field}_{of}"), value);
                fields.extend(inner.into_iter().map(named));
            }
            value => drop(fields.insert(field, value)),
        }
    }
    let mut out = std::io::stdout().lock();
    match format {
        Format::Json => {
            let mut whole = Map::new();
            whole.insert("record".into(), name.into());
            whole.extend(fields);
            output::json_line(&mut out, &whole)?;
        }
        Format::Text => {
            writeln!(out, "bench {name}")?;
            for (field, value) in &fields {
                writeln!(out, "  {field:<32} {}", value_text(value))?;
            }
        }
        Format::Csv => {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            let values: Vec<String> = fields.values().map(ToString::to_string).collect();
            writeln!(out, "{}\n{}", names.join(","), values.join(","))?;
        }
    }
    Ok(())
}

/// Whole numbers as they are, others with four significant digits.
fn value_text(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if !value.is_u64() && number != 0.0 => {
            let digits = (3 - number.abs().log10().floor() as i32).clamp(0, 8) as usize;
            format!("{number:.digits$}")
        }
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_four_digits_that_count() {
        assert_eq!(value_text(&0.123_456.into()), "0.1235");
        assert_eq!(value_text(&1234.567.into()), "1235");
        assert_eq!(value_text(&0.0.into()), "0.0");
        assert_eq!(value_text(&42u64.into()), "42");
        assert_eq!(value_text(&Value::Null), "null");
    }
}
