// SPDX-License-Identifier: Apache-2.0
//! The processes of a cgroup by what the kernel says about each process of the machine: for one
//! that holds more cgroups than are listed.

use std::path::PathBuf;

use super::{Cgroup, CgroupError};
use crate::process::{Process, ProcessError, ProcessKind};
use crate::root::ProcRoot;

/// `kthreadd`, which only exists where the processes of all pid namespaces can be seen.
const KTHREADD: u32 = 2;

impl Cgroup {
    /// The processes of it and of those below it, each with the path of its cgroup. A process in a
    /// cgroup whose path is too long for the kernel to say counts as one of this cgroup. `None` if
    /// not all processes can be seen here.
    pub fn members(&self, root: &ProcRoot) -> Result<Option<Vec<(u32, PathBuf)>>, CgroupError> {
        let kthreadd = Process::open_in(root, KTHREADD).and_then(|process| process.kind());
        if !matches!(kthreadd, Ok(ProcessKind::KernelThread)) {
            return Ok(None);
        }
        let mut members = Vec::new();
        for pid in root.pids()? {
            let path = match Process::open_in(root, pid).and_then(|process| process.cgroups()) {
                Ok(memberships) => self.hierarchy.path_of(&memberships),
                Err(error) if error.is_gone() => None,
                Err(ProcessError::File(error))
                    if error.raw_os_error() == Some(libc::ENAMETOOLONG) =>
                {
                    Some(self.path.clone())
                }
                Err(_) => return Ok(None),
            };
            members.extend(
                path.filter(|path| path.starts_with(&self.path))
                    .map(|path| (pid, path)),
            );
        }
        Ok(Some(members))
    }
}
