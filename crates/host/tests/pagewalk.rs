// SPDX-License-Identifier: Apache-2.0
//! The page-table walker on real memory. Needs root and BPF; says so and skips otherwise.

use agewise_host::eye::{
    AccessSource, AddressRange, EyeError, Leaf, PAGE_BYTES, TABLE_BYTES, TableSight, Target,
};
use agewise_host::pagewalk::{Capacity, Flavour, PageWalk};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The walker, or the reason why there is none here.
fn walker(test: &str, flavour: Option<Flavour>, capacity: Capacity) -> Option<PageWalk> {
    match PageWalk::open_with(flavour, capacity) {
        Ok(walk) => Some(walk),
        Err(error @ (EyeError::NoPrivilege { .. } | EyeError::Unsupported { .. })) => {
            eprintln!("SKIP {test}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Anonymous memory of our own at a 2 MiB boundary.
struct Memory {
    at: *mut u8,
    bytes: usize,
}

impl Memory {
    fn new(bytes: usize, thp: bool) -> Self {
        let slack = bytes + TABLE_BYTES as usize;
        // SAFETY: fresh anonymous mapping.
        let raw = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                slack,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .unwrap() as usize;
        let at = raw.next_multiple_of(TABLE_BYTES as usize);
        let cut = |from: usize, to: usize| {
            if from < to {
                // SAFETY: the unused ends of the mapping just made.
                unsafe { rustix::mm::munmap(from as *mut _, to - from).unwrap() };
            }
        };
        cut(raw, at);
        cut(at + bytes, raw + slack);
        let memory = Memory {
            at: at as *mut u8,
            bytes,
        };
        memory.advise(
            0,
            bytes,
            if thp {
                Advice::LinuxHugepage
            } else {
                Advice::LinuxNoHugepage
            },
        );
        memory
    }

    fn va(&self) -> u64 {
        self.at as u64
    }

    fn range(&self) -> AddressRange {
        AddressRange {
            start: self.va(),
            end: self.va() + self.bytes as u64,
        }
    }

    fn advise(&self, from: usize, bytes: usize, advice: Advice) {
        // SAFETY: inside our own mapping; the advice given here loses nothing that is read again.
        unsafe { rustix::mm::madvise(self.at.add(from).cast(), bytes, advice).unwrap() };
    }

    fn write(&self, page: usize) {
        // SAFETY: inside our own writable mapping.
        unsafe { self.at.add(page * PAGE_BYTES as usize).write_volatile(1) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, referred to by nobody else.
        unsafe { rustix::mm::munmap(self.at.cast(), self.bytes).unwrap() };
    }
}

fn me() -> Target {
    Target::by_pid(std::process::id())
}

/// What a scan showed, by page.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
struct Seen {
    present: Vec<u64>,
    young: Vec<u64>,
    dirty: Vec<u64>,
    swapped: Vec<u64>,
    leaves: Vec<Leaf>,
}

impl Seen {
    fn take(&mut self, sight: &TableSight<'_>) {
        self.leaves.push(sight.leaf);
        for page in 0..512 {
            let va = sight.va + page as u64 * PAGE_BYTES;
            let push = |bits: &[u64; 8], into: &mut Vec<u64>| {
                if bits[page / 64] >> (page % 64) & 1 == 1 {
                    assert!(sight.covered[page / 64] >> (page % 64) & 1 == 1);
                    into.push(va);
                }
            };
            push(&sight.bits.present, &mut self.present);
            push(&sight.bits.young, &mut self.young);
            push(&sight.bits.dirty, &mut self.dirty);
            push(&sight.bits.swapped, &mut self.swapped);
        }
    }
}

fn scan(walk: &mut PageWalk, ranges: &[AddressRange]) -> Seen {
    let mut seen = Seen::default();
    let mut sink = |sight: &TableSight<'_>| seen.take(sight);
    let report = walk.scan(&me(), ranges, &mut sink).unwrap();
    assert!(report.complete);
    assert_eq!(report.cost.unreadable, 0);
    assert_eq!(report.cost.present_pages, seen.present.len() as u64);
    seen
}

#[test]
fn shows_exactly_the_pages_touched() {
    for flavour in [Flavour::Syscall, Flavour::Iterator] {
        let Some(mut walk) = walker(
            "shows_exactly_the_pages_touched",
            Some(flavour),
            Capacity::default(),
        ) else {
            return;
        };
        let memory = Memory::new(64 << 20, false);
        let touched: Vec<usize> = (0..16384)
            .filter(|page| page % 7 == 3 || page % 512 == 0)
            .collect();
        for &page in &touched {
            memory.write(page);
        }
        let want: Vec<u64> = touched
            .iter()
            .map(|&page| memory.va() + page as u64 * PAGE_BYTES)
            .collect();
        let seen = scan(&mut walk, &[memory.range()]);
        assert_eq!(seen.present, want, "{flavour:?}");
        assert_eq!(seen.young, want);
        assert_eq!(seen.dirty, want);
        assert!(seen.leaves.iter().all(|&leaf| leaf == Leaf::Page));
    }
}
