// SPDX-License-Identifier: Apache-2.0
//! The kernel's counters of a cgroup, by which it is compared with others.

use std::sync::Arc;

use agewise_host::cgroup::Cgroup;
use agewise_policy::generations::ByType;

use crate::world;

/// The counters of a cgroup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Memory charged to it.
    pub used_bytes: u64,
    /// Its memory in swap.
    pub swapped_bytes: u64,
    /// Pages that came back. Kernels before 5.9 only count those of files.
    pub refaulted_pages: ByType<u64>,
    /// Pages that the kernel took from it because memory was short; `None` if the kernel counts
    /// those of the whole machine only.
    pub stolen_pages: Option<u64>,
    /// Time in which all its tasks waited, us; `None` if the kernel does not report it.
    pub full_stall_us: Option<u64>,
    /// How often the limits that apply to it were hit, the lowest first: of it and those below it,
    /// then of each cgroup above it.
    pub limits: Vec<(Arc<str>, u64)>,
}

impl Counters {
    /// Reads the counters; `None` if the cgroup does not exist.
    pub fn read(cgroup: &Cgroup) -> Option<Self> {
        let stat = cgroup.stat().ok()?;
        let mapped_bytes = stat.anon_bytes.saturating_add(stat.file_bytes);
        Some(Counters {
            used_bytes: cgroup.usage_bytes().ok()?.unwrap_or(mapped_bytes),
            swapped_bytes: cgroup.swap_bytes().ok().flatten().unwrap_or(0),
            refaulted_pages: [stat.refaults_anon_pages, stat.refaults_file_pages],
            stolen_pages: stat.stolen_pages,
            full_stall_us: world::psi_of(cgroup).map(|psi| psi.full.total_us),
            limits: limits(cgroup),
        })
    }
}

/// The top has a limit where it is that of a container. What that takes is not counted in vmstat.
fn limits(cgroup: &Cgroup) -> Vec<(Arc<str>, u64)> {
    let hits = |path| {
        let of = Cgroup::open(cgroup.hierarchy(), path).ok()?;
        // What is beside it may hit limits of its own.
        let hits = match of.path() == cgroup.path() {
            true => of.limit_hits(),
            false => of.own_limit_hits(),
        };
        Some((Arc::from(of.name()), hits.ok()??))
    };
    cgroup.path().ancestors().filter_map(hits).collect()
}

#[cfg(test)]
mod tests {
    use agewise_host::cgroup::{Hierarchy, Version};

    use super::*;

    #[test]
    fn limits_above_count_without_those_beside() {
        let dir = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        std::fs::create_dir_all(dir.path().join("slice/db/worker")).unwrap();
        for (file, hits) in [
            ("memory.events", 900),
            ("memory.events.local", 7),
            ("slice/memory.events", 70),
            ("slice/memory.events.local", 5),
            ("slice/db/memory.events", 3),
            ("slice/db/memory.events.local", 1),
        ] {
            std::fs::write(dir.path().join(file), format!("max {hits}\n")).unwrap();
        }
        let limits = limits(&Cgroup::open(&hierarchy, "/slice/db").unwrap());
        let hits = [("/slice/db", 3), ("/slice", 5), ("/", 7)];
        assert_eq!(limits, hits.map(|(of, hits)| (of.into(), hits)));
    }
}
