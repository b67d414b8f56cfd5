// SPDX-License-Identifier: Apache-2.0
//! How to undo one action, in steps that may run twice.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::stale;
use crate::error::{self, FileError};

/// The only files that an undo writes to. A ledger with other files is not carried out: even
/// somebody who could forge a line could only thaw a cgroup or change its limit.
const WRITABLE: [&str; 5] = [
    "memory.high",
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "cgroup.freeze",
    "freezer.state",
];

/// One step of undoing an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write a value to a file.
    Write { file: PathBuf, value: String },
    /// A value that was written to a file by us. If the file contains none of these values, another
    /// program has set it since, and a [`Write`](Step::Write) to it is skipped.
    Given {
        file: PathBuf,
        /// The value, as the kernel prints it.
        value: String,
    },
    /// Move all processes from one cgroup to another, and remove the first.
    Leave {
        /// The cgroup's directory.
        from: PathBuf,
        /// The directory of the cgroup they go to.
        to: PathBuf,
    },
    /// Unmount report files that are no longer served, and remove plain ones.
    Unmount {
        /// Their directory.
        dir: PathBuf,
    },
    /// Remove a socket that nobody listens to any more.
    RemoveSocket { path: PathBuf },
}

impl Step {
    /// Whether this program would record such a step.
    pub(super) fn is_ours(&self) -> bool {
        match self {
            Step::Write { file, .. } | Step::Given { file, .. } => {
                let name = file.file_name();
                file.is_absolute() && WRITABLE.iter().any(|known| name == Some(known.as_ref()))
            }
            Step::Leave { from, to } => from.is_absolute() && to.is_absolute(),
            Step::Unmount { dir: path } | Step::RemoveSocket { path } => path.is_absolute(),
        }
    }
}

/// The kind of action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The memory of a cgroup is kept low.
    Squeeze,
    /// The memory of a cgroup is limited.
    Limit,
    /// The tasks of a cgroup are stopped.
    Freeze,
    /// Report files are mounted.
    Mount,
    /// A socket exists in the file system.
    Socket,
}

impl Kind {
    /// Whether it is applied to a cgroup.
    pub fn is_throttle(self) -> bool {
        matches!(self, Kind::Squeeze | Kind::Limit | Kind::Freeze)
    }
}

/// How to undo one action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undo {
    /// The directory of the cgroup, the mount point, or the path of the socket.
    pub dir: PathBuf,
    /// The inode of the cgroup, so that another one of the same name is left alone. 0 for others.
    pub inode: u64,
    /// What was done.
    pub kind: Kind,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Undo {
    /// What was done, and to what.
    pub fn describe(&self) -> String {
        let what = match self.kind {
            Kind::Squeeze => "the squeeze of",
            Kind::Limit => "the limit of",
            Kind::Freeze => "the freeze of",
            Kind::Mount => "the mount at",
            Kind::Socket => "the socket",
        };
        format!("{what} {}", self.dir.display())
    }

    /// Undoes the creation of report files at this absolute path: a FUSE mount, or plain files.
    pub fn mount(dir: &Path) -> Self {
        let step = Step::Unmount {
            dir: dir.to_owned(),
        };
        Self::of_path(dir, Kind::Mount, step)
    }

    /// Undoes the creation of a socket at this absolute path.
    pub fn socket(path: &Path) -> Self {
        let step = Step::RemoveSocket {
            path: path.to_owned(),
        };
        Self::of_path(path, Kind::Socket, step)
    }

    fn of_path(path: &Path, kind: Kind, step: Step) -> Self {
        Undo {
            dir: path.to_owned(),
            inode: 0,
            kind,
            steps: vec![step],
        }
    }

    /// Undoes the action. Nothing is done for what no longer exists.
    ///
    /// # Errors
    /// The error of the first step that fails for another reason; the other steps are tried as
    /// well.
    pub fn run(&self) -> Result<(), FileError> {
        let is_same = fs::metadata(&self.dir).is_ok_and(|meta| meta.ino() == self.inode);
        let mut result = Ok(());
        for step in &self.steps {
            let done = match step {
                // Processes that were moved aside are moved back, whatever happened to the memory
                // cgroup.
                Step::Leave { from, to } => leave(from, to),
                Step::Write { file, value } if is_same || !file.starts_with(&self.dir) => {
                    self.write(file, value)
                }
                Step::Write { .. } | Step::Given { .. } => Ok(()),
                Step::Unmount { dir } => stale::clear(dir),
                Step::RemoveSocket { path } => stale::remove_socket(path),
            };
            match done {
                Err(error) if !error.is_not_found() && result.is_ok() => result = Err(error),
                _ => {}
            }
        }
        result
    }
}

impl Undo {
    /// The values we wrote to a file.
    fn given<'a>(&'a self, file: &'a Path) -> impl Iterator<Item = &'a str> {
        self.steps.iter().filter_map(move |step| match step {
            Step::Given { file: of, value } if of == file => Some(value.as_str()),
            _ => None,
        })
    }

    /// Whether we wrote this value to a file.
    pub(super) fn has_given(&self, file: &Path, value: &str) -> bool {
        self.given(file).any(|given| given == value)
    }

    /// The step that restores the value a file had before it was first lowered.
    pub(super) fn first(&self, file: &Path) -> Option<&Step> {
        let mut steps = self.steps.iter();
        steps.find(|step| matches!(step, Step::Write { file: of, .. } if of == file))
    }

    /// The value a file should have until this is undone, in bytes.
    pub(super) fn wanted(&self, file: &Path) -> Option<u64> {
        self.given(file).last()?.parse().ok()
    }

    /// Changes this undo if `other` stays in effect: a file that both set gets the value of the
    /// other.
    pub(super) fn beside(mut self, other: &Undo) -> Undo {
        if (&self.dir, self.inode) != (&other.dir, other.inode) {
            return self;
        }
        for step in &mut self.steps {
            if let Step::Write { file, value } = step
                && let Some(wanted) = other.wanted(file)
            {
                *value = wanted.to_string();
            }
        }
        let given = other.steps.iter();
        let given = given.filter(|step| matches!(step, Step::Given { .. }));
        self.steps.extend(given.cloned());
        self
    }

    /// Writes to a file, unless another program has set it since.
    fn write(&self, file: &Path, value: &str) -> Result<(), FileError> {
        if self.given(file).next().is_some() {
            let now = error::read(file)?;
            if !self.has_given(file, now.trim()) {
                return Ok(());
            }
        }
        write(file, value)
    }
}

/// Writes to a cgroup file, which is never a link.
fn write(file: &Path, value: &str) -> Result<(), FileError> {
    OpenOptions::new()
        .write(true)
        .truncate(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(file)
        .and_then(|mut opened| opened.write_all(value.as_bytes()))
        .map_err(|source| failed(file, value, source))
}

fn failed(path: &Path, value: &str, source: io::Error) -> FileError {
    FileError::Write {
        path: path.to_owned(),
        value: value.to_owned(),
        source,
    }
}

/// Moves every process of a cgroup to another one and removes the first. Repeats while it is busy,
/// since processes may fork in the meantime.
fn leave(from: &Path, to: &Path) -> Result<(), FileError> {
    const ROUNDS: usize = 100;
    let mut removed = Ok(());
    for _ in 0..ROUNDS {
        for pid in error::read(&from.join("cgroup.procs"))?.lines() {
            match error::write(&to.join("cgroup.procs"), pid) {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        removed = fs::remove_dir(from);
        match &removed {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            _ => break,
        }
    }
    removed.map_err(|source| FileError::Directory {
        path: from.to_owned(),
        what: "remove",
        source,
    })
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
    fn another_cgroup_of_the_same_name_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let high = dir.path().join("memory.high");
        fs::write(&high, "5").unwrap();
        undo(dir.path(), 1).run().unwrap();
        assert_eq!(fs::read_to_string(&high).unwrap(), "5");
        undo(Path::new("/nowhere/at/all"), 1).run().unwrap();
    }

    #[test]
    fn what_somebody_else_has_set_since_stays() {
        let dir = tempfile::tempdir().unwrap();
        let high = dir.path().join("memory.high");
        let mut undo = undo(dir.path(), fs::metadata(dir.path()).unwrap().ino());
        undo.steps.extend(["8192", "4096"].map(|value| Step::Given {
            file: high.clone(),
            value: value.to_owned(),
        }));
        for (now, after) in [("8192", "max"), ("4096\n", "max"), ("12288", "12288")] {
            fs::write(&high, now).unwrap();
            undo.run().unwrap();
            assert_eq!(fs::read_to_string(&high).unwrap(), after);
        }
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "as it was").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("memory.high")).unwrap();
        let inode = fs::metadata(dir.path()).unwrap().ino();
        assert!(undo(dir.path(), inode).run().is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "as it was");
    }
}
