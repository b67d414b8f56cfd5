// SPDX-License-Identifier: Apache-2.0
//! A set of page frames, used to join mappings and the page cache.

/// Frames per chunk: 4 KiB of bits cover 128 MiB of memory.
const FRAMES_PER_CHUNK: u64 = 1 << 15;

/// Frames from here on (256 TiB) are taken for garbage and ignored.
const FRAMES_MAX: u64 = 1 << 36;

type Chunk = Box<[u64; (FRAMES_PER_CHUNK / 64) as usize]>;

/// A set of page frames: one bit per frame, in chunks that exist only where bits are set.
#[derive(Debug, Default)]
pub struct FrameSet {
    chunks: Vec<Option<Chunk>>,
}

impl FrameSet {
    /// Empties the set and frees chunks that were empty already.
    pub fn clear(&mut self) {
        for slot in &mut self.chunks {
            match slot {
                Some(chunk) if chunk.iter().any(|word| *word != 0) => chunk.fill(0),
                _ => *slot = None,
            }
        }
    }

    /// Inserts a frame; returns whether it was already present.
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

    /// Inserts all frames of another set.
    pub fn add(&mut self, other: &FrameSet) {
        if self.chunks.len() < other.chunks.len() {
            self.chunks.resize_with(other.chunks.len(), || None);
        }
        for (slot, other) in self.chunks.iter_mut().zip(&other.chunks) {
            match (slot, other) {
                (Some(chunk), Some(other)) => {
                    for (word, other) in chunk.iter_mut().zip(other.iter()) {
                        *word |= other;
                    }
                }
                (slot, Some(_)) => slot.clone_from(other),
                (_, None) => {}
            }
        }
    }

    /// Whether the set contains a frame.
    pub fn contains(&self, frame: u64) -> bool {
        let chunk = self
            .chunks
            .get((frame / FRAMES_PER_CHUNK) as usize)
            .and_then(Option::as_ref);
        chunk.is_some_and(|chunk| {
            chunk[(frame % FRAMES_PER_CHUNK / 64) as usize] >> (frame % 64) & 1 == 1
        })
    }

    /// Bytes of memory used.
    pub fn memory_bytes(&self) -> usize {
        let held = self.chunks.iter().flatten().count();
        held * FRAMES_PER_CHUNK as usize / 8 + self.chunks.capacity() * size_of::<Option<Chunk>>()
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

    proptest! {
        #[test]
        fn two_sets_make_one(
            a in prop::collection::vec(0u64..1 << 20, 0..50),
            b in prop::collection::vec(0u64..1 << 20, 0..50),
        ) {
            let of = |frames: &[u64]| {
                let mut set = FrameSet::default();
                for frame in frames {
                    set.insert(*frame);
                }
                set
            };
            let mut sum = of(&a);
            sum.add(&of(&b));
            for frame in a.iter().chain(&b).flat_map(|frame| [*frame, frame ^ 1]) {
                prop_assert_eq!(sum.contains(frame), a.contains(&frame) || b.contains(&frame));
            }
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
