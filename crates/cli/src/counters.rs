// SPDX-License-Identifier: Apache-2.0
//! Shared by `shrink` and the daemon's rule of that name: the counters of a cgroup that show
//! whether less memory hurts it.

use agewise_host::cgroup::{Cgroup, CgroupError, Hierarchy, Mounts};
use agewise_host::pressure::{Psi, Resource};
use agewise_host::root::ProcRoot;
use agewise_policy::whatif::shrink::Facts;

/// How long a counterpart is believed to hold the same processes. To find out takes lists of all of
/// them, and counters are read every half second.
const COUNTERPART_MS: u64 = 4_000;

/// Reads the counters of one cgroup.
#[derive(Debug, Default)]
pub struct Counters {
    unified: Option<Hierarchy>,
    /// Where its waiting is counted, if anywhere, and when that was found out, ms.
    counted: Option<(u64, Option<Cgroup>)>,
}

impl Counters {
    /// Reads once where cgroups are mounted.
    pub fn new() -> Self {
        let mounts = Mounts::read(&ProcRoot::default());
        Counters {
            unified: mounts.ok().and_then(|mounts| mounts.unified()),
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
            is_blind: false,
        })
    }

    fn waited_us(&mut self, cgroup: &Cgroup, now_ms: u64) -> Option<u64> {
        let is_recent = |found_ms: u64| now_ms.saturating_sub(found_ms) < COUNTERPART_MS;
        if !self.counted.as_ref().is_some_and(|of| is_recent(of.0)) {
            let unified = self.unified.as_ref();
            let found = unified.map(|of| cgroup.counterpart(of, &ProcRoot::default()));
            self.counted = Some((now_ms, found.and_then(Result::ok).flatten()));
        }
        let (_, counted) = self.counted.as_ref()?;
        let pressure = Psi::of_cgroup(counted.as_ref()?, Resource::Memory).ok()??;
        Some(pressure.some.total_us)
    }
}
