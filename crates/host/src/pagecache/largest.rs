// SPDX-License-Identifier: Apache-2.0
//! The files with the most memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use agewise_policy::workingset::{Histogram, Intervals};

use super::cached::CachedFile;
use super::files::FileAges;
use super::names::{Mounts, label};
use super::shown::{CacheKind, Key};
use crate::access::{AccessError, PAGE_BYTES};
use crate::untrusted::Untrusted;

/// A file, with what is shown of it.
#[derive(Clone, Debug)]
pub struct LargeFile {
    /// See [`label`].
    pub name: Untrusted,
    pub kind: CacheKind,
    /// Kernfs id of the cgroup to which most of its pages are charged; 0 for none.
    pub cgroup: u64,
    /// Of the cgroups asked for only.
    pub resident_bytes: u64,
    /// Dirty or under writeback, of whichever cgroup.
    pub dirty_bytes: u64,
    /// Pages by age, in bytes. Only their sum means something unless [`CacheKind::has_ages`].
    pub ages: Histogram,
    /// Lower bound of the age of its oldest page, with the same limit.
    pub oldest_ms: u64,
    /// Whether its ages are those of one block in eight.
    pub is_sampled: bool,
}

/// The largest of some files, and the sums of all of them.
#[derive(Clone, Debug, Default)]
pub struct Largest {
    /// The largest first.
    pub files: Vec<LargeFile>,
    pub count: u64,
    pub resident_bytes: u64,
    /// How long they have been followed, in ms.
    pub observed_ms: u64,
}

impl FileAges {
    /// The `most` files with the most memory that the last look found, of those for which `wanted`
    /// returns true. Only pages charged to cgroups for which `owns` returns true, given a kernfs
    /// id.
    ///
    /// # Errors
    /// Paths cannot be read any more.
    pub fn largest(
        &mut self,
        most: usize,
        wanted: &dyn Fn(&CachedFile) -> bool,
        owns: &dyn Fn(u64) -> bool,
        intervals: &Intervals,
        mounts: &Mounts,
    ) -> Result<Largest, AccessError> {
        let mut all = Largest {
            observed_ms: self.observed_ms(),
            ..Largest::default()
        };
        // There may be millions of files: no more than `most` of them are kept at a time.
        let mut heap: BinaryHeap<Reverse<(u64, Key)>> = BinaryHeap::new();
        for file in self.files.values().filter(|file| wanted(file)) {
            let bytes = self.pages_charged(file, owns) * PAGE_BYTES;
            if bytes == 0 {
                continue;
            }
            all.count += 1;
            all.resident_bytes += bytes;
            heap.push(Reverse((bytes, file.inode.key())));
            if heap.len() > most {
                heap.pop();
            }
        }
        for Reverse((bytes, key)) in heap.into_sorted_vec() {
            if let Some(file) = self.files.get(&key).cloned() {
                all.files
                    .push(self.shown(&file, bytes, owns, intervals, mounts)?);
            }
        }
        Ok(all)
    }

    fn pages_charged(&self, file: &CachedFile, owns: &dyn Fn(u64) -> bool) -> u64 {
        match file.cgroups().all(owns) {
            // Most files have one owner; nothing needs to be counted.
            true => file.pages,
            false => self.pages_of(file, owns).iter().sum(),
        }
    }

    fn shown(
        &mut self,
        file: &CachedFile,
        resident_bytes: u64,
        owns: &dyn Fn(u64) -> bool,
        intervals: &Intervals,
        mounts: &Mounts,
    ) -> Result<LargeFile, AccessError> {
        let name = self.path(file)?;
        // A file system that is reached over a network, or served by a process, may not answer.
        let at = |path| match file.on.is_far() {
            true => None,
            false => mounts.find(file.on.device, path, file.inode.number),
        };
        let place = name.as_deref().and_then(at);
        let path = place.map(|place| Untrusted::from(&*place.path));
        let name = name.map(|name| Untrusted::from(&*name));
        let (ages, oldest_ms, _) = self.ages(file, intervals, owns);
        Ok(LargeFile {
            name: label(file, path.as_ref(), name.as_ref()),
            kind: file.on.kind,
            cgroup: file.cgroup,
            resident_bytes,
            dirty_bytes: file.dirty_pages * PAGE_BYTES,
            ages: ages.scaled(PAGE_BYTES),
            oldest_ms,
            is_sampled: self.is_sampled(file),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Shared, file};
    use super::*;

    #[test]
    fn the_largest_come_first_and_all_are_counted() {
        let shared = Shared::default();
        let mut ages = shared.ages(3_600_000);
        let mut parted = file(4, CacheKind::File, 7, 64);
        (parted.blocks, parted.other) = (2, Some((1, 8)));
        shared.0.lock().unwrap().files = vec![
            file(1, CacheKind::File, 7, 10),
            file(2, CacheKind::Shmem, 7, 30),
            file(3, CacheKind::Device, 8, 20),
            parted,
        ];
        ages.look(&|_| true).unwrap();
        let bounds: Intervals = "1h".parse().unwrap();
        let mut list = |most, wanted: &dyn Fn(&CachedFile) -> bool, owner: Option<u64>| {
            let owns = |id| owner.is_none_or(|owner| owner == id);
            let found = ages.largest(most, wanted, &owns, &bounds, &Mounts::default());
            let found = found.unwrap();
            let rows = found.files.iter().map(|file| {
                assert_eq!(file.ages.total().iter().sum::<u64>(), file.resident_bytes);
                let name = file.name.terminal().to_string();
                (name, file.resident_bytes / PAGE_BYTES)
            });
            let rows: Vec<(String, u64)> = rows.collect();
            (rows, found.count, found.resident_bytes / PAGE_BYTES)
        };
        let inode = |number: u64| format!("fake:inode {number} on 0:1");
        let [one, four] = [1, 4].map(inode);
        let shared_memory = format!("{} (shared memory)", inode(2));
        let (rows, count, pages) = list(2, &|_| true, None);
        assert_eq!(rows, [(four.clone(), 128), (shared_memory.clone(), 30)]);
        assert_eq!((count, pages), (4, 188));
        let (rows, ..) = list(9, &|_| true, Some(7));
        assert_eq!(rows, [(four, 64), (shared_memory, 30), (one.clone(), 10)]);
        let (rows, ..) = list(9, &|file| file.inode.number == 1, None);
        assert_eq!(rows, [(one, 10)]);
        assert_eq!(list(0, &|_| true, Some(9)), (Vec::new(), 0, 0));
    }
}
