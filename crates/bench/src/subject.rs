// SPDX-License-Identifier: Apache-2.0
//! Programs to watch and squeeze: the exerciser, a key-value server with requests at a steady rate,
//! or compilers.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agewise_cli::signal::Stop;
use anyhow::{Context, ensure};
use clap::ValueEnum;

use crate::exercise::spawned::Spawned;
use crate::installed::is_installed;
use crate::reclaim::Program;
use crate::reclaim::compile::Files;
use crate::reclaim::group::Group;
use crate::reclaim::keys::{Choice, Keys};
use crate::reclaim::program::{self, Server};

/// Requests are sent in bursts, one burst in this time.
const BURST: Duration = Duration::from_millis(10);

/// The name of the compiler load.
const COMPILE: &str = "compile";
/// Files that the compilers process cyclically.
const FILES: usize = 16;

/// What runs, and its operations per second or number of parallel compilers.
#[derive(Clone, Debug)]
pub struct Load {
    kind: Kind,
    rate: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    /// A pattern of the exerciser.
    Pattern(String),
    /// A key-value program; keys follow zipf 0.99.
    Program(Program),
    /// C compilers, each working on another file, over and over.
    Compile,
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            Kind::Pattern(pattern) => write!(f, "{pattern}@{}", self.rate),
            Kind::Program(program) => write!(f, "{}@{}", program.name(), self.rate),
            Kind::Compile => write!(f, "{COMPILE}@{}", self.rate),
        }
    }
}

impl std::str::FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not PATTERN@OPERATIONS, such as zipf:0.99@20000");
        let (name, rate) = text.split_once('@').ok_or_else(bad)?;
        let kind = match Program::from_str(name, false) {
            Ok(program) => Kind::Program(program),
            Err(_) if name == COMPILE => Kind::Compile,
            Err(_) => Kind::Pattern(name.to_owned()),
        };
        Ok(Load {
            kind,
            rate: rate.parse().ok().filter(|rate| *rate > 0).ok_or_else(bad)?,
        })
    }
}

/// Waits while the load runs.
///
/// # Errors
/// Interrupted.
pub fn wait(stop: &Stop, duration: Duration) -> anyhow::Result<()> {
    ensure!(!stop.wait(duration), "interrupted");
    Ok(())
}

/// A running load.
pub enum Subject {
    Exerciser(Spawned),
    Driven(Driven),
}

impl Load {
    /// Checks whether it can run here; `Err` says why not.
    pub fn is_possible(&self) -> Result<(), String> {
        match &self.kind {
            Kind::Pattern(_) => Ok(()),
            Kind::Program(program) => program.is_installed(),
            Kind::Compile => is_installed("cc"),
        }
    }

    /// Starts it with `size_bytes` of memory in `group`, and waits until all of that is in use.
    pub fn start(
        &self,
        agewise: &Path,
        size_bytes: u64,
        group: &Group,
        stop: &Stop,
    ) -> anyhow::Result<Subject> {
        match &self.kind {
            Kind::Pattern(pattern) => {
                let words: Vec<OsString> = vec![
                    "--size".into(),
                    size_bytes.to_string().into(),
                    "--pattern".into(),
                    pattern.into(),
                    "--rate".into(),
                    self.rate.to_string().into(),
                    "--no-final-check".into(),
                ];
                let entrance = group.entrance()?;
                let spawned = Spawned::start_in(agewise, words, Some(&entrance), Some(stop))?;
                Ok(Subject::Exerciser(spawned))
            }
            Kind::Program(program) => {
                let server = Server::start(*program, group, size_bytes)?;
                let mut keys = Keys::connect(&server.socket(), program.dialect(), 1)?;
                let count = program::keys_in(size_bytes);
                keys.load(count, stop.flag())?;
                let rate = self.rate;
                let work =
                    move |end: &AtomicBool, ops: &AtomicU64| ask(keys, count, rate, end, ops);
                Driven::start(Some(server), work).map(Subject::Driven)
            }
            Kind::Compile => {
                let (files, cgroup) = (Files::make(FILES)?, group.cgroup().clone());
                let jobs = usize::try_from(self.rate)?;
                let work = move |end: &AtomicBool, ops: &AtomicU64| {
                    let is_ended = || end.load(Ordering::Relaxed);
                    match files.compile(&cgroup, jobs, u64::MAX, ops, is_ended) {
                        Err(_) if is_ended() => Ok(()),
                        ended => ended,
                    }
                };
                Driven::start(None, work).map(Subject::Driven)
            }
        }
    }
}

impl Subject {
    /// Operations so far.
    pub fn ops(&self) -> u64 {
        match self {
            Subject::Exerciser(spawned) => spawned.truth().ops(),
            Subject::Driven(driven) => driven.ops.load(Ordering::Relaxed),
        }
    }

    /// Whether it ended by itself.
    pub fn has_ended(&mut self) -> bool {
        match self {
            Subject::Exerciser(spawned) => spawned.has_ended(),
            Subject::Driven(driven) => {
                let thread = driven.thread.as_ref();
                thread.is_none_or(JoinHandle::is_finished)
            }
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// It failed while running.
    pub fn finish(self) -> anyhow::Result<()> {
        match self {
            Subject::Exerciser(spawned) => spawned.finish().map(|_| ()),
            Subject::Driven(mut driven) => driven.end(),
        }
    }
}

/// Requests values at a steady rate until it is stopped.
fn ask(
    mut keys: Keys,
    count: u64,
    rate: u64,
    end: &AtomicBool,
    ops: &AtomicU64,
) -> anyhow::Result<()> {
    let (began, stop) = (Instant::now(), AtomicBool::new(false));
    while !end.load(Ordering::Relaxed) {
        let wanted = (began.elapsed().as_secs_f64() * rate as f64) as u64;
        let behind = wanted.saturating_sub(ops.load(Ordering::Relaxed));
        if behind > 0 {
            // A server that cannot keep up must still end soon.
            let burst = behind.min(rate.div_ceil(10));
            keys.run(burst, 0..count, Choice::Zipf, &stop)?;
            ops.fetch_add(burst, Ordering::Relaxed);
        }
        std::thread::sleep(BURST);
    }
    Ok(())
}

/// A thread that drives a server or starts compilers, and the server.
pub struct Driven {
    _server: Option<Server>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
    end: Arc<AtomicBool>,
    ops: Arc<AtomicU64>,
}

impl Driven {
    /// Starts the thread; `work` runs until its flag is set, and counts its operations.
    fn start(
        server: Option<Server>,
        work: impl FnOnce(&AtomicBool, &AtomicU64) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (end, ops) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (ended, done) = (Arc::clone(&end), Arc::clone(&ops));
        let thread = std::thread::Builder::new().spawn(move || work(&ended, &done))?;
        Ok(Driven {
            _server: server,
            thread: Some(thread),
            end,
            ops,
        })
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.end.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let ended = thread
            .join()
            .ok()
            .context("the thread that drives it panicked")?;
        ended.context("the program failed")
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // The server is still running: it must end after the thread.
        let _ = self.end();
    }
}
