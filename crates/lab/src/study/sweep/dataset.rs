// SPDX-License-Identifier: Apache-2.0
//! A directory of results: Parquet files, one per cell, in directories by subject and policy with
//! Hive's naming, so that DuckDB and polars can read it in place.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::Done;
use crate::study::error::StudyError;
use crate::study::parquet;

/// Digits of a cell's name: half a SHA-256.
pub(super) const ID_DIGITS: usize = 32;

/// Held while a sweep writes.
const LOCK: &str = ".lock";

/// A directory that a sweep writes to.
#[derive(Debug)]
pub struct Dataset {
    directory: PathBuf,
    known: HashSet<String>,
    /// Gives the lock back when it is dropped.
    _lock: File,
}

impl Dataset {
    /// Creates the directory if missing, locks it, and lists its content.
    ///
    /// # Errors
    /// Another sweep writes to it, it holds other cells and `prune` is not set, or it cannot be
    /// read or written.
    pub(super) fn open(
        directory: &Path,
        cells: &HashSet<&str>,
        prune: bool,
    ) -> Result<Dataset, StudyError> {
        let failed = |source| write_error(directory, source);
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = File::create(directory.join(LOCK)).map_err(failed)?;
        if lock.try_lock().is_err() {
            return Err(unusable(directory, "another sweep writes to it".to_owned()));
        }
        let (mut known, mut others) = (HashSet::new(), Vec::new());
        for path in files(directory)? {
            if id_of(&path, ".part").is_some() {
                // What a sweep that was killed was about to write.
                fs::remove_file(&path).map_err(failed)?;
            } else if let Some(id) = id_of(&path, ".parquet") {
                if !cells.contains(id) {
                    others.push(path);
                } else if is_whole(&path) {
                    known.insert(id.to_owned());
                }
            }
        }
        match prune {
            true => others
                .iter()
                .try_for_each(fs::remove_file)
                .map_err(failed)?,
            false if others.is_empty() => {}
            false => {
                let what = format!(
                    "it holds {} cells that are not of this sweep (another description, another \
                     build of agewise, or a file that changed): delete them with --prune, or \
                     name another directory",
                    others.len()
                );
                return Err(unusable(directory, what));
            }
        }
        Ok(Dataset {
            directory: directory.to_owned(),
            known,
            _lock: lock,
        })
    }

    /// How many cells were there when it was opened.
    #[must_use]
    pub fn found(&self) -> usize {
        self.known.len()
    }

    /// Whether a cell existed when the directory was opened.
    pub(super) fn has(&self, id: &str) -> bool {
        self.known.contains(id)
    }

    /// Puts the file of a cell in its place, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&self, id: &str, done: &Done) -> Result<(), StudyError> {
        let directory = self.directory.join(&done.partition);
        let part = directory.join(format!("{id}.part"));
        let write = || {
            fs::create_dir_all(&directory)?;
            let mut file = File::create(&part)?;
            file.write_all(&done.bytes)?;
            file.sync_all()?;
            fs::rename(&part, directory.join(format!("{id}.parquet")))
        };
        write().map_err(|source| write_error(&part, source))
    }
}

/// Directories of the first level: of runs by workload, of curves by trace.
pub(super) const WORKLOAD: &str = "workload";
pub(super) const TRACE: &str = "trace";

/// Where the file of a cell goes: `kind` is [`WORKLOAD`] or [`TRACE`].
pub(super) fn partition(kind: &str, name: &str, policy: &str) -> PathBuf {
    [
        format!("{kind}={}", escaped(name)),
        format!("policy={}", escaped(policy)),
    ]
    .iter()
    .collect()
}

/// The whole cells in a directory; none if there is no directory.
///
/// # Errors
/// It cannot be read.
pub(super) fn ids(directory: &Path) -> Result<HashSet<String>, StudyError> {
    if !directory.exists() {
        return Ok(HashSet::new());
    }
    let mut files = results(directory)?;
    files.retain(|path| is_whole(path));
    let ids = files.iter().filter_map(|path| id_of(path, ".parquet"));
    Ok(ids.map(str::to_owned).collect())
}

/// The results in a directory.
///
/// # Errors
/// It cannot be read.
pub(in crate::study) fn results(directory: &Path) -> Result<Vec<PathBuf>, StudyError> {
    let mut files = files(directory)?;
    files.retain(|path| id_of(path, ".parquet").is_some());
    Ok(files)
}

/// Whether a cell is there to its last byte; one that is not is run again.
fn is_whole(path: &Path) -> bool {
    fs::read(path).is_ok_and(parquet::is_whole)
}

/// The cell of a file, if it is one of such an ending.
fn id_of<'a>(path: &'a Path, ending: &str) -> Option<&'a str> {
    let id = path.file_name()?.to_str()?.strip_suffix(ending)?;
    let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id)
}

/// The files of a data set, in order of their names. What a sweep would not have made is not looked
/// at.
fn files(directory: &Path) -> Result<Vec<PathBuf>, StudyError> {
    let entries = |directory: &Path| -> Result<Vec<PathBuf>, StudyError> {
        let paths = fs::read_dir(directory).and_then(|entries| {
            let path = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.path());
            entries.map(path).collect::<io::Result<Vec<_>>>()
        });
        let mut paths = paths.map_err(|source| StudyError::Read {
            path: directory.to_owned(),
            source,
        })?;
        paths.sort();
        Ok(paths)
    };
    let is_partition = |path: &PathBuf, keys: &[&str]| {
        let name = path.file_name().and_then(|name| name.to_str());
        let key = name.and_then(|name| name.split_once('='));
        path.is_dir() && key.is_some_and(|(key, _)| keys.contains(&key))
    };
    let mut files = Vec::new();
    for subject in entries(directory)? {
        if !is_partition(&subject, &[WORKLOAD, TRACE]) {
            continue;
        }
        for policy in entries(&subject)? {
            if is_partition(&policy, &["policy"]) {
                files.extend(entries(&policy)?);
            }
        }
    }
    Ok(files)
}

/// A value as the name of a directory, as Hive writes it.
fn escaped(value: &str) -> String {
    let mut name = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'+' => {
                name.push(char::from(byte));
            }
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}

fn unusable(path: &Path, what: String) -> StudyError {
    StudyError::Result {
        path: path.to_owned(),
        what,
    }
}

fn write_error(path: &Path, source: io::Error) -> StudyError {
    StudyError::Write {
        path: path.to_owned(),
        source,
    }
}
