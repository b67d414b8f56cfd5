// SPDX-License-Identifier: Apache-2.0
//! A record of what has to be undone, written before it is done: if the program is killed, it
//! leaves a frozen or squeezed cgroup, a mount or a socket behind, and the next run undoes that.
//!
//! Its location does not depend on the configuration ([`state_directory`]), so that it is found
//! even if the configuration is broken, gone or different by now.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::format::Contents;
use super::place::Place;
use super::undo::{Kind, Undo};
use crate::error::FileError;

/// The name of the file in the state directory.
const NAME: &str = "ledger";
/// Longest part of an unreadable line that is shown, in bytes.
const SHOWN_MAX: usize = 120;

/// Why a ledger cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    #[error(
        "another agewise daemon or shrink uses {}; only one at a time may act", path.display()
    )]
    Taken { path: PathBuf },
    /// It cannot be read or written, or it is uncertain who wrote it.
    #[error("the ledger: {0}")]
    File(#[from] FileError),
}

/// The directory of this machine's ledger: the state directory of the systemd unit
/// (`STATE_DIRECTORY`), `/var/lib/agewise` for root, and `~/.local/state/agewise`
/// (`XDG_STATE_HOME`) for others. `None` if their environment names no home.
pub fn state_directory() -> Option<PathBuf> {
    let variable = |name: &str| {
        // systemd separates several directories by colons; the first one is the unit's own.
        let value = std::env::var_os(name)?;
        let first = value.as_bytes().split(|byte| *byte == b':').next()?;
        let path = PathBuf::from(OsStr::from_bytes(first));
        path.is_absolute().then_some(path)
    };
    if let Some(unit) = variable("STATE_DIRECTORY") {
        return Some(unit);
    }
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/agewise".into());
    }
    let home = || variable("HOME").map(|home| home.join(".local/state"));
    Some(variable("XDG_STATE_HOME").or_else(home)?.join("agewise"))
}

/// What was undone of the actions a killed program left behind.
#[derive(Debug, Default)]
pub struct Undone {
    /// The actions undone, the last one first.
    pub done: Vec<Undo>,
    /// Errors of actions on cgroups that could not be undone; they stay in the ledger.
    pub failures: Vec<FileError>,
    /// Errors of other actions; [`Ledger::undo_throttles`] does not try these again.
    pub other_failures: Vec<FileError>,
    /// Lines that could not be parsed, as text; they stay in the file.
    pub unreadable: Vec<String>,
    /// The path of the ledger.
    pub path: PathBuf,
}

impl Undone {
    /// Whether there was nothing to undo.
    pub fn is_nothing(&self) -> bool {
        self.done.is_empty() && self.is_well()
    }

    /// What to do about each line that could not be parsed.
    pub fn unreadable_notes(&self) -> impl Iterator<Item = String> + '_ {
        self.unreadable.iter().map(|line| {
            format!(
                "a line of {} cannot be read, so what it says is not undone; look for frozen or \
                 limited cgroups, put them right by hand, and remove the line: {line}",
                self.path.display()
            )
        })
    }

    /// Whether nothing is left in the ledger.
    pub fn is_well(&self) -> bool {
        self.failures.is_empty() && self.other_failures.is_empty() && self.unreadable.is_empty()
    }
}

#[derive(Debug, Default)]
struct Notes {
    /// Its directory; `None` if it is only in memory.
    dir: Option<PathBuf>,
    /// Created with the first entry.
    place: Option<Place>,
    contents: Contents,
    /// Whether the file differs, because it could not be written the last time.
    is_stale: bool,
    /// Actions meant to stay for now, because this program still needs them.
    held: HashSet<(PathBuf, Kind)>,
}

/// Everything to be undone, kept on disk too if it has a directory. Clones refer to the same
/// ledger.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<Notes>>);

impl Ledger {
    /// Opens the ledger in a state directory. First undoes what a killed program left there, the
    /// last action first. What fails stays recorded, and is tried again by the next run.
    ///
    /// # Errors
    /// [`LedgerError`]. An unwritable file is not an error yet: its actions have been undone by
    /// then, and only [`add`](Self::add) fails.
    pub fn open(dir: &Path) -> Result<(Self, Undone), LedgerError> {
        let mut notes = Notes {
            dir: Some(dir.to_owned()),
            place: Place::open(dir, OsStr::new(NAME))?,
            ..Notes::default()
        };
        let mut undone = Undone {
            path: dir.join(NAME),
            ..Undone::default()
        };
        if let Some(place) = &notes.place {
            take(place)?;
            notes.undo_what_was_left(&mut undone)?;
        }
        notes.leave();
        Ok((Ledger(Arc::new(Mutex::new(notes))), undone))
    }

    /// Undoes the ledger of an earlier version, whose path was set in its configuration.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn undo_file(path: &Path) -> Result<Undone, LedgerError> {
        let mut undone = Undone {
            path: path.to_owned(),
            ..Undone::default()
        };
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(undone);
        };
        let Some(place) = Place::open(dir, name)? else {
            return Ok(undone);
        };
        if place.read()?.is_none() {
            return Ok(undone);
        }
        // Earlier versions lock a file next to it, which they leave behind.
        let _lock = match std::fs::File::open(path.with_extension("lock")) {
            Ok(lock) => Some(take_file(lock, path)?),
            Err(_) => None,
        };
        let mut notes = Notes {
            place: Some(place),
            ..Notes::default()
        };
        notes.undo_what_was_left(&mut undone)?;
        Ok(undone)
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        // After a panic in another thread, the recorded actions are still valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the directory and takes its lock, as [`add`](Self::add) does with the first entry.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn claim(&self) -> Result<(), LedgerError> {
        self.lock().make_place()
    }

    /// Lets others use the ledger as long as this program has no entries.
    pub fn leave(&self) {
        self.lock().leave();
    }

    /// Records what is about to be done, replacing an earlier entry of the same kind. It is on disk
    /// when this returns.
    ///
    /// # Errors
    /// It cannot be recorded, and so must not be done.
    pub fn add(&self, undo: Undo) -> Result<(), LedgerError> {
        let mut notes = self.lock();
        notes.make_place()?;
        let before = match notes.position(&undo.dir, undo.kind) {
            Some(place) => Some((
                place,
                std::mem::replace(&mut notes.contents.undos[place], undo),
            )),
            None => {
                notes.contents.undos.push(undo);
                None
            }
        };
        let was_stale = notes.is_stale;
        let saved = notes.save();
        if saved.is_err() {
            notes.is_stale = was_stale;
            match before {
                Some((place, undo)) => notes.contents.undos[place] = undo,
                None => drop(notes.contents.undos.pop()),
            }
        }
        Ok(saved?)
    }

    /// Whether there is an entry of this kind.
    pub fn has(&self, dir: &Path, kind: Kind) -> bool {
        self.lock().position(dir, kind).is_some()
    }

    /// The entries of a cgroup that write to this file of it.
    pub(super) fn writing(&self, dir: &Path, inode: u64, file: &Path) -> Vec<Undo> {
        let notes = self.lock();
        let writes =
            |undo: &&Undo| undo.dir == dir && undo.inode == inode && undo.first(file).is_some();
        notes
            .contents
            .undos
            .iter()
            .filter(writes)
            .cloned()
            .collect()
    }

    /// Undoes one entry; does nothing if there is none.
    ///
    /// # Errors
    /// A step failed, and the entry stays; or only the file could not be written, which
    /// [`undo_throttles`](Self::undo_throttles) tries again.
    pub fn undo(&self, dir: &Path, kind: Kind) -> Result<(), FileError> {
        let mut notes = self.lock();
        let Some(place) = notes.position(dir, kind) else {
            return Ok(());
        };
        let (undo, undos) = (&notes.contents.undos[place], notes.contents.undos.iter());
        let others = undos.filter(|other| other.kind != kind);
        others.fold(undo.clone(), Undo::beside).run()?;
        notes.contents.undos.remove(place);
        notes.save()
    }

    /// Removes an entry without undoing it: its effect is to stay.
    ///
    /// # Errors
    /// The ledger cannot be written, so the entry will be undone some day.
    pub fn forget(&self, dir: &Path, kind: Kind) -> Result<(), FileError> {
        let mut notes = self.lock();
        let Some(place) = notes.position(dir, kind) else {
            return Ok(());
        };
        notes.contents.undos.remove(place);
        notes.save()
    }

    /// Forgets everything, as if the program had been killed: the entries on disk stay.
    #[cfg(any(test, feature = "testing"))]
    pub fn abandon(&self) {
        *self.lock() = Notes::default();
    }

    /// Marks an action as meant to stay for now, or no longer.
    pub(super) fn hold(&self, dir: &Path, kind: Kind, is_held: bool) {
        let mut notes = self.lock();
        match is_held {
            true => drop(notes.held.insert((dir.to_owned(), kind))),
            false => drop(notes.held.remove(&(dir.to_owned(), kind))),
        }
    }

    /// Undoes everything done to cgroups that this program does not hold, the last action first.
    /// Failures stay recorded.
    pub fn undo_throttles(&self) -> Undone {
        let mut undone = Undone::default();
        let mut notes = self.lock();
        let held = std::mem::take(&mut notes.held);
        let is_meant =
            |undo: &Undo| undo.kind.is_throttle() && !held.contains(&(undo.dir.clone(), undo.kind));
        if notes.contents.undos.iter().any(is_meant) {
            notes.undo(&mut undone, is_meant);
        } else if notes.is_stale {
            undone.failures.extend(notes.save().err());
        }
        notes.held = held;
        undone
    }
}

impl Notes {
    fn position(&self, dir: &Path, kind: Kind) -> Option<usize> {
        let mut undos = self.contents.undos.iter();
        undos.position(|undo| undo.dir == dir && undo.kind == kind)
    }

    fn make_place(&mut self) -> Result<(), LedgerError> {
        if let (Some(dir), None) = (&self.dir, &self.place) {
            let place = Place::make(dir, OsStr::new(NAME))?;
            take(&place)?;
            // Another program may have used it since this one looked.
            if let Some(bytes) = place.read()? {
                self.contents = Contents::decode(&bytes);
            }
            self.place = Some(place);
        }
        Ok(())
    }

    fn leave(&mut self) {
        // A file that could not be removed must be, before anybody reads it again.
        if self.contents.is_empty() && !self.is_stale {
            self.place = None;
        }
    }

    fn undo_what_was_left(&mut self, undone: &mut Undone) -> Result<(), FileError> {
        let read = self.place.as_ref().map(Place::read).transpose()?.flatten();
        let Some(bytes) = read else {
            // There are no entries, but an unfinished new ledger may exist.
            let cleared = self.place.as_ref().map(Place::remove);
            undone.failures.extend(cleared.and_then(Result::err));
            return Ok(());
        };
        self.contents = Contents::decode(&bytes);
        self.undo(undone, |_| true);
        undone.unreadable = self
            .contents
            .unreadable
            .iter()
            .map(|line| shown(line))
            .collect();
        Ok(())
    }

    /// Undoes the entries that `is_meant` selects, the last first.
    fn undo(&mut self, undone: &mut Undone, is_meant: impl Fn(&Undo) -> bool) {
        let mut kept = Vec::new();
        let undos = std::mem::take(&mut self.contents.undos);
        let staying = undos.iter().filter(|undo| !is_meant(undo)).cloned();
        let staying: Vec<Undo> = staying.collect();
        for undo in undos.into_iter().rev() {
            let done = if is_meant(&undo) {
                let beside = staying.iter().fold(undo.clone(), Undo::beside);
                beside.run().map(|()| true)
            } else {
                Ok(false)
            };
            match done {
                Ok(true) => undone.done.push(undo),
                Ok(false) => kept.push(undo),
                Err(error) => {
                    match undo.kind.is_throttle() {
                        true => undone.failures.push(error),
                        false => undone.other_failures.push(error),
                    }
                    kept.push(undo);
                }
            }
        }
        kept.reverse();
        self.contents.undos = kept;
        undone.failures.extend(self.save().err());
    }

    fn save(&mut self) -> Result<(), FileError> {
        let saved = match &self.place {
            None => Ok(()),
            Some(place) if self.contents.is_empty() => place.remove(),
            Some(place) => place.replace(&self.contents.encode()),
        };
        self.is_stale = saved.is_err();
        saved
    }
}

fn take(place: &Place) -> Result<(), LedgerError> {
    match place.lock()? {
        true => Ok(()),
        false => Err(LedgerError::Taken {
            path: place.path().to_owned(),
        }),
    }
}

fn take_file(lock: std::fs::File, path: &Path) -> Result<std::fs::File, LedgerError> {
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(_) => Err(LedgerError::Taken {
            path: path.to_owned(),
        }),
    }
}

/// Converts a line to text that is safe to print.
fn shown(line: &[u8]) -> String {
    let part = &line[..line.len().min(SHOWN_MAX)];
    part.escape_ascii().to_string()
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
