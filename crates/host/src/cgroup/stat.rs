// SPDX-License-Identifier: Apache-2.0
//! `memory.stat` of both cgroup versions in one structure.

use std::path::Path;

use super::Version;
use crate::access::pages_per_kernel_page;
use crate::error::FileError;

/// Memory of a cgroup and all cgroups below it. In bytes unless the name says otherwise.
///
/// Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. The kernel flushes
/// these counters every 2 s, so they lag behind by as much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStat {
    /// Mapped anonymous memory, huge pages included (v1 `rss`).
    pub anon_bytes: u64,
    /// Page cache, tmpfs and shared memory included (v1 `cache`).
    pub file_bytes: u64,
    /// The part of `file_bytes` that goes to swap when reclaimed: tmpfs and shared anonymous
    /// memory.
    pub shmem_bytes: u64,
    /// The part of `file_bytes` that some process maps.
    pub file_mapped_bytes: u64,
    /// Active anon LRU list, which includes tmpfs.
    pub active_anon_bytes: u64,
    /// Active file LRU list.
    pub active_file_bytes: u64,
    /// Memory in swap, if `memory.stat` reports it (v1 with swap accounting).
    pub swap_bytes: Option<u64>,
    /// Memory that is resident and also still has its place in swap, for which v2 charges twice.
    pub swap_cached_bytes: u64,
    /// Page faults.
    pub faults: u64,
    /// Major faults, which needed I/O.
    pub major_faults: u64,
    /// Anonymous pages (of 4 KiB) read back after eviction.
    pub refaults_anon_pages: u64,
    /// Whether the kernel counts those (since 5.9).
    pub counts_anon_refaults: bool,
    /// File pages (of 4 KiB) read back after eviction.
    pub refaults_file_pages: u64,
    /// Pages (of 4 KiB) that the kernel took because memory was short, by kswapd or by tasks that
    /// allocate, also those that a limit took. `None` in v1, and before Linux 6.16, which does not
    /// count what `memory.reclaim` takes apart: any program may ask for that.
    pub stolen_pages: Option<u64>,
}

impl MemoryStat {
    /// Parses `memory.stat`. Fields that this kernel does not report stay zero.
    pub fn parse(version: Version, path: &Path, text: &str) -> Result<Self, FileError> {
        let mut stat = Self::default();
        let mut counts_apart = false;
        for line in text.lines() {
            let value = || {
                line.split_once(' ')
                    .and_then(|(_, v)| v.trim().parse::<u64>().ok())
                    .ok_or_else(|| FileError::format(path, "a name and a number", line))
            };
            let name = line.split(' ').next().unwrap_or("");
            let name = match version {
                // Without the prefix `total_`, v1 counts only the cgroup itself.
                Version::V1 => match name.strip_prefix("total_") {
                    Some(name) => name,
                    None => continue,
                },
                Version::V2 => name,
            };
            stat.counts_anon_refaults |= name == "workingset_refault_anon";
            if let Some(field) = stat.field(version, name) {
                *field = value()?;
            } else if name == "swap" {
                stat.swap_bytes = Some(value()?);
            } else if version == Version::V2 && matches!(name, "pgsteal_kswapd" | "pgsteal_direct")
            {
                let pages = value()?.saturating_mul(pages_per_kernel_page());
                stat.stolen_pages = Some(pages.saturating_add(stat.stolen_pages.unwrap_or(0)));
            } else if name == "pgsteal_proactive" {
                counts_apart = true;
            }
        }
        stat.stolen_pages = stat.stolen_pages.filter(|_| counts_apart);
        for count in [&mut stat.refaults_anon_pages, &mut stat.refaults_file_pages] {
            *count = count.saturating_mul(pages_per_kernel_page());
        }
        Ok(stat)
    }

    /// Shared memory and tmpfs that processes map, at most.
    pub fn mapped_shmem_bytes(&self) -> u64 {
        self.shmem_bytes.min(self.file_mapped_bytes)
    }

    fn field(&mut self, version: Version, name: &str) -> Option<&mut u64> {
        Some(match (version, name) {
            (Version::V1, "rss") | (Version::V2, "anon") => &mut self.anon_bytes,
            (Version::V1, "cache") | (Version::V2, "file") => &mut self.file_bytes,
            (Version::V1, "mapped_file") | (Version::V2, "file_mapped") => {
                &mut self.file_mapped_bytes
            }
            (_, "shmem") => &mut self.shmem_bytes,
            (_, "active_anon") => &mut self.active_anon_bytes,
            (_, "active_file") => &mut self.active_file_bytes,
            (_, "swapcached") => &mut self.swap_cached_bytes,
            (_, "pgfault") => &mut self.faults,
            (_, "pgmajfault") => &mut self.major_faults,
            (_, "workingset_refault_anon") => &mut self.refaults_anon_pages,
            // Before 5.9 there was a single counter, for files only.
            (_, "workingset_refault_file" | "workingset_refault") => &mut self.refaults_file_pages,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_give_the_same_structure() {
        let v1 = "cache 1\nrss 1\nrss_huge 1\nshmem 1\nmapped_file 1\ndirty 1\nswap 1\n\
                  hierarchical_memory_limit 9223372036854771712\n\
                  total_cache 8192\ntotal_rss 4096\ntotal_rss_huge 0\ntotal_shmem 100\n\
                  total_mapped_file 200\ntotal_dirty 300\ntotal_writeback 400\n\
                  total_inactive_anon 1\ntotal_active_anon 2\ntotal_inactive_file 3\n\
                  total_active_file 4\ntotal_unevictable 5\ntotal_pgfault 6\ntotal_pgmajfault 7\n\
                  total_workingset_refault_anon 8\ntotal_workingset_refault_file 9\n\
                  total_swap 12\n";
        let v2 = "anon 4096\nfile 8192\nkernel 77\nanon_thp 0\nshmem 100\nfile_mapped 200\n\
                  file_dirty 300\nfile_writeback 400\ninactive_anon 1\nactive_anon 2\n\
                  inactive_file 3\nactive_file 4\nunevictable 5\npgfault 6\npgmajfault 7\n\
                  workingset_refault_anon 8\nworkingset_refault_file 9\nslab 11\n\
                  swapcached 13\npgsteal_kswapd 14\npgsteal_direct 15\npgsteal_proactive 16\n";
        let path = Path::new("memory.stat");
        let one = MemoryStat::parse(Version::V1, path, v1).unwrap();
        let two = MemoryStat::parse(Version::V2, path, v2).unwrap();
        assert_eq!(one.swap_bytes, Some(12));
        assert_eq!(one.anon_bytes, 4096);
        assert_eq!(two.swap_cached_bytes, 13);
        assert_eq!(one.refaults_file_pages, 9);
        assert_eq!(two.stolen_pages, Some(29));
        assert_eq!(
            MemoryStat {
                swap_bytes: None,
                ..one
            },
            MemoryStat {
                swap_cached_bytes: 0,
                stolen_pages: None,
                ..two
            }
        );
        let earlier = v2.replace("pgsteal_proactive 16\n", "");
        let earlier = MemoryStat::parse(Version::V2, path, &earlier).unwrap();
        assert_eq!(earlier.stolen_pages, None);
    }

    #[test]
    fn a_broken_line_is_an_error_with_the_path() {
        let error = MemoryStat::parse(Version::V2, Path::new("/g/memory.stat"), "anon x\n");
        assert!(
            error
                .unwrap_err()
                .to_string()
                .starts_with("/g/memory.stat: ")
        );
        // Lines that are not used may have any format.
        MemoryStat::parse(Version::V2, Path::new("s"), "something_new a b c\n\n").unwrap();
    }
}
