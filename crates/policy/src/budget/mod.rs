// SPDX-License-Identifier: Apache-2.0
//! Holding a target under a budget: when to scan, what to queue, and how much goes at once.
//!
//! The policy `budget` ([`crate::proactive`]) says how many bytes have to go. Everything after that
//! is decided here, for real processes and in the lab alike: a [`Pacer`] takes facts (the time,
//! what a scan found, what a move did) and returns the next [`Step`]; a [`World`] carries it out
//! ([`Pacer::turn`]). A [`PageQueue`] remembers the pages of the target, and which of them go next.
//!
//! ```
//! use agewise_policy::budget::{Pacer, Step};
//!
//! let mut pacer = Pacer::new(&"budget:512M".parse().unwrap(), false);
//! // Nothing is known yet: the first step is a scan.
//! assert!(matches!(pacer.next(0), Step::Scan { .. }));
//! ```

mod counted;
mod epochs;
mod order;
mod pacer;
mod queue;
mod returns;
mod world;

pub use counted::Counted;
pub use epochs::{Epochs, Gain, Holder, KernelFirst, Measure, Verdict};
pub use order::Order;
pub use pacer::{Pacer, Step};
pub use queue::{Gone, PageQueue, Seen};
pub use world::{Limited, World};

pub use crate::table::PAGE_BYTES;

/// Scans may always take this share of a core, percent, whatever the size of the target and the
/// benefit of the scans.
pub const SCAN_PERCENT: f64 = 1.0;

/// Or this share of the cost of moving, percent, if that is more: a scan is worth what it saves in
/// moves, and in the faults that follow them, which cost about as much.
pub const SCAN_OF_MOVES_PERCENT: f64 = 25.0;

/// The cost to the target of setting an accessed bit again that a scan cleared, ns.
pub const YOUNG_AGAIN_NS: u64 = 400;

/// A scan is most informative if about this share of the memory was accessed since the previous
/// one: with much less nothing is learned, with much more all pages look alike.
pub const YOUNG_SHARE: f64 = 0.25;

/// If more than this share was accessed since then, the next scan comes as soon as it may.
pub const YOUNG_SHARE_MAX: f64 = 0.5;

/// Longest time between scans, ms, unless [`SCAN_PERCENT`] requires a longer one.
pub const SCAN_MAX_MS: u64 = 10_000;

/// Time to the second scan if the policy does not specify it, ms.
pub const SCAN_DEFAULT_MS: u64 = 250;

/// A scan queues this many times what left in the previous interval: some of it will have been
/// touched again by the time it is its turn.
pub const QUEUE_FACTOR: u64 = 2;

/// The minimum to queue, pages: a quiet target may suddenly grow.
pub const QUEUE_MIN_PAGES: u64 = 2048;

/// The maximum to queue, pages (4 GiB): lone pages take 16 bytes each in the queue.
pub const QUEUE_MAX_PAGES: u64 = 1 << 20;

/// The coldest of these parts of a queue goes first, then twice as much of the next, and so on: if
/// all of it went in order of address, a small target would lose merely cool memory as soon as cold
/// memory. Tiers this coarse keep neighbours together, which are cheaper to move than lone pages.
pub const QUEUE_TIERS: u64 = 8;

/// If the queue runs dry between two scans, it is refilled with this many times what was asked for.
pub const REFILL_FACTOR: u64 = 4;

/// Such scans take at most this share of a core, percent. They clear nothing, so they cost the
/// target nothing; with a smaller share, the queue of a target that refaults fast would be empty
/// for longer.
pub const REFILL_PERCENT: f64 = 25.0;

/// Pages that arrived since the last scan may go before older ones in some orders. Scans that clear
/// nothing find them, for this share of the cost of moving, percent.
pub const NEWCOMERS_OF_MOVES_PERCENT: f64 = 10.0;

/// A move is divided into slices: a program that shares the CPU waits for at most one. Where memory
/// grows slowly they are this far apart, us, because waking up, looking again and reading clocks
/// costs as much as a few pages.
pub const SLICE_MAX_US: u64 = 2_000;

/// How far apart slices are where memory grows fast, us.
pub const SLICE_MIN_US: u64 = 500;

/// Slices from one decision to the next, within those bounds: where memory grows fast, decisions
/// come more often.
pub const SLICES_A_STEP: u64 = 4;

/// A slice has this many pages per [`SLICE_MIN_US`] of its length (0.1 to 0.2 ms of work), unless
/// the whole move would take too long.
pub const SLICE_PAGES: u64 = 8;

/// Maximum duration of a move, us.
pub const MOVE_MAX_US: u64 = 16_000;

/// Maximum duration while memory grows faster than it is moved: the kernel's own reclaim would be
/// more expensive.
pub const MOVE_BEHIND_US: u64 = 4_000;

/// A late slice also takes what was due in the meantime, up to this many slices.
pub const LATE_SLICES_MAX: u64 = 4;

/// Of the pages that leave while the headroom is filled once, about this many are followed to see
/// whether they come back.
pub const FOLLOWED_MAX: u64 = 512;

/// Holding is judged once this many of them are known, several times as many as the headroom holds:
/// a loop that runs into what has just left takes as many as that back, once.
pub const JUDGED_MIN: u64 = 2048;

/// While the kernel holds the limit, its limit is read again after this time, us: without one, the
/// budget has to be held.
pub const LIMIT_CHECK_US: u64 = 5_000_000;

/// A rehearsal moves nothing, so the excess remains: the next decision comes after this time, us.
pub const REHEARSAL_US: u64 = 1_000_000;

/// A decision that could not be recorded is not carried out; the next one comes after this time,
/// us.
pub const RETRY_US: u64 = 1_000_000;

/// What a scan of a whole target found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Present pages looked at.
    pub present_pages: u64,
    /// Those accessed since the previous scan.
    pub young_pages: u64,
    /// Those that may be moved out, as of the last decision; `None` if unknown.
    pub movable_pages: Option<u64>,
    /// Those of the accessed pages whose accessed bits were in page tables: the target sets these
    /// bits again one by one.
    pub cleared_pages: u64,
    /// CPU time, ns.
    pub cpu_ns: u64,
    /// Of a sample of the pages that left: those after which as many others have left as the
    /// headroom holds, since the previous scan.
    pub judged_pages: u64,
    /// Those of them that came back before that.
    pub back_pages: u64,
}

impl Scanned {
    /// The share of present pages that were accessed, 0 to 1.
    fn young_share(&self) -> f64 {
        self.young_pages as f64 / self.present_pages.max(1) as f64
    }

    /// What it costs the scanner and, if it clears, the target, ns.
    fn cost_ns(&self) -> u64 {
        let again_ns = self.cleared_pages.saturating_mul(YOUNG_AGAIN_NS);
        self.cpu_ns.saturating_add(again_ns)
    }
}

/// What moving some of the coldest pages did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Pages taken from the queue, still present and not accessed since they were queued.
    pub tried_bytes: u64,
    /// Pages left alone because they were gone, or accessed since they were queued.
    pub young_again_bytes: u64,
    /// Bytes that left.
    pub left_bytes: u64,
    /// Calls to the mover.
    pub calls: u64,
    /// CPU time, ns.
    pub cpu_ns: u64,
}

impl Moved {
    /// Adds another move.
    pub fn add(&mut self, other: &Moved) {
        self.tried_bytes += other.tried_bytes;
        self.young_again_bytes += other.young_again_bytes;
        self.left_bytes += other.left_bytes;
        self.calls += other.calls;
        self.cpu_ns += other.cpu_ns;
    }
}
