// SPDX-License-Identifier: Apache-2.0
//! LIRS: pages with a short time between their last two accesses (LIR) stay; all others (HIR) pass
//! through a small queue.
//!
//! Source: Jiang and Zhang, "LIRS: an efficient low inter-reference recency set replacement
//! policy", SIGMETRICS 2002. The names S (recency stack) and Q (queue of resident HIR pages) are
//! those of the paper. HIR pages get 1 % of the pool. The paper does not limit S; here it is
//! limited to twice the pool by forgetting the pages that were evicted longest ago.
//!
//! There are two variants. In the paper, a hit in Q on a page that is no longer in S only moves
//! that page to the end of Q. libCacheSim, the usual reference for comparisons, also demotes the
//! LIR page at the bottom of S, so that the next new page becomes LIR at once. That usually costs
//! little (in 212 of 213 rows of a reference the variants are within 1.6 %), but pages are evicted
//! from a pool that could have all of them: a loop over 1011 pages in 1011 frames misses 3998 times
//! instead of 1011.

use super::list::{Links, List};
use super::{Policy, PolicySpec, Simulation};

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "lirs",
    aliases: &[],
    summary: "LIRS as libCacheSim has it: 1 % for HIR pages, stack at most twice the pool",
    simulation: Simulation::Online(|capacity| Box::new(Lirs::new(capacity, Variant::LibCacheSim))),
};

pub(super) static PAPER_SPEC: PolicySpec = PolicySpec {
    name: "lirs-paper",
    aliases: &[],
    summary: "LIRS as published: a hit in the queue demotes nothing",
    simulation: Simulation::Online(|capacity| Box::new(Lirs::new(capacity, Variant::Paper))),
};

/// The effect of a hit in Q on a page that is not in S.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Paper,
    LibCacheSim,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Absent,
    Lir,
    ResidentHir,
    /// Not resident, but still in S.
    Ghost,
}

struct Lirs {
    demotes_on_queue_hit: bool,
    stack_max: usize,
    lir_max: usize,
    hir_max: usize,
    lir_count: usize,
    /// S; the front is the top.
    stack: List,
    stack_links: Links,
    /// Q; the front is the most recent page.
    queue: List,
    /// Ghosts by time of eviction. A page is either in Q or here, so both lists share links.
    ghosts: List,
    queue_links: Links,
    status: Vec<Status>,
    in_stack: Vec<bool>,
}

impl Lirs {
    fn new(capacity: usize, variant: Variant) -> Self {
        let hir_max = (capacity / 100).max(1);
        Self {
            // In a queue of one page, the demoted page would push out the page that was hit.
            demotes_on_queue_hit: variant == Variant::LibCacheSim && hir_max > 1,
            stack_max: capacity.saturating_mul(2),
            lir_max: capacity - hir_max,
            hir_max,
            lir_count: 0,
            stack: List::default(),
            stack_links: Links::default(),
            queue: List::default(),
            ghosts: List::default(),
            queue_links: Links::default(),
            status: Vec::new(),
            in_stack: Vec::new(),
        }
    }

    fn put_on_stack(&mut self, page: u32) {
        if std::mem::replace(&mut self.in_stack[page as usize], true) {
            self.stack.move_to_front(&mut self.stack_links, page);
        } else {
            self.stack.push_front(&mut self.stack_links, page);
        }
    }

    /// Removes HIR pages from the bottom of S, until a LIR page is there.
    fn prune(&mut self) {
        while let Some(page) = self.stack.back() {
            match self.status[page as usize] {
                Status::Lir => return,
                Status::Ghost => {
                    self.ghosts.remove(&mut self.queue_links, page);
                    self.status[page as usize] = Status::Absent;
                }
                Status::ResidentHir | Status::Absent => {}
            }
            self.leave_stack(page);
        }
    }

    fn leave_stack(&mut self, page: u32) {
        self.stack.remove(&mut self.stack_links, page);
        self.in_stack[page as usize] = false;
    }

    /// Evicts the oldest page of Q; if it is in S, it stays there as a ghost.
    fn evict_hir(&mut self) {
        let Some(page) = self.queue.pop_back(&mut self.queue_links) else {
            return;
        };
        if self.in_stack[page as usize] {
            self.status[page as usize] = Status::Ghost;
            self.ghosts.push_front(&mut self.queue_links, page);
        } else {
            self.status[page as usize] = Status::Absent;
        }
    }

    /// Turns the LIR page at the bottom of S into a HIR page.
    fn demote_lir(&mut self) {
        let Some(page) = self.stack.back() else {
            return;
        };
        self.leave_stack(page);
        self.lir_count -= 1;
        if self.queue.len() >= self.hir_max {
            self.evict_hir();
        }
        self.queue.push_front(&mut self.queue_links, page);
        self.status[page as usize] = Status::ResidentHir;
        self.prune();
    }

    /// Makes a page at the top of S a LIR page, and demotes the one at the bottom if there are
    /// enough. Its status is set first: pruning must not take it for a HIR page.
    fn make_lir(&mut self, page: u32) {
        self.status[page as usize] = Status::Lir;
        self.lir_count += 1;
        if self.lir_count > self.lir_max {
            self.demote_lir();
        }
    }

    fn limit_stack(&mut self) {
        while self.stack.len() > self.stack_max {
            let Some(page) = self.ghosts.pop_back(&mut self.queue_links) else {
                return;
            };
            self.status[page as usize] = Status::Absent;
            self.leave_stack(page);
        }
    }

    fn hit_resident_hir(&mut self, page: u32) {
        if self.in_stack[page as usize] {
            self.put_on_stack(page);
            self.queue.remove(&mut self.queue_links, page);
            self.make_lir(page);
            return;
        }
        self.queue.move_to_front(&mut self.queue_links, page);
        if self.demotes_on_queue_hit && self.lir_count == self.lir_max {
            self.demote_lir();
        }
        if self.lir_max > 0 {
            self.put_on_stack(page);
        }
    }

    fn miss_ghost(&mut self, page: u32) {
        self.ghosts.remove(&mut self.queue_links, page);
        self.put_on_stack(page);
        self.make_lir(page);
    }

    fn miss(&mut self, page: u32) {
        if self.lir_count < self.lir_max {
            self.put_on_stack(page);
            self.make_lir(page);
            return;
        }
        if self.queue.len() >= self.hir_max {
            self.evict_hir();
        }
        // A pool of one page has no room for LIR pages: it is only a queue, and S stays empty.
        if self.lir_max > 0 {
            self.put_on_stack(page);
        }
        self.queue.push_front(&mut self.queue_links, page);
        self.status[page as usize] = Status::ResidentHir;
    }
}

impl Policy for Lirs {
    fn reserve(&mut self, page_count: usize) {
        self.stack_links.reserve(page_count);
        self.queue_links.reserve(page_count);
        self.status
            .resize(page_count.max(self.status.len()), Status::Absent);
        self.in_stack
            .resize(page_count.max(self.in_stack.len()), false);
    }

    fn access(&mut self, page: u32) -> bool {
        let status = self.status[page as usize];
        match status {
            Status::Lir => {
                self.put_on_stack(page);
                self.prune();
            }
            Status::ResidentHir => self.hit_resident_hir(page),
            Status::Ghost => self.miss_ghost(page),
            Status::Absent => self.miss(page),
        }
        self.limit_stack();
        matches!(status, Status::Lir | Status::ResidentHir)
    }

    fn resident_pages(&self) -> usize {
        self.lir_count + self.queue.len()
    }
}
