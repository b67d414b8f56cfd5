// SPDX-License-Identifier: Apache-2.0
//! Files that appear complete or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// How many unfinished files of one name are looked for a free one: commands that were killed may
/// have left some.
const PARTS_MAX: u32 = 1000;

/// A file that is written as `NAME.part`, or `NAME.2.part` and so on where that exists, and takes
/// its name when it is finished; if it is dropped before that, nothing is left of it. Links, pipes
/// and devices are written directly.
#[derive(Debug)]
pub struct Aside {
    file: File,
    /// Where it is written and what it will be called, until it is.
    names: Option<(PathBuf, PathBuf)>,
}

impl Aside {
    /// Creates it. So a place that cannot be written is known before there is anything to write.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create(path: &Path) -> io::Result<Aside> {
        let there = fs::symlink_metadata(path).ok();
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            return Ok(Aside {
                file: File::create(path)?,
                names: None,
            });
        }
        let (file, part) = Self::create_part(path)?;
        let aside = Aside {
            file,
            names: Some((part, path.to_owned())),
        };
        if let Some(there) = there {
            aside.file.set_permissions(there.permissions())?;
        }
        Ok(aside)
    }

    /// A file that nobody else has: another command may write the same one, and a file of this
    /// name may be somebody's.
    fn create_part(path: &Path) -> io::Result<(File, PathBuf)> {
        let mut number = 1;
        loop {
            let mut part = path.as_os_str().to_owned();
            match number {
                1 => part.push(".part"),
                _ => part.push(format!(".{number}.part")),
            }
            let part = PathBuf::from(part);
            match File::create_new(&part) {
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && number < PARTS_MAX =>
                {
                    number += 1;
                }
                created => return created.map(|file| (file, part)),
            }
        }
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// It cannot be renamed; then nothing is left of it.
    pub fn finish(mut self) -> io::Result<()> {
        if let Some((part, path)) = &self.names {
            fs::rename(part, path)?;
            self.names = None;
        }
        Ok(())
    }
}

impl Write for Aside {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some((part, _)) = &self.names {
            // Whoever drops it has an error of their own to report.
            let _ = fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn it_takes_its_name_when_it_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let names = || {
            let entries = fs::read_dir(dir.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let path = dir.path().join("a");
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let mut dropped = Aside::create(&path).unwrap();
        dropped.write_all(b"half").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(names(), ["a", "a.part"]);
        drop(dropped);
        assert_eq!(names(), ["a"]);
        let mut whole = Aside::create(&path).unwrap();
        whole.write_all(b"whole").unwrap();
        whole.finish().unwrap();
        assert_eq!(names(), ["a"]);
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(Aside::create(&dir.path().join("none/a")).is_err());
        // A file that has the name already is left alone.
        fs::write(dir.path().join("a.part"), "mine").unwrap();
        let both = [Aside::create(&path).unwrap(), Aside::create(&path).unwrap()];
        assert_eq!(names(), ["a", "a.2.part", "a.3.part", "a.part"]);
        for aside in both {
            aside.finish().unwrap();
        }
        assert_eq!(names(), ["a", "a.part"]);
        assert_eq!(fs::read(dir.path().join("a.part")).unwrap(), b"mine");
        assert!(Aside::create(dir.path()).is_err());
    }

    #[test]
    fn links_stay_links() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("a"), dir.path().join("link"));
        symlink(&path, &link).unwrap();
        let mut file = Aside::create(&link).unwrap();
        file.write_all(b"whole").unwrap();
        file.finish().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"whole");
    }
}
