// SPDX-License-Identifier: Apache-2.0
//! Yardsticks: established replacement policies over a single pool of equal pages.
//!
//! Every access counts, there is no warm-up, and every miss brings its page in. Pages are the dense
//! numbers of [`crate::DenseTrace`]. Each policy is one file here and one line in [`YARDSTICKS`].

mod arc;
mod bit_tree;
mod clock;
mod fifo;
mod lfu;
mod lirs;
mod list;
mod lru;
mod opt;
mod s3_fifo;
mod sieve;
mod sketch;
mod two_queue;
mod w_tiny_lfu;

#[cfg(test)]
mod naive;

use crate::DenseTrace;

/// A replacement policy with its pool.
pub trait Policy: Send {
    /// Announces that pages up to `page_count - 1` may be accessed from now on.
    fn reserve(&mut self, page_count: usize);

    /// Accesses a page below the reserved count; returns whether it was resident.
    fn access(&mut self, page: u32) -> bool;

    /// Accesses pages in order; returns the number of misses.
    fn run(&mut self, pages: &[u32]) -> u64 {
        let mut misses = 0;
        for &page in pages {
            misses += u64::from(!self.access(page));
        }
        misses
    }

    /// Number of pages in the pool; at most the capacity.
    fn resident_pages(&self) -> usize;
}

/// Selects the accesses of a trace that count, by position.
pub type Counts<'a> = &'a dyn Fn(usize) -> bool;

/// How to simulate a policy.
#[derive(Debug, Clone, Copy)]
pub enum Simulation {
    /// Access by access; the argument is the capacity in pages, at least 1.
    Online(fn(usize) -> Box<dyn Policy>),
    /// As online, but with at least the number of pages in the first argument.
    OnlineFrom(usize, fn(usize) -> Box<dyn Policy>),
    /// With knowledge of the future: misses of a trace for one capacity, among the accesses that
    /// count.
    Offline(fn(&DenseTrace, usize, Counts<'_>) -> u64),
    /// The misses for one capacity, as offline, of a policy of which one pass yields the misses of
    /// all capacities.
    Stack(fn(&DenseTrace, usize, Counts<'_>) -> u64),
}

/// One policy of the registry.
#[derive(Debug)]
pub struct PolicySpec {
    /// Its name in `--policy` and in tables.
    pub name: &'static str,
    /// Other names it is known by.
    pub aliases: &'static [&'static str],
    /// One line for help and lists, including the parameters used.
    pub summary: &'static str,
    /// How to simulate it.
    pub simulation: Simulation,
}

/// A policy, possibly with parameters, for which curves can be computed.
pub trait Yardstick: Send + Sync + std::fmt::Debug {
    /// Its name in tables.
    fn name(&self) -> &str;

    /// Misses of a whole trace with a pool of `capacity` pages (0 is treated as 1).
    fn misses(&self, trace: &DenseTrace, capacity: usize) -> u64 {
        self.misses_among(trace, capacity, &|_| true)
    }

    /// Misses among the accesses that `counts` selects by position in the trace. All accesses still
    /// go through the policy.
    fn misses_among(&self, trace: &DenseTrace, capacity: usize, counts: Counts<'_>) -> u64;

    /// Whether one pass over a trace yields the misses for all capacities.
    fn is_stack(&self) -> bool {
        false
    }

    /// Pages of the smallest pool that the policy supports. A smaller capacity gives the misses of
    /// this one, and is not a point of a curve.
    fn capacity_min(&self) -> usize {
        1
    }

    /// SHA-256 of the file that describes the policy, if there is one.
    fn source_sha256(&self) -> Option<&str> {
        None
    }

    /// The text of that file, if the policy can be made from it again.
    fn source_text(&self) -> Option<&str> {
        None
    }

    /// Why it could not count to the end, if it could not: its counts mean nothing then.
    fn failure(&self) -> Option<String> {
        None
    }
}

impl Yardstick for &PolicySpec {
    fn name(&self) -> &str {
        self.name
    }

    fn misses(&self, trace: &DenseTrace, capacity: usize) -> u64 {
        PolicySpec::misses(self, trace, capacity)
    }

    fn misses_among(&self, trace: &DenseTrace, capacity: usize, counts: Counts<'_>) -> u64 {
        match self.simulation {
            Simulation::Offline(misses) | Simulation::Stack(misses) => {
                misses(trace, capacity.max(1), counts)
            }
            Simulation::Online(build) | Simulation::OnlineFrom(_, build) => {
                count_misses_among(trace, capacity, counts, build)
            }
        }
    }

    fn is_stack(&self) -> bool {
        PolicySpec::is_stack(self)
    }

    fn capacity_min(&self) -> usize {
        match self.simulation {
            Simulation::OnlineFrom(pages, _) => pages,
            _ => 1,
        }
    }
}

impl<Y: Yardstick + ?Sized> Yardstick for std::sync::Arc<Y> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn misses(&self, trace: &DenseTrace, capacity: usize) -> u64 {
        (**self).misses(trace, capacity)
    }

    fn misses_among(&self, trace: &DenseTrace, capacity: usize, counts: Counts<'_>) -> u64 {
        (**self).misses_among(trace, capacity, counts)
    }

    fn is_stack(&self) -> bool {
        (**self).is_stack()
    }

    fn capacity_min(&self) -> usize {
        (**self).capacity_min()
    }

    fn source_sha256(&self) -> Option<&str> {
        (**self).source_sha256()
    }

    fn source_text(&self) -> Option<&str> {
        (**self).source_text()
    }

    fn failure(&self) -> Option<String> {
        (**self).failure()
    }
}

/// Misses of a whole trace with a pool from `build` of `capacity` pages (0 is treated as 1).
#[must_use]
pub fn count_misses(
    trace: &DenseTrace,
    capacity: usize,
    build: impl Fn(usize) -> Box<dyn Policy>,
) -> u64 {
    let mut policy = build(capacity.max(1));
    policy.reserve(trace.page_count());
    policy.run(trace.accesses())
}

/// Misses among the accesses that `counts` selects by position in the trace.
#[must_use]
pub fn count_misses_among(
    trace: &DenseTrace,
    capacity: usize,
    counts: Counts<'_>,
    build: impl Fn(usize) -> Box<dyn Policy>,
) -> u64 {
    let mut policy = build(capacity.max(1));
    policy.reserve(trace.page_count());
    let mut misses = 0;
    for (at, &page) in trace.accesses().iter().enumerate() {
        let is_miss = !policy.access(page);
        misses += u64::from(is_miss && counts(at));
    }
    misses
}

/// Policies over a pool of exactly the capacity; the first one is a bound for all others.
pub static YARDSTICKS: &[&PolicySpec] = &[
    &opt::SPEC,
    &lru::SPEC,
    &fifo::SPEC,
    &clock::SPEC,
    &arc::SPEC,
    &lirs::SPEC,
    &lirs::PAPER_SPEC,
    &s3_fifo::SPEC,
    &s3_fifo::MAIN_FIRST_SPEC,
    &sieve::SPEC,
    &w_tiny_lfu::SPEC,
    &two_queue::SPEC,
    &lfu::SPEC,
];

/// Looks up a yardstick by name (ignoring case, `-`, `_`, `:` and `.`).
#[must_use]
pub fn by_name(name: &str) -> Option<&'static PolicySpec> {
    YARDSTICKS.iter().copied().find(|spec| spec.is_called(name))
}

impl PolicySpec {
    /// Whether this is its name or an alias (ignoring case, `-`, `_`, `:` and `.`).
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        let plain = |name: &str| -> String {
            name.chars()
                .filter(|c| !matches!(c, '-' | '_' | ':' | '.'))
                .flat_map(char::to_lowercase)
                .collect()
        };
        let wanted = plain(name);
        plain(self.name) == wanted || self.aliases.iter().any(|alias| plain(alias) == wanted)
    }

    /// Misses of a whole trace with a pool of `capacity` pages (0 is treated as 1).
    #[must_use]
    pub fn misses(&self, trace: &DenseTrace, capacity: usize) -> u64 {
        match self.simulation {
            Simulation::Offline(misses) | Simulation::Stack(misses) => {
                misses(trace, capacity.max(1), &|_| true)
            }
            Simulation::Online(build) | Simulation::OnlineFrom(_, build) => {
                count_misses(trace, capacity, build)
            }
        }
    }

    /// Whether one pass over a trace yields the misses for all capacities.
    #[must_use]
    pub fn is_stack(&self) -> bool {
        matches!(self.simulation, Simulation::Stack(_))
    }
}

#[cfg(test)]
mod tests;
