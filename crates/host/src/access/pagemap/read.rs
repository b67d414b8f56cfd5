// SPDX-License-Identifier: Apache-2.0
//! Reads the files of a process that show its pages.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::access::{AddressRange, PAGE_BYTES};

/// Reads `/proc/PID/smaps` and, piece by piece, `/proc/PID/pagemap`. Owns all that it uses, so that
/// a thread can take it along ([`crate::patient`]).
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub smaps: Vec<u8>,
    /// What the last piece shows.
    pub regions: Vec<Region>,
    /// The place behind them: the number of a range, and an address in it.
    pub at: (usize, u64),
    entries: Vec<u8>,
    pagemap: Option<File>,
    /// This kernel has no PAGEMAP_SCAN.
    pub plain: bool,
}

/// Pages `start..end` in the same state.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Region {
    pub start: u64,
    pub end: u64,
    /// Bits of `PAGE_IS_*`.
    pub categories: u64,
}

pub(super) const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
pub(super) const PAGE_IS_PFNZERO: u64 = 1 << 5;
pub(super) const PAGE_IS_HUGE: u64 = 1 << 6;

/// Regions requested per call, and in all before they are taken.
const REGIONS: usize = 1024;
/// Bytes of pagemap read per call: covers 64 MiB of addresses.
const ENTRIES_BYTES: usize = 128 << 10;

impl Reader {
    /// Begins with another process, or anew.
    pub fn begin(&mut self) {
        self.pagemap = None;
        self.at = (0, 0);
    }

    /// Reads the next piece of `ranges` of the process in this directory; smaps before the first.
    pub fn next(&mut self, of: &Path, ranges: &[AddressRange]) -> io::Result<()> {
        self.regions.clear();
        let pagemap = match self.pagemap.take() {
            Some(pagemap) => pagemap,
            None => {
                self.smaps.clear();
                File::open(of.join("smaps"))?.read_to_end(&mut self.smaps)?;
                File::open(of.join("pagemap"))?
            }
        };
        while let Some(range) = ranges.get(self.at.0)
            && self.regions.len() < REGIONS
        {
            let to = self.read_regions(&pagemap, self.at.1.max(range.start), range.end)?;
            self.at = (self.at.0 + usize::from(to >= range.end), to);
        }
        self.pagemap = (self.at.0 < ranges.len()).then_some(pagemap);
        Ok(())
    }

    /// Adds the states of the pages from `from` on, in ascending order. Returns the address to
    /// continue from.
    fn read_regions(&mut self, pagemap: &File, from: u64, end: u64) -> io::Result<u64> {
        if !self.plain {
            match self.scan_regions(pagemap, from, end) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                    self.plain = true;
                }
                result => return result,
            }
        }
        let bytes = ((end - from) / PAGE_BYTES * 8).min(ENTRIES_BYTES as u64) as usize;
        self.entries.resize(bytes, 0);
        pagemap.read_exact_at(&mut self.entries, from / PAGE_BYTES * 8)?;
        let first = self.regions.len();
        for (page, entry) in self.entries.chunks_exact(8).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
            let categories =
                ((entry >> 63) * PAGE_IS_PRESENT) | ((entry >> 62 & 1) * PAGE_IS_SWAPPED);
            let start = from + page as u64 * PAGE_BYTES;
            match self.regions[first..].last_mut() {
                Some(last) if last.categories == categories && last.end == start => {
                    last.end += PAGE_BYTES;
                }
                _ if categories == 0 => {}
                _ => self.regions.push(Region {
                    start,
                    end: start + PAGE_BYTES,
                    categories,
                }),
            }
        }
        Ok(from + bytes as u64 / 8 * PAGE_BYTES)
    }

    /// The ioctl PAGEMAP_SCAN (Documentation/admin-guide/mm/pagemap.rst).
    fn scan_regions(&mut self, pagemap: &File, from: u64, end: u64) -> io::Result<u64> {
        #[repr(C)]
        struct ScanArg {
            size: u64,
            flags: u64,
            start: u64,
            end: u64,
            walk_end: u64,
            vec: u64,
            vec_len: u64,
            max_pages: u64,
            category_inverted: u64,
            category_mask: u64,
            category_anyof_mask: u64,
            return_mask: u64,
        }
        const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610u32 as libc::Ioctl;
        let first = self.regions.len();
        self.regions.resize(first + REGIONS, Region::default());
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: 0,
            start: from,
            end,
            walk_end: 0,
            vec: self.regions[first..].as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_PFNZERO | PAGE_IS_HUGE,
        };
        // SAFETY: `size` states the size of `arg`; `vec` has room for `vec_len` regions.
        let got = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut arg) };
        let error = io::Error::last_os_error();
        self.regions.truncate(first + got.max(0) as usize);
        if got < 0 {
            return Err(error);
        }
        // The kernel collects 512 regions at a time and leaves `walk_end` where it last stopped for
        // that (fs/proc/task_mmu.c, `do_pagemap_scan`, 6.7 to 6.18), so after a complete walk it
        // may lie before regions already returned. Only a full vector ends the walk early.
        Ok(match self.regions[first..].last() {
            Some(last) if got as usize == REGIONS => arg.walk_end.max(last.end),
            _ => end,
        })
    }
}

/// A mapping from smaps, and how many of its bytes were referenced.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Referenced {
    pub range: AddressRange,
    pub referenced: u64,
}

pub(super) fn referenced(smaps: &[u8]) -> Vec<Referenced> {
    let mut out: Vec<Referenced> = Vec::new();
    for line in smaps.split(|&byte| byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else {
            continue;
        };
        if let Some(size) = line.strip_prefix("Referenced:") {
            let kib = size
                .trim()
                .trim_end_matches(" kB")
                .trim()
                .parse::<u64>()
                .unwrap_or(0);
            if let Some(last) = out.last_mut() {
                last.referenced = kib.saturating_mul(1024);
            }
        } else if let Some(range) = header(line) {
            out.push(Referenced {
                range,
                referenced: 0,
            });
        }
    }
    out
}

/// Parses `start-end perms …`, the first line of a mapping.
fn header(line: &str) -> Option<AddressRange> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(AddressRange {
        start: number(start)?,
        end: number(end)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_tells_what_was_referenced_by_mapping() {
        let smaps = b"1000-3000 rw-p 00000000 00:00 0   [heap]\nSize: 8 kB\nRss: 8 kB\n\
                      Referenced:            4 kB\nVmFlags: rd wr\n\
                      5000-6000 r--p 00000000 00:00 0 \nReferenced:            0 kB\n";
        let range = |start, end| AddressRange { start, end };
        assert_eq!(
            referenced(smaps),
            [
                Referenced {
                    range: range(0x1000, 0x3000),
                    referenced: 4096
                },
                Referenced {
                    range: range(0x5000, 0x6000),
                    referenced: 0
                },
            ]
        );
    }
}
