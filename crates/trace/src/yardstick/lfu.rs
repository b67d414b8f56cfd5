// SPDX-License-Identifier: Apache-2.0
//! LFU over resident pages: evicts the page with the fewest accesses since it was brought in; among
//! several, the one that has had that count longest.

use std::collections::BTreeMap;

use super::list::{Links, List};
use super::{Policy, PolicySpec, Simulation};

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "lfu",
    aliases: &[],
    summary: "least frequently used since it came in",
    simulation: Simulation::Online(|capacity| Box::new(Lfu::new(capacity))),
};

struct Lfu {
    capacity: usize,
    resident: usize,
    links: Links,
    /// The resident pages by number of accesses; no list is empty.
    by_accesses: BTreeMap<u32, List>,
    /// Accesses since the page was brought in; 0 if it is not resident.
    accesses: Vec<u32>,
}

impl Lfu {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            resident: 0,
            links: Links::default(),
            by_accesses: BTreeMap::new(),
            accesses: Vec::new(),
        }
    }

    fn evict(&mut self) {
        let Some(mut fewest) = self.by_accesses.first_entry() else {
            return;
        };
        if let Some(page) = fewest.get_mut().pop_back(&mut self.links) {
            self.accesses[page as usize] = 0;
            self.resident -= 1;
        }
        if fewest.get().len() == 0 {
            fewest.remove();
        }
    }

    fn insert(&mut self, page: u32, accesses: u32) {
        self.accesses[page as usize] = accesses;
        self.by_accesses
            .entry(accesses)
            .or_default()
            .push_front(&mut self.links, page);
    }
}

impl Policy for Lfu {
    fn reserve(&mut self, page_count: usize) {
        self.links.reserve(page_count);
        self.accesses.resize(page_count.max(self.accesses.len()), 0);
    }

    fn access(&mut self, page: u32) -> bool {
        let accesses = self.accesses[page as usize];
        if accesses == 0 {
            if self.resident == self.capacity {
                self.evict();
            }
            self.insert(page, 1);
            self.resident += 1;
            return false;
        }
        if let Some(list) = self.by_accesses.get_mut(&accesses) {
            list.remove(&mut self.links, page);
            if list.len() == 0 {
                self.by_accesses.remove(&accesses);
            }
        }
        self.insert(page, accesses.saturating_add(1));
        true
    }

    fn resident_pages(&self) -> usize {
        self.resident
    }
}
