// SPDX-License-Identifier: Apache-2.0
//! Four-level page tables of all address spaces, in arenas, with accessed and dirty bits.
//!
//! A PMD entry and a leaf have the same format ([`Pte`]); bit 7 (`PS` on x86-64) distinguishes a 2
//! MiB leaf from an entry that points to a table. A small direct-mapped cache of tables, the
//! paging-structure cache of the simulated MMU, makes a hit cost two loads.

use agewise_kernel::ids::MmId;
use agewise_kernel::page_table::{PAGES_PER_PMD, PAGES_PER_PUD, Pmd, Pte, PteTable};

/// Entries of the paging-structure cache. 512 tables span 1 GiB of recently used memory.
const CACHE_SLOTS: usize = 512;

/// One past the highest page number of an address space (47 bits of bytes).
pub const MAX_VPN: u64 = 1 << 35;

const HUGE: u64 = 1 << 7;
const TABLE_SHIFT: u32 = 12;
const NO_TABLE: u32 = 0;
const PRESENT: u64 = 1;

/// Outcome of an access by the simulated MMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmuOutcome {
    /// The page is mapped; its bits are now set.
    Hit,
    /// A write to a leaf that is shared copy-on-write.
    WriteProtected,
    /// Nothing is mapped.
    Fault,
}

#[derive(Clone, Copy)]
struct CacheSlot {
    tag: u64,
    pmd: u32,
    table: u32,
}

impl CacheSlot {
    const EMPTY: CacheSlot = CacheSlot {
        tag: u64::MAX,
        pmd: 0,
        table: 0,
    };
}

/// Page tables by address space; the arenas are shared.
#[expect(
    clippy::vec_box,
    reason = "an arena that grows must not copy its tables"
)]
pub struct PageTables {
    /// Top-level table of each mm; 0 if it has none.
    roots: Vec<u32>,
    /// PGD and PUD tables: indices of the tables below. Entry 0 is never used.
    upper: Vec<Box<[u32; 512]>>,
    /// PMD tables. Entry 0 is never used.
    pmds: Vec<Box<[Pte; 512]>>,
    /// Last-level tables. Entry 0 is never used.
    tables: Vec<Box<PteTable>>,
    free_upper: Vec<u32>,
    free_pmds: Vec<u32>,
    free_tables: Vec<u32>,
    cache: Box<[CacheSlot; CACHE_SLOTS]>,
}

/// Table pages that an operation had to create.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewTables {
    /// PUD and PMD tables.
    pub upper: u32,
    /// Last-level tables.
    pub last: u32,
}

impl Default for PageTables {
    fn default() -> Self {
        PageTables {
            roots: Vec::new(),
            upper: vec![Box::new([NO_TABLE; 512])],
            pmds: vec![Box::new([Pte::default(); 512])],
            tables: vec![Box::new([Pte::default(); PAGES_PER_PMD as usize])],
            free_upper: Vec::new(),
            free_pmds: Vec::new(),
            free_tables: Vec::new(),
            cache: Box::new([CacheSlot::EMPTY; CACHE_SLOTS]),
        }
    }
}

#[inline]
fn tag_of(mm: MmId, vpn: u64) -> u64 {
    (u64::from(mm.0) << 32) | (vpn / PAGES_PER_PMD)
}

#[inline]
fn slot_of(tag: u64) -> usize {
    // Neighbouring tables use neighbouring slots; address spaces are spread.
    ((tag ^ (tag >> 32).wrapping_mul(0x9E37_79B9)) as usize) % CACHE_SLOTS
}

#[inline]
fn is_huge(entry: Pte) -> bool {
    entry.present() && entry.0 & HUGE != 0
}

#[inline]
fn table_index(entry: Pte) -> u32 {
    (entry.0 >> TABLE_SHIFT) as u32
}

#[inline]
fn make_entry(table: u32) -> Pte {
    Pte((u64::from(table) << TABLE_SHIFT) | PRESENT)
}

impl PageTables {
    /// Adds an address space; `mm` must be the next number.
    pub fn add_mm(&mut self, mm: MmId) {
        debug_assert_eq!(self.roots.len(), mm.index());
        self.roots.push(NO_TABLE);
    }

    /// Simulates an access by the MMU: sets the accessed bits of the PMD entry and the leaf, and
    /// the dirty bit on a write.
    #[inline]
    pub fn access(&mut self, mm: MmId, vpn: u64, write: bool) -> MmuOutcome {
        let tag = tag_of(mm, vpn);
        let slot = self.cache[slot_of(tag)];
        if slot.tag != tag {
            return self.access_slow(mm, vpn, write);
        }
        let pte = &mut self.tables[slot.table as usize][(vpn % PAGES_PER_PMD) as usize];
        if !pte.present() {
            return MmuOutcome::Fault;
        }
        if write && pte.0 & COPY_ON_WRITE != 0 {
            return MmuOutcome::WriteProtected;
        }
        pte.touch(write);
        let pmd = &mut self.pmds[(slot.pmd >> 9) as usize][(slot.pmd & 511) as usize];
        if !pmd.young() {
            pmd.touch(false);
        }
        MmuOutcome::Hit
    }

    #[cold]
    fn access_slow(&mut self, mm: MmId, vpn: u64, write: bool) -> MmuOutcome {
        let Some((table, index)) = self.find_pmd(mm, vpn) else {
            return MmuOutcome::Fault;
        };
        let pmd = &mut self.pmds[table as usize][index];
        if !pmd.present() {
            return MmuOutcome::Fault;
        }
        if is_huge(*pmd) {
            if write && pmd.0 & COPY_ON_WRITE != 0 {
                return MmuOutcome::WriteProtected;
            }
            pmd.touch(write);
            return MmuOutcome::Hit;
        }
        let tag = tag_of(mm, vpn);
        self.cache[slot_of(tag)] = CacheSlot {
            tag,
            pmd: (table << 9) | index as u32,
            table: table_index(*pmd),
        };
        self.access(mm, vpn, write)
    }

    fn find_pmd(&self, mm: MmId, vpn: u64) -> Option<(u32, usize)> {
        let mut node = self.roots[mm.index()];
        for shift in [27, 18] {
            if node == NO_TABLE {
                return None;
            }
            node = self.upper[node as usize][((vpn >> shift) & 511) as usize];
        }
        (node != NO_TABLE).then_some((node, ((vpn >> 9) & 511) as usize))
    }

    /// The table or leaf that maps the 2 MiB range of `vpn`.
    pub fn pmd(&mut self, mm: MmId, vpn: u64) -> Pmd<'_> {
        let Some((table, index)) = self.find_pmd(mm, vpn) else {
            return Pmd::None;
        };
        let entry = self.pmds[table as usize][index];
        if !entry.present() {
            Pmd::None
        } else if is_huge(entry) {
            Pmd::Leaf(&mut self.pmds[table as usize][index])
        } else {
            Pmd::Table(&mut self.tables[table_index(entry) as usize])
        }
    }

    /// Accessed bit of the entry that points to the last-level table of `vpn`.
    pub fn pmd_young(&self, mm: MmId, vpn: u64) -> bool {
        self.find_pmd(mm, vpn)
            .is_some_and(|(table, index)| self.pmds[table as usize][index].young())
    }

    /// Clears the accessed bit of the entry that points to the last-level table of `vpn`.
    pub fn clear_pmd_young(&mut self, mm: MmId, vpn: u64) {
        if let Some((table, index)) = self.find_pmd(mm, vpn) {
            self.pmds[table as usize][index].test_clear_young();
        }
    }

    /// First page at or above `vpn` (2 MiB-aligned if above) and below `end_vpn` whose 2 MiB range
    /// has a table or a leaf.
    pub fn next_mapped(&self, mm: MmId, vpn: u64, end_vpn: u64) -> Option<u64> {
        let root = self.roots[mm.index()];
        let mut at = vpn;
        while root != NO_TABLE && at < end_vpn {
            let pud = self.upper[root as usize][((at >> 27) & 511) as usize];
            if pud == NO_TABLE {
                at = ((at >> 27) + 1) << 27;
                continue;
            }
            let pmd = self.upper[pud as usize][((at >> 18) & 511) as usize];
            if pmd == NO_TABLE {
                at = ((at >> 18) + 1) << 18;
                continue;
            }
            let pud_end = (at / PAGES_PER_PUD + 1) * PAGES_PER_PUD;
            while at < pud_end.min(end_vpn) {
                if self.pmds[pmd as usize][((at >> 9) & 511) as usize].present() {
                    return Some(at);
                }
                at = (at / PAGES_PER_PMD + 1) * PAGES_PER_PMD;
            }
        }
        None
    }

    /// The leaf of `vpn`, if a last-level table covers it.
    pub fn leaf(&self, mm: MmId, vpn: u64) -> Option<Pte> {
        let (table, index) = self.find_pmd(mm, vpn)?;
        let entry = self.pmds[table as usize][index];
        (entry.present() && !is_huge(entry))
            .then(|| self.tables[table_index(entry) as usize][(vpn % PAGES_PER_PMD) as usize])
    }

    /// The leaf of `vpn`, mutable.
    pub fn leaf_mut(&mut self, mm: MmId, vpn: u64) -> Option<&mut Pte> {
        match self.pmd(mm, vpn) {
            Pmd::Table(table) => Some(&mut table[(vpn % PAGES_PER_PMD) as usize]),
            Pmd::None | Pmd::Leaf(_) => None,
        }
    }

    /// The 2 MiB leaf over `vpn`, if there is one.
    pub fn huge_leaf(&self, mm: MmId, vpn: u64) -> Option<Pte> {
        let (table, index) = self.find_pmd(mm, vpn)?;
        Some(self.pmds[table as usize][index]).filter(|&entry| is_huge(entry))
    }

    /// The tables [`PageTables::make_leaf`] would have to create for `vpn`.
    pub fn missing(&self, mm: MmId, vpn: u64) -> NewTables {
        let root = self.roots[mm.index()];
        let pud = if root == NO_TABLE {
            NO_TABLE
        } else {
            self.upper[root as usize][((vpn >> 27) & 511) as usize]
        };
        if pud == NO_TABLE {
            return NewTables { upper: 2, last: 1 };
        }
        let pmd = self.upper[pud as usize][((vpn >> 18) & 511) as usize];
        if pmd == NO_TABLE {
            return NewTables { upper: 1, last: 1 };
        }
        let last = !self.pmds[pmd as usize][((vpn >> 9) & 511) as usize].present();
        NewTables {
            upper: 0,
            last: last.into(),
        }
    }

    /// Creates the tables above the leaf of `vpn` and returns it. No 2 MiB leaf may map the range.
    pub fn make_leaf(&mut self, mm: MmId, vpn: u64) -> &mut Pte {
        let (pmd, index) = self.make_pmd(mm, vpn);
        if !self.pmds[pmd as usize][index].present() {
            let table = self.new_table();
            self.pmds[pmd as usize][index] = make_entry(table);
        }
        let entry = self.pmds[pmd as usize][index];
        debug_assert!(!is_huge(entry), "a 2 MiB leaf maps the range");
        self.pmds[pmd as usize][index].touch(false);
        &mut self.tables[table_index(entry) as usize][(vpn % PAGES_PER_PMD) as usize]
    }

    /// Maps the 2 MiB range of `vpn` with one leaf. Nothing may be mapped there.
    pub fn map_huge(&mut self, mm: MmId, vpn: u64, leaf: Pte) {
        let (pmd, index) = self.make_pmd(mm, vpn);
        debug_assert!(!self.pmds[pmd as usize][index].present());
        self.pmds[pmd as usize][index] = Pte(leaf.0 | HUGE);
    }

    /// Removes a 2 MiB leaf and returns it.
    pub fn unmap_huge(&mut self, mm: MmId, vpn: u64) -> Option<Pte> {
        let (pmd, index) = self.find_pmd(mm, vpn)?;
        let entry = &mut self.pmds[pmd as usize][index];
        is_huge(*entry).then(|| std::mem::take(entry))
    }

    /// Creates the tables above the last level; returns the PMD table and the index in it.
    pub fn make_pmd(&mut self, mm: MmId, vpn: u64) -> (u32, usize) {
        if self.roots[mm.index()] == NO_TABLE {
            self.roots[mm.index()] = self.new_upper();
        }
        let root = self.roots[mm.index()];
        let pud_index = ((vpn >> 27) & 511) as usize;
        if self.upper[root as usize][pud_index] == NO_TABLE {
            let table = self.new_upper();
            self.upper[root as usize][pud_index] = table;
        }
        let pud = self.upper[root as usize][pud_index];
        let pmd_index = ((vpn >> 18) & 511) as usize;
        if self.upper[pud as usize][pmd_index] == NO_TABLE {
            let table = self.new_pmd();
            self.upper[pud as usize][pmd_index] = table;
        }
        let pmd = self.upper[pud as usize][pmd_index];
        (pmd, ((vpn >> 9) & 511) as usize)
    }

    fn new_upper(&mut self) -> u32 {
        self.free_upper.pop().unwrap_or_else(|| {
            self.upper.push(Box::new([NO_TABLE; 512]));
            self.upper.len() as u32 - 1
        })
    }

    fn new_pmd(&mut self) -> u32 {
        self.free_pmds.pop().unwrap_or_else(|| {
            self.pmds.push(Box::new([Pte::default(); 512]));
            self.pmds.len() as u32 - 1
        })
    }

    fn new_table(&mut self) -> u32 {
        self.free_tables.pop().unwrap_or_else(|| {
            self.tables
                .push(Box::new([Pte::default(); PAGES_PER_PMD as usize]));
            self.tables.len() as u32 - 1
        })
    }

    /// Every mapped 2 MiB range of an address space, in order.
    pub fn ranges(&self, mm: MmId) -> Vec<u64> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(vpn) = self.next_mapped(mm, at, MAX_VPN) {
            let start = vpn / PAGES_PER_PMD * PAGES_PER_PMD;
            found.push(start);
            at = start + PAGES_PER_PMD;
        }
        found
    }

    /// Frees all tables of an address space. The pages and slots its leaves refer to must have been
    /// released before.
    pub fn free_mm(&mut self, mm: MmId) {
        let root = std::mem::replace(&mut self.roots[mm.index()], NO_TABLE);
        if root == NO_TABLE {
            return;
        }
        for pud in std::mem::replace(&mut *self.upper[root as usize], [NO_TABLE; 512]) {
            if pud == NO_TABLE {
                continue;
            }
            for pmd in std::mem::replace(&mut *self.upper[pud as usize], [NO_TABLE; 512]) {
                if pmd != NO_TABLE {
                    self.free_pmd(pmd);
                }
            }
            self.free_upper.push(pud);
        }
        self.free_upper.push(root);
        self.cache.fill(CacheSlot::EMPTY);
    }

    fn free_pmd(&mut self, pmd: u32) {
        for entry in std::mem::replace(&mut *self.pmds[pmd as usize], [Pte::default(); 512]) {
            if entry.present() && !is_huge(entry) {
                self.tables[table_index(entry) as usize].fill(Pte::default());
                self.free_tables.push(table_index(entry));
            }
        }
        self.free_pmds.push(pmd);
    }

    /// Last-level tables in use in all address spaces.
    #[cfg(test)]
    pub fn last_level_tables(&self) -> usize {
        self.tables.len() - 1 - self.free_tables.len()
    }

    /// Bytes the simulator needs for tables.
    pub fn footprint_bytes(&self) -> usize {
        (self.tables.len() + self.pmds.len()) * 4096 + self.upper.len() * 2048
    }
}

/// Set in a present leaf that is shared copy-on-write or maps the zero page: a write faults.
pub const COPY_ON_WRITE: u64 = 1 << 10;

const SWAPPED: u64 = 1 << 1;

/// A leaf that refers to a swap slot.
pub fn swap_entry(slot: u32) -> Pte {
    Pte((u64::from(slot) << TABLE_SHIFT) | SWAPPED)
}

/// The swap slot a leaf refers to, if any.
pub fn swap_slot(pte: Pte) -> Option<u32> {
    (!pte.present() && pte.0 & SWAPPED != 0).then_some((pte.0 >> TABLE_SHIFT) as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use agewise_kernel::folio::Pfn;
    use proptest::prelude::*;

    use super::*;

    const MM: MmId = MmId(0);

    fn one_mm() -> PageTables {
        let mut tables = PageTables::default();
        tables.add_mm(MM);
        tables
    }

    #[test]
    fn an_access_sets_the_bits_of_both_levels() {
        let mut tables = one_mm();
        assert_eq!(tables.access(MM, 7, false), MmuOutcome::Fault);
        *tables.make_leaf(MM, 7) = Pte::map(Pfn(3));
        tables.leaf_mut(MM, 7).unwrap().test_clear_young();
        tables.clear_pmd_young(MM, 7);
        assert_eq!(tables.access(MM, 7, true), MmuOutcome::Hit);
        let leaf = tables.leaf(MM, 7).unwrap();
        assert!(leaf.young() && leaf.dirty() && tables.pmd_young(MM, 0));
        assert_eq!(tables.access(MM, 8, false), MmuOutcome::Fault);
    }

    #[test]
    fn a_huge_leaf_covers_its_range() {
        let mut tables = one_mm();
        tables.map_huge(MM, 1024, Pte::map(Pfn(512)));
        assert_eq!(tables.access(MM, 1535, true), MmuOutcome::Hit);
        assert!(matches!(tables.pmd(MM, 1200), Pmd::Leaf(leaf) if leaf.dirty()));
        assert!(tables.leaf(MM, 1024).is_none());
        assert_eq!(tables.unmap_huge(MM, 1024).unwrap().pfn(), Pfn(512));
        assert_eq!(tables.access(MM, 1024, false), MmuOutcome::Fault);
    }

    #[test]
    fn swap_entries_and_frames_are_told_apart() {
        assert_eq!(swap_slot(swap_entry(0)), Some(0));
        assert_eq!(swap_slot(Pte::map(Pfn(0))), None);
        assert_eq!(swap_slot(Pte::default()), None);
    }

    proptest! {
        /// Compares with an ordered map, over addresses that share and do not share tables.
        #[test]
        fn tables_behave_like_a_map(
            steps in prop::collection::vec((0u8..3, 0u64..3, 0u64..3, 0u64..600), 1..120)
        ) {
            let mut tables = one_mm();
            let mut model = BTreeMap::new();
            for (step, high, middle, low) in steps {
                let vpn = (high << 27) + (middle << 18) + low;
                match step {
                    0 => {
                        *tables.make_leaf(MM, vpn) = Pte::map(Pfn(low as u32));
                        model.insert(vpn, low as u32);
                    }
                    1 => if let Some(leaf) = tables.leaf_mut(MM, vpn) {
                        *leaf = Pte::default();
                        model.remove(&vpn);
                    },
                    _ => {
                        let hit = tables.access(MM, vpn, false) == MmuOutcome::Hit;
                        prop_assert_eq!(hit, model.contains_key(&vpn));
                    }
                }
            }
            for (&vpn, &pfn) in &model {
                prop_assert_eq!(tables.leaf(MM, vpn).unwrap().pfn(), Pfn(pfn));
                prop_assert_eq!(tables.next_mapped(MM, vpn, MAX_VPN), Some(vpn));
            }
            tables.free_mm(MM);
            prop_assert_eq!(tables.last_level_tables(), 0);
            prop_assert_eq!(tables.next_mapped(MM, 0, MAX_VPN), None);
        }
    }
}
