// SPDX-License-Identifier: Apache-2.0
//! LRU stack distances: one pass over a trace gives the misses of LRU for every size.
//!
//! Source: Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems
//! Journal, 1970.
//!
//! The last access of every page is a bit on the time line; the distance of an access is the number
//! of bits since the last access of its page. Bits are counted in blocks of a cache line, and
//! blocks in a Fenwick tree, so that a step takes some 15 additions. Memory: one bit per access, 4
//! bytes per page.

use crate::DenseTrace;

const BLOCK_BITS: usize = 512;
const BLOCK_WORDS: usize = BLOCK_BITS / 64;
const NEVER: u32 = u32::MAX;

/// The number of accesses of a trace at each LRU stack distance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackDistances {
    /// `counts[d]`: accesses that find their page at position `d` of the LRU stack; the top is 0.
    counts: Vec<u64>,
    /// First accesses of pages.
    cold: u64,
    accesses: u64,
}

impl StackDistances {
    /// Measures a trace.
    #[must_use]
    pub fn of(trace: &DenseTrace) -> Self {
        let mut timeline = Timeline::new(trace.accesses().len());
        let mut last = vec![NEVER; trace.page_count()];
        let mut counts = vec![0u64; trace.page_count()];
        let (mut cold, mut pages_seen) = (0, 0usize);
        for (now, &page) in trace.accesses().iter().enumerate() {
            let before = std::mem::replace(&mut last[page as usize], now as u32);
            timeline.set(now);
            if before == NEVER {
                cold += 1;
                pages_seen += 1;
            } else {
                let up_to_before = timeline.count_through(before as usize);
                timeline.clear(before as usize);
                // One of the bits after `before` belongs to this access.
                counts[pages_seen + 1 - up_to_before - 1] += 1;
            }
        }
        Self {
            counts,
            cold,
            accesses: trace.accesses().len() as u64,
        }
    }

    /// Distances counted elsewhere: `counts[d]` accesses at position `d`, and `cold` first
    /// accesses.
    #[must_use]
    pub(super) fn from_counts(counts: Vec<u64>, cold: u64) -> Self {
        let accesses = counts.iter().sum::<u64>() + cold;
        Self {
            counts,
            cold,
            accesses,
        }
    }

    /// Accesses by position in the LRU stack, top first; one entry per page.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// First accesses of pages.
    #[must_use]
    pub fn cold(&self) -> u64 {
        self.cold
    }

    /// All accesses.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Misses of LRU with pools of these sizes in pages (0 is treated as 1).
    #[must_use]
    pub fn misses(&self, capacities: &[usize]) -> Vec<u64> {
        let mut order: Vec<usize> = (0..capacities.len()).collect();
        order.sort_by_key(|&at| capacities[at]);
        let mut misses = vec![0; capacities.len()];
        let (mut hits, mut summed) = (0, 0);
        for at in order {
            let reach = capacities[at].max(1).min(self.counts.len());
            hits += self.counts[summed..reach.max(summed)].iter().sum::<u64>();
            summed = reach.max(summed);
            misses[at] = self.accesses - hits;
        }
        misses
    }

    /// The smallest distance that at least this share (0 to 1) of the repeated accesses does not
    /// exceed; `None` if no page is accessed twice.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<usize> {
        let reused = self.accesses - self.cold;
        let wanted = ((reused as f64 * share).ceil() as u64).clamp(1, reused.max(1));
        let mut sum = 0;
        self.counts.iter().position(|&count| {
            sum += count;
            sum >= wanted
        })
    }
}

/// Bits over time.
struct Timeline {
    words: Vec<u64>,
    /// Fenwick tree over the number of bits in each block.
    tree: Vec<u32>,
}

impl Timeline {
    fn new(length: usize) -> Self {
        let blocks = length.div_ceil(BLOCK_BITS).max(1);
        Self {
            words: vec![0; blocks * BLOCK_WORDS],
            tree: vec![0; blocks + 1],
        }
    }

    fn set(&mut self, at: usize) {
        self.words[at / 64] |= 1 << (at % 64);
        let mut node = at / BLOCK_BITS + 1;
        while node < self.tree.len() {
            self.tree[node] += 1;
            node += node & node.wrapping_neg();
        }
    }

    fn clear(&mut self, at: usize) {
        self.words[at / 64] &= !(1 << (at % 64));
        let mut node = at / BLOCK_BITS + 1;
        while node < self.tree.len() {
            self.tree[node] -= 1;
            node += node & node.wrapping_neg();
        }
    }

    /// Number of bits up to and including `at`.
    fn count_through(&self, at: usize) -> usize {
        let block = at / BLOCK_BITS;
        let mut sum = 0;
        let mut node = block;
        while node > 0 {
            sum += self.tree[node] as usize;
            node &= node - 1;
        }
        let first_word = block * BLOCK_WORDS;
        let last_word = at / 64;
        let whole: u32 = self.words[first_word..last_word]
            .iter()
            .map(|word| word.count_ones())
            .sum();
        let mask = u64::MAX >> (63 - at % 64);
        sum + whole as usize + (self.words[last_word] & mask).count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::yardstick;

    /// a b c b a: b is found below c (position 1), a below b and c (position 2).
    #[test]
    fn a_trace_by_hand() {
        let distances = StackDistances::of(&DenseTrace::from_pages(&[7, 8, 9, 8, 7]));
        assert_eq!(distances.counts(), [0, 1, 1]);
        assert_eq!(distances.cold(), 3);
        assert_eq!(distances.misses(&[3, 1, 2, 100]), [3, 5, 4, 3]);
        assert_eq!(distances.quantile(0.5), Some(1));
        assert_eq!(
            StackDistances::of(&DenseTrace::from_pages(&[1])).quantile(0.5),
            None
        );
    }

    proptest! {
        #[test]
        fn as_running_lru(pages in proptest::collection::vec(0u64..80, 0..3000),
                          sizes in proptest::collection::vec(1usize..100, 1..6)) {
            let trace = DenseTrace::from_pages(&pages);
            let lru = yardstick::by_name("lru").unwrap();
            let expected: Vec<u64> = sizes.iter().map(|&size| lru.misses(&trace, size)).collect();
            prop_assert_eq!(StackDistances::of(&trace).misses(&sizes), expected);
        }
    }
}
