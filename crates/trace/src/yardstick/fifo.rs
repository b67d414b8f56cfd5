// SPDX-License-Identifier: Apache-2.0
//! FIFO: evicts the page that was brought in longest ago.

use super::{Policy, PolicySpec, Simulation};

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "fifo",
    aliases: &[],
    summary: "first in, first out",
    simulation: Simulation::Online(|capacity| Box::new(Fifo::new(capacity))),
};

struct Fifo {
    capacity: usize,
    /// The pool as a ring; once full, `oldest` is replaced next.
    frames: Vec<u32>,
    oldest: usize,
    resident: Vec<bool>,
}

impl Fifo {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            frames: Vec::new(),
            oldest: 0,
            resident: Vec::new(),
        }
    }
}

impl Policy for Fifo {
    fn reserve(&mut self, page_count: usize) {
        self.resident
            .resize(page_count.max(self.resident.len()), false);
    }

    #[inline]
    fn access(&mut self, page: u32) -> bool {
        if std::mem::replace(&mut self.resident[page as usize], true) {
            return true;
        }
        if self.frames.len() < self.capacity {
            self.frames.push(page);
            return false;
        }
        let victim = std::mem::replace(&mut self.frames[self.oldest], page);
        self.resident[victim as usize] = false;
        self.oldest = if self.oldest + 1 == self.capacity {
            0
        } else {
            self.oldest + 1
        };
        false
    }

    fn resident_pages(&self) -> usize {
        self.frames.len()
    }
}
