// SPDX-License-Identifier: Apache-2.0
//! What this kernel's DAMON can do, found out by trying: a kernel thread's directories are created,
//! read and removed again. Nothing is started, and nothing is written while another program uses
//! it.

use std::path::Path;

use super::{Damon, MODULES, Owner};
use crate::error::{self as file, FileError};

/// What DAMON offers on this kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The words of `avail_operations`: `vaddr`, `fvaddr`, `paddr`. Kernels before 5.19 list none.
    pub operations: Vec<String>,
    /// The regions of a monitor can be read (since 6.2).
    pub has_regions: bool,
    /// A scheme can be limited to one of several processes (since 6.6).
    pub has_target_filter: bool,
}

impl Offer {
    /// Whether an address space can be watched: `vaddr`, `fvaddr` or `paddr`.
    #[must_use]
    pub fn has(&self, operations: &str) -> bool {
        self.operations.iter().any(|word| word == operations)
    }
}

/// The state in which DAMON was found.
#[derive(Debug)]
pub enum Availability {
    /// The kernel was built without it, or without its interface in sysfs.
    Absent {
        /// DAMON itself exists: a module that uses it is built in.
        is_built: bool,
    },
    /// Its files may not be read or written by this user, or hold what no kernel writes there.
    Unreadable(FileError),
    /// Somebody else uses it.
    InUse {
        /// Who.
        owner: Owner,
        /// What their monitors could watch. Empty where a module of the kernel is the owner: then
        /// there is nothing to read it from.
        operations: Vec<String>,
    },
    /// Nobody uses it.
    Free(Offer),
}

impl Damon {
    /// Finds out what DAMON can do here. If nobody uses it, a kernel thread that is never started
    /// is set up for this and removed again.
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
                // Also after a failure: what was set up is ours.
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

/// Looks at what the kernel creates for one context and one scheme with one filter.
fn read_offer(kdamond: &Path) -> Result<Offer, FileError> {
    file::write(&kdamond.join("contexts/nr_contexts"), "1")?;
    let context = kdamond.join("contexts/0");
    file::write(&context.join("schemes/nr_schemes"), "1")?;
    let scheme = context.join("schemes/0");
    // Since 6.15 filters by target have a directory of their own; before 6.3 there are none.
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

/// What a context can watch; `None` where the kernel does not list it.
pub(super) fn operations(context: &Path) -> Result<Option<Vec<String>>, FileError> {
    let text = file::read_optional(&context.join("avail_operations"))?;
    Ok(text.map(|text| text.split_whitespace().map(str::to_owned).collect()))
}
