// SPDX-License-Identifier: Apache-2.0
//! The kernel's DAMON, driven through `/sys/kernel/mm/damon/admin` (since 5.18;
//! Documentation/admin-guide/mm/damon/usage.rst).
//!
//! The interface has one owner: the program that set `nr_kdamonds`. A monitor run by another
//! program is reported and never touched. agewise's own monitor is stopped and removed when its
//! [`Session`] is dropped.

mod error;
mod probe;
mod session;
mod setup;

use std::fmt;
use std::fs::File;
use std::path::PathBuf;

use crate::error::{self as file, FileError};
use crate::root::SysRoot;

pub use error::DamonError;
pub use probe::{Availability, Offer};
pub use session::{Session, TriedRegion};
pub use setup::{Setup, Watched};

/// The current user of DAMON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    Nobody,
    /// A program using sysfs.
    Sysfs {
        /// Number of kdamonds set up.
        nr_kdamonds: u64,
        /// Pids of the running ones.
        running: Vec<u32>,
    },
    /// A kernel module (`damon_reclaim`, `damon_lru_sort`, `damon_stat`).
    Module {
        name: String,
    },
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Nobody => f.write_str("nobody"),
            Owner::Module { name } => write!(
                f,
                "the kernel module {name} (/sys/module/{name}/parameters/enabled)"
            ),
            Owner::Sysfs {
                nr_kdamonds,
                running,
            } if running.is_empty() => write!(
                f,
                "another program ({nr_kdamonds} monitors set up, none running)"
            ),
            Owner::Sysfs { running, .. } => {
                write!(f, "another program (kernel threads {running:?})")
            }
        }
    }
}

/// Modules that run their own monitor.
const MODULES: [&str; 3] = ["damon_reclaim", "damon_lru_sort", "damon_stat"];

/// Access to the sysfs interface of DAMON.
#[derive(Clone, Debug, Default)]
pub struct Damon {
    sys: SysRoot,
}

impl Damon {
    /// The DAMON interface of this tree. Nothing is opened yet.
    #[must_use]
    pub fn new(sys: SysRoot) -> Damon {
        Damon { sys }
    }

    fn kdamonds(&self) -> PathBuf {
        self.sys.join("kernel/mm/damon/admin/kdamonds")
    }

    /// Whether this kernel has the interface.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.kdamonds().join("nr_kdamonds").exists()
    }

    /// Finds who runs DAMON. Checks modules first, since they exclude all others.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn owner(&self) -> Result<Owner, FileError> {
        for name in MODULES {
            let path = self
                .sys
                .join("module")
                .join(name)
                .join("parameters/enabled");
            if file::read_optional(&path)?.is_some_and(|text| text.trim() == "Y") {
                return Ok(Owner::Module {
                    name: name.to_owned(),
                });
            }
        }
        let kdamonds = self.kdamonds();
        let Some(count) = file::read_optional(&kdamonds.join("nr_kdamonds"))? else {
            return Ok(Owner::Nobody);
        };
        let nr_kdamonds = count.trim().parse().map_err(|_| {
            FileError::format(&kdamonds.join("nr_kdamonds"), "an unsigned number", &count)
        })?;
        if nr_kdamonds == 0 {
            return Ok(Owner::Nobody);
        }
        let mut running = Vec::new();
        for index in 0..nr_kdamonds {
            let pid = file::read_optional(&kdamonds.join(index.to_string()).join("pid"))?;
            running.extend(pid.and_then(|pid| pid.trim().parse::<u32>().ok()));
        }
        Ok(Owner::Sysfs {
            nr_kdamonds,
            running,
        })
    }

    /// Sets up and starts a monitor.
    ///
    /// # Errors
    /// See [`DamonError`]. In that case nothing of agewise's is left behind.
    pub fn start(&self, setup: &Setup) -> Result<Session, DamonError> {
        if !self.exists() {
            return Err(DamonError::Missing);
        }
        let _lock = self.lock()?;
        match self.owner()? {
            Owner::Nobody => Session::start(self.kdamonds(), setup),
            owner => Err(DamonError::Owned { owner }),
        }
    }

    /// Keeps others that take this lock (agewise's own commands) from setting up anything until it
    /// is dropped: a trial setup would look like a foreign monitor to them.
    fn lock(&self) -> Result<File, FileError> {
        let path = self.kdamonds().join("nr_kdamonds");
        File::open(&path)
            .and_then(|file| file.lock().map(|()| file))
            .map_err(|source| FileError::Read { path, source })
    }
}

#[cfg(test)]
pub(crate) mod tests;
