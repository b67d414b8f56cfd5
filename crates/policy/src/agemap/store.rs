// SPDX-License-Identifier: Apache-2.0
//! Storage of tables and their leaves: a sorted list of headers, and leaves in chunks that grow and
//! shrink without copying, so that neither doubles unexpectedly.

use super::leaf::Leaf;
use crate::table::PageSet;

/// Leaves per chunk (32 KiB).
const LEAVES_PER_CHUNK: usize = 64;
/// How many of them are allocated at a time.
const PLACES_PER_STEP: usize = 8;

/// No leaf: all pages of the table have the header's label.
pub(super) const NO_LEAF: u32 = u32::MAX;

/// Which pages of a table belong to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// None.
    None,
    /// Every page that exists.
    All,
    /// The pages with a bit in this mask of the store.
    Some(u32),
}

/// The header of one table of the map.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    /// Page number / 512.
    pub index: u64,
    /// The place of its bytes, or [`NO_LEAF`].
    pub leaf: u32,
    /// Which of its pages are file pages.
    pub files: Files,
    /// The last look that saw it, modulo 2^32.
    pub look: u32,
    /// The label of all its 512 pages if there is no leaf.
    pub uniform: u8,
    /// All its 512 pages are present; known without reading their bytes.
    pub full: bool,
}

/// Items of one size, in chunks, addressed by number.
#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Vec<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Slab {
            chunks: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Inserts an item and returns its place.
    pub fn insert(&mut self, thing: T) -> u32 {
        if let Some(at) = self.free.pop() {
            self[at] = thing;
            return at;
        }
        if self
            .chunks
            .last()
            .is_none_or(|chunk| chunk.len() == LEAVES_PER_CHUNK)
        {
            self.chunks.push(Vec::new());
        }
        let before = (self.chunks.len() - 1) * LEAVES_PER_CHUNK;
        let chunk = self.chunks.last_mut().expect("a chunk with room");
        if chunk.len() == chunk.capacity() {
            // A small process must not pay for a whole chunk.
            chunk.reserve_exact(PLACES_PER_STEP);
        }
        chunk.push(thing);
        u32::try_from(before + chunk.len() - 1).expect("fewer leaves than an address space holds")
    }

    /// Frees a place.
    pub fn remove(&mut self, at: u32) {
        self.free.push(at);
    }

    /// Places in use.
    pub fn live(&self) -> usize {
        self.places() - self.free.len()
    }

    /// Bytes taken from the allocator.
    pub fn memory_bytes(&self) -> usize {
        self.chunks
            .iter()
            .map(|chunk| chunk.capacity() * size_of::<T>())
            .sum::<usize>()
            + self.free.capacity() * size_of::<u32>()
            + self.chunks.capacity() * size_of::<Vec<T>>()
    }

    /// Whether more than half of the places are free, and enough of them to be worth freeing.
    pub fn is_sparse(&self) -> bool {
        self.free.len() > 2 * LEAVES_PER_CHUNK && self.free.len() > self.live()
    }

    /// Moves all items to the front and frees the rest. `places` are all numbers in use; they are
    /// updated.
    pub fn compact<'a>(&mut self, places: impl Iterator<Item = &'a mut u32>) {
        let live = self.live() as u32;
        let mut holes: Vec<u32> = self.free.drain(..).filter(|at| *at < live).collect();
        for place in places.filter(|place| **place >= live) {
            let hole = holes
                .pop()
                .expect("as many holes in front as things behind");
            let (from, to) = (*place as usize, hole as usize);
            let (behind, front) = self.chunks.split_at_mut(from / LEAVES_PER_CHUNK);
            let from_chunk = &mut front[0];
            if to / LEAVES_PER_CHUNK == from / LEAVES_PER_CHUNK {
                from_chunk.swap(from % LEAVES_PER_CHUNK, to % LEAVES_PER_CHUNK);
            } else {
                std::mem::swap(
                    &mut from_chunk[from % LEAVES_PER_CHUNK],
                    &mut behind[to / LEAVES_PER_CHUNK][to % LEAVES_PER_CHUNK],
                );
            }
            *place = hole;
        }
        self.chunks
            .truncate((live as usize).div_ceil(LEAVES_PER_CHUNK));
        if let Some(last) = self.chunks.last_mut() {
            last.truncate((live as usize - 1) % LEAVES_PER_CHUNK + 1);
        }
        self.free.shrink_to_fit();
    }

    fn places(&self) -> usize {
        self.chunks.last().map_or(0, |last| {
            (self.chunks.len() - 1) * LEAVES_PER_CHUNK + last.len()
        })
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        &self.chunks[at as usize / LEAVES_PER_CHUNK][at as usize % LEAVES_PER_CHUNK]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.chunks[at as usize / LEAVES_PER_CHUNK][at as usize % LEAVES_PER_CHUNK]
    }
}

/// Headers, leaves and file masks of one map.
#[derive(Clone, Debug)]
pub(super) struct Store {
    /// Ascending by index.
    pub tables: Vec<Table>,
    pub leaves: Slab<Leaf>,
    pub masks: Slab<PageSet>,
}

impl Store {
    pub fn new() -> Self {
        Store {
            tables: Vec::new(),
            leaves: Slab::new(),
            masks: Slab::new(),
        }
    }

    /// The position of the first table at or after `index`.
    pub fn position(&self, index: u64) -> usize {
        self.tables.partition_point(|table| table.index < index)
    }

    /// The file mask of a table, one bit per page.
    #[inline]
    pub fn file_mask(&self, files: Files) -> PageSet {
        match files {
            Files::None => PageSet::NONE,
            Files::All => PageSet::ALL,
            Files::Some(at) => self.masks[at],
        }
    }

    /// Changes which pages of a table are file pages.
    pub fn set_files(&mut self, files: &mut Files, mask: &PageSet, occupied: &PageSet) {
        let of_files = *mask & *occupied;
        let wanted = if of_files.is_empty() {
            Files::None
        } else if of_files == *occupied {
            Files::All
        } else {
            match *files {
                Files::Some(at) => {
                    self.masks[at] = *mask;
                    return;
                }
                _ => Files::Some(self.masks.insert(*mask)),
            }
        };
        self.drop_mask(*files);
        *files = wanted;
    }

    fn drop_mask(&mut self, files: Files) {
        if let Files::Some(at) = files {
            self.masks.remove(at);
        }
    }

    /// Frees what a table that is gone used in addition to its header.
    pub fn release(&mut self, table: Table) {
        if table.leaf != NO_LEAF {
            self.leaves.remove(table.leaf);
        }
        self.drop_mask(table.files);
    }

    /// Merges in new headers, ascending, none of which exists yet.
    pub fn merge(&mut self, fresh: &[Table]) {
        let Some(first) = fresh.first() else { return };
        // The list must not double: that would cost a tenth of a byte per page.
        if self.tables.capacity() - self.tables.len() < fresh.len() {
            let room = fresh.len() + self.tables.len() / 16;
            self.tables.reserve_exact(room);
        }
        let mut old = self.tables.len();
        let mut new = fresh.len();
        self.tables.resize(old + new, *first);
        for slot in (0..old + new).rev() {
            if new == 0 {
                break;
            }
            if old > 0 && self.tables[old - 1].index > fresh[new - 1].index {
                old -= 1;
                self.tables[slot] = self.tables[old];
            } else {
                new -= 1;
                self.tables[slot] = fresh[new];
            }
        }
    }

    /// Frees memory after many removals.
    pub fn shrink(&mut self) {
        if self.leaves.is_sparse() {
            let in_use = self.tables.iter_mut().map(|table| &mut table.leaf);
            self.leaves.compact(in_use.filter(|leaf| **leaf != NO_LEAF));
        }
        if self.masks.is_sparse() {
            let in_use = self
                .tables
                .iter_mut()
                .filter_map(|table| match &mut table.files {
                    Files::Some(at) => Some(at),
                    _ => None,
                });
            self.masks.compact(in_use);
        }
        if self.tables.capacity() > 1024 && self.tables.capacity() / 2 > self.tables.len() {
            self.tables
                .shrink_to(self.tables.len() + self.tables.len() / 16);
        }
    }

    /// Bytes taken from the allocator.
    pub fn memory_bytes(&self) -> usize {
        self.tables.capacity() * size_of::<Table>()
            + self.leaves.memory_bytes()
            + self.masks.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_leaves_room_in_a_tenth_of_a_byte_a_page() {
        assert!(size_of::<Table>() <= 32, "{}", size_of::<Table>());
    }

    #[test]
    fn compaction_keeps_contents_and_frees_chunks() {
        let mut slab = Slab::new();
        let mut places: Vec<(u32, u32)> = (0..500).map(|i| (slab.insert(i), i)).collect();
        let mut kept = Vec::new();
        for (i, (place, value)) in places.drain(..).enumerate() {
            if i % 7 == 3 {
                kept.push((place, value));
            } else {
                slab.remove(place);
            }
        }
        assert!(slab.is_sparse());
        slab.compact(kept.iter_mut().map(|(place, _)| place));
        assert_eq!((slab.live(), slab.chunks.len()), (kept.len(), 2));
        for (place, value) in kept {
            assert_eq!(slab[place], value);
        }
    }

    #[test]
    fn merging_keeps_order() {
        let table = |index| Table {
            index,
            leaf: NO_LEAF,
            files: Files::None,
            look: 0,
            uniform: 1,
            full: true,
        };
        let mut store = Store::new();
        store.merge(&[table(5), table(9)]);
        store.merge(&[table(1), table(6), table(7), table(12)]);
        store.merge(&[]);
        let order: Vec<u64> = store.tables.iter().map(|t| t.index).collect();
        assert_eq!(order, [1, 5, 6, 7, 9, 12]);
        assert_eq!(store.position(7), 3);
        assert_eq!(store.position(8), 4);
    }
}
