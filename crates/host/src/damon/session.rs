// SPDX-License-Identifier: Apache-2.0
//! A monitor run by agewise, from start to end.

use std::path::{Path, PathBuf};

use agewise_damon::scheme::Stats;

use super::{DamonError, Setup, setup};
use crate::error::{self as file, FileError};

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
            nr_schemes: setup.schemes.len(),
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

    fn scheme(&self, index: usize) -> PathBuf {
        self.kdamond()
            .join("contexts/0/schemes")
            .join(index.to_string())
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

    /// The statistics of each scheme so far.
    ///
    /// # Errors
    /// The monitor has stopped, or a file cannot be read.
    pub fn stats(&self) -> Result<Vec<Stats>, DamonError> {
        self.command("update_schemes_stats")?;
        (0..self.nr_schemes)
            .map(|index| {
                let dir = self.scheme(index).join("stats");
                let read = |name| file::read_u64(&dir.join(name));
                Ok(Stats {
                    nr_tried: read("nr_tried")?,
                    sz_tried: read("sz_tried")?,
                    nr_applied: read("nr_applied")?,
                    sz_applied: read("sz_applied")?,
                    // Since 6.14.
                    sz_ops_filter_passed: optional(&dir.join("sz_ops_filter_passed"))?.unwrap_or(0),
                    qt_exceeds: read("qt_exceeds")?,
                })
            })
            .collect()
    }

    /// The bytes a scheme may charge in this window; `None` before 6.9.
    ///
    /// # Errors
    /// The monitor has stopped, or a file cannot be read.
    pub fn effective_bytes(&self, scheme: usize) -> Result<Option<u64>, DamonError> {
        let path = self.scheme(scheme).join("quotas/effective_bytes");
        if !path.exists() {
            return Ok(None);
        }
        self.command("update_schemes_effective_quotas")?;
        Ok(Some(file::read_u64(&path)?))
    }

    /// The regions a scheme was tried on in the last aggregation, ascending. With `stat` schemes
    /// that cover every pattern these are all regions, which is how the access source uses it.
    ///
    /// # Errors
    /// The kernel is older than 6.2, the monitor has stopped, or a file cannot be read.
    pub fn tried_regions(&self, scheme: usize) -> Result<Vec<TriedRegion>, DamonError> {
        self.command("update_schemes_tried_regions")?;
        self.read_regions(scheme)
    }

    /// [`tried_regions`](Self::tried_regions) of every scheme, all from the same aggregation.
    ///
    /// # Errors
    /// As [`tried_regions`](Self::tried_regions).
    pub fn all_tried_regions(&self) -> Result<Vec<Vec<TriedRegion>>, DamonError> {
        self.command("update_schemes_tried_regions")?;
        (0..self.nr_schemes)
            .map(|scheme| self.read_regions(scheme))
            .collect()
    }

    fn read_regions(&self, scheme: usize) -> Result<Vec<TriedRegion>, DamonError> {
        let dir = self.scheme(scheme).join("tried_regions");
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

fn optional(path: &Path) -> Result<Option<u64>, FileError> {
    if path.exists() {
        file::read_u64(path).map(Some)
    } else {
        Ok(None)
    }
}
