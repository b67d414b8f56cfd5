// SPDX-License-Identifier: Apache-2.0
//! The directory: made, taken over from a daemon that was killed, and cleaned up.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

pub use agewise_host::throttle::stale::{CONTROL, MARKER, detach, remove_contents};
use agewise_host::throttle::stale::{canonical, is_abandoned, mounted_at};

use super::FilesError;

/// Makes the directory ready to be mounted on or filled: creates it, and removes what a daemon that
/// was killed left there. Returns its canonical path.
///
/// # Errors
/// Another daemon serves it, it holds what is not ours, or it cannot be made.
pub fn prepare(dir: &Path) -> Result<PathBuf, FilesError> {
    let failed = |what: &'static str| {
        let dir = dir.to_owned();
        move |source| FilesError::Directory { what, dir, source }
    };
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(failed("make the directory above"))?;
    }
    let path = canonical(dir).map_err(failed("find"))?;
    if let Some(mounted) = mounted_at(&path) {
        let is_ours = mounted.is_ours();
        match is_ours && is_abandoned(&path) {
            // Nobody answers any more: the daemon was killed.
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
    if UnixStream::connect(dir.join(CONTROL)).is_ok() {
        return Err(FilesError::Served {
            dir: dir.to_owned(),
        });
    }
    remove_contents(dir).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_something_in_it_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("deep/er");
        assert_eq!(prepare(&place).unwrap(), place.canonicalize().unwrap());
        fs::write(place.join("mine"), "x").unwrap();
        assert!(matches!(prepare(&place), Err(FilesError::Occupied { .. })));
        assert!(place.join("mine").exists());
        // With the marker of a killed daemon it is ours.
        fs::write(place.join(MARKER), "").unwrap();
        prepare(&place).unwrap();
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        fs::write(dir.path().join("file"), "x").unwrap();
        let file = dir.path().join("file");
        assert!(matches!(prepare(&file), Err(FilesError::Occupied { .. })));
        assert!(prepare(Path::new("/")).is_err());
    }
}
