// SPDX-License-Identifier: Apache-2.0
//! The choices that a [`Profile`](super::Profile) is made of.

/// The order in which uses of a folio are recorded in its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageCount {
    /// Referenced first, then workingset, then the refs field (before 6.14).
    WorkingsetSecond,
    /// Referenced first, then the refs field, workingset last (6.14).
    WorkingsetLast,
}

/// What a page fault in a mapping with recency does to the folio it brings in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMark {
    /// Makes it active: it enters the youngest generation.
    Activate,
    /// Counts as one use; only a returning workingset folio becomes active.
    Reference,
}

/// When eviction ages a lruvec first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgingRule {
    /// With one spare generation, if the youngest has over half of all pages, or the third youngest
    /// less than a quarter; judged by the file type (v6).
    RatioByFile,
    /// The same, judged by the leading evictable type (6.1 to 6.13).
    Ratio,
    /// With one spare generation or none (6.14).
    SpareGeneration,
}

/// How much one pass over a lruvec evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimLoop {
    /// Rounds of up to 64 isolated folios until a target, recomputed each round, has been scanned;
    /// aging ends the pass.
    Rounds,
    /// Batches of at most 64 examined folios, with a target fixed at the start; aging does not end
    /// a cgroup's pass (2026).
    Batches,
}

/// How the type to evict is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeChoice {
    /// Anon if its oldest generation is older, otherwise tier 0 of both types compared.
    TierZero,
    /// All tiers of both types compared equally (6.14).
    AllTiers,
}

/// The order in which global reclaim visits cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcgOrder {
    /// The per-node memcg LRU with random bins (6.3 to 7.2).
    MemcgLru,
    /// Tree iteration with a shared cursor (before 6.3, and the series of December 2025).
    Cursor,
}

/// Formats and rules of the debugfs files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugfsSyntax {
    /// The patch set: `-0` below the oldest generation, aging only at `max_seq`.
    Patches,
    /// 16-bit cgroup id; `+` with a sequence number below `max_seq` does nothing.
    ShortIds,
    /// 64-bit cgroup id; `+` always ages; swappiness may be the word `max`.
    LongIds,
}
