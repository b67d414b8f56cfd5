// SPDX-License-Identifier: Apache-2.0
//! The hand that moves cold memory out: `process_madvise(MADV_PAGEOUT)`, bounded, looked at before
//! and after, and accounted to the byte.
//!
//! ```no_run
//! # use std::sync::atomic::AtomicBool;
//! # use agewise_host::pageout::*;
//! # use agewise_host::process::Process;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let process = Process::open(4711)?;
//! let mut mover = ProcessMover::open(&process, false)?;
//! // Runs that an eye found idle; here, whatever lies there.
//! let plan = Plan::of_base([Run::new(0x7f00_0000_0000, 64 << 20)]);
//! let limits = PageoutLimits { rate_bytes_per_s: Some(256 << 20), ..Default::default() };
//! let cancel = AtomicBool::new(false);
//! let mut eye = NoRecheck;
//! let mut eviction =
//!     Eviction::new(&plan, limits, &mut mover, &mut eye, &SystemClock, &cancel);
//! eviction.run(|report| eprintln!("{} bytes left", report.left_bytes))?;
//! # Ok(())
//! # }
//! ```

mod evict;
#[cfg(test)]
mod fake;
mod mover;
mod pass;
mod plan;
mod rate;
mod recheck;
mod refault;
mod report;
mod runs;
mod target;

pub use evict::{Evicted, Eviction, Step};
pub(crate) use mover::page_out;
pub use mover::{Mover, Present, ProcessMover, VECTOR_MAX};
pub use plan::{HUGE_BYTES, PageoutLimits, Plan};
pub use rate::{Clock, SystemClock, TokenBucket};
pub use recheck::{EyeRecheck, NoRecheck, Recheck};
pub use refault::{RefaultCount, RefaultWatch};
pub use report::{PageoutReport, SkipReason, Skipped};
pub use runs::{Run, RunSet};
pub use target::{PageoutError, check_target};
