// SPDX-License-Identifier: Apache-2.0
//! The classic LRU: active and inactive lists of anon and file pages, scan balance by cost, and the
//! refault test based on nonresident ages. It is the baseline for the multi-gen LRU.
//!
//! The rules are those of `mm/vmscan.c`, `mm/swap.c` and `mm/workingset.c` in 6.12 and 7.2, which
//! agree in everything that decides which page is evicted; [`Settings`] has the few differences.
//! Most decisions do not read the lists themselves, but statistics that are flushed only every two
//! seconds ([`stats`]); that lag explains most of the kernel's counts.

pub mod access;
pub mod active;
pub mod balance;
pub mod cost;
pub mod inactive;
mod isolate;
mod lists;
mod scan_balance;
mod settings;
pub mod shrink;
pub mod stats;
pub mod workingset;

pub(crate) use access::{add_folio, del_folio, mark_accessed, reparent};
pub use lists::{Counts, List, State};
pub use scan_balance::ScanBalance;
pub use settings::Settings;
pub use shrink::shrink_lruvec;
pub use stats::flush_stats;
pub(crate) use workingset::{eviction_shadow, refault};
