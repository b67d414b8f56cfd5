// SPDX-License-Identifier: Apache-2.0
//! Memories of several sizes held by agewise's own order ([`crate::reuse`]), as under a budget.
//!
//! What is known about a page does not depend on the size of memory: one model and one history per
//! page serve all sizes. After each look there is one order, and each size keeps what fits.

use super::super::Slot;
use crate::reuse::{PageHistory, ReuseModel, ReuseParams, Value};

/// Pages per word of bits.
const WORD: usize = u64::BITS as usize;

/// Sets of pages, and what was observed about them.
#[derive(Debug)]
pub(in crate::whatif) struct ReusePools {
    model: ReuseModel,
    histories: Vec<PageHistory>,
    /// Pages used in the look under way.
    touched: Vec<u64>,
    memories: Vec<Memory>,
    /// Pages by value, least first; kept to reuse the allocation.
    order: Vec<(Value, Slot)>,
}

/// The contents of a memory of one size.
#[derive(Clone, Debug)]
struct Memory {
    resident: Vec<u64>,
    pages: u32,
}

impl Memory {
    fn has(&self, slot: Slot) -> bool {
        self.resident[usize::from(slot) / WORD] >> (usize::from(slot) % WORD) & 1 == 1
    }

    /// Adds a page; returns whether it was missing before.
    fn take_in(&mut self, slot: Slot) -> bool {
        let is_new = !self.has(slot);
        self.resident[usize::from(slot) / WORD] |= 1 << (usize::from(slot) % WORD);
        self.pages += u32::from(is_new);
        is_new
    }

    fn let_go(&mut self, slot: Slot) {
        self.pages -= u32::from(self.has(slot));
        self.resident[usize::from(slot) / WORD] &= !(1 << (usize::from(slot) % WORD));
    }
}

impl ReusePools {
    /// This many empty memories, for pages with numbers below `slots`.
    pub fn new(count: usize, slots: usize) -> Self {
        let words = slots.div_ceil(WORD);
        let memory = Memory {
            resident: vec![0; words],
            pages: 0,
        };
        ReusePools {
            model: ReuseModel::new(ReuseParams::default()),
            histories: vec![PageHistory::default(); slots],
            touched: vec![0; words],
            memories: vec![memory; count],
            order: Vec::new(),
        }
    }

    /// Takes in a look: `come` are pages that were unknown before and are not used, `used` are
    /// those that are. Calls `miss` as [`Pools::use_pages`](super::Pools::use_pages) does.
    pub fn look(
        &mut self,
        capacities: &[u32],
        come: &[Slot],
        used: &[Slot],
        miss: &mut dyn FnMut(usize, usize),
    ) {
        for (number, memory) in self.memories.iter_mut().enumerate() {
            for slot in come {
                memory.take_in(*slot);
            }
            for (at, slot) in used.iter().enumerate() {
                if memory.take_in(*slot) {
                    miss(number, at);
                }
            }
        }
        self.learn(used);
        self.put_in_order();
        for (memory, capacity) in self.memories.iter_mut().zip(capacities) {
            let mut order = self.order.iter();
            while memory.pages > *capacity
                && let Some((_, slot)) = order.next()
            {
                memory.let_go(*slot);
            }
        }
    }

    fn learn(&mut self, used: &[Slot]) {
        self.touched.fill(0);
        for slot in used {
            self.touched[usize::from(*slot) / WORD] |= 1 << (usize::from(*slot) % WORD);
        }
        let mut look = self.model.look();
        look.shift(&mut self.histories);
        let words = self.histories.chunks_mut(WORD).zip(&self.touched);
        for (number, (pages, touched)) in (0..).zip(words) {
            look.word(number, pages, *touched);
        }
        look.finish();
    }

    /// Sorts all pages that some memory holds; each memory holds a subset of what the largest
    /// holds.
    fn put_in_order(&mut self) {
        let ReusePools {
            model,
            histories,
            memories,
            order,
            ..
        } = self;
        let held = |slot: Slot| memories.iter().any(|memory| memory.has(slot));
        let slots = (0..histories.len() as u32).map(|slot| slot as Slot);
        order.clear();
        order.extend(
            slots
                .filter(|slot| held(*slot))
                .map(|slot| (model.value_untouched(histories[usize::from(slot)]), slot)),
        );
        order.sort_unstable();
    }

    /// Removes a page that is gone.
    pub fn remove(&mut self, slot: Slot) {
        self.histories[usize::from(slot)] = PageHistory::default();
        self.memories
            .iter_mut()
            .for_each(|memory| memory.let_go(slot));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Part of a loop larger than memory stays, where LRU keeps nothing.
    #[test]
    fn of_a_loop_a_part_stays() {
        let mut pools = ReusePools::new(1, 1024);
        let (mut misses, mut uses) = (0, 0);
        for look in 0..400u32 {
            let used: Vec<Slot> = (0..50)
                .map(|at| ((look * 50 + at) % 1000) as Slot)
                .collect();
            let mut count = 0;
            pools.look(&[500], &[], &used, &mut |_, _| count += 1);
            // The first round does not count: everything is new.
            if look >= 100 {
                (misses, uses) = (misses + count, uses + used.len());
            }
        }
        let ratio = f64::from(misses) / uses as f64;
        assert!((0.45..0.65).contains(&ratio), "{ratio}");
    }

    proptest! {
        /// Compared with plain sets: no memory is overfull, what it holds was brought in and is not
        /// missed, and what is gone is missed.
        #[test]
        fn what_is_held_is_not_missed(
            steps in prop::collection::vec(
                (prop::collection::btree_set(0u16..80, 0..20), 1u32..90, 0u16..80), 1..40),
        ) {
            let mut pools = ReusePools::new(2, 80);
            for (used, capacity, gone) in steps {
                let used: Vec<Slot> = used.into_iter().collect();
                let before = pools.memories.clone();
                let mut missed = vec![Vec::new(); 2];
                pools.look(&[capacity, capacity / 2], &[], &used, &mut |number, at| {
                    missed[number].push(used[at]);
                });
                for (number, memory) in before.iter().enumerate() {
                    let wanted: Vec<Slot> =
                        used.iter().copied().filter(|slot| !memory.has(*slot)).collect();
                    prop_assert_eq!(&missed[number], &wanted);
                }
                pools.remove(gone);
                for (memory, capacity) in pools.memories.iter().zip([capacity, capacity / 2]) {
                    let held = (0..80).filter(|slot| memory.has(*slot)).count();
                    prop_assert_eq!(held, memory.pages as usize);
                    prop_assert!(memory.pages <= capacity && !memory.has(gone));
                }
            }
        }
    }
}
