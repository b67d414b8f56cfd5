// SPDX-License-Identifier: Apache-2.0
//! SIEVE: a hand moves from the oldest page to the newest and evicts pages not accessed since its
//! last visit; survivors stay where they are.
//!
//! Source: Zhang et al., "SIEVE is simpler than LRU", NSDI 2024.

use super::list::{Links, List};
use super::{Policy, PolicySpec, Simulation};

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "sieve",
    aliases: &[],
    summary: "SIEVE, one accessed bit, survivors keep their place",
    simulation: Simulation::Online(|capacity| Box::new(Sieve::new(capacity))),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Resident,
    Accessed,
}

struct Sieve {
    capacity: usize,
    links: Links,
    list: List,
    /// Where the hand continues; the back if `None`.
    hand: Option<u32>,
    state: Vec<State>,
}

impl Sieve {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            links: Links::default(),
            list: List::default(),
            hand: None,
            state: Vec::new(),
        }
    }

    fn evict(&mut self) {
        let Some(mut page) = self.hand.or(self.list.back()) else {
            return;
        };
        while self.state[page as usize] == State::Accessed {
            self.state[page as usize] = State::Resident;
            match List::frontward(&self.links, page).or(self.list.back()) {
                Some(next) => page = next,
                None => return,
            }
        }
        self.hand = List::frontward(&self.links, page);
        self.list.remove(&mut self.links, page);
        self.state[page as usize] = State::Absent;
    }
}

impl Policy for Sieve {
    fn reserve(&mut self, page_count: usize) {
        self.links.reserve(page_count);
        self.state
            .resize(page_count.max(self.state.len()), State::Absent);
    }

    #[inline]
    fn access(&mut self, page: u32) -> bool {
        if self.state[page as usize] != State::Absent {
            self.state[page as usize] = State::Accessed;
            return true;
        }
        if self.list.len() == self.capacity {
            self.evict();
        }
        self.list.push_front(&mut self.links, page);
        self.state[page as usize] = State::Resident;
        false
    }

    fn resident_pages(&self) -> usize {
        self.list.len()
    }
}
