// SPDX-License-Identifier: Apache-2.0
//! Memory cgroups that agewise creates and removes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Cgroup, CgroupError, Hierarchy, Version};
use crate::error::{self, FileError};
use crate::root::ProcRoot;

/// Attempts to empty and remove the cgroup, since its processes may still start others.
const TRIES: u32 = 100;
/// Time between attempts.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// A cgroup created by agewise. Dropping it removes it, after moving its processes to our own
/// cgroup.
#[derive(Debug)]
pub struct OwnCgroup {
    cgroup: Cgroup,
    /// The directory of our own cgroup.
    home: PathBuf,
}

impl OwnCgroup {
    /// Creates an empty cgroup named `PREFIX-PID` where agewise's own limits apply too: below its
    /// own cgroup (v1), or beside it (v2, where a cgroup with children has no processes). Removes
    /// empty ones left behind by killed programs.
    ///
    /// # Errors
    /// There are no memory cgroups, permission is denied, or the parent does not pass the memory
    /// controller down.
    pub fn make_near(hierarchy: &Hierarchy, prefix: &str) -> Result<Self, CgroupError> {
        let near = home(hierarchy);
        let parent = match hierarchy.version {
            Version::V1 => near.as_path(),
            Version::V2 => near.parent().unwrap_or(&near),
        };
        remove_stale(&hierarchy.dir(parent), prefix);
        Self::make(
            hierarchy,
            parent,
            &format!("{prefix}-{}", std::process::id()),
        )
    }

    /// Creates an empty cgroup below `parent`.
    ///
    /// # Errors
    /// As [`make_near`](Self::make_near).
    pub fn make(hierarchy: &Hierarchy, parent: &Path, name: &str) -> Result<Self, CgroupError> {
        let path = parent.join(name);
        let dir = hierarchy.dir(&path);
        DirBuilder::new()
            .create(&dir)
            .map_err(|source| FileError::Directory {
                path: dir.clone(),
                what: "create",
                source,
            })?;
        let limit = dir.join(limit_file(hierarchy.version));
        let cgroup = match limit.exists() {
            true => Cgroup::open(hierarchy, &path),
            false => Err(CgroupError::NotHandedDown {
                path: super::name::text(parent),
            }),
        };
        let made = cgroup.map(|cgroup| OwnCgroup {
            cgroup,
            home: hierarchy.dir(&home(hierarchy)),
        });
        if made.is_err() {
            let _ = fs::remove_dir(&dir);
        }
        made
    }

    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Sets its memory limit, in bytes.
    ///
    /// # Errors
    /// Memory above the limit cannot be reclaimed, or permission is denied.
    pub fn set_limit(&self, bytes: u64) -> Result<(), FileError> {
        let file = limit_file(self.cgroup.hierarchy.version);
        error::write(&self.cgroup.dir().join(file), &bytes.to_string())
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// The process is gone, or permission is denied.
    pub fn take_in(&self, pid: u32) -> Result<(), FileError> {
        let file = self.cgroup.dir().join("cgroup.procs");
        error::write(&file, &pid.to_string())
    }

    /// Opens `cgroup.procs` for a process to write itself into.
    ///
    /// # Errors
    /// No permission to put processes into it.
    pub fn entrance(&self) -> io::Result<File> {
        let path = self.cgroup.dir().join("cgroup.procs");
        OpenOptions::new().write(true).open(path)
    }

    /// Makes `command` start inside the cgroup, so that all its memory is charged there.
    ///
    /// # Errors
    /// As [`entrance`](Self::entrance).
    pub fn enter(&self, command: &mut Command) -> io::Result<()> {
        let entrance = self.entrance()?;
        // SAFETY: between fork and exec only write is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(move || (&entrance).write_all(b"0"));
        }
        Ok(())
    }

    /// Moves the remaining processes to our own cgroup, and removes this one. Does nothing if it is
    /// already gone.
    ///
    /// # Errors
    /// Its processes cannot be moved, or another program created cgroups below it.
    pub fn remove(&self) -> Result<(), FileError> {
        let dir = self.cgroup.dir();
        let procs = self.home.join("cgroup.procs");
        let mut tries = 0;
        loop {
            if self.cgroup.check().is_err() {
                return Ok(());
            }
            for pid in self.cgroup.procs(false).unwrap_or_default() {
                // A process that has just ended cannot and need not be moved.
                let _ = error::write(&procs, &pid.to_string());
            }
            match fs::remove_dir(&dir) {
                Ok(()) => return Ok(()),
                Err(_) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(TRY_EVERY);
                }
                Err(source) => {
                    return Err(FileError::Directory {
                        path: dir,
                        what: "remove",
                        source,
                    });
                }
            }
        }
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

fn limit_file(version: Version) -> &'static str {
    match version {
        Version::V1 => "memory.limit_in_bytes",
        Version::V2 => "memory.max",
    }
}

/// The path of our own cgroup; the root if it is not visible from here.
fn home(hierarchy: &Hierarchy) -> PathBuf {
    hierarchy
        .own_path(&ProcRoot::default())
        .unwrap_or_else(|| "/".into())
}

/// Removes cgroups `PREFIX-PID` of processes that are gone. Non-empty ones stay: the kernel removes
/// only empty ones.
fn remove_stale(dir: &Path, prefix: &str) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| {
            let (before, pid) = name.rsplit_once('-')?;
            pid.parse().ok().filter(|_| before == prefix)
        });
        if pid.is_some_and(|pid: u32| !ProcRoot::default().of(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel creates the files of a cgroup with its directory; here there are none.
    #[test]
    fn one_without_a_controller_is_not_made() {
        let root = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy::at(Version::V2, root.path());
        let error = OwnCgroup::make(&hierarchy, Path::new("/"), "own-1").unwrap_err();
        assert!(error.to_string().contains("subtree_control"), "{error}");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn one_that_cannot_be_made_says_which() {
        let root = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy::at(Version::V2, root.path());
        let error = OwnCgroup::make(&hierarchy, Path::new("/none"), "own-1").unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("cannot create the directory "), "{text}");
        assert!(text.contains("/none/own-1: "), "{text}");
    }

    #[test]
    fn only_empty_ones_of_dead_programs_are_stale() {
        let root = tempfile::tempdir().unwrap();
        let dead = format!("own-{}", u32::MAX);
        let alive = format!("own-{}", std::process::id());
        for name in [
            dead.as_str(),
            &alive,
            "own-run-7",
            "other-4294967295",
            "own",
        ] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        remove_stale(root.path(), "own");
        assert!(!root.path().join(dead).exists());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_command_begins_in_it_and_it_goes() {
        let hierarchy = match Hierarchy::discover(&ProcRoot::default()) {
            Ok(hierarchy) => hierarchy,
            Err(error) => return println!("SKIPPED a cgroup of our own: {error}"),
        };
        let own = match OwnCgroup::make_near(&hierarchy, "agewise-test-own") {
            Ok(own) => own,
            Err(error) => return println!("SKIPPED a cgroup of our own: {error}"),
        };
        own.set_limit(64 << 20).unwrap();
        assert_eq!(own.cgroup().limits().unwrap().max_bytes, Some(64 << 20));
        let mut command = Command::new("sleep");
        command.arg("60");
        own.enter(&mut command).unwrap();
        let mut child = command.spawn().unwrap();
        assert_eq!(own.cgroup().procs(false).unwrap(), [child.id()]);
        own.remove().unwrap();
        assert!(!own.cgroup().dir().exists());
        own.remove().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
