// SPDX-License-Identifier: Apache-2.0
//! An exerciser as a child process with its truth mapped, for benchmarks, the demo and live tests.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::Signal;

use super::truth::{State, Truth};
use agewise_cli::children;
use agewise_cli::signal::Stop;

/// Time an exerciser may take to end after SIGTERM: it reads all its pages once more, perhaps from
/// swap.
const END_MAX: Duration = Duration::from_secs(120);

/// A running exerciser; it is ended and waited for when dropped.
#[derive(Debug)]
pub struct Spawned {
    child: Child,
    truth: Truth,
}

/// Makes the names of this process's truth files unique.
static COUNT: AtomicU32 = AtomicU32::new(0);

fn truth_path() -> PathBuf {
    // On /dev/shm, stamps cost no disk I/O.
    let shm = Path::new("/dev/shm");
    let directory = if shm.is_dir() {
        shm.into()
    } else {
        std::env::temp_dir()
    };
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    directory.join(format!("agewise-truth-{}-{number}", std::process::id()))
}

impl Spawned {
    /// Starts `program exercise` with `arguments` (without `--truth` and `--format`) and waits
    /// until it is steady. Its truth file is removed as soon as it is mapped, so nothing is left
    /// behind.
    ///
    /// # Errors
    /// The exerciser does not start, ends before it is steady, or `stop` requests an exit
    /// meanwhile.
    pub fn start<S: AsRef<std::ffi::OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
        stop: Option<&Stop>,
    ) -> anyhow::Result<Self> {
        Self::start_in(program, arguments, None, stop)
    }

    /// Starts it in a cgroup, given its `cgroup.procs` open for writing: all its memory is charged
    /// there.
    ///
    /// # Errors
    /// As [`start`](Self::start), or it may not enter the cgroup.
    pub fn start_in<S: AsRef<std::ffi::OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
        entrance: Option<&File>,
        stop: Option<&Stop>,
    ) -> anyhow::Result<Self> {
        let entrance = entrance.map(File::try_clone).transpose()?;
        let path = truth_path();
        let mut command = Command::new(program);
        command
            .arg("exercise")
            .args(arguments)
            .arg("--truth")
            .arg(&path)
            .args(["--format", "json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // SAFETY: between fork and exec only prctl and write are called, which are
        // async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                if let Some(mut entrance) = entrance.as_ref() {
                    entrance.write_all(b"0")?;
                }
                // If we are killed, the exerciser still cleans up after itself.
                rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
                Ok(())
            });
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mapped = Self::map(&mut child, &path, stop);
        if mapped.is_err() {
            // End it first: it may be about to create the file.
            children::end(&mut child, END_MAX);
        }
        let _ = std::fs::remove_file(&path);
        mapped.map(|truth| Self { child, truth })
    }

    fn map(child: &mut Child, path: &Path, stop: Option<&Stop>) -> anyhow::Result<Truth> {
        let mut truth = None;
        loop {
            if let Some(status) = child.try_wait()? {
                bail!("the exerciser ended before it was ready: {status}");
            }
            if stop.is_some_and(|stop| stop.requested().is_some()) {
                bail!("interrupted");
            }
            // It may not exist yet, or be incomplete.
            truth = truth.or_else(|| Truth::open(path).ok());
            match truth {
                Some(truth) if truth.state() >= State::Steady => return Ok(truth),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Whether it ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The pid of the exerciser.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its truth, updated live.
    pub fn truth(&self) -> &Truth {
        &self.truth
    }

    /// CPU time used so far, in ns; `None` if the exerciser is gone or the kernel does not report
    /// it.
    pub fn cpu_ns(&self) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", self.pid())).ok()?;
        text.split(' ').next()?.parse().ok()
    }

    /// Ends the exerciser and returns its output (NDJSON; the last line is the total).
    ///
    /// # Errors
    /// The exerciser found a changed page, or did not exit in an orderly way.
    pub fn finish(mut self) -> anyhow::Result<String> {
        // It has not been waited for yet.
        children::terminate(&self.child);
        let mut said = String::new();
        if let Some(mut out) = self.child.stdout.take() {
            out.read_to_string(&mut said)
                .context("cannot read what the exerciser said")?;
        }
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the exerciser failed ({status}); a page may have changed");
        }
        Ok(said)
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        children::end(&mut self.child, END_MAX);
    }
}
