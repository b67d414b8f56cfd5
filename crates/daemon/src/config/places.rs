// SPDX-License-Identifier: Apache-2.0
//! Checks that the directories exist in which a configuration lets the daemon write, before it
//! begins to work. Whether it may write there only trying shows: that depends on capabilities, the
//! sandbox and mounts.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::files::{is_below_cgroups, is_occupied};

use super::{Config, ConfigError, Listen};

/// The directories that the systemd unit creates when it starts the daemon. They need not exist
/// before.
pub const MADE_AT_START: [&str; 2] = ["/run/agewise", "/var/log/agewise"];

impl Config {
    /// Checks the journal, the socket and the report files, as far as they are used: their
    /// directories exist, except those in `made_later`; and the file of headers. The directory of
    /// the report files is created with all directories above it, so only one of these may not be
    /// something else. The textfile is tried again and again, since node_exporter may create its
    /// directory later.
    ///
    /// # Errors
    /// [`ConfigError::Place`], with the key.
    pub fn check_places(&self, made_later: &[&str]) -> Result<(), ConfigError> {
        let journal = &self.journal.file;
        if journal != Path::new("-") {
            check("journal.file", journal, made_later)?;
        }
        if let (true, Listen::Unix(socket)) = (self.metrics.enabled, &self.metrics.listen) {
            check("metrics.listen", socket, made_later)?;
            if socket
                .symlink_metadata()
                .is_ok_and(|meta| !meta.file_type().is_socket())
            {
                let why = "this exists and is not a socket: choose another path".to_owned();
                return Err(place("metrics.listen", socket, why));
            }
        }
        if let Some(otlp) = &self.metrics.otlp {
            otlp.headers()?;
        }
        match self.files.enabled {
            true => self.check_reports(),
            false => Ok(()),
        }
    }

    /// Checks the directory of the report files, which holds nothing else.
    fn check_reports(&self) -> Result<(), ConfigError> {
        let directory = &self.files.directory;
        let socket = match &self.metrics.listen {
            Listen::Unix(socket) if self.metrics.enabled => Some(("metrics.listen", socket)),
            _ => None,
        };
        for (key, path) in socket
            .into_iter()
            .chain([("journal.file", &self.journal.file)])
        {
            if path != Path::new("-") && is_within(path, directory) {
                let why = format!(
                    "this is in files.directory, {0}, which holds the report files alone: give \
                     them a directory of their own, {0}/reports for example",
                    directory.display()
                );
                return Err(place(key, path, why));
            }
        }
        check_reports(directory)
    }

    /// Why the textfile cannot be written yet.
    pub(super) fn textfile_doubt(&self) -> Option<String> {
        let path = self.metrics.textfile.as_deref()?;
        let error = check("metrics.textfile", path, &[]).err()?;
        Some(format!("{error}; until then no figure is written there"))
    }
}

fn is_within(path: &Path, directory: &Path) -> bool {
    match (std::path::absolute(path), std::path::absolute(directory)) {
        (Ok(path), Ok(directory)) => path.starts_with(directory),
        _ => false,
    }
}

/// Checks that the directory of the report files can be used.
fn check_reports(directory: &Path) -> Result<(), ConfigError> {
    let why = match directory.ancestors().find(|path| path.exists()) {
        Some(nearest) if !nearest.is_dir() => {
            format!("{} is not a directory", nearest.display())
        }
        _ if is_below_cgroups(directory) => {
            "this would be a cgroup: give another directory".to_owned()
        }
        _ if is_occupied(directory) => {
            "this is not empty, or mounted by another program: give another directory".to_owned()
        }
        _ => return Ok(()),
    };
    Err(place("files.directory", directory, why))
}

/// Checks a file or socket: the directory that it is in, or is created in.
fn check(key: &'static str, path: &Path, made_later: &[&str]) -> Result<(), ConfigError> {
    if path.is_dir() {
        let why = "this is a directory: give the path of a file in it".to_owned();
        return Err(place(key, path, why));
    }
    let directory = match path.parent() {
        Some(above) if above != Path::new("") => above,
        _ => Path::new("."),
    };
    let shown = directory.display();
    match directory.metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(place(key, path, format!("{shown} is not a directory"))),
        Err(_) if made_later.iter().any(|made| directory == Path::new(made)) => Ok(()),
        Err(error) => {
            let why = format!("there is no directory {shown} ({error}): create it");
            Err(place(key, path, why))
        }
    }
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
        let said = error("files = { enabled = true, directory = '/proc' }".to_owned());
        assert!(said.unwrap_err().contains("this is not empty"));
        let socket = format!("metrics = {{ enabled = true, listen = 'unix:{home}/plain' }}");
        let said = error(socket).unwrap_err();
        assert!(said.contains("exists and is not a socket"), "{said}");
        let said = files("plain/deep").unwrap_err();
        assert!(said.starts_with("files.directory: ") && said.ends_with("not a directory"));
        for file in ["/proc/self/comm", "journal"] {
            assert_eq!(error(format!("journal.file = '{file}'")), Ok(()));
        }
        for (key, text) in [
            ("journal.file", format!("journal.file = '{home}/j'")),
            (
                "metrics.listen",
                format!("metrics = {{ enabled = true, listen = 'unix:{home}/s' }}"),
            ),
        ] {
            let files =
                |place: &str| format!("files = {{ enabled = true, directory = '{place}' }}\n");
            let of = |place: String| error(files(&place) + &text);
            let said = of(home.to_string()).unwrap_err();
            assert!(said.starts_with(&format!("{key}: ")), "{said}");
            assert!(said.contains("a directory of their own"), "{said}");
            assert_eq!(of(format!("{home}/reports")), Ok(()));
        }
        let said = error(format!("journal.file = '{home}'")).unwrap_err();
        assert!(said.contains("give the path of a file"), "{said}");
        // What is not used does not have to exist.
        for text in [
            format!("metrics.listen = 'unix:{none}/s'"),
            format!("metrics.textfile = '{none}/a.prom'"),
            format!("files.directory = '{home}/plain/deep'"),
        ] {
            assert_eq!(error(text), Ok(()));
        }
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
    }
}
