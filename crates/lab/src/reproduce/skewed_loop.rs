// SPDX-License-Identifier: Apache-2.0
//! A loop over more than memory, where a side effect of the document's throttle should show: "hold
//! a portion of the caches in memory instead of letting them get evicted permutably".
//!
//! In a loop over `N` pages that misses, a page used once is evicted `I` evictions (the length of
//! the inactive list) after it came, and returns `N - I - A` evictions later. At twice the memory
//! `M = I + A` this distance is `M`, and no rule accepts a distance greater than the length of a
//! list. The two tests therefore differ only for pages that return sooner:
//!
//! * `loop-twice`: a loop over twice the memory in which every sixteenth read goes to one of few
//!   pages that return after reads of 0.82 times the memory, beside an index of half the memory
//!   with two reads for each one of the loop. Index and returned pages overflow the active list, so
//!   that index pages are demoted and promoted all the time. The mainline test ages with each of
//!   these activations and so finds every page too old; evictions alone show that it would have
//!   stayed.
//! * `loop-longer`: a loop over 1.2 times a memory of 28 GiB (where the kernel lets the active list
//!   grow to sixteen times the inactive one), with every page read twice in the first round.
//!   Mainline activates every page that returns, which makes it first in, first out, and nothing
//!   returns in time. The document's second throttle leaves the established active pages alone.
//!
//! Hits are those of the loop's reads, in the second half of the rounds.

use agewise_kernel::ids::MemcgId;

use super::family::Family;
use super::{Benchmark, Case, Expectation, Figure, Measured, Pair};
use crate::machine::address_space::Advice;
use crate::machine::{Access, FileId, Limits, Machine, MachineConfig, Policy, ProcessId};
use crate::workload::random::XorShift64Star;

/// Memory of the cgroup, in pages.
const MEMORY: u32 = 4096;

/// A read: a page of the file, and whether the read belongs to the loop.
type Read = (u32, bool);

/// Reads of one round, in order.
struct Loop {
    pages: u32,
    rounds: u32,
    /// Factor applied to sizes in bytes for the inactive target.
    size_scale: u64,
    round: fn(&mut XorShift64Star, u32, &mut Vec<Read>),
}

const TWICE: Loop = Loop {
    pages: 2 * MEMORY,
    rounds: 14,
    size_scale: 1,
    round: twice,
};

const LONGER: Loop = Loop {
    pages: MEMORY * 6 / 5,
    rounds: 24,
    size_scale: (28 << 18) / MEMORY as u64,
    round: longer,
};

fn twice(random: &mut XorShift64Star, round: u32, reads: &mut Vec<Read>) {
    /// One in this many reads of the loop goes to a page that returns sooner.
    const WARM_EVERY: u32 = 16;
    const WARM_PAGES: u32 = MEMORY * 82 / 100 / WARM_EVERY;
    const INDEX_PAGES: u32 = MEMORY / 2;
    const INDEX_READS: u32 = 2;
    let index = TWICE.pages + WARM_PAGES;
    for step in 0..TWICE.pages {
        let at = round * TWICE.pages + step;
        for _ in 0..INDEX_READS {
            reads.push((index + random.below(INDEX_PAGES), false));
        }
        if at.is_multiple_of(WARM_EVERY) {
            reads.push((TWICE.pages + at / WARM_EVERY % WARM_PAGES, true));
        } else {
            reads.push(((at - at / WARM_EVERY) % TWICE.pages, true));
        }
    }
}

fn longer(_: &mut XorShift64Star, round: u32, reads: &mut Vec<Read>) {
    /// The second read comes this many pages later: one right after the first counts as the same
    /// read.
    const BEHIND: u32 = 40;
    for page in 0..LONGER.pages {
        reads.push((page, true));
        if round == 0 && page >= BEHIND {
            reads.push((page - BEHIND, false));
        }
    }
}

impl Loop {
    /// Share of the loop's reads that hit under a policy.
    fn hit_ratio(
        &self,
        policy: &str,
        seed: u64,
    ) -> Result<f64, crate::machine::config::PolicyError> {
        let mut pool = Pool::new(Policy::parse(policy)?, self, seed);
        let mut random = XorShift64Star::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let (mut hits, mut counted) = (0u64, 0u64);
        let mut reads = Vec::new();
        for round in 0..self.rounds {
            reads.clear();
            (self.round)(&mut random, round, &mut reads);
            for &(page, is_loop) in &reads {
                let hit = pool.read(page);
                if is_loop && round >= self.rounds / 2 {
                    counted += 1;
                    hits += u64::from(hit);
                }
            }
        }
        Ok(hits as f64 / counted.max(1) as f64)
    }
}

/// A cgroup that reads one file.
struct Pool {
    machine: Machine,
    process: ProcessId,
    file: FileId,
}

impl Pool {
    fn new(policy: Policy, spec: &Loop, seed: u64) -> Pool {
        let mut config = MachineConfig::new(4 * MEMORY);
        config.policy = policy;
        config.seed = seed;
        config.readahead_pages = 0;
        // The rule is under test, not the 2 s by which statistics lag.
        config.stat_flush_ns = 0;
        let mut machine = Machine::new(config);
        machine.lru.classic.size_scale = spec.size_scale;
        let limits = Limits {
            max_pages: MEMORY.into(),
            ..Limits::default()
        };
        let memcg = machine.add_memcg(MemcgId::ROOT, "loop", limits);
        let process = machine.add_process(memcg);
        let file = machine.add_file(4 * MEMORY, memcg, Advice::Random);
        Pool {
            machine,
            process,
            file,
        }
    }

    fn read(&mut self, page: u32) -> bool {
        matches!(
            self.machine.read(self.process, self.file, page, 1),
            Access::Hit | Access::Minor
        )
    }
}

/// The two loops under each LRU.
pub(super) fn benchmarks() -> Vec<Benchmark> {
    let mut benchmarks = Vec::new();
    for (name, summary, spec) in [
        (
            "loop-twice",
            "a loop over twice the memory, slightly skewed, beside an index of half of it",
            &TWICE,
        ),
        (
            "loop-longer",
            "a loop over 1.2 times a memory of 28 GiB, all read twice at first",
            &LONGER,
        ),
    ] {
        for family in Family::ALL {
            benchmarks.push(Benchmark {
                name: format!("{name}/{}", family.name()),
                summary: summary.into(),
                figures: vec![Figure::higher("hits", "share", Expectation::Own).by_difference()],
                measure: Box::new(move |case| measure(spec, family, case)),
            });
        }
    }
    benchmarks
}

fn measure(spec: &Loop, family: Family, case: &Case) -> Measured {
    let [before, after] = family.policies(case.variant);
    Ok(vec![Pair {
        before: spec.hit_ratio(&before, case.seed)?,
        after: spec.hit_ratio(&after, case.seed)?,
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classic_keeps_nothing_and_refault_distance_a_stable_part() {
        for (spec, least) in [(&TWICE, 0.02), (&LONGER, 0.5)] {
            for seed in 1..=2 {
                let classic = spec.hit_ratio("classic", seed).unwrap();
                let with_rule = spec.hit_ratio("classic+rd", seed).unwrap();
                assert_eq!(classic, 0.0, "{} pages", spec.pages);
                assert!(with_rule > least, "{} pages: {with_rule}", spec.pages);
            }
        }
    }
}
