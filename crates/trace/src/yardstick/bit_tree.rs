// SPDX-License-Identifier: Apache-2.0
//! A set of numbers below a bound that returns its largest member: a tree of bitmaps with 64
//! children per node.

/// The set. Takes a little more than one bit per possible number.
pub(super) struct BitTree {
    /// `levels[0]` has a bit per number; each level above has a bit per nonzero word of the level
    /// below.
    levels: Vec<Vec<u64>>,
}

impl BitTree {
    /// An empty set of numbers below `bound`.
    pub fn new(bound: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = bound.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels };
            }
            words = words.div_ceil(64);
        }
    }

    #[inline]
    pub fn insert(&mut self, number: usize) {
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let was_empty = *word == 0;
            *word |= 1 << (at % 64);
            if !was_empty {
                return;
            }
            at /= 64;
        }
    }

    /// Removes a number; returns false if it was not a member.
    #[inline]
    pub fn remove(&mut self, number: usize) -> bool {
        if self.levels[0][number / 64] >> (number % 64) & 1 == 0 {
            return false;
        }
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
        true
    }

    /// The largest member.
    #[inline]
    pub fn max(&self) -> Option<usize> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = level[at];
            if word == 0 {
                return None;
            }
            at = at * 64 + 63 - word.leading_zeros() as usize;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn as_a_btree_set(
            steps in proptest::collection::vec((0usize..9000, any::<bool>()), 0..400),
        ) {
            let (mut tree, mut model) = (BitTree::new(9000), BTreeSet::new());
            for (number, inserts) in steps {
                if inserts {
                    tree.insert(number);
                    model.insert(number);
                } else {
                    prop_assert_eq!(tree.remove(number), model.remove(&number));
                }
                prop_assert_eq!(tree.max(), model.last().copied());
            }
        }
    }
}
