// SPDX-License-Identifier: Apache-2.0
//! Pages that several processes map: each counts once, and is young if any mapping is young.
//!
//! Frame numbers are compared only where pages can be shared at all: mappings of a file that two
//! processes map, and private memory at the same addresses in two processes (a fork).

use std::collections::HashMap;

use agewise_policy::table::PageSet;

use crate::access::{AddressRange, TableSight};
use crate::vma::Vma;

/// Frames in one chunk: 4 KiB of bits for 128 MiB of memory.
const FRAMES_PER_CHUNK: u64 = 1 << 15;

/// Frames beyond this (256 TiB) are not believed.
const FRAMES_MAX: u64 = 1 << 36;

type Chunk = Box<[u64; (FRAMES_PER_CHUNK / 64) as usize]>;

/// A set of page frames, a bit a frame where any are set.
#[derive(Debug, Default)]
pub(super) struct FrameSet {
    chunks: Vec<Option<Chunk>>,
}

impl FrameSet {
    /// Empties it; chunks that were not needed since the last time are freed.
    pub fn clear(&mut self) {
        for slot in &mut self.chunks {
            match slot {
                Some(chunk) if chunk.iter().any(|word| *word != 0) => chunk.fill(0),
                _ => *slot = None,
            }
        }
    }

    /// Puts a frame in; whether it was there already.
    pub fn insert(&mut self, frame: u64) -> bool {
        if frame >= FRAMES_MAX {
            return false;
        }
        let at = (frame / FRAMES_PER_CHUNK) as usize;
        if self.chunks.len() <= at {
            self.chunks.resize_with(at + 1, || None);
        }
        let chunk =
            self.chunks[at].get_or_insert_with(|| Box::new([0; (FRAMES_PER_CHUNK / 64) as usize]));
        let word = &mut chunk[(frame % FRAMES_PER_CHUNK / 64) as usize];
        let bit = 1 << (frame % 64);
        let was = *word & bit != 0;
        *word |= bit;
        was
    }

    /// Whether a frame is in.
    pub fn contains(&self, frame: u64) -> bool {
        let chunk = self
            .chunks
            .get((frame / FRAMES_PER_CHUNK) as usize)
            .and_then(Option::as_ref);
        chunk.is_some_and(|chunk| {
            chunk[(frame % FRAMES_PER_CHUNK / 64) as usize] >> (frame % 64) & 1 == 1
        })
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        let held = self.chunks.iter().flatten().count();
        held * FRAMES_PER_CHUNK as usize / 8 + self.chunks.capacity() * size_of::<Option<Chunk>>()
    }
}

/// Calls `visit` with page and frame of every page of `pages` (bits of the sight) that has one.
pub(super) fn frames(sight: &TableSight<'_>, pages: &PageSet, mut visit: impl FnMut(usize, u64)) {
    for page in pages.pages() {
        if let Some(frame) = sight.pfn(page) {
            visit(page, frame);
        }
    }
}

/// Finds the mappings whose pages more than one process may map.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// The process that maps a file, or `MANY`.
    files: HashMap<(u64, u64), u32>,
    /// Private memory: range and process.
    private: Vec<(AddressRange, u32)>,
    /// Parts of it that two processes have, ascending, disjoint.
    overlaps: Vec<AddressRange>,
}

const MANY: u32 = u32::MAX;

impl Sharing {
    /// Forgets all processes.
    pub fn clear(&mut self) {
        self.files.clear();
        self.private.clear();
        self.overlaps.clear();
    }

    /// Adds the mappings of a process (any number below `u32::MAX` names it).
    pub fn add<'v>(&mut self, process: u32, vmas: impl Iterator<Item = &'v Vma>) {
        for vma in vmas {
            if vma.inode != 0 {
                let of = self.files.entry((vma.device, vma.inode)).or_insert(process);
                if *of != process {
                    *of = MANY;
                }
            } else {
                self.private.push((vma.range, process));
            }
        }
    }

    /// All processes are in.
    pub fn finish(&mut self) {
        self.private
            .sort_unstable_by_key(|(range, process)| (range.start, *process));
        // The range that reaches furthest so far, and its process.
        let mut reach: Option<(u64, u32)> = None;
        for (range, process) in &self.private {
            if let Some((end, of)) = reach
                && range.start < end
                && of != *process
            {
                let overlap = AddressRange {
                    start: range.start,
                    end: range.end.min(end),
                };
                match self.overlaps.last_mut() {
                    Some(last) if last.end >= overlap.start => {
                        last.end = last.end.max(overlap.end);
                    }
                    _ => self.overlaps.push(overlap),
                }
            }
            if reach.is_none_or(|(end, _)| range.end > end) {
                reach = Some((range.end, *process));
            }
        }
    }

    /// Whether pages of this mapping may be mapped by another process as well.
    pub fn may_be_shared(&self, vma: &Vma) -> bool {
        if vma.inode != 0 {
            return self.files.get(&(vma.device, vma.inode)) == Some(&MANY);
        }
        let at = self
            .overlaps
            .partition_point(|overlap| overlap.end <= vma.range.start);
        self.overlaps
            .get(at)
            .is_some_and(|overlap| overlap.start < vma.range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_of_frames_is_a_set(frames in prop::collection::vec(0u64..1 << 20, 0..200)) {
            let mut set = FrameSet::default();
            for _ in 0..2 {
                let mut model = HashSet::new();
                for frame in &frames {
                    prop_assert_eq!(set.insert(*frame), !model.insert(*frame));
                }
                for frame in frames.iter().flat_map(|frame| [*frame, frame ^ 1, frame + 64]) {
                    prop_assert_eq!(set.contains(frame), model.contains(&frame));
                }
                set.clear();
                prop_assert!(frames.iter().all(|frame| !set.contains(*frame)));
            }
            set.clear();
            prop_assert!(set.memory_bytes() <= 32 * 8 * 2, "chunks not needed are freed");
        }
    }

    #[test]
    fn nonsense_frames_take_no_memory() {
        let mut set = FrameSet::default();
        assert!(!set.insert(u64::MAX) && !set.insert(u64::MAX));
        assert!(!set.contains(u64::MAX));
        assert_eq!(set.memory_bytes(), 0);
    }
}
