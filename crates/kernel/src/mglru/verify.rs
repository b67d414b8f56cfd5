// SPDX-License-Identifier: Apache-2.0
//! Invariants between operations: a check of one lruvec for tests and for debugging.

use crate::folio::{Flag, FolioTable, FolioType, Pfn};
use crate::ids::LruvecId;

use super::generation::State;
use super::{GENERATIONS_MAX, MIN_NR_GENS, NR_ZONES};

impl State {
    /// Checks the invariants of this lruvec. Sizes are only exact while no walk is under way.
    ///
    /// # Errors
    /// A sentence about the first violated invariant.
    pub fn verify(&self, folios: &FolioTable, lruvec: LruvecId) -> Result<(), String> {
        for folio_type in FolioType::ALL {
            let generations = self.nr_gens(folio_type);
            if !(MIN_NR_GENS as u64..=self.generations).contains(&generations) {
                return Err(format!("{folio_type:?} has {generations} generations"));
            }
        }
        let second = (self.max_seq + 2).saturating_sub(self.generations).max(1);
        for seq in second..=self.max_seq {
            if self.birth_ns(seq) < self.birth_ns(seq - 1) {
                return Err(format!("generation {seq} was born before its elder"));
            }
        }
        let mut counted = [[[0; NR_ZONES]; 2]; GENERATIONS_MAX];
        for (slot, t, zone) in slots() {
            for pfn in self.lists[slot][t][zone].iter_from_tail(folios) {
                self.verify_folio(folios, lruvec, pfn, (slot, t, zone))?;
                let folio = &folios[pfn];
                let generation = folio.generation().unwrap_or_default() as usize;
                counted[generation][t][zone] += folio.nr_pages().cast_signed();
            }
        }
        for (slot, t, zone) in slots() {
            let (counted, kept) = (counted[slot][t][zone], self.nr_pages[slot][t][zone]);
            if counted != kept {
                return Err(format!(
                    "slot {slot}, type {t}, zone {zone}: {counted} pages counted, {kept} kept"
                ));
            }
        }
        Ok(())
    }

    fn verify_folio(
        &self,
        folios: &FolioTable,
        lruvec: LruvecId,
        pfn: Pfn,
        (slot, t, zone): (usize, usize, usize),
    ) -> Result<(), String> {
        let folio = &folios[pfn];
        let wrong = |what| Err(format!("frame {pfn:?} on the list of slot {slot}: {what}"));
        if folio.generation().is_none() {
            return wrong("no generation");
        }
        if folio.lruvec != lruvec {
            return wrong("belongs to another lruvec");
        }
        if (folio.folio_type().index(), folio.zone()) != (t, zone) {
            return wrong("type or zone of another list");
        }
        if folio.list_slot() as usize != slot {
            return wrong("believes to be on another list");
        }
        if !folio.has(Flag::Lru) {
            return wrong("listed without the LRU flag");
        }
        if folio.has_any(Flag::Active as u32 | Flag::Unevictable as u32) {
            return wrong("active or unevictable while listed");
        }
        let age = |slot: u64| (self.max_seq + self.generations - slot) % self.generations;
        let oldest = age(self.min_seq[t] % self.generations);
        // What a removed cgroup left may be promoted to a slot that is retired here. As in the
        // kernel it is found again when that slot has its next generation.
        let is_retired = !self.adopted && age(slot as u64) > oldest;
        if slot as u64 >= self.generations || is_retired {
            return wrong("on a list that has been retired");
        }
        Ok(())
    }

    /// Folios on the list of a generation, oldest first, zone by zone.
    pub fn listed<'a>(
        &'a self,
        folios: &'a FolioTable,
        seq: u64,
        folio_type: FolioType,
    ) -> impl Iterator<Item = Pfn> + 'a {
        self.lists[self.slot(seq) as usize][folio_type.index()]
            .iter()
            .flat_map(|list| list.iter_from_tail(folios))
    }
}

fn slots() -> impl Iterator<Item = (usize, usize, usize)> {
    (0..GENERATIONS_MAX)
        .flat_map(|slot| (0..2).flat_map(move |t| (0..NR_ZONES).map(move |zone| (slot, t, zone))))
}
