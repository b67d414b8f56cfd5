// SPDX-License-Identifier: Apache-2.0
//! W-TinyLFU: a small LRU window in front of a segmented LRU; a page that leaves the window is
//! admitted only if it was accessed more often than the page it would replace.
//!
//! Source: Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission
//! policy", 2017.
//!
//! The window is 1 % of the pool, at least one page; the protected segment is 80 % of the rest.

use super::list::{Links, List};
use super::sketch::Sketch;
use super::{Policy, PolicySpec, Simulation};

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "wtinylfu",
    aliases: &["w-tiny-lfu", "window-tiny-lfu"],
    summary: "W-TinyLFU, window 1 %, segmented LRU behind it",
    simulation: Simulation::Online(|capacity| Box::new(WTinyLfu::new(capacity))),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Absent,
    Window,
    Probation,
    Protected,
}

struct WTinyLfu {
    window_max: usize,
    main_max: usize,
    protected_max: usize,
    sketch: Sketch,
    links: Links,
    window: List,
    probation: List,
    protected: List,
    place: Vec<Place>,
}

impl WTinyLfu {
    fn new(capacity: usize) -> Self {
        let window_max = (capacity / 100).max(1);
        let main_max = capacity - window_max;
        Self {
            window_max,
            main_max,
            protected_max: (main_max as u128 * 4 / 5) as usize,
            sketch: Sketch::new(capacity),
            links: Links::default(),
            window: List::default(),
            probation: List::default(),
            protected: List::default(),
            place: Vec::new(),
        }
    }

    /// A page on probation was accessed again.
    fn promote(&mut self, page: u32) {
        if self.protected_max == 0 {
            self.probation.move_to_front(&mut self.links, page);
            return;
        }
        self.probation.remove(&mut self.links, page);
        if self.protected.len() == self.protected_max
            && let Some(demoted) = self.protected.pop_back(&mut self.links)
        {
            self.probation.push_front(&mut self.links, demoted);
            self.place[demoted as usize] = Place::Probation;
        }
        self.protected.push_front(&mut self.links, page);
        self.place[page as usize] = Place::Protected;
    }

    /// Moves the oldest page of a full window into the main part, or evicts it.
    fn leave_window(&mut self) {
        let Some(candidate) = self.window.pop_back(&mut self.links) else {
            return;
        };
        self.place[candidate as usize] = Place::Absent;
        if self.main_max == 0 {
            return;
        }
        if self.probation.len() + self.protected.len() >= self.main_max {
            let probation_victim = self.probation.back();
            let Some(victim) = probation_victim.or(self.protected.back()) else {
                return;
            };
            if self.sketch.estimate(candidate) <= self.sketch.estimate(victim) {
                return;
            }
            let list = if probation_victim.is_some() {
                &mut self.probation
            } else {
                &mut self.protected
            };
            list.remove(&mut self.links, victim);
            self.place[victim as usize] = Place::Absent;
        }
        self.probation.push_front(&mut self.links, candidate);
        self.place[candidate as usize] = Place::Probation;
    }
}

impl Policy for WTinyLfu {
    fn reserve(&mut self, page_count: usize) {
        self.links.reserve(page_count);
        self.place
            .resize(page_count.max(self.place.len()), Place::Absent);
    }

    fn access(&mut self, page: u32) -> bool {
        self.sketch.add(page);
        match self.place[page as usize] {
            Place::Window => self.window.move_to_front(&mut self.links, page),
            Place::Protected => self.protected.move_to_front(&mut self.links, page),
            Place::Probation => self.promote(page),
            Place::Absent => {
                if self.window.len() == self.window_max {
                    self.leave_window();
                }
                self.window.push_front(&mut self.links, page);
                self.place[page as usize] = Place::Window;
                return false;
            }
        }
        true
    }

    fn resident_pages(&self) -> usize {
        self.window.len() + self.probation.len() + self.protected.len()
    }
}
