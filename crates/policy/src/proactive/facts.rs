// SPDX-License-Identifier: Apache-2.0
//! Facts about a target, as its world reports them.

use crate::generations::ByType;
use crate::workingset::Bin;

/// Everything a decision is based on. Event counts (`refaults`, `psi`) cover the time since the
/// previous facts.
#[derive(Clone, Debug, Default)]
pub struct Facts<'a> {
    /// Now, in ms. Never goes back.
    pub time_ms: u64,
    /// Resident memory, anon and file: each page once, as far as that is known.
    pub resident_bytes: ByType<u64>,
    /// What counts against the limit (`memory.current`), if known: each page once, page tables and
    /// unmapped cache included.
    pub charged_bytes: Option<u64>,
    /// The part of it that cannot be moved out page by page (page cache that is not followed,
    /// memory that several processes map, locked memory), if known; otherwise 0.
    pub unmovable_bytes: u64,
    /// What is in swap.
    pub out_bytes: u64,
    /// The newest look at the ages, if there was one since the previous facts.
    pub looked: Option<Looked<'a>>,
    /// Pages that were out and came back.
    pub refaults: Refaults,
    /// Pressure of the target, or of the machine if the target's own is not known.
    pub psi: Option<Psi>,
    /// Room in swap; `None` if unknown. Without swap, `total_bytes` is 0.
    pub swap: Option<SwapRoom>,
    /// Where anonymous memory goes.
    pub backend: Backend,
    /// The limit of the target that the kernel enforces, if any.
    pub limit_bytes: Option<u64>,
    /// The least that must stay resident, even if the policy's own floor is lower.
    pub floor_bytes: u64,
    /// What can be done here.
    pub hands: Hands,
    /// The result of the previous decision.
    pub outcome: Option<Outcome>,
}

impl Facts<'_> {
    /// Resident memory of both types.
    pub fn resident(&self) -> u64 {
        self.resident_bytes[0].saturating_add(self.resident_bytes[1])
    }
}

/// One look at all memory of the target.
#[derive(Clone, Copy, Debug)]
pub struct Looked<'a> {
    /// When it was taken, in ms.
    pub time_ms: u64,
    /// How long ages have been kept, in ms: no memory can be known to be older than this.
    pub watched_ms: u64,
    /// Resident bytes by age: bins that are not cumulative, youngest first, the last without bound.
    pub bins: &'a [Bin],
    /// Bytes found accessed (resident, or back from where they went) since the previous look, by
    /// how long they had been idle until then, in bins with the same bounds. Empty if unknown. An
    /// age map counts them
    /// ([`Look::finish_with_returned`](crate::agemap::Look::finish_with_returned)): pass those
    /// sizes to `Histogram::add_window` before the map advances.
    pub returned: &'a [Bin],
}

/// Pages that came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refaults {
    /// Bytes by type.
    pub bytes: ByType<u64>,
    /// Mean time a task waited for a page of each type, in ns; 0 if not measured.
    pub latency_ns: ByType<u64>,
}

/// Time in which tasks of the target waited for memory (PSI).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psi {
    /// At least one of them waited for memory, in us.
    pub some_us: u64,
}

/// Room in swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapRoom {
    /// Free bytes.
    pub free_bytes: u64,
    /// All bytes.
    pub total_bytes: u64,
}

/// Where anonymous memory goes. It determines the expected cost of a refault until one has been
/// measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// Compressed in memory.
    #[default]
    Zram,
    /// A solid-state disk.
    Ssd,
    /// A rotating disk.
    Hdd,
    /// There is no swap: only file pages can leave.
    None,
}

impl Backend {
    /// The cost of a refault before one was measured, in ns: 1 us for handling the fault, and the
    /// device's latency for 4 KiB (spec of the benchmarks, emulation rules).
    pub fn refault_ns(self) -> u64 {
        match self {
            Backend::Zram => 7_000,
            Backend::Ssd | Backend::None => 151_000,
            Backend::Hdd => 8_001_000,
        }
    }
}

/// What can be done to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hands {
    /// Page out pages chosen by age.
    pub page_out: bool,
    /// Let the kernel's own LRU reclaim a number of bytes (`memory.reclaim`).
    pub reclaim: bool,
    /// Sort: mark pages to be reclaimed first without moving them.
    pub sort: bool,
    /// Page out by decayed heat ([`Action::Coldest`](super::Action::Coldest)); otherwise the oldest
    /// pages go instead.
    pub coldest: bool,
    /// Observe all file memory page by page, even if no process maps it, and drop its clean pages.
    pub cache: bool,
}

impl Default for Hands {
    /// Only the movers of single pages.
    fn default() -> Self {
        Hands {
            page_out: true,
            reclaim: false,
            sort: true,
            coldest: false,
            cache: false,
        }
    }
}

/// The result of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that were tried: less than it asked for if there were not enough candidates.
    pub tried_bytes: u64,
    /// Bytes that left, by type.
    pub left_bytes: ByType<u64>,
    /// CPU time it took, in ns.
    pub cpu_ns: u64,
}
