// SPDX-License-Identifier: Apache-2.0
//! Moving folios to another node: reclaim of a node demotes cold folios to a slower one instead of
//! freeing them (`demote_folio_list`), and a caller can move folios that it has chosen.

use super::split::{self, KEPT};
use super::{Reclaimer, ScanControl};
use crate::folio::{Flag, Pfn};
use crate::ids::{LruvecId, NodeId};
use crate::lru::Lru;
use crate::reports::AddContext;
use crate::world::World;

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

/// Moves isolated folios to `target`. Those that could not be moved stay in `leaving`, in order,
/// after them pages of those that were split. Counts the moved ones as stolen and returns their
/// pages: this reclaim is rid of them.
pub(super) fn demote<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &ScanControl,
    target: NodeId,
    leaving: &mut Vec<Pfn>,
) -> u64 {
    let mut moves = Moves::new(target, sc.cpu);
    // The kernel collects them in a list that it reads from the other end.
    leaving.reverse();
    let mut demoted = demote_each(lru, world, lruvec, sc, &mut moves, leaving);
    leaving.reverse();
    let mut pages = std::mem::take(&mut moves.pages);
    demoted += demote_each(lru, world, lruvec, sc, &mut moves, &mut pages);
    leaving.append(&mut pages);
    demoted
}

/// Demotes what can be moved, and leaves the others in `folios`.
fn demote_each<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &ScanControl,
    moves: &mut Moves,
    folios: &mut Vec<Pfn>,
) -> u64 {
    let mut demoted = 0;
    folios.retain(|&pfn| {
        let (pages, folio_type) = (lru.folios[pfn].nr_pages(), lru.folios[pfn].folio_type());
        match moves.try_move(lru, world, pfn) {
            Moved::Yes => {}
            Moved::Split => return false,
            Moved::No => return true,
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
    let mut moves = Moves::new(target, cpu);
    for &pfn in folios {
        let folio = &lru.folios[pfn];
        if !folio.has(Flag::Lru) {
            continue;
        }
        let (pages, node) = (folio.nr_pages(), lru.lruvecs[folio.lruvec.index()].node);
        lru.list_del(pfn);
        lru.folios[pfn].clear(Flag::Lru);
        let result = match node == target {
            true => Moved::No,
            false => moves.try_move(lru, world, pfn),
        };
        match result {
            Moved::Yes => moved += pages,
            Moved::Split => {}
            Moved::No => lru.batch_add(cpu, pfn),
        }
    }
    for pfn in std::mem::take(&mut moves.pages) {
        match moves.try_move(lru, world, pfn) {
            Moved::Yes => moved += 1,
            Moved::Split | Moved::No => lru.batch_add(cpu, pfn),
        }
    }
    moved
}

/// What became of a folio that was to be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    Yes,
    No,
    /// There was no room for it in one piece.
    Split,
}

/// A batch of moves (`migrate_pages`).
struct Moves {
    target: NodeId,
    cpu: usize,
    /// Pages of folios that were split, to be moved after all others.
    pages: Vec<Pfn>,
    /// The target has no room: nothing more is tried.
    is_full: bool,
    /// TLBs were flushed, once for all of them.
    flushed: bool,
}

impl Moves {
    fn new(target: NodeId, cpu: usize) -> Moves {
        Moves {
            target,
            cpu,
            pages: Vec::new(),
            is_full: false,
            flushed: false,
        }
    }

    /// Moves an isolated folio, and adds it to the lists of its cgroup on the target. Like any
    /// folio that joins the lists, it enters the generation given by its flags, not the one that it
    /// left.
    fn try_move<W: World>(&mut self, lru: &mut Lru, world: &mut W, pfn: Pfn) -> Moved {
        let old = lru.folios[pfn];
        let held = Flag::Locked as u32 | Flag::Writeback as u32 | Flag::BatchPending as u32;
        if self.is_full || old.has_any(held) {
            return Moved::No;
        }
        let Some((to, zone)) = world.migrate(&lru.folios, pfn, self.target) else {
            return self.without_room(lru, world, pfn);
        };
        let memcg = lru.lruvecs[old.lruvec.index()].memcg;
        let lruvec = lru.lruvec_id(memcg, self.target);
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
            cpu: self.cpu,
            fault_with_recency: false,
            reclaiming: true,
        };
        lru.folio_add(to, context);
        Moved::Yes
    }

    /// Splits a huge folio, since there may be room for its pages. Where there is none for a page,
    /// nothing more is tried.
    fn without_room<W: World>(&mut self, lru: &mut Lru, world: &mut W, pfn: Pfn) -> Moved {
        let lruvec = lru.folios[pfn].lruvec;
        let pages = split::pages(&lru.folios, pfn);
        if split::split(lru, world, pfn) {
            self.pages.extend(pages);
            lru.lruvecs[lruvec.index()].events.thp_migration_split += 1;
            return Moved::Split;
        }
        self.is_full = lru.folios[pfn].order() == 0;
        Moved::No
    }
}
