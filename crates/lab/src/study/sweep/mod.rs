// SPDX-License-Identifier: Apache-2.0
//! Sweeps: many studies from one description, on all cores, into a directory of Parquet files. A
//! cell is one policy of one [`RunRequest`]; its file is named by a hash of all that decides what
//! is in it, so a sweep that was killed goes on where it was.

pub mod dataset;
mod spec;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agewise_policy::proactive::Spec;
use agewise_trace::ReadLimits;
use sha2::{Digest, Sha256};

use super::description::Description;
use super::error::StudyError;
use super::run::RunRequest;
use super::setup::{Named, Setup, hex, parse_contender, read_text};
use super::{options, parquet};
use crate::proactive::Sight;
pub use dataset::Dataset;
pub use spec::Values;

/// A sweep.
#[derive(Debug)]
pub struct Sweep {
    cells: Vec<Cell>,
}

#[derive(Debug)]
struct Cell {
    /// Names the file.
    id: String,
    /// What it was given.
    values: Values,
    request: RunRequest,
    /// Which of the subjects it runs, and the hash of that.
    subject: (usize, String),
}

/// A cell for whoever runs it elsewhere: all that it takes, and its file.
#[derive(Clone, Debug)]
pub struct Errand {
    /// Names the cell.
    pub id: String,
    /// What it was given, by key.
    pub values: Values,
    /// SHA-256 of the workload or trace.
    pub sha256: String,
    /// The file of that, if it has one of its own.
    pub file: Option<PathBuf>,
}

/// What came of a cell.
#[derive(Clone, Debug)]
pub struct Done {
    /// Where its file goes below the directory of the sweep.
    pub partition: PathBuf,
    /// What is in it.
    pub bytes: Vec<u8>,
}

/// How far a sweep is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// Cells done, those found done included.
    pub done: usize,
    /// Cells there are.
    pub total: usize,
    /// How long the rest takes, from what cells of the same workloads and traces took so far; of
    /// those that have not been run yet, from all.
    pub left: Duration,
}

/// What a sweep came to.
#[derive(Debug, Default)]
pub struct SweepOutcome {
    /// Cells run.
    pub ran: usize,
    /// Cells that were there already.
    pub found: usize,
    /// Cells that cannot be run, and why.
    pub failed: Vec<(String, StudyError)>,
}

impl Sweep {
    /// Reads a description, and hashes the files that it names.
    ///
    /// # Errors
    /// What is wrong with it, or a file that cannot be read.
    pub fn read(path: &Path, limits: ReadLimits, build: &str) -> Result<Sweep, StudyError> {
        let told = |error| match error {
            StudyError::Argument(what) => StudyError::Result {
                path: path.to_owned(),
                what,
            },
            other => other,
        };
        Sweep::parse(&read_text(path)?, limits, build).map_err(told)
    }

    /// The same of a text.
    ///
    /// # Errors
    /// As [`Sweep::read`].
    pub fn parse(text: &str, limits: ReadLimits, build: &str) -> Result<Sweep, StudyError> {
        let mut subjects: HashMap<String, (usize, String)> = HashMap::new();
        let mut cells = Vec::new();
        for values in spec::cells(text)? {
            let text = line(&values);
            let in_cell = |error: StudyError| match error {
                StudyError::Argument(what) => StudyError::Argument(format!("{text}: {what}")),
                other => other,
            };
            let request = request(&values, limits, build).map_err(in_cell)?;
            let options = options::to_text(&request.setup, request.sight);
            let key = format!("{} {options}", request.subject);
            let next = subjects.len();
            let subject = match subjects.get(&key) {
                Some(known) => known.clone(),
                None => {
                    let sha256 = request.setup.subject_sha256(&request.subject);
                    let subject = (next, sha256.map_err(in_cell)?);
                    subjects.insert(key, subject.clone());
                    subject
                }
            };
            cells.push(Cell {
                id: id(&values, &request, &subject.1),
                values,
                request,
                subject,
            });
        }
        Ok(Sweep { cells })
    }

    /// How many cells it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether it has none; no sweep that was read is so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// How many of its cells are in a directory.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn found(&self, directory: &Path) -> Result<usize, StudyError> {
        let there = dataset::ids(directory)?;
        let cells = self.cells.iter();
        Ok(cells.filter(|cell| there.contains(&cell.id)).count())
    }

    /// Opens a directory for cells that are run elsewhere, and gives those that are missing in it.
    ///
    /// # Errors
    /// As [`Sweep::run`].
    pub fn open(
        &self,
        directory: &Path,
        prune: bool,
    ) -> Result<(Dataset, Vec<Errand>), StudyError> {
        let ids = self.cells.iter().map(|cell| cell.id.as_str()).collect();
        let dataset = Dataset::open(directory, &ids, prune)?;
        let missing = self.cells.iter().filter(|cell| !dataset.has(&cell.id));
        let errands = missing.map(|cell| Errand {
            id: cell.id.clone(),
            values: cell.values.clone(),
            sha256: cell.subject.1.clone(),
            file: cell.request.setup.file(&cell.request.subject),
        });
        let errands = errands.collect();
        Ok((dataset, errands))
    }

    /// Runs the cells that are not in the directory yet, as many at a time as there are threads.
    /// With `prune`, deletes cells in it that are not of this sweep.
    ///
    /// # Errors
    /// A directory that cannot be used, or [`StudyError::Stopped`]; cells that fail are in the
    /// outcome.
    pub fn run(
        &self,
        directory: &Path,
        prune: bool,
        stop: &Arc<AtomicBool>,
        advance: impl Fn(Advance) + Sync,
    ) -> Result<SweepOutcome, StudyError> {
        let ids = self.cells.iter().map(|cell| cell.id.as_str()).collect();
        let dataset = Dataset::open(directory, &ids, prune)?;
        let missing = self.cells.iter().filter(|cell| !dataset.has(&cell.id));
        let missing: Vec<&Cell> = missing.collect();
        let found = self.cells.len() - missing.len();
        let times = Times::new(&missing, found);
        let subjects = Subjects::new(&missing);
        let failed = Mutex::new(Vec::new());
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(cell) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                match subjects.run(cell, stop) {
                    Err(StudyError::Stopped) => return Err(StudyError::Stopped),
                    Err(error) => lock(&failed).push((line(&cell.values), error)),
                    Ok(done) => dataset.put(&cell.id, &done)?,
                }
                advance(times.done(cell.subject.0, started.elapsed()));
            }
            Ok(())
        };
        // Each thread takes cells; one that finds none left helps with the seeds of the others.
        let ended = rayon::broadcast(|_| work());
        ended.into_iter().collect::<Result<(), StudyError>>()?;
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(SweepOutcome {
            ran: missing.len() - failed.len(),
            found,
            failed,
        })
    }
}

impl Errand {
    /// Runs the cell; its workload or trace is read from `file` if that is given, which has the
    /// name of the file but may lie anywhere.
    ///
    /// # Errors
    /// It cannot be run, or here it would be another cell.
    pub fn run(
        &self,
        file: Option<&Path>,
        limits: ReadLimits,
        build: &str,
        stop: &Arc<AtomicBool>,
    ) -> Result<Done, StudyError> {
        let request = request(&self.values, limits, build)?;
        let place = file.map(|file| file.to_string_lossy().into_owned());
        let place = place.as_ref().unwrap_or(&request.subject);
        let named = request.setup.subject(place)?;
        if id(&self.values, &request, &named.sha256) != self.id {
            return Err(StudyError::argument(
                "the worker has another build of agewise, or another file under this name, than \
                 who sent it",
            ));
        }
        done(&request, &named, stop)
    }
}

/// Runs a cell.
fn done(request: &RunRequest, named: &Named, stop: &Arc<AtomicBool>) -> Result<Done, StudyError> {
    let outcome = request.run_on(named, stop, |_| ())?;
    let table = outcome.run_table();
    let partition = dataset::partition(&outcome.cells);
    let cells = outcome.cells;
    let bytes = parquet::bytes(&table, &Description::Run { cells })?;
    Ok(Done { partition, bytes })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a cell was given, in a line.
fn line(values: &Values) -> String {
    let parts: Vec<String> = values.iter().map(|(k, v)| format!("{k}={v}")).collect();
    parts.join(" ")
}

/// The run that a cell stands for.
fn request(values: &Values, limits: ReadLimits, build: &str) -> Result<RunRequest, StudyError> {
    let get = |key: &str| values.get(key).cloned();
    let below = |prefix: &'static str| {
        let named = values.iter().filter_map(move |(key, value)| {
            let name = key.strip_prefix(prefix)?.strip_prefix('.')?;
            Some((name, value))
        });
        named.map(|(name, value)| format!("{name}={value}"))
    };
    let (mut setup, mut sight) = (Setup::default(), Sight::default());
    for option in below("options") {
        options::from_text(&options::escape(&option), &mut setup, &mut sight)?;
    }
    setup.reading.limits = limits;
    let agent = get("proactive").map(|agent| agent.parse::<Spec>());
    let agent = agent
        .transpose()
        .map_err(|error| StudyError::Argument(error.to_string()))?;
    let seeds = get("seeds").map(|seeds| match seeds.parse() {
        Ok(seeds @ 1..=100_000) => Ok(seeds),
        _ => Err(StudyError::argument("seeds are a number from 1 to 100000")),
    });
    Ok(RunRequest {
        setup: Setup {
            memory: get("memory"),
            swap: get("swap"),
            settings: below("set").collect(),
            damon: get("damon"),
            ..setup
        },
        subject: get("workload").unwrap_or_default(),
        columns: vec![(parse_contender(&get("policy").unwrap_or_default())?, agent)],
        sight,
        seeds: seeds.transpose()?,
        build: build.to_owned(),
    })
}

/// A hash of all that decides what the file of a cell holds.
fn id(values: &Values, request: &RunRequest, sha256: &str) -> String {
    let mut hash = Sha256::new();
    for (key, value) in values {
        hash.update(format!("{key}={value}\n"));
    }
    for (policy, _) in &request.columns {
        hash.update(policy.sha256().unwrap_or_default());
    }
    let version = env!("CARGO_PKG_VERSION");
    hash.update(format!("{sha256}\n{version}\n{}\n", request.build));
    let mut id = hex(hash);
    id.truncate(dataset::ID_DIGITS);
    id
}

/// Workloads and traces under way: each is read when its first cell runs, and let go with its last.
struct Subjects(Vec<Mutex<Slot>>);

#[derive(Default)]
struct Slot {
    named: Option<Named>,
    cells_left: usize,
}

impl Subjects {
    fn new(cells: &[&Cell]) -> Subjects {
        let mut slots = Vec::new();
        for cell in cells {
            let (at, _) = cell.subject;
            slots.resize_with(slots.len().max(at + 1), || Mutex::new(Slot::default()));
            lock(&slots[at]).cells_left += 1;
        }
        Subjects(slots)
    }

    fn run(&self, cell: &Cell, stop: &Arc<AtomicBool>) -> Result<Done, StudyError> {
        done(&cell.request, &self.take(cell)?, stop)
    }

    fn take(&self, cell: &Cell) -> Result<Named, StudyError> {
        let (at, sha256) = &cell.subject;
        let mut slot = lock(&self.0[*at]);
        slot.cells_left -= 1;
        let named = match slot.named.take() {
            Some(named) => named,
            None => cell.request.setup.subject(&cell.request.subject)?,
        };
        if named.sha256 != *sha256 {
            return Err(StudyError::Argument(format!(
                "{} changed while the sweep ran: start it again",
                cell.request.subject
            )));
        }
        if slot.cells_left > 0 {
            slot.named = Some(named.clone());
        }
        Ok(named)
    }
}

/// How long cells take.
struct Times {
    threads: u32,
    total: usize,
    state: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    done: usize,
    all: OfCells,
    by_subject: Vec<OfCells>,
}

#[derive(Clone, Copy, Default)]
struct OfCells {
    left: u32,
    done: u32,
    took: Duration,
}

impl OfCells {
    fn mean(self) -> Option<Duration> {
        (self.done > 0).then(|| self.took / self.done)
    }
}

impl Times {
    fn new(missing: &[&Cell], found: usize) -> Times {
        let mut state = Taken {
            done: found,
            ..Taken::default()
        };
        for cell in missing {
            let (at, _) = cell.subject;
            let known = state.by_subject.len().max(at + 1);
            state.by_subject.resize(known, OfCells::default());
            state.by_subject[at].left += 1;
        }
        Times {
            threads: rayon::current_num_threads().max(1) as u32,
            total: found + missing.len(),
            state: Mutex::new(state),
        }
    }

    /// A cell of the subject is done.
    fn done(&self, subject: usize, took: Duration) -> Advance {
        let mut state = lock(&self.state);
        state.done += 1;
        let Taken {
            done,
            all,
            by_subject,
        } = &mut *state;
        for of in [&mut *all, &mut by_subject[subject]] {
            of.left = of.left.saturating_sub(1);
            of.done += 1;
            of.took += took;
        }
        let mean = all.mean().unwrap_or_default();
        let left = by_subject
            .iter()
            .map(|of| of.mean().unwrap_or(mean) * of.left);
        Advance {
            done: *done,
            total: self.total,
            left: left.sum::<Duration>() / self.threads,
        }
    }
}
