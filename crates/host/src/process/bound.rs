// SPDX-License-Identifier: Apache-2.0
//! A pid that is bound to one process for good.

use super::{Process, ProcessError};
use crate::root::ProcRoot;

/// The process that had a pid when it was looked up, identified by pidfd and start time. If it has
/// ended, or if no process had the pid, a later process with the same number does not match.
#[derive(Debug)]
pub struct Bound {
    pid: u32,
    process: Result<Process, String>,
}

impl Bound {
    /// Binds a pid to the process that currently has it.
    pub fn new(root: &ProcRoot, pid: u32) -> Self {
        Bound {
            pid,
            process: Process::open_user(root, pid).map_err(|error| error.to_string()),
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the process if it still runs.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn process(&self) -> Result<&Process, BoundError> {
        let process = self
            .process
            .as_ref()
            .map_err(|why| BoundError::Never { why: why.clone() })?;
        process.check()?;
        Ok(process)
    }
}

/// Why a bound pid has no process.
#[derive(Debug, thiserror::Error)]
pub enum BoundError {
    #[error("{why} (when its number was read)")]
    Never { why: String },
    #[error(transparent)]
    Process(#[from] ProcessError),
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(top: &std::path::Path, start: u64) {
        let dir = top.join("5");
        fs::create_dir_all(&dir).unwrap();
        let stat = format!("5 (x) S 1 5 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 1000 50\n");
        fs::write(dir.join("stat"), stat).unwrap();
    }

    #[test]
    fn another_process_with_the_same_number_is_not_meant() {
        let top = tempfile::tempdir().unwrap();
        let root = ProcRoot::new(top.path());
        let early = Bound::new(&root, 5);
        write(top.path(), 99);
        assert!(matches!(early.process(), Err(BoundError::Never { .. })));
        let bound = Bound::new(&root, 5);
        assert_eq!(bound.process().unwrap().start_ticks(), 99);
        write(top.path(), 100);
        assert!(matches!(
            bound.process(),
            Err(BoundError::Process(ProcessError::Reused { pid: 5 }))
        ));
    }
}
