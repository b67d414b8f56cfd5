// SPDX-License-Identifier: Apache-2.0
//! S3-FIFO: a small FIFO that most pages leave soon, a main FIFO with a 2-bit counter, and a ghost.
//!
//! Source: Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. The small
//! queue is 10 % of the pool, and the ghost remembers 90 %. A page that leaves the small queue
//! after two or more accesses moves to the main queue. While the pool is not full, the small queue
//! may exceed its share, as in the paper. In the authors' later code (libCacheSim's Python package
//! 0.3.5) a page then goes directly to the main queue, until the first eviction:
//! [`MAIN_FIRST_SPEC`].

use super::list::{Links, List};
use super::{Policy, PolicySpec, Simulation};

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "s3fifo",
    aliases: &["s3-fifo"],
    summary: "S3-FIFO, small queue 10 %, ghost 90 %, two accesses promote",
    simulation: Simulation::Online(|capacity| Box::new(S3Fifo::new(capacity, Fill::Small))),
};

pub(super) static MAIN_FIRST_SPEC: PolicySpec = PolicySpec {
    name: "s3fifo-main-first",
    aliases: &[],
    summary: "S3-FIFO as libCacheSim has it now: the first pages fill the main queue",
    simulation: Simulation::Online(|capacity| Box::new(S3Fifo::new(capacity, Fill::Main))),
};

/// Accesses in the small queue that move a page to the main queue.
const PROMOTE_ACCESSES: u8 = 2;
/// Maximum of the 2-bit counter of the main queue.
const COUNT_MAX: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Absent,
    Small,
    Main,
    Ghost,
}

/// The queue that takes new pages once the small one has its share, until the first eviction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    Small,
    Main,
}

struct S3Fifo {
    fill: Fill,
    capacity: usize,
    main_max: usize,
    ghost_max: usize,
    links: Links,
    small: List,
    main: List,
    ghost: List,
    /// The place of each page, and its accesses since it got there.
    pages: Vec<(Place, u8)>,
}

impl S3Fifo {
    fn new(capacity: usize, fill: Fill) -> Self {
        let small_max = (capacity / 10).max(1);
        Self {
            fill,
            capacity,
            main_max: capacity - small_max,
            ghost_max: (capacity as u128 * 9 / 10) as usize,
            links: Links::default(),
            small: List::default(),
            main: List::default(),
            ghost: List::default(),
            pages: Vec::new(),
        }
    }

    fn evict(&mut self) {
        self.fill = Fill::Small;
        if self.main.len() > self.main_max || self.small.len() == 0 {
            self.evict_main();
        } else {
            self.evict_small();
        }
    }

    /// Evicts a page of the small queue, unless all its pages move to the main queue.
    fn evict_small(&mut self) {
        while let Some(page) = self.small.pop_back(&mut self.links) {
            if self.pages[page as usize].1 >= PROMOTE_ACCESSES {
                self.insert(page, Place::Main);
                continue;
            }
            self.pages[page as usize].0 = Place::Absent;
            self.remember(page);
            return;
        }
    }

    fn evict_main(&mut self) {
        while let Some(page) = self.main.pop_back(&mut self.links) {
            let (place, accesses) = &mut self.pages[page as usize];
            if *accesses == 0 {
                *place = Place::Absent;
                return;
            }
            *accesses -= 1;
            self.main.push_front(&mut self.links, page);
        }
    }

    fn remember(&mut self, page: u32) {
        if self.ghost_max == 0 {
            return;
        }
        if self.ghost.len() == self.ghost_max
            && let Some(oldest) = self.ghost.pop_back(&mut self.links)
        {
            self.pages[oldest as usize].0 = Place::Absent;
        }
        self.insert(page, Place::Ghost);
    }

    fn insert(&mut self, page: u32, place: Place) {
        let list = match place {
            Place::Small => &mut self.small,
            Place::Ghost => &mut self.ghost,
            Place::Main | Place::Absent => &mut self.main,
        };
        list.push_front(&mut self.links, page);
        self.pages[page as usize] = (place, 0);
    }
}

impl Policy for S3Fifo {
    fn reserve(&mut self, page_count: usize) {
        self.links.reserve(page_count);
        self.pages
            .resize(page_count.max(self.pages.len()), (Place::Absent, 0));
    }

    #[inline]
    fn access(&mut self, page: u32) -> bool {
        let (place, accesses) = &mut self.pages[page as usize];
        let remembered = match *place {
            Place::Small | Place::Main => {
                *accesses = (*accesses + 1).min(COUNT_MAX);
                return true;
            }
            Place::Ghost => {
                *place = Place::Absent;
                self.ghost.remove(&mut self.links, page);
                true
            }
            Place::Absent => false,
        };
        while self.resident_pages() >= self.capacity {
            self.evict();
        }
        let small_max = self.capacity - self.main_max;
        let fills_main = self.fill == Fill::Main && self.small.len() >= small_max;
        let place = if remembered || fills_main {
            Place::Main
        } else {
            Place::Small
        };
        self.insert(page, place);
        false
    }

    fn resident_pages(&self) -> usize {
        self.small.len() + self.main.len()
    }
}
