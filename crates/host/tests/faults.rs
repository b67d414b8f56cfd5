// SPDX-License-Identifier: Apache-2.0
//! Page faults of real processes. Needs root and BPF; otherwise prints so and skips.

use agewise_host::access::AccessError;
use agewise_host::clock::monotonic_ns;
use agewise_host::faults::{Fault, FaultKind, FaultSource, Faults, RING_BYTES, RING_BYTES_MIN};

mod support;
use support::{BASE, Child, PAGE, map_fixed, need};

fn faults(test: &str, ring_bytes: u32) -> Option<Faults> {
    need::opened("faults", test, Faults::with_ring(ring_bytes))
}

fn child(pages: usize) -> Child {
    Child::spawn(|| map_fixed(BASE, pages, libc::MADV_NOHUGEPAGE))
}

/// Faults in the child's memory, with the page numbers in it.
fn drained(faults: &mut Faults, pages: usize) -> Vec<(usize, Fault)> {
    let mut all = Vec::new();
    faults.drain(&mut all).unwrap();
    let here = |fault: &Fault| {
        let page = (fault.address as usize).checked_sub(BASE)? / PAGE;
        (page < pages).then_some((page, *fault))
    };
    all.iter().filter_map(here).collect()
}

#[test]
fn first_touches_are_told_in_exactly_their_order() {
    const PAGES: usize = 64;
    let Some(mut faults) = faults("first_touches", RING_BYTES) else {
        return;
    };
    let (watched, other) = (child(PAGES), child(PAGES));
    faults.watch(watched.pid).unwrap();
    let before = monotonic_ns();
    // 37 and 64 are coprime: every page once, in no simple order.
    let order: Vec<usize> = (0..PAGES).map(|step| step * 37 % PAGES).collect();
    for &page in &order {
        other.read(BASE + page * PAGE, 1, 1, 0);
        watched.read(BASE + page * PAGE, 1, 1, 0);
    }
    let told = drained(&mut faults, PAGES);
    let pages: Vec<usize> = told.iter().map(|(page, _)| *page).collect();
    assert_eq!(pages, order);
    let mut last = before;
    for (_, fault) in &told {
        assert_eq!((fault.pid, fault.tid), (watched.pid, watched.pid));
        assert!(!fault.write, "{fault:?}");
        assert!(fault.time_ns > last && fault.time_ns < monotonic_ns());
        last = fault.time_ns;
    }

    // A read no longer faults. A first write does, on a page that is present (the zero page).
    watched.read(BASE, PAGES, 1, 0);
    watched.write(BASE, 2, 1, 0);
    watched.write(BASE, 2, 1, 0);
    let told = drained(&mut faults, PAGES);
    let kinds: Vec<(usize, bool)> = told
        .iter()
        .map(|(page, fault)| (*page, fault.write))
        .collect();
    assert_eq!(kinds, [(0, true), (1, true)]);

    faults.forget(watched.pid);
    watched.write(BASE, PAGES, 1, 0);
    assert_eq!(drained(&mut faults, PAGES), []);
    assert_eq!(faults.dropped(), 0);
}

#[test]
fn a_full_ring_keeps_the_first_and_counts_the_rest() {
    const PAGES: usize = 1000;
    let Some(mut faults) = faults("a_full_ring", RING_BYTES_MIN) else {
        return;
    };
    let child = child(PAGES);
    faults.watch(child.pid).unwrap();
    child.read(BASE, PAGES, 1, 0);
    let mut all = Vec::new();
    faults.drain(&mut all).unwrap();
    // 32 bytes per event.
    assert!((100..=128).contains(&all.len()), "{}", all.len());
    assert!(all.len() as u64 + faults.dropped() >= PAGES as u64);
    let inside: Vec<u64> = all
        .iter()
        .map(|fault| fault.address)
        .filter(|address| (BASE as u64..(BASE + PAGES * PAGE) as u64).contains(address))
        .collect();
    assert!(inside.windows(2).all(|two| two[1] == two[0] + PAGE as u64));
    // There is space again.
    let lost = faults.dropped();
    child.write(BASE, 10, 1, 0);
    assert_eq!(drained(&mut faults, PAGES).len(), 10);
    assert_eq!(faults.dropped(), lost);
}

#[test]
fn what_a_process_did_before_it_died_is_told() {
    const PAGES: usize = 16;
    let Some(mut faults) = faults("before_it_died", RING_BYTES) else {
        return;
    };
    let child = child(PAGES);
    faults.watch(child.pid).unwrap();
    child.read(BASE, PAGES, 1, 0);
    child.kill();
    let pages: Vec<usize> = drained(&mut faults, PAGES)
        .iter()
        .map(|(page, _)| *page)
        .collect();
    assert_eq!(pages, (0..PAGES).collect::<Vec<_>>());
    faults.forget(child.pid);
    faults.forget(child.pid);
}

#[test]
fn without_privileges_it_says_what_to_do() {
    // The raw system call only changes this thread's credentials, not those of other tests.
    let refused = std::thread::spawn(|| {
        // SAFETY: a plain system call without memory.
        let dropped = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        (dropped == 0).then(|| Faults::open().err())
    });
    match refused.join().unwrap() {
        None => println!("SKIPPED without_privileges: credentials cannot be dropped here"),
        Some(error) => {
            let error = error.expect("refused");
            assert!(matches!(error, AccessError::NoPrivilege { .. }), "{error}");
            assert!(error.to_string().contains("run as root"), "{error}");
        }
    }
}

/// Reads from a file that is not in memory are major faults, first touches of memory are not.
#[test]
fn major_faults_are_told_from_minor_ones() {
    const FILE_PAGES: usize = 256;
    const ANON_PAGES: usize = 4;
    let Some(mut faults) = faults("major_faults", RING_BYTES) else {
        return;
    };
    if !faults.tells_majors() {
        println!("SKIPPED major_faults: no event of major faults can be had here");
        return;
    }
    let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::io::Write::write_all(&mut file, &vec![7; FILE_PAGES * PAGE]).unwrap();
    file.sync_all().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: a call on our own descriptor, without memory.
    unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
    let child = Child::spawn(|| {
        map_fixed(BASE, FILE_PAGES + ANON_PAGES, libc::MADV_NOHUGEPAGE);
        // SAFETY: over the mapping just made; without readahead.
        unsafe {
            let (flags, access) = (libc::MAP_SHARED | libc::MAP_FIXED, libc::PROT_READ);
            let at = libc::mmap(BASE as *mut _, FILE_PAGES * PAGE, access, flags, fd, 0);
            libc::madvise(at, FILE_PAGES * PAGE, libc::MADV_RANDOM);
        }
    });
    let is_resident = {
        let mut there = vec![0u8; FILE_PAGES];
        // SAFETY: a new mapping that is not read; the vector has a byte for each of its pages.
        unsafe {
            let (null, flags) = (std::ptr::null_mut(), libc::MAP_SHARED);
            let at = libc::mmap(null, FILE_PAGES * PAGE, libc::PROT_READ, flags, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mincore(at, FILE_PAGES * PAGE, there.as_mut_ptr()), 0);
            libc::munmap(at, FILE_PAGES * PAGE);
        }
        [10, 200].iter().any(|page| there[*page] & 1 == 1)
    };
    faults.watch(child.pid).unwrap();
    for page in [10, 200] {
        child.read(BASE + page * PAGE, 1, 1, 0);
    }
    child.read(BASE + FILE_PAGES * PAGE, ANON_PAGES, 1, 0);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let told: Vec<(usize, FaultKind)> = drained(&mut faults, FILE_PAGES + ANON_PAGES)
        .iter()
        .map(|(page, fault)| (*page, fault.kind))
        .collect();
    if is_resident {
        println!("SKIPPED major_faults: this file system keeps the file in memory");
        return;
    }
    let mut expected = vec![(10, FaultKind::Major), (200, FaultKind::Major)];
    expected.extend((0..ANON_PAGES).map(|page| (FILE_PAGES + page, FaultKind::Minor)));
    assert_eq!(told, expected);
}

/// Otherwise a test whose child failed would wait for it for ever.
#[test]
#[should_panic(expected = "the child ended with status 3")]
fn a_child_that_ends_is_said() {
    // SAFETY: ends the child alone.
    Child::spawn(|| unsafe { libc::_exit(3) });
}
