// SPDX-License-Identifier: Apache-2.0
//! Finds out what this kernel's DAMON supports, by trying: creates the directories of a kdamond,
//! reads them and removes them again. Nothing is started, and nothing is written while another
//! program uses DAMON.

use std::path::Path;

use super::{Damon, MODULES, Owner};
use crate::error::{self as file, FileError};

/// What DAMON supports on this kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The words of `avail_operations`: `vaddr`, `fvaddr`, `paddr`. Kernels before 5.19 list none.
    pub operations: Vec<String>,
    /// Whether the regions of a monitor can be read (since 6.2).
    pub has_regions: bool,
    /// Whether a scheme can be limited to one of several processes (since 6.6).
    pub has_target_filter: bool,
}

impl Offer {
    /// Whether an address space can be watched: `vaddr`, `fvaddr` or `paddr`.
    #[must_use]
    pub fn has(&self, operations: &str) -> bool {
        self.operations.iter().any(|word| word == operations)
    }
}

/// The state of DAMON on this machine.
#[derive(Debug)]
pub enum Availability {
    /// The kernel was built without DAMON, or without its sysfs interface.
    Absent {
        /// Whether DAMON itself is present: a module that uses it is built in.
        is_built: bool,
    },
    /// This user may not read or write its files, or they contain something unexpected.
    Unreadable(FileError),
    /// Another program or module uses it.
    InUse {
        /// Who uses it.
        owner: Owner,
        /// The address spaces that their monitors could watch. Empty if the owner is a kernel
        /// module, since that has no files to read.
        operations: Vec<String>,
    },
    /// Nobody uses it.
    Free(Offer),
}

impl Damon {
    /// Finds out what DAMON supports here. If nobody uses it, sets up a kdamond for this, which is
    /// never started, and removes it again.
    #[must_use]
    pub fn probe(&self) -> Availability {
        let found = match self.exists() {
            true => self.try_out(),
            false => self.without_sysfs(),
        };
        found.unwrap_or_else(Availability::Unreadable)
    }

    fn without_sysfs(&self) -> Result<Availability, FileError> {
        let is_there = |name: &&str| self.sys.join("module").join(name).exists();
        Ok(match self.owner()? {
            Owner::Nobody => Availability::Absent {
                is_built: MODULES.iter().any(is_there),
            },
            owner => Availability::InUse {
                owner,
                operations: Vec::new(),
            },
        })
    }

    fn try_out(&self) -> Result<Availability, FileError> {
        let _lock = self.lock()?;
        let kdamonds = self.kdamonds();
        match self.owner()? {
            Owner::Nobody => {
                file::write(&kdamonds.join("nr_kdamonds"), "1")?;
                let offer = read_offer(&kdamonds.join("0"));
                // Also after a failure: the setup is ours.
                file::write(&kdamonds.join("nr_kdamonds"), "0")?;
                offer.map(Availability::Free)
            }
            owner => Ok(Availability::InUse {
                operations: match owner {
                    Owner::Sysfs { .. } => {
                        operations(&kdamonds.join("0/contexts/0"))?.unwrap_or_default()
                    }
                    _ => Vec::new(),
                },
                owner,
            }),
        }
    }
}

/// Examines what the kernel creates for one context and one scheme with one filter.
fn read_offer(kdamond: &Path) -> Result<Offer, FileError> {
    file::write(&kdamond.join("contexts/nr_contexts"), "1")?;
    let context = kdamond.join("contexts/0");
    file::write(&context.join("schemes/nr_schemes"), "1")?;
    let scheme = context.join("schemes/0");
    // Since 6.15 filters by target have their own directory; before 6.3 there are none.
    let filters = ["core_filters", "filters"].map(|name| scheme.join(name));
    let has_target_filter = match filters.iter().find(|dir| dir.join("nr_filters").exists()) {
        Some(dir) => {
            file::write(&dir.join("nr_filters"), "1")?;
            dir.join("0/damon_target_idx").exists()
        }
        None => false,
    };
    Ok(Offer {
        operations: operations(&context)?.unwrap_or_default(),
        has_regions: scheme.join("tried_regions").exists(),
        has_target_filter,
    })
}

/// The address spaces a context can watch; `None` if the kernel does not list them.
pub(super) fn operations(context: &Path) -> Result<Option<Vec<String>>, FileError> {
    let text = file::read_optional(&context.join("avail_operations"))?;
    Ok(text.map(|text| text.split_whitespace().map(str::to_owned).collect()))
}
