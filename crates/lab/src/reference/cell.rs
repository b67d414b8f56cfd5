// SPDX-License-Identifier: Apache-2.0
//! What a reference is made of: cells, their phases and what was measured in them.

use std::collections::BTreeMap;

use crate::machine::kernel::Kernel;
use crate::workload::kernel_trace::TraceSpec;

/// Touches that one of several members makes before it is the next one's turn.
pub const TURN: u64 = 64;
/// Most members.
pub const MEMBERS_MAX: u32 = 16;

/// A phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Every page is touched once.
    Populate,
    /// A quarter of the touches.
    Warm,
    /// All touches.
    Main,
}

impl Phase {
    /// All phases, in their order.
    pub const ALL: [Phase; 3] = [Phase::Populate, Phase::Warm, Phase::Main];

    /// Its name in a reference.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Populate => "populate",
            Phase::Warm => "warm",
            Phase::Main => "main",
        }
    }
}

/// Programs that share a limit, one to a cgroup below the one that has it, take turns of [`TURN`]
/// touches, in each phase from the first on. They differ by their seed, which counts up from that
/// of the first, and the first may be protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// How many; one is alone in the cgroup with the limit.
    pub count: u32,
    /// Which of them the cell is about, from 0.
    pub this: u32,
    /// `memory.min` of the first.
    pub min_bytes: u64,
    /// `memory.low` of the first.
    pub low_bytes: u64,
}

impl Members {
    /// One program without protection.
    pub const ALONE: Members = Members {
        count: 1,
        this: 0,
        min_bytes: 0,
        low_bytes: 0,
    };
}

/// Properties of a guest outside its cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// CPUs.
    pub cpus: u32,
    /// `lru_gen/min_ttl_ms`.
    pub min_ttl_ms: u32,
    /// Huge pages for all anonymous memory (`transparent_hugepage/enabled` `always`).
    pub thp: bool,
    /// Free pages by zone before the first touch of the first run; none where a limit, and not the
    /// guest's memory, was in the way.
    pub free_pages: Option<[u32; 4]>,
}

impl Guest {
    /// One CPU, no huge pages, memory in plenty.
    pub const PLAIN: Guest = Guest {
        cpus: 1,
        min_ttl_ms: 0,
        thp: false,
        free_pages: None,
    };

    /// The same but for what varies from run to run.
    pub(super) fn is_like(&self, other: &Guest) -> bool {
        let free_pages = self.free_pages;
        *self
            == Guest {
                free_pages,
                ..*other
            }
    }
}

/// What was measured in one phase of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Touches of the phase.
    pub touches: u64,
    /// Major faults (anon, mmap) or pages read (file, mixed).
    pub misses: u64,
    /// Pages isolated for reclaim.
    pub scanned: u64,
    /// Misses of all members in the phase, which takes as long as all of theirs together.
    pub all_misses: u64,
    /// Duration in s.
    pub elapsed_s: f64,
}

/// One run: what its phases measured. A phase is missing when the run was killed before its end.
pub type Run = BTreeMap<Phase, Measured>;

/// What distinguishes one cell of a reference from another: a kernel, an LRU and a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Kernel version, two numbers.
    pub kernel: String,
    /// Other rules than those of that kernel, to see whether the counts can distinguish them.
    pub rules: Option<&'static Kernel>,
    /// Value of `lru_gen/enabled`.
    pub lru_gen: u32,
    /// `memory.max` in bytes; 0: none.
    pub limit_bytes: u64,
    /// The guest.
    pub guest: Guest,
    /// `vm.swappiness`.
    pub swappiness: u32,
    /// Who shares the limit.
    pub members: Members,
    /// Mapped files had no `MADV_RANDOM`.
    pub nomadv: bool,
    /// What is touched is written in all phases, in `mixed` the anonymous memory: that is otherwise
    /// written when it is populated only, and files never.
    pub writes: bool,
    /// The trace.
    pub trace: TraceSpec,
    /// Hash of the trace as the guest computed it, unless every run was killed before its end.
    pub trace_hash: Option<u64>,
    /// The runs.
    pub runs: Vec<Run>,
}

impl Cell {
    /// The values of one measure in one phase, over all runs that got that far.
    pub fn values(&self, phase: Phase, of: impl Fn(&Measured) -> u64) -> Vec<u64> {
        let phases = self.runs.iter().filter_map(|run| run.get(&phase));
        phases.map(of).collect()
    }
}
