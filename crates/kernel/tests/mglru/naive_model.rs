// SPDX-License-Identifier: Apache-2.0
//! The multi-gen LRU as simply as it can be written: pages as records, lists as vectors,
//! generations by their full sequence numbers.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::{VPN_ANON, VPN_FILE};
use crate::trace::Touch;

/// Anon pages of the process.
pub const ANON: usize = 700;
/// Pages of its file.
pub const FILE: usize = 700;
const BATCH: usize = 31;

/// One page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    file: bool,
    vpn: u64,
    resident: bool,
    mapped: bool,
    young: bool,
    /// Generation while on a list; the list itself may be an older one.
    pub seq: Option<u64>,
    list: u64,
    referenced: bool,
    workingset: bool,
    active: bool,
    refs: u32,
    swapcache: bool,
    dirty: bool,
    pending: bool,
    /// At eviction: oldest generation, usage count minus one, and mark.
    shadow: Option<(u64, u32, bool)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Feedback {
    avg_refaulted: u64,
    avg_total: u64,
    refaulted: u64,
    evicted: u64,
    protected: u64,
}

/// The model.
#[derive(Default)]
pub struct Naive {
    /// True for the rules of 7.2, false for those of 6.12.
    new: bool,
    pub generations: u64,
    /// The largest count of the refs field.
    refs_max: u32,
    pub pages: Vec<Page>,
    /// By type and generation; oldest page first.
    pub lists: BTreeMap<(bool, u64), Vec<usize>>,
    pub max: u64,
    pub min: [u64; 2],
    feedback: [[Feedback; 4]; 2],
    add: Vec<usize>,
    activate: Vec<usize>,
    young_tables: BTreeSet<u64>,
    filters: [Option<BTreeSet<u64>>; 2],
    walked: u64,
    walked_once: bool,
    ran: bool,
    pub has_walk: bool,
    reclaimed: u64,
    pub scanned: u64,
    pub stolen: u64,
    pub sorted: u64,
    last_read: Option<usize>,
}

fn ceil_log2(n: u32) -> usize {
    (0..).find(|&i| 1 << i >= n).unwrap()
}

impl Naive {
    pub fn new(new: bool, generations: u8, tiers: u8) -> Naive {
        let page = |file, vpn| Page {
            file,
            vpn,
            ..Page::default()
        };
        let anon = (0..ANON as u64).map(|i| page(false, VPN_ANON + i));
        let file = (0..FILE as u64).map(|i| page(true, VPN_FILE + i));
        Naive {
            new,
            generations: generations.into(),
            refs_max: [0, 1, 3][usize::from(tiers - 2)],
            pages: anon.chain(file).collect(),
            max: 3,
            walked: 2,
            ..Naive::default()
        }
    }

    // ---- uses

    fn tiers(&self) -> usize {
        ceil_log2(self.refs_max + 1) + 2
    }

    fn uses(&self, i: usize) -> u32 {
        let page = &self.pages[i];
        match (self.new, page.referenced) {
            (false, _) => page.refs + u32::from(page.workingset),
            (true, true) => page.refs + 1,
            (true, false) => 0,
        }
    }

    fn tier_of(&self, uses: u32, workingset: bool) -> usize {
        match (self.new, workingset) {
            (false, _) => ceil_log2(uses + 1),
            (true, true) => self.tiers() - 1,
            (true, false) => ceil_log2(uses.max(1)),
        }
    }

    fn tier(&self, i: usize) -> usize {
        self.tier_of(self.uses(i), self.pages[i].workingset)
    }

    fn always_protected(&self, i: usize) -> bool {
        let extra = u32::from(self.new && self.pages[i].workingset);
        self.uses(i) + extra == self.refs_max + 1 + u32::from(self.new)
    }

    fn mark(&mut self, i: usize) {
        let most = self.refs_max;
        let page = &mut self.pages[i];
        if !page.referenced {
            page.referenced = true;
            if self.new {
                page.refs = 0;
            }
        } else if self.new && page.refs == most || !self.new && !page.workingset {
            page.workingset = true;
        } else {
            page.refs = (page.refs + 1).min(most);
        }
    }

    fn forget_uses(&mut self, i: usize) {
        let page = &mut self.pages[i];
        page.referenced = false;
        page.refs = 0;
        if !self.new {
            page.workingset = false;
        }
    }

    // ---- lists

    fn list(&mut self, file: bool, seq: u64) -> &mut Vec<usize> {
        self.lists.entry((file, seq)).or_default()
    }

    fn entry_seq(&self, i: usize) -> u64 {
        let page = &self.pages[i];
        let min = self.min[usize::from(page.file)];
        let fresh_anon = !page.file && !page.swapcache;
        if !self.new {
            return if page.active {
                self.max
            } else if fresh_anon {
                self.max - 1
            } else if min + 2 >= self.max {
                min
            } else {
                min + 1
            };
        }
        let back = if page.active {
            u64::from(!page.workingset)
        } else if fresh_anon {
            1
        } else if page.workingset || page.referenced {
            self.generations - 2
        } else {
            self.generations - 1
        };
        self.max.saturating_sub(back).max(min)
    }

    fn insert(&mut self, i: usize) {
        let seq = self.entry_seq(i);
        let new = self.new;
        let page = &mut self.pages[i];
        if page.active && !new {
            page.referenced = false;
            page.refs = 0;
        }
        page.active = false;
        page.seq = Some(seq);
        page.list = seq;
        let file = page.file;
        self.list(file, seq).push(i);
    }

    fn take_off(&mut self, i: usize, for_reclaim: bool) {
        let max = self.max;
        let page = &mut self.pages[i];
        let seq = page.seq.take().unwrap();
        if !for_reclaim && seq + 1 >= max {
            page.active = true;
        }
        let (file, list) = (page.file, page.list);
        self.list(file, list).retain(|&other| other != i);
    }

    fn relist(&mut self, i: usize, seq: u64, oldest: bool) {
        let (file, from) = (self.pages[i].file, self.pages[i].list);
        self.list(file, from).retain(|&other| other != i);
        self.pages[i].list = seq;
        let list = self.list(file, seq);
        list.insert(if oldest { 0 } else { list.len() }, i);
    }

    fn drain(&mut self) {
        for i in std::mem::take(&mut self.add) {
            self.insert(i);
        }
        self.drain_activate();
    }

    fn drain_activate(&mut self) {
        for i in std::mem::take(&mut self.activate) {
            self.pages[i].pending = false;
            if self.pages[i].seq.is_some() {
                self.take_off(i, false);
                self.pages[i].active = true;
                self.insert(i);
            }
        }
    }

    fn queue_activation(&mut self, i: usize) {
        if self.pages[i].seq.is_some() {
            self.pages[i].pending = true;
            self.activate.push(i);
            if self.activate.len() == BATCH {
                self.drain_activate();
            }
        }
    }

    fn total(&self) -> u64 {
        self.pages.iter().filter(|page| page.seq.is_some()).count() as u64
    }

    fn in_generation(&self, seq: u64) -> u64 {
        let is_there = |page: &&Page| page.seq == Some(seq);
        self.pages.iter().filter(is_there).count() as u64
    }

    // ---- aging

    fn promote(&mut self, i: usize) {
        let new = self.new;
        let page = &mut self.pages[i];
        if new && !page.referenced && !page.workingset {
            page.referenced = true;
            page.refs = 0;
        } else if page.seq.is_none() {
            page.referenced |= !new;
        } else {
            page.seq = Some(self.max);
            self.forget_uses(i);
            self.pages[i].workingset |= new;
        }
    }

    /// Whether the walk or rmap clears the accessed bit of a page.
    fn takes_bit(&self, i: usize) -> bool {
        let page = &self.pages[i];
        page.resident && page.mapped && page.young && (!self.new || page.seq.is_some())
    }

    pub fn age(&mut self, force: bool) -> bool {
        self.has_walk = true;
        if self.max <= self.walked {
            return false;
        }
        let force = force || !self.walked_once;
        self.walked_once = true;
        let next = ((self.max + 1) % 2) as usize;
        if self.ran || force {
            self.filters[next] = Some(BTreeSet::new());
            self.walk(force);
        }
        self.ran = false;
        self.walked += 1;
        for t in if self.new { [0, 1] } else { [1, 0] } {
            if self.max - self.min[t] + 1 == self.generations {
                self.retire(t);
            }
        }
        self.max += 1;
        true
    }

    fn walk(&mut self, force: bool) {
        let tables: BTreeSet<u64> = self.pages.iter().map(|page| page.vpn / 512).collect();
        for table in tables {
            if !force {
                if !self.young_tables.remove(&table) {
                    continue;
                }
                let filter = &self.filters[(self.max % 2) as usize];
                if filter
                    .as_ref()
                    .is_some_and(|filter| !filter.contains(&table))
                {
                    continue;
                }
            }
            let entries: Vec<usize> = (0..self.pages.len())
                .filter(|&i| self.pages[i].vpn / 512 == table)
                .collect();
            let mut young = 0;
            for &i in &entries {
                if self.takes_bit(i) {
                    self.pages[i].young = false;
                    young += 1;
                    self.promote(i);
                }
            }
            if young * 8 >= entries.len() {
                let next = ((self.max + 1) % 2) as usize;
                self.filters[next].as_mut().unwrap().insert(table);
            }
        }
    }

    /// Empties the oldest generation into the next one.
    fn retire(&mut self, t: usize) {
        let min = self.min[t];
        while let Some(&i) = self.list(t == 1, min).first() {
            if self.new && !self.always_protected(i) {
                let tier = self.tier(i);
                self.feedback[t][tier].protected += 1;
            }
            let seq = self.move_up(i, t);
            self.relist(i, seq, true);
        }
        self.carry_over(t);
        self.min[t] += 1;
    }

    fn move_up(&mut self, i: usize, t: usize) -> u64 {
        let seq = self.pages[i].seq.unwrap();
        if seq != self.min[t] {
            return seq;
        }
        self.forget_uses(i);
        self.pages[i].seq = Some(seq + 1);
        seq + 1
    }

    fn carry_over(&mut self, t: usize) {
        for tier in &mut self.feedback[t] {
            *tier = Feedback {
                avg_refaulted: (tier.avg_refaulted + tier.refaulted) / 2,
                avg_total: (tier.avg_total + tier.evicted + tier.protected) / 2,
                ..Feedback::default()
            };
        }
    }

    fn advance(&mut self) -> bool {
        let mut min = self.min;
        let mut found = false;
        for (t, min) in min.iter_mut().enumerate() {
            while *min + 2 <= self.max && self.list(t == 1, *min).is_empty() {
                *min += 1;
                found = true;
            }
        }
        let spare = self.max - 2;
        if !self.new {
            min[0] = min[0].min(min[1]);
            min[1] = min[0].max(self.min[1]);
        } else if found && min[0] > spare && min[1] < spare {
            min[0] = spare;
        } else if found && min[1] > spare && min[0] < spare {
            min[1] = spare;
        }
        let mut advanced = false;
        for (t, min) in min.into_iter().enumerate() {
            if min > self.min[t] && (found || !self.new) {
                self.carry_over(t);
                self.min[t] = min;
                advanced = true;
            }
        }
        advanced
    }

    // ---- feedback

    fn position(&self, t: usize, tiers: std::ops::Range<usize>, gain: u64) -> (u64, u64, u64) {
        let mut position = (0, 0, gain);
        for feedback in &self.feedback[t][tiers] {
            position.0 += feedback.avg_refaulted + feedback.refaulted;
            position.1 += feedback.avg_total + feedback.evicted + feedback.protected;
        }
        position
    }

    fn tolerates(sp: (u64, u64, u64), pv: (u64, u64, u64)) -> bool {
        pv.0 < 64 || pv.0 * (sp.1 + 64) * sp.2 <= (sp.0 + 1) * pv.1 * pv.2
    }

    fn threshold(&self, t: usize, sp: (u64, u64, u64), gain: u64) -> usize {
        (1..self.tiers())
            .find(|&tier| !Self::tolerates(sp, self.position(t, tier..tier + 1, gain)))
            .unwrap_or(self.tiers())
            - 1
    }

    fn own_threshold(&self, t: usize) -> usize {
        let (own, other) = if self.new { (2, 3) } else { (1, 2) };
        self.threshold(t, self.position(t, 0..1, own), other)
    }

    fn choose(&self) -> (usize, Option<usize>) {
        if !self.new && self.min[0] < self.min[1] {
            return (0, None);
        }
        let tiers = if self.new { self.tiers() } else { 1 };
        let gains = [60, 140];
        let position = |t: usize| self.position(t, 0..tiers, gains[t]);
        let t = usize::from(Self::tolerates(position(0), position(1)));
        let threshold = self.threshold(t, position(1 - t), gains[t]);
        (t, (!self.new).then_some(threshold))
    }

    // ---- eviction

    /// Returns the number of pages examined, the pages isolated, and whether the budget ran out.
    fn scan(&mut self, t: usize, threshold: usize, budget: u64) -> (u64, Vec<usize>, bool) {
        let (mut examined, mut isolated) = (0, Vec::new());
        if self.max - self.min[t] == 1 {
            return (0, isolated, false);
        }
        let min = self.min[t];
        while let Some(&i) = self.list(t == 1, min).first() {
            examined += 1;
            let tier = self.tier(i);
            if self.pages[i].seq != Some(min) {
                self.sorted += 1;
                self.relist(i, self.pages[i].seq.unwrap(), false);
            } else if tier > threshold || self.always_protected(i) {
                self.sorted += 1;
                if !self.new || !self.always_protected(i) {
                    self.feedback[t][tier].protected += 1;
                }
                let seq = self.move_up(i, t);
                self.relist(i, seq, !self.new);
            } else {
                let new = self.new;
                let page = &mut self.pages[i];
                if !page.referenced {
                    page.refs = 0;
                    page.workingset &= new;
                }
                page.referenced &= new;
                self.take_off(i, true);
                isolated.push(i);
            }
            if examined == budget || isolated.len() == 64 {
                break;
            }
        }
        self.scanned += isolated.len() as u64;
        (examined, isolated, examined == budget)
    }

    fn evict(&mut self, budget: u64) -> u64 {
        if self.new {
            self.advance();
        }
        let (mut t, mut threshold) = self.choose();
        let (mut sum, mut batch) = (0, Vec::new());
        for _ in 0..2 {
            let limit = threshold.unwrap_or_else(|| self.own_threshold(t));
            let (examined, isolated, exhausted) = self.scan(t, limit, budget);
            batch = isolated;
            if self.new {
                sum += examined;
                if !batch.is_empty() {
                    break;
                }
                if examined == 0 {
                    t = 1 - t;
                }
            } else {
                if !batch.is_empty() || exhausted {
                    sum = examined;
                    break;
                }
                t = 1 - t;
                threshold = None;
            }
        }
        if !self.new || sum > 0 {
            sum += u64::from(self.advance() && !self.new);
        }
        if !self.new && self.max - self.min[0] == 1 {
            sum = 0;
        }
        self.shrink(t, batch);
        sum
    }

    fn shrink(&mut self, t: usize, batch: Vec<usize>) {
        let mut batch = batch;
        for round in 0..2 {
            let survivors: Vec<usize> = batch.into_iter().filter(|&i| !self.free(i)).collect();
            batch = Vec::new();
            for i in survivors {
                let page = self.pages[i];
                let busy = page.active || page.mapped || page.dirty;
                let busy = busy || !self.new && page.referenced;
                if round == 0 && !busy {
                    batch.push(i);
                    continue;
                }
                if !self.new || self.entry_seq(i) == self.min[t] {
                    self.forget_uses(i);
                    self.pages[i].active = true;
                }
                self.insert(i);
            }
        }
    }

    /// Frees an isolated page unless it was used or is in a batch.
    fn free(&mut self, i: usize) -> bool {
        if !self.new && self.pages[i].mapped && self.pages[i].referenced {
            return false;
        }
        if self.pages[i].mapped && self.pages[i].young {
            self.pages[i].young = false;
            self.look_around(i);
            if self.new {
                let active = self.rmap_step(i);
                self.pages[i].active |= active;
            } else {
                self.pages[i].active |= self.pages[i].referenced;
                self.pages[i].referenced = true;
            }
            return false;
        }
        let was_referenced = self.pages[i].referenced;
        if !self.new {
            self.pages[i].referenced = false;
        }
        let page = &mut self.pages[i];
        let fresh_swap = !page.file && !page.swapcache;
        page.swapcache |= fresh_swap;
        page.dirty |= fresh_swap;
        page.mapped = false;
        let clean_only = !self.new && was_referenced && page.file;
        if page.pending || clean_only && page.dirty {
            return false;
        }
        let t = usize::from(page.file);
        let (uses, tier) = (self.uses(i), self.tier(i));
        let page = &mut self.pages[i];
        let bit = if self.new { page.workingset } else { uses > 0 };
        *page = Page {
            file: page.file,
            vpn: page.vpn,
            shadow: Some((self.min[t], uses.saturating_sub(1), bit)),
            ..Page::default()
        };
        self.feedback[t][tier].evicted += 1;
        self.stolen += 1;
        self.reclaimed += 1;
        true
    }

    /// Handles an accessed page as rmap does in 7.2; returns whether to activate it.
    fn rmap_step(&mut self, i: usize) -> bool {
        let page = &mut self.pages[i];
        if !page.referenced && !page.workingset {
            page.referenced = true;
            page.refs = 0;
            return false;
        }
        if self.uses(i) > 1 {
            self.forget_uses(i);
            self.pages[i].workingset = true;
        } else {
            self.mark(i);
        }
        true
    }

    fn look_around(&mut self, i: usize) {
        let file = self.pages[i].file;
        let vpn = self.pages[i].vpn;
        let table = vpn / 512;
        let (mut from, mut to) = (u64::MAX, 0);
        for page in self.pages.iter().filter(|page| page.file == file) {
            if page.vpn / 512 == table {
                from = from.min(page.vpn);
                to = to.max(page.vpn + 1);
            }
        }
        if to - from > 64 {
            from = if vpn - from < 32 {
                from
            } else if to - vpn < 32 {
                to - 64
            } else {
                vpn - 32
            };
            to = from + 64;
        }
        let mut young = 1;
        for other in 0..self.pages.len() {
            let page = self.pages[other];
            let inside = page.file == file && (from..to).contains(&page.vpn);
            if !inside || other == i || !self.takes_bit(other) {
                continue;
            }
            self.pages[other].young = false;
            young += 1;
            let youngest = page.seq == Some(self.max);
            if self.has_walk {
                self.promote(other);
            } else if self.new {
                if self.rmap_step(other) && !youngest {
                    self.queue_activation(other);
                }
            } else if page.seq.is_none() {
                self.pages[other].referenced = true;
            } else if !youngest {
                self.forget_uses(other);
                self.queue_activation(other);
            }
        }
        if young * 8 >= to - from
            && let Some(filter) = &mut self.filters[(self.max % 2) as usize]
        {
            filter.insert(table);
        }
    }

    // ---- reclaim

    fn shrink_lruvec(&mut self, priority: u32) {
        self.drain();
        self.has_walk = false;
        if self.new {
            let mut amount = self.total() >> priority;
            while amount > 0 {
                let oldest = self.min[0].min(self.min[1]);
                if oldest + 2 > self.max || priority < 12 && oldest + 2 == self.max {
                    self.age(false);
                }
                let examined = self.evict(amount.min(64));
                if examined == 0 || self.reclaimed >= 32 {
                    break;
                }
                amount = amount.saturating_sub(examined);
            }
        } else {
            let mut scanned = 0;
            loop {
                let starved = self.min[0] + 2 > self.max;
                let total = if starved { 0 } else { self.total() };
                let lopsided = self.in_generation(self.max) * 2 > total
                    || self.in_generation(self.max - 2) * 4 < total;
                let due = starved || self.min[0] + 2 == self.max && lopsided;
                if due && priority < 12 {
                    self.age(false);
                    break;
                }
                let amount = total >> priority;
                if amount == 0 {
                    break;
                }
                let examined = self.evict(4096);
                scanned += examined;
                if examined == 0 || scanned >= amount {
                    break;
                }
            }
        }
        self.has_walk = false;
    }

    pub fn reclaim(&mut self) {
        self.ran = true;
        self.reclaimed = 0;
        for _ in 0..2 {
            for priority in (0..=12).rev() {
                self.shrink_lruvec(priority);
                if self.reclaimed >= 32 {
                    return;
                }
            }
            if self.reclaimed > 0 {
                return;
            }
        }
    }

    // ---- accesses

    fn bring_in(&mut self, i: usize, fault: bool) {
        let page = &mut self.pages[i];
        let shadow = page.shadow.take();
        page.resident = true;
        page.swapcache = self.new && !page.file && shadow.is_some();
        if let Some(shadow) = shadow {
            self.refault(i, shadow, fault);
        }
        if fault && (!self.new || self.pages[i].workingset) {
            self.pages[i].active = true;
        } else if fault && !self.pages[i].referenced {
            self.mark(i);
        }
        self.add.push(i);
        if self.add.len() == BATCH {
            for i in std::mem::take(&mut self.add) {
                self.insert(i);
            }
        }
        self.pages[i].swapcache = false;
    }

    fn refault(&mut self, i: usize, (seq, refs, bit): (u64, u32, bool), fault: bool) {
        let t = usize::from(self.pages[i].file);
        let recent = if self.new {
            self.max - seq < self.generations
        } else {
            seq == self.min[t]
        };
        if !recent {
            return;
        }
        let uses = refs + if self.new { 1 } else { u32::from(bit) };
        let tier = self.tier_of(uses, self.new && bit);
        self.feedback[t][tier].refaulted += 1;
        let most = self.refs_max;
        let page = &mut self.pages[i];
        if self.new {
            if bit {
                page.workingset = true;
            } else {
                page.refs = refs;
            }
        } else if fault || uses >= most {
            page.workingset = true;
            page.refs = most;
        }
    }

    pub fn touch(&mut self, touch: Touch, reclaims: u64) {
        let (i, mapped) = match touch {
            Touch::Anon(page) => (page as usize, true),
            Touch::Mapped(page) => (ANON + page as usize, true),
            Touch::Read(page) => (ANON + page as usize, false),
        };
        for _ in 0..reclaims {
            self.reclaim();
        }
        if !self.pages[i].resident {
            self.bring_in(i, mapped);
        }
        if mapped {
            self.pages[i].mapped = true;
            self.pages[i].young = true;
            self.young_tables.insert(self.pages[i].vpn / 512);
        } else if self.last_read.replace(i) != Some(i) {
            self.mark(i);
        }
    }
}
