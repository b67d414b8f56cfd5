// SPDX-License-Identifier: Apache-2.0
//! Splitting a huge folio into its pages, where there is no room for it in one piece
//! (`split_folio_to_list`).

use crate::folio::{Flag, FolioTable, Pfn};
use crate::lru::Lru;
use crate::world::World;

/// Flags that move with a folio (`folio_migrate_flags`), and that its pages keep when it is split.
/// `PG_reclaim` is one because it shares its bit with `PG_readahead`. The world moves the contents,
/// and what makes them `Mapped` and `Swapcache`.
pub(super) const KEPT: [Flag; 12] = [
    Flag::Referenced,
    Flag::Workingset,
    Flag::Active,
    Flag::Reclaim,
    Flag::Dirty,
    Flag::Swapcache,
    Flag::Unevictable,
    Flag::Mlocked,
    Flag::Mapped,
    Flag::Promoted,
    Flag::Idle,
    Flag::Young,
];

/// Splits an isolated folio; each of its pages is then an isolated folio with its flags. Returns
/// false if it is a page already, or if somebody else holds it.
pub(super) fn split<W: World>(lru: &mut Lru, world: &mut W, pfn: Pfn) -> bool {
    let whole = lru.folios[pfn];
    let held = Flag::Locked as u32 | Flag::Writeback as u32 | Flag::BatchPending as u32;
    if whole.order() == 0 || whole.has_any(held) || !world.split(&lru.folios, pfn) {
        return false;
    }
    for page in pages(&lru.folios, pfn) {
        lru.folios
            .start(page, whole.folio_type(), whole.zone(), 0, whole.lruvec);
        for flag in KEPT {
            lru.folios[page].assign(flag, whole.has(flag));
        }
        lru.folios[page].set_refs(whole.refs());
    }
    lru.work.splits += 1;
    true
}

/// The pages of a folio, in order.
pub(super) fn pages(folios: &FolioTable, pfn: Pfn) -> impl Iterator<Item = Pfn> + use<> {
    (pfn.0..pfn.0 + (1 << folios[pfn].order())).map(Pfn)
}
