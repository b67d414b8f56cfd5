// SPDX-License-Identifier: Apache-2.0
//! A monitor run by agewise, from start to end.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::{DamonError, Setup, Watched, setup};
use crate::error as file;
use crate::patient;
use crate::root::ProcRoot;

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

/// A running monitor. Dropping it stops the kernel thread and removes its setup, unless another
/// program has put its own in the place meanwhile, or a process that it watches hangs.
#[derive(Debug)]
pub struct Session {
    kdamonds: PathBuf,
    setup: Setup,
    /// The kernel thread; `None` if it ended at once.
    thread: Option<u32>,
}

impl Session {
    pub(super) fn start(kdamonds: PathBuf, setup: &Setup) -> Result<Session, DamonError> {
        file::write(&kdamonds.join("nr_kdamonds"), "1")?;
        let mut session = Session {
            kdamonds,
            setup: setup.clone(),
            thread: None,
        };
        match session.switch_on() {
            Ok(()) => session.thread = session.pid().ok(),
            Err(error) => {
                // Nothing runs yet.
                session.remove();
                return Err(error);
            }
        }
        Ok(session)
    }

    fn switch_on(&self) -> Result<(), DamonError> {
        setup::write(&self.kdamond(), &self.setup)?;
        file::write(&self.kdamond().join("state"), "on").map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EINVAL) => DamonError::Refused {
                    hint: "check min/max regions, intervals, ranges and that the processes are \
                           alive",
                },
                _ => error.into(),
            }
        })
    }

    fn remove(&self) {
        // The kernel refuses to remove a running thread, which leaves nothing else to do here.
        let _ = file::write(&self.kdamonds.join("nr_kdamonds"), "0");
    }

    fn kdamond(&self) -> PathBuf {
        self.kdamonds.join("0")
    }

    fn command(&self, word: &str) -> Result<(), DamonError> {
        if self.thread != Some(self.pid()?) {
            return Err(DamonError::Stopped);
        }
        self.check_answers()?;
        let state = self.kdamond().join("state");
        file::write(&state, word).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => DamonError::TooOld {
                what: "this command of the monitor",
                since: "6.2",
                file: format!("'{word}' among the words of state"),
            },
            _ => error.into(),
        })
    }

    /// Checks that no process locks its address space: the kernel thread then waits for the lock,
    /// and whoever gives it a command waits for the thread, which nothing interrupts. One that
    /// begins within the tenth of a second that a command takes is not noticed.
    fn check_answers(&self) -> Result<(), DamonError> {
        let Watched::Processes(pids) = &self.setup.watched else {
            return Ok(());
        };
        let hangs = |pid: &u32| {
            let pagemap = ProcRoot::default().of(*pid).join("pagemap");
            // Takes the lock, which reading `maps` does not always.
            let answer = patient::call(*pid, || File::open(pagemap)?.read_at(&mut [0; 8], 0));
            answer
                .flatten()
                .is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
        };
        match pids.iter().copied().find(hangs) {
            Some(pid) => Err(DamonError::Unanswered {
                pid,
                kdamond: self.thread.unwrap_or_default(),
            }),
            None => Ok(()),
        }
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
        (0..self.setup.nr_schemes())
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
        match self.pid() {
            // Otherwise it is left, and said to be by the look that failed.
            Ok(pid) if self.thread == Some(pid) && self.check_answers().is_ok() => {
                // It may have ended on its own since.
                let _ = file::write(&self.kdamond().join("state"), "off");
                self.remove();
            }
            // It has ended on its own. The place is free for others since.
            Err(DamonError::Stopped) if setup::is_there(&self.kdamond(), &self.setup.watched) => {
                self.remove();
            }
            _ => {}
        }
    }
}
