// SPDX-License-Identifier: Apache-2.0
//! The generations of one lruvec: sequence numbers, lists and sizes (`struct lru_gen_folio`).

use crate::folio::{FolioList, FolioType};

use super::bloom::Filters;
use super::control::Control;
use super::memcg_lru::Position;
use super::mm_list::Walker;
use super::{GENERATIONS_MAX, MIN_NR_GENS, NR_ZONES};

/// Multi-gen state of one lruvec.
///
/// A promotion only updates a folio's generation field and the sizes; eviction moves the folio to
/// the right list when it finds it.
#[derive(Clone, Debug)]
pub struct State {
    /// The most generations it may have; the slots of those beyond are not used.
    pub(super) generations: u64,
    /// Youngest generation, shared by both types.
    pub max_seq: u64,
    /// Oldest generation of each type.
    pub min_seq: [u64; 2],
    /// Birth times of the generations, by slot, in ns.
    pub(super) births_ns: [u64; GENERATIONS_MAX],
    /// Folios by slot, type and zone. The head is young, and eviction takes from the tail.
    pub(super) lists: [[[FolioList; NR_ZONES]; 2]; GENERATIONS_MAX],
    /// Pages by slot, type and zone, according to the generation fields. May fall below zero while
    /// a walk has not yet flushed its counts.
    pub(super) nr_pages: [[[i64; NR_ZONES]; 2]; GENERATIONS_MAX],
    /// Refault feedback.
    pub(super) control: Control,
    /// Whether new folios are added here.
    pub enabled: bool,
    /// Position in the list of address spaces, and statistics of walks.
    pub(super) walker: Walker,
    /// Page tables that are worth walking.
    pub(super) filters: Filters,
    /// Place in the order of global reclaim.
    pub(super) position: Position,
    /// Whether it has taken over the lists of a removed cgroup, whose folios may be on slots of no
    /// generation here.
    pub(super) adopted: bool,
}

impl State {
    /// Four generations born at `now_ns`, which may become as many as `generations`
    /// ([`Profile::generations`](super::Profile::generations)).
    ///
    /// # Panics
    /// If the lists cannot hold that many.
    #[must_use]
    pub fn new(now_ns: u64, enabled: bool, generations: u8) -> State {
        let valid = MIN_NR_GENS + 2..=GENERATIONS_MAX;
        assert!(
            valid.contains(&usize::from(generations)),
            "4 to 7 generations"
        );
        State {
            generations: u64::from(generations),
            max_seq: MIN_NR_GENS as u64 + 1,
            min_seq: [0; 2],
            births_ns: [now_ns; GENERATIONS_MAX],
            lists: [[[FolioList::default(); NR_ZONES]; 2]; GENERATIONS_MAX],
            nr_pages: [[[0; NR_ZONES]; 2]; GENERATIONS_MAX],
            control: Control::default(),
            enabled,
            walker: Walker::new(MIN_NR_GENS as u64),
            filters: Filters::default(),
            position: Position::default(),
            adopted: false,
        }
    }

    /// The slot of a generation: sequence numbers wrap around the lists (`lru_gen_from_seq`).
    #[inline]
    #[must_use]
    pub fn slot(&self, seq: u64) -> u32 {
        // Every kernel has four, for which no division is needed.
        match self.generations {
            4 => (seq % 4) as u32,
            generations => (seq % generations) as u32,
        }
    }

    /// The history slot of a generation (`lru_hist_from_seq`).
    #[inline]
    pub(super) fn history_slot(&self, seq: u64, history: bool) -> usize {
        if history { self.slot(seq) as usize } else { 0 }
    }

    /// Whether a type has as many generations as it may have.
    #[inline]
    pub(super) fn is_full(&self, folio_type: FolioType) -> bool {
        self.nr_gens(folio_type) == self.generations
    }

    /// Number of generations of a type, at least 2 (`get_nr_gens`).
    #[inline]
    #[must_use]
    pub fn nr_gens(&self, folio_type: FolioType) -> u64 {
        self.max_seq - self.min_seq[folio_type.index()] + 1
    }

    /// Birth time of an existing generation, in ns.
    #[must_use]
    pub fn birth_ns(&self, seq: u64) -> u64 {
        self.births_ns[self.slot(seq) as usize]
    }

    /// Pages of one generation and type.
    #[must_use]
    pub fn pages_of(&self, seq: u64, folio_type: FolioType) -> u64 {
        self.nr_pages[self.slot(seq) as usize][folio_type.index()]
            .iter()
            .map(|&pages| pages.max(0).cast_unsigned())
            .sum()
    }

    /// Pages of one type in all its generations.
    #[must_use]
    pub fn total_pages(&self, folio_type: FolioType) -> u64 {
        (self.min_seq[folio_type.index()]..=self.max_seq)
            .map(|seq| self.pages_of(seq, folio_type))
            .sum()
    }

    /// Pages that count as active (the two youngest generations) or inactive. All slots count:
    /// generations of a parent are of other times, so a folio promoted in place and then reparented
    /// may have a slot that is retired there.
    #[must_use]
    pub fn pages(&self, folio_type: FolioType, active: bool) -> u64 {
        (0..self.generations)
            .filter(|&slot| self.is_active(slot as u32) == active)
            .map(|slot| self.pages_of(slot, folio_type))
            .sum()
    }

    /// Whether a slot is one of the two youngest generations (`lru_gen_is_active`).
    #[inline]
    #[must_use]
    pub fn is_active(&self, slot: u32) -> bool {
        slot == self.slot(self.max_seq) || slot == self.slot(self.max_seq - 1)
    }
}
