// SPDX-License-Identifier: Apache-2.0
//! LRU: evicts the page that was accessed longest ago.

use super::list::{Links, List};
use super::{Policy, PolicySpec, Simulation};

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "lru",
    aliases: &[],
    summary: "least recently used",
    simulation: Simulation::Stack(|capacity| Box::new(Lru::new(capacity))),
};

struct Lru {
    capacity: usize,
    links: Links,
    list: List,
    resident: Vec<bool>,
}

impl Lru {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            links: Links::default(),
            list: List::default(),
            resident: Vec::new(),
        }
    }
}

impl Policy for Lru {
    fn reserve(&mut self, page_count: usize) {
        self.links.reserve(page_count);
        self.resident
            .resize(page_count.max(self.resident.len()), false);
    }

    #[inline]
    fn access(&mut self, page: u32) -> bool {
        if self.resident[page as usize] {
            self.list.move_to_front(&mut self.links, page);
            return true;
        }
        if self.list.len() == self.capacity
            && let Some(victim) = self.list.pop_back(&mut self.links)
        {
            self.resident[victim as usize] = false;
        }
        self.resident[page as usize] = true;
        self.list.push_front(&mut self.links, page);
        false
    }

    fn resident_pages(&self) -> usize {
        self.list.len()
    }
}
