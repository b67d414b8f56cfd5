// SPDX-License-Identifier: Apache-2.0
//! Swap slots: their references, the shadow of the evicted page, and whether the page is still in
//! memory (swap cache).

use agewise_kernel::folio::Pfn;
use agewise_kernel::ids::MemcgId;

/// Position of a slot on a disk, away from all files.
pub fn swap_place(slot: u32) -> u64 {
    (1 << 40) + u64::from(slot)
}

/// One slot in use (16 bytes).
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The frame while the page is in the swap cache (with [`CACHED`]); otherwise the shadow plus
    /// one, or 0 if there is none.
    word: u64,
    /// Page-table entries that refer to the slot.
    pub references: u32,
    /// The cgroup the page was charged to.
    pub memcg: MemcgId,
}

/// Distinguishes a frame from a shadow, which has 63 bits.
const CACHED: u64 = 1 << 63;

const FREE: Slot = Slot {
    word: 0,
    references: 0,
    memcg: MemcgId::NONE,
};

impl Slot {
    /// The page, while it is in the swap cache.
    #[inline]
    pub fn cached(&self) -> Pfn {
        if self.word & CACHED != 0 {
            Pfn(self.word as u32)
        } else {
            Pfn::NONE
        }
    }

    /// Puts the page into the swap cache; returns the shadow it replaces.
    #[inline]
    pub fn enter_cache(&mut self, pfn: Pfn) -> Option<u64> {
        debug_assert!(self.word & CACHED == 0);
        std::mem::replace(&mut self.word, CACHED | u64::from(pfn.0)).checked_sub(1)
    }

    /// Removes the page from the swap cache; reclaim may leave a shadow.
    #[inline]
    pub fn leave_cache(&mut self, shadow: Option<u64>) {
        debug_assert!(
            shadow.is_none_or(|shadow| shadow < CACHED - 1),
            "a shadow has 63 bits"
        );
        self.word = shadow.map_or(0, |shadow| shadow + 1);
    }
}

/// The swap area.
#[derive(Clone, Debug, Default)]
pub struct Swap {
    slots: Vec<Slot>,
    /// One bit per slot, set if free.
    free_bits: Vec<u64>,
    capacity: u32,
    used: u32,
    cursor: usize,
}

impl Swap {
    /// An area of `capacity` pages. The simulator needs memory only for slots that have been used.
    pub fn new(capacity: u32) -> Swap {
        Swap {
            capacity,
            ..Swap::default()
        }
    }

    /// Size of the area in pages.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Slots in use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Slots free.
    pub fn free(&self) -> u32 {
        self.capacity - self.used
    }

    /// Allocates the next free slot after the last one taken, so that pages evicted together lie
    /// together. None if the area is full.
    pub fn allocate(&mut self, pfn: Pfn, memcg: MemcgId) -> Option<u32> {
        if self.used == self.capacity {
            return None;
        }
        let slot = match self.next_free() {
            Some(slot) => slot,
            None => self.grow()?,
        };
        self.free_bits[slot / 64] &= !(1 << (slot % 64));
        self.cursor = slot / 64;
        self.used += 1;
        self.slots[slot] = Slot {
            word: CACHED | u64::from(pfn.0),
            memcg,
            references: 0,
        };
        u32::try_from(slot).ok()
    }

    /// Allocates `pages` consecutive slots that start at a multiple of their number (for a 2 MiB
    /// page: a free cluster of the kernel's). None if the area has no such run.
    pub fn allocate_run(&mut self, pfn: Pfn, memcg: MemcgId, pages: u32) -> Option<u32> {
        let words = (pages / 64).max(1) as usize;
        while self.find_run(words).is_none() {
            self.grow()?;
        }
        let first = self.find_run(words)? * words * 64;
        for slot in first..first + pages as usize {
            self.free_bits[slot / 64] &= !(1 << (slot % 64));
            self.slots[slot] = Slot {
                word: CACHED | u64::from(pfn.0),
                memcg,
                references: 0,
            };
        }
        self.used += pages;
        u32::try_from(first).ok()
    }

    /// First run of `words` words of free slots, in runs.
    fn find_run(&self, words: usize) -> Option<usize> {
        self.free_bits
            .chunks_exact(words)
            .position(|run| run.iter().all(|&bits| bits == u64::MAX))
    }

    fn next_free(&self) -> Option<usize> {
        if self.used as usize == self.slots.len() {
            return None;
        }
        let words = self.free_bits.len();
        (0..words)
            .map(|step| (self.cursor + step) % words)
            .find(|&word| self.free_bits[word] != 0)
            .map(|word| word * 64 + self.free_bits[word].trailing_zeros() as usize)
    }

    fn grow(&mut self) -> Option<usize> {
        let first = self.slots.len();
        let more = (self.capacity as usize - first).min(first.max(64));
        if more == 0 {
            return None;
        }
        self.slots.resize(first + more, FREE);
        self.free_bits.resize(self.slots.len().div_ceil(64), 0);
        for slot in first..first + more {
            self.free_bits[slot / 64] |= 1 << (slot % 64);
        }
        Some(first)
    }

    /// Frees a slot once neither a page-table entry nor the swap cache needs it. Returns the cgroup
    /// whose swap usage shrinks.
    pub fn release_if_unused(&mut self, slot: u32) -> Option<MemcgId> {
        let entry = self.slots[slot as usize];
        if entry.references != 0 || entry.cached().is_some() {
            return None;
        }
        let slot = slot as usize;
        debug_assert!(self.free_bits[slot / 64] & (1 << (slot % 64)) == 0);
        self.slots[slot] = FREE;
        self.free_bits[slot / 64] |= 1 << (slot % 64);
        self.used -= 1;
        Some(entry.memcg)
    }

    /// Bytes the simulator needs for slots.
    pub fn footprint_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.free_bits.capacity() * 8
    }
}

impl std::ops::Index<u32> for Swap {
    type Output = Slot;
    #[inline]
    fn index(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }
}

impl std::ops::IndexMut<u32> for Swap {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::address_space::MapOptions;
    use super::super::device::DeviceKind;
    use super::super::{Limits, Machine, MachineConfig, Policy, SwapConfig};
    use super::*;

    /// Pages read back give up their slots, from half of the group's limit on.
    #[test]
    fn a_group_near_its_swap_limit_is_not_killed() {
        for policy in ["classic:6.12", "classic:7.2"] {
            let mut machine = Machine::new(MachineConfig {
                policy: Policy::parse(policy).unwrap(),
                swap: Some(SwapConfig::new(DeviceKind::Nvme, 1 << 14)),
                ..MachineConfig::new(1 << 14)
            });
            let limits = Limits {
                max_pages: 1000,
                swap_max_pages: 1000,
                ..Limits::default()
            };
            let memcg = machine.add_memcg(MemcgId::ROOT, "t", limits);
            let process = machine.add_process(memcg);
            let first = machine.map(process, &MapOptions::anon(1300)).unwrap();
            for vpn in first..first + 1300 {
                machine.access(process, vpn, true);
            }
            let mut random = 1_u32;
            for _ in 0..20_000 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                machine.access(process, first + u64::from(random >> 8) % 1300, false);
            }
            let group = &machine.sys.memcgs[memcg];
            assert_eq!(group.events.oom_kill, 0, "{policy}");
            assert!(group.swap_pages <= 500, "{policy}: {}", group.swap_pages);
            assert_eq!(machine.check(), Ok(()), "{policy}");
        }
    }

    #[test]
    fn an_empty_area_gives_nothing() {
        assert_eq!(Swap::new(0).allocate(Pfn(1), MemcgId::ROOT), None);
    }

    #[test]
    fn a_huge_page_needs_a_free_cluster() {
        let mut swap = Swap::new(1600);
        assert_eq!(swap.allocate(Pfn(1), MemcgId::ROOT), Some(0));
        let mut run = || swap.allocate_run(Pfn(1), MemcgId::ROOT, 512);
        assert_eq!([run(), run(), run()], [Some(512), Some(1024), None]);
        assert_eq!(swap.free(), 1600 - 1 - 1024);
    }

    proptest! {
        /// No slot is given out twice or lost, and a full area gives out none.
        #[test]
        fn slots_are_given_once(
            steps in prop::collection::vec((any::<bool>(), 0usize..80), 0..300),
        ) {
            let mut swap = Swap::new(70);
            let mut held: Vec<u32> = Vec::new();
            for (take, which) in steps {
                if take {
                    match swap.allocate(Pfn(1), MemcgId::ROOT) {
                        Some(slot) => {
                            prop_assert!(!held.contains(&slot) && slot < 70);
                            held.push(slot);
                        }
                        None => prop_assert_eq!(held.len(), 70),
                    }
                } else if !held.is_empty() {
                    let slot = held.swap_remove(which % held.len());
                    swap[slot].references = 1;
                    prop_assert_eq!(swap.release_if_unused(slot), None);
                    swap[slot].references = 0;
                    swap[slot].leave_cache(None);
                    prop_assert_eq!(swap.release_if_unused(slot), Some(MemcgId::ROOT));
                }
                prop_assert_eq!(swap.used() as usize, held.len());
            }
        }
    }
}
