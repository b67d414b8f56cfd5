// SPDX-License-Identifier: Apache-2.0
//! The kernel's DAMON, driven through `/sys/kernel/mm/damon/admin` (since 5.18;
//! Documentation/admin-guide/mm/damon/usage.rst).
//!
//! The interface has one owner: the program that set `nr_kdamonds`. A monitor run by another
//! program is reported and never touched. A monitor of agewise's own is switched off and removed
//! when its [`Session`] is dropped.

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

/// Who runs DAMON now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody.
    Nobody,
    /// A user of sysfs.
    Sysfs {
        /// Kernel threads set up.
        nr_kdamonds: u64,
        /// Pids of the running ones.
        running: Vec<u32>,
    },
    /// A module of the kernel (`damon_reclaim`, `damon_lru_sort`, `damon_stat`).
    Module {
        /// Its name.
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

/// Modules that run a monitor of their own.
const MODULES: [&str; 3] = ["damon_reclaim", "damon_lru_sort", "damon_stat"];

/// Access to the interface.
#[derive(Clone, Debug, Default)]
pub struct Damon {
    sys: SysRoot,
}

impl Damon {
    /// DAMON of this tree; nothing is opened yet.
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

    /// Who runs DAMON. Modules come first: they exclude all others.
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
    /// See [`DamonError`]; nothing of agewise's is left behind in that case.
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

    /// Keeps other holders of this lock (agewise's own commands) from setting up anything until it
    /// is dropped: a trial setup by one would look like a foreign monitor to the next.
    fn lock(&self) -> Result<File, FileError> {
        let path = self.kdamonds().join("nr_kdamonds");
        File::open(&path)
            .and_then(|file| file.lock().map(|()| file))
            .map_err(|source| FileError::Read { path, source })
    }
}

#[cfg(test)]
pub(crate) mod tests;
