// SPDX-License-Identifier: Apache-2.0
//! The classic LRU of one cgroup, written as plainly as possible: deques that are searched
//! linearly, and pages in a vector. The engine is compared with it.

use std::collections::VecDeque;

use super::{Kind, OomKill};

#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    pub resident: bool,
    pub active: bool,
    pub referenced: bool,
    pub workingset: bool,
    pub young: bool,
    /// Age and workingset flag at eviction.
    shadow: Option<(u64, bool)>,
}

const INACTIVE: usize = 0;
const ACTIVE: usize = 1;

pub struct Naive {
    kinds: Vec<Kind>,
    pub pages: Vec<Page>,
    /// By type (anon, file) and activity; the front is the newest end.
    pub lists: [[VecDeque<usize>; 2]; 2],
    add: Vec<Option<usize>>,
    activate: Vec<Option<usize>>,
    deactivate: Vec<Option<usize>>,
    flushed: [[u64; 2]; 2],
    flushed_activations: [u64; 2],
    pub activations: [u64; 2],
    snapshot: [u64; 2],
    pub cost: [u64; 2],
    pub age: u64,
    pub usage: u64,
    stock: u64,
    limit: u64,
    exact: bool,
    last_read: Option<usize>,
    pub scanned: [u64; 2],
    pub stolen: [u64; 2],
}

struct Pass {
    priority: u32,
    may_deactivate: [bool; 2],
    skipped: bool,
    trim: bool,
}

impl Naive {
    pub fn new(kinds: Vec<Kind>, limit: u64, exact: bool) -> Naive {
        Naive {
            pages: vec![Page::default(); kinds.len()],
            kinds,
            lists: Default::default(),
            add: Vec::new(),
            activate: Vec::new(),
            deactivate: Vec::new(),
            flushed: [[0; 2]; 2],
            flushed_activations: [0; 2],
            activations: [0; 2],
            snapshot: [0; 2],
            cost: [0; 2],
            age: 0,
            usage: 0,
            stock: 0,
            limit,
            exact,
            last_read: None,
            scanned: [0; 2],
            stolen: [0; 2],
        }
    }

    fn type_of(&self, page: usize) -> usize {
        usize::from(self.kinds[page] != Kind::Anon)
    }

    fn sizes(&self) -> [[u64; 2]; 2] {
        if self.exact {
            self.exact_sizes()
        } else {
            self.flushed
        }
    }

    fn exact_sizes(&self) -> [[u64; 2]; 2] {
        [0, 1].map(|t| [0, 1].map(|a: usize| self.lists[t][a].len() as u64))
    }

    fn seen_activations(&self) -> [u64; 2] {
        if self.exact {
            self.activations
        } else {
            self.flushed_activations
        }
    }

    pub fn flush(&mut self) {
        self.flushed = self.exact_sizes();
        self.flushed_activations = self.activations;
    }

    fn is_low(&self, t: usize) -> bool {
        self.sizes()[t][INACTIVE] < self.sizes()[t][ACTIVE]
    }

    fn is_listed(&self, page: usize) -> bool {
        self.lists.iter().flatten().any(|list| list.contains(&page))
    }

    fn unlist(&mut self, page: usize) {
        for list in self.lists.iter_mut().flatten() {
            list.retain(|&other| other != page);
        }
    }

    fn list(&mut self, page: usize) {
        let active = usize::from(self.pages[page].active);
        self.lists[self.type_of(page)][active].push_front(page);
    }

    fn drain(&mut self) {
        self.drain_add();
        for page in std::mem::take(&mut self.deactivate).into_iter().flatten() {
            if self.is_listed(page) && self.pages[page].active {
                self.unlist(page);
                self.pages[page].active = false;
                self.pages[page].referenced = false;
                self.list(page);
            }
        }
        self.drain_activate();
    }

    fn drain_add(&mut self) {
        for page in std::mem::take(&mut self.add).into_iter().flatten() {
            self.list(page);
        }
    }

    fn drain_activate(&mut self) {
        for page in std::mem::take(&mut self.activate).into_iter().flatten() {
            if self.is_listed(page) && !self.pages[page].active {
                self.unlist(page);
                self.pages[page].active = true;
                self.list(page);
            }
        }
    }

    fn note_cost(&mut self, t: usize, cost: u64) {
        if cost == 0 {
            return;
        }
        self.cost[t] += cost;
        let total: u64 = self.sizes().iter().flatten().sum();
        if self.cost[0] + self.cost[1] > total / 4 {
            self.cost = self.cost.map(|cost| cost / 2);
        }
    }

    fn take_young(&mut self, page: usize) -> bool {
        let sees = !matches!(
            self.kinds[page],
            Kind::Read | Kind::Mapped { recency: false }
        );
        sees && std::mem::take(&mut self.pages[page].young)
    }

    fn shrink_inactive(&mut self, t: usize, count: u64) -> u64 {
        self.drain();
        let mut taken = Vec::new();
        while (taken.len() as u64) < count {
            let Some(page) = self.lists[t][INACTIVE].pop_back() else {
                break;
            };
            taken.push(page);
        }
        self.scanned[t] += taken.len() as u64;
        let mut survivors = Vec::new();
        let mut reclaimed = 0;
        for &page in &taken {
            let young = self.take_young(page);
            let state = &mut self.pages[page];
            let referenced = std::mem::replace(&mut state.referenced, young);
            if young {
                state.active = referenced;
                survivors.push(page);
                continue;
            }
            *state = Page {
                shadow: Some((self.age, state.workingset)),
                ..Page::default()
            };
            self.age += 1;
            self.usage -= 1;
            reclaimed += 1;
        }
        for page in survivors {
            self.list(page);
            self.age += u64::from(self.pages[page].active);
        }
        self.stolen[t] += reclaimed;
        let io = if t == 0 { reclaimed * 32 } else { 0 };
        if !taken.is_empty() {
            self.note_cost(t, io + taken.len() as u64 - reclaimed);
        }
        reclaimed
    }

    fn shrink_active(&mut self, t: usize, count: u64) {
        self.drain();
        for _ in 0..count {
            let Some(page) = self.lists[t][ACTIVE].pop_back() else {
                break;
            };
            self.take_young(page);
            self.pages[page].active = false;
            self.pages[page].workingset = true;
            self.list(page);
        }
    }

    fn scan_counts(&self, pass: &Pass) -> [[u64; 2]; 2] {
        let both = self.cost[0] + self.cost[1];
        let part = self.cost.map(|cost| both + cost);
        let sum = part[0] + part[1] + 1;
        let share = [60 * sum / (part[0] + 1), 140 * sum / (part[1] + 1)];
        let mut counts = self.exact_sizes();
        for (t, of_type) in counts.iter_mut().enumerate() {
            for count in of_type {
                *count >>= pass.priority;
                if pass.priority == 0 {
                    continue;
                }
                *count = match (pass.trim, t) {
                    (true, 0) => 0,
                    (true, _) => *count,
                    (false, _) => *count * share[t] / (share[0] + share[1]),
                };
            }
        }
        counts
    }

    fn shrink(&mut self, pass: &mut Pass) -> u64 {
        let meant = self.scan_counts(pass);
        let mut left = meant;
        let mut reclaimed = 0;
        while left[0][INACTIVE] + left[1][INACTIVE] + left[1][ACTIVE] > 0 {
            for t in [0, 1] {
                for a in [INACTIVE, ACTIVE] {
                    let chunk = left[t][a].min(32);
                    left[t][a] -= chunk;
                    if chunk == 0 {
                    } else if a == INACTIVE {
                        reclaimed += self.shrink_inactive(t, chunk);
                    } else if pass.may_deactivate[t] {
                        self.shrink_active(t, chunk);
                    } else {
                        pass.skipped = true;
                    }
                }
            }
            if reclaimed < 32 {
                continue;
            }
            let rest = left.map(|of_type| of_type[0] + of_type[1]);
            if rest[0] == 0 || rest[1] == 0 {
                break;
            }
            let stop = usize::from(rest[1] <= rest[0]);
            let percent = rest[stop] * 100 / (meant[stop][0] + meant[stop][1] + 1);
            left[stop] = [0, 0];
            let other = 1 - stop;
            for a in [INACTIVE, ACTIVE] {
                let scanned = meant[other][a] - left[other][a];
                left[other][a] = (meant[other][a] * (100 - percent) / 100).saturating_sub(scanned);
            }
        }
        if self.is_low(0) {
            self.shrink_active(0, 32);
        }
        reclaimed
    }

    fn reclaim(&mut self) -> u64 {
        let mut force = false;
        let mut skipped = false;
        for attempt in 0..3 {
            if attempt == 2 {
                if !skipped {
                    break;
                }
                force = true;
            }
            let mut reclaimed = 0;
            for priority in (0..=12).rev() {
                let may_deactivate = [0, 1].map(|t| {
                    force || self.seen_activations()[t] != self.snapshot[t] || self.is_low(t)
                });
                let mut pass = Pass {
                    priority,
                    may_deactivate,
                    skipped: false,
                    trim: self.sizes()[1][INACTIVE] >> priority != 0 && !may_deactivate[1],
                };
                reclaimed += self.shrink(&mut pass);
                skipped |= pass.skipped;
                if reclaimed >= 32 {
                    break;
                }
            }
            self.snapshot = self.seen_activations();
            if reclaimed > 0 {
                return reclaimed;
            }
        }
        0
    }

    fn charge(&mut self) -> Result<(), OomKill> {
        if self.stock == 0 && self.usage + 64 <= self.limit {
            self.usage += 64;
            self.stock = 64;
        }
        let mut drained = false;
        let mut rounds = 16;
        loop {
            if self.stock > 0 {
                self.stock -= 1;
                return Ok(());
            }
            if self.usage < self.limit {
                self.usage += 1;
                return Ok(());
            }
            let reclaimed = self.reclaim();
            if self.usage < self.limit {
                continue;
            }
            if !drained {
                drained = true;
                self.usage -= std::mem::take(&mut self.stock);
            } else if reclaimed == 0 {
                if rounds == 0 {
                    return Err(OomKill);
                }
                rounds -= 1;
            }
        }
    }

    pub fn touch(&mut self, page: usize) -> Result<(), OomKill> {
        if !self.pages[page].resident {
            self.fault(page)?;
        }
        if self.kinds[page] == Kind::Read {
            if self.last_read != Some(page) {
                self.mark(page);
            }
            self.last_read = Some(page);
        } else {
            self.pages[page].young = true;
        }
        Ok(())
    }

    fn fault(&mut self, page: usize) -> Result<(), OomKill> {
        self.charge()?;
        let shadow = self.pages[page].shadow.take();
        self.pages[page] = Page {
            resident: true,
            ..Page::default()
        };
        let t = self.type_of(page);
        if let Some((age, workingset)) = shadow {
            let [[inactive_anon, active_anon], [inactive_file, active_file]] = self.sizes();
            let others = active_file + active_anon + [inactive_file, inactive_anon][t];
            if self.age - age <= others {
                self.pages[page].active = true;
                self.age += 1;
                self.activations[t] += 1;
                if workingset {
                    self.pages[page].workingset = true;
                    self.note_cost(t, 32);
                }
            }
        }
        self.add.push(Some(page));
        if self.add.len() == 31 {
            self.drain_add();
        }
        Ok(())
    }

    fn mark(&mut self, page: usize) {
        let listed = self.is_listed(page);
        let state = &mut self.pages[page];
        if !state.referenced {
            state.referenced = true;
        } else if !state.active {
            state.referenced = false;
            self.age += 1;
            if listed {
                self.activate.push(Some(page));
                if self.activate.len() == 31 {
                    self.drain_activate();
                }
            } else {
                state.active = true;
            }
        }
    }

    /// Cold advice.
    pub fn deactivate(&mut self, page: usize) {
        if self.is_listed(page) && self.pages[page].active {
            self.deactivate.push(Some(page));
            if self.deactivate.len() == 31 {
                let batch = std::mem::take(&mut self.activate);
                let add = std::mem::take(&mut self.add);
                self.drain();
                self.activate = batch;
                self.add = add;
            }
        }
    }

    /// The process frees a page.
    pub fn free(&mut self, page: usize) {
        if !self.pages[page].resident {
            return;
        }
        self.unlist(page);
        for batch in [&mut self.add, &mut self.activate, &mut self.deactivate] {
            for slot in batch {
                if *slot == Some(page) {
                    *slot = None;
                }
            }
        }
        self.pages[page] = Page::default();
        self.usage -= 1;
    }
}
