// SPDX-License-Identifier: Apache-2.0
//! Checks that what a configuration lets the daemon write can be written, before it begins to work.

use std::path::Path;

use caps::{CapSet, Capability};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use super::{Config, ConfigError, Listen};

/// The directories that the systemd unit creates when it starts the daemon. They need not exist
/// before.
pub const MADE_AT_START: [&str; 2] = ["/run/agewise", "/var/log/agewise"];

impl Config {
    /// Checks the places of everything that is written, as far as it is used: that directories
    /// exist, except those in `made_later`, and that this user may write there.
    ///
    /// # Errors
    /// [`ConfigError::Place`], with the key.
    pub fn check_places(&self, made_later: &[&str]) -> Result<(), ConfigError> {
        self.check_outputs(made_later)?;
        self.check_files_directory(made_later)
    }

    /// Checks the journal, the textfile and the socket. Of a journal that exists, only that it may
    /// be written.
    ///
    /// # Errors
    /// As [`check_places`](Self::check_places).
    pub(crate) fn check_outputs(&self, made_later: &[&str]) -> Result<(), ConfigError> {
        let (key, journal) = ("journal.file", &self.journal.file);
        if journal.exists() && !journal.is_dir() {
            // It is appended to, as /dev/stderr or a file in a directory of somebody else.
            may(journal, Access::WRITE_OK).map_err(|why| place(key, journal, why))?;
        } else if journal != Path::new("-") {
            check(key, journal, made_later)?;
        }
        if let Some(textfile) = &self.metrics.textfile {
            check("metrics.textfile", textfile, made_later)?;
        }
        if let (true, Listen::Unix(socket)) = (self.metrics.enabled, &self.metrics.listen) {
            check("metrics.listen", socket, made_later)?;
        }
        Ok(())
    }

    /// Checks the directory of the report files, which is created with all directories above it.
    ///
    /// # Errors
    /// As [`check_places`](Self::check_places).
    pub(crate) fn check_files_directory(&self, made_later: &[&str]) -> Result<(), ConfigError> {
        let directory = &self.files.directory;
        let is_made = |path: &Path| made_later.iter().any(|made| path == Path::new(made));
        let mut above = directory.ancestors();
        match above.find(|path| path.exists() || is_made(path)) {
            Some(nearest) if self.files.enabled && nearest.exists() => {
                may_write(nearest).map_err(|why| place("files.directory", directory, why))
            }
            _ => Ok(()),
        }
    }
}

/// Checks a file or socket: the directory that it is in, or is created in.
fn check(key: &'static str, path: &Path, made_later: &[&str]) -> Result<(), ConfigError> {
    if path.is_dir() {
        let why = "this is a directory: give the path of a file in it".to_owned();
        return Err(place(key, path, why));
    }
    let directory = path.parent().unwrap_or(path);
    if !directory.exists() && made_later.iter().any(|made| directory == Path::new(made)) {
        return Ok(());
    }
    may_write(directory).map_err(|why| place(key, path, why))
}

fn may_write(directory: &Path) -> Result<(), String> {
    let shown = directory.display();
    match directory.metadata() {
        Err(error) => {
            return Err(format!(
                "there is no directory {shown} ({error}): create it"
            ));
        }
        Ok(found) if !found.is_dir() => return Err(format!("{shown} is not a directory")),
        Ok(_) => {}
    }
    may(directory, Access::WRITE_OK | Access::EXEC_OK)
}

fn may(path: &Path, wanted: Access) -> Result<(), String> {
    let error = match accessat(CWD, path, wanted, AtFlags::EACCESS) {
        Ok(()) => return Ok(()),
        // Without faccessat2 (Linux before 5.8, or a sandbox that does not know it) this is
        // refused, or answered as if there were no capabilities. Then only writing shows what is
        // allowed.
        Err(Errno::PERM) => return Ok(()),
        Err(Errno::ACCESS) if may_override() => return Ok(()),
        Err(error) => error,
    };
    let shown = path.display();
    Err(format!(
        "{shown} cannot be written ({error}): let the user of agewise write there"
    ))
}

fn may_override() -> bool {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_DAC_OVERRIDE).unwrap_or(false)
}

fn place(key: &'static str, path: &Path, why: String) -> ConfigError {
    ConfigError::Place {
        key,
        path: path.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_that_is_used_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().display();
        std::fs::write(dir.path().join("plain"), "").unwrap();
        let error = |text: String| {
            let config = Config::parse(&text).unwrap();
            config.check_places(&[]).map_err(|error| error.to_string())
        };
        let none = format!("{home}/none");
        for (key, text) in [
            ("journal.file", format!("journal.file = '{none}/j'")),
            (
                "metrics.textfile",
                format!("metrics.textfile = '{none}/a.prom'"),
            ),
            (
                "metrics.listen",
                format!("metrics = {{ enabled = true, listen = 'unix:{none}/s' }}"),
            ),
        ] {
            let said = error(text.clone()).unwrap_err();
            assert!(said.starts_with(&format!("{key}: {none}/")), "{said}");
            assert!(said.contains(&format!("no directory {none} ")), "{said}");
            assert_eq!(error(text.replace("/none", "")), Ok(()));
        }
        let files = |place: &str| {
            error(format!(
                "files = {{ enabled = true, directory = '{home}/{place}' }}"
            ))
        };
        assert_eq!(files("deep/er"), Ok(()));
        let said = files("plain/deep").unwrap_err();
        assert!(said.starts_with("files.directory: ") && said.ends_with("not a directory"));
        assert_eq!(error("journal.file = '/proc/self/comm'".to_owned()), Ok(()));
        let said = error(format!("journal.file = '{home}'")).unwrap_err();
        assert!(said.contains("give the path of a file"), "{said}");
        // What is not used does not have to exist.
        for text in [
            format!("metrics.listen = 'unix:{none}/s'"),
            format!("files.directory = '{home}/plain/deep'"),
        ] {
            assert_eq!(error(text), Ok(()));
        }
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        if rustix::process::geteuid().is_root() {
            // Root may write anywhere, but to a file system that takes no writes.
            let config = Config::parse("journal.file = '/proc/agewise/journal'").unwrap();
            assert!(config.check_places(&[]).is_err());
            return;
        }
        let config = Config::parse("journal.file = '/journal'").unwrap();
        let said = config.check_places(&[]).unwrap_err().to_string();
        assert!(said.contains("let the user of agewise write"), "{said}");
    }

    #[test]
    fn the_unit_makes_directories_when_it_starts_the_daemon() {
        let unit = include_str!("../../../../packaging/systemd/agewise.service");
        assert!(unit.contains("\nRuntimeDirectory=agewise\nRuntimeDirectoryMode"));
        assert!(unit.contains("\nLogsDirectory=agewise\n"));
        let config = Config::parse("journal.file = '/var/log/agewise/none/j'").unwrap();
        assert!(config.check_places(&MADE_AT_START).is_err(), "only itself");
        let below = Config::parse("journal.file = '/none/agewise/j'").unwrap();
        assert!(below.check_places(&[]).is_err());
        assert!(below.check_places(&["/none/agewise"]).is_ok());
        // The report files are in a directory that nobody may make.
        let text = "files = { enabled = true, directory = '/proc/none/files' }";
        let files = Config::parse(text).unwrap();
        let made = |made| files.check_places(&[made]);
        assert!(made("/proc/none").is_ok() && made("/proc/none/files").is_ok());
    }
}
