// SPDX-License-Identifier: Apache-2.0
//! The directory: made, taken over from a daemon that was killed, and cleaned up.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use super::FilesError;

/// What mounts of this program call themselves.
pub const SOURCE: &str = "agewise";

/// Says that a directory of plain files is ours.
pub const MARKER: &str = ".agewise";
/// The socket in it.
pub const CONTROL: &str = "control";

/// What is mounted somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mounted {
    kind: String,
    source: String,
}

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
        let ours = mounted.kind.starts_with("fuse") && mounted.source == SOURCE;
        match fs::metadata(&path) {
            // Nobody answers any more: the daemon was killed.
            Err(error) if ours && error.raw_os_error() == Some(libc::ENOTCONN) => {
                detach(&path).map_err(failed("unmount what a killed daemon left at"))?;
                return prepare(&path);
            }
            _ if ours => return Err(FilesError::Served { dir: path }),
            _ if mounted.kind.starts_with("fuse") => {
                return Err(FilesError::Occupied { dir: path });
            }
            _ => {}
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

/// Unmounts at once; files that are open stay usable until they are closed.
pub fn detach(dir: &Path) -> io::Result<()> {
    Ok(unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
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

/// Removes everything in a directory, the marker last: what is interrupted is recognised again.
pub fn remove_contents(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == MARKER {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?
        } else {
            fs::remove_file(entry.path())?
        }
    }
    match fs::remove_file(dir.join(MARKER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The canonical path, found without looking at the directory itself, which may not answer.
fn canonical(dir: &Path) -> io::Result<PathBuf> {
    let name = dir
        .file_name()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok(fs::canonicalize(parent)?.join(name))
}

/// What is mounted at a canonical path, the last one if there are several.
fn mounted_at(path: &Path) -> Option<Mounted> {
    let text = fs::read("/proc/self/mountinfo").ok()?;
    parse_mountinfo(&String::from_utf8_lossy(&text), path)
}

fn parse_mountinfo(text: &str, path: &Path) -> Option<Mounted> {
    let of_line = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let point = unescape(left.split(' ').nth(4)?);
        let mut right = right.split(' ');
        let mounted = Mounted {
            kind: right.next()?.to_owned(),
            source: unescape(right.next()?),
        };
        (Path::new(&point) == path).then_some(mounted)
    };
    text.lines().filter_map(of_line).next_back()
}

/// Blanks, tabs, newlines and backslashes are written as `\040` and so on.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\');
        let value = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match value {
            Some(value) => {
                bytes.push(value);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_their_path() {
        let text = "22 1 0:20 / / rw - ext4 /dev/vda rw\n\
            40 22 0:41 / /run/a\\040b rw,nosuid shared:3 - fuse.agewise agewise rw\n\
            41 22 0:42 / /run/x rw - tmpfs tmpfs rw\n\
            42 41 0:43 / /run/x rw - fuse sshfs rw\n";
        let at = |path: &str| parse_mountinfo(text, Path::new(path));
        let ours = at("/run/a b").unwrap();
        assert_eq!(
            (ours.kind.as_str(), ours.source.as_str()),
            ("fuse.agewise", "agewise")
        );
        assert_eq!(
            at("/run/x").unwrap().source,
            "sshfs",
            "the last one is on top"
        );
        assert_eq!(at("/run"), None);
    }

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
