// SPDX-License-Identifier: Apache-2.0
//! The page cache: what is in it, and which of its pages are accessed.
//!
//! [`CacheWalk`] reads what is cached, as the page-table walker reads page tables. It takes no
//! lock: inodes and tree nodes come and go, so everything read is checked, and discarded if it had
//! become something else.

mod accessed;
mod accesses;
#[cfg(test)]
mod blind_tests;
mod cached;
mod canary;
mod chunk;
mod drop;
mod dropped;
#[cfg(test)]
pub(crate) mod fake;
mod files;
mod frames;
mod gather;
mod hand;
pub mod hooks;
mod largest;
pub mod layout;
mod names;
mod price;
mod progress;
mod quiet;
mod readers;
mod report;
mod sampled;
mod shown;
mod sizes;
mod slots;
#[cfg(test)]
mod spared_tests;
mod stat;
mod unnamed;
mod unreached;
mod uses;
mod walk;

pub use accessed::{AccessNotes, Accessed};
pub use accesses::{Accesses, Block};
pub use cached::{CachedFile, Cold, FILES_MAX, Mapped, Owner};
pub use drop::{DropLimits, Dropper, Tell};
pub use files::{FileAges, FilesLook};
pub use frames::Folios;
pub use largest::{LargeFile, Largest};
pub use layout::Leaf;
pub use names::{Mounts, Openers, Place, device_text, files_of, label};
pub use price::PriceOfFile;
pub use readers::CacheReader;
pub use report::DropReport;
pub use shown::{CacheKind, CacheSink, Inode, Key, SuperBlock, WalkReport};
pub(crate) use stat::has_cachestat;
pub use stat::{CacheStat, cachestat, check_cachestat};
pub use uses::Uses;
pub use walk::CacheWalk;
