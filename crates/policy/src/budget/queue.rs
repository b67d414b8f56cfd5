// SPDX-License-Identifier: Apache-2.0
//! What is known about the pages of a target, and the queue of those that go next.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::order::RANKS;
use super::returns::Returns;
use super::{Moved, Order, PAGE_BYTES, QUEUE_TIERS, Scanned};
use crate::generations::{ByType, PageType};
use crate::proactive::{Action, Decision, Reason};
use crate::reuse::{Look, PageHistory, ReuseModel};
use crate::table::{PAGES_PER_TABLE, PageSet, TableBits, WORDS_PER_TABLE};

/// The rank of pages that must not go.
const STAYS: u16 = RANKS as u16 - 1;
/// Maximum number of runs passed to the mover at once.
const RUNS_MAX: usize = 256;

/// What a scan saw of one table.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Page number of the table's first page / 512.
    pub index: u64,
    /// Bits of its entries.
    pub bits: TableBits,
    /// Pages that may be moved at all.
    pub movable: PageSet,
}

/// What the mover did with the chosen pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Pages that left.
    pub left_pages: u64,
    /// Calls that were made.
    pub calls: u64,
}

/// What is known about the pages of a target, in one or more address spaces that `S` identifies,
/// and which of them go next. Pages are named by number: address / page size.
///
/// A page takes two bytes, also while it is in swap, and 16 more while it is queued on its own.
#[derive(Clone, Debug)]
pub struct PageQueue<S> {
    order: Order,
    type_of: fn(S) -> PageType,
    /// The types of pages that may go.
    goes: ByType<bool>,
    /// Separate models: a page read once from a file and a page touched once by a program have
    /// little in common.
    models: ByType<ReuseModel>,
    spaces: BTreeMap<S, Space>,
    tiers: VecDeque<Tier<S>>,
    returns: Returns<S>,
}

#[derive(Clone, Debug, Default)]
struct Space {
    /// Ascending.
    tables: Vec<Table>,
    /// Pages that left although they had been touched since the last scan that cleared accessed
    /// bits.
    touched_out: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Table {
    index: u64,
    pages: Box<[PageHistory; PAGES_PER_TABLE]>,
}

/// Pages of similar rank, in ascending order of address, so that neighbours leave together.
#[derive(Clone, Debug)]
struct Tier<S> {
    rank_max: u16,
    runs: VecDeque<Run<S>>,
}

#[derive(Clone, Copy, Debug)]
struct Run<S> {
    first: u64,
    pages: u32,
    space: S,
}

impl<S: Copy + Ord> PageQueue<S> {
    /// An empty queue that knows nothing. All address spaces are anonymous memory.
    pub fn new(order: Order) -> Self {
        PageQueue {
            order,
            type_of: |_| PageType::Anon,
            goes: [true; 2],
            models: PageType::ALL.map(|_| order.model()),
            spaces: BTreeMap::new(),
            tiers: VecDeque::new(),
            returns: Returns::new(),
        }
    }

    /// Sets which address spaces are files; their pages are learned about separately.
    #[must_use]
    pub fn with_types(mut self, type_of: fn(S) -> PageType) -> Self {
        self.type_of = type_of;
        self
    }

    /// Sets the types of pages that may go from now on (the others are only observed), and how many
    /// are to be kept free.
    pub fn decided(&mut self, decision: &Decision) {
        if let Action::Coldest { types, .. } = decision.action {
            self.goes = types;
        }
        if let Reason::OverBudget { headroom_bytes, .. } = decision.reason {
            self.returns.keep_free(headroom_bytes / PAGE_BYTES);
        }
    }

    /// The kernel alone holds the limit for a while: what comes back meanwhile proves nothing.
    pub fn left_to_kernel(&mut self) {
        self.returns.forget();
    }

    /// Forgets the address spaces for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(S) -> bool) {
        self.spaces.retain(|space, _| keep(*space));
        for tier in &mut self.tiers {
            tier.runs.retain(|run| keep(run.space));
        }
    }

    /// Takes in what was seen of whole address spaces (tables ascending) and replaces the queue
    /// with the `pages` that go first. A scan `counts` if it also cleared accessed bits; only then
    /// does the model learn from it, otherwise only the queue is rebuilt. What is known about
    /// address spaces that are not included is kept, but none of their pages are queued.
    pub fn scan(&mut self, seen: &BTreeMap<S, Vec<Seen>>, counts: bool, pages: u64) -> Scanned {
        let (mut scanned, mut movable_pages) = (Scanned::default(), 0);
        for (space, tables) in seen {
            let young = tables.iter().map(|table| table.bits.young.len());
            let young_pages: u64 = young.sum();
            scanned.young_pages += young_pages;
            let present = tables.iter().map(|table| table.bits.present.len());
            scanned.present_pages += present.sum::<u64>();
            if self.goes[(self.type_of)(*space) as usize] {
                let movable = tables.iter().map(|of| (of.movable & of.bits.present).len());
                movable_pages += movable.sum::<u64>();
            }
            // Accesses to files are recorded at each read, whether bits are cleared or not.
            if (self.type_of)(*space) == PageType::Anon {
                scanned.cleared_pages += young_pages;
            }
        }
        scanned.movable_pages = Some(movable_pages);
        self.returns.look(seen);
        (scanned.judged_pages, scanned.back_pages) = self.returns.take();
        if counts {
            self.learn(seen);
        }
        self.fill(seen, counts, pages);
        scanned
    }

    /// The queued pages in the order of tiers: those that go first come first.
    pub fn queued(&self) -> impl Iterator<Item = (S, Range<u64>)> {
        self.runs()
            .map(|run| (run.space, run.first..run.first + u64::from(run.pages)))
    }

    /// Moves up to `pages` pages of the queue with `mover`. It receives ascending runs of one
    /// address space, and a function that it calls with what it observes right before the move, and
    /// that returns which of them go. A page that was touched since it was queued still goes if it
    /// is worth no more than its neighbours in the queue; otherwise it is queued again or stays.
    /// The next pages of the queue take its place, until enough were tried or the queue is empty.
    pub fn move_out(
        &mut self,
        pages: u64,
        mut mover: impl FnMut(S, &[Range<u64>], &mut dyn FnMut(&[Seen]) -> Vec<Range<u64>>) -> Gone,
    ) -> Moved {
        let mut moved = Moved::default();
        let mut left = pages;
        while left > 0
            && let Some((space, rank_max, runs)) = self.take(left)
        {
            if !self.goes[(self.type_of)(space) as usize] {
                continue;
            }
            let asked: u64 = runs.iter().map(|run| run.end - run.start).sum();
            let (mut chosen, mut young) = (Vec::new(), 0);
            let gone = mover(space, &runs, &mut |seen| {
                let (runs, stay) = self.choose(space, rank_max, &runs, seen);
                young += stay;
                chosen.extend_from_slice(&runs);
                runs
            });
            if gone.left_pages > 0 {
                let left = chosen.iter().cloned().flatten();
                left.for_each(|page| self.returns.add(space, page));
            }
            let chosen = chosen.iter().map(|run| run.end - run.start).sum::<u64>();
            let chosen = chosen.min(asked);
            // When a page of a large folio was chosen, the rest of the folio leaves with it.
            let tried = chosen.max(gone.left_pages);
            moved.tried_bytes += tried * PAGE_BYTES;
            moved.young_again_bytes += young.min(asked - chosen) * PAGE_BYTES;
            moved.left_bytes += gone.left_pages * PAGE_BYTES;
            moved.calls += gone.calls;
            left = left.saturating_sub(tried);
        }
        moved
    }

    /// Bytes of memory that it uses for pages; its two models take a few KiB more.
    pub fn memory_bytes(&self) -> usize {
        let space = |space: &Space| {
            let histories = space.tables.len() * PAGES_PER_TABLE * size_of::<PageHistory>();
            let headers = space.tables.capacity() * size_of::<Table>();
            histories + headers + space.touched_out.capacity() * size_of::<u64>()
        };
        let queued = self.tiers.iter().map(|tier| tier.runs.capacity());
        self.spaces.values().map(space).sum::<usize>() + queued.sum::<usize>() * size_of::<Run<S>>()
    }

    fn runs(&self) -> impl Iterator<Item = &Run<S>> {
        self.tiers.iter().flat_map(|tier| &tier.runs)
    }

    fn learn(&mut self, seen: &BTreeMap<S, Vec<Seen>>) {
        let mut looks = self.models.each_mut().map(ReuseModel::look);
        for (space, known) in &mut self.spaces {
            let look = &looks[(self.type_of)(*space) as usize];
            if look.is_shift_due() {
                let tables = known.tables.iter_mut();
                tables.for_each(|table| look.shift(&mut *table.pages));
            }
        }
        for (space, seen) in seen {
            let look = &mut looks[(self.type_of)(*space) as usize];
            let space = self.spaces.entry(*space).or_default();
            let mut touched_out = std::mem::take(&mut space.touched_out);
            touched_out.sort_unstable();
            let mut touched_out = touched_out.into_iter().peekable();
            let mut before = std::mem::take(&mut space.tables).into_iter().peekable();
            for seen in seen {
                while before.next_if(|table| table.index < seen.index).is_some() {}
                let known = before.next_if(|table| table.index == seen.index);
                let there = seen.bits.present | seen.bits.swapped;
                if there.is_empty() {
                    continue;
                }
                let mut table = known.unwrap_or_else(|| Table {
                    index: seen.index,
                    pages: Box::new([PageHistory::default(); PAGES_PER_TABLE]),
                });
                let mut touched = seen.bits.young;
                let table_of = |page: u64| page / PAGES_PER_TABLE as u64;
                while let Some(page) = touched_out.next_if(|page| table_of(*page) <= seen.index) {
                    if table_of(page) == seen.index {
                        touched.insert((page % PAGES_PER_TABLE as u64) as usize);
                    }
                }
                // A page that is neither mapped nor in swap is gone for good.
                (!there)
                    .pages()
                    .for_each(|page| table.pages[page] = PageHistory::default());
                let words = table.pages.chunks_exact_mut(64).enumerate();
                for (word, pages) in words {
                    let number = seen.index * WORDS_PER_TABLE as u64 + word as u64;
                    look.word(number, pages, touched[word] & there[word]);
                }
                space.tables.push(table);
            }
        }
        looks.into_iter().for_each(Look::finish);
    }

    fn fill(&mut self, seen: &BTreeMap<S, Vec<Seen>>, counts: bool, pages: u64) {
        let mut counted = [0u64; RANKS];
        let ranks = self.ranks(seen, counts, &mut counted);
        // How many pages go up to and including each rank; among equals, those at the highest
        // address go first.
        let mut before = [0u64; RANKS];
        let (mut lower, mut ranks_queued) = (0, 0);
        for (rank, (before, count)) in (0..STAYS).zip(before.iter_mut().zip(counted)) {
            if lower < pages {
                ranks_queued = rank + 1;
            }
            lower += count;
            *before = lower;
        }
        let tier_pages = pages.div_ceil(QUEUE_TIERS).max(1);
        let mut tiers: VecDeque<Tier<S>> = VecDeque::new();
        let tables = seen.iter().flat_map(|(space, seen)| {
            let first = |seen: &Seen| seen.index * PAGES_PER_TABLE as u64;
            seen.iter().map(move |seen| (*space, first(seen)))
        });
        for ((space, first), ranks) in tables.zip(&ranks) {
            let queued = ranks.iter().enumerate();
            for (slot, rank) in queued.filter(|(_, rank)| **rank < ranks_queued) {
                let place = &mut before[usize::from(*rank)];
                *place -= 1;
                if *place < pages {
                    let at = (*place / tier_pages + 1).ilog2() as usize;
                    put(&mut tiers, at, *rank, space, first + slot as u64);
                }
            }
        }
        self.tiers = tiers;
    }

    /// The ranks of all pages, table by table (two bytes per page while the queue is built); also
    /// counts the pages of each rank. Pages that must not go have [`STAYS`].
    fn ranks(
        &self,
        seen: &BTreeMap<S, Vec<Seen>>,
        counts: bool,
        counted: &mut [u64; RANKS],
    ) -> Vec<[u16; PAGES_PER_TABLE]> {
        let mut ranks = Vec::with_capacity(seen.values().map(Vec::len).sum());
        for (space, seen) in seen {
            let page_type = (self.type_of)(*space) as usize;
            let (model, goes) = (&self.models[page_type], self.goes[page_type]);
            let tables = self
                .spaces
                .get(space)
                .map_or(&[][..], |space| &space.tables);
            for seen in seen {
                let known = known(tables, seen.index);
                // Their bits were cleared, and the histories include these accesses.
                let touched = if counts {
                    PageSet::NONE
                } else {
                    seen.bits.young
                };
                let mut of = [STAYS; PAGES_PER_TABLE];
                let movable = if goes { seen.movable } else { PageSet::NONE };
                (movable & seen.bits.present).pages().for_each(|slot| {
                    let page = known.map_or(PageHistory::default(), |pages| pages[slot]);
                    if let Some(rank) = self.order.rank(model, page, touched.contains(slot)) {
                        of[slot] = rank;
                        counted[usize::from(rank)] += 1;
                    }
                });
                ranks.push(of);
            }
        }
        ranks
    }

    /// Takes runs of one address space and one tier from the queue, ascending, at most `pages` in
    /// all. Also returns the highest rank of the tier.
    fn take(&mut self, mut pages: u64) -> Option<(S, u16, Vec<Range<u64>>)> {
        while self.tiers.front().is_some_and(|tier| tier.runs.is_empty()) {
            self.tiers.pop_front();
        }
        let tier = self.tiers.front_mut()?;
        let space = tier.runs.front()?.space;
        let mut runs: Vec<Range<u64>> = Vec::new();
        while pages > 0
            && runs.len() < RUNS_MAX
            && let Some(run) = tier.runs.front_mut().filter(|run| run.space == space)
        {
            let length = u64::from(run.pages).min(pages);
            pages -= length;
            runs.push(run.first..run.first + length);
            run.first += length;
            run.pages -= length as u32;
            if run.pages == 0 {
                tier.runs.pop_front();
            }
        }
        // Pages that were touched and queued again are at the end of their tier.
        runs.sort_unstable_by_key(|run| run.start);
        Some((space, tier.rank_max, runs))
    }

    /// Which pages of `runs` go, given what was observed just now, and how many stay because they
    /// were touched.
    fn choose(
        &mut self,
        space: S,
        rank_max: u16,
        runs: &[Range<u64>],
        seen: &[Seen],
    ) -> (Vec<Range<u64>>, u64) {
        let mut chosen: Vec<Range<u64>> = Vec::new();
        let mut young = 0;
        for page in runs.iter().cloned().flatten() {
            let (index, slot) = place(page);
            let Ok(at) = seen.binary_search_by_key(&index, |seen| seen.index) else {
                continue;
            };
            let Seen { bits, movable, .. } = &seen[at];
            if !bits.present.contains(slot) || !movable.contains(slot) {
                continue;
            }
            if bits.young.contains(slot) && !self.goes_though_touched(space, page, rank_max) {
                young += 1;
                continue;
            }
            match chosen.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => chosen.push(page..page + 1),
            }
        }
        (chosen, young)
    }

    /// A queued page was touched: returns whether it goes anyway. If not, it may be queued again.
    fn goes_though_touched(&mut self, space: S, page: u64, rank_max: u16) -> bool {
        let Some(known) = self.spaces.get_mut(&space) else {
            return false;
        };
        let (index, slot) = place(page);
        let history = known_page(&known.tables, index, slot);
        let model = &self.models[(self.type_of)(space) as usize];
        let Some(rank) = self.order.rank(model, history, true) else {
            return false;
        };
        if rank <= rank_max {
            known.touched_out.push(page);
            return true;
        }
        if let Some(tier) = self.tiers.iter_mut().find(|tier| rank <= tier.rank_max) {
            tier.runs.push_back(Run {
                first: page,
                pages: 1,
                space,
            });
        }
        false
    }
}

/// Adds a page to a tier; callers pass pages in order of address.
fn put<S: PartialEq>(tiers: &mut VecDeque<Tier<S>>, at: usize, rank: u16, space: S, page: u64) {
    while tiers.len() <= at {
        tiers.push_back(Tier {
            rank_max: 0,
            runs: VecDeque::new(),
        });
    }
    let tier = &mut tiers[at];
    tier.rank_max = tier.rank_max.max(rank);
    match tier.runs.back_mut() {
        Some(run) if run.space == space && run.first + u64::from(run.pages) == page => {
            run.pages += 1;
        }
        _ => tier.runs.push_back(Run {
            first: page,
            pages: 1,
            space,
        }),
    }
}

/// The index of a page's table, and the page's place in it.
fn place(page: u64) -> (u64, usize) {
    let pages = PAGES_PER_TABLE as u64;
    (page / pages, (page % pages) as usize)
}

fn known(tables: &[Table], index: u64) -> Option<&[PageHistory; PAGES_PER_TABLE]> {
    let at = tables.binary_search_by_key(&index, |table| table.index);
    at.ok().map(|at| &*tables[at].pages)
}

fn known_page(tables: &[Table], index: u64, slot: usize) -> PageHistory {
    known(tables, index).map_or(PageHistory::default(), |pages| pages[slot])
}
