// SPDX-License-Identifier: Apache-2.0
//! The classic LRU: active and inactive lists.

use crate::folio::{FolioTable, FolioType, Pfn};
use crate::ids::{LruvecId, MemcgId};
use crate::lru::{Lru, Lruvec};
use crate::reclaim::ScanControl;
use crate::world::World;

/// Classic state of one lruvec.
#[derive(Clone, Debug, Default)]
pub struct State {}

impl State {
    /// The folio at the tail of a list, or `Pfn::NONE`.
    #[must_use]
    pub fn oldest(&self, _folio_type: FolioType, _active: bool) -> Pfn {
        Pfn::NONE
    }

    /// Exact pages on a list.
    #[must_use]
    pub fn pages(&self, _folio_type: FolioType, _active: bool) -> u64 {
        0
    }
}

/// Settings of the classic LRU.
#[derive(Clone, Debug, Default)]
pub struct Settings {}

/// Scan balance of one reclaim pass.
#[derive(Clone, Debug, Default)]
pub struct ScanBalance {}

/// Puts a folio on the list its flags name, at the tail if `rotate`. `Flag::Active` stays set while
/// it is on an active list.
pub(crate) fn add_folio(_: &mut FolioTable, _: &mut Lruvec, _: Pfn, _rotate: bool) {}

/// Takes a folio off its list; flags stay.
pub(crate) fn del_folio(_: &mut FolioTable, _: &mut Lruvec, _: Pfn) {}

/// An access through a file descriptor.
pub(crate) fn mark_accessed(_: &mut Lru, _: Pfn, _cpu: usize) {}

/// An evicted page came back: activates it if its refault distance is short.
pub(crate) fn refault<W: World>(_: &mut Lru, _: &W, _: Pfn, _shadow: u64) {}

/// Ages the lruvec and its ancestors up to `target`, and packs the shadow of an evicted folio
/// ([`crate::shadow::Shadow`]).
pub(crate) fn eviction_shadow(_: &mut Lru, _: Pfn, _target: MemcgId) -> u64 {
    0
}

/// Moves the lists of a removed cgroup's lruvec to its parent's ([`Lru::adopt`], then
/// `FolioList::append_tail`).
pub(crate) fn reparent(_: &mut Lru, _from: LruvecId, _to: LruvecId) {}

/// Reclaims from one lruvec at the priority of `sc`.
pub(crate) fn shrink_lruvec<W: World>(_: &mut Lru, _: &mut W, _: LruvecId, _: &mut ScanControl) {}
