// SPDX-License-Identifier: Apache-2.0
//! The inputs for ages of files: what is cached, and what was accessed.

use std::path::PathBuf;

use agewise_policy::table::PageSet;

use super::accessed::{Accessed, Accesses, Block};
use super::shown::{CacheSink, Inode, SuperBlock, WalkReport};
use super::walk::CacheWalk;
use crate::access::AccessError;

/// Reads the contents of the page cache: [`CacheWalk`].
pub trait CacheReader: Send {
    /// See [`CacheWalk::walk`].
    ///
    /// # Errors
    /// Nothing can be read.
    fn walk(&mut self, sink: &mut dyn CacheSink) -> Result<WalkReport, AccessError>;

    /// See [`CacheWalk::walk_inode`].
    ///
    /// # Errors
    /// Nothing can be read.
    fn walk_inode(&mut self, address: u64, sink: &mut dyn CacheSink) -> Result<u64, AccessError>;

    /// See [`CacheWalk::path`].
    ///
    /// # Errors
    /// Nothing can be read.
    fn path(&mut self, on: &SuperBlock, inode: &Inode) -> Result<Option<PathBuf>, AccessError>;
}

impl CacheReader for CacheWalk {
    fn walk(&mut self, sink: &mut dyn CacheSink) -> Result<WalkReport, AccessError> {
        CacheWalk::walk(self, &|_| true, sink)
    }

    fn walk_inode(&mut self, address: u64, sink: &mut dyn CacheSink) -> Result<u64, AccessError> {
        CacheWalk::walk_inode(self, address, sink)
    }

    fn path(&mut self, on: &SuperBlock, inode: &Inode) -> Result<Option<PathBuf>, AccessError> {
        CacheWalk::path(self, on, inode)
    }
}

/// Records what is accessed: [`Accessed`].
pub trait AccessNotes: Send {
    /// See [`Accessed::look`].
    ///
    /// # Errors
    /// Nothing can be read.
    fn look(&mut self) -> Result<Accesses, AccessError>;

    /// See [`Accessed::peek`].
    ///
    /// # Errors
    /// Nothing can be read.
    fn peek(&mut self, block: &Block) -> Result<PageSet, AccessError>;

    /// From now on records one block in eight of the inode at an address, which is in this slot of
    /// the files followed by sample; 0 for none.
    fn sample(&mut self, slot: usize, inode: u64);
}

impl AccessNotes for Accessed {
    fn look(&mut self) -> Result<Accesses, AccessError> {
        Accessed::look(self)
    }

    fn peek(&mut self, block: &Block) -> Result<PageSet, AccessError> {
        Accessed::peek(self, block)
    }

    fn sample(&mut self, slot: usize, inode: u64) {
        Accessed::sample(self, slot, inode);
    }
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
