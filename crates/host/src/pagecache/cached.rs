// SPDX-License-Identifier: Apache-2.0
//! A file in the page cache, and the cgroups to which its pages are charged.

use std::ops::Range;
use std::sync::Arc;

use super::shown::{Inode, SuperBlock};
use super::slots::Slot;
use crate::access::PAGE_BYTES;
use crate::frame_set::FrameSet;

/// Most files followed. Further files are counted but have no ages.
pub const FILES_MAX: usize = 4 << 20;

/// One file in the cache.
#[derive(Clone, Debug)]
pub struct CachedFile {
    pub inode: Inode,
    /// The file system it is on.
    pub on: Arc<SuperBlock>,
    /// Kernfs id of the cgroup to which most of its pages are charged; 0 for none.
    pub cgroup: u64,
    /// Pages present in the cache.
    pub pages: u64,
    /// Pages dirty or under writeback, extended to whole folios.
    pub dirty_pages: u64,
    pub(super) slot: Slot,
    /// The owners of its pages, also of those that do not count; empty if they all have one owner.
    pub(super) runs: Vec<Run>,
    /// The last look that found it, or did not reach it.
    pub(super) look: u32,
    /// Looks in a row that did not reach it.
    pub(super) unreached: u32,
}

/// The owner of pages: the kernfs id of their cgroup (0 for none), and the index of their NUMA
/// node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    pub cgroup: u64,
    /// The node, as returned by [`Mapped::node_of`].
    pub node: u8,
}

/// Selects the cold pages.
#[derive(Clone)]
pub struct Cold<'a> {
    /// Idle since a time in this range, on the clock of ages; see
    /// [`FileAges::idle_for`](super::FileAges::idle_for).
    pub since_ms: Range<u64>,
    /// Whether the pages of a cgroup count, by its kernfs id.
    pub owns: &'a dyn Fn(u64) -> bool,
}

/// The pages from this one up to the next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub first_page: u64,
    pub owner: Owner,
}

impl CachedFile {
    /// See [`Inode::can_be_dropped`].
    pub fn can_be_dropped(&self) -> bool {
        self.inode.can_be_dropped(&self.on)
    }

    /// Its device and inode number as `stat` reports them; on btrfs its device differs from this.
    pub fn stat(&self) -> (u64, u64) {
        // The kernel packs a device as 12 bits of major and 20 of minor; `st_dev` spreads them
        // over 64.
        let (major, minor) = (self.on.device >> 20, self.on.device & 0xf_ffff);
        (rustix::fs::makedev(major, minor), self.inode.number)
    }

    /// Its size in pages, limited to those its slot has room for.
    pub fn size_pages(&self) -> u64 {
        self.inode
            .size_bytes
            .div_ceil(PAGE_BYTES)
            .min(self.slot.pages())
    }

    /// See [`Inode::name_hash`].
    pub fn name_hash(&self) -> u64 {
        self.inode.name_hash(&self.on)
    }

    /// Adds a run behind all others, unless it continues the last one.
    pub(super) fn begin_run(&mut self, run: Run) {
        if self.runs.last().is_none_or(|last| last.owner != run.owner) {
            self.runs.push(run);
        }
    }

    /// Kernfs ids of the cgroups its pages are charged to, without duplicates.
    pub fn cgroups(&self) -> impl Iterator<Item = u64> + '_ {
        let own = self.runs.is_empty().then_some(self.cgroup);
        let runs = self.runs.iter().enumerate();
        let first = |(at, run): (usize, &Run)| {
            let id = run.owner.cgroup;
            let before = &self.runs[..at];
            (!before.iter().any(|run| run.owner.cgroup == id)).then_some(id)
        };
        own.into_iter().chain(runs.filter_map(first))
    }

    /// The kernfs id of the cgroup to which a page, given by its index, is charged. One that the
    /// last look did not find is taken for the owner's of the page before it.
    pub fn cgroup_of(&self, page: u64) -> u64 {
        let at = self.runs.partition_point(|run| run.first_page <= page);
        let run = self.runs.get(at.saturating_sub(1));
        run.map_or(self.cgroup, |run| run.owner.cgroup)
    }

    /// Its page numbers in the age map.
    pub(super) fn numbers(&self) -> Range<u64> {
        self.slot.first..self.slot.first + self.slot.pages()
    }

    /// Its pages, as page numbers of the age map, by owner.
    pub(super) fn owned(&self) -> impl Iterator<Item = (Owner, Range<u64>)> + '_ {
        let all = self.numbers();
        let of_one = Owner {
            cgroup: self.cgroup,
            node: 0,
        };
        let whole = self.runs.is_empty().then_some((of_one, all.clone()));
        // Runs may lie beyond the size that the inode had, for which there is no room.
        let number = move |run: &Run| all.start.saturating_add(run.first_page).min(all.end);
        let ends = self.runs.iter().skip(1).map(number);
        let ends = ends.chain([self.numbers().end]);
        let runs = self.runs.iter().zip(ends);
        whole
            .into_iter()
            .chain(runs.map(move |(run, end)| (run.owner, number(run)..end)))
    }
}

/// What is known about cached pages from mappings.
pub struct Mapped<'a> {
    /// Frames found accessed through mappings since the last look.
    pub touched: &'a FrameSet,
    /// Returns the index of a frame's NUMA node; `None` if there is only one node.
    pub node_of: Option<&'a dyn Fn(u64) -> u8>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagecache::slots::Slots;

    /// A page may be written behind the end that the inode had when the walk came to it.
    #[test]
    fn pages_beyond_the_place_of_a_file_are_not_those_of_its_neighbours() {
        let mut slots = Slots::default();
        let run = |first_page, cgroup| Run {
            first_page,
            owner: Owner { cgroup, node: 0 },
        };
        let file = CachedFile {
            inode: Inode {
                address: 1 << 40,
                number: 1,
                generation: 0,
                size_bytes: PAGE_BYTES,
                links: 1,
            },
            on: Arc::new(SuperBlock {
                address: 1 << 41,
                magic: 0,
                fs_type: "fake".into(),
                device: 1,
                kind: super::super::shown::CacheKind::File,
            }),
            cgroup: 7,
            pages: 1,
            dirty_pages: 0,
            slot: slots.take(1).unwrap(),
            runs: vec![run(0, 7), run(3, 8), run(5, 7)],
            look: 0,
            unreached: 0,
        };
        let first = file.slot.first;
        let owned = file.owned().filter(|(_, pages)| !pages.is_empty());
        let owned: Vec<_> = owned.map(|(owner, pages)| (owner.cgroup, pages)).collect();
        assert_eq!(owned, [(7, first..first + 1)]);
    }
}
