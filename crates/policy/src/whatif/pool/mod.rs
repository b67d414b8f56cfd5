// SPDX-License-Identifier: Apache-2.0
//! Miniature pools: what a memory of one size holds under the kernel's own order of eviction. Only
//! sampled pages are simulated.
//!
//! The pools use only what the kernel could know: that a page was used, from accessed bits that it
//! reads when it scans, but not the order of uses within a look. They are modelled on the kernel's
//! behaviour (`docs/inside/whatif.md`) in about a hundred lines each; the lab compares them with
//! the engine of `agewise-kernel`. `policy` cannot use that engine: it would have to carry folios,
//! zones and cgroups to count a thousand pages.

mod classic;
mod links;
mod multi_gen;
mod reuse;

use classic::Classic;
use multi_gen::MultiGen;

pub(super) use reuse::ReusePools;

use super::{Kernel, Slot};

/// Memories of several sizes with one order of eviction.
pub(super) trait Pools: std::fmt::Debug + Send + Sync {
    /// Uses pages in each memory, in this order. `capacities` are the numbers of pages each holds.
    /// Calls `miss` with the index of the memory and that of the use for each page that had to be
    /// brought in.
    fn use_pages(&mut self, capacities: &[u32], used: &[Slot], miss: &mut dyn FnMut(usize, usize));

    /// Removes a page that is gone.
    fn remove(&mut self, slot: Slot);
}

/// This many empty memories, for pages with numbers below `slots`.
pub(super) fn pools(kernel: Kernel, count: usize, slots: usize) -> Box<dyn Pools> {
    fn all<P: Pool + 'static>(count: usize, slots: usize) -> Box<dyn Pools> {
        Box::new((0..count).map(|_| P::new(slots)).collect::<Vec<P>>())
    }
    match kernel {
        Kernel::Classic => all::<Classic>(count, slots),
        Kernel::MultiGen => all::<MultiGen>(count, slots),
    }
}

impl<P: Pool> Pools for Vec<P> {
    fn use_pages(&mut self, capacities: &[u32], used: &[Slot], miss: &mut dyn FnMut(usize, usize)) {
        for (number, (pool, capacity)) in self.iter_mut().zip(capacities).enumerate() {
            pool.set_capacity(*capacity);
            for (at, slot) in used.iter().enumerate() {
                if !pool.access(*slot) {
                    miss(number, at);
                }
            }
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.iter_mut().for_each(|pool| pool.remove(slot));
    }
}

/// A memory of one size.
trait Pool: std::fmt::Debug + Send + Sync {
    /// An empty memory for pages with numbers below `slots`.
    fn new(slots: usize) -> Self;

    /// Sets how many pages it holds; surplus pages leave.
    fn set_capacity(&mut self, pages: u32);

    /// Uses a page. Returns `false` if it had to be brought in.
    fn access(&mut self, slot: Slot) -> bool;

    /// Removes a page that is gone.
    fn remove(&mut self, slot: Slot);

    /// Pages held.
    fn len(&self) -> u32;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn misses<P: Pool>(pages: impl Iterator<Item = Slot>, capacity: u32) -> u32 {
        let mut pool = P::new(4096);
        pool.set_capacity(capacity);
        pages.map(|page| u32::from(!pool.access(page))).sum()
    }

    fn what_fits_is_kept<P: Pool>() {
        let pages = (0..500).cycle().take(10_000);
        assert_eq!(misses::<P>(pages, 500), 500);
    }

    /// Most of a hot set that is used again and again survives the pieces of a long scan in
    /// between.
    fn a_hot_set_survives_a_scan<P: Pool>() {
        let pages = (0..60u16).flat_map(|round| {
            let scan = (0..50).map(move |at| 500 + (round * 50 + at) % 3000);
            (0..200).chain(scan).chain(0..200)
        });
        let misses = misses::<P>(pages, 600);
        assert!((3200..8000).contains(&misses), "{misses}");
    }

    #[test]
    fn both_keep_what_they_should() {
        what_fits_is_kept::<Classic>();
        what_fits_is_kept::<MultiGen>();
        a_hot_set_survives_a_scan::<Classic>();
        a_hot_set_survives_a_scan::<MultiGen>();
    }

    fn holds_together<P: Pool>(steps: &[(u16, u8)]) {
        let mut pool = P::new(64);
        pool.set_capacity(20);
        let mut capacity = 20;
        let mut held = std::collections::BTreeSet::new();
        for (page, what) in steps {
            match what {
                0 => {
                    pool.remove(*page);
                    held.remove(page);
                }
                1 => {
                    capacity = u32::from(*page) + 1;
                    pool.set_capacity(capacity);
                }
                _ => {
                    let is_hit = pool.access(*page);
                    assert!(!is_hit || held.contains(page), "a hit on what never came");
                    held.insert(*page);
                    assert!(pool.access(*page), "what was just used is held");
                }
            }
            assert!(pool.len() <= capacity && pool.len() as usize <= held.len());
        }
    }

    proptest! {
        #[test]
        fn no_pool_is_overfull(steps in prop::collection::vec((0u16..64, 0u8..20), 1..400)) {
            holds_together::<Classic>(&steps);
            holds_together::<MultiGen>(&steps);
        }
    }
}
