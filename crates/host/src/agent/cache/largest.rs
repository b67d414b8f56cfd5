// SPDX-License-Identifier: Apache-2.0
//! The files with the most memory, for those who show them.

use std::collections::HashSet;
use std::path::Path;

use agewise_policy::workingset::Intervals;

use super::{Agent, Cache, CacheError};
use crate::cgroup::Cgroup;
use crate::pagecache::{CachedFile, Largest, Mounts, files_of};
use crate::root::ProcRoot;

/// The files to list, of those that are followed.
#[derive(Clone, Copy, Debug)]
pub enum FilesIn<'a> {
    /// All of them.
    All,
    /// Pages charged to this cgroup and those below it.
    Cgroup(&'a Cgroup),
    /// Files that this process has open or mapped now, whichever cgroup they are charged to.
    Process(u32),
}

impl Cache {
    fn largest(
        &mut self,
        proc: &ProcRoot,
        of: FilesIn<'_>,
        most: usize,
        bounds: &Intervals,
    ) -> Result<Largest, CacheError> {
        let mounts = Mounts::read(proc)?;
        let mut owned = HashSet::new();
        if let FilesIn::Cgroup(cgroup) = of {
            let known = self.sizes.keys().map(|owner| owner.cgroup);
            owned.extend(known.filter(|id| self.is_of(cgroup, *id)));
        }
        let owns = |id| !matches!(of, FilesIn::Cgroup(_)) || owned.contains(&id);
        let open = match of {
            FilesIn::Process(pid) => Some(files_of(proc, pid)),
            _ => None,
        };
        let is_wanted =
            |file: &CachedFile| open.as_ref().is_none_or(|open| open.contains(&file.stat()));
        let ages = &mut self.ages;
        Ok(ages.largest(most, &is_wanted, &owns, bounds, &mounts)?)
    }
}

impl Agent {
    /// The `most` files with the most memory, as of the last look.
    ///
    /// # Errors
    /// The page cache is not followed, or paths cannot be read.
    pub fn largest_files(&mut self, of: FilesIn<'_>, most: usize) -> Result<Largest, CacheError> {
        let cache = self.cache.as_mut().ok_or(CacheError::NotFollowed)?;
        cache.largest(&self.roots.proc, of, most, &self.config.intervals)
    }

    /// The path of a cgroup that files are charged to, as of the last look; `None` if it was
    /// removed.
    pub fn cgroup_path(&self, id: u64) -> Option<&Path> {
        let path = self.cache.as_ref()?.paths.get(&id)?;
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cgroups, nodes, subject};
    use super::*;
    use crate::access::PAGE_BYTES;
    use crate::pagecache::CacheKind;
    use crate::pagecache::fake::{Shared, file};

    #[test]
    fn a_cgroup_has_the_files_charged_to_it_and_to_those_below() {
        let (_dir, [top, a, b, c]) = cgroups();
        let shared = Shared::default();
        shared.0.lock().unwrap().files = vec![
            file(1, CacheKind::File, a.id(), 10),
            file(2, CacheKind::File, b.id(), 20),
            file(3, CacheKind::File, c.id(), 5),
        ];
        let mut cache = Cache::new(shared.ages(3_600_000));
        cache.look(&[subject(&top)], &nodes());
        let (proc, bounds) = (ProcRoot::default(), "1h".parse().unwrap());
        let mut pages = |of| {
            let found = cache.largest(&proc, of, 9, &bounds).unwrap();
            let files = found.files.iter();
            let pages = files.map(|file| file.resident_bytes / PAGE_BYTES);
            pages.collect::<Vec<u64>>()
        };
        assert_eq!(pages(FilesIn::All), [20, 10, 5]);
        assert_eq!(pages(FilesIn::Cgroup(&a)), [20, 10]);
        assert_eq!(pages(FilesIn::Cgroup(&c)), [5]);
        assert!(pages(FilesIn::Process(std::process::id())).is_empty());
    }
}
