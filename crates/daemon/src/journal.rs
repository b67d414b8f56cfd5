// SPDX-License-Identifier: Apache-2.0
//! The journal: one line of JSON for everything the daemon does, before it and after it.
//!
//! Its size is bounded: a file that has grown too large is renamed, and of renamed ones a few are
//! kept. A line that cannot be written is counted and told with the next one that can.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::config;
use agewise_cli::output;

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

/// The journal. Cloned handles write to the same one.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Mutex<Lines>>);

/// Where lines go.
#[derive(Debug)]
struct Lines {
    target: Target,
    size_max: u64,
    keep: u64,
    lost: u64,
}

#[derive(Debug)]
enum Target {
    Stdout,
    File {
        path: PathBuf,
        file: File,
        size_bytes: u64,
    },
}

/// What every line has.
#[derive(Serialize)]
struct Line<'a, T> {
    record: &'a str,
    unix_ms: u64,
    #[serde(flatten)]
    fields: &'a T,
}

#[derive(Serialize)]
struct Lost {
    lines: u64,
}

impl Journal {
    /// Opens it; lines are added to a file that is there.
    ///
    /// # Errors
    /// The file cannot be opened or made.
    pub fn open(config: &config::Journal) -> io::Result<Self> {
        Ok(Journal(Arc::new(Mutex::new(Lines::open(config)?))))
    }

    /// Goes on where another one writes, for all handles of this one.
    pub fn replace_by(&self, other: Journal) {
        std::mem::swap(&mut *self.lock(), &mut *other.lock());
    }

    /// Writes one line: the kind of record, the time, and the fields.
    pub fn write(&self, record: &str, fields: &impl Serialize) {
        self.lock().write(record, fields);
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        // A panic of another holder left at worst half a line.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn open(config: &config::Journal) -> io::Result<Self> {
        let target = if config.file == Path::new("-") {
            Target::Stdout
        } else {
            Target::file(&config.file)?
        };
        Ok(Lines {
            target,
            size_max: config.size_max.0,
            keep: config.keep.0,
            lost: 0,
        })
    }

    fn write(&mut self, record: &str, fields: &impl Serialize) {
        if self.lost > 0 {
            let lines = std::mem::take(&mut self.lost);
            if self.try_write("lost", &Lost { lines }).is_err() {
                self.lost = lines;
            }
        }
        if self.try_write(record, fields).is_err() {
            self.lost += 1;
        }
    }

    fn try_write(&mut self, record: &str, fields: &impl Serialize) -> io::Result<()> {
        let mut line = Vec::new();
        let fields = Line {
            record,
            unix_ms: unix_ms(),
            fields,
        };
        output::json_line(&mut line, &fields)?;
        match &mut self.target {
            Target::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(&line)?;
                out.flush()
            }
            Target::File {
                path,
                file,
                size_bytes,
            } => {
                let length = line.len() as u64;
                if *size_bytes > 0 && size_bytes.saturating_add(length) > self.size_max {
                    rotate(path, self.keep)?;
                    self.target = Target::file(&path.clone())?;
                    return self.append(&line);
                }
                file.write_all(&line)?;
                *size_bytes += length;
                Ok(())
            }
        }
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if let Target::File {
            file, size_bytes, ..
        } = &mut self.target
        {
            file.write_all(line)?;
            *size_bytes += line.len() as u64;
        }
        Ok(())
    }
}

impl Target {
    fn file(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o640)
            .open(path)?;
        let size_bytes = file.metadata()?.len();
        Ok(Target::File {
            path: path.to_owned(),
            file,
            size_bytes,
        })
    }
}

fn numbered(path: &Path, number: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// `FILE.1` becomes `FILE.2` and so on, `FILE` becomes `FILE.1`, and what is beyond `keep` goes.
fn rotate(path: &Path, keep: u64) -> io::Result<()> {
    for number in (1..keep).rev() {
        match std::fs::rename(numbered(path, number), numbered(path, number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::rename(path, numbered(path, 1))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[derive(Serialize)]
    struct Count {
        n: u64,
    }

    #[test]
    fn its_size_is_bounded_and_the_newest_lines_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let open = || Lines {
            target: Target::file(&path).unwrap(),
            size_max: 300,
            keep: 2,
            lost: 0,
        };
        let mut journal = open();
        for n in 0..50 {
            journal.write("count", &Count { n });
        }
        drop(journal);
        // Opened again it goes on where it was.
        let mut journal = open();
        journal.write("count", &Count { n: 50 });
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap())
            .collect();
        names.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
        assert_eq!(names.len(), 3);
        let mut numbers = Vec::new();
        for entry in &names {
            let meta = entry.metadata().unwrap();
            assert!(meta.len() <= 300);
            assert_eq!(meta.permissions().mode() & 0o007, 0, "not for everybody");
            for line in std::fs::read_to_string(entry.path()).unwrap().lines() {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(line["record"], "count");
                assert!(line["unix_ms"].as_u64().unwrap() > 1_600_000_000_000);
                numbers.push(line["n"].as_u64().unwrap());
            }
        }
        let first = numbers[0];
        assert!(numbers.len() > 5);
        assert_eq!(numbers, (first..=50).collect::<Vec<_>>());
    }

    #[test]
    fn lines_that_were_lost_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut journal = Lines {
            target: Target::File {
                path: path.clone(),
                file: full,
                size_bytes: 0,
            },
            size_max: 1000,
            keep: 1,
            lost: 0,
        };
        journal.write("count", &Count { n: 1 });
        journal.write("count", &Count { n: 2 });
        journal.target = Target::file(&path).unwrap();
        journal.write("count", &Count { n: 3 });
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("\"lost\"") && lines[0].contains("\"lines\":2"));
        assert!(lines[1].contains("\"n\":3"));
    }
}
