// SPDX-License-Identifier: Apache-2.0
//! A replacement policy: the most recently used page goes first, which is optimal for a
//! loop over more pages than there is memory.

use agewise_trace::yardstick::{Policy, PolicySpec, Simulation};

/// Its name in `--policy`, and how it is made.
pub static SPEC: PolicySpec = PolicySpec {
    name: "mru",
    aliases: &[],
    summary: "most recently used goes first",
    simulation: Simulation::Online(|capacity| Box::new(Mru::new(capacity))),
};

struct Mru {
    capacity: usize,
    resident: Vec<bool>,
    pages: usize,
    /// Accessed last, so it is resident.
    last: u32,
}

impl Mru {
    fn new(capacity: usize) -> Self {
        Mru {
            capacity,
            resident: Vec::new(),
            pages: 0,
            last: 0,
        }
    }
}

impl Policy for Mru {
    fn reserve(&mut self, page_count: usize) {
        self.resident.resize(page_count, false);
    }

    fn access(&mut self, page: u32) -> bool {
        let is_hit = self.resident[page as usize];
        if !is_hit {
            if self.pages == self.capacity {
                self.resident[self.last as usize] = false;
                self.pages -= 1;
            }
            self.resident[page as usize] = true;
            self.pages += 1;
        }
        self.last = page;
        is_hit
    }

    fn resident_pages(&self) -> usize {
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agewise_trace::{DenseTrace, yardstick};

    #[test]
    fn a_loop_misses_as_little_as_it_can() {
        let pages: Vec<u64> = (0..100).cycle().take(5000).collect();
        let trace = DenseTrace::from_pages(&pages);
        let opt = yardstick::by_name("opt").unwrap();
        for capacity in [1, 10, 99, 100] {
            assert_eq!(SPEC.misses(&trace, capacity), opt.misses(&trace, capacity));
        }
    }
}
