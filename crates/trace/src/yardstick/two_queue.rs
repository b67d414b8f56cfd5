// SPDX-License-Identifier: Apache-2.0
//! 2Q, full version: a FIFO for new pages, a ghost of pages evicted from it, and an LRU for ghost
//! hits.
//!
//! Source: Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement
//! algorithm", VLDB 1994. Kin is 25 % and Kout 50 % of the pool, as the paper suggests. The LRU is
//! limited to its own share, `capacity - Kin`: otherwise a long run of ghost hits takes the whole
//! pool from new pages.

use super::list::{Links, List};
use super::{Policy, PolicySpec, Simulation};

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "2q",
    aliases: &["two-queue", "twoq"],
    summary: "2Q, Kin 25 %, Kout 50 %",
    simulation: Simulation::Online(|capacity| Box::new(TwoQueue::new(capacity))),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Absent,
    In,
    Out,
    Main,
}

struct TwoQueue {
    in_max: usize,
    out_max: usize,
    main_max: usize,
    capacity: usize,
    links: Links,
    in_fifo: List,
    out_ghosts: List,
    main: List,
    place: Vec<Place>,
}

impl TwoQueue {
    fn new(capacity: usize) -> Self {
        let in_max = capacity / 4;
        Self {
            in_max,
            out_max: capacity / 2,
            main_max: capacity - in_max,
            capacity,
            links: Links::default(),
            in_fifo: List::default(),
            out_ghosts: List::default(),
            main: List::default(),
            place: Vec::new(),
        }
    }

    fn make_room(&mut self) {
        if self.resident_pages() < self.capacity {
            return;
        }
        if self.in_fifo.len() > self.in_max || self.main.len() == 0 {
            if let Some(page) = self.in_fifo.pop_back(&mut self.links) {
                self.remember(page);
            }
        } else {
            self.evict_main();
        }
    }

    fn evict_main(&mut self) {
        if let Some(page) = self.main.pop_back(&mut self.links) {
            self.place[page as usize] = Place::Absent;
        }
    }

    fn remember(&mut self, page: u32) {
        self.place[page as usize] = Place::Absent;
        if self.out_max == 0 {
            return;
        }
        if self.out_ghosts.len() == self.out_max
            && let Some(oldest) = self.out_ghosts.pop_back(&mut self.links)
        {
            self.place[oldest as usize] = Place::Absent;
        }
        self.out_ghosts.push_front(&mut self.links, page);
        self.place[page as usize] = Place::Out;
    }
}

impl Policy for TwoQueue {
    fn reserve(&mut self, page_count: usize) {
        self.links.reserve(page_count);
        self.place
            .resize(page_count.max(self.place.len()), Place::Absent);
    }

    fn access(&mut self, page: u32) -> bool {
        match self.place[page as usize] {
            Place::In => true,
            Place::Main => {
                self.main.move_to_front(&mut self.links, page);
                true
            }
            Place::Out => {
                self.out_ghosts.remove(&mut self.links, page);
                self.make_room();
                if self.main.len() == self.main_max {
                    self.evict_main();
                }
                self.main.push_front(&mut self.links, page);
                self.place[page as usize] = Place::Main;
                false
            }
            Place::Absent => {
                self.make_room();
                self.in_fifo.push_front(&mut self.links, page);
                self.place[page as usize] = Place::In;
                false
            }
        }
    }

    fn resident_pages(&self) -> usize {
        self.in_fifo.len() + self.main.len()
    }
}
