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

use std::io;
use std::path::Path;
use std::sync::Arc;

use agewise_policy::table::TableBits;

use super::{
    Abilities, AccessError, AccessSource, AddressRange, Batch, Entries, Leaf, Resolution,
    SightSink, TABLE_BYTES, TableSight, Target, check_ranges, covered,
};
use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::patient;
use crate::process::{Process, ProcessError};
use read::{
    PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, Reader, Referenced, Region, referenced,
};

mod read;

/// Reads `/proc/PID/pagemap` and `/proc/PID/smaps`.
#[derive(Debug, Default)]
pub struct Pagemap {
    reader: Reader,
}

impl Pagemap {
    /// Creates the source; opens nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the source as on a kernel without PAGEMAP_SCAN.
    pub fn plain() -> Self {
        let mut source = Self::default();
        source.reader.plain = true;
        source
    }

    /// Reads the next piece of `ranges` of a process, in a thread that may be left behind.
    fn read(
        &mut self,
        pid: u32,
        of: &Arc<Path>,
        ranges: &Arc<[AddressRange]>,
    ) -> Result<(), AccessError> {
        let mut reader = std::mem::take(&mut self.reader);
        let plain = reader.plain;
        let (dir, ranges) = (Arc::clone(of), Arc::clone(ranges));
        let answer = patient::call(pid, move || {
            let read = reader.next(&dir, &ranges);
            (read, reader)
        });
        self.reader.plain = plain;
        let read = answer.and_then(|(read, reader)| {
            self.reader = reader;
            read
        });
        read.map_err(|error| failure(pid, of, error))
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
    ) -> Result<u64, AccessError> {
        check_ranges(ranges)?;
        let mut cpu_ns = 0;
        let mut began = thread_cpu_ns();
        let process = open_target(target)?;
        let begin_ns = monotonic_ns();
        let (of, shared): (Arc<Path>, Arc<[AddressRange]>) =
            (process.path("").into(), ranges.into());
        self.reader.begin();
        self.read(target.pid, &of, &shared)?;
        let mappings = referenced(&self.reader.smaps);
        let mut table: Option<Building> = None;
        loop {
            cpu_ns += thread_cpu_ns() - began;
            for region in &self.reader.regions {
                let mut show = |sight: &TableSight<'_>| sink.table(sight);
                if table
                    .as_ref()
                    .is_none_or(|table| table.range.end <= region.start)
                {
                    if let Some(mut table) = table.take() {
                        table.flush(&mut show);
                    }
                    let index = ranges.partition_point(|range| range.end <= region.start);
                    let Some(range) = ranges.get(index) else {
                        break;
                    };
                    let young = was_referenced(&mappings, *range);
                    table = Some(Building::new(index, *range, young, begin_ns));
                }
                if let Some(table) = &mut table {
                    table.add(region, &mut show);
                }
            }
            began = thread_cpu_ns();
            if self.reader.at.0 >= ranges.len() {
                break;
            }
            self.read(target.pid, &of, &shared)?;
        }
        if let Some(mut table) = table {
            table.flush(&mut |sight| sink.table(sight));
        }
        cpu_ns += thread_cpu_ns() - began;
        sink.batch_end(&Batch {
            begin_ns,
            end_ns: monotonic_ns(),
        });
        Ok(cpu_ns)
    }
}

fn was_referenced(mappings: &[Referenced], range: AddressRange) -> bool {
    let touches = |mapping: &Referenced| mapping.range.common(range).is_some();
    mappings
        .iter()
        .any(|mapping| touches(mapping) && mapping.referenced > 0)
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
    use crate::access::PAGE_BYTES;

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
            source.scan(&target, &[range], &mut sink).unwrap();
            // Huge pages may have filled the gaps, but every page written is present.
            for page in (0..pages).filter(|page| page % 5 != 4) {
                assert!(present[page], "page {page}");
            }
            let present_pages = present.iter().filter(|&&is| is).count() as u64;
            assert_eq!(young, present_pages, "just written");
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
