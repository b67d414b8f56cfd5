// SPDX-License-Identifier: Apache-2.0
//! The contents of a reference: cells, their phases, and what was measured.

use std::collections::BTreeMap;

use crate::machine::kernel::Kernel;
use crate::workload::kernel_trace::TraceSpec;

/// Number of touches a member makes before the next one's turn.
pub const TURN: u64 = 64;
/// Limit on nodes.
pub(super) const NODES_MAX: usize = 64;
/// Limit on members.
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

    /// Name in a reference.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Populate => "populate",
            Phase::Warm => "warm",
            Phase::Main => "main",
        }
    }
}

/// Programs that share a limit, each in a cgroup below the limited one. They take turns of [`TURN`]
/// touches in every phase. Their seeds count up from that of the first, and the first may be
/// protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// Number of programs; a single one runs in the limited cgroup itself.
    pub count: u32,
    /// Index of the program that the cell is about, from 0.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    pub cpus: u32,
    /// `lru_gen/min_ttl_ms`.
    pub min_ttl_ms: u32,
    /// Huge pages for all anonymous memory (`transparent_hugepage/enabled` `always`).
    pub thp: bool,
    /// `vm.watermark_boost_factor`. The simulated machine has no boosting.
    pub watermark_boost_factor: u32,
    /// Nodes from which the program takes its pages in turn; 1 if they are local.
    pub interleave: u32,
    /// Free pages by node and zone before the first touch of the first run; None if a limit, and
    /// not the guest's memory, restricted the program.
    pub free_pages: Option<Vec<[u32; 4]>>,
}

impl Guest {
    /// One CPU, no huge pages, the kernel's boosting, plenty of memory.
    pub const PLAIN: Guest = Guest {
        cpus: 1,
        min_ttl_ms: 0,
        thp: false,
        watermark_boost_factor: 15_000,
        interleave: 1,
        free_pages: None,
    };

    /// Whether the guests are equal, apart from the free pages, which vary by up to 2 % from run to
    /// run.
    pub(super) fn is_like(&self, other: &Guest) -> bool {
        let fixed = |guest: &Guest| {
            let is_global = guest.free_pages.is_some();
            let boost = guest.watermark_boost_factor;
            let machine = (guest.cpus, guest.nodes(), guest.interleave);
            (machine, guest.min_ttl_ms, guest.thp, boost, is_global)
        };
        let [one, two] = [self, other].map(Guest::size);
        fixed(self) == fixed(other) && one.abs_diff(two) <= one / 25
    }

    /// Free pages of all nodes, 0 if not known.
    fn size(&self) -> u64 {
        let pages = self.free_pages.iter().flatten().flatten();
        pages.map(|&pages| u64::from(pages)).sum()
    }

    /// Nodes that the program used. What a limit allows fits into the first.
    pub fn nodes(&self) -> u32 {
        let all = self.free_pages.as_ref().map_or(1, Vec::len);
        self.interleave.max(all as u32)
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
    /// Misses of all members in the phase; its duration covers the touches of all of them.
    pub all_misses: u64,
    /// Duration in s.
    pub elapsed_s: f64,
}

/// One run: the results of its phases. A phase is missing if the run was killed before its end.
pub type Run = BTreeMap<Phase, Measured>;

/// A cell of a reference: a kernel, an LRU and a trace, with its runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Kernel version, as two numbers.
    pub kernel: String,
    /// Rules used in place of the kernel's, to see whether the counts can tell them apart.
    pub rules: Option<&'static Kernel>,
    /// Value of `lru_gen/enabled`.
    pub lru_gen: u32,
    /// `memory.max` in bytes; 0 for no limit.
    pub limit_bytes: u64,
    pub guest: Guest,
    /// `vm.swappiness`.
    pub swappiness: u32,
    /// The programs that share the limit.
    pub members: Members,
    /// Whether mapped files had no `MADV_RANDOM`.
    pub nomadv: bool,
    /// Whether touches are writes in all phases, for `mixed` those of anonymous memory. Otherwise
    /// anonymous memory is written only when it is populated, and files never.
    pub writes: bool,
    pub trace: TraceSpec,
    /// Hash of the trace as computed by the guest; None if every run was killed before its end.
    pub trace_hash: Option<u64>,
    pub runs: Vec<Run>,
}

impl Cell {
    /// The values of one measure in one phase, of all runs that completed it.
    pub fn values(&self, phase: Phase, of: impl Fn(&Measured) -> u64) -> Vec<u64> {
        let phases = self.runs.iter().filter_map(|run| run.get(&phase));
        phases.map(of).collect()
    }
}
