// SPDX-License-Identifier: Apache-2.0
//! Shared by `shrink` and the daemon's rule of that name: the counters of a cgroup that show
//! whether less memory hurts it.

use agewise_host::cgroup::{Cgroup, CgroupError, Hierarchy, Mounts};
use agewise_host::pressure::{Psi, Resource};
use agewise_host::root::ProcRoot;
use agewise_policy::whatif::Facts;

/// How long a counterpart is believed to hold the same processes. To find out takes lists of all of
/// them, and counters are read every half second.
const COUNTERPART_MS: u64 = 4_000;

/// Reads the counters of one cgroup.
#[derive(Debug)]
pub struct Counters {
    proc: ProcRoot,
    unified: Option<Hierarchy>,
    /// Where its waiting is counted, if anywhere, and when that was found out, ms.
    counted: Option<(u64, Option<Cgroup>)>,
}

impl Counters {
    /// Reads once where cgroups are mounted.
    pub fn new(proc: ProcRoot) -> Self {
        let mounts = Mounts::read(&proc);
        Counters {
            unified: mounts.ok().and_then(|mounts| mounts.unified()),
            proc,
            counted: None,
        }
    }

    /// Reads them at this time, ms.
    ///
    /// # Errors
    /// Its files cannot be read. Without a count of waiting, that is estimated from prices.
    pub fn read(&mut self, cgroup: &Cgroup, now_ms: u64) -> Result<Facts, CgroupError> {
        let stat = cgroup.stat()?;
        Ok(Facts {
            now_ms,
            faults: [stat.refaults_anon_pages, stat.refaults_file_pages],
            waited_us: self.waited_us(cgroup, now_ms),
            usage_bytes: cgroup.usage_bytes()?,
            is_blind: false,
        })
    }

    fn waited_us(&mut self, cgroup: &Cgroup, now_ms: u64) -> Option<u64> {
        let is_recent = |found_ms: u64| now_ms.saturating_sub(found_ms) < COUNTERPART_MS;
        if !self.counted.as_ref().is_some_and(|of| is_recent(of.0)) {
            let unified = self.unified.as_ref();
            let found = unified.map(|of| cgroup.counterpart(of, &self.proc));
            self.counted = Some((now_ms, found.and_then(Result::ok).flatten()));
        }
        let (_, counted) = self.counted.as_ref()?;
        let pressure = Psi::of_cgroup(counted.as_ref()?, Resource::Memory).ok()??;
        Some(pressure.some.total_us)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use agewise_host::cgroup::Version;

    use super::*;

    #[test]
    fn a_counterpart_is_believed_for_four_seconds_and_its_count_read_each_time() {
        let top = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = top.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let waited = |total: u64| {
            let of = |name| format!("{name} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
            put("v2/web/memory.pressure", &(of("some") + &of("full")));
        };
        let unified = top.path().join("v2");
        let mount = format!(
            "30 1 0:26 / {} rw - cgroup2 cgroup2 rw\n",
            unified.display()
        );
        put("self/mountinfo", &mount);
        put("v1/web/memory.stat", "");
        put("v1/web/cgroup.procs", "7\n");
        put("v2/web/cgroup.procs", "7\n");
        waited(5);
        let v1 = Hierarchy::at(Version::V1, top.path().join("v1"));
        let cgroup = Cgroup::open(&v1, "/web").unwrap();
        let mut counters = Counters::new(ProcRoot::new(top.path()));
        let mut read = |now_ms| counters.read(&cgroup, now_ms).unwrap().waited_us;
        assert_eq!(read(1_000), Some(5));
        waited(9);
        put("v2/web/cgroup.procs", "8\n");
        assert_eq!(read(4_999), Some(9));
        assert_eq!(read(5_000), None, "others wait there");
        put("v2/web/cgroup.procs", "7\n");
        assert_eq!(read(8_999), None);
        assert_eq!(read(9_000), Some(9));
    }
}
