// SPDX-License-Identifier: Apache-2.0
//! Moving folios to another node: reclaim of a node demotes cold folios to a slower one instead of
//! freeing them (`demote_folio_list`), and a caller can move folios that it has chosen.

use super::{Reclaimer, ScanControl};
use crate::folio::{Flag, Pfn};
use crate::ids::{LruvecId, NodeId};
use crate::lru::Lru;
use crate::reports::AddContext;
use crate::world::World;

/// Flags that move with a folio (`folio_migrate_flags`); `PG_reclaim` does because it shares its
/// bit with `PG_readahead`. The world moves the contents, and what makes them `Mapped` and
/// `Swapcache`.
const KEPT: [Flag; 12] = [
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

/// The node to which this reclaim of `node` demotes (`can_demote`); None if it frees.
pub(crate) fn demotion_target(
    lru: &Lru,
    world: &impl World,
    node: NodeId,
    sc: &ScanControl,
) -> Option<NodeId> {
    if sc.no_demotion || sc.is_cgroup_reclaim() && !lru.migration.cgroups_demote {
        return None;
    }
    world.demotion_target(node)
}

/// Moves isolated folios to `target`. Those that could not be moved stay in `leaving`, in order.
/// Counts them as stolen and returns their pages: this reclaim is rid of them.
pub(super) fn demote<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &ScanControl,
    target: NodeId,
    leaving: &mut Vec<Pfn>,
) -> u64 {
    let mut demoted = 0;
    let mut moves = Moves::default();
    // The kernel collects them in a list that it reads from the other end.
    leaving.reverse();
    leaving.retain(|&pfn| {
        let (pages, folio_type) = (lru.folios[pfn].nr_pages(), lru.folios[pfn].folio_type());
        if !moves.try_move(lru, world, pfn, target, sc.cpu) {
            return true;
        }
        demoted += pages;
        let events = &mut lru.lruvecs[lruvec.index()].events;
        events.count_steal(sc.reclaimer, folio_type, pages);
        match sc.reclaimer {
            Reclaimer::Kswapd => events.pgdemote_kswapd += pages,
            Reclaimer::Direct | Reclaimer::MemcgLimit => events.pgdemote_direct += pages,
            Reclaimer::Proactive => events.pgdemote_proactive += pages,
        }
        false
    });
    leaving.reverse();
    demoted
}

/// Moves the given folios to a node, whatever their age (`damon_migrate_pages`). Returns the pages
/// that are there now and were not before.
pub fn migrate_chosen<W: World>(
    lru: &mut Lru,
    world: &mut W,
    cpu: usize,
    folios: &[Pfn],
    target: NodeId,
) -> u64 {
    let mut moved = 0;
    let mut moves = Moves::default();
    for &pfn in folios {
        let folio = &lru.folios[pfn];
        if !folio.has(Flag::Lru) {
            continue;
        }
        let (pages, node) = (folio.nr_pages(), lru.lruvecs[folio.lruvec.index()].node);
        lru.list_del(pfn);
        lru.folios[pfn].clear(Flag::Lru);
        if node != target && moves.try_move(lru, world, pfn, target, cpu) {
            moved += pages;
        } else {
            lru.batch_add(cpu, pfn);
        }
    }
    moved
}

/// A batch of moves (`migrate_pages`).
#[derive(Default)]
struct Moves {
    /// The target has no room: nothing more is tried.
    is_full: bool,
    /// TLBs were flushed, once for all of them.
    flushed: bool,
}

impl Moves {
    /// Moves an isolated folio, and adds it to the lists of its cgroup on the target. Like any
    /// folio that joins the lists, it enters the generation given by its flags, not the one that it
    /// left.
    fn try_move<W: World>(
        &mut self,
        lru: &mut Lru,
        world: &mut W,
        pfn: Pfn,
        target: NodeId,
        cpu: usize,
    ) -> bool {
        let old = lru.folios[pfn];
        let held = Flag::Locked as u32 | Flag::Writeback as u32 | Flag::BatchPending as u32;
        if self.is_full || old.has_any(held) {
            return false;
        }
        let Some((to, zone)) = world.migrate(&lru.folios, pfn, target) else {
            // There may be room for smaller ones.
            self.is_full = old.order() == 0;
            return false;
        };
        let memcg = lru.lruvecs[old.lruvec.index()].memcg;
        let lruvec = lru.lruvec_id(memcg, target);
        let folios = &mut lru.folios;
        folios.start(to, old.folio_type(), zone, old.order(), lruvec);
        for flag in KEPT {
            folios[to].assign(flag, old.has(flag));
        }
        if lru.migration.keeps_refs {
            folios[to].set_refs(old.refs());
        }
        // The frame must not keep flags of its former page.
        folios.start(pfn, old.folio_type(), old.zone(), 0, LruvecId::NONE);
        lru.work.page_moves += old.nr_pages();
        if old.has(Flag::Mapped) {
            lru.work.unmaps += 1;
            lru.work.tlb_flushes += u64::from(!std::mem::replace(&mut self.flushed, true));
        }
        let context = AddContext {
            cpu,
            fault_with_recency: false,
            reclaiming: true,
        };
        lru.folio_add(to, context);
        true
    }
}
