// SPDX-License-Identifier: Apache-2.0
//! The directory: created, taken over from a daemon that was killed, and cleaned up.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub use agewise_host::throttle::stale::{CONTROL, MARKER, detach, remove_contents};
use agewise_host::throttle::stale::{canonical, connect, is_abandoned, mounted_at};
use rustix::fs::{FsWord, statfs};

use super::FilesError;

/// Prepares the directory for mounting or filling: creates it, and removes what a killed daemon
/// left in it. Returns its canonical path.
///
/// # Errors
/// If another daemon serves it, it contains foreign files, or it cannot be created.
pub fn prepare(dir: &Path) -> Result<PathBuf, FilesError> {
    let failed = |what: &'static str| {
        let dir = dir.to_owned();
        move |source| FilesError::Directory { what, dir, source }
    };
    if is_below_cgroups(dir) {
        return Err(FilesError::Cgroup {
            dir: dir.to_owned(),
        });
    }
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(failed("make the directory above"))?;
    }
    let path = canonical(dir).map_err(failed("find"))?;
    if let Some(mounted) = mounted_at(&path) {
        let is_ours = mounted.is_ours();
        match is_ours && is_abandoned(&path) {
            // Nothing responds any more: the daemon was killed.
            true => {
                detach(&path).map_err(failed("unmount what a killed daemon left at"))?;
                return prepare(&path);
            }
            false if is_ours => return Err(FilesError::Served { dir: path }),
            false if mounted.is_fuse() => {
                return Err(FilesError::Occupied { dir: path });
            }
            false => {}
        }
    }
    match fs::symlink_metadata(&path) {
        Ok(meta) if !meta.is_dir() => return Err(FilesError::Occupied { dir: path }),
        Ok(_) => clear_leftovers(&path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new()
                .mode(0o700)
                .create(&path)
                .map_err(failed("make"))?;
        }
        Err(error) => return Err(failed("look at")(error)),
    }
    Ok(path)
}

/// Whether a directory holds what [`prepare`] would not touch: files of others, or a file system
/// that another program serves. What a daemon left or serves there is no reason; nor is what cannot
/// be looked at.
pub fn is_occupied(dir: &Path) -> bool {
    let Ok(path) = canonical(dir) else {
        return fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    };
    match mounted_at(&path) {
        Some(mounted) if mounted.is_fuse() => !mounted.is_ours(),
        _ if path.join(MARKER).exists() => false,
        _ => fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()),
    }
}

/// Whether creating the directory would create a cgroup, which nobody would remove.
pub fn is_below_cgroups(dir: &Path) -> bool {
    const CGROUP: FsWord = 0x0027_e0eb;
    const CGROUP2: FsWord = 0x6367_7270;
    let path = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    // The directory itself may be a mount that does not respond.
    let known = path.ancestors().skip(1).find_map(|path| statfs(path).ok());
    known.is_some_and(|found| [CGROUP, CGROUP2].contains(&found.f_type))
}

/// Removes plain files of a killed daemon; refuses anything else.
fn clear_leftovers(dir: &Path) -> Result<(), FilesError> {
    let failed = |source| FilesError::Directory {
        what: "clear",
        dir: dir.to_owned(),
        source,
    };
    let mut entries = fs::read_dir(dir).map_err(failed)?;
    if entries.next().is_none() {
        return Ok(());
    }
    if !dir.join(MARKER).exists() {
        return Err(FilesError::Occupied {
            dir: dir.to_owned(),
        });
    }
    if connect(&dir.join(CONTROL)).is_ok() {
        return Err(FilesError::Served {
            dir: dir.to_owned(),
        });
    }
    remove_contents(dir).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn no_cgroup_is_made_for_them() {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let place = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let place = words.next()?;
            words.next()?.starts_with("cgroup").then_some(place)
        });
        let Some(place) = place else {
            println!("SKIPPED no_cgroup_is_made_for_them: no cgroup file system is mounted");
            return;
        };
        for below in ["agewise-files", "agewise-files/deeper"] {
            let dir = Path::new(place).join(below);
            let refused = prepare(&dir);
            assert!(
                matches!(refused, Err(FilesError::Cgroup { .. })),
                "{refused:?}"
            );
            // `config check` refuses what the daemon does.
            let text = format!(
                "files = {{ enabled = true, directory = '{}' }}",
                dir.display()
            );
            let refused = Config::parse(&text).unwrap().check_places(&[]);
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("would be a cgroup"), "{said}");
        }
        assert!(!Path::new(place).join("agewise-files").exists());
    }

    #[test]
    fn a_directory_with_something_in_it_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("deep/er");
        assert_eq!(prepare(&place).unwrap(), place.canonicalize().unwrap());
        fs::write(place.join("mine"), "x").unwrap();
        assert!(matches!(prepare(&place), Err(FilesError::Occupied { .. })));
        assert!(place.join("mine").exists() && is_occupied(&place));
        // With the marker of a killed daemon, it belongs to this one.
        fs::write(place.join(MARKER), "").unwrap();
        assert!(!is_occupied(&place) && !is_occupied(&place.join("none")));
        prepare(&place).unwrap();
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        fs::write(dir.path().join("file"), "x").unwrap();
        let file = dir.path().join("file");
        assert!(matches!(prepare(&file), Err(FilesError::Occupied { .. })));
        assert!(prepare(Path::new("/")).is_err() && is_occupied(Path::new("/")));
    }
}
