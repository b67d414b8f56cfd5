// SPDX-License-Identifier: Apache-2.0
//! Aging by page tables: walks the address spaces of a cgroup, then opens a new generation
//! (`try_to_inc_max_seq`, `iterate_mm_list`, `walk_mm`).

use rand::RngExt;

use crate::folio::FolioTable;
use crate::ids::{LruvecId, MmId};
use crate::lru::Lru;
use crate::page_table::{PAGES_PER_PMD, PAGES_PER_PUD, Pmd, Pte, Vma};
use crate::world::World;

use super::ablation::Part;
use super::aging::inc_max_seq;
use super::look_around::{is_dense, note_dirty, promote, report_dirtied, sighted};
use super::mm_list::Cursor;
use super::{MAX_LRU_BATCH, MAX_SWAPPINESS};

/// Counters of a walk, as printed in `lru_gen_full`.
#[derive(Clone, Copy)]
enum Stat {
    LeafTotal = 0,
    LeafYoung = 1,
    TablesFound = 2,
    TablesAdded = 3,
}

/// One walk over the address spaces of a cgroup.
struct Round {
    lruvec: LruvecId,
    /// The generation being completed, which young folios join.
    seq: u64,
    /// Its slot.
    slot: u32,
    swappiness: u32,
    /// Examine everything: filters and accessed bits of tables are ignored.
    force_scan: bool,
    stats: [u64; 4],
}

impl Round {
    fn count(&mut self, stat: Stat, n: u64) {
        self.stats[stat as usize] += n;
    }

    /// Whether the walk skips a VMA (`should_skip_vma`).
    fn skips(&self, vma: &Vma) -> bool {
        let anon = !vma.file || vma.shmem;
        vma.special
            || vma.no_recency
            || vma.locked
            || anon && self.swappiness == 0
            || !anon && self.swappiness > MAX_SWAPPINESS
    }
}

/// Ages a lruvec: walks the address spaces that ran since the last walk, then opens a new
/// generation. Returns false if another reclaimer was faster.
pub(super) fn age<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    swappiness: u32,
    force_scan: bool,
) -> bool {
    let state = &mut lru.lruvecs[lruvec.index()].mglru;
    let seq = state.max_seq;
    if seq <= state.walker.seq {
        return false;
    }
    if lru.mglru.walks() {
        lru.mglru_machine.walk.present = true;
        let mut round = Round {
            lruvec,
            seq,
            slot: state.slot(seq),
            swappiness,
            force_scan,
            stats: [0; 4],
        };
        while let Some(mm) = next_mm(lru, &mut round) {
            walk_mm(lru, world, &mut round, mm);
        }
    } else {
        state.walker.head = Cursor::Unset;
        state.walker.tail = Cursor::Unset;
        state.walker.seq += 1;
    }
    inc_max_seq(lru, lruvec, swappiness, world.now_ns());
    true
}

/// The next address space to walk; the iteration is complete at the end of the list
/// (`iterate_mm_list`).
fn next_mm(lru: &mut Lru, round: &mut Round) -> Option<MmId> {
    let memcg = lru.lruvecs[round.lruvec.index()].memcg;
    let node = lru.lruvecs[round.lruvec.index()].node;
    let list = lru.memcgs[memcg.index()].mms;
    let history = lru.mglru.history;
    let chance = lru.mglru.reschedule_chance;
    let state = &mut lru.lruvecs[round.lruvec.index()].mglru;
    let slot = state.history_slot(round.seq, history);
    let walker = &mut state.walker;
    if walker.head == Cursor::Unset {
        walker.head = Cursor::Sentinel;
    }
    let first = walker.head == Cursor::Sentinel;
    for (kept, seen) in walker.stats[slot].iter_mut().zip(&mut round.stats) {
        *kept += std::mem::take(seen);
    }
    loop {
        walker.head = list.next(&lru.mms, walker.head);
        let Cursor::At(mm) = walker.head else {
            walker.seq += 1;
            return None;
        };
        if walker.tail == Cursor::Unset || walker.tail == walker.head {
            walker.tail = list.next(&lru.mms, walker.head);
            round.force_scan = true;
        }
        let ran = lru.mms.take_ran(mm, node.0);
        let ran = ran || chance > 0.0 && lru.mglru_machine.rng.random::<f64>() < chance;
        if ran || round.force_scan {
            if first {
                state.filters.reset(round.seq + 1);
            }
            return Some(mm);
        }
    }
}

/// Walks one address space in full, in ranges of 2 MiB.
fn walk_mm<W: World>(lru: &mut Lru, world: &mut W, round: &mut Round, mm: MmId) {
    lru.work.mm_walks += 1;
    let mut vpn = 0;
    while let Some(vma) = next_vma(world, round, mm, vpn) {
        let start = vpn.max(vma.start_vpn);
        let table_end = start - start % PAGES_PER_PMD + PAGES_PER_PMD;
        lru.work.pmd_checks += 1;
        vpn = match world.pmd(mm, start) {
            Pmd::None => skip_hole(world, round, mm, start, vma.end_vpn),
            Pmd::Leaf(pte) => {
                walk_leaf(lru, round, pte, &vma);
                table_end
            }
            Pmd::Table(_) => {
                walk_table(lru, world, round, mm, vma, start);
                table_end
            }
        };
        if vpn.is_multiple_of(PAGES_PER_PUD) {
            flush_if(lru, round, MAX_LRU_BATCH);
        }
    }
    flush_if(lru, round, 1);
    report_dirtied(lru, world);
}

/// The next VMA at or above `vpn` that the walk does not skip.
fn next_vma<W: World>(world: &W, round: &Round, mm: MmId, vpn: u64) -> Option<Vma> {
    let mut vma = world.vma_from(mm, vpn)?;
    while round.skips(&vma) {
        vma = world.vma_from(mm, vma.end_vpn)?;
    }
    Some(vma)
}

/// Where to continue after an unmapped range. Within a 1 GiB range, each empty 2 MiB range counts
/// as one entry.
fn skip_hole<W: World>(world: &W, round: &mut Round, mm: MmId, start: u64, end: u64) -> u64 {
    let next_range = start - start % PAGES_PER_PMD + PAGES_PER_PMD;
    let next = world
        .next_mapped(mm, next_range, end)
        .unwrap_or(end)
        .max(next_range);
    let gib_end = start - start % PAGES_PER_PUD + PAGES_PER_PUD;
    let skipped = next.min(gib_end).saturating_sub(start);
    round.count(Stat::LeafTotal, skipped.div_ceil(PAGES_PER_PMD));
    next
}

/// A 2 MiB leaf: one entry, one folio. The kernel clears the bits of up to 64 of them under one
/// lock; here nothing can happen in between.
fn walk_leaf(lru: &mut Lru, round: &mut Round, pte: &mut Pte, vma: &Vma) {
    round.count(Stat::LeafTotal, 1);
    lru.work.pte_checks += 1;
    if take_sighting(lru, round, pte, vma) {
        round.count(Stat::LeafYoung, 1);
    }
}

/// A table of 4 KiB leaves: walked if its own accessed bit and the Bloom filter say so, and
/// recorded for the next walk if many of its entries are young.
fn walk_table<W: World>(
    lru: &mut Lru,
    world: &mut W,
    round: &mut Round,
    mm: MmId,
    vma: Vma,
    start: u64,
) {
    let blind = round.force_scan || lru.mglru.ablation.lacks(Part::Bloom);
    if !blind && lru.mglru.clears_table_bits() {
        if !world.pmd_young(mm, start) {
            return;
        }
        // The kernel clears it in a second pass over the PMD table, batched under its lock.
        world.clear_pmd_young(mm, start);
    }
    let filters = &lru.lruvecs[round.lruvec.index()].mglru.filters;
    if !blind && !filters.test(round.seq, mm, start) {
        return;
    }
    round.count(Stat::TablesFound, 1);
    if walk_entries(lru, world, round, mm, vma, start) {
        round.count(Stat::TablesAdded, 1);
        let filters = &mut lru.lruvecs[round.lruvec.index()].mglru.filters;
        filters.insert(round.seq + 1, mm, start);
    }
}

/// Walks the entries of one table, in all its VMAs that are not skipped; returns whether the table
/// is dense (`walk_pte_range`).
fn walk_entries<W: World>(
    lru: &mut Lru,
    world: &mut W,
    round: &mut Round,
    mm: MmId,
    mut vma: Vma,
    mut start: u64,
) -> bool {
    let table_end = start - start % PAGES_PER_PMD + PAGES_PER_PMD;
    let (mut total, mut young) = (0, 0);
    loop {
        let end = table_end.min(vma.end_vpn);
        if let Pmd::Table(table) = world.pmd(mm, start) {
            let first = (start % PAGES_PER_PMD) as usize;
            for pte in &mut table[first..first + (end - start) as usize] {
                young += u64::from(take_sighting(lru, round, pte, &vma));
            }
        }
        total += end - start;
        match next_vma(world, round, mm, end).filter(|next| next.start_vpn < table_end) {
            Some(next) if end < table_end => {
                vma = next;
                start = end.max(vma.start_vpn);
            }
            _ => break,
        }
    }
    lru.work.pte_checks += total;
    round.count(Stat::LeafTotal, total);
    round.count(Stat::LeafYoung, young);
    is_dense(total, young)
}

/// Clears the accessed bit of an entry and marks the folio; returns whether the bit was set.
#[inline]
fn take_sighting(lru: &mut Lru, round: &Round, pte: &mut Pte, vma: &Vma) -> bool {
    if !pte.young() {
        return false;
    }
    let profile = &lru.mglru.profile;
    let folios: &mut FolioTable = &mut lru.folios;
    let may_swap = round.swappiness > 0;
    let Some(pfn) = sighted(folios, profile, pte, round.lruvec, vma, may_swap) else {
        return false;
    };
    pte.test_clear_young();
    if profile.sighted_by_walk(&mut folios[pfn]) {
        let walk = &mut lru.mglru_machine.walk;
        promote(folios, walk, pfn, round.slot);
    }
    note_dirty(lru, *pte, pfn);
    true
}

/// Flushes the moves to the lruvec if at least `least` pages were moved.
fn flush_if(lru: &mut Lru, round: &Round, least: u64) {
    if lru.mglru_machine.walk.batched >= least {
        lru.work.lru_locks += 1;
        let state = &mut lru.lruvecs[round.lruvec.index()].mglru;
        lru.mglru_machine.walk.flush(state);
    }
}
