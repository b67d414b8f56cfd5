// SPDX-License-Identifier: Apache-2.0
//! What if there were less memory? Estimates faults per second by memory size from looks at pages
//! that are made anyway.
//!
//! The module simulates a fixed number of pages, selected by hash: a memory of 60 % of what is
//! resident holds 60 % of them. LRU follows for all sizes from stack distances; the kernel's own
//! LRU is simulated in miniature at some sizes. First uses of pages are not caused by too little
//! memory and are not counted.
//!
//! Every figure has an interval. It covers the order of uses within a look, which accessed bits do
//! not reveal (least and greatest distance over all orders); the selection of pages (eight parts of
//! the sample are compared with one another, and the size of the memory they represent is itself
//! uncertain); the choice of the time (up to eight periods are compared, for a time to come that is
//! as long); uses of pages whose previous use was before the observation; and, in upper bounds
//! below 100 percent, further uses of pages that were first used meanwhile. The upper bound of file
//! faults is doubled for readahead and large folios. If a look is so long that more pages are used
//! in it than a memory holds, a page may have left and come back many times between two looks: the
//! upper bound is then infinite.
//!
//! ```
//! use agewise_policy::PageType;
//! use agewise_policy::whatif::{Decider, Fact, Params, WhatIf, page_hash};
//!
//! let mut what_if = WhatIf::new(Params::default());
//! for second in 0..300u64 {
//!     let mut look = what_if.look(second * 1000);
//!     for page in 0..1000u64 {
//!         // 100 pages are used all the time, and of the others ten a second in turn.
//!         let is_used = page < 100 || page % 90 == second % 90;
//!         let fact = if is_used { Fact::Used } else { Fact::Idle };
//!         look.page(page_hash(0, page), 0, PageType::Anon, fact);
//!     }
//!     look.finish(1000, true);
//! }
//! let curve = what_if.curves();
//! let half = curve.of(Decider::Lru).at(52.0).faults_per_second();
//! assert!((half.likely - 10.0).abs() < 1.5, "the loop does not fit: {half:?}");
//! assert!(curve.of(Decider::Lru).at(100.0).faults_per_second().likely < 1.0);
//! ```

mod curve;
mod first_use;
pub mod history;
pub mod keep;
mod periods;
pub mod plan;
mod pool;
pub mod recommend;
mod sample;
pub mod shrink;
mod stack;
mod tally;
mod waiting;

use crate::generations::PageType;
use crate::sample::Level;
use crate::table::PAGE_BYTES;

pub use curve::{
    Bound, Curve, Curves, Decider, Estimate, PERCENTS, POLICIES, Point, Prices, SIZES,
};
pub use history::{History, HistoryError};
pub use sample::{Filter, page_hash};
pub use waiting::Facts;

use first_use::may_return;
use pool::{Pools, ReusePools, pools};
use sample::{Page, Sample};
use stack::Stack;
use tally::{Scale, Tally};

/// The index of a page in the sample.
type Slot = u16;
/// No page.
const NONE: Slot = Slot::MAX;

/// The most pages that can be simulated.
pub const PAGES_MAX: usize = 1 << 15;

/// An unmapped page of a file is forgotten after this many looks; until then it may still be in the
/// page cache.
const FORGET_LOOKS: u32 = 256;

/// A sample is too sparse if it has room for this many times its pages.
const SPARSE_FACTOR: usize = 8;

/// Memory may grow by one part in this many before existing counts are moved.
const GROWTH_PART: f64 = 64.0;

/// The order in which the running kernel evicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernel {
    /// Active and inactive lists.
    #[default]
    Classic,
    /// Generations (`CONFIG_LRU_GEN`, and switched on).
    MultiGen,
}

/// How much is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Maximum number of pages simulated, up to [`PAGES_MAX`].
    pub pages: usize,
    /// The kernel's order is simulated at one of this many sizes; in between, results are
    /// interpolated linearly.
    pub every: usize,
    /// The kernel's order.
    pub kernel: Kernel,
    /// Whether agewise's own order is simulated as well: its model takes 0.1 ms per look.
    pub reuse: bool,
}

impl Default for Params {
    /// For a command: about 5 MiB.
    fn default() -> Self {
        Params {
            pages: 1 << 14,
            every: 1,
            kernel: Kernel::Classic,
            reuse: true,
        }
    }
}

impl Params {
    /// For a daemon that follows many cgroups.
    pub fn small(kernel: Kernel) -> Self {
        Params {
            pages: 1 << 9,
            every: 6,
            kernel,
            reuse: false,
        }
    }
}

/// What a look showed about a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// It is present and has been used since the last look.
    Used,
    /// It is present and has not been used since the last look.
    Idle,
    /// It is in swap.
    Out,
}

/// How many pages of files there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePages {
    /// All of them.
    pub resident: u64,
    /// Those that have not been used since the first look.
    pub unused: u64,
}

/// Simulates memories of other sizes for one process or cgroup.
#[derive(Debug)]
pub struct WhatIf {
    sample: Sample,
    stack: Stack,
    pools: Box<dyn Pools>,
    reuse: Option<Box<ReusePools>>,
    simulated: Vec<usize>,
    tally: Tally,
    scale: Scale,
    looks: u32,
    last_ms: u64,
    full_pages: u64,
    peak_pages: Option<u64>,
    unused_pages: f64,
}

/// A look in progress. It must be shown every page of the sample, in any order.
#[derive(Debug)]
pub struct Look<'a> {
    of: &'a mut WhatIf,
}

impl WhatIf {
    /// Starts without observations.
    pub fn new(params: Params) -> Self {
        let pages = params.pages.clamp(1, PAGES_MAX);
        let simulated = tally::simulated(params.every);
        WhatIf {
            sample: Sample::new(pages),
            stack: Stack::new(pages),
            pools: pools(params.kernel, simulated.len(), pages),
            reuse: params
                .reuse
                .then(|| Box::new(ReusePools::new(simulated.len(), pages))),
            simulated,
            tally: Tally::new(0, params.reuse),
            scale: Scale::default(),
            looks: 0,
            last_ms: 0,
            full_pages: 0,
            peak_pages: None,
            unused_pages: 0.0,
        }
    }

    /// Starts a look. `now_ms` must not go back; if it does, the clock counts as stopped.
    pub fn look(&mut self, now_ms: u64) -> Look<'_> {
        self.last_ms = self.last_ms.max(now_ms);
        if self.looks == 0 {
            self.tally = Tally::new(self.last_ms, self.reuse.is_some());
        }
        self.sample.begin();
        Look { of: self }
    }

    /// Restarts counting: earlier looks only showed where pages are. 100 percent becomes what was
    /// resident since the last call.
    pub fn count_anew(&mut self) {
        self.tally = Tally::new(self.last_ms, self.reuse.is_some());
        let pages = self.sample.pages_mut();
        pages.for_each(|page| page.first_use.count_anew());
        // Unknown if no look was whole.
        self.full_pages = self.peak_pages.take().unwrap_or(self.full_pages);
    }

    /// 100 percent is at least this many pages. As memory grows from less, counts are moved again
    /// and again along lines between sizes, which blunts steps in a curve; no interval covers that.
    pub fn expect(&mut self, full_pages: u64) {
        self.full_pages = self.full_pages.max(full_pages);
    }

    /// How long it has counted, ms.
    pub fn observed_ms(&self) -> u64 {
        self.tally.observed_ms(self.last_ms)
    }

    /// Looks so far.
    pub fn looks(&self) -> u32 {
        self.looks
    }

    /// Pages simulated.
    pub fn sampled_pages(&self) -> usize {
        self.sample.len()
    }

    /// Whether a new simulation would have many more pages: what was selected has to represent much
    /// more memory than there is now, and never becomes more.
    pub fn is_sparse(&self) -> bool {
        self.sample.is_part() && self.sample.len() * SPARSE_FACTOR < self.sample.slots()
    }

    /// The pages of files that the last look at all of them found, with those used since.
    pub fn file_pages(&self) -> FilePages {
        let files = || {
            let pages = self.sample.iter().map(|(_, page)| page);
            pages.filter(|page| page.page_type == PageType::File)
        };
        // Looks between show only what is used; a look at all of them also shows what is not.
        let idle = files().filter(|page| page.fact == Fact::Idle);
        let last = idle.map(|page| page.shown).max().unwrap_or(0);
        let there = || files().filter(|page| page.shown >= last);
        let pages = |count: usize| (count as f64 * self.scale.weight) as u64;
        let unused = there().filter(|page| page.is_unknown).count();
        FilePages {
            resident: pages(there().count()),
            unused: pages(unused),
        }
    }

    /// The curves since the last [`count_anew`](Self::count_anew).
    pub fn curves(&self) -> Curves {
        let full_bytes = self.full_pages.saturating_mul(PAGE_BYTES);
        let mut curves = self
            .tally
            .curves(self.last_ms, &self.scale, full_bytes, &self.simulated);
        curves.allow([PageType::Anon, PageType::File].map(|of| {
            let pages = self.sample.iter().map(|(_, page)| page);
            let pages = pages.filter(|page| page.page_type == of);
            may_return(pages.map(|page| page.first_use)) * self.scale.weight
        }));
        Curves {
            unused_bytes: (self.unused_pages * PAGE_BYTES as f64) as u64,
            ..curves
        }
    }

    fn forget(&mut self, slot: Slot) {
        self.stack.remove(slot);
        self.pools.remove(slot);
        if let Some(reuse) = &mut self.reuse {
            reuse.remove(slot);
        }
    }

    /// Updates how many pages one page of the sample represents, and what 100 percent is.
    fn rescale(&mut self, present: u64, resident_pages: u64) {
        let share = self.sample.filter().share();
        let resident = match resident_pages {
            0 => (present as f64 / share.max(f64::MIN_POSITIVE)).round() as u64,
            _ => resident_pages.max(present),
        };
        self.peak_pages = self.peak_pages.max(Some(resident));
        let grown = resident as f64 > self.full_pages as f64 * (1.0 + 1.0 / GROWTH_PART);
        if grown || self.full_pages == 0 {
            if self.full_pages > 0 {
                let factor = resident as f64 / self.full_pages as f64;
                self.tally.stretch(factor, &self.simulated);
            }
            self.full_pages = resident;
        }
        let weight = match present {
            0 => 1.0 / share.max(f64::MIN_POSITIVE),
            _ => resident as f64 / present as f64,
        };
        self.scale = Scale {
            weight,
            full: self.full_pages as f64 / weight,
            share: (1.0 / weight).min(1.0),
        };
    }

    /// Sorts the pages of a look into the assumed order of use: that of their previous uses, as in
    /// repetitive work; new pages come last, as they were shown, which is by address. For
    /// independent uses this makes no difference as long as a look shows a small part of memory.
    fn put_in_order(&self, slots: &mut [Slot]) {
        slots.sort_unstable_by_key(|slot| {
            let number = self.sample.page(*slot).map_or(0, |page| page.number);
            (self.stack.position(*slot), number)
        });
    }

    /// Adds pages of the sample that are present from now on, in this order. Whether they were used
    /// is unknown, so nothing is counted.
    fn take_in(&mut self, come: &[Slot]) {
        self.stack.look(come);
        let capacities = self.capacities();
        self.pools.use_pages(&capacities, come, &mut |_, _| {});
    }

    fn capacities(&self) -> Vec<u32> {
        let sizes = self.simulated.iter();
        sizes.map(|size| self.scale.capacity(*size)).collect()
    }

    /// Uses pages, and counts those that memories of each size would not have kept.
    fn use_pages(&mut self, come: &[Slot], used: &[Slot]) {
        let capacities = self.capacities();
        let WhatIf {
            sample,
            tally,
            scale,
            simulated,
            ..
        } = self;
        let distances = self.stack.look(used);
        let mut count = |slot: Slot, distance| {
            let page = sample.page_mut(slot)?;
            page.first_use.used();
            if std::mem::take(&mut page.is_out) {
                tally.seen_pages += scale.weight;
            }
            if std::mem::take(&mut page.is_unknown) {
                tally.unknown_pages += scale.weight;
            }
            tally.lru(distance?, page.page_type, page.rank, scale);
            Some((page.page_type, page.rank))
        };
        // Only pages that are not new.
        let counted: Vec<Option<(PageType, u64)>> = used
            .iter()
            .zip(distances)
            .map(|(slot, distance)| count(*slot, distance))
            .collect();
        let pools = &mut self.pools;
        pools.use_pages(&capacities, used, &mut |number, at| {
            if let Some((page_type, rank)) = counted[at] {
                tally.kernel.miss(simulated[number], page_type, rank, scale);
            }
        });
        if let (Some(pools), Some(faults)) = (&mut self.reuse, &mut tally.reuse) {
            pools.look(&capacities, come, used, &mut |number, at| {
                if let Some((page_type, rank)) = counted[at] {
                    faults.miss(simulated[number], page_type, rank, scale);
                }
            });
        }
    }
}

impl Look<'_> {
    /// Selects the pages that must be shown; others are ignored.
    pub fn filter(&self) -> Filter {
        self.of.sample.filter()
    }

    /// Shows a page. `hash` is its [`page_hash`], derived from its permanent name; one page in
    /// 2^`level` of its kind is followed. A page that several processes share may be shown several
    /// times: it counts as used if one of them used it.
    pub fn page(&mut self, hash: u64, level: Level, page_type: PageType, fact: Fact) {
        for left in self.of.sample.limit(level) {
            self.of.forget(left);
        }
        let look = self.of.looks;
        if let Some(slot) = self.of.sample.find(hash, level) {
            if let Some(page) = self.of.sample.page_mut(slot) {
                page.show(look, page_type, fact);
            }
            return;
        }
        let page = Page::new(look, page_type, fact);
        if let Some(left) = self.of.sample.add(hash, level, page) {
            self.of.forget(left);
        }
    }

    /// Records that uses went unnoticed for this long: those between reading an accessed bit and
    /// clearing it are lost. The upper bounds allow for them.
    pub fn blind(&mut self, ms: f64) {
        self.of.tally.blind_ms += ms;
    }

    /// Ends the look. `resident_pages` is the number of all resident pages, sampled or not; 0 if
    /// unknown. An incomplete look says nothing about the pages it did not show.
    pub fn finish(self, resident_pages: u64, is_whole: bool) {
        let of = self.of;
        let look = of.looks;
        let is_gone = |page: &Page| match page.page_type {
            PageType::Anon => page.shown != look,
            PageType::File => look - page.shown > FORGET_LOOKS,
        };
        let (mut gone, mut present) = (Vec::new(), 0);
        let (mut out, mut idle, mut used) = (Vec::new(), Vec::new(), Vec::new());
        for (slot, page) in of.sample.iter() {
            if page.shown != look {
                gone.extend((is_whole && is_gone(page)).then_some(slot));
                continue;
            }
            present += u64::from(page.fact != Fact::Out);
            match page.fact {
                Fact::Used => used.push(slot),
                Fact::Idle if page.is_new => idle.push(slot),
                Fact::Out if page.is_new => out.push(slot),
                Fact::Idle | Fact::Out => {}
            }
        }
        for slot in gone {
            of.forget(slot);
            of.sample.remove(slot);
        }
        if is_whole || look == 0 {
            of.sample.end_whole();
        }
        // Some pages out of a known number do not show how many pages each represents.
        if is_whole || resident_pages == 0 || look == 0 {
            of.rescale(present, resident_pages);
        }
        for list in [&mut out, &mut idle, &mut used] {
            of.put_in_order(list);
        }
        if look == 0 {
            // Nothing is known about their order except that pages in swap were used before the
            // others; and nothing about when they were used.
            let here = [idle, used].concat();
            of.take_in(&out);
            of.take_in(&here);
            let capacities = of.capacities();
            if let Some(pools) = &mut of.reuse {
                pools.look(&capacities, &here, &[], &mut |_, _| {});
            }
        } else {
            of.tally.look(of.last_ms, used.len(), &of.scale);
            of.take_in(&[out, idle.clone()].concat());
            of.use_pages(&idle, &used);
        }
        let unused = of
            .sample
            .iter()
            .filter(|(_, page)| page.is_unknown && !page.is_out);
        of.unused_pages = unused.count() as f64 * of.scale.weight;
        of.looks += 1;
    }
}

#[cfg(test)]
mod tests;
