// SPDX-License-Identifier: Apache-2.0
//! `agewise recommend`.

mod fleet;
mod kubernetes;
mod print;
mod seen;
mod server;

use std::process::ExitCode;
use std::time::Duration;

use agewise_cli::output;
use agewise_cli::signal::Stop;
use agewise_cli::units;
use agewise_cli::usage::Interrupted;
use agewise_cli::whatif::Watching;
use agewise_host::container::Container;
use agewise_policy::whatif::history::{DAY_MS, DAYS};
use agewise_policy::whatif::recommend::{Basis, Recommendation, Time, Wanted, recommend};
use anyhow::bail;
use serde::Serialize;

/// Recommend how much memory to give: a request and a limit for each cgroup.
///
/// Uses the curves that the daemon keeps of each cgroup, hour by hour and day by day, in its state
/// directory. A cgroup without such a history is watched now, as by `agewise whatif`. The request
/// is the least memory with which waiting stays within --target-wait at its upper bound in every
/// observed period. It is not below the resident size if that is not certain, or if less than
/// --history was observed; the reason is printed with each. The limit is 15 % above the most that
/// was ever held: beyond it the kernel kills.
///
/// Holding less than is resident requires somewhere for the rest to go: swap for anonymous memory.
/// Memory that was not used at all in all that time is printed as such: nobody knows when it will
/// be needed. Page cache that no process maps is included in histories only if the daemon followed
/// files (observe.files), and in what is watched now only with --files; kernel memory always is.
///
/// With --prometheus, does the same for all cgroups of all machines whose daemons a
/// Prometheus-compatible server has scraped (http only; for encryption and passwords use a proxy),
/// over --over.
///
/// Containers and pods are shown with their names (namespace, pod, container) beside the cgroup, if
/// files of this machine or labels of the metrics reveal them.
///
/// `vpa` prints VerticalPodAutoscaler objects that change nothing (updateMode Off) with the
/// recommendation as their status, one per pod with all its containers; `krr` prints what robusta's
/// krr prints with `-f json`.
///
/// Cgroups that are gone (their containers have ended, or with --prometheus the server has had no
/// curve of them for an hour) are listed as such. They are not part of the total, and have no
/// object of their own in `vpa`, unless they were given by --cgroup.
///
/// Exit status: 0 there is a recommendation for each; 1 something cannot be read or watched (of
/// several cgroups, those that can are printed); 2 a wrong argument; 3 the only --cgroup was gone
/// before anything was known; 128 + the signal when interrupted (what was known by then is
/// printed).
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("of").required(true).args(["cgroup", "all", "prometheus"]))]
pub struct Args {
    /// A memory cgroup, with all cgroups below it. May be given several times.
    #[arg(long, value_name = "PATH")]
    #[arg(value_parser = agewise_cli::observe::cgroup_path())]
    cgroup: Vec<String>,

    /// All cgroups for which the daemon keeps a history.
    #[arg(long, conflicts_with_all = ["duration", "files"])]
    all: bool,

    /// All cgroups that this server knows.
    #[arg(long, value_name = "URL", conflicts_with_all = ["duration", "files"])]
    prometheus: Option<String>,

    /// From that server, use only series with these labels, in PromQL syntax: `job="agewise"`.
    #[arg(long, value_name = "LABELS", conflicts_with_all = ["cgroup", "all"])]
    matching: Option<String>,

    /// Share of the time that waiting for memory may take.
    #[arg(long, value_name = "SHARE", default_value = "0.2%", value_parser = units::share)]
    target_wait: f64,

    /// Minimum length of the history; with less, the request is the resident size.
    #[arg(long, value_name = "DURATION", default_value = "1d")]
    #[arg(value_parser = units::positive_duration)]
    history: Duration,

    /// Ignore hours and days that ended longer ago than this; the daemon keeps 14 days.
    #[arg(long, value_name = "DURATION", default_value = "14d")]
    #[arg(value_parser = units::positive_duration)]
    over: Duration,

    /// Price of memory: an amount per GiB and month, in any currency (4.0/GiB-month).
    #[arg(long, value_name = "PRICE", value_parser = price)]
    price: Option<f64>,

    #[command(flatten)]
    watching: Watching,

    /// Output format; json has one object per cgroup.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Output formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A table for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
    /// Comma-separated values under a header.
    Csv,
    /// VerticalPodAutoscaler objects of Kubernetes.
    Vpa,
    /// The report of robusta's krr.
    Krr,
}

/// How much a history holds at any time of the day.
const KEPT: Duration = Duration::from_millis((DAYS as u64 - 1) * DAY_MS);

fn price(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/GiB-month").unwrap_or(text);
    match number.trim().parse::<f64>() {
        Ok(price) if price.is_finite() && price >= 0.0 => Ok(price),
        _ => Err(format!("'{text}' is not a price such as 4.0/GiB-month")),
    }
}

/// A cgroup that was observed.
#[derive(Debug, PartialEq)]
struct Seen {
    /// The machine, if there are several.
    host: Option<String>,
    cgroup: String,
    /// Its container or pod.
    container: Option<Container>,
    /// Whether it exists no longer, or the server has had no curve of it for an hour.
    gone: bool,
    /// Its current limit.
    limit_now_bytes: Option<u64>,
    recent: Vec<Time>,
    longer: Vec<Time>,
    /// Whether the amount of unused memory is known.
    knows_unused: bool,
    /// Processes that could not be looked at, if that is known.
    unseen_processes: Option<usize>,
}

/// A recommendation as printed.
#[derive(Debug, Clone, Serialize)]
struct Record {
    record: &'static str,
    /// The machine, if the data comes from a server.
    host: Option<String>,
    cgroup: String,
    /// Printed as separate fields, in a way that depends on the format.
    #[serde(skip)]
    container: Option<Container>,
    gone: bool,
    request_bytes: u64,
    limit_bytes: u64,
    lower_bytes: u64,
    curve_bytes: u64,
    resident_bytes: u64,
    limit_now_bytes: Option<u64>,
    /// Savings compared with the resident size; negative if the cgroup needs more.
    saving_bytes: i64,
    saving_per_month: Option<f64>,
    target_wait_ratio: f64,
    wait_ratio: f64,
    wait_low: f64,
    /// Null: no upper bound.
    wait_high: Option<f64>,
    /// Null: unknown.
    unused_bytes: Option<u64>,
    /// Null: unknown. What these hold is not part of the recommendation.
    unseen_processes: Option<usize>,
    observed_seconds: f64,
    basis: &'static str,
    reason: String,
}

impl Record {
    /// `None` for a cgroup that was never seen with memory.
    fn new(seen: &Seen, args: &Args) -> Option<Self> {
        let wanted = Wanted {
            wait_max: args.target_wait,
            history_ms: agewise_cli::observe::millis(args.history),
        };
        let said = recommend(&seen.recent, &seen.longer, wanted)?;
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let saving_bytes = signed(said.resident_bytes).saturating_sub(signed(said.request_bytes));
        let gib = saving_bytes as f64 / (1u64 << 30) as f64;
        Some(Record {
            record: "recommendation",
            host: seen.host.clone(),
            cgroup: seen.cgroup.clone(),
            container: seen.container.clone(),
            gone: seen.gone,
            request_bytes: said.request_bytes,
            limit_bytes: said.limit_bytes,
            lower_bytes: said.lower_bytes,
            curve_bytes: said.curve_bytes,
            resident_bytes: said.resident_bytes,
            limit_now_bytes: seen.limit_now_bytes,
            saving_bytes,
            saving_per_month: args.price.map(|price| gib * price),
            target_wait_ratio: args.target_wait,
            wait_ratio: said.wait.likely,
            wait_low: said.wait.low,
            wait_high: said.wait.high.is_finite().then_some(said.wait.high),
            unused_bytes: seen.knows_unused.then_some(said.unused_bytes),
            unseen_processes: seen.unseen_processes,
            observed_seconds: said.observed_ms as f64 / 1000.0,
            basis: said.basis.name(),
            reason: reason(&said, args),
        })
    }
}

fn reason(said: &Recommendation, args: &Args) -> String {
    let target = format!("{:.2} %", args.target_wait * 100.0);
    let seen = Duration::from_millis(said.observed_ms);
    let observed = format!(
        "{} observed, {} required",
        units::duration_text(seen),
        units::duration_text(args.history)
    );
    match said.basis {
        Basis::Curve => format!("waiting stays within {target} at its upper bound"),
        Basis::More => {
            let only = match seen < args.history {
                true => format!("; {observed}"),
                false => String::new(),
            };
            format!("it waits more than {target} with what it has, and likely not with this{only}")
        }
        Basis::Unbounded => {
            format!("unchanged: no smaller size is certain to stay within {target}")
        }
        Basis::ShortHistory => format!(
            "unchanged: {observed}; based on that {}",
            units::bytes_text(said.curve_bytes),
        ),
    }
}

/// Computes and prints the recommendations.
///
/// # Errors
/// Nothing is known about a given target.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.history > args.over {
        agewise_cli::refuse!(
            "--history {} is longer than --over {}: no cgroup could have enough; make --history \
             shorter or --over longer",
            units::duration_text(args.history),
            units::duration_text(args.over),
        );
    }
    if args.prometheus.is_none() && args.history > KEPT {
        agewise_cli::refuse!(
            "--history {} is longer than the {} that the daemon keeps: no cgroup could have enough",
            units::duration_text(args.history),
            units::duration_text(KEPT),
        );
    }
    let mut stop = None;
    let (all, failed) = match &args.prometheus {
        Some(url) => (fleet::all(url, args)?, 0),
        None => seen::all(args, &mut stop)?,
    };
    let records: Vec<Record> = all
        .iter()
        .filter_map(|seen| Record::new(seen, args))
        .collect();
    let signal = stop.and_then(|stop| stop.requested());
    if let (true, Some(signal)) = (records.is_empty(), signal) {
        return Err(Interrupted(signal).into());
    }
    if records.is_empty() {
        bail!("nothing is known of any cgroup that was asked for");
    }
    let status = match (signal, failed) {
        (Some(signal), _) => ExitCode::from(Stop::exit_code(signal)),
        (None, 0) => ExitCode::SUCCESS,
        (None, _) => ExitCode::FAILURE,
    };
    output::status(print(args, &records), status)
}

fn print(args: &Args, records: &[Record]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match args.format {
        Format::Text => print::text(&mut out, records, args.price),
        Format::Json => print::records(&mut out, records),
        Format::Csv => print::csv(&mut out, records),
        Format::Vpa => {
            let vpa = kubernetes::vpa(records, !args.cgroup.is_empty());
            print::json(&mut out, &[vpa])
        }
        Format::Krr => print::json(&mut out, &[kubernetes::krr(records, args)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_a_gib_and_month() {
        assert_eq!(price("4.0/GiB-month"), Ok(4.0));
        assert_eq!(price("3"), Ok(3.0));
        for bad in ["", "-1", "4/month", "inf", "nan/GiB-month"] {
            assert!(price(bad).is_err(), "{bad}");
        }
    }
}
