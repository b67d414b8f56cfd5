// SPDX-License-Identifier: Apache-2.0
//! Sweeps: many studies from one description, on all cores, into a directory of Parquet files. A
//! cell is one policy of one [`RunRequest`](super::run::RunRequest) or
//! [`CurveRequest`](super::curve::CurveRequest). Its file is named by a hash of everything that
//! determines the contents, so a killed sweep continues where it stopped.

pub mod dataset;
mod remarks;
mod spec;
mod task;
mod times;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use agewise_trace::ReadLimits;
use agewise_trace::yardstick::Yardstick;

use super::error::StudyError;
use super::setup::read_text;
pub use dataset::{Dataset, damage};
pub use spec::Values;
use task::{Subject, Task};
pub use times::Advance;
use times::Times;

/// A sweep.
#[derive(Debug)]
pub struct Sweep {
    cells: Vec<Cell>,
    notes: Vec<String>,
    /// Bytes that the traces in use at once share.
    shared_bytes: Option<u64>,
}

#[derive(Debug)]
struct Cell {
    /// Name of the file.
    id: String,
    /// The values given in the description.
    values: Values,
    task: Task,
    /// Index of its subject, and the subject's hash.
    subject: (usize, String),
}

/// Policies that only the caller knows, made anew for each cell; None if there is none of a name.
pub type Own<'a> = &'a dyn Fn(&str) -> Option<Arc<dyn Yardstick>>;

/// A cell that runs elsewhere: everything it needs, and its file.
#[derive(Clone, Debug)]
pub struct Errand {
    /// Id of the cell.
    pub id: String,
    /// The values given for it, by key.
    pub values: Values,
    /// SHA-256 of the workload or trace.
    pub sha256: String,
    /// The file of the workload or trace, if it has one.
    pub file: Option<PathBuf>,
}

/// Result of a cell.
#[derive(Clone, Debug)]
pub struct Done {
    /// Directory of its file, relative to that of the sweep.
    pub partition: PathBuf,
    /// Contents of the file.
    pub bytes: Vec<u8>,
    /// What is to be said about it.
    pub notes: Vec<String>,
}

/// Result of a sweep.
#[derive(Debug, Default)]
pub struct SweepOutcome {
    /// Cells run.
    pub ran: usize,
    /// Cells that already had results.
    pub found: usize,
    /// Files of cells that were damaged, and therefore run again.
    pub damaged: Vec<PathBuf>,
    /// Cells that cannot be run, and why.
    pub failed: Vec<(String, StudyError)>,
    /// What is to be said about the cells that were run.
    pub remarks: Vec<String>,
}

impl Sweep {
    /// Reads a description, and hashes the files it names.
    ///
    /// # Errors
    /// Fails if it is invalid or a file cannot be read.
    pub fn read(
        path: &Path,
        limits: ReadLimits,
        build: &str,
        own: Own<'_>,
    ) -> Result<Sweep, StudyError> {
        let with_path = |error| match error {
            StudyError::Argument(what) => StudyError::Result {
                path: path.to_owned(),
                what,
            },
            other => other,
        };
        Sweep::parse(&read_text(path)?, limits, build, own).map_err(with_path)
    }

    /// Parses a description.
    ///
    /// # Errors
    /// The same as those of [`Sweep::read`].
    pub fn parse(
        text: &str,
        limits: ReadLimits,
        build: &str,
        own: Own<'_>,
    ) -> Result<Sweep, StudyError> {
        let mut subjects: HashMap<String, ((usize, String), String)> = HashMap::new();
        let mut cells = Vec::new();
        let described = spec::cells(text)?;
        for values in described.cells {
            let text = line(&values);
            let in_cell = |error: StudyError| match error {
                StudyError::Argument(what) => StudyError::Argument(format!("{text}: {what}")),
                other => other,
            };
            let task = Task::of(&values, limits, build, own).map_err(in_cell)?;
            let key = task.shared();
            let next = subjects.len();
            let (subject, listed) = match subjects.get(&key) {
                Some(known) => known.clone(),
                None => {
                    let subject = (next, task.sha256().map_err(in_cell)?);
                    let known = (subject, task.listed().map_err(in_cell)?);
                    subjects.insert(key, known.clone());
                    known
                }
            };
            cells.push(Cell {
                id: task.id(&values, &subject.1, &listed),
                values,
                task,
                subject,
            });
        }
        if cells
            .iter()
            .any(|cell| cell.task.is_curve() != cells[0].task.is_curve())
        {
            return Err(StudyError::argument(
                "a sweep is of runs (workload) or of curves (trace): make two of them",
            ));
        }
        Ok(Sweep {
            cells,
            notes: described.notes,
            shared_bytes: None,
        })
    }

    /// Lets the traces that are in use at once share so many bytes, in place of the limit on each.
    pub fn share_memory(&mut self, bytes: u64) {
        self.shared_bytes = Some(bytes);
    }

    /// What is to be said about the description.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Number of cells.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether there are no cells, which never holds for a sweep that was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Number of its cells that are in a directory, and the files of those that are damaged.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn found(&self, directory: &Path) -> Result<(usize, Vec<PathBuf>), StudyError> {
        let (found, _) = dataset::find(directory, &self.ids())?;
        Ok((found.whole.len(), found.damaged))
    }

    fn ids(&self) -> HashSet<&str> {
        self.cells.iter().map(|cell| cell.id.as_str()).collect()
    }

    /// Opens a directory for cells that run elsewhere, and returns the cells that are missing in
    /// it.
    ///
    /// # Errors
    /// The same as those of [`Sweep::run`].
    pub fn open(
        &self,
        directory: &Path,
        prune: bool,
    ) -> Result<(Dataset, Vec<Errand>), StudyError> {
        let dataset = Dataset::open(directory, &self.ids(), prune)?;
        let missing = self.cells.iter().filter(|cell| !dataset.has(&cell.id));
        let errands = missing.map(|cell| Errand {
            id: cell.id.clone(),
            values: cell.values.clone(),
            sha256: cell.subject.1.clone(),
            file: cell.task.file(),
        });
        let errands = errands.collect();
        Ok((dataset, errands))
    }

    /// Runs the cells that are not in the directory yet, as many in parallel as there are threads.
    /// With `prune`, deletes cells in it that do not belong to this sweep.
    ///
    /// # Errors
    /// Fails if the directory cannot be used; [`StudyError::Stopped`] if it was stopped. Failed
    /// cells are part of the outcome.
    pub fn run(
        &mut self,
        directory: &Path,
        prune: bool,
        stop: &Arc<AtomicBool>,
        advance: impl Fn(Advance) + Sync,
    ) -> Result<SweepOutcome, StudyError> {
        let dataset = Dataset::open(directory, &self.ids(), prune)?;
        let total = self.cells.len();
        let missing = self.cells.iter_mut().filter(|cell| !dataset.has(&cell.id));
        let mut missing: Vec<&mut Cell> = missing.collect();
        // A trace is in use from its first cell to its last.
        missing.sort_by_key(|cell| cell.subject.0);
        if let Some(bytes) = self.shared_bytes {
            share(bytes, &mut missing);
        }
        let missing: Vec<&Cell> = missing.into_iter().map(|cell| &*cell).collect();
        let found = total - missing.len();
        let times = Times::new(missing.iter().map(|cell| cell.subject.0), found);
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
        // Each thread takes cells; a thread that finds none left helps with the seeds of others.
        let ended = rayon::broadcast(|_| work());
        ended.into_iter().collect::<Result<(), StudyError>>()?;
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(SweepOutcome {
            ran: missing.len() - failed.len(),
            found,
            damaged: dataset.damaged().to_vec(),
            failed,
            remarks: dataset.remarks(),
        })
    }
}

impl Errand {
    /// Runs the cell. If `file` is given, its workload or trace is read from there; the file must
    /// have the same name but may be in any directory.
    ///
    /// # Errors
    /// Fails if it cannot be run, or would be a different cell here.
    pub fn run(
        &self,
        file: Option<&Path>,
        limits: ReadLimits,
        build: &str,
        own: Own<'_>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Done, StudyError> {
        let task = Task::of(&self.values, limits, build, own)?;
        let place = file.map(|file| file.to_string_lossy().into_owned());
        let subject = task.read(place.as_deref())?;
        if task.id(&self.values, subject.sha256(), &task.listed()?) != self.id {
            return Err(StudyError::argument(
                "the worker has another build of agewise, or another file, manifest or policy \
                 under this name, than who sent it",
            ));
        }
        task.run(&subject, stop)
    }
}

/// Divides memory by the number of traces in use at once: each thread holds at most one. The cells
/// are sorted by their subjects.
fn share(bytes: u64, cells: &mut [&mut Cell]) {
    let by_subject = cells.chunk_by(|a, b| a.subject.0 == b.subject.0);
    let traces = by_subject.filter(|cells| cells[0].task.reads_trace());
    let at_once = traces.count().min(rayon::current_num_threads()).max(1) as u64;
    for cell in cells {
        cell.task.limits_mut().memory_max_bytes = (bytes / at_once).max(1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The values given for a cell, in one line.
fn line(values: &Values) -> String {
    let parts: Vec<String> = values.iter().map(|(k, v)| format!("{k}={v}")).collect();
    parts.join(" ")
}

/// Workloads and traces in use: each is read when its first cell runs, and dropped after its last.
struct Subjects(Vec<Mutex<Slot>>);

#[derive(Default)]
struct Slot {
    subject: Option<Subject>,
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
        cell.task.run(&self.take(cell)?, stop)
    }

    fn take(&self, cell: &Cell) -> Result<Subject, StudyError> {
        let (at, sha256) = &cell.subject;
        let mut slot = lock(&self.0[*at]);
        slot.cells_left -= 1;
        let subject = match slot.subject.take() {
            Some(subject) => subject,
            None => cell.task.read(None)?,
        };
        if subject.sha256() != *sha256 {
            return Err(StudyError::Argument(format!(
                "{} changed while the sweep ran: start it again",
                cell.task.subject()
            )));
        }
        if slot.cells_left > 0 {
            slot.subject = Some(subject.clone());
        }
        Ok(subject)
    }
}

#[cfg(test)]
mod tests {
    use super::dataset::{TRACE, WORKLOAD};
    use super::*;

    const LIMITS: ReadLimits = ReadLimits {
        memory_max_bytes: 600_000,
        expansion_max: 1,
    };

    #[test]
    fn a_cell_is_of_the_format_in_its_manifest() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("t.trace"), "1 1 0 0\n2 1 0 1\n").unwrap();
        let manifest = directory.path().join("m.csv");
        let sweep = |format: &str, key: &str| {
            let text = format!("file,trace_name,format\nt.trace,t,{format}\n");
            std::fs::write(&manifest, text).unwrap();
            let text = format!(
                "options.manifest = '{}'\n[[grid]]\n{key} = 't'\npolicy = 'lru'",
                manifest.display()
            );
            Sweep::parse(&text, LIMITS, "", &|_| None).unwrap()
        };
        let id = |format: &str, key: &str| sweep(format, key).cells[0].id.clone();
        for key in [TRACE, WORKLOAD] {
            assert_ne!(id("arc", key), id("lirs", key));
            assert_eq!(id("arc", key), id("arc", key));
        }
        let Task::Curve(request) = &sweep("arc", TRACE).cells[0].task else {
            panic!("a run");
        };
        let outcome = request.run(&Arc::default()).unwrap();
        let options = &outcome.cells[0].origin.options;
        assert!(options.contains("trace_format=arc"), "{options}");
    }

    #[test]
    fn what_a_run_says_the_sweep_says() {
        let text = "seeds = 1\n[[grid]]\nworkload = 'kv'\npolicy = 'classic'\nswap = 'none'\n\
                    memory = '128p'";
        let mut sweep = Sweep::parse(text, LIMITS, "", &|_| None).unwrap();
        let out = tempfile::tempdir().unwrap();
        let outcome = sweep.run(out.path(), false, &Arc::default(), |_| ());
        let remarks = outcome.unwrap().remarks;
        assert!(
            remarks[0].contains("kv: programs were killed"),
            "{remarks:?}"
        );
    }

    /// Runs a sweep over a directory of three traces with so many threads, or stops it at once if
    /// there is no directory for results; returns the limits of its cells.
    fn limits(place: &Path, text: &str, threads: usize, out: Option<&Path>) -> Vec<u64> {
        for name in ["a.trace", "b.trace", "c.trace"] {
            std::fs::write(place.join(name), "1\n2\n").unwrap();
        }
        let text = text.replace("HERE", &place.display().to_string());
        let mut sweep = Sweep::parse(&text, LIMITS, "", &|_| None).unwrap();
        sweep.share_memory(600_000);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let nowhere = tempfile::tempdir().unwrap();
        let stop = Arc::new(AtomicBool::new(out.is_none()));
        let run = || sweep.run(out.unwrap_or(nowhere.path()), false, &stop, |_| ());
        let outcome = pool.build().unwrap().install(run);
        assert_eq!(outcome.is_err(), out.is_none());
        let limits = sweep.cells.iter_mut().map(|cell| cell.task.limits_mut());
        limits.map(|limits| limits.memory_max_bytes).collect()
    }

    #[test]
    fn traces_in_use_at_once_share_the_memory() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        // A built-in workload holds no trace.
        let text = "[[grid]]\nworkload = ['kv', 'HERE/*.trace']\npolicy = ['lru', 'arc']";
        for (threads, limit) in [(1, 600_000), (2, 300_000), (16, 200_000)] {
            assert_eq!(limits(place, text, threads, None), [limit; 8]);
        }
        // Nor does one of which all cells are done.
        let out = place.join("out");
        let out = Some(out.as_path());
        let one = "[[grid]]\ntrace = 'HERE/a.trace'\npolicy = ['lru', 'arc']";
        assert_eq!(limits(place, one, 16, out), [600_000; 2]);
        let all = "[[grid]]\ntrace = 'HERE/*.trace'\npolicy = ['lru', 'arc']";
        let mut of_all = limits(place, all, 16, out);
        of_all.sort_unstable();
        assert_eq!(
            of_all,
            [300_000, 300_000, 300_000, 300_000, 600_000, 600_000]
        );
    }
}
