// SPDX-License-Identifier: Apache-2.0
//! Histories of curves as files, one for each subject.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use agewise_policy::whatif::history::{DAYS, History, HistoryError, name_hash};

/// Histories of subjects that have not been seen for this long are removed.
pub(super) const KEPT: Duration = Duration::from_secs(DAYS as u64 * 86_400);
/// Most files: subjects may come and go faster than their histories grow old. Each takes 34 KiB.
pub(super) const FILES_MAX: usize = 4096;

/// The directory of histories in a state directory.
pub(super) fn directory(state: &Path) -> PathBuf {
    state.join("whatif")
}

pub(super) fn file_name(name: &str) -> String {
    format!("{:016x}", name_hash(name))
}

/// Why a history cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    File(#[from] io::Error),
    #[error(transparent)]
    History(#[from] HistoryError),
}

/// Reads the history of a subject from its file; `None` if there is none, or it is that of another
/// subject.
pub(super) fn read(path: &Path, name: &str) -> Result<Option<History>, ReadError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
        Ok(bytes) => {
            let (of, history) = History::decode(&bytes)?;
            Ok((of == name).then_some(history))
        }
    }
}

/// The stored history of a cgroup; `None` if there is none.
///
/// # Errors
/// If it cannot be read, or is damaged.
pub fn history(state: &Path, name: &str) -> Result<Option<History>, ReadError> {
    read(&history_path(state, name), name)
}

/// The file with the history of a cgroup.
pub fn history_path(state: &Path, name: &str) -> PathBuf {
    directory(state).join(file_name(name))
}

/// Stores a history, as a daemon does.
///
/// # Errors
/// If it cannot be written; the previous content is kept.
pub fn keep(state: &Path, name: &str, history: &History) -> io::Result<()> {
    replace(&history_path(state, name), &history.encode(name))
}

/// All histories in a state directory by name, and the files that are not histories, with the
/// reason.
///
/// # Errors
/// If the directory cannot be read; a missing one is not an error.
#[expect(clippy::type_complexity, reason = "two lists of pairs")]
pub fn histories(state: &Path) -> io::Result<(Vec<(String, History)>, Vec<(PathBuf, ReadError)>)> {
    let (mut all, mut damaged) = (Vec::new(), Vec::new());
    let entries = match fs::read_dir(directory(state)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((all, damaged)),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some() {
            // A file that a killed daemon was about to write.
            continue;
        }
        let bytes = fs::read(&path).map_err(ReadError::from);
        match bytes.and_then(|bytes| Ok(History::decode(&bytes)?)) {
            Ok(known) => all.push(known),
            Err(error) => damaged.push((path, error)),
        }
    }
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok((all, damaged))
}

/// Removes histories that have not been seen for a long time, and the oldest beyond `files_max`.
pub(super) fn remove_old(dir: &Path, files_max: usize) {
    let mut kept = Vec::new();
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        let modified = file.metadata().and_then(|meta| meta.modified());
        let Ok(modified) = modified else { continue };
        let age = SystemTime::now().duration_since(modified);
        kept.push((age.unwrap_or_default(), file.path()));
    }
    kept.sort_unstable();
    let recent = kept.partition_point(|(age, _)| *age <= KEPT);
    for (_, path) in kept.drain(recent.min(files_max)..) {
        // If this fails, the next time tries again.
        let _ = fs::remove_file(path);
    }
}

/// Replaces a file atomically: however the daemon ends, either the old or the new content exists.
/// Waiting for the disk would delay looks, and at the end thousands of files; one that a power
/// failure damages is not taken for a history.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&fresh, bytes)?;
    fs::rename(fresh, path)
}
