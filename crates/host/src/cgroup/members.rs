// SPDX-License-Identifier: Apache-2.0
//! The processes of a cgroup by what the kernel says about each process of the machine, for one
//! that holds more cgroups than are listed, and by what it says about each thread.

use std::path::PathBuf;

use super::{Cgroup, CgroupError, TreeLimits};
use crate::error;
use crate::process::{Process, ProcessError, ProcessKind, Status};
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

    /// The processes of the threads in it and in those below it, ascending (v2). A process whose
    /// first thread has ended is in `cgroup.procs` where that was, wherever the others are moved.
    pub(crate) fn owners(&self, root: &ProcRoot) -> Result<Vec<u32>, CgroupError> {
        let mut owners = Vec::new();
        let below = self.descendants(TreeLimits::WHOLE)?.cgroups;
        for cgroup in std::iter::once(self).chain(&below) {
            let tids = match cgroup.ids("cgroup.threads") {
                Err(error) if error.is_gone() => continue,
                other => other?,
            };
            for tid in tids {
                let path = root.of(tid).join("status");
                match error::read(&path).and_then(|text| Status::parse(&path, &text)) {
                    Ok(status) => owners.push(status.tgid),
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        owners.sort_unstable();
        owners.dedup();
        Ok(owners)
    }
}
