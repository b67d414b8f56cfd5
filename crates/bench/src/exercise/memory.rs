// SPDX-License-Identifier: Apache-2.0
//! The exerciser's memory: private anonymous pages, and a file of its own mapped read-only.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use memmap2::{Advice, MmapOptions, MmapRaw};

use super::content::{Content, WORDS};

/// Page size of the exerciser in bytes.
pub const PAGE_SIZE: u64 = 4096;
/// Bytes covered by a last-level page table, which is also the size of a huge page.
const TABLE_SIZE: usize = 2 << 20;

/// A contiguous range of mapped pages.
#[derive(Debug)]
pub struct Pages {
    map: MmapRaw,
    /// Bytes from the start of the mapping to the first page.
    offset: usize,
    pages: u64,
}

impl Pages {
    /// Maps anonymous memory aligned to 2 MiB, with huge pages either requested or disabled.
    ///
    /// # Errors
    /// No address space is left, or overcommit is refused.
    pub fn anonymous(pages: u64, huge: bool) -> io::Result<Self> {
        let length = usize::try_from(pages.saturating_mul(PAGE_SIZE))
            .ok()
            .and_then(|length| length.checked_add(TABLE_SIZE))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapRaw::from(
            MmapOptions::new()
                .len(length)
                .no_reserve_swap()
                .map_anon()?,
        );
        map.advise(if huge {
            Advice::HugePage
        } else {
            Advice::NoHugePage
        })?;
        let offset = map.as_ptr().align_offset(TABLE_SIZE);
        Ok(Self { map, offset, pages })
    }

    /// Address of the first page.
    pub fn address(&self) -> u64 {
        self.map.as_ptr() as u64 + self.offset as u64
    }

    /// Number of pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The words of page `index`.
    #[inline]
    pub fn page(&self, index: u64) -> &[AtomicU64; WORDS] {
        assert!(index < self.pages, "page {index} of {}", self.pages);
        let at = self.offset + (index * PAGE_SIZE) as usize;
        // SAFETY: the page lies within the mapping (the constructors map `pages` pages after
        // `offset`) and starts at a multiple of 4096; the mapping lives as long as `self`. All
        // accesses are atomic, and pages of a file, which are mapped read-only, are only loaded.
        unsafe { &*self.map.as_ptr().add(at).cast::<[AtomicU64; WORDS]>() }
    }
}

/// A file mapped read-only: either one with known contents that is removed when dropped, or an
/// existing one.
#[derive(Debug)]
pub struct MappedFile {
    pages: Pages,
    /// Its path, if it must be removed.
    ours: Option<PathBuf>,
}

impl MappedFile {
    /// Creates `path` with `pages` pages of `content`, numbered from `first_page`, and syncs it to
    /// disk so that the kernel can drop its pages without writing.
    ///
    /// # Errors
    /// The file already exists (nothing is ever overwritten), or it cannot be written or mapped.
    pub fn create(path: &Path, pages: u64, content: &Content, first_page: u64) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        // From here on we must remove the file, even if filling it fails.
        let remove = |error: io::Error| {
            let _ = std::fs::remove_file(path);
            error
        };
        let fill = || -> io::Result<MmapRaw> {
            let mut out = io::BufWriter::with_capacity(1 << 20, &file);
            let page = [const { AtomicU64::new(0) }; WORDS];
            for index in 0..pages {
                content.fill(first_page + index, &page);
                for word in &page {
                    out.write_all(
                        &word
                            .load(std::sync::atomic::Ordering::Relaxed)
                            .to_ne_bytes(),
                    )?;
                }
            }
            out.flush()?;
            drop(out);
            file.sync_all()?;
            let map = MmapOptions::new().map_raw_read_only(&file)?;
            map.advise(Advice::Random)?;
            Ok(map)
        };
        let map = fill().map_err(remove)?;
        Ok(Self {
            pages: Pages {
                map,
                offset: 0,
                pages,
            },
            ours: Some(path.into()),
        })
    }

    /// Maps the whole pages of an existing file.
    ///
    /// # Errors
    /// The file cannot be read or mapped, or is shorter than a page.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = std::fs::File::open(path)?;
        let pages = file.metadata()?.len() / PAGE_SIZE;
        if pages == 0 {
            let why = "it is shorter than a page of 4 KiB";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let map = MmapOptions::new().map_raw_read_only(&file)?;
        map.advise(Advice::Random)?;
        let pages = Pages {
            map,
            offset: 0,
            pages,
        };
        Ok(Self { pages, ours: None })
    }

    /// Whether its contents are known.
    pub fn is_ours(&self) -> bool {
        self.ours.is_some()
    }

    pub fn pages(&self) -> &Pages {
        &self.pages
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        if let Some(path) = &self.ours {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_pages_are_aligned_and_hold_what_is_written() {
        for huge in [false, true] {
            let pages = Pages::anonymous(700, huge).expect("map");
            assert_eq!(pages.address() % TABLE_SIZE as u64, 0);
            let content = Content::new(0);
            for index in 0..700 {
                content.fill(index, pages.page(index));
            }
            assert!((0..700).all(|index| content.check_whole(index, pages.page(index)).is_ok()));
        }
    }

    #[test]
    fn a_file_is_never_overwritten_and_always_removed() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("mapped");
        let content = Content::new(0);
        let file = MappedFile::create(&path, 10, &content, 100).expect("create");
        assert!((0..10).all(|i| content.check_whole(100 + i, file.pages().page(i)).is_ok()));
        assert!(MappedFile::create(&path, 10, &content, 0).is_err());
        assert!(path.exists(), "the refused file is not ours to remove");
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn somebodys_file_is_mapped_and_left_alone() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("theirs");
        std::fs::write(&path, [7; 3 * PAGE_SIZE as usize + 5]).expect("write");
        let file = MappedFile::open(&path).expect("open");
        assert_eq!((file.pages().pages(), file.is_ours()), (3, false));
        drop(file);
        assert!(path.exists());
        std::fs::write(&path, "short").expect("write");
        assert!(MappedFile::open(&path).is_err());
    }
}
