// SPDX-License-Identifier: Apache-2.0
//! Folios: what the reclaim policies know about each piece of memory, and the lists they are on.
//!
//! A folio is named by its first page frame. The table holds 16 bytes per frame: two links, the
//! flags word and the lruvec; frames that are not the head of a folio are unused. Field names are
//! those of `include/linux/page-flags.h` and `mm_inline.h` (7.2).

use crate::ids::LruvecId;

/// Number of a page frame; `Pfn::NONE` names no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pfn(pub u32);

impl Pfn {
    /// No frame.
    pub const NONE: Pfn = Pfn(u32::MAX);

    /// The frame number as an index.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether this names a frame.
    #[inline]
    #[must_use]
    pub fn is_some(self) -> bool {
        self != Pfn::NONE
    }
}

/// The two types of evictable memory. "Anon" is everything backed by swap, tmpfs included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FolioType {
    /// Backed by swap.
    Anon = 0,
    /// Backed by a file.
    File = 1,
}

impl FolioType {
    /// Both types, in the order of the kernel's arrays.
    pub const ALL: [FolioType; 2] = [FolioType::Anon, FolioType::File];

    /// Index into per-type arrays: 0 anon, 1 file.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// The other type.
    #[inline]
    #[must_use]
    pub fn other(self) -> FolioType {
        match self {
            FolioType::Anon => FolioType::File,
            FolioType::File => FolioType::Anon,
        }
    }
}

/// One bit of the flags of a [`Folio`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Flag {
    /// `PG_referenced`.
    Referenced = 1 << 0,
    /// `PG_workingset`.
    Workingset = 1 << 1,
    /// `PG_active`.
    Active = 1 << 2,
    /// `PG_reclaim`: rotate or free as soon as writeback ends.
    Reclaim = 1 << 3,
    /// `PG_dirty`.
    Dirty = 1 << 4,
    /// `PG_writeback`.
    Writeback = 1 << 5,
    /// `PG_swapbacked`: decides [`FolioType`].
    Swapbacked = 1 << 6,
    /// `PG_swapcache`.
    Swapcache = 1 << 7,
    /// `PG_unevictable`.
    Unevictable = 1 << 8,
    /// `PG_lru`: on a list of its lruvec (not isolated, not in a per-CPU batch).
    Lru = 1 << 9,
    /// `PG_locked`: someone else holds the folio lock; reclaim cannot take it.
    Locked = 1 << 10,
    /// `PG_mlocked`.
    Mlocked = 1 << 11,
    /// Mapped by at least one page table. Kept by the world when it maps and unmaps.
    Mapped = 1 << 12,
    /// Waits in a per-CPU activate, deactivate or rotate batch, which holds a reference: reclaim
    /// cannot free it meanwhile.
    BatchPending = 1 << 13,
    /// Came back from a short distance: enters a generation above the oldest
    /// ([`crate::refault_distance`]).
    Promoted = 1 << 29,
    /// `PG_idle`: the access monitor has not seen an access since it set this flag.
    Idle = 1 << 30,
    /// `PG_young`: the access monitor has cleared an accessed bit, which reclaim still has to count
    /// as an access.
    Young = 1 << 31,
}

const REFS_SHIFT: u32 = 15;
const GEN_SHIFT: u32 = 17;
const ZONE_SHIFT: u32 = 20;
const ORDER_SHIFT: u32 = 22;
const LIST_SHIFT: u32 = 26;
const REFS_MASK: u32 = 0b11 << REFS_SHIFT;
const GEN_MASK: u32 = 0b111 << GEN_SHIFT;
const ZONE_MASK: u32 = 0b11 << ZONE_SHIFT;
const ORDER_MASK: u32 = 0b1111 << ORDER_SHIFT;
const LIST_MASK: u32 = 0b111 << LIST_SHIFT;

/// The policies' state of one folio.
#[derive(Clone, Copy, Debug)]
pub struct Folio {
    prev: Pfn,
    next: Pfn,
    flags: u32,
    /// The lruvec it is charged to.
    pub lruvec: LruvecId,
}

impl Folio {
    const FREE: Folio = Folio {
        prev: Pfn::NONE,
        next: Pfn::NONE,
        flags: 0,
        lruvec: LruvecId::NONE,
    };

    /// Whether a flag is set.
    #[inline]
    #[must_use]
    pub fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u32 != 0
    }

    /// Whether any of the given flag bits (or-ed `Flag as u32`) is set.
    #[inline]
    #[must_use]
    pub fn has_any(&self, mask: u32) -> bool {
        self.flags & mask != 0
    }

    /// Sets a flag.
    #[inline]
    pub fn set(&mut self, flag: Flag) {
        self.flags |= flag as u32;
    }

    /// Clears a flag.
    #[inline]
    pub fn clear(&mut self, flag: Flag) {
        self.flags &= !(flag as u32);
    }

    /// Clears a flag and returns whether it was set.
    #[inline]
    pub fn test_clear(&mut self, flag: Flag) -> bool {
        let was = self.has(flag);
        self.clear(flag);
        was
    }

    /// Sets or clears a flag.
    #[inline]
    pub fn assign(&mut self, flag: Flag, on: bool) {
        if on { self.set(flag) } else { self.clear(flag) }
    }

    /// Anon or file.
    #[inline]
    #[must_use]
    pub fn folio_type(&self) -> FolioType {
        if self.has(Flag::Swapbacked) {
            FolioType::Anon
        } else {
            FolioType::File
        }
    }

    /// The refs field (`LRU_REFS_MASK`), 0..=3.
    #[inline]
    #[must_use]
    pub fn refs(&self) -> u32 {
        (self.flags & REFS_MASK) >> REFS_SHIFT
    }

    /// Sets the refs field, 0..=3.
    #[inline]
    pub fn set_refs(&mut self, refs: u32) {
        debug_assert!(refs <= 3);
        self.flags = (self.flags & !REFS_MASK) | (refs << REFS_SHIFT);
    }

    /// The generation slot (0..=6) whose list or counter the folio belongs to, if any
    /// (`folio_lru_gen`).
    #[inline]
    #[must_use]
    pub fn generation(&self) -> Option<u32> {
        ((self.flags & GEN_MASK) >> GEN_SHIFT).checked_sub(1)
    }

    /// Sets or clears the generation slot.
    #[inline]
    pub fn set_generation(&mut self, slot: Option<u32>) {
        let field = slot.map_or(0, |slot| slot + 1);
        debug_assert!(field <= 7);
        self.flags = (self.flags & !GEN_MASK) | (field << GEN_SHIFT);
    }

    /// The slot (0..=6) of the generation list it is on, which a promotion does not change. The
    /// kernel needs no such field, since its lists do not keep their ends.
    #[inline]
    #[must_use]
    pub fn list_slot(&self) -> u32 {
        (self.flags & LIST_MASK) >> LIST_SHIFT
    }

    /// Sets the slot of the generation list it is on.
    #[inline]
    pub fn set_list_slot(&mut self, slot: u32) {
        debug_assert!(slot <= 6);
        self.flags = (self.flags & !LIST_MASK) | (slot << LIST_SHIFT);
    }

    /// Index of its zone in the node, 0..=3 (DMA, DMA32, NORMAL, MOVABLE).
    #[inline]
    #[must_use]
    pub fn zone(&self) -> usize {
        ((self.flags & ZONE_MASK) >> ZONE_SHIFT) as usize
    }

    /// log2 of its pages: 0, or 9 for a 2 MiB folio.
    #[inline]
    #[must_use]
    pub fn order(&self) -> u32 {
        (self.flags & ORDER_MASK) >> ORDER_SHIFT
    }

    /// Number of base pages.
    #[inline]
    #[must_use]
    pub fn nr_pages(&self) -> u64 {
        1 << self.order()
    }
}

/// All frames of the machine.
#[derive(Clone, Debug, Default)]
pub struct FolioTable {
    folios: Vec<Folio>,
}

impl FolioTable {
    /// A table for frames `0..frames`, none in use.
    #[must_use]
    pub fn new(frames: u32) -> FolioTable {
        FolioTable {
            folios: vec![Folio::FREE; frames as usize],
        }
    }

    /// Number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.folios.len()
    }

    /// Whether the machine has no frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.folios.is_empty()
    }

    /// Starts a folio on a free frame: no flags except its type, on no list, in no generation.
    #[inline]
    pub fn start(
        &mut self,
        pfn: Pfn,
        folio_type: FolioType,
        zone: usize,
        order: u32,
        lruvec: LruvecId,
    ) {
        debug_assert!(zone < 4 && order < 16);
        let swapbacked = match folio_type {
            FolioType::Anon => Flag::Swapbacked as u32,
            FolioType::File => 0,
        };
        self.folios[pfn.index()] = Folio {
            flags: swapbacked | ((zone as u32) << ZONE_SHIFT) | (order << ORDER_SHIFT),
            lruvec,
            ..Folio::FREE
        };
    }
}

impl std::ops::Index<Pfn> for FolioTable {
    type Output = Folio;
    #[inline]
    fn index(&self, pfn: Pfn) -> &Folio {
        &self.folios[pfn.index()]
    }
}

impl std::ops::IndexMut<Pfn> for FolioTable {
    #[inline]
    fn index_mut(&mut self, pfn: Pfn) -> &mut Folio {
        &mut self.folios[pfn.index()]
    }
}

/// A doubly linked list of folios. The head is the newest end; eviction consumes the tail.
/// The links live in the [`FolioTable`], so a folio is on at most one list.
#[derive(Clone, Copy, Debug)]
pub struct FolioList {
    head: Pfn,
    tail: Pfn,
    len: u32,
}

impl Default for FolioList {
    fn default() -> Self {
        FolioList {
            head: Pfn::NONE,
            tail: Pfn::NONE,
            len: 0,
        }
    }
}

impl FolioList {
    /// Oldest folio, or `Pfn::NONE`.
    #[inline]
    #[must_use]
    pub fn tail(&self) -> Pfn {
        self.tail
    }

    /// Folios (not pages) on the list.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether no folio is on the list.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds at the newest end.
    #[inline]
    pub fn push_head(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        folios[pfn].prev = Pfn::NONE;
        folios[pfn].next = self.head;
        if self.head.is_some() {
            folios[self.head].prev = pfn;
        } else {
            self.tail = pfn;
        }
        self.head = pfn;
        self.len += 1;
    }

    /// Adds at the oldest end.
    #[inline]
    pub fn push_tail(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        folios[pfn].next = Pfn::NONE;
        folios[pfn].prev = self.tail;
        if self.tail.is_some() {
            folios[self.tail].next = pfn;
        } else {
            self.head = pfn;
        }
        self.tail = pfn;
        self.len += 1;
    }

    /// Removes a folio, which must be on this list.
    #[inline]
    pub fn remove(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        let Folio { prev, next, .. } = folios[pfn];
        if prev.is_some() {
            folios[prev].next = next;
        } else {
            debug_assert_eq!(self.head, pfn, "folio is not on this list");
            self.head = next;
        }
        if next.is_some() {
            folios[next].prev = prev;
        } else {
            debug_assert_eq!(self.tail, pfn, "folio is not on this list");
            self.tail = prev;
        }
        folios[pfn].prev = Pfn::NONE;
        folios[pfn].next = Pfn::NONE;
        self.len -= 1;
    }

    /// The folio on the newer side of `pfn`, or `Pfn::NONE`.
    #[inline]
    #[must_use]
    pub fn newer(folios: &FolioTable, pfn: Pfn) -> Pfn {
        folios[pfn].prev
    }

    /// Walks from the oldest to the newest folio.
    pub fn iter_from_tail<'a>(&self, folios: &'a FolioTable) -> impl Iterator<Item = Pfn> + 'a {
        let tail = Some(self.tail).filter(|pfn| pfn.is_some());
        std::iter::successors(tail, |&pfn| {
            Some(folios[pfn].prev).filter(|prev| prev.is_some())
        })
    }

    /// Moves all of `other` to the tail of this list, order kept.
    pub fn append_tail(&mut self, folios: &mut FolioTable, other: &mut FolioList) {
        if other.is_empty() {
            return;
        }
        if self.tail.is_some() {
            folios[self.tail].next = other.head;
            folios[other.head].prev = self.tail;
        } else {
            self.head = other.head;
        }
        self.tail = other.tail;
        self.len += other.len;
        *other = FolioList::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        let mut table = FolioTable::new(1);
        table.start(Pfn(0), FolioType::Anon, 3, 9, LruvecId(7));
        let folio = &mut table[Pfn(0)];
        folio.set_refs(3);
        folio.set_generation(Some(6));
        folio.set_list_slot(6);
        folio.flags |= Flag::Promoted as u32;
        assert_eq!(
            (
                folio.refs(),
                folio.generation(),
                folio.zone(),
                folio.order()
            ),
            (3, Some(6), 3, 9)
        );
        folio.set_generation(None);
        folio.set_list_slot(0);
        folio.set_refs(0);
        folio.flags &= !(Flag::Promoted as u32);
        assert_eq!(
            (folio.zone(), folio.nr_pages(), folio.folio_type()),
            (3, 512, FolioType::Anon)
        );
        assert_eq!(
            folio.flags & !(ZONE_MASK | ORDER_MASK),
            Flag::Swapbacked as u32
        );
    }

    #[test]
    fn a_folio_costs_sixteen_bytes() {
        assert_eq!(size_of::<Folio>(), 16);
    }

    proptest! {
        /// Compares two lists with two deques under random pushes, removals and appends.
        #[test]
        fn lists_behave_like_deques(steps in prop::collection::vec((0u8..5, 0u32..12), 0..200)) {
            let mut table = FolioTable::new(12);
            let mut lists = [FolioList::default(), FolioList::default()];
            let mut models = [VecDeque::new(), VecDeque::new()];
            for (step, page) in steps {
                let pfn = Pfn(page);
                let home = models.iter().position(|model| model.contains(&pfn));
                match (step, home) {
                    (0 | 1, None) => {
                        lists[step as usize].push_head(&mut table, pfn);
                        models[step as usize].push_front(pfn);
                    }
                    (2, None) => {
                        lists[0].push_tail(&mut table, pfn);
                        models[0].push_back(pfn);
                    }
                    (3, Some(home)) => {
                        lists[home].remove(&mut table, pfn);
                        models[home].retain(|&other| other != pfn);
                    }
                    (4, _) => {
                        let [first, second] = &mut lists;
                        first.append_tail(&mut table, second);
                        let moved = std::mem::take(&mut models[1]);
                        models[0].extend(moved);
                    }
                    _ => {}
                }
                for (list, model) in lists.iter().zip(&models) {
                    prop_assert_eq!(list.len() as usize, model.len());
                    let seen: Vec<_> = list.iter_from_tail(&table).collect();
                    let expected: Vec<_> = model.iter().rev().copied().collect();
                    prop_assert_eq!(seen, expected);
                }
            }
        }
    }
}
