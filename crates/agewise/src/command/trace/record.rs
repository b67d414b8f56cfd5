// SPDX-License-Identifier: Apache-2.0
//! `agewise trace record`.

use agewise_policy::table::PAGE_BYTES;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::command::run::child::{self, Child};
use crate::command::run::family::Family;
use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
use agewise_cli::units;
use agewise_host::recorder::faults::{self, FaultMode};
use agewise_host::recorder::{self, Recorder, Totals};

/// Record which pages a live program touches.
///
/// At every interval the page tables of the program are read and its accessed bits cleared; the
/// pages that were touched since the last look are written to the trace with their time, process
/// and type. The trace can be replayed in the lab: `agewise lab curve FILE`,
/// `agewise lab run FILE`.
///
/// Limits: a page is recorded at most once per interval, however often it was touched; the order
/// inside an interval is not known (the trace says so, and pages are written in ascending order of
/// address). So curves are right for memories that hold more than the pages of an interval, and
/// pessimistic for smaller ones. Reads and writes are not distinguished. Accesses by system calls
/// to page cache that is not mapped are not seen: --files records those, and nothing else.
///
/// Page faults (first touches, file pages not mapped yet, refaults from swap, writes to pages that
/// are shared or protected) are recorded too, if the kernel's tracepoint is available: each with
/// its exact time, in exact order, read or write. Such a page is not recorded as seen in that
/// interval again. See --faults.
///
/// A program given by --pid is recorded from the first look on; with --children, so is every
/// process it starts. A COMMAND is recorded with everything it starts, from its beginning, until it
/// ends; the exit status is then the command's.
///
/// Needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_SYS_NICE). Reading costs some 0.2 ms
/// of CPU per GiB of resident memory and interval, clearing some 50 ns per touched page, and the
/// program pays some 0.4 us for each page it touches again. If that would slow it by more than
/// --max-slowdown, most of its private memory is cleared less often, once a second, or more rarely
/// where it is steady: the first access of a page after that is seen, and later ones are inferred
/// from a sample of the memory that is always watched, and marked as inferred in the trace. If a
/// look takes more than a quarter of the interval, the next one waits: the times in the trace are
/// those of the looks.
#[derive(Debug, Clone, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["pid", "cgroup", "command"]))]
pub struct Args {
    /// Record this process.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,

    /// With --pid: also record the processes it starts.
    #[arg(long, conflicts_with_all = ["cgroup", "command"])]
    pub children: bool,

    /// Record what is read and written through descriptors, instead of what is accessed in memory.
    ///
    /// Records every read and write of cached files (read, pread, readv, io_uring, sendfile,
    /// splice) with its process, time and pages, in exact order; the lab replays it through
    /// descriptors. Bytes are rounded to whole pages. Accesses through mappings, tmpfs and direct
    /// I/O are not recorded. Where the kernel cannot trace its functions, some writes to file
    /// systems other than ext4 and xfs are missed, and the command says so. Processes are recorded
    /// from their first moment on. Each read or write costs the program some 0.4 us. Needs Linux
    /// 6.1.
    #[arg(long, conflicts_with_all = ["interval", "max_slowdown", "faults"])]
    pub files: bool,

    /// With --files: record the processes of a memory cgroup and of those below it.
    #[arg(long, value_name = "PATH", requires = "files")]
    #[arg(value_parser = agewise_cli::observe::cgroup_path())]
    pub cgroup: Option<String>,

    /// Time between two looks, at least 10 ms.
    #[arg(long, value_name = "DURATION", default_value = "100ms")]
    #[arg(value_parser = units::positive_duration)]
    pub interval: Duration,

    /// The trace file to create; an existing file is not overwritten.
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,

    /// How much recording may slow the program, as a share of its time (5%); `none` sees every
    /// access, whatever the cost.
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = units::slowdown)]
    pub max_slowdown: f64,

    /// Record page faults with exact time and order: auto (if the kernel allows it; otherwise one
    /// line says so), on (or fail), off. Costs the program 0.1 to 0.2 us per fault.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = fault_mode())]
    pub faults: FaultMode,

    /// Stop after this time. Default: when the program ends or on SIGINT.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    pub duration: Option<Duration>,

    /// Stop when the trace has grown to this size.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::positive_size)]
    pub max_size: u64,

    /// Format of the summary: text, or one JSON object. It goes to standard error for a COMMAND,
    /// whose standard output is its own.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// The program to start and record, and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Shortest interval; below it, recording would mainly measure the looks themselves.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Looks may take one part in this many of the time.
const LOOK_SHARE_MAX: u32 = 4;

/// Time between two searches for new processes. A search is cheap, but reads all of /proc.
const FAMILY_EVERY: Duration = Duration::from_millis(200);

/// The summary, with the field names of all outputs.
#[derive(Debug, Serialize)]
struct Summary {
    file: PathBuf,
    interval_ms: u64,
    seconds: f64,
    #[serde(flatten)]
    totals: Totals,
    cpu_share: f64,
    files_mapped: usize,
    ended_by: &'static str,
}

/// Records until the program ends or a limit is reached.
///
/// # Errors
/// The process cannot be observed, or the trace cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.interval < INTERVAL_MIN {
        agewise_cli::refuse!(
            "--interval {:?} is too short: at least {INTERVAL_MIN:?}",
            args.interval
        );
    }
    let mut source = recorder::open_source().context("cannot read page tables")?;
    let (fault_source, why_not) = faults::open(args.faults).context("--faults on")?;
    if let Some(why_not) = why_not {
        agewise_cli::note!("{why_not}");
    }
    let tells_majors = fault_source
        .as_ref()
        .is_some_and(|source| source.tells_majors());
    let out = File::create_new(&args.out)
        .with_context(|| format!("cannot create {}", args.out.display()))?;
    let mut recorder = Recorder::new(
        &mut source,
        &args.out,
        BufWriter::new(out),
        args.interval,
        metadata(args, fault_source.is_some(), tells_majors),
    )?;
    recorder.set_max_slowdown(args.max_slowdown);
    if let Some(source) = fault_source {
        recorder.set_faults(source);
    }
    let mut subject = match Subject::start(args) {
        Ok(subject) => subject,
        Err(error) => {
            // Nothing was recorded: do not leave an empty trace behind.
            let _ = std::fs::remove_file(&args.out);
            return Err(error);
        }
    };
    let began = Instant::now();
    let ended_by = match record(args, &mut recorder, &mut subject, began) {
        Ok(ended_by) => ended_by,
        Err(error) => {
            // Write nothing more: after a truncated frame it could not be read.
            drop(recorder);
            if !args.command.is_empty() {
                agewise_cli::note!(
                    "recording has ended, the command continues: {}",
                    agewise_cli::output::chain(&error)
                );
            }
            subject.end();
            return Err(error);
        }
    };
    let status = subject.end();
    let (totals, files) = recorder.finish()?;
    let elapsed = began.elapsed().as_secs_f64();
    let summary = Summary {
        file: args.out.clone(),
        interval_ms: u64::try_from(args.interval.as_millis()).unwrap_or(u64::MAX),
        seconds: elapsed,
        totals,
        cpu_share: totals.cpu_ns as f64 / 1e9 / elapsed.max(f64::MIN_POSITIVE),
        files_mapped: files.len(),
        ended_by,
    };
    end(args, status, |mut out| {
        print(&mut out, args.format, &summary)
    })
}

/// Prints the summary of a recording; the exit status is that of the command, if there is one.
pub(super) fn end(
    args: &Args,
    status: Option<ExitStatus>,
    print: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    match args.command.is_empty() {
        true => print(&mut std::io::stdout().lock())?,
        // The status is the command's, whether anyone reads this or not.
        false => drop(print(&mut std::io::stderr().lock())),
    }
    Ok(status.map_or(ExitCode::SUCCESS, |status| child::exit_code(status).into()))
}

/// A one-line description of what is recorded.
pub(super) fn what_is_recorded(args: &Args) -> String {
    let what = match (args.pid, &args.cgroup) {
        (Some(pid), _) => format!("pid {pid}"),
        (None, Some(path)) => format!("cgroup {path}"),
        (None, None) => {
            let words = args.command.iter().map(|word| word.to_string_lossy());
            words.collect::<Vec<_>>().join(" ")
        }
    };
    what.replace('\n', " ")
}

fn metadata(args: &Args, faults: bool, majors: bool) -> String {
    let what = what_is_recorded(args);
    format!(
        "recorder=agewise {}\nrecorded={what}\nunit=page\nfaults={}\nmajor_faults={}\n",
        env!("CARGO_PKG_VERSION"),
        if faults { "exact" } else { "none" },
        if majors { "told" } else { "unknown" },
    )
}

/// The program being recorded.
enum Subject {
    Process {
        process: Process,
        children: bool,
        stop: Stop,
    },
    /// It receives the signals itself, and recording ends when it does.
    Command(Child),
}

impl Subject {
    fn start(args: &Args) -> anyhow::Result<Subject> {
        match args.pid {
            Some(pid) => {
                let process = Process::open_user(&ProcRoot::default(), pid)?;
                Ok(Subject::Process {
                    process,
                    children: args.children,
                    stop: Stop::install()?,
                })
            }
            None => Ok(Subject::Command(Child::spawn(&args.command)?)),
        }
    }

    /// The pids that belong to it now.
    fn members(&self, root: &ProcRoot) -> Vec<u32> {
        match self {
            Subject::Process {
                process, children, ..
            } => members_of(process, *children, root),
            Subject::Command(_) => Family::of(root, std::process::id()).members,
        }
    }

    /// Waits for the command to end; processes it left running are not waited for.
    fn end(self) -> Option<ExitStatus> {
        match self {
            Subject::Process { .. } => None,
            Subject::Command(mut child) => loop {
                let deadline = Instant::now() + Duration::from_secs(3600);
                match child.wait_until(deadline) {
                    Ok(None) => {}
                    Ok(status) => return status,
                    Err(_) => return None,
                }
            },
        }
    }
}

/// The pids of a process, and of its children if they are wanted; none once it has ended.
fn members_of(process: &Process, children: bool, root: &ProcRoot) -> Vec<u32> {
    let mut members = match children {
        true => Family::of(root, process.pid()).members,
        false => Vec::new(),
    };
    members.push(process.pid());
    // Another process may have its number by now, and children of its own.
    if !process.is_alive() {
        members.clear();
    }
    members
}

/// Looks once per interval. Returns why recording ended.
fn record<W: Write>(
    args: &Args,
    recorder: &mut Recorder<'_, W>,
    subject: &mut Subject,
    began: Instant,
) -> anyhow::Result<&'static str> {
    let progress = progress(args);
    let of_command = matches!(subject, Subject::Command(_));
    // One that is too far for the clock never comes.
    let end = args
        .duration
        .and_then(|duration| began.checked_add(duration));
    let mut next_family = began;
    let mut next_look = began;
    let mut first = true;
    loop {
        let now = Instant::now();
        if now >= next_family {
            next_family = now + FAMILY_EVERY;
            for pid in subject.members(&ProcRoot::default()) {
                if !recorder.knows(pid) {
                    recorder.add(pid, of_command || !first)?;
                }
            }
            first = false;
        }
        recorder.interval()?;
        let took = now.elapsed();
        let totals = recorder.totals();
        progress.set_message(format!(
            "{} accesses, {} of trace",
            totals.accesses,
            units::bytes_text(totals.trace_bytes)
        ));
        if recorder.processes() == 0 && !of_command {
            return Ok("exit");
        }
        if totals.trace_bytes >= args.max_size {
            return Ok("max_size");
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            return Ok("duration");
        }
        next_look = (next_look + args.interval).max(now + took * LOOK_SHARE_MAX);
        // The last look is at the end.
        let until = end.map_or(next_look, |end| end.min(next_look));
        let ended_by = match subject {
            Subject::Process { stop, .. } => stop.wait_until(until).then_some("signal"),
            Subject::Command(child) => child.wait_until(until)?.map(|_| "exit"),
        };
        if let Some(ended_by) = ended_by {
            return Ok(ended_by);
        }
    }
}

/// A spinner, if standard error is a terminal and no command uses it.
fn progress(args: &Args) -> ProgressBar {
    if !args.command.is_empty() || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
    let bar = ProgressBar::new_spinner();
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

fn print(out: &mut impl Write, format: Format, summary: &Summary) -> anyhow::Result<()> {
    if format == Format::Json {
        return Ok(output::json_line(out, summary)?);
    }
    let Totals {
        intervals,
        accesses,
        accesses_max,
        processes,
        trace_bytes,
        ..
    } = summary.totals;
    let looks = if intervals == 1 { "look" } else { "looks" };
    writeln!(
        out,
        "{}: {} in {intervals} {looks} over {:.1} s ({} asked), {processes} processes, ended by {}",
        summary.file.display(),
        units::bytes_text(trace_bytes),
        summary.seconds,
        units::duration_text(Duration::from_millis(summary.interval_ms)),
        summary.ended_by,
    )?;
    writeln!(
        out,
        "{accesses} page accesses, at most {} in an interval; recording took {:.1} % of a CPU",
        units::bytes_text(accesses_max * PAGE_BYTES),
        summary.cpu_share * 100.0,
    )?;
    let Totals {
        faults,
        major_faults,
        faults_dropped,
        ..
    } = summary.totals;
    if faults > 0 || faults_dropped > 0 {
        writeln!(
            out,
            "{faults} of them page faults in exact order, {major_faults} known to be major, \
             {faults_dropped} more lost"
        )?;
    }
    if summary.totals.inferred > 0 {
        writeln!(
            out,
            "{:.1} % of the accesses are inferred, to spare the program (--max-slowdown)",
            summary.totals.inferred as f64 * 100.0 / accesses.max(1) as f64
        )?;
    }
    if summary.totals.uncleared_pages > 0 {
        let bytes = units::bytes_text(summary.totals.uncleared_pages * PAGE_BYTES);
        writeln!(
            out,
            "not recorded: {bytes} that nothing can clear (hugetlb)"
        )?;
    }
    Ok(())
}

fn fault_mode() -> impl TypedValueParser<Value = FaultMode> {
    PossibleValuesParser::new(["auto", "on", "off"])
        .try_map(|text| text.parse::<FaultMode>().map_err(std::io::Error::other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_with_the_same_number_is_not_taken_up_nor_are_its_children() {
        let top = tempfile::tempdir().expect("a directory");
        let write = |pid: u32, parent: u32, start: u64| {
            let dir = top.path().join(pid.to_string());
            std::fs::create_dir_all(&dir).expect("created");
            let rest = format!("0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 1000 50");
            let stat = format!("{pid} (x) S {parent} 5 5 0 -1 {rest}\n");
            std::fs::write(dir.join("stat"), stat).expect("written");
        };
        write(5, 1, 99);
        write(6, 5, 100);
        let root = ProcRoot::new(top.path());
        let process = Process::open_in(&root, 5).expect("opened");
        assert_eq!(members_of(&process, true, &root), [6, 5]);
        write(5, 1, 200);
        assert!(members_of(&process, true, &root).is_empty());
    }
}
