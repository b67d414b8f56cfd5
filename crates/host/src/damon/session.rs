// SPDX-License-Identifier: Apache-2.0
//! A monitor run by agewise, from start to end.

use std::path::PathBuf;

use super::{DamonError, Setup, setup};
use crate::error as file;

/// A region as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriedRegion {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Accesses per aggregation interval.
    pub nr_accesses: u32,
    /// Age in aggregation intervals.
    pub age: u32,
}

/// A running monitor. Dropping it stops the kernel thread and removes its setup.
#[derive(Debug)]
pub struct Session {
    kdamonds: PathBuf,
    nr_schemes: usize,
}

impl Session {
    pub(super) fn start(kdamonds: PathBuf, setup: &Setup) -> Result<Session, DamonError> {
        file::write(&kdamonds.join("nr_kdamonds"), "1")?;
        // From here on, dropping the session cleans up after any failure.
        let session = Session {
            kdamonds,
            nr_schemes: setup.nr_schemes(),
        };
        setup::write(&session.kdamond(), setup)?;
        file::write(&session.kdamond().join("state"), "on").map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EINVAL) => DamonError::Refused {
                    hint: "check min/max regions, intervals, ranges and that the processes are alive",
                },
                _ => error.into(),
            }
        })?;
        Ok(session)
    }

    fn kdamond(&self) -> PathBuf {
        self.kdamonds.join("0")
    }

    fn command(&self, word: &str) -> Result<(), DamonError> {
        let state = self.kdamond().join("state");
        if file::read(&state)?.trim() != "on" {
            return Err(DamonError::Stopped);
        }
        file::write(&state, word).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => DamonError::TooOld {
                what: "this command of the monitor",
                since: "6.2",
                file: format!("'{word}' among the words of state"),
            },
            _ => error.into(),
        })
    }

    /// The pid of the kernel thread.
    ///
    /// # Errors
    /// It has stopped, or the file cannot be read.
    pub fn pid(&self) -> Result<u32, DamonError> {
        let text = file::read(&self.kdamond().join("pid"))?;
        text.trim().parse().map_err(|_| DamonError::Stopped)
    }

    /// All regions by target, ascending, from the same aggregation. Targets are the processes
    /// watched, in the order given, or all of physical memory.
    ///
    /// # Errors
    /// The kernel is older than 6.2, the monitor has stopped, or a file cannot be read.
    pub fn regions(&self) -> Result<Vec<Vec<TriedRegion>>, DamonError> {
        self.command("update_schemes_tried_regions")?;
        (0..self.nr_schemes)
            .map(|scheme| self.read_regions(scheme))
            .collect()
    }

    fn read_regions(&self, scheme: usize) -> Result<Vec<TriedRegion>, DamonError> {
        let schemes = self.kdamond().join("contexts/0/schemes");
        let dir = schemes.join(scheme.to_string()).join("tried_regions");
        let mut regions = Vec::new();
        for index in crate::root::numbers_in(&dir)? {
            let region = dir.join(index.to_string());
            let read = |name| file::read_u64(&region.join(name));
            let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
            regions.push(TriedRegion {
                start: read("start")?,
                end: read("end")?,
                nr_accesses: small(read("nr_accesses")?),
                age: small(read("age")?),
            });
        }
        regions.sort_unstable_by_key(|region| region.start);
        Ok(regions)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The thread may have ended on its own, and the kernel refuses to remove a running one.
        // Neither leaves anything to do here.
        let _ = file::write(&self.kdamond().join("state"), "off");
        let _ = file::write(&self.kdamonds.join("nr_kdamonds"), "0");
    }
}
