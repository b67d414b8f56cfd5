// SPDX-License-Identifier: Apache-2.0
//! `agewise size`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

mod print;

use agewise_host::root::Roots;
use agewise_host::swap::{SwapArea, SwapDevice};
use agewise_policy::whatif::{Decider, Prices};
use agewise_trace::curve::{IntervalDistances, StackDistances};
use agewise_trace::page_trace::Order;
use agewise_trace::sizing::{self, CostModel, Need, Reuse, SizePoint};
use agewise_trace::{DenseTrace, Intervals, PageClass, TraceSource};
use anyhow::Context;

use crate::command::trace::input::{ReadingBar, known_format, trace_memory_default};
use crate::command::whatif::ended;
use agewise_cli::observe;
use agewise_cli::output::{self, Format};
use agewise_cli::prices::Costs;
use agewise_cli::signal::Stop;
use agewise_cli::units;
use agewise_cli::whatif::{Found as Watched, Watching, watch};

/// Estimate how much memory a program needs.
///
/// Watches a live process or cgroup for a while (or reads a TRACE), and determines for every memory
/// size how often the program would have to bring pages back, and what waiting for them would cost
/// on this machine's devices. Prints that curve, the knee, and the least memory whose waiting stays
/// within the target.
///
/// For a live program it is the curve of `agewise whatif` under the kernel's LRU, up to what is
/// resident; for a trace it is the curve of an exact LRU, up to what was touched. The answer
/// includes its uncertainty: each figure has bounds, and the recommendation uses the upper one.
/// Pages touched less often than the observation is long look like first touches, which no amount
/// of memory avoids: their share is printed, and a longer --duration lowers it. Memory of a live
/// program that was not used meanwhile is not part of the recommendation, and is printed too.
///
/// Exit status: 0 done; 1 an error; 2 a wrong argument; 3 the target was gone before the end;
/// 128 + the signal when interrupted (what was known by then is printed).
#[derive(Debug, Clone, clap::Args)]
#[command(group = clap::ArgGroup::new("of").required(true).args(["pid", "cgroup", "trace"]))]
pub struct Args {
    /// A live process.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,

    /// A live cgroup, with all its processes: a path as in /proc/PID/cgroup, or below
    /// /sys/fs/cgroup.
    #[arg(long, value_name = "PATH")]
    #[arg(value_parser = observe::cgroup_path())]
    pub cgroup: Option<String>,

    /// A recorded trace, of any format `agewise trace info` knows.
    #[arg(conflicts_with_all = ["files", "duration", "interval"])]
    pub trace: Option<PathBuf>,

    /// The format of the trace, as for `agewise trace info`. By default detected.
    #[arg(long, value_name = "FORMAT", value_parser = known_format,
          conflicts_with_all = ["pid", "cgroup"])]
    pub trace_format: Option<&'static agewise_trace::Format>,

    /// How long to watch a live program.
    #[command(flatten)]
    pub watching: Watching,

    /// Time between two looks at a live program, at least 100ms and at most a quarter of
    /// --duration. Default: adapted to how fast memory is used, as `whatif` does.
    #[arg(long, value_name = "DURATION", value_parser = agewise_cli::whatif::interval)]
    pub interval: Option<Duration>,

    /// Share of time that waiting for pages may take. For a trace without times: us per access.
    #[arg(long, alias = "target", value_name = "SHARE", default_value = "1%",
          value_parser = units::ratio)]
    pub target_wait: f64,

    /// Cost of bringing a page back: auto measures it while a live program is watched, and uses
    /// this machine's first swap device for a trace, for its pages of files as well.
    #[arg(long, value_name = "DEVICE", default_value = "auto",
          value_parser = ["auto", "pmem", "zram", "nvme", "ssd", "hdd"])]
    pub cost_model: String,

    /// A page of the trace is 2^BITS bytes. Default: as the header of a page trace says, which
    /// this option must match; 12 (4 KiB) for other formats.
    #[arg(long, value_name = "BITS", conflicts_with_all = ["pid", "cgroup"],
          value_parser = clap::value_parser!(u32).range(0..=63))]
    pub page_shift: Option<u32>,

    /// Memory for holding the trace. Default: a quarter of this machine's memory.
    #[arg(long, value_name = "SIZE", value_parser = units::positive_size,
          conflicts_with_all = ["pid", "cgroup"])]
    pub trace_memory: Option<u64>,

    /// Number of sizes on the curve.
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub points: u16,

    /// Output format; json and csv have one line per size, json a last one with the answer.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// What was found out.
struct Found {
    cost: Cost,
    /// Observed time.
    seconds: f64,
    need: Need,
    /// The observation of a live program.
    live: Option<Watched>,
}

/// Computes and prints the answer.
///
/// # Errors
/// The program cannot be watched, or the trace cannot be read.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut stop = None;
    let found = match &args.trace {
        Some(path) => {
            let mut source = TraceSource::new(path);
            source.format = args.trace_format;
            source.options.page_shift = args.page_shift;
            source.options.limits.memory_max_bytes =
                args.trace_memory.unwrap_or_else(trace_memory_default);
            let model = cost_model(&args.cost_model)?;
            let (reuse, file_share) = read(source)?;
            if file_share >= 0.05 && args.cost_model == "auto" {
                agewise_cli::note!(
                    "{:.0} % of the accesses are to pages of files, which do not come back from \
                     swap; all are priced like those at {}: --cost-model names another device",
                    file_share * 100.0,
                    model.name
                );
            }
            if reuse.seconds <= 0.0 {
                agewise_cli::note!(
                    "the trace has no times: --target-wait is in us an access, here {}",
                    args.target_wait
                );
            }
            let need = sizing::need(&reuse, model, args.target_wait, usize::from(args.points));
            Found {
                cost: Cost::of(model),
                seconds: reuse.seconds,
                need,
                live: None,
            }
        }
        None => live(args, stop.insert(Stop::install()?))?,
    };
    let written = print::print(&mut std::io::stdout().lock(), args, &found);
    let gone = found.live.as_ref().and_then(|live| live.gone.as_deref());
    let status = stop.map_or(ExitCode::SUCCESS, |stop| ended(&stop, gone));
    output::status(written, status)
}

/// What bringing a page back costs.
struct Cost {
    name: &'static str,
    prices: Prices,
    text: String,
}

impl Cost {
    fn of(model: CostModel) -> Self {
        let ns = model.refault_us * 1e3;
        Cost {
            name: model.name,
            prices: Prices::exact(ns, ns),
            text: format!("{} ({} us a page)", model.name, model.refault_us),
        }
    }

    fn measured(costs: &Costs) -> Self {
        Cost {
            name: "measured",
            prices: costs.prices,
            text: costs.text(),
        }
    }
}

/// The given device model, or that of this machine's first swap device.
fn cost_model(name: &str) -> anyhow::Result<CostModel> {
    let name = if name == "auto" {
        swap_kind(&Roots::default())
    } else {
        name
    };
    sizing::cost_model(name).with_context(|| format!("no device is called '{name}'"))
}

/// The kind of the swap device with the highest priority. Without swap an SSD is assumed, since
/// file pages have to come back from somewhere too.
fn swap_kind(roots: &Roots) -> &'static str {
    let areas = SwapArea::all(&roots.proc).unwrap_or_default();
    let first = areas.iter().max_by_key(|area| area.priority);
    match first.map(|area| area.device(&roots.sys)) {
        Some(SwapDevice::Zram) => "zram",
        Some(SwapDevice::Nvme) => "nvme",
        Some(SwapDevice::Hdd) => "hdd",
        Some(SwapDevice::Ssd) | None => "ssd",
    }
}

/// Watches a live program with the curve of `agewise whatif`.
fn live(args: &Args, stop: &Stop) -> anyhow::Result<Found> {
    let plan = args.watching.plan(args.interval, args.cgroup.is_some())?;
    let targets = observe::listed(args.pid.as_slice(), args.cgroup.as_slice())?;
    let found = watch(targets, plan, stop)?;
    let cost = match args.cost_model.as_str() {
        "auto" => Cost::measured(&found.costs),
        name => Cost::of(cost_model(name)?),
    };
    let curves = &found.curves;
    let steps = u64::from(args.points);
    let point = |step: u64| {
        let bytes = (u128::from(curves.full_bytes) * u128::from(step)).div_ceil(steps.into());
        let memory_bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let point = curves.at(Decider::Kernel, memory_bytes);
        let (faults, wait) = (point.faults_per_second(), point.wait_ratio(cost.prices));
        SizePoint {
            memory_bytes,
            faults: faults.likely,
            faults_low: faults.low,
            faults_high: faults.high,
            wait: wait.likely,
            wait_high: wait.high,
        }
    };
    let points = (1..=steps).map(point).collect();
    let first_touch_share = curves.unknown_per_second / curves.uses_per_second.max(1e-9);
    let seconds = curves.observed_ms as f64 / 1000.0;
    let need = Need::of(
        points,
        curves.full_bytes,
        args.target_wait,
        first_touch_share,
    );
    Ok(Found {
        cost,
        seconds,
        need,
        live: Some(found),
    })
}

/// Reads the reuse distances of a trace, and its times and order as far as they are recorded; and
/// the share of its accesses that are to pages of files.
fn read(mut source: TraceSource) -> anyhow::Result<(Reuse, f64)> {
    let (bar, progress) = ReadingBar::show();
    source.progress = progress;
    let mut stream = source.open()?;
    let by_interval = stream
        .page_trace_header()
        .is_some_and(|header| header.order == Order::Interval);
    let mut intervals = Intervals::default();
    let (mut first_ns, mut last_ns) = (u64::MAX, 0);
    let mut of_files = 0u64;
    let trace = DenseTrace::from_stream_with(&source.path, &mut stream, |access| {
        if by_interval {
            intervals.add(access);
        }
        of_files += u64::from(access.class == PageClass::File);
        // Those of several processors may go backwards.
        first_ns = first_ns.min(access.time_ns);
        last_ns = last_ns.max(access.time_ns);
    })?;
    let (distances, bounds) = match by_interval {
        true => of_intervals(&trace.parts(intervals.starts())),
        false => (StackDistances::of(&trace), None),
    };
    bar.finish();
    if let Some(note) = stream.note() {
        agewise_cli::note!("{note}");
    }
    let seconds = last_ns.saturating_sub(first_ns) as f64 / 1e9;
    let reuse = Reuse {
        page_bytes: 1 << stream.page_shift(),
        seconds,
        distances,
        bounds,
    };
    Ok((
        reuse,
        of_files as f64 / trace.accesses().len().max(1) as f64,
    ))
}

/// Distances in the order of the trace, and their bounds. A page counts once per interval: a second
/// use is known only if it was a fault.
fn of_intervals(parts: &[Vec<u32>]) -> (StackDistances, Option<(StackDistances, StackDistances)>) {
    let mut bounds = IntervalDistances::new();
    parts.iter().for_each(|pages| bounds.interval(pages));
    let pages: Vec<u64> = parts.iter().flatten().map(|&page| page.into()).collect();
    let distances = StackDistances::of(&DenseTrace::from_pages(&pages));
    (distances, Some(bounds.bounds()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use agewise_trace::page_trace::Header;
    use agewise_trace::{Evidence, OutputFormat, Request, TraceWriter};

    /// Pages that were seen and also faulted in the same interval appear twice in it.
    fn recording(path: &Path) {
        let header = Header {
            order: Order::Interval,
            interval_ns: 1_000_000_000,
            page_shift: 16,
            ..Header::default()
        };
        let mut writer = TraceWriter::create(path, OutputFormat::Page, &header).unwrap();
        for round in 0..50u64 {
            for page in (0..20).chain(0..20).chain([20 + round % 7]) {
                let request = Request {
                    time_ns: round * 1_000_000_000,
                    ..Request::page(page)
                };
                writer.push(&request, || None).unwrap();
            }
        }
        writer.finish().unwrap();
    }

    #[test]
    fn no_point_lies_outside_its_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.pages");
        recording(&path);
        let (reuse, _) = read(TraceSource::new(&path)).unwrap();
        let need = sizing::need(&reuse, cost_model("ssd").unwrap(), 0.01, 27);
        for point in &need.points {
            assert!(point.faults_low <= point.faults, "{point:?}");
            assert!(point.faults <= point.faults_high, "{point:?}");
        }
        assert!(need.points[0].faults > 0.0);
        assert_eq!(
            need.footprint_bytes,
            27 << 16,
            "the header says 64 KiB a page"
        );
    }

    /// A page is seen in two intervals, and others fault in each: it may have come before all the
    /// faults of the first and behind all of the second.
    #[test]
    fn the_upper_bound_has_the_faults_of_both_intervals() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.pages");
        let header = Header {
            order: Order::Interval,
            interval_ns: 1_000_000_000,
            evidence: true,
            ..Header::default()
        };
        let mut writer = TraceWriter::create(&path, OutputFormat::Page, &header).unwrap();
        for (page, time_ns, evidence) in [
            (1, 100_000_000, Evidence::MinorFault),
            (2, 200_000_000, Evidence::MajorFault),
            (0, 1_000_000_000, Evidence::Seen),
            (3, 1_300_000_000, Evidence::Fault),
            (0, 2_000_000_000, Evidence::Seen),
        ] {
            let request = Request {
                time_ns,
                evidence,
                ..Request::page(page)
            };
            writer.push(&request, || None).unwrap();
        }
        writer.finish().unwrap();
        let (reuse, _) = read(TraceSource::new(&path)).unwrap();
        let (least, most) = reuse.bounds.unwrap();
        assert_eq!(most.counts(), [0, 0, 0, 1]);
        assert_eq!(least.counts(), [1, 0, 0, 0]);
    }

    #[test]
    fn the_order_of_damons_regions_is_not_taken_for_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("damon.txt");
        let line = |at: u32| {
            format!("k {at}.0: damon_aggregated: target_id=0 nr_regions=1 0-12288: 5 0\n")
        };
        std::fs::write(&path, (1..4).map(line).collect::<String>()).unwrap();
        let (least, most) = read(TraceSource::new(&path)).unwrap().0.bounds.unwrap();
        assert!(least.misses(&[2]) < most.misses(&[2]));
    }

    #[test]
    fn the_time_is_from_the_earliest_access_to_the_latest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.csv");
        std::fs::write(&path, "time_s,page,class\n5,1,\n9,2,file\n3,1,\n4,2,anon\n").unwrap();
        let (reuse, file_share) = read(TraceSource::new(&path)).unwrap();
        assert_eq!(file_share, 0.25);
        assert!((reuse.seconds - 6.0).abs() < 1e-9, "{}", reuse.seconds);
    }

    #[test]
    fn what_is_kept_of_a_trace_has_a_ceiling() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.pages");
        recording(&path);
        let mut source = TraceSource::new(&path);
        source.options.limits.memory_max_bytes = 100;
        let error = read(source).unwrap_err().to_string();
        assert!(error.contains("--trace-memory"), "{error}");
    }
}
