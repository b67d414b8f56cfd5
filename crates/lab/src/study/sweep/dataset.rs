// SPDX-License-Identifier: Apache-2.0
//! A directory of results: Parquet files, one per cell, in directories by subject and policy named
//! in Hive's style, so that DuckDB and polars can read them in place.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use sha2::{Digest, Sha256};

use super::remarks::Remarks;
use super::{Done, lock};
use crate::study::error::StudyError;
use crate::study::parquet;
use crate::study::setup::hex;

/// Digits in the id of a cell: half a SHA-256.
pub(super) const ID_DIGITS: usize = 32;

/// Lock file of the sweep that writes to the directory.
const LOCK: &str = ".lock";

/// A directory that a sweep writes to.
#[derive(Debug)]
pub struct Dataset {
    directory: PathBuf,
    found: Found,
    remarks: Mutex<Remarks>,
    /// Released when dropped.
    _lock: File,
}

impl Dataset {
    /// Creates the directory if it is missing, locks it, and lists its contents.
    ///
    /// # Errors
    /// Fails if another sweep writes to it, if it contains other cells and `prune` is not set, or
    /// if it cannot be read or written.
    pub(super) fn open(
        directory: &Path,
        cells: &HashSet<&str>,
        prune: bool,
    ) -> Result<Dataset, StudyError> {
        let failed = |source| write_error(directory, source);
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = File::create(directory.join(LOCK)).map_err(failed)?;
        lock.try_lock()
            .map_err(|error| cannot_lock(directory, error))?;
        for path in files(directory)? {
            if id_of(&path, ".part").is_some() {
                // An unfinished file of a killed sweep.
                fs::remove_file(&path).map_err(failed)?;
            }
        }
        let (found, others) = find(directory, cells)?;
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
            found,
            remarks: Mutex::default(),
            _lock: lock,
        })
    }

    /// Number of cells that existed when it was opened.
    #[must_use]
    pub fn found(&self) -> usize {
        self.found.whole.len()
    }

    /// Files of cells that were damaged when it was opened; these cells are missing.
    #[must_use]
    pub fn damaged(&self) -> &[PathBuf] {
        &self.found.damaged
    }

    /// What is to be said about the cells that were put here.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        lock(&self.remarks).lines()
    }

    /// Whether a cell existed when the directory was opened.
    pub(super) fn has(&self, id: &str) -> bool {
        self.found.whole.contains(id)
    }

    /// Stores the file of a cell, completely or not at all.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn put(&self, id: &str, done: &Done) -> Result<(), StudyError> {
        lock(&self.remarks).add(&done.notes);
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

/// First-level directories: by workload for runs, by trace for curves.
pub(super) const WORKLOAD: &str = "workload";
pub(super) const TRACE: &str = "trace";

/// Directory of a cell's file; `kind` is [`WORKLOAD`] or [`TRACE`].
pub(super) fn partition(kind: &str, name: &str, policy: &str) -> PathBuf {
    [
        format!("{kind}={}", escaped(name)),
        format!("policy={}", escaped(policy)),
    ]
    .iter()
    .collect()
}

/// The cells of a sweep that are in a directory.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Ids of those that are as they were written.
    pub whole: HashSet<String>,
    /// Files of the others.
    pub damaged: Vec<PathBuf>,
}

/// One line on damaged files of cells; nothing if there are none.
#[must_use]
pub fn damage(files: &[PathBuf]) -> Option<String> {
    match files {
        [] => None,
        [file] => Some(format!(
            "{} is damaged: its cell is run again",
            file.display()
        )),
        [first, more @ ..] => Some(format!(
            "{} and {} more are damaged: their cells are run again",
            first.display(),
            more.len()
        )),
    }
}

/// Finds these cells in a directory, and the files of all others; none if it does not exist.
///
/// # Errors
/// Fails if it cannot be read.
pub(super) fn find(
    directory: &Path,
    cells: &HashSet<&str>,
) -> Result<(Found, Vec<PathBuf>), StudyError> {
    let (mut found, mut others) = (Found::default(), Vec::new());
    if !directory.exists() {
        return Ok((found, others));
    }
    for path in results(directory)? {
        match id_of(&path, ".parquet").filter(|id| cells.contains(id)) {
            None => others.push(path),
            Some(id) if is_whole(&path) => {
                found.whole.insert(id.to_owned());
            }
            Some(_) => found.damaged.push(path),
        }
    }
    Ok((found, others))
}

/// The result files in a directory.
///
/// # Errors
/// Fails if it cannot be read.
pub(in crate::study) fn results(directory: &Path) -> Result<Vec<PathBuf>, StudyError> {
    let mut files = files(directory)?;
    files.retain(|path| id_of(path, ".parquet").is_some());
    Ok(files)
}

/// Whether a cell is as it was written; one that is not is run again.
fn is_whole(path: &Path) -> bool {
    fs::read(path).is_ok_and(|bytes| parquet::check_whole(&bytes).is_ok())
}

/// The id of a cell, if the file is named by one and has this ending.
fn id_of<'a>(path: &'a Path, ending: &str) -> Option<&'a str> {
    let id = path.file_name()?.to_str()?.strip_suffix(ending)?;
    let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id)
}

/// The files of a data set in order of their names. Directories that no sweep would create are
/// ignored.
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

/// Length up to which names are written whole; file systems take 255 bytes, with the key.
const NAME_MAX: usize = 200;

/// Digits of the hash that a longer name ends in.
const HASH_DIGITS: usize = 16;

/// A value as a directory name, escaped as in Hive. One that is too long is cut, and ends in digits
/// of its hash.
fn escaped(value: &str) -> String {
    let (mut name, mut end) = (String::new(), 0);
    for part in value.chars() {
        for &byte in part.encode_utf8(&mut [0; 4]).as_bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'+' => {
                    name.push(char::from(byte));
                }
                _ => name.push_str(&format!("%{byte:02X}")),
            }
        }
        if name.len() <= NAME_MAX - HASH_DIGITS {
            end = name.len();
        }
    }
    if name.len() > NAME_MAX {
        name.truncate(end);
        name.push_str(&hex(Sha256::new_with_prefix(value))[..HASH_DIGITS]);
    }
    name
}

fn cannot_lock(directory: &Path, error: TryLockError) -> StudyError {
    let what = match error {
        TryLockError::WouldBlock => "another sweep writes to it".to_owned(),
        TryLockError::Error(error) => format!(
            "it cannot be locked, which keeps two sweeps from writing to it: {error}; name a \
             directory on another file system"
        ),
    };
    unusable(directory, what)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_longer_than_file_systems_take() {
        assert_eq!(escaped("a b"), "a%20b");
        let (long, other) = ("ü".repeat(200), "ü".repeat(201));
        for shift in ["", "x", "xx"] {
            let name = escaped(&format!("{shift}{long}"));
            assert!(name.len() <= NAME_MAX, "{name}");
            let (cut, _) = name.split_at(name.len() - HASH_DIGITS);
            assert!(cut.ends_with("%C3%BC"), "{name}");
        }
        assert_ne!(escaped(&long), escaped(&other));
    }

    #[test]
    fn a_file_system_without_locks_is_no_other_sweep() {
        let told = |error| cannot_lock(Path::new("out"), error).to_string();
        let none = io::Error::from_raw_os_error(libc::ENOLCK);
        let error = told(TryLockError::Error(none));
        assert!(error.contains("No locks available"), "{error}");
        assert!(told(TryLockError::WouldBlock).contains("another sweep"));
    }
}
