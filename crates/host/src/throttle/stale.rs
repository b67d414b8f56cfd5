// SPDX-License-Identifier: Apache-2.0
//! Cleans up what a killed program leaves in the file system: a dead mount, plain files in its
//! place, a dead socket.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::FileError;
use crate::octal::unescape;

/// Source name of mounts by this program.
pub const SOURCE: &str = "agewise";
/// Name of the file that marks a directory of plain files as ours.
pub const MARKER: &str = ".agewise";
/// Name of the socket in such a directory, on which its program listens.
pub const CONTROL: &str = "control";

/// How long a killed process may take to end.
const LAST_MOMENT: Duration = Duration::from_millis(500);

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// File system type.
    pub kind: String,
    pub source: String,
}

impl Mounted {
    /// Whether it has report files of this program, in any of its processes.
    pub fn is_ours(&self) -> bool {
        self.is_fuse() && self.source == SOURCE
    }

    /// Whether a user-space program serves it.
    pub fn is_fuse(&self) -> bool {
        self.kind.starts_with("fuse")
    }
}

/// Removes report files that a killed program left: unmounts them, or deletes plain ones. Does not
/// touch anything that is still served, or was not created by this program.
///
/// # Errors
/// Unmounting or deleting failed.
pub(super) fn clear(dir: &Path) -> Result<(), FileError> {
    let failed = |value: &str, source| FileError::Write {
        path: dir.to_owned(),
        value: value.to_owned(),
        source,
    };
    let Ok(path) = canonical(dir) else {
        return Ok(());
    };
    while mounted_at(&path).is_some_and(|mounted| mounted.is_ours()) {
        if !is_abandoned(&path) {
            return Ok(());
        }
        detach(&path).map_err(|error| failed("unmount", error))?;
    }
    let is_plain = fs::symlink_metadata(path.join(MARKER)).is_ok_and(|meta| meta.is_file());
    if is_plain && connect(&path.join(CONTROL)).is_err() {
        remove_contents(&path)
            .map_err(|error| failed("remove what a killed daemon left", error))?;
    }
    Ok(())
}

/// Whether a FUSE file system is no longer served.
pub fn is_abandoned(path: &Path) -> bool {
    let answer = fs::metadata(path);
    answer.is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
}

/// Removes a socket on which nobody listens; leaves anything else alone.
///
/// # Errors
/// The socket cannot be removed.
pub(super) fn remove_socket(path: &Path) -> Result<(), FileError> {
    let is_socket = |meta: fs::Metadata| meta.file_type().is_socket();
    if !fs::symlink_metadata(path).is_ok_and(is_socket) {
        return Ok(());
    }
    let is_refused =
        || connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    // The process that serves it ends a moment after its daemon.
    let deadline = Instant::now() + LAST_MOMENT;
    while !is_refused() {
        if Instant::now() >= deadline {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::remove_file(path).map_err(|source| FileError::Write {
        path: path.to_owned(),
        value: "unlink".to_owned(),
        source,
    })
}

/// Connects to a socket to see whether somebody listens, without waiting: who lets connections wait
/// listens as well.
///
/// # Errors
/// The error of the system; `ConnectionRefused` if nobody listens any more.
pub fn connect(path: &Path) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Unmounts at once; open files stay usable until they are closed.
///
/// # Errors
/// The error of the system call.
pub fn detach(dir: &Path) -> io::Result<()> {
    Ok(unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

/// Removes everything in a directory, the marker last, so that after an interruption it is still
/// recognised.
///
/// # Errors
/// The error of the system call.
pub fn remove_contents(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == MARKER {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    match fs::remove_file(dir.join(MARKER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The canonical path, found without accessing the directory itself, which may hang.
///
/// # Errors
/// The parent directory cannot be found.
pub fn canonical(dir: &Path) -> io::Result<PathBuf> {
    let name = dir
        .file_name()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok(fs::canonicalize(parent)?.join(name))
}

/// The file system mounted at a canonical path, the last one if there are several.
pub fn mounted_at(path: &Path) -> Option<Mounted> {
    let text = fs::read("/proc/self/mountinfo").ok()?;
    parse_mountinfo(&String::from_utf8_lossy(&text), path)
}

fn parse_mountinfo(text: &str, path: &Path) -> Option<Mounted> {
    let of_line = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let point = PathBuf::from(unescape(left.split(' ').nth(4)?.as_bytes()));
        let mut right = right.split(' ');
        let mounted = Mounted {
            kind: right.next()?.to_owned(),
            source: unescape(right.next()?.as_bytes())
                .to_string_lossy()
                .into_owned(),
        };
        (point == path).then_some(mounted)
    };
    text.lines().filter_map(of_line).next_back()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

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
        assert!(ours.is_ours());
        let other = at("/run/x").unwrap();
        assert_eq!(other.source, "sshfs", "the last one is on top");
        assert!(other.is_fuse() && !other.is_ours());
        assert_eq!(at("/run"), None);
    }

    #[test]
    fn a_socket_that_nobody_listens_to_goes_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file) = (dir.path().join("socket"), dir.path().join("file"));
        let listener = UnixListener::bind(&socket).unwrap();
        remove_socket(&socket).unwrap();
        assert!(socket.exists(), "somebody listens");
        drop(listener);
        remove_socket(&socket).unwrap();
        assert!(!socket.exists());
        remove_socket(&socket).unwrap();
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&file, &socket).unwrap();
        remove_socket(&file).unwrap();
        remove_socket(&socket).unwrap();
        assert!(file.exists() && socket.exists());
    }

    #[test]
    fn who_lets_connections_wait_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        for _ in 0..10 {
            connect(&path).unwrap();
        }
        remove_socket(&path).unwrap();
        assert!(path.exists(), "somebody listens");
    }

    #[test]
    fn plain_files_of_a_killed_program_go_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("files");
        clear(&place).unwrap();
        fs::create_dir(&place).unwrap();
        fs::write(place.join("mine"), "x").unwrap();
        clear(&place).unwrap();
        assert!(place.join("mine").exists(), "no marker: not ours");
        fs::write(place.join(MARKER), "").unwrap();
        let listener = UnixListener::bind(place.join(CONTROL)).unwrap();
        clear(&place).unwrap();
        assert!(place.join("mine").exists(), "somebody answers");
        drop(listener);
        clear(&place).unwrap();
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    }
}
