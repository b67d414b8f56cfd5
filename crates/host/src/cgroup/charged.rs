// SPDX-License-Identifier: Apache-2.0
//! Which cgroup memory is charged to. A v2 cgroup has the memory controller only if the one above
//! passes it down; services and container runtimes often make cgroups below their own without it
//! (`systemd-udevd.service/udev`, `libpod-ID.scope/container`), and threaded ones never have it.

use std::path::Path;

use super::{Cgroup, CgroupError, Version};

impl Cgroup {
    /// Whether memory is charged to it rather than to one above.
    pub fn has_memory(&self) -> bool {
        let dir = self.dir();
        // A cgroup without both files has been removed, which is for others to find out.
        self.hierarchy.version == Version::V1
            || self.is_root()
            || dir.join(self.usage_file()).exists()
            || !dir.join("cgroup.controllers").exists()
    }

    /// The cgroup that the memory of its processes is charged to: itself, or one above.
    ///
    /// # Errors
    /// One above has been removed.
    pub fn charged(&self) -> Result<Self, CgroupError> {
        let mut at = self.clone();
        while !at.has_memory() {
            let above = at.path.parent().unwrap_or(Path::new("/")).to_owned();
            at = Self::open(&at.hierarchy, above)?;
        }
        Ok(at)
    }

    /// Checks that memory is charged to it.
    ///
    /// # Errors
    /// It is charged to one above, which is named.
    pub fn check_memory(&self) -> Result<(), CgroupError> {
        let charged = self.charged()?;
        match charged.path == self.path {
            true => Ok(()),
            false => Err(CgroupError::NoMemory {
                path: self.name(),
                charged: charged.name(),
            }),
        }
    }
}
