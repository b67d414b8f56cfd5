// SPDX-License-Identifier: Apache-2.0
//! The error that all readers of kernel files share. It always carries the path.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::untrusted::clean;

/// Bytes read per call.
const PIECE_BYTES: usize = 4096;

/// A kernel file could not be read, written or parsed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Reading failed. `NotFound` is common: the kernel lacks the file, or its owner has just gone.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        /// The error the system returned.
        source: io::Error,
    },
    #[error("cannot write '{value}' to {}: {source}", path.display())]
    Write {
        path: PathBuf,
        /// The value to be written.
        value: String,
        /// The error the system returned.
        source: io::Error,
    },
    #[error("cannot {what} the directory {}: {source}", path.display())]
    Directory {
        path: PathBuf,
        /// `create` or `remove`.
        what: &'static str,
        /// The error the system returned.
        source: io::Error,
    },
    #[error("{}: expected {expected}, found '{found}'", path.display())]
    Format {
        path: PathBuf,
        expected: &'static str,
        /// The offending part, cut to 80 characters.
        found: String,
    },
}

impl FileError {
    /// A format error whose `found` is cut to a length that fits in a message.
    pub fn format(path: &Path, expected: &'static str, found: &str) -> Self {
        let found: String = found.trim_end().chars().take(80).collect();
        Self::Format {
            path: path.to_owned(),
            expected,
            found: clean(&found),
        }
    }

    /// Whether the file was missing: an absent feature, or something that has just vanished.
    pub fn is_not_found(&self) -> bool {
        matches!(self.io_kind(), Some(io::ErrorKind::NotFound))
            // A file of a process or cgroup that went away between open and read.
            || matches!(self.raw_os_error(), Some(libc::ESRCH | libc::ENODEV))
    }

    /// Whether access was denied.
    pub fn is_denied(&self) -> bool {
        matches!(self.io_kind(), Some(io::ErrorKind::PermissionDenied))
    }

    /// The errno behind the error, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Read { source, .. }
            | Self::Write { source, .. }
            | Self::Directory { source, .. } => source.raw_os_error(),
            Self::Format { .. } => None,
        }
    }

    fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Read { source, .. }
            | Self::Write { source, .. }
            | Self::Directory { source, .. } => Some(source.kind()),
            Self::Format { .. } => None,
        }
    }
}

/// Reads a whole small kernel file unchanged: names in it may contain any bytes.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, FileError> {
    read_pieces(path).map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Reads a whole small kernel file. Bytes that are not UTF-8 (process names) become U+FFFD.
pub fn read(path: &Path) -> Result<String, FileError> {
    Ok(match String::from_utf8(read_bytes(path)?) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// The size of a kernel file is unknown before it is read. Most fit in one piece and so take two
/// calls; `std::fs::read` starts with 32 bytes and takes eight for a `/proc/PID/stat`.
fn read_pieces(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut piece = [0; PIECE_BYTES];
    let mut bytes = Vec::new();
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(read) => bytes.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Like [`read`], but returns `None` for a missing file.
pub fn read_optional(path: &Path) -> Result<Option<String>, FileError> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a file that contains one unsigned decimal number.
pub fn read_u64(path: &Path) -> Result<u64, FileError> {
    let text = read(path)?;
    text.trim()
        .parse()
        .map_err(|_| FileError::format(path, "an unsigned number", &text))
}

/// Writes one value to a kernel file in a single write call, as sysfs requires. Opens with
/// truncation like a shell: kernel files ignore it, and the plain files that replace them in tests
/// need it. If a signal interrupts the call, it is repeated.
pub fn write(path: &Path, value: &str) -> Result<(), FileError> {
    write_by(path, value, |mut file, bytes| file.write_all(bytes))
}

/// Like [`write`], but a call that a signal interrupts (`EINTR`) is not repeated: for requests that
/// have been carried out in part by then, and would be carried out in full once more.
pub fn write_once(path: &Path, value: &str) -> Result<(), FileError> {
    write_by(path, value, |mut file, bytes| file.write(bytes).map(drop))
}

fn write_by(
    path: &Path,
    value: &str,
    write: impl FnOnce(File, &[u8]) -> io::Result<()>,
) -> Result<(), FileError> {
    OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|file| write(file, value.as_bytes()))
        .map_err(|source| FileError::Write {
            path: path.to_owned(),
            value: value.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_carry_the_path_and_the_reason() {
        let error = read(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(error.is_not_found());
        assert!(
            error
                .to_string()
                .starts_with("cannot read /nowhere/at/all: ")
        );
        assert!(
            read_optional(Path::new("/nowhere/at/all"))
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn files_of_any_length_are_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        for length in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 7] {
            let text: String = (b'a'..=b'z').cycle().take(length).map(char::from).collect();
            std::fs::write(&path, &text).unwrap();
            assert_eq!(read(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_number_that_is_none_is_a_format_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        std::fs::write(&path, "max\n").unwrap();
        let error = read_u64(&path).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("expected an unsigned number, found 'max'")
        );
        write(&path, "42\n").unwrap();
        assert_eq!(read_u64(&path).unwrap(), 42);
    }

    #[test]
    fn names_that_are_not_utf8_do_not_fail() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("comm");
        std::fs::write(&path, b"a\xffb\n").unwrap();
        assert_eq!(read(&path).unwrap(), "a\u{fffd}b\n");
    }
}
