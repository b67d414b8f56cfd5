// SPDX-License-Identifier: Apache-2.0
//! The walker while its targets map, unmap, fork, exec and die: nothing impossible is reported, and
//! nothing leaks. Needs root and BPF; otherwise prints so and skips.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use agewise_host::access::{
    AccessSource, AddressRange, SightSink, TABLE_BYTES, TableSight, Target,
};
use agewise_host::pagewalk::{Capacity, Flavour, PageWalk};

mod support;
use support::{BASE, Child, PAGE, fill, map_fixed, need};

const HUGE: usize = TABLE_BYTES as usize;
/// Always mapped: 600 pages, all present.
const STEADY: usize = BASE;
const STEADY_PAGES: usize = 600;
/// Mapped and unmapped: its tables are freed and created all the time.
const RESTLESS: usize = BASE + 16 * HUGE;
const RESTLESS_BYTES: usize = 32 * HUGE;
/// Never mapped, but under the same upper tables.
const NEVER: usize = BASE + 8 * HUGE;
const NEVER_BYTES: usize = 8 * HUGE;

const LASTS: Duration = Duration::from_secs(5);

/// The tests count open files and memory of this process, so only one may run at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn range(at: usize, bytes: usize) -> AddressRange {
    AddressRange {
        start: at as u64,
        end: (at + bytes) as u64,
    }
}

/// Maps, fills and unmaps, including huge pages. Runs in a child, so it only makes system calls.
fn tumble(round: usize) {
    let at = RESTLESS + (round * 7 % 16) * HUGE;
    let bytes = (1 + round % 13) * HUGE;
    let advice = if round.is_multiple_of(3) {
        libc::MADV_HUGEPAGE
    } else {
        libc::MADV_NOHUGEPAGE
    };
    map_fixed(at, bytes / PAGE, advice);
    for page in (0..bytes / PAGE).step_by(61) {
        fill(at + page * PAGE, 1);
    }
    // SAFETY: the mapping just made.
    unsafe {
        if round.is_multiple_of(4) {
            // Splits huge pages, and frees parts of them.
            libc::madvise((at + 5 * PAGE) as *mut _, 700 * PAGE, libc::MADV_DONTNEED);
            libc::mprotect((at + 9 * PAGE) as *mut _, 20 * PAGE, libc::PROT_READ);
        }
        libc::munmap(at as *mut _, bytes);
    }
}

/// Checks for what a scan must never show.
#[derive(Default)]
struct Sane {
    steady_pages: usize,
    tables: u64,
    unreadable: u64,
    memory_end_pfn: u64,
}

impl SightSink for Sane {
    fn table(&mut self, sight: &TableSight<'_>) {
        self.tables += 1;
        let va = sight.va as usize;
        for word in 0..8 {
            let bits = &sight.bits;
            let (p, mask) = (bits.present[word], sight.covered[word]);
            assert_eq!(bits.young[word] & !p, 0, "young, not present");
            assert_eq!(bits.dirty[word] & !p, 0, "dirty, not present");
            assert_eq!(bits.swapped[word] & p, 0, "swapped and present");
            assert_eq!((p | bits.swapped[word]) & !mask, 0, "outside");
        }
        for page in 0..512 {
            if sight.bits.present[page / 64] >> (page % 64) & 1 == 0 {
                continue;
            }
            let pfn = sight.pfn(page).expect("present without a frame");
            assert!(
                pfn > 0 && pfn < self.memory_end_pfn,
                "frame {pfn:#x} behind memory"
            );
            let at = va + page * PAGE;
            assert!(
                !(NEVER..NEVER + NEVER_BYTES).contains(&at),
                "{at:#x} was never mapped"
            );
            if at < STEADY + STEADY_PAGES * PAGE {
                self.steady_pages += 1;
            }
        }
        let swapped = !sight.bits.swapped.is_empty();
        assert!(!swapped || has_swap(), "swapped at {va:#x} without swap");
    }

    fn unreadable(&mut self, _: AddressRange) {
        self.unreadable += 1;
    }
}

fn has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

fn memory_end_pfn() -> u64 {
    let text = std::fs::read_to_string("/proc/iomem").unwrap();
    let ends = text
        .lines()
        .filter(|line| line.contains(" : System RAM"))
        .map(|line| {
            let (_, end) = line.split_once(" :").unwrap().0.split_once('-').unwrap();
            u64::from_str_radix(end, 16).unwrap() >> 12
        });
    ends.max().unwrap() + 1
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let rss = text
        .lines()
        .find_map(|line| line.strip_prefix("Rss:"))
        .unwrap();
    rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 4
}

fn walker(test: &str, flavour: Flavour) -> Option<PageWalk> {
    let capacity = Capacity {
        tables: 16,
        entries: 64,
    };
    let walk = PageWalk::open_with(Some(flavour), capacity);
    need::opened("pagewalk", &format!("{test} {flavour:?}"), walk)
}

fn ranges() -> [AddressRange; 3] {
    [
        range(STEADY, STEADY_PAGES * PAGE),
        range(NEVER, NEVER_BYTES),
        range(RESTLESS, RESTLESS_BYTES),
    ]
}

#[test]
fn a_process_that_maps_and_unmaps() {
    let _alone = ALONE.lock().unwrap_or_else(|poison| poison.into_inner());
    for flavour in [Flavour::Syscall, Flavour::Iterator] {
        let Some(mut walk) = walker("a_process_that_maps_and_unmaps", flavour) else {
            continue;
        };
        let child = Child::spawn(|| {
            map_fixed(STEADY, STEADY_PAGES, libc::MADV_NOHUGEPAGE);
            fill(STEADY, STEADY_PAGES);
        });
        child.tumble(tumble);
        let (files, mut memory) = (open_files(), 0);
        let (began, mut walks, mut tables, mut unreadable) = (Instant::now(), 0u64, 0, 0);
        while began.elapsed() < LASTS {
            let mut sane = Sane {
                memory_end_pfn: memory_end_pfn(),
                ..Default::default()
            };
            for _ in 0..200 {
                sane.steady_pages = 0;
                let before = sane.unreadable;
                walk.scan(&Target::by_pid(child.pid), &ranges(), &mut sane)
                    .unwrap();
                if sane.unreadable == before {
                    assert_eq!(sane.steady_pages, STEADY_PAGES);
                }
                walks += 1;
            }
            tables += sane.tables;
            unreadable += sane.unreadable;
            if memory == 0 {
                memory = resident_pages();
            }
        }
        println!("{flavour:?}: {walks} walks, {tables} tables shown, {unreadable} unreadable");
        assert!(walks > 1000);
        assert!(
            unreadable * 20 < tables,
            "{unreadable} of {tables} tables unreadable"
        );
        assert_eq!(open_files(), files, "files left open");
        assert!(resident_pages() < memory + 256, "memory grew");
    }
}

/// Processes that live only for a moment: they exit, exec or get killed while they are walked.
#[test]
fn processes_that_come_and_go() {
    let _alone = ALONE.lock().unwrap_or_else(|poison| poison.into_inner());
    for flavour in [Flavour::Syscall, Flavour::Iterator] {
        let Some(mut walk) = walker("processes_that_come_and_go", flavour) else {
            continue;
        };
        let shared = Shared::new();
        let newest = shared.word();
        let at = newest as *const AtomicU32 as usize;
        let child = Child::spawn(move || {
            // SAFETY: the shared page lives as long as the test.
            let newest = unsafe { &*(at as *const AtomicU32) };
            // SAFETY: forks of a single-threaded child; they only make system calls.
            unsafe {
                if libc::fork() == 0 {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    come_and_go(newest);
                }
            }
        });
        let (began, mut walks, mut gone, mut shown) = (Instant::now(), 0u64, 0u64, 0);
        let files = open_files();
        while began.elapsed() < LASTS {
            let mut sane = Sane {
                memory_end_pfn: memory_end_pfn(),
                ..Default::default()
            };
            for _ in 0..200 {
                let pid = newest.load(SeqCst);
                if pid == 0 {
                    continue;
                }
                walks += 1;
                match walk.scan(&Target::by_pid(pid), &ranges(), &mut sane) {
                    Ok(_) => {}
                    Err(error) if error.is_target_gone() => gone += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            shown += sane.tables;
        }
        drop(child);
        println!("{flavour:?}: {walks} walks, {gone} of processes gone, {shown} tables shown");
        assert!(
            gone > 0 && shown > 0 && walks > 1000,
            "{walks} {gone} {shown}"
        );
        assert_eq!(open_files(), files, "files left open");
    }
}

/// Forks forever: each child maps, fills, and ends in one of three ways.
fn come_and_go(newest: &AtomicU32) -> ! {
    let mut round = 0usize;
    loop {
        round += 1;
        // SAFETY: plain system calls; execve is given a path, no arguments and no environment.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                map_fixed(STEADY, STEADY_PAGES, libc::MADV_NOHUGEPAGE);
                fill(STEADY, STEADY_PAGES);
                tumble(round);
                if round.is_multiple_of(3) {
                    let path = c"/bin/true".as_ptr();
                    libc::execve(path, [path, std::ptr::null()].as_ptr(), std::ptr::null());
                }
                libc::_exit(0);
            }
            newest.store(pid as u32, SeqCst);
            if round.is_multiple_of(5) {
                libc::usleep(300);
                libc::kill(pid, libc::SIGKILL);
            }
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
    }
}

/// A page shared with children.
struct Shared(*mut std::ffi::c_void);

impl Shared {
    fn new() -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::SHARED) };
        Shared(at.unwrap())
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped until drop; zero is a valid value.
        unsafe { &*self.0.cast() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { rustix::mm::munmap(self.0, PAGE).unwrap() };
    }
}
