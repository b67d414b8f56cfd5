// SPDX-License-Identifier: Apache-2.0
//! Moving cold memory out of processes: plan, re-check, page out, verify.
//!
//! [`find_cold`] plans: it finds pages that are old according to the recorded ages and were not
//! accessed since, according to a look right now. [`move_out`] carries a plan out with
//! `process_madvise(MADV_PAGEOUT)`, within limits of bytes, rate and resident memory. It looks
//! again before each call, verifies after each call what has left, and accounts for every byte.
//! Locked memory, agewise itself and its ancestors are never touched. [`mark_cold`] only marks what
//! should be reclaimed first.
//!
//! ```no_run
//! # use std::sync::atomic::AtomicBool;
//! # use agewise_host::access::AddressRange;
//! # use agewise_host::mover::*;
//! # use agewise_host::process::Process;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let process = Process::open(4711)?;
//! let mut mover = ProcessMover::open(&process)?;
//! // Runs that an access source found idle; here, whatever lies there.
//! let plan = Plan::of_base([AddressRange::new(0x7f00_0000_0000, 64 << 20)]);
//! let limits = PageoutLimits { rate_bytes_per_s: Some(256 << 20), ..Default::default() };
//! let cancel = AtomicBool::new(false);
//! let moved = move_out(&mut mover, &plan, limits, &mut NoRecheck, &cancel, |report| {
//!     eprintln!("{} bytes left", report.left_bytes);
//! });
//! println!("{:?} {:?}", moved.report, moved.error);
//! # Ok(())
//! # }
//! ```

mod cold;
mod evict;
#[cfg(test)]
mod fake;
mod look;
mod mark;
mod pass;
mod plan;
mod rate;
mod recheck;
mod refault;
mod report;
mod runs;
mod space;
mod target;

pub use cold::{
    Ages, Cold, IdleSince, RUNS_MAX, find_cold, find_idle, idle_since, labelled, require_page_ages,
};
pub use evict::{Evicted, Eviction, Moved, Step, move_out};
pub use look::{Found, Wanted, look};
pub use mark::{Marked, mark_cold};
pub use plan::{HUGE_BYTES, PageoutLimits, Plan};
pub use rate::{Clock, SystemClock, TokenBucket};
pub use recheck::{NoRecheck, Recheck, SourceRecheck};
pub use refault::{RefaultCount, RefaultWatch};
pub use report::{PageoutReport, SkipReason, Skipped};
pub use runs::RunSet;
pub use space::{Mover, Pagemap, Present, ProcessMover, VECTOR_MAX};
pub(crate) use target::lineage;
pub use target::{PageoutError, check_target, own_lineage};
