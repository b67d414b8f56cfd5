// SPDX-License-Identifier: Apache-2.0
//! The journal: one line of JSON before and after everything the daemon does.
//!
//! Its size is bounded: a file that has grown too large is renamed, and a few renamed files are
//! kept. Lines that cannot be written are counted and reported with the next line that can; until
//! then nothing is acted upon.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agewise_cli::units::unix_ms;
use serde::Serialize;

use super::config;
use super::health::{Health, Part};

/// The journal. Clones write to the same one.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Mutex<Lines>>);

/// Where lines go.
#[derive(Debug)]
struct Lines {
    target: Target,
    size_max: u64,
    keep: u64,
    /// Lost lines that the journal has not reported yet.
    lost: u64,
    lost_in_all: u64,
    /// The last line could not be written, and this was reported.
    is_broken: bool,
    /// The last line was only partly written: the next one must end it first.
    is_torn: bool,
    health: Health,
}

#[derive(Debug)]
enum Target {
    Stdout(File),
    File {
        path: PathBuf,
        file: File,
        size_bytes: u64,
    },
}

/// The fields of every line.
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
    /// Opens the journal; appends to an existing file. Reports to `health` when a line cannot be
    /// written, and when one can be again.
    ///
    /// # Errors
    /// If the file cannot be opened or created.
    pub fn open(config: &config::Journal, health: &Health) -> io::Result<Self> {
        let target = if config.file == Path::new("-") {
            Target::Stdout(io::stdout().as_fd().try_clone_to_owned()?.into())
        } else {
            Target::file(&config.file)?
        };
        let lines = Lines::new(target, config.size_max.0, config.keep.0, health.clone());
        Ok(Journal(Arc::new(Mutex::new(lines))))
    }

    /// Continues in the file of another journal, for all clones of this one.
    pub fn replace_by(&self, other: Journal) {
        let (mut lines, mut fresh) = (self.lock(), other.lock());
        fresh.is_torn = lines.is_torn && fresh.target.continues(&lines.target);
        fresh.lost += lines.lost;
        fresh.lost_in_all += lines.lost_in_all;
        fresh.is_broken = lines.is_broken;
        std::mem::swap(&mut *lines, &mut *fresh);
    }

    /// Writes one line with the kind of record, the time, and the fields.
    pub fn write(&self, record: &str, fields: &impl Serialize) {
        self.lock().write(record, fields);
    }

    /// Writes the line before an action, which may only be taken if this returns `true`: nobody
    /// could account for actions that left no trace.
    #[must_use]
    pub fn permits(&self, record: &str, fields: &impl Serialize) -> bool {
        self.lock().write(record, fields)
    }

    /// Tries again to report lost lines if the last line could not be written.
    pub fn retry(&self) {
        let mut lines = self.lock();
        if lines.is_broken {
            lines.tell_lost();
        }
    }

    /// Number of lines that could not be written since the journal was first opened.
    pub fn lost_lines(&self) -> u64 {
        self.lock().lost_in_all
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        // The panic of another holder left half a line at worst.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn new(target: Target, size_max: u64, keep: u64, health: Health) -> Self {
        Lines {
            target,
            size_max,
            keep,
            lost: 0,
            lost_in_all: 0,
            is_broken: false,
            is_torn: false,
            health,
        }
    }

    fn write(&mut self, record: &str, fields: &impl Serialize) -> bool {
        self.tell_lost();
        match self.try_write(record, fields) {
            Ok(()) => {
                self.recover();
                true
            }
            Err(error) => {
                self.fail(&error);
                false
            }
        }
    }

    fn tell_lost(&mut self) {
        if self.lost > 0 && self.try_write("lost", &Lost { lines: self.lost }).is_ok() {
            self.lost = 0;
            self.recover();
        }
    }

    fn recover(&mut self) {
        if std::mem::take(&mut self.is_broken) {
            self.health.recovers(Part::Journal);
        }
    }

    /// Counts a lost line; the first one is reported where somebody may see it.
    fn fail(&mut self, error: &io::Error) {
        self.lost += 1;
        self.lost_in_all += 1;
        let name = match &self.target {
            Target::Stdout(_) => "standard output".to_owned(),
            Target::File { path, .. } => path.display().to_string(),
        };
        let why = format!(
            "{name} cannot be written ({error}): nothing is acted upon until it can be; observing \
             goes on"
        );
        if !std::mem::replace(&mut self.is_broken, true) {
            agewise_cli::note!("journal: {why}");
        }
        self.health.fails(Part::Journal, why);
    }

    fn try_write(&mut self, record: &str, fields: &impl Serialize) -> io::Result<()> {
        let mut line = Vec::new();
        if self.is_torn {
            line.push(b'\n');
        }
        let fields = Line {
            record,
            unix_ms: unix_ms(),
            fields,
        };
        agewise_cli::output::journal_line(&mut line, &fields)?;
        if let Target::File {
            path, size_bytes, ..
        } = &self.target
        {
            let sum = size_bytes.saturating_add(line.len() as u64);
            if *size_bytes > 0 && sum > self.size_max {
                rotate(path, self.keep)?;
                self.target = Target::file(&path.clone())?;
            }
        }
        self.append(&line)
    }

    /// Appends a line to the file, all of it or, where that is possible, nothing.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let was_torn = self.is_torn;
        let whole_bytes = match &self.target {
            Target::Stdout(_) => 0,
            Target::File { size_bytes, .. } => *size_bytes,
        };
        self.append_some(line)
            .inspect_err(|_| self.take_back(whole_bytes, was_torn))
    }

    /// Cuts off the part of a line that a full disk took, which readers of NDJSON would stop at. A
    /// file that something else has changed stays as it is.
    fn take_back(&mut self, whole_bytes: u64, was_torn: bool) {
        let Target::File {
            file, size_bytes, ..
        } = &mut self.target
        else {
            return;
        };
        let is_ours = file
            .metadata()
            .is_ok_and(|meta| meta.is_file() && meta.len() == *size_bytes);
        if is_ours && *size_bytes > whole_bytes && file.set_len(whole_bytes).is_ok() {
            *size_bytes = whole_bytes;
            self.is_torn = was_torn;
        }
    }

    /// Appends to the file, and records whether a line was cut off.
    fn append_some(&mut self, line: &[u8]) -> io::Result<()> {
        let (file, mut counted) = match &mut self.target {
            Target::Stdout(file) => (file, None),
            Target::File {
                file, size_bytes, ..
            } => (file, Some(size_bytes)),
        };
        let mut rest = line;
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    rest = &rest[written..];
                    self.is_torn = !rest.is_empty();
                    if let Some(size_bytes) = &mut counted {
                        **size_bytes += written as u64;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
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

    /// Whether it ends with what was last written to the other one.
    fn continues(&self, other: &Target) -> bool {
        match (self, other) {
            (Target::Stdout(_), Target::Stdout(_)) => true,
            (
                Target::File {
                    path, size_bytes, ..
                },
                Target::File { path: of, .. },
            ) => path == of && *size_bytes > 0,
            _ => false,
        }
    }
}

fn numbered(path: &Path, number: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// Renames `FILE.1` to `FILE.2` and so on, and `FILE` to `FILE.1`; files beyond `keep` are lost. If
/// there is no `FILE`, because somebody moved it away or a new one could not be created the last
/// time, the others stay.
fn rotate(path: &Path, keep: u64) -> io::Result<()> {
    if !path.try_exists()? {
        return Ok(());
    }
    for number in (1..keep).rev() {
        match std::fs::rename(numbered(path, number), numbered(path, number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::rename(path, numbered(path, 1))
}

#[cfg(test)]
mod tests;
