// SPDX-License-Identifier: Apache-2.0
//! The inputs for ages of files: what is cached, and what was accessed.

use std::path::PathBuf;

use agewise_policy::table::PageSet;

use super::accessed::AccessNotes;
use super::accesses::{Accesses, Block};
use super::shown::{CacheSink, Inode, SuperBlock, WalkReport};
use crate::access::AccessError;

/// Reads the contents of the page cache.
pub trait CacheReader: Send {
    /// Shows the whole page cache once.
    ///
    /// # Errors
    /// Nothing can be read. File systems that go away in the meantime are not an error.
    fn walk(&mut self, sink: &mut dyn CacheSink) -> Result<WalkReport, AccessError>;

    /// Shows the pages of one inode, given by kernel address, and returns their number. Shows
    /// nothing if it no longer exists.
    ///
    /// # Errors
    /// Nothing can be read.
    fn walk_inode(&mut self, address: u64, sink: &mut dyn CacheSink) -> Result<u64, AccessError>;

    /// The path of an inode below the root of its file system, from one of its directory entries in
    /// memory. `None` if it has none, or is more than 64 directories deep. It may have been renamed
    /// since, so check it before use.
    ///
    /// # Errors
    /// Nothing can be read.
    fn path(&mut self, on: &SuperBlock, inode: &Inode) -> Result<Option<PathBuf>, AccessError>;
}

/// Records nothing: everything cached is of unknown age.
pub(super) struct NotFollowed;

impl AccessNotes for NotFollowed {
    fn look(&mut self) -> Result<Accesses, AccessError> {
        Ok(Accesses::default())
    }

    fn peek(&mut self, _: &Block) -> Result<PageSet, AccessError> {
        Ok(PageSet::NONE)
    }

    fn sample(&mut self, _: usize, _: u64) {}
}
