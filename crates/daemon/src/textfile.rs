// SPDX-License-Identifier: Apache-2.0
//! Metrics as a file for the textfile collector of node_exporter: if that is already running,
//! nothing else has to be scraped.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::metrics::families::families;
use super::metrics::shown::{Chooser, Limits};
use super::metrics::text::{Syntax, render};
use super::state::{Hub, Snapshot};

/// The file, rewritten at each look. Dropping this removes it: otherwise the figures of a daemon
/// that has ended would stay for ever.
#[derive(Debug)]
pub struct Textfile {
    path: PathBuf,
    chooser: Chooser,
    written: u64,
    /// Whether the last attempt failed, which has been reported.
    is_broken: bool,
}

impl Textfile {
    /// Writes nothing yet.
    pub fn new(path: &Path, limits: Limits) -> Self {
        Textfile {
            path: path.to_owned(),
            chooser: Chooser::new(limits),
            written: 0,
            is_broken: false,
        }
    }

    /// Continues with this file, or with another one. If it stays, so do its counters, and that it
    /// is to be removed.
    pub fn moved_to(mut self, path: &Path, limits: Limits) -> Textfile {
        if path != self.path {
            return Textfile::new(path, limits);
        }
        self.chooser.limits = limits;
        self
    }

    /// Writes the current figures, unless they have been written. Returns a message if the file
    /// cannot be written, or can be again.
    pub fn publish(&mut self, hub: &Hub) -> Option<String> {
        let snapshot = hub.snapshot();
        if snapshot.sequence == self.written {
            return None;
        }
        let path = self.path.display().to_string();
        let result = self.write(&snapshot);
        let was_broken = std::mem::replace(&mut self.is_broken, result.is_err());
        match result {
            Ok(()) if was_broken => Some(format!("{path} is written again")),
            Err(error) if !was_broken => Some(format!(
                "{path} cannot be written ({error}): let the user of agewise write to its directory"
            )),
            _ => None,
        }
    }

    fn write(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let shown = self.chooser.choose(snapshot);
        let text = render(families(snapshot, &shown), Syntax::Prometheus);
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        // In one step; before, it has a name that the collector ignores.
        let mut file = tempfile::Builder::new()
            .prefix(".agewise-")
            .tempfile_in(dir)?;
        file.write_all(text.as_bytes())?;
        file.as_file()
            .set_permissions(PermissionsExt::from_mode(0o644))?;
        file.persist(&self.path).map_err(|error| error.error)?;
        self.written = snapshot.sequence;
        Ok(())
    }
}

impl Drop for Textfile {
    fn drop(&mut self) {
        if self.written > 0 {
            // If somebody else removed it, the result is the same.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::demo;

    const LIMITS: Limits = Limits {
        subjects_max: 50,
        containers_max: 50,
        depth_max: 3,
    };

    #[test]
    fn the_file_is_whole_at_any_time_and_goes_with_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agewise.prom");
        let hub = Hub::new(demo::settings());
        let mut textfile = Textfile::new(&path, LIMITS);
        assert_eq!((textfile.publish(&hub), path.exists()), (None, false));
        for sequence in 1..=3 {
            hub.publish(demo::snapshot(sequence, sequence * 5000));
            assert_eq!(textfile.publish(&hub), None);
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.ends_with('\n') && !text.contains("# EOF"));
            assert!(text.contains(&format!("agewise_own_ticks_total {sequence}\n")));
        }
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        let files = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, 1, "nothing is left of the steps between");
        let textfile = textfile.moved_to(&path, LIMITS);
        assert!(path.exists());
        let other = dir.path().join("other.prom");
        let mut textfile = textfile.moved_to(&other, LIMITS);
        assert!(!path.exists());
        textfile.publish(&hub);
        assert!(other.exists());
        // The daemon may end before the next look.
        drop(textfile.moved_to(&other, LIMITS));
        assert!(!other.exists());
    }

    #[test]
    fn what_cannot_be_written_is_said_once_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("later");
        let hub = Hub::new(demo::settings());
        let mut textfile = Textfile::new(&place.join("agewise.prom"), LIMITS);
        hub.publish(demo::snapshot(1, 5000));
        let said = textfile.publish(&hub).unwrap();
        assert!(
            said.contains("later/agewise.prom cannot be written"),
            "{said}"
        );
        assert_eq!(textfile.publish(&hub), None);
        std::fs::create_dir(&place).unwrap();
        assert!(
            textfile
                .publish(&hub)
                .unwrap()
                .ends_with("is written again")
        );
    }

    #[test]
    fn promtool_finds_nothing_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agewise.prom");
        let hub = Hub::new(demo::settings());
        hub.publish(demo::snapshot(1, 5000));
        let mut textfile = Textfile::new(&path, LIMITS);
        textfile.publish(&hub);
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]);
        promtool.stdin(std::fs::File::open(&path).unwrap());
        match promtool
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
        {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && said.is_empty(), "{said}");
            }
            Err(_) => println!("SKIPPED promtool_finds_nothing_wrong: no promtool"),
        }
    }
}
