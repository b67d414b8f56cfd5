// SPDX-License-Identifier: Apache-2.0
//! `agewise trace record --files`: reads and writes through descriptors, in exact order.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use agewise_host::cgroup::{Cgroup, Hierarchy};
use agewise_host::clock::monotonic_ns;
use agewise_host::fileio::{FileIoSource, Whose};
use agewise_host::process::Process;
use agewise_host::recorder::files::{FileRecorder, FileTotals};
use agewise_host::root::ProcRoot;
use anyhow::Context;
use serde::Serialize;

use super::record::{self, Args, what_is_recorded};
use crate::command::run::child::Child;
use crate::command::run::family::Family;
use agewise_cli::observe;
use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
use agewise_cli::units;

/// The ring buffer must hold what a machine reads in this time.
const DRAIN_EVERY: Duration = Duration::from_millis(20);

/// Time between two checks that a cgroup still exists.
const CGROUP_EVERY: Duration = Duration::from_millis(200);

/// The summary, with the field names of all outputs.
#[derive(Debug, Serialize)]
struct Summary {
    file: PathBuf,
    seconds: f64,
    #[serde(flatten)]
    totals: FileTotals,
    /// Reads and writes lost because the ring buffer was full.
    dropped: u64,
    /// At most so many more lost, because a program was running on that CPU already.
    missed: u64,
    ended_by: &'static str,
}

/// Records until the program or cgroup is gone or a limit is reached.
///
/// # Errors
/// Accesses cannot be traced, or the trace cannot be written.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let cgroup = args.cgroup.as_ref().map(|path| {
        let hierarchy = Hierarchy::discover(&ProcRoot::default())?;
        observe::open_cgroup(&hierarchy, path)
    });
    let cgroup = cgroup.transpose()?;
    let opened = match &cgroup {
        Some(cgroup) => FileIoSource::of_cgroup(cgroup),
        None => FileIoSource::open(),
    };
    let mut source = opened.context("--files")?;
    if let Some(unseen) = source.unseen() {
        agewise_cli::note!("not recorded, as the kernel cannot trace its functions: {unseen}");
    }
    let began = Instant::now();
    let out = File::create_new(&args.out)
        .with_context(|| format!("cannot create {}", args.out.display()))?;
    let metadata = format!(
        "recorder=agewise {}\nrecorded={}\nunit=page\naccesses=descriptors\n",
        env!("CARGO_PKG_VERSION"),
        what_is_recorded(args),
    );
    let out = BufWriter::new(out);
    let mut recorder = FileRecorder::new(&args.out, out, monotonic_ns(), metadata)?;
    let mut subject = match Subject::start(args, cgroup, &mut source) {
        Ok(subject) => subject,
        Err(error) => {
            // Nothing was recorded: do not leave an empty trace behind.
            let _ = std::fs::remove_file(&args.out);
            return Err(error);
        }
    };
    let recorded = record(args, &mut source, &mut recorder, &mut subject, began);
    let seconds = began.elapsed().as_secs_f64();
    let (status, finished) = finish(recorder, recorded, subject);
    let (ended_by, totals) = finished?;
    let summary = Summary {
        file: args.out.clone(),
        seconds,
        totals,
        dropped: source.dropped(),
        missed: source.missed(),
        ended_by,
    };
    record::end(args, status, |mut out| {
        print(&mut out, args.format, &summary)
    })
}

/// Finishes the file, however recording ended: it is a complete trace of the time until then. Waits
/// for the command even if that fails.
fn finish<W: Write>(
    recorder: FileRecorder<W>,
    recorded: anyhow::Result<&'static str>,
    subject: Subject,
) -> (
    Option<ExitStatus>,
    anyhow::Result<(&'static str, FileTotals)>,
) {
    let totals = recorder.finish();
    let finished = recorded.and_then(|ended_by| Ok((ended_by, totals?)));
    if finished.is_err() && matches!(subject, Subject::Command(_)) {
        agewise_cli::note!("recording has ended, the command continues");
    }
    (subject.end(), finished)
}

/// The processes whose reads and writes are recorded.
enum Subject {
    Processes,
    Cgroup(Cgroup),
    Command(Child),
}

impl Subject {
    fn start(
        args: &Args,
        cgroup: Option<Cgroup>,
        source: &mut FileIoSource,
    ) -> anyhow::Result<Self> {
        if let Some(cgroup) = cgroup {
            return Ok(Subject::Cgroup(cgroup));
        }
        let Some(pid) = args.pid else {
            // Watch our children from their first moment on, but not ourselves.
            let own = std::process::id();
            source.watch(own, Whose::WithChildren)?;
            let child = Child::spawn(&args.command);
            source.forget(own);
            return Ok(Subject::Command(child?));
        };
        let root = ProcRoot::default();
        Process::open_user(&root, pid)?;
        if !args.children {
            source.watch(pid, Whose::Alone)?;
            return Ok(Subject::Processes);
        }
        source.watch(pid, Whose::WithChildren)?;
        for member in Family::of(&root, pid).members {
            source.watch(member, Whose::WithChildren)?;
        }
        Ok(Subject::Processes)
    }

    /// Waits for the command to end; processes it left running are not waited for.
    fn end(self) -> Option<ExitStatus> {
        let Subject::Command(mut child) = self else {
            return None;
        };
        loop {
            match child.wait_until(Instant::now() + Duration::from_secs(3600)) {
                Ok(None) => {}
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }
}

/// Drains the ring buffer repeatedly. Returns why recording ended.
fn record<W: Write>(
    args: &Args,
    source: &mut FileIoSource,
    recorder: &mut FileRecorder<W>,
    subject: &mut Subject,
    began: Instant,
) -> anyhow::Result<&'static str> {
    // A command receives the signals itself, and recording ends when it does.
    let stop = match subject {
        Subject::Command(_) => None,
        Subject::Processes | Subject::Cgroup(_) => Some(Stop::install()?),
    };
    let mut next_cgroup = began;
    loop {
        // Check for the end before draining, so that everything done until then is recorded.
        let next = Instant::now() + DRAIN_EVERY;
        let mut ended_by = match (&stop, &mut *subject) {
            (_, Subject::Command(child)) => child.wait_until(next)?.map(|_| "exit"),
            (Some(stop), _) => stop.wait_until(next).then_some("signal"),
            (None, _) => None,
        };
        if ended_by.is_none() && matches!(subject, Subject::Processes) && !source.has_watched() {
            ended_by = Some("exit");
        }
        if let Subject::Cgroup(cgroup) = &*subject
            && ended_by.is_none()
            && Instant::now() >= next_cgroup
        {
            next_cgroup = Instant::now() + CGROUP_EVERY;
            ended_by = match cgroup.check() {
                Err(error) if error.is_gone() => Some("exit"),
                checked => checked.map(|()| None)?,
            };
        }
        for io in source.drain()? {
            recorder.add(&io)?;
        }
        let is_long = |duration| began.elapsed() >= duration;
        if ended_by.is_none() && args.duration.is_some_and(is_long) {
            ended_by = Some("duration");
        }
        if ended_by.is_none() && recorder.totals().trace_bytes >= args.max_size {
            ended_by = Some("max_size");
        }
        if let Some(ended_by) = ended_by {
            return Ok(ended_by);
        }
    }
}

fn print(out: &mut impl Write, format: Format, summary: &Summary) -> anyhow::Result<()> {
    if format == Format::Json {
        return Ok(output::json_line(out, summary)?);
    }
    let totals = &summary.totals;
    writeln!(
        out,
        "{}: {} in {:.1} s, ended by {}",
        summary.file.display(),
        units::bytes_text(totals.trace_bytes),
        summary.seconds,
        summary.ended_by,
    )?;
    writeln!(
        out,
        "{} reads of {} pages and {} pages written, of {} files",
        totals.reads, totals.read_pages, totals.written_pages, totals.files,
    )?;
    for (count, why) in [
        (summary.dropped, "more came at a time than can wait"),
        (totals.unnumbered, "of more files than can be numbered"),
    ] {
        if count > 0 {
            writeln!(out, "{count} reads and writes are not recorded: {why}")?;
        }
    }
    if summary.missed > 0 {
        writeln!(
            out,
            "at most {} more are not recorded: came while another was noted on the same CPU",
            summary.missed
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::OsString;
    use std::io;
    use std::path::Path;
    use std::rc::Rc;

    use super::*;

    /// A disk that can be full.
    struct Disk(Rc<Cell<bool>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.get() {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(bytes.len()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_command_is_waited_for_even_if_its_trace_cannot_be_finished() {
        let is_full = Rc::new(Cell::new(false));
        let disk = Disk(Rc::clone(&is_full));
        let recorder = FileRecorder::new(Path::new("out"), disk, 0, String::new()).expect("begun");
        let child = Child::spawn(&["sh", "-c", "sleep 0.2; exit 7"].map(OsString::from));
        is_full.set(true);
        let subject = Subject::Command(child.expect("started"));
        let (status, finished) = finish(recorder, Ok("exit"), subject);
        assert_eq!(status.and_then(|status| status.code()), Some(7));
        let error = finished.expect_err("the disk is full").to_string();
        assert!(error.contains("out"), "{error}");
    }
}
