// SPDX-License-Identifier: Apache-2.0
//! A file of our own, which is read to find out whether reads are noted, and how the kernel reports
//! them.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use agewise_policy::table::PageSet;

use super::accesses::{Accesses, Block};
use super::unnamed::unnamed;
use crate::access::PAGE_BYTES;

/// Its size: more than the smallest folio of any file system (64 KiB). A read must not end where
/// the file does, or `last_index` would look the same either way.
const PAGES: usize = 64;
/// The page that is read.
const PAGE: usize = 1;

/// The file, and where its reads are noted.
pub(super) struct Canary {
    file: File,
    /// Low half of the inode number.
    number: u32,
    /// The block of its first pages, once a read of it was noted.
    block: Option<Block>,
}

impl Canary {
    /// Creates the file.
    ///
    /// # Errors
    /// No directory allows files that lie in the page cache.
    pub fn new() -> io::Result<Self> {
        let mut file = own_file()?;
        file.write_all(&[1; PAGES * PAGE_BYTES as usize])?;
        Ok(Canary {
            number: file.metadata()?.ino() as u32,
            block: None,
            file,
        })
    }

    /// Reads the page.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn read(&self) -> io::Result<()> {
        let mut page = [0; PAGE_BYTES as usize];
        self.file.read_exact_at(&mut page, PAGE as u64 * PAGE_BYTES)
    }

    /// Takes the pages noted for [`read`](Self::read) out of the accesses since then: nobody else
    /// knows the file. `None` if it was not noted.
    pub fn take_noted(&mut self, accesses: &mut Accesses) -> Option<PageSet> {
        let is_ours = |(block, pages): &(&Block, &PageSet)| {
            block.number == self.number && block.block == 0 && pages.contains(PAGE)
        };
        let found = || accesses.blocks.iter().find(is_ours);
        let block = self.block.or_else(|| Some(*found()?.0))?;
        let noted = accesses.blocks.remove(&block)?;
        if !noted.contains(PAGE) {
            return None;
        }
        self.block = Some(block);
        Some(noted)
    }
}

/// Creates a file of our own, in the first directory that allows it and is not in memory.
fn own_file() -> io::Result<File> {
    let mut last = io::ErrorKind::NotFound.into();
    for dir in [
        std::env::temp_dir(),
        "/var/tmp".into(),
        "/run".into(),
        "/".into(),
    ] {
        match unnamed(&dir) {
            Ok(file) => return Ok(file),
            Err(error) => last = error,
        }
    }
    Err(last)
}
