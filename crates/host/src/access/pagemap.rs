// SPDX-License-Identifier: Apache-2.0
//! The access source without BPF: `/proc/PID/pagemap` for present and swapped pages,
//! `/proc/PID/smaps` for referenced ones. Works on the user's own processes without any privilege.
//!
//! It is coarse, and declares so ([`Resolution::Mapping`]): smaps reports how many bytes of a
//! mapping were referenced, not which. `young` is all of a mapping's pages if any was referenced,
//! otherwise none. So memory it calls idle is idle (as far as `clear_refs`, which does not flush
//! TLBs, can show), but memory it calls young may be mostly idle. Its accessed bits are cleared
//! with `clear_refs` ([`crate::clear::Means::Refs`]); clearing single pages with MADV_COLD is
//! useless here.
//!
//! It costs about 10 ns a page with PAGEMAP_SCAN (Linux 6.7), 30 ns before, plus 30 ns per resident
//! page for smaps. Reading smaps takes the target's mmap lock for reading, one mapping at a time.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use agewise_policy::table::TableBits;

use super::{
    Abilities, AccessError, AccessSource, AddressRange, Batch, Entries, Leaf, PAGE_BYTES,
    Resolution, ScanReport, SightSink, TABLE_BYTES, TableSight, Target, check_ranges, covered,
};
use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::process::{Process, ProcessError};

/// Reads `/proc/PID/pagemap` and `/proc/PID/smaps`.
#[derive(Debug, Default)]
pub struct Pagemap {
    text: Vec<u8>,
    regions: Vec<Region>,
    entries: Vec<u8>,
    /// This kernel has no PAGEMAP_SCAN.
    plain: bool,
}

/// Pages `start..end` in the same state.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    start: u64,
    end: u64,
    /// Bits of `PAGE_IS_*`.
    categories: u64,
}

const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;
const PAGE_IS_HUGE: u64 = 1 << 6;

/// Regions requested per call.
const REGIONS: usize = 1024;
/// Bytes of pagemap read per call: covers 64 MiB of addresses.
const ENTRIES_BYTES: usize = 128 << 10;

impl Pagemap {
    /// Creates the source; opens nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the source as on a kernel without PAGEMAP_SCAN.
    pub fn plain() -> Self {
        Pagemap {
            plain: true,
            ..Self::default()
        }
    }

    /// Reads the states of the pages from `from` on, in ascending order, into `self.regions`.
    /// Returns the address to continue from.
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
        self.regions.clear();
        for (page, entry) in self.entries.chunks_exact(8).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
            let categories =
                ((entry >> 63) * PAGE_IS_PRESENT) | ((entry >> 62 & 1) * PAGE_IS_SWAPPED);
            let start = from + page as u64 * PAGE_BYTES;
            match self.regions.last_mut() {
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
        self.regions.resize(REGIONS, Region::default());
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: 0,
            start: from,
            end,
            walk_end: 0,
            vec: self.regions.as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_PFNZERO | PAGE_IS_HUGE,
        };
        // SAFETY: `size` states the size of `arg`; `vec` has room for `vec_len` regions.
        let got = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut arg) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        self.regions.truncate(got as usize);
        // The kernel collects 512 regions at a time and leaves `walk_end` where it last stopped for
        // that (fs/proc/task_mmu.c, `do_pagemap_scan`, 6.7 to 6.18), so after a complete walk it
        // may lie before regions already returned. Only a full vector ends the walk early.
        Ok(match self.regions.last() {
            Some(last) if got as usize == REGIONS => arg.walk_end.max(last.end),
            _ => end,
        })
    }

    fn slurp(&mut self, path: &Path, pid: u32) -> Result<(), AccessError> {
        self.text.clear();
        File::open(path)
            .and_then(|mut file| file.read_to_end(&mut self.text))
            .map(drop)
            .map_err(|error| failure(pid, path, error))
    }
}

impl AccessSource for Pagemap {
    fn name(&self) -> &'static str {
        "pagemap"
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            resolution: Resolution::Mapping,
            pfn: false,
        }
    }

    fn scan(
        &mut self,
        target: &Target,
        ranges: &[AddressRange],
        sink: &mut dyn SightSink,
    ) -> Result<ScanReport, AccessError> {
        check_ranges(ranges)?;
        let mut report = ScanReport::default();
        let mut began = thread_cpu_ns();
        let process = open_target(target)?;
        let begin_ns = monotonic_ns();
        self.slurp(&process.path("smaps"), target.pid)?;
        let mappings = referenced(&self.text);
        let path = process.path("pagemap");
        let pagemap = File::open(&path).map_err(|error| failure(target.pid, &path, error))?;
        let mut batch = Batch {
            begin_ns,
            ..Default::default()
        };
        for (index, range) in ranges.iter().enumerate() {
            let young = mappings.iter().any(|mapping| {
                mapping.range.start < range.end
                    && range.start < mapping.range.end
                    && mapping.referenced > 0
            });
            let mut table = Building::new(index, *range, young, begin_ns);
            let mut from = range.start;
            while from < range.end {
                from = self
                    .read_regions(&pagemap, from, range.end)
                    .map_err(|error| failure(target.pid, &path, error))?;
                report.cost.calls += 1;
                report.cost.cpu_ns += thread_cpu_ns() - began;
                for region in &self.regions {
                    table.add(region, &mut |sight| {
                        show(sight, &mut report, &mut batch, sink)
                    });
                }
                began = thread_cpu_ns();
            }
            table.flush(&mut |sight| show(sight, &mut report, &mut batch, sink));
        }
        report.cost.cpu_ns += thread_cpu_ns() - began;
        batch.end_ns = monotonic_ns();
        sink.batch_end(&batch);
        Ok(report)
    }
}

fn show(
    sight: &TableSight<'_>,
    report: &mut ScanReport,
    batch: &mut Batch,
    sink: &mut dyn SightSink,
) {
    report.cost.present_pages += sight.bits.present.len();
    report.cost.tables += 1;
    batch.sights += 1;
    sink.table(sight);
}

/// A sight under construction, extended region by region.
struct Building {
    index: usize,
    range: AddressRange,
    young: bool,
    seen_ns: u64,
    va: u64,
    bits: TableBits,
    leaf: Leaf,
}

impl Building {
    fn new(index: usize, range: AddressRange, young: bool, seen_ns: u64) -> Self {
        let va = range.start & !(TABLE_BYTES - 1);
        let bits = TableBits::default();
        Building {
            index,
            range,
            young,
            seen_ns,
            va,
            bits,
            leaf: Leaf::Page,
        }
    }

    fn add(&mut self, region: &Region, show: &mut dyn FnMut(&TableSight<'_>)) {
        // The zero page is not the process's own memory.
        if region.categories & PAGE_IS_PFNZERO != 0 {
            return;
        }
        let mut start = region.start.max(self.range.start);
        let end = region.end.min(self.range.end);
        while start < end {
            let va = start & !(TABLE_BYTES - 1);
            if va != self.va {
                self.flush(show);
                self.va = va;
            }
            let until = end.min(va + TABLE_BYTES);
            let pages = covered(va, AddressRange { start, end: until });
            let into = if region.categories & PAGE_IS_PRESENT != 0 {
                &mut self.bits.present
            } else {
                &mut self.bits.swapped
            };
            *into |= pages;
            if region.categories & PAGE_IS_HUGE != 0 && region.categories & PAGE_IS_PRESENT != 0 {
                self.leaf = Leaf::Huge;
            }
            start = until;
        }
    }

    /// Shows what has been gathered, if anything.
    fn flush(&mut self, show: &mut dyn FnMut(&TableSight<'_>)) {
        let mut bits = std::mem::take(&mut self.bits);
        let leaf = std::mem::replace(&mut self.leaf, Leaf::Page);
        if bits == TableBits::default() {
            return;
        }
        if self.young {
            bits.young = bits.present;
        }
        show(&TableSight {
            va: self.va,
            range: self.index,
            leaf,
            covered: covered(self.va, self.range),
            bits: &bits,
            seen_ns: self.seen_ns,
            entries: Entries::Unknown,
        });
    }
}

/// A mapping from smaps, and how many of its bytes were referenced.
#[derive(Debug, PartialEq, Eq)]
struct Referenced {
    range: AddressRange,
    referenced: u64,
}

fn referenced(smaps: &[u8]) -> Vec<Referenced> {
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

fn open_target(target: &Target) -> Result<Process, AccessError> {
    let pid = target.pid;
    let process = match Process::open(pid) {
        Ok(process) => process,
        Err(ProcessError::KernelThread { .. }) => return Err(AccessError::KernelThread { pid }),
        Err(ProcessError::Zombie { .. }) => return Err(AccessError::NoAddressSpace { pid }),
        Err(ProcessError::Gone { .. }) => return Err(AccessError::NoSuchProcess { pid }),
        Err(error) => {
            return Err(AccessError::io(
                format!("/proc/{pid}"),
                io::Error::other(error),
            ));
        }
    };
    match target.start_ticks {
        Some(ticks) if ticks != process.start_ticks() => Err(AccessError::Reused { pid }),
        _ => Ok(process),
    }
}

fn failure(pid: u32, path: &Path, error: io::Error) -> AccessError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => AccessError::NoSuchProcess { pid },
        Some(libc::EACCES | libc::EPERM) => AccessError::NoPrivilege {
            what: format!("reading {}", path.display()),
            hint: "run as root, or as the user of the process",
        },
        _ => AccessError::io(path, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_tells_what_was_referenced_by_mapping() {
        let smaps = b"1000-3000 rw-p 00000000 00:00 0   [heap]\nSize: 8 kB\nRss: 8 kB\nReferenced:            4 kB\n\
                      VmFlags: rd wr\n5000-6000 r--p 00000000 00:00 0 \nReferenced:            0 kB\n";
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

    /// The ioctl and plain reading report the same about our own memory, and it is correct.
    #[test]
    fn sees_our_own_memory_both_ways() {
        let pages = 3000usize;
        let mut memory = vec![0u8; (pages + 1) * 4096];
        let start = (memory.as_ptr() as u64).next_multiple_of(PAGE_BYTES);
        let offset = (start - memory.as_ptr() as u64) as usize;
        for page in (0..pages).filter(|page| page % 5 != 4) {
            memory[offset + page * 4096] = 1;
        }
        let range = AddressRange {
            start,
            end: start + pages as u64 * PAGE_BYTES,
        };
        let mut shown = Vec::new();
        for mut source in [Pagemap::new(), Pagemap::plain()] {
            let mut present = vec![false; pages];
            let mut young = 0;
            let mut last = 0;
            let mut sink = |sight: &TableSight<'_>| {
                assert!(sight.va > last, "rising");
                last = sight.va;
                for page in 0..512usize {
                    let at = sight.va + page as u64 * PAGE_BYTES;
                    if sight.bits.present[page / 64] >> (page % 64) & 1 == 1 {
                        present[((at - start) / PAGE_BYTES) as usize] = true;
                    }
                }
                young += sight.bits.young.len();
            };
            let target = Target::by_pid(std::process::id());
            let report = source.scan(&target, &[range], &mut sink).unwrap();
            // Huge pages may have filled the gaps, but every page written is present.
            for page in (0..pages).filter(|page| page % 5 != 4) {
                assert!(present[page], "page {page}");
            }
            assert_eq!(
                report.cost.present_pages,
                present.iter().filter(|&&p| p).count() as u64
            );
            assert_eq!(young, report.cost.present_pages, "just written");
            shown.push(present);
        }
        assert_eq!(shown[0], shown[1]);
    }

    #[test]
    fn refuses_what_is_not_there() {
        let mut source = Pagemap::new();
        let mut sink = |_: &TableSight<'_>| {};
        let range = [AddressRange {
            start: 4096,
            end: 8192,
        }];
        let gone = source.scan(&Target::by_pid(1 << 22), &range, &mut sink);
        assert!(
            matches!(gone, Err(AccessError::NoSuchProcess { .. })),
            "{gone:?}"
        );
        let other = Target {
            pid: std::process::id(),
            start_ticks: Some(1),
        };
        let reused = source.scan(&other, &range, &mut sink);
        assert!(
            matches!(reused, Err(AccessError::Reused { .. })),
            "{reused:?}"
        );
    }
}
