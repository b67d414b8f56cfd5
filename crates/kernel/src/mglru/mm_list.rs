// SPDX-License-Identifier: Apache-2.0
//! The address spaces of each cgroup, in the order in which walks visit them (`struct
//! lru_gen_mm_list`).

use crate::ids::{MemcgId, MmId};

/// The address spaces of a cgroup, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct MmList {
    pub(super) first: MmId,
    pub(super) last: MmId,
}

impl Default for MmList {
    fn default() -> Self {
        MmList {
            first: MmId::NONE,
            last: MmId::NONE,
        }
    }
}

/// The policies' state of one address space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mm {
    pub memcg: MemcgId,
    pub prev: MmId,
    pub next: MmId,
    /// Nodes (bit `node % 64`) whose walks have not visited it since it last ran.
    pub ran: u64,
}

/// All address spaces; ids are the world's and should be small.
#[derive(Clone, Debug, Default)]
pub struct MmTable {
    pub(super) mms: Vec<Option<Mm>>,
}

impl MmTable {
    pub(super) fn get(&self, mm: MmId) -> Option<&Mm> {
        self.mms.get(mm.index()).and_then(Option::as_ref)
    }

    pub(super) fn link(&mut self, mm: MmId) -> &mut Mm {
        self.mms[mm.index()].as_mut().expect("listed address space")
    }

    /// The cgroup an address space belongs to.
    #[must_use]
    pub fn memcg(&self, mm: MmId) -> Option<MemcgId> {
        self.get(mm).map(|mm| mm.memcg)
    }

    #[inline]
    pub(crate) fn scheduled(&mut self, mm: MmId) {
        if let Some(Some(mm)) = self.mms.get_mut(mm.index()) {
            mm.ran = u64::MAX;
        }
    }

    /// Clears the bit of a node and returns whether it was set.
    pub(super) fn take_ran(&mut self, mm: MmId, node: u32) -> bool {
        let bit = 1 << (node % 64);
        let mm = self.link(mm);
        let ran = mm.ran & bit != 0;
        mm.ran &= !bit;
        ran
    }
}

/// A position in a list of address spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Cursor {
    /// No iteration is under way.
    #[default]
    Unset,
    /// Before the first and after the last.
    Sentinel,
    /// At an address space.
    At(MmId),
}

/// The progress of a lruvec's walks (`struct lru_gen_mm_state`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Walker {
    /// The next `max_seq` that a walk may complete.
    pub seq: u64,
    /// Position of the current iteration.
    pub head: Cursor,
    /// Where the last iteration ended: address spaces after it are new and scanned in full.
    pub tail: Cursor,
    /// Entries seen, by history slot: T, Y, F, A of `lru_gen_full`.
    pub stats: [[u64; 4]; super::GENERATIONS_MAX],
}

impl Walker {
    pub(super) fn new(seq: u64) -> Walker {
        Walker {
            seq,
            head: Cursor::Unset,
            tail: Cursor::Unset,
            stats: [[0; 4]; super::GENERATIONS_MAX],
        }
    }
}

impl MmList {
    /// The position after `cursor`.
    pub(super) fn next(&self, mms: &MmTable, cursor: Cursor) -> Cursor {
        let next = match cursor {
            Cursor::Unset | Cursor::Sentinel => self.first,
            Cursor::At(mm) => mms.get(mm).map_or(MmId::NONE, |mm| mm.next),
        };
        Self::cursor(next)
    }

    pub(super) fn cursor(mm: MmId) -> Cursor {
        if mm == MmId::NONE {
            Cursor::Sentinel
        } else {
            Cursor::At(mm)
        }
    }
}
