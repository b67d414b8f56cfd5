// SPDX-License-Identifier: Apache-2.0
//! What has to be taken back, written down before it is done: a program that is killed leaves a
//! frozen or squeezed cgroup behind, and the next one puts it right.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{self, FileError};

/// One step of taking something back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write a value to a file.
    Write {
        /// The file.
        file: PathBuf,
        /// The value.
        value: String,
    },
    /// Move all processes from one cgroup to another, and remove the first.
    Leave {
        /// The cgroup's directory.
        from: PathBuf,
        /// Where they go.
        to: PathBuf,
    },
}

/// What was done to a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its memory is held low.
    Squeeze,
    /// Its tasks are stopped.
    Freeze,
}

/// How to take one restraint back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undo {
    /// The directory of the cgroup.
    pub dir: PathBuf,
    /// Its inode: another cgroup of the same name is left alone.
    pub inode: u64,
    /// What was done.
    pub kind: Kind,
    /// In this order.
    pub steps: Vec<Step>,
}

impl Undo {
    /// Takes it back. A cgroup that is gone needs nothing.
    ///
    /// # Errors
    /// The first step that fails for another reason; the others are tried as well.
    pub fn run(&self) -> Result<(), FileError> {
        let is_same = fs::metadata(&self.dir).is_ok_and(|meta| meta.ino() == self.inode);
        let mut result = Ok(());
        for step in &self.steps {
            let done = match step {
                // Processes that were moved aside are moved back wherever the memory cgroup is.
                Step::Leave { from, to } => leave(from, to),
                Step::Write { file, value } if is_same || !file.starts_with(&self.dir) => {
                    error::write(file, value)
                }
                Step::Write { .. } => Ok(()),
            };
            match done {
                Err(error) if !error.is_not_found() && result.is_ok() => result = Err(error),
                _ => {}
            }
        }
        result
    }

    fn line(&self) -> String {
        let kind = match self.kind {
            Kind::Squeeze => "squeeze",
            Kind::Freeze => "freeze",
        };
        let dir = escape(&self.dir.display().to_string());
        let mut line = format!("{kind}\t{}\t{dir}", self.inode);
        for step in &self.steps {
            let (verb, path, what) = match step {
                Step::Write { file, value } => ("write", file, value.clone()),
                Step::Leave { from, to } => ("leave", from, to.display().to_string()),
            };
            let path = escape(&path.display().to_string());
            line += &format!("\t{verb}\t{path}\t{}", escape(&what));
        }
        line
    }

    fn parse(line: &str) -> Option<Undo> {
        let mut words = line.split('\t').map(unescape);
        let kind = match words.next()?.as_str() {
            "squeeze" => Kind::Squeeze,
            "freeze" => Kind::Freeze,
            _ => return None,
        };
        let inode = words.next()?.parse().ok()?;
        let dir = PathBuf::from(words.next()?);
        let mut steps = Vec::new();
        while let Some(verb) = words.next() {
            let (path, what) = (PathBuf::from(words.next()?), words.next()?);
            steps.push(match verb.as_str() {
                "write" => Step::Write {
                    file: path,
                    value: what,
                },
                "leave" => Step::Leave {
                    from: path,
                    to: what.into(),
                },
                _ => return None,
            });
        }
        Some(Undo {
            dir,
            inode,
            kind,
            steps,
        })
    }
}

/// A cgroup may have a tab in its name, and whoever may make cgroups must not write steps of ours.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('\t', "\\t");
    text.replace('\n', "\\n")
}

fn unescape(word: &str) -> String {
    let mut text = String::with_capacity(word.len());
    let mut chars = word.chars();
    while let Some(char) = chars.next() {
        text.push(match (char, char == '\\') {
            (_, true) => match chars.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some(other) => other,
                None => '\\',
            },
            (char, false) => char,
        });
    }
    text
}

/// Refuses what somebody else could have written: its steps are carried out with our privileges.
fn check_owner(path: &Path) -> Result<(), FileError> {
    let refused = |why: &str| FileError::Read {
        path: path.to_owned(),
        source: io::Error::other(format!("not trusted: {why}; look at it and remove it")),
    };
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(FileError::Read {
                path: path.to_owned(),
                source,
            });
        }
    };
    if !meta.is_file() {
        return Err(refused("it is no file"));
    }
    if meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused("it belongs to another user"));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(refused("others may write to it"));
    }
    Ok(())
}

/// Keeps two programs from using one ledger: the second would take back what the first does.
#[derive(Debug)]
pub struct LedgerLock {
    _file: fs::File,
}

impl LedgerLock {
    /// Takes the lock of a ledger, `None` if another program has it. It ends with the program that
    /// holds it, however that ends.
    ///
    /// # Errors
    /// The file beside the ledger that is locked cannot be made.
    pub fn take(ledger: &Path) -> Result<Option<Self>, FileError> {
        let path = ledger.with_extension("lock");
        let failed = |source| FileError::Write {
            path: path.clone(),
            value: "a lock".to_owned(),
            source,
        };
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(LedgerLock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

/// Moves every process of a cgroup to another and removes it. Processes may fork meanwhile: until
/// none is left.
fn leave(from: &Path, to: &Path) -> Result<(), FileError> {
    const ROUNDS: usize = 100;
    let procs = from.join("cgroup.procs");
    for _ in 0..ROUNDS {
        let pids = error::read(&procs)?;
        if pids.trim().is_empty() {
            break;
        }
        for pid in pids.lines() {
            match error::write(&to.join("cgroup.procs"), pid) {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
    }
    fs::remove_dir(from).map_err(|source| FileError::Write {
        path: from.to_owned(),
        value: "rmdir".to_owned(),
        source,
    })
}

/// All that is to be taken back, on disk as well if it has a file.
#[derive(Debug, Default)]
pub struct Ledger {
    file: Option<PathBuf>,
    undos: Vec<Undo>,
}

impl Ledger {
    /// A ledger kept in `file` too, whose former contents are taken back first: what a program left
    /// that was killed. Returns what failed; that stays noted, and is tried again at the end and by
    /// the next program.
    ///
    /// # Errors
    /// The file cannot be read or written, or somebody else may have written it.
    pub fn open(file: Option<&Path>) -> Result<(Self, Vec<FileError>), FileError> {
        let mut failures = Vec::new();
        let mut undos = Vec::new();
        file.map(check_owner).transpose()?;
        if let Some(text) = file.map(error::read_optional).transpose()?.flatten() {
            // The last first, as at an end.
            for undo in text.lines().rev().filter_map(Undo::parse) {
                if let Err(error) = undo.run() {
                    failures.push(error);
                    undos.insert(0, undo);
                }
            }
        }
        let ledger = Ledger {
            file: file.map(Path::to_owned),
            undos,
        };
        ledger.save()?;
        Ok((ledger, failures))
    }

    /// Notes what is about to be done.
    ///
    /// # Errors
    /// It cannot be written down: then it must not be done.
    pub fn add(&mut self, undo: Undo) -> Result<(), FileError> {
        self.undos.push(undo);
        self.save().inspect_err(|_| {
            self.undos.pop();
        })
    }

    /// What is noted of a cgroup.
    pub fn find(&self, dir: &Path, kind: Kind) -> Option<&Undo> {
        self.undos
            .iter()
            .find(|undo| undo.dir == dir && undo.kind == kind)
    }

    /// Takes one back; nothing if there is none.
    ///
    /// # Errors
    /// A step failed: it stays noted.
    pub fn undo(&mut self, dir: &Path, kind: Kind) -> Result<(), FileError> {
        let Some(place) = self
            .undos
            .iter()
            .position(|undo| undo.dir == dir && undo.kind == kind)
        else {
            return Ok(());
        };
        self.undos[place].run()?;
        self.undos.remove(place);
        self.save()
    }

    /// Takes all back, the last first. Returns what failed; that stays noted in the file.
    pub fn undo_all(&mut self) -> Vec<FileError> {
        let mut failures = Vec::new();
        for undo in std::mem::take(&mut self.undos).into_iter().rev() {
            if let Err(error) = undo.run() {
                failures.push(error);
                self.undos.insert(0, undo);
            }
        }
        failures.extend(self.save().err());
        failures
    }

    /// Replaces the file whole, so that a crash leaves the old one or the new one.
    fn save(&self) -> Result<(), FileError> {
        let Some(path) = &self.file else {
            return Ok(());
        };
        let failed = |source| FileError::Write {
            path: path.clone(),
            value: "what has to be taken back".to_owned(),
            source,
        };
        if self.undos.is_empty() {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        let fresh = path.with_extension("new");
        let write = || {
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&fresh)?;
            for undo in &self.undos {
                writeln!(file, "{}", undo.line())?;
            }
            file.sync_all()?;
            fs::rename(&fresh, path)
        };
        write().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undo(dir: &Path, inode: u64) -> Undo {
        Undo {
            dir: dir.to_owned(),
            inode,
            kind: Kind::Squeeze,
            steps: vec![Step::Write {
                file: dir.join("memory.high"),
                value: "max".to_owned(),
            }],
        }
    }

    #[test]
    fn lines_come_back() {
        let mut both = undo(Path::new("/sys/fs/cgroup/a b"), 7);
        both.kind = Kind::Freeze;
        both.steps.push(Step::Leave {
            from: "/f/a".into(),
            to: "/f".into(),
        });
        assert_eq!(Undo::parse(&both.line()), Some(both));
        // A name cannot add a step.
        let odd = undo(Path::new("/cg/a\\t\tleave\t/x\t/y\nsqueeze"), 1);
        assert_eq!(odd.line().lines().count(), 1);
        assert_eq!(Undo::parse(&odd.line()), Some(odd));
        for bad in [
            "",
            "x\t1\t/a",
            "squeeze\tx\t/a",
            "squeeze\t1\t/a\twrite\t/b",
            "squeeze\t1",
        ] {
            assert_eq!(Undo::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn what_a_killed_program_left_is_taken_back_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let cgroup = dir.path().join("cgroup");
        fs::create_dir(&cgroup).unwrap();
        let high = cgroup.join("memory.high");
        fs::write(&high, "100").unwrap();
        let file = dir.path().join("ledger");
        let inode = fs::metadata(&cgroup).unwrap().ino();
        let (mut ledger, failures) = Ledger::open(Some(&file)).unwrap();
        assert!(failures.is_empty() && !file.exists());
        ledger.add(undo(&cgroup, inode)).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        drop(ledger);
        let (ledger, failures) = Ledger::open(Some(&file)).unwrap();
        assert!(failures.is_empty() && !file.exists(), "{failures:?}");
        assert_eq!(fs::read_to_string(&high).unwrap().trim(), "max");
        assert!(ledger.find(&cgroup, Kind::Squeeze).is_none());
    }

    #[test]
    fn what_cannot_be_taken_back_stays_noted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ledger");
        let (mut ledger, _) = Ledger::open(Some(&file)).unwrap();
        let mut stuck = undo(dir.path(), fs::metadata(dir.path()).unwrap().ino());
        // A directory cannot be written to.
        fs::create_dir(dir.path().join("memory.high")).unwrap();
        stuck.kind = Kind::Freeze;
        ledger.add(stuck).unwrap();
        assert_eq!(ledger.undo_all().len(), 1);
        drop(ledger);
        let (ledger, failures) = Ledger::open(Some(&file)).unwrap();
        assert_eq!(failures.len(), 1);
        assert!(file.exists() && ledger.find(dir.path(), Kind::Freeze).is_some());
        fs::remove_dir(dir.path().join("memory.high")).unwrap();
        let (_, failures) = Ledger::open(Some(&file)).unwrap();
        assert!(failures.is_empty() && !file.exists(), "{failures:?}");
    }

    #[test]
    fn what_others_could_have_written_is_not_carried_out() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let high = dir.path().join("memory.high");
        fs::write(&high, "100").unwrap();
        let file = dir.path().join("ledger");
        let line = undo(dir.path(), fs::metadata(dir.path()).unwrap().ino()).line();
        fs::write(&file, line).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        let error = Ledger::open(Some(&file)).unwrap_err().to_string();
        assert!(error.contains("others may write to it"), "{error}");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let error = Ledger::open(Some(&link)).unwrap_err().to_string();
        assert!(error.contains("it is no file"), "{error}");
        assert_eq!(fs::read_to_string(&high).unwrap(), "100");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        Ledger::open(Some(&file)).unwrap();
        assert_eq!(fs::read_to_string(&high).unwrap(), "max");
    }

    #[test]
    fn a_ledger_is_for_one_program_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ledger");
        let first = LedgerLock::take(&file).unwrap();
        assert!(first.is_some() && LedgerLock::take(&file).unwrap().is_none());
        drop(first);
        assert!(LedgerLock::take(&file).unwrap().is_some());
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_read_or_not(line in "\\PC{0,80}", words in proptest::collection::vec("[a-z\\\\\t]{0,6}", 0..9)) {
            let _ = Undo::parse(&line);
            let line = words.join("\t");
            if let Some(undo) = Undo::parse(&format!("freeze\t7\t{line}")) {
                proptest::prop_assert_eq!(Undo::parse(&undo.line()), Some(undo));
            }
        }
    }

    #[test]
    fn another_cgroup_of_the_same_name_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("memory.high"), "5").unwrap();
        undo(dir.path(), 1).run().unwrap();
        assert_eq!(
            fs::read_to_string(dir.path().join("memory.high")).unwrap(),
            "5"
        );
        undo(Path::new("/nowhere/at/all"), 1).run().unwrap();
    }
}
