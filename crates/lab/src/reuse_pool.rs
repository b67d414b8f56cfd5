// SPDX-License-Identifier: Apache-2.0
//! The reuse model as a pool: what agewise would do at a limit with only the knowledge that a
//! reclaimer in user space has.
//!
//! It sees accesses only when it scans accessed bits, and faults as they happen. It evicts in
//! batches before the pool is full. A scan follows after a fixed number of accesses, but not before
//! they have touched a part of the pool; a daemon would choose these by the results of its scans.

use std::collections::BinaryHeap;

use agewise_policy::reuse::{PageHistory, ReuseModel, ReuseParams, Value};
use agewise_trace::DenseTrace;
use agewise_trace::yardstick::{
    Counts, Policy, PolicySpec, Simulation, Yardstick, count_misses_among,
};

pub(crate) static SPEC: PolicySpec = PolicySpec {
    name: "reuse",
    aliases: &[],
    summary: "agewise's own: reuse times learned by hotness, at looks every quarter of the pool",
    simulation: Simulation::Online(|capacity| {
        Box::new(ReusePool::new(capacity, &Reuse::default()))
    }),
};

/// Pages evicted at a time: a fraction of the pool, within bounds.
const BATCH_PART: usize = 128;
const BATCH_MAX: usize = 64;

/// A scan waits until this part of the pool was touched. Histories distinguish the last 250 scans:
/// a program that mostly stays on a few pages would use them up within one round of the others.
const TOUCHED_PART: usize = 16;

/// The yardstick with its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Reuse {
    name: String,
    /// Accesses between two scans, relative to the size of the pool.
    look: f64,
    /// Pages evicted at a time; None to derive it from the size of the pool.
    batch: Option<usize>,
    model: ReuseParams,
}

impl Default for Reuse {
    fn default() -> Self {
        Reuse {
            name: SPEC.name.to_owned(),
            look: 0.25,
            batch: None,
            model: ReuseParams::default(),
        }
    }
}

impl Reuse {
    /// Parses `look=0.25,batch=8,decay=0.99`, in any order.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reuse = Reuse {
            name: format!("{}:{text}", SPEC.name),
            ..Reuse::default()
        };
        let mut given = Vec::new();
        for part in text.split(',') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if given.contains(&key.trim()) {
                return Err(format!("{key} is given twice"));
            }
            given.push(key.trim());
            let within = |low: f64, high: f64| match value.parse::<f64>() {
                Ok(number) if (low..=high).contains(&number) => Ok(number),
                Ok(_) => Err(format!("{key} is {value}: it goes from {low} to {high}")),
                Err(_) => Err(format!("{key} is {value}, which is no number")),
            };
            match key.trim() {
                "look" => reuse.look = within(0.001, 4.0)?,
                "batch" if within(1.0, 4096.0)?.fract() != 0.0 => {
                    return Err(format!("batch is {value}, which is no whole number"));
                }
                "batch" => reuse.batch = Some(within(1.0, 4096.0)? as usize),
                "decay" => reuse.model.decay = within(0.5, 0.999)?,
                _ => return Err(format!("reuse knows look, batch, decay, not {key}")),
            }
        }
        Ok(reuse)
    }
}

impl Yardstick for Reuse {
    fn name(&self) -> &str {
        &self.name
    }

    fn misses_among(&self, trace: &DenseTrace, capacity: usize, counts: Counts<'_>) -> u64 {
        count_misses_among(trace, capacity, counts, |pages| {
            Box::new(ReusePool::new(pages, self))
        })
    }
}

/// An eviction candidate; the greatest is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    value: std::cmp::Reverse<Value>,
    page: u32,
    /// Whether its value counts it as touched since the last scan.
    is_touched: bool,
}

struct ReusePool {
    capacity: usize,
    batch: usize,
    accesses_a_look: u64,
    /// Accesses since the last scan.
    accesses: u64,
    /// Pages touched since the last scan.
    touched_pages: usize,
    model: ReuseModel,
    histories: Vec<PageHistory>,
    resident: Vec<bool>,
    /// Accessed bits.
    touched: Vec<bool>,
    resident_pages: usize,
    queue: BinaryHeap<Candidate>,
}

impl ReusePool {
    fn new(capacity: usize, reuse: &Reuse) -> Self {
        let batch = reuse
            .batch
            .unwrap_or((capacity / BATCH_PART).clamp(1, BATCH_MAX));
        ReusePool {
            capacity,
            batch,
            accesses_a_look: ((capacity as f64 * reuse.look) as u64).max(1),
            accesses: 0,
            touched_pages: 0,
            model: ReuseModel::new(reuse.model),
            histories: Vec::new(),
            resident: Vec::new(),
            touched: Vec::new(),
            resident_pages: 0,
            queue: BinaryHeap::new(),
        }
    }

    fn candidate(&self, page: u32) -> Candidate {
        let history = self.histories[page as usize];
        let is_touched = self.touched[page as usize];
        let value = if is_touched {
            self.model.value_touched(history)
        } else {
            self.model.value_untouched(history)
        };
        Candidate {
            value: std::cmp::Reverse(value),
            page,
            is_touched,
        }
    }

    fn look(&mut self) {
        let mut look = self.model.look();
        look.shift(&mut self.histories);
        let words = self.histories.chunks_mut(64).zip(self.touched.chunks(64));
        for (number, (pages, touched)) in words.enumerate() {
            let bits = touched
                .iter()
                .rev()
                .fold(0, |bits, bit| bits << 1 | u64::from(*bit));
            look.word(number as u64, pages, bits);
        }
        look.finish();
        self.touched.fill(false);
        (self.accesses, self.touched_pages) = (0, 0);
        let resident = (0..self.resident.len() as u32).filter(|&page| self.resident[page as usize]);
        self.queue = resident.map(|page| self.candidate(page)).collect();
    }

    fn evict(&mut self, pages: usize) {
        let mut left = pages;
        while left > 0 {
            let Some(candidate) = self.queue.pop() else {
                break;
            };
            let page = candidate.page as usize;
            if !self.resident[page] {
                continue;
            }
            // Checks the accessed bit once more right before eviction.
            if self.touched[page] && !candidate.is_touched {
                let again = self.candidate(candidate.page);
                self.queue.push(again);
                continue;
            }
            self.resident[page] = false;
            self.resident_pages -= 1;
            left -= 1;
        }
    }
}

impl Policy for ReusePool {
    fn reserve(&mut self, page_count: usize) {
        self.histories.resize(page_count, PageHistory::default());
        self.resident.resize(page_count, false);
        self.touched.resize(page_count, false);
    }

    fn access(&mut self, page: u32) -> bool {
        let at = page as usize;
        let is_hit = self.resident[at];
        self.touched_pages += usize::from(!self.touched[at]);
        self.touched[at] = true;
        if !is_hit {
            if self.resident_pages >= self.capacity {
                self.evict(self.batch);
            }
            self.resident[at] = true;
            self.resident_pages += 1;
            let candidate = self.candidate(page);
            self.queue.push(candidate);
        }
        self.accesses += 1;
        let is_enough = self.touched_pages >= self.capacity / TOUCHED_PART;
        if is_enough && self.accesses >= self.accesses_a_look {
            self.look();
        }
        is_hit
    }

    fn resident_pages(&self) -> usize {
        self.resident_pages
    }
}

#[cfg(test)]
mod tests {
    use agewise_trace::DenseTrace;

    use crate::yardstick::by_name;

    fn misses(name: &str, pages: &[u64], capacity: usize) -> u64 {
        let trace = DenseTrace::from_pages(pages);
        by_name(name).unwrap().misses(&trace, capacity)
    }

    #[test]
    fn what_fits_is_kept() {
        let pages: Vec<u64> = (0..2000).cycle().take(20_000).collect();
        assert_eq!(misses("reuse", &pages, 2000), 2000);
    }

    /// LRU misses every access of a loop larger than the pool; OPT misses the share that does not
    /// fit.
    #[test]
    fn of_a_loop_a_stable_part_stays() {
        let pages: Vec<u64> = (0..2000).cycle().take(80_000).collect();
        assert_eq!(misses("lru", &pages, 1000), 80_000);
        let (opt, reuse) = (misses("opt", &pages, 1000), misses("reuse", &pages, 1000));
        assert!(reuse < opt + opt / 10, "{reuse} beside {opt}");
    }

    /// A hot set of 1000 pages between pieces of a long scan: scans pass through.
    #[test]
    fn scans_pass_through() {
        let mut pages = Vec::new();
        for round in 0..80u64 {
            pages.extend(0..1000u64);
            pages.extend((0..1000).map(|at| 10_000 + round * 1000 + at));
        }
        // 1000 for the hot set and 80,000 for the scans, which no policy can avoid.
        let reuse = misses("reuse", &pages, 1500);
        assert!(reuse < 81_000 + 8_000, "{reuse}");
        assert!(misses("lru", &pages, 1500) > 150_000);
    }

    /// A window over the pages moves on, and four pages are used all the time. Were there a scan
    /// every quarter of the pool, most of the window would be older than histories can tell: 5130
    /// misses where LRU has 3283.
    #[test]
    fn scans_wait_until_a_part_of_the_pool_was_touched() {
        let mut pages = Vec::new();
        for at in 0..6000u64 {
            let within = (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 800;
            pages.push(10 + at / 2 + within);
            pages.extend((0..400).map(|at| at % 4));
        }
        let (lru, reuse) = (misses("lru", &pages, 1000), misses("reuse", &pages, 1000));
        assert!(reuse <= lru + lru / 100, "{reuse} beside {lru}");
    }

    #[test]
    fn the_pool_is_never_overfull() {
        let spec = by_name("reuse").unwrap();
        let agewise_trace::yardstick::Simulation::Online(build) = spec.simulation else {
            panic!("it is simulated access by access");
        };
        for capacity in [1, 2, 100, 900] {
            let mut pool = build(capacity);
            pool.reserve(1000);
            for at in 0..5_000u32 {
                pool.access(at.wrapping_mul(2_654_435_761) % 1000);
                assert!(pool.resident_pages() <= capacity);
            }
        }
    }
}
