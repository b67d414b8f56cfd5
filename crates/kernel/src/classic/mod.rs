// SPDX-License-Identifier: Apache-2.0
//! The classic LRU: active and inactive lists of anon and file pages, with scan balance by cost and
//! the refault test on nonresident ages. The baseline the multi-gen LRU is compared with.
//!
//! Rules are those of `mm/vmscan.c`, `mm/swap.c` and `mm/workingset.c` of 6.12 and 7.2, which agree
//! in everything that decides which page goes; [`Settings`] holds the few differences. Most
//! decisions read list sizes through statistics that are flushed only every two seconds
//! ([`stats`]), not the lists themselves; that lag explains most of the kernel's counts.

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
