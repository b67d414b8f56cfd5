// SPDX-License-Identifier: Apache-2.0
//! The page-table walker on real processes with a known layout. Needs root and BPF; otherwise
//! prints so and skips.

use agewise_host::access::{
    AccessError, AccessSource, AddressRange, Batch, Leaf, PAGE_BYTES, SightSink, TABLE_BYTES,
    TableSight, Target,
};
use agewise_host::clear::hand::{ClearHand, KernelHand, RefsScope};
use agewise_host::pagewalk::{Capacity, Flavour, PageWalk};
use agewise_host::process::Process;
use agewise_host::vma::{Vma, VmaKind, VmaTable};
use agewise_policy::table::PageSet;

mod support;
use support::{BASE, Child, PAGE, fill, map_fixed, need, pagemap, pages_at_once, whole};

const NO_THP: i32 = libc::MADV_NOHUGEPAGE;
const THP: i32 = libc::MADV_HUGEPAGE;
const HUGE: usize = TABLE_BYTES as usize;

fn walker_with(test: &str, flavour: Option<Flavour>, capacity: Capacity) -> Option<PageWalk> {
    need::opened("pagewalk", test, PageWalk::open_with(flavour, capacity))
}

fn walker(test: &str) -> Option<PageWalk> {
    walker_with(test, None, Capacity::default())
}

fn range(at: usize, pages: usize) -> AddressRange {
    AddressRange {
        start: at as u64,
        end: (at + pages * PAGE) as u64,
    }
}

/// What a scan showed, by address.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
struct Seen {
    present: Vec<u64>,
    young: Vec<u64>,
    dirty: Vec<u64>,
    swapped: Vec<u64>,
    leaves: Vec<Leaf>,
    batches: u32,
}

impl SightSink for Seen {
    fn table(&mut self, sight: &TableSight<'_>) {
        self.leaves.push(sight.leaf);
        for page in 0..512 {
            let va = sight.va + page as u64 * PAGE_BYTES;
            let push = |bits: &PageSet, into: &mut Vec<u64>| {
                if bits.contains(page) {
                    assert!(sight.covered.contains(page));
                    into.push(va);
                }
            };
            push(&sight.bits.present, &mut self.present);
            push(&sight.bits.young, &mut self.young);
            push(&sight.bits.dirty, &mut self.dirty);
            push(&sight.bits.swapped, &mut self.swapped);
        }
    }

    fn unreadable(&mut self, range: AddressRange) {
        panic!("unreadable {range:x?}");
    }

    fn batch_end(&mut self, batch: &Batch) {
        assert!(batch.begin_ns < batch.end_ns);
        self.batches += 1;
    }
}

fn scan(walk: &mut PageWalk, pid: u32, ranges: &[AddressRange]) -> Seen {
    let mut seen = Seen::default();
    walk.scan(&Target::by_pid(pid), ranges, &mut seen).unwrap();
    seen
}

/// Checks that exactly these pages are young. Another program that clears accessed bits (a kdamond)
/// may interfere, so one in a hundred may be missing.
fn assert_young(seen: &Seen, want: &[u64]) {
    let extra: Vec<_> = seen
        .young
        .iter()
        .filter(|va| want.binary_search(va).is_err())
        .collect();
    assert!(
        extra.is_empty(),
        "young, though not accessed: {:x?}",
        &extra[..extra.len().min(5)]
    );
    let missing = want.len() - seen.young.len();
    assert!(
        missing * 100 <= want.len(),
        "{missing} of {} accesses missed",
        want.len()
    );
}

/// Describes briefly where two results differ.
fn difference(got: &Seen, want: &Seen) -> Option<String> {
    let parts = [
        ("present", &got.present, &want.present),
        ("young", &got.young, &want.young),
        ("dirty", &got.dirty, &want.dirty),
        ("swapped", &got.swapped, &want.swapped),
    ];
    for (name, got, want) in parts {
        if got != want {
            let at = got.iter().zip(want.iter()).position(|(g, w)| g != w);
            let at = at.unwrap_or(got.len().min(want.len()));
            let near = |list: &[u64]| list.get(at).map(|va| format!("{va:#x}"));
            return Some(format!(
                "{name}: {} for {}, from number {at} on: {:?} for {:?}",
                got.len(),
                want.len(),
                near(got),
                near(want)
            ));
        }
    }
    (got != want).then(|| format!("leaves {:?} for {:?}", got.leaves, want.leaves))
}

/// The addresses of `run` of every `run + gap` pages, and of what the kernel maps with them.
fn addresses(at: usize, pages: usize, run: usize, gap: usize) -> Vec<u64> {
    let named = (0..pages)
        .filter(|page| page % (run + gap) < run && page - page % (run + gap) + run <= pages)
        .map(|page| at + page * PAGE);
    let (first, end) = (at as u64, (at + pages * PAGE) as u64);
    let whole = whole(named, PAGE).into_iter().map(|va| va as u64);
    whole.filter(|va| (first..end).contains(va)).collect()
}

fn clear(child: &Child) {
    let process = Process::open(child.pid).unwrap();
    KernelHand::new(&process).refs(RefsScope::All).unwrap();
}

#[test]
fn shows_exactly_the_pages_accessed() {
    let pages = 16 << 8;
    let child = Child::spawn(move || {
        map_fixed(BASE, pages, NO_THP);
        // Only two of three pages are ever touched.
        for page in (0..pages).filter(|page| page % 3 != 2) {
            fill(BASE + page * PAGE, 1);
        }
    });
    for flavour in [Flavour::Syscall, Flavour::Iterator] {
        let test = "shows_exactly_the_pages_accessed";
        let Some(mut walk) = walker_with(test, Some(flavour), Capacity::default()) else {
            continue;
        };
        clear(&child);
        child.read(BASE, pages, 1, 5);
        let seen = scan(&mut walk, child.pid, &[range(BASE, pages)]);
        let last = Some((BASE + (pages - 1) * PAGE) as u64);
        assert_eq!(
            seen.present,
            addresses(BASE, pages, 2, 1)
                .into_iter()
                .chain(last.filter(|_| pages % 3 == 1 && pages_at_once() == 1))
                .collect::<Vec<_>>()
        );
        assert_young(&seen, &addresses(BASE, pages, 1, 5));
        assert!(seen.swapped.is_empty());
        assert!(seen.leaves.iter().all(|&leaf| leaf == Leaf::Page));
    }
}

#[test]
fn cuts_at_the_given_addresses() {
    let Some(mut walk) = walker("cuts_at_the_given_addresses") else {
        return;
    };
    let pages = 8 << 8;
    let child = Child::spawn(move || {
        map_fixed(BASE, pages, NO_THP);
        fill(BASE, pages);
    });
    let cuts = [
        vec![(0, 1), (1, 1), (5, 3)],
        vec![(511, 2), (1000, 24)],
        vec![(63, 2), (127, 386), (700, 900)],
        vec![(0, 2048)],
    ];
    for cut in cuts {
        let ranges: Vec<_> = cut
            .iter()
            .map(|&(at, n)| range(BASE + at * PAGE, n))
            .collect();
        let want: Vec<u64> = cut
            .iter()
            .flat_map(|&(at, n)| addresses(BASE + at * PAGE, n, 1, 0))
            .collect();
        assert_eq!(scan(&mut walk, child.pid, &ranges).present, want, "{cut:?}");
    }
    let mut sink = Seen::default();
    for bad in [
        vec![AddressRange {
            start: 1,
            end: 4096,
        }],
        vec![AddressRange {
            start: 4096,
            end: 4096,
        }],
        vec![range(BASE, 2), range(BASE + PAGE, 2)],
    ] {
        let result = walk.scan(&Target::by_pid(child.pid), &bad, &mut sink);
        assert!(
            matches!(result, Err(AccessError::BadRange { .. })),
            "{bad:x?}"
        );
    }
}

/// With maps of any size, the same is shown, in a different number of calls.
#[test]
fn goes_on_where_full_maps_stopped_it() {
    let pages = 40 << 8;
    let child = Child::spawn(move || {
        map_fixed(BASE, pages, NO_THP);
        for page in (0..pages).step_by(100) {
            fill(BASE + page * PAGE, 1);
        }
        // A second mapping a gigabyte further, and huge pages in between.
        map_fixed(BASE + (1 << 30), 512 * 3, NO_THP);
        fill(BASE + (1 << 30), 512 * 3);
        map_fixed(BASE + (512 << 20), 512 * 4, THP);
        fill(BASE + (512 << 20), 512 * 4);
    });
    let ranges = [
        range(BASE, pages - 7),
        range(BASE + (512 << 20), 512 * 4),
        range(BASE + (1 << 30) + 5 * PAGE, 512 * 3 - 9),
    ];
    let test = "goes_on_where_full_maps_stopped_it";
    let Some(mut walk) = walker(test) else { return };
    let whole = scan(&mut walk, child.pid, &ranges);
    assert!(whole.present.len() > 3000);
    for flavour in [Flavour::Syscall, Flavour::Iterator] {
        for (tables, entries) in [(1, 1), (1, 50), (3, 2), (7, 7), (64, 5), (512, 3)] {
            let capacity = Capacity { tables, entries };
            let Some(mut small) = walker_with(test, Some(flavour), capacity) else {
                continue;
            };
            let mut got = scan(&mut small, child.pid, &ranges);
            let parts = whole.leaves.len() / pages_at_once();
            if (tables.min(entries) as usize) < parts {
                assert!(got.batches > whole.batches, "{capacity:?}");
            }
            got.batches = whole.batches;
            // Another program may clear accessed bits (a kdamond), so bits may only be missing.
            assert!(
                got.young
                    .iter()
                    .all(|va| whole.young.binary_search(va).is_ok())
            );
            got.young.clone_from(&whole.young);
            if let Some(what) = difference(&got, &whole) {
                panic!("{flavour:?} {capacity:?}: {what}");
            }
        }
    }
}

/// More ranges than fit in one call, many of them in one table.
#[test]
fn takes_thousands_of_ranges() {
    let Some(mut walk) = walker("takes_thousands_of_ranges") else {
        return;
    };
    let pages = 40_000;
    let child = Child::spawn(move || {
        map_fixed(BASE, pages, NO_THP);
        fill(BASE, pages);
    });
    let ranges: Vec<_> = (0..pages / 2)
        .map(|i| range(BASE + 2 * i * PAGE, 1))
        .collect();
    let seen = scan(&mut walk, child.pid, &ranges);
    assert!(
        seen.present
            .iter()
            .eq(ranges.iter().map(|range| &range.start))
    );
    // Far apart: no two ranges share a table.
    let far: Vec<_> = (0..3000).map(|i| range(BASE + 4 * i * HUGE, 1)).collect();
    let seen = scan(&mut walk, child.pid, &far);
    assert_eq!(
        seen.present,
        (0..20)
            .map(|i| (BASE + 4 * i * HUGE) as u64)
            .collect::<Vec<_>>()
    );
}

#[test]
fn sees_huge_pages_as_one() {
    let Some(mut walk) = walker("sees_huge_pages_as_one") else {
        return;
    };
    let child = Child::spawn(|| {
        map_fixed(BASE, 512 * 4, THP);
        fill(BASE, 512 * 4);
    });
    let all = [range(BASE, 512 * 4)];
    let seen = scan(&mut walk, child.pid, &all);
    if seen.leaves.contains(&Leaf::Page) {
        println!("SKIPPED sees_huge_pages_as_one: the kernel gave no transparent huge pages");
        return;
    }
    clear(&child);
    child.read(BASE + HUGE + 77 * PAGE, 1, 1, 0);
    let mut frames = Vec::new();
    let mut sink = |sight: &TableSight<'_>| frames.push((sight.pfn(0), sight.pfn(511)));
    walk.scan(&Target::by_pid(child.pid), &all, &mut sink)
        .unwrap();
    for (first, last) in frames {
        assert_eq!(first.unwrap() % 512, 0);
        assert_eq!(last.unwrap(), first.unwrap() + 511);
    }
    let seen = scan(&mut walk, child.pid, &all);
    assert_eq!(seen.present.len(), 512 * 4);
    assert_eq!(seen.young, addresses(BASE + HUGE, 512, 1, 0));
    assert_eq!(seen.leaves, [Leaf::Huge; 4]);
    // Only part of one huge page: what is outside the range stays outside.
    let seen = scan(&mut walk, child.pid, &[range(BASE + HUGE + 10 * PAGE, 20)]);
    assert_eq!(seen.young, addresses(BASE + HUGE + 10 * PAGE, 20, 1, 0));
}

/// PROT_NONE mappings keep their memory; the zero page and the vdso are not memory of the process;
/// locked memory shows as locked.
#[test]
fn knows_unusual_mappings() {
    let Some(mut walk) = walker("knows_unusual_mappings") else {
        return;
    };
    let none = BASE + (1 << 30);
    let zero = BASE + (2 << 30);
    let locked = BASE + (3 << 30);
    let child = Child::spawn(move || {
        map_fixed(none, 10, NO_THP);
        fill(none, 10);
        map_fixed(zero, 10, NO_THP);
        map_fixed(locked, 10, NO_THP);
        // SAFETY: our own mappings; reading a new page maps the zero page.
        unsafe {
            libc::mprotect(none as *mut _, 10 * PAGE, libc::PROT_NONE);
            for page in 0..10 {
                ((zero + page * PAGE) as *const u64).read_volatile();
            }
            libc::mlock(locked as *const _, 10 * PAGE);
        }
    });
    let seen = scan(
        &mut walk,
        child.pid,
        &[range(none, 10), range(zero, 10), range(locked, 10)],
    );
    let want: Vec<u64> = [addresses(none, 10, 1, 0), addresses(locked, 10, 1, 0)]
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(seen.present, want);
    assert!(seen.swapped.is_empty());
    let mut frames = Vec::new();
    let mut sink = |sight: &TableSight<'_>| {
        frames.extend((0..10).map(|page| sight.pfn(page).unwrap()));
    };
    walk.scan(&Target::by_pid(child.pid), &[range(none, 10)], &mut sink)
        .unwrap();
    assert_eq!(
        frames,
        pagemap(child.pid, none, 10),
        "inverted frame numbers"
    );

    let mut vmas = VmaTable::new();
    vmas.read(child.pid).unwrap();
    vmas.mark_locked(child.pid).unwrap();
    assert!(vmas.find(locked as u64).unwrap().locked);
    assert!(!vmas.find(zero as u64).unwrap().locked);
    // (Other mappings without memory to age are anonymous inodes, such as inherited BPF maps.)
    for vma in vmas
        .vmas()
        .iter()
        .filter(|vma| vmas.name(vma).starts_with("[v"))
    {
        assert_eq!(vma.kind, VmaKind::Special);
        if vma.range.end < 1 << 47 {
            assert!(
                scan(&mut walk, child.pid, &[vma.range]).present.is_empty(),
                "{vma:?}"
            );
        }
    }
}

/// Everything the kernel counts as resident is seen, including file and shared memory, with the
/// same frames as in pagemap. Anonymous is what it counts so: also what was written in a private
/// mapping of a file and is write-protected by now, as after a fork or by the dynamic linker.
#[test]
fn agrees_with_pagemap_about_all_of_a_process() {
    let Some(mut walk) = walker("agrees_with_pagemap_about_all_of_a_process") else {
        return;
    };
    let child = Child::spawn(|| {
        map_fixed(BASE, 3000, NO_THP);
        fill(BASE, 2500);
    });
    let mut vmas = VmaTable::new();
    vmas.read(child.pid).unwrap();
    let is_aged = |vma: &&Vma| !vmas.name(vma).starts_with("[v");
    let aged: Vec<_> = vmas.vmas().iter().filter(is_aged).collect();
    let ranges: Vec<_> = aged.iter().map(|vma| vma.range).collect();
    let (mut resident, mut anon) = (0, 0);
    let mut sink = |sight: &TableSight<'_>| {
        let frames = pagemap(child.pid, sight.va as usize, 512);
        for page in sight.bits.present.pages() {
            assert_eq!(sight.pfn(page), Some(frames[page]));
        }
        let (kind, present) = (aged[sight.range].kind, sight.bits.present);
        resident += present.len();
        if matches!(kind, VmaKind::Anon | VmaKind::FilePrivate) {
            anon += present.without(&kind.files(sight.bits)).len();
        }
    };
    walk.scan(&Target::by_pid(child.pid), &ranges, &mut sink)
        .unwrap();
    // Not statm: its per-CPU counters lag.
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", child.pid)).unwrap();
    for (name, pages) in [("Rss:", resident), ("Anonymous:", anon)] {
        let kib = rollup.lines().find_map(|line| line.strip_prefix(name));
        let kib: u64 = kib.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
        let off = pages.abs_diff(kib / 4);
        assert!(off * 100 < pages, "{name} {kib} kB, {pages} pages seen");
    }
}

#[test]
fn follows_a_process_whose_leader_is_gone() {
    let Some(mut walk) = walker("follows_a_process_whose_leader_is_gone") else {
        return;
    };
    let child = Child::spawn(|| {
        map_fixed(BASE, 64, NO_THP);
        fill(BASE, 64);
        // A second thread by plain clone (no library state), while the leader exits.
        extern "C" fn stay(_: *mut libc::c_void) -> libc::c_int {
            loop {
                // SAFETY: plain system call.
                unsafe { libc::pause() };
            }
        }
        map_fixed(BASE + HUGE, 16, NO_THP);
        let flags = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
        // SAFETY: the new thread has a stack of its own and only pauses.
        unsafe {
            let stack = (BASE + HUGE + 16 * PAGE) as *mut libc::c_void;
            if libc::clone(stay, stack, flags, std::ptr::null_mut()) < 0 {
                libc::_exit(102);
            }
        }
    });
    child.exit_leader();
    child.wait_until_zombie();
    let seen = scan(&mut walk, child.pid, &[range(BASE, 64)]);
    assert_eq!(seen.present, addresses(BASE, 64, 1, 0));
}

#[test]
fn refuses_what_has_no_memory_by_name() {
    let Some(mut walk) = walker("refuses_what_has_no_memory_by_name") else {
        return;
    };
    let ranges = [range(BASE, 1)];
    let mut sink = Seen::default();
    // kthreadd.
    let error = walk
        .scan(&Target::by_pid(2), &ranges, &mut sink)
        .unwrap_err();
    assert!(
        matches!(error, AccessError::KernelThread { pid: 2 }),
        "{error}"
    );
    // A pid above the kernel's limit.
    let error = walk
        .scan(&Target::by_pid(1 << 23), &ranges, &mut sink)
        .unwrap_err();
    assert!(
        matches!(error, AccessError::NoSuchProcess { .. }),
        "{error}"
    );
    let child = Child::spawn(|| map_fixed(BASE, 1, NO_THP));
    let process = Process::open(child.pid).unwrap();
    let target = Target::from(&process);
    walk.scan(&target, &ranges, &mut sink).unwrap();
    let other = Target {
        start_ticks: target.start_ticks.map(|ticks| ticks + 2),
        ..target
    };
    let error = walk.scan(&other, &ranges, &mut sink).unwrap_err();
    assert!(matches!(error, AccessError::Reused { .. }), "{error}");
    assert!(error.is_target_gone());
    // Killed but not reaped: a zombie. SAFETY: our own child.
    unsafe { libc::kill(child.pid as i32, libc::SIGKILL) };
    child.wait_until_zombie();
    let error = walk.scan(&target, &ranges, &mut sink).unwrap_err();
    assert!(
        matches!(error, AccessError::NoAddressSpace { .. }),
        "{error}"
    );
    child.kill();
    let error = walk.scan(&target, &ranges, &mut sink).unwrap_err();
    assert!(
        matches!(error, AccessError::NoSuchProcess { .. }),
        "{error}"
    );
}

#[test]
fn sees_what_was_swapped_out() {
    let test = "sees_what_was_swapped_out";
    let Some(mut walk) = walker(test) else { return };
    let device = match need::zram(64 << 20) {
        Ok(device) => device,
        Err(why) => return println!("SKIPPED {test}: {why}"),
    };
    let child = Child::spawn(|| {
        map_fixed(BASE, 1024, NO_THP);
        fill(BASE, 1024);
        // SAFETY: our own mapping.
        unsafe { libc::madvise(BASE as *mut _, 512 * PAGE, libc::MADV_PAGEOUT) };
    });
    let seen = scan(&mut walk, child.pid, &[range(BASE, 1024)]);
    drop(child);
    device.remove().unwrap();
    // Some pages may remain: those in a per-CPU batch are not on an LRU list yet.
    assert!(seen.swapped.len() > 400, "{} swapped", seen.swapped.len());
    assert_eq!(seen.present.len() + seen.swapped.len(), 1024);
    assert!(
        seen.swapped
            .iter()
            .all(|&va| va < (BASE + 512 * PAGE) as u64)
    );
}

/// Before Linux 6.18 the entries of the huge zero page are not special.
#[test]
fn huge_pages_that_were_only_read_are_no_memory() {
    let child = Child::spawn(|| {
        map_fixed(BASE, 512 * 3, THP);
        for page in [0, 512, 1024] {
            // SAFETY: mapped, and readable.
            unsafe { ((BASE + page * PAGE) as *const u8).read_volatile() };
        }
        fill(BASE + 1024 * PAGE, 1);
    });
    let test = "huge_pages_that_were_only_read_are_no_memory";
    let Some(mut walk) = walker(test) else { return };
    let seen = scan(&mut walk, child.pid, &[range(BASE, 512 * 3)]);
    let first = seen.present.first();
    assert!(
        first.is_some_and(|va| *va >= (BASE + 1024 * PAGE) as u64),
        "{first:x?}"
    );
}
