// SPDX-License-Identifier: Apache-2.0
//! The counterpart of a v1 cgroup in the unified hierarchy. Where both are mounted, systemd and
//! container run times put the processes of a service or container into the same path of each, and
//! there the kernel counts how long they wait (`memory.pressure`, without any controller).

use super::{Cgroup, CgroupError, Hierarchy};
use crate::root::ProcRoot;

impl Cgroup {
    /// The cgroup of the unified hierarchy with the processes of this one: itself in v2, otherwise
    /// the one with the same path, if it holds the same processes. `None` if there is none.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn counterpart(
        &self,
        unified: &Hierarchy,
        proc: &ProcRoot,
    ) -> Result<Option<Cgroup>, CgroupError> {
        if *unified == self.hierarchy {
            return Ok(Some(self.clone()));
        }
        match Cgroup::open(unified, &self.path) {
            Ok(other) => Ok(self.is_of_same(&other, proc)?.then_some(other)),
            Err(CgroupError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether both hold the same processes, and there are any: those of others would wait for
    /// other reasons. The lists are read one after the other, so who was born or has ended
    /// meanwhile does not count.
    fn is_of_same(&self, other: &Cgroup, proc: &ProcRoot) -> Result<bool, CgroupError> {
        let (Some(before), Some(pids)) = (other.all_procs()?, self.all_procs()?) else {
            return Ok(false);
        };
        if before == pids {
            return Ok(!pids.is_empty());
        }
        let after = other.procs(true)?;
        let has = |list: &[u32], pid: &u32| list.binary_search(pid).is_ok();
        let is_there = |pid: &u32| has(&before, pid) || has(&after, pid);
        let has_ended = |pid: u32| !proc.of(pid).exists();
        let is_foreign = |pid: &u32| has(&after, pid) && !has(&pids, pid);
        Ok(pids.iter().any(is_there)
            && pids.iter().all(|pid| is_there(pid) || has_ended(*pid))
            && !before.iter().any(is_foreign))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Version;
    use super::*;

    #[test]
    fn the_same_path_counts_if_it_holds_the_same_processes() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        for dir in ["7", "8", "v1/web/sub", "v1/other", "v2/web", "v2/other"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        let procs = |dir: &str, pids: &str| {
            fs::write(at(dir).join("cgroup.procs"), pids).unwrap();
        };
        let proc = ProcRoot::new(top.path());
        let v1 = Hierarchy::at(Version::V1, at("v1"));
        let v2 = Hierarchy::at(Version::V2, at("v2"));
        let of = |path: &str| {
            let cgroup = Cgroup::open(&v1, path).unwrap();
            let found = cgroup.counterpart(&v2, &proc).unwrap();
            found.map(|found| found.dir())
        };
        // 9 has ended meanwhile.
        procs("v1/web", "7\n9\n");
        procs("v1/web/sub", "8\n");
        procs("v2/web", "7\n8\n");
        assert_eq!(of("/web"), Some(at("v2/web")));
        procs("v2/web", "7\n");
        assert_eq!(of("/web"), None, "8 is elsewhere");
        procs("v2/web", "7\n8\n10\n");
        assert_eq!(of("/web"), None, "10 is not in /web of v1");
        procs("v2/web", "0\n7\n8\n");
        assert_eq!(
            of("/web"),
            None,
            "one of another namespace, as v1 does not list"
        );
        procs("v1/other", "");
        procs("v2/other", "");
        assert_eq!(of("/other"), None, "nobody is there");
        assert_eq!(of("/web/sub"), None, "there is no such path");
        let web = Cgroup::open(&v2, "/web").unwrap();
        assert_eq!(web.counterpart(&v2, &proc).unwrap(), Some(web));
    }
}
