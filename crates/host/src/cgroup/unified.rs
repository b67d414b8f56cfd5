// SPDX-License-Identifier: Apache-2.0
//! The counterpart of a v1 cgroup in the unified hierarchy. Where both are mounted, systemd and
//! container run times put the processes of a service or container into the same path of each, and
//! there the kernel counts how long they wait (`memory.pressure`, without any controller).

use std::path::Path;

use super::{Cgroup, CgroupError, Mounts};
use crate::root::ProcRoot;

impl Cgroup {
    /// The v2 cgroup with the processes of this one: itself in v2, otherwise the one with the same
    /// path, if it holds every process of this one. `None` if there is none.
    ///
    /// # Errors
    /// Mounts or processes cannot be listed.
    pub fn unified(&self, proc: &ProcRoot) -> Result<Option<Cgroup>, CgroupError> {
        let mounts = Mounts::read(proc)?;
        let Some(unified) = mounts.unified() else {
            return Ok(None);
        };
        if unified == self.hierarchy {
            return Ok(Some(self.clone()));
        }
        match Cgroup::open(&unified, &self.path) {
            Ok(other) => Ok(self.is_within(&other, proc)?.then_some(other)),
            Err(CgroupError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether every process is also one of `other`, and there are any. Those that have ended since
    /// they were listed do not count.
    fn is_within(&self, other: &Cgroup, proc: &ProcRoot) -> Result<bool, CgroupError> {
        let Some(pids) = self.all_procs()? else {
            return Ok(false);
        };
        let others = other.procs(true)?;
        let is_there = |pid: &u32| others.binary_search(pid).is_ok();
        let has_ended = |pid: u32| !Path::new(&proc.of(pid)).exists();
        Ok(pids.iter().any(is_there) && pids.iter().all(|pid| is_there(pid) || has_ended(*pid)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{Hierarchy, Version};
    use super::*;

    #[test]
    fn the_same_path_counts_if_it_holds_the_same_processes() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        for dir in [
            "self",
            "7",
            "8",
            "v1/web/sub",
            "v1/other",
            "v2/web",
            "v2/other",
        ] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        let mounts = format!(
            "1 1 0:1 / {} rw - cgroup none rw,memory\n2 1 0:2 / {} rw - cgroup2 none rw\n",
            at("v1").display(),
            at("v2").display()
        );
        fs::write(at("self/mountinfo"), mounts).unwrap();
        let procs = |dir: &str, pids: &str| {
            fs::write(at(dir).join("cgroup.procs"), pids).unwrap();
        };
        let proc = ProcRoot::new(top.path());
        let v1 = Hierarchy::at(Version::V1, at("v1"));
        let of = |path: &str| {
            let cgroup = Cgroup::open(&v1, path).unwrap();
            let found = cgroup.unified(&proc).unwrap();
            found.map(|found| found.dir())
        };
        // 9 has ended meanwhile, 10 has been born.
        procs("v1/web", "7\n9\n");
        procs("v1/web/sub", "8\n");
        procs("v2/web", "7\n8\n10\n");
        assert_eq!(of("/web"), Some(at("v2/web")));
        procs("v2/web", "7\n10\n");
        assert_eq!(of("/web"), None, "8 is elsewhere");
        procs("v1/other", "");
        procs("v2/other", "");
        assert_eq!(of("/other"), None, "nobody is there");
        assert_eq!(of("/web/sub"), None, "there is no such path");
        let v2 = Hierarchy::at(Version::V2, at("v2"));
        let web = Cgroup::open(&v2, "/web").unwrap();
        assert_eq!(web.unified(&proc).unwrap().unwrap().dir(), at("v2/web"));
    }
}
