// SPDX-License-Identifier: Apache-2.0
//! ARC: two LRU lists, for pages seen once and pages seen again, each with a ghost list; ghost hits
//! move the boundary between them.
//!
//! Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003. The
//! names T1, T2, B1, B2 and p are those of the paper.

use super::list::{Links, List};
use super::{Policy, PolicySpec, Simulation};

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "arc",
    aliases: &[],
    summary: "ARC, adaptive between recency and frequency",
    simulation: Simulation::Online(|capacity| Box::new(Arc::new(capacity))),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Absent,
    T1,
    T2,
    B1,
    B2,
}

struct Arc {
    capacity: usize,
    /// Target size of T1, which may be fractional.
    p: f64,
    links: Links,
    t1: List,
    t2: List,
    b1: List,
    b2: List,
    place: Vec<Place>,
}

impl Arc {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            p: 0.0,
            links: Links::default(),
            t1: List::default(),
            t2: List::default(),
            b1: List::default(),
            b2: List::default(),
            place: Vec::new(),
        }
    }

    /// REPLACE of the paper: turns the tail of T1 or T2 into a ghost.
    fn replace(&mut self, page_was_in_b2: bool) {
        let t1_len = self.t1.len();
        let from_t1 =
            t1_len > 0 && (t1_len as f64 > self.p || (t1_len as f64 == self.p && page_was_in_b2));
        if from_t1 || self.t2.len() == 0 {
            if let Some(page) = self.t1.pop_back(&mut self.links) {
                self.b1.push_front(&mut self.links, page);
                self.place[page as usize] = Place::B1;
            }
        } else if let Some(page) = self.t2.pop_back(&mut self.links) {
            self.b2.push_front(&mut self.links, page);
            self.place[page as usize] = Place::B2;
        }
    }

    /// Case IV of the paper: the page is in none of the lists.
    fn make_room(&mut self) {
        let l1 = self.t1.len() + self.b1.len();
        let total = l1 + self.t2.len() + self.b2.len();
        if l1 == self.capacity {
            if self.t1.len() < self.capacity {
                self.forget(Place::B1);
                self.replace(false);
            } else {
                self.forget(Place::T1);
            }
        } else if total >= self.capacity {
            if total == 2 * self.capacity {
                self.forget(Place::B2);
            }
            self.replace(false);
        }
    }

    /// Drops the tail of a list, leaving no ghost.
    fn forget(&mut self, from: Place) {
        let list = match from {
            Place::T1 | Place::Absent => &mut self.t1,
            Place::T2 => &mut self.t2,
            Place::B1 => &mut self.b1,
            Place::B2 => &mut self.b2,
        };
        if let Some(page) = list.pop_back(&mut self.links) {
            self.place[page as usize] = Place::Absent;
        }
    }
}

impl Policy for Arc {
    fn reserve(&mut self, page_count: usize) {
        self.links.reserve(page_count);
        self.place
            .resize(page_count.max(self.place.len()), Place::Absent);
    }

    fn access(&mut self, page: u32) -> bool {
        let place = std::mem::replace(&mut self.place[page as usize], Place::T2);
        match place {
            Place::T2 => {
                self.t2.move_to_front(&mut self.links, page);
                return true;
            }
            Place::T1 => {
                self.t1.remove(&mut self.links, page);
                self.t2.push_front(&mut self.links, page);
                return true;
            }
            Place::B1 => {
                let step = (self.b2.len() as f64 / self.b1.len() as f64).max(1.0);
                self.p = (self.p + step).min(self.capacity as f64);
                self.replace(false);
                self.b1.remove(&mut self.links, page);
                self.t2.push_front(&mut self.links, page);
            }
            Place::B2 => {
                let step = (self.b1.len() as f64 / self.b2.len() as f64).max(1.0);
                self.p = (self.p - step).max(0.0);
                self.replace(true);
                self.b2.remove(&mut self.links, page);
                self.t2.push_front(&mut self.links, page);
            }
            Place::Absent => {
                self.make_room();
                self.t1.push_front(&mut self.links, page);
                self.place[page as usize] = Place::T1;
            }
        }
        false
    }

    fn resident_pages(&self) -> usize {
        self.t1.len() + self.t2.len()
    }
}
