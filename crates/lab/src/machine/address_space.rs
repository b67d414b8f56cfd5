// SPDX-License-Identifier: Apache-2.0
//! Address spaces: their mapped ranges and counters.

use agewise_kernel::ids::{MemcgId, MmId};
use agewise_kernel::page_table::{PAGES_PER_PMD, Vma};

use super::page_tables::MAX_VPN;

/// What backs a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Private anonymous memory.
    Anon,
    /// A file, mapped from `first_page` on.
    File {
        file: u32,
        /// The file's page at the start of the range.
        first_page: u32,
    },
}

/// Advice about a range or an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// None.
    #[default]
    Normal,
    /// `MADV_RANDOM`, `POSIX_FADV_RANDOM`: no readahead; mapped accesses give no recency.
    Random,
    /// `MADV_SEQUENTIAL`: mapped accesses give no recency and, unlike in the kernel, no readahead.
    Sequential,
}

/// One mapped range with its backing.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The range as the policies see it.
    pub vma: Vma,
    /// What backs it.
    pub backing: Backing,
    /// Whether 2 MiB leaves are used where they fit.
    pub huge: bool,
}

/// How to map a range.
#[derive(Clone, Copy, Debug)]
pub struct MapOptions {
    /// What backs it.
    pub backing: Backing,
    /// Length in pages.
    pub pages: u64,
    /// Advice about the range.
    pub advice: Advice,
    /// `mlock`ed.
    pub locked: bool,
    /// Program text.
    pub exec: bool,
    /// `MAP_SHARED`.
    pub shared: bool,
    /// Whether 2 MiB leaves are used where they fit.
    pub huge: bool,
}

impl MapOptions {
    /// Anonymous memory of `pages` pages.
    pub fn anon(pages: u64) -> MapOptions {
        MapOptions {
            backing: Backing::Anon,
            pages,
            advice: Advice::Normal,
            locked: false,
            exec: false,
            shared: false,
            huge: false,
        }
    }

    /// The first `pages` pages of a file, shared.
    pub fn file(file: u32, pages: u64) -> MapOptions {
        MapOptions {
            backing: Backing::File {
                file,
                first_page: 0,
            },
            shared: true,
            ..MapOptions::anon(pages)
        }
    }
}

/// One address space.
#[derive(Clone, Debug)]
pub struct AddressSpace {
    /// The cgroup of its owner.
    pub memcg: MemcgId,
    /// False once its process is gone.
    pub alive: bool,
    /// Mapped pages, anon and file.
    pub resident_pages: [u64; 2],
    /// Leaves that hold a swap entry.
    pub swapped_pages: u64,
    /// Page-table pages charged for it.
    pub table_pages: u64,
    ranges: Vec<Range>,
    next_vpn: u64,
}

/// First page number mapped: the usual start of a small program's heap (4 MiB).
const FIRST_VPN: u64 = 2 * PAGES_PER_PMD;

/// All address spaces ever made.
#[derive(Clone, Debug, Default)]
pub struct AddressSpaces {
    spaces: Vec<AddressSpace>,
}

impl AddressSpaces {
    /// All ids given out so far.
    pub fn ids(&self) -> impl Iterator<Item = MmId> + use<> {
        (0..self.spaces.len() as u32).map(MmId)
    }

    /// Creates an address space for a process in `memcg`.
    pub fn add(&mut self, memcg: MemcgId) -> MmId {
        self.spaces.push(AddressSpace {
            memcg,
            alive: true,
            resident_pages: [0; 2],
            swapped_pages: 0,
            table_pages: 0,
            ranges: Vec::new(),
            next_vpn: FIRST_VPN,
        });
        MmId(self.spaces.len() as u32 - 1)
    }

    /// Maps a range at the next free 2 MiB boundary and returns its first page. Returns None if the
    /// address space is full.
    pub fn map(&mut self, mm: MmId, options: &MapOptions) -> Option<u64> {
        let start_vpn = self[mm].next_vpn;
        let end_vpn = start_vpn
            .checked_add(options.pages)
            .filter(|&end| end <= MAX_VPN)?;
        let (file, anon_shared) = match options.backing {
            Backing::Anon => (false, options.shared),
            Backing::File { .. } => (true, false),
        };
        let range = Range {
            vma: Vma {
                start_vpn,
                end_vpn,
                file,
                shmem: anon_shared,
                locked: options.locked,
                exec: options.exec,
                shared: options.shared,
                no_recency: options.advice != Advice::Normal,
                special: false,
            },
            backing: options.backing,
            huge: options.huge,
        };
        let space = &mut self[mm];
        space.ranges.push(range);
        space.next_vpn = end_vpn.next_multiple_of(PAGES_PER_PMD);
        Some(start_vpn)
    }

    /// The range that holds `vpn`.
    #[inline]
    pub fn find(&self, mm: MmId, vpn: u64) -> Option<Range> {
        self.from(mm, vpn).filter(|range| range.vma.contains(vpn))
    }

    /// The range that holds `vpn`, or the next one above it.
    #[inline]
    pub fn from(&self, mm: MmId, vpn: u64) -> Option<Range> {
        let ranges = &self[mm].ranges;
        let at = ranges.partition_point(|range| range.vma.end_vpn <= vpn);
        ranges.get(at).copied()
    }

    /// All ranges of an address space, lowest first.
    pub fn ranges(&self, mm: MmId) -> &[Range] {
        &self[mm].ranges
    }

    /// Copies the ranges of `parent` into `child` (fork).
    pub fn copy_ranges(&mut self, parent: MmId, child: MmId) {
        self[child].ranges = self[parent].ranges.clone();
        self[child].next_vpn = self[parent].next_vpn;
    }

    /// Removes a range that starts at `start_vpn` and returns it.
    pub fn unmap(&mut self, mm: MmId, start_vpn: u64) -> Option<Range> {
        let ranges = &mut self[mm].ranges;
        let at = ranges
            .iter()
            .position(|range| range.vma.start_vpn == start_vpn)?;
        Some(ranges.remove(at))
    }

    /// Ends an address space.
    pub fn end(&mut self, mm: MmId) {
        self[mm].alive = false;
        self[mm].ranges = Vec::new();
    }
}

impl std::ops::Index<MmId> for AddressSpaces {
    type Output = AddressSpace;
    #[inline]
    fn index(&self, mm: MmId) -> &AddressSpace {
        &self.spaces[mm.index()]
    }
}

impl std::ops::IndexMut<MmId> for AddressSpaces {
    #[inline]
    fn index_mut(&mut self, mm: MmId) -> &mut AddressSpace {
        &mut self.spaces[mm.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lie_apart_and_are_found() {
        let mut spaces = AddressSpaces::default();
        let mm = spaces.add(MemcgId::ROOT);
        let first = spaces.map(mm, &MapOptions::anon(10)).unwrap();
        let second = spaces.map(mm, &MapOptions::file(3, 1000)).unwrap();
        assert_eq!((first % 512, second % 512), (0, 0));
        assert!(spaces.find(mm, first + 10).is_none());
        assert_eq!(spaces.from(mm, first + 10).unwrap().vma.start_vpn, second);
        assert!(spaces.find(mm, second + 999).unwrap().vma.file);
        assert!(spaces.map(mm, &MapOptions::anon(MAX_VPN)).is_none());
    }
}
