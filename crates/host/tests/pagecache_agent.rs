// SPDX-License-Identifier: Apache-2.0
//! File memory by cgroup, combined by the agent from page tables and the page cache, compared with
//! the cgroup's own statistics. Needs root, BPF and a memory cgroup of our own; otherwise prints so
//! and skips.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use agewise_host::agent::{Agent, AgentConfig, Subject, SubjectReport, Targets};
use agewise_host::cgroup::Cgroup;
use agewise_host::clear::ClearPolicy;
use agewise_host::pagecache::FileAges;
use agewise_host::pagewalk::PageWalk;
use agewise_host::root::Roots;

mod cache;
mod support;
use cache::{Kept, PAGE, cold_file, on_disk, read_page};
use support::need::{self, opened};
use support::{BASE, Child};

const TEST: &str = "file memory by cgroup";
/// Pages in each of two files, one mapped and one read.
const FILE_PAGES: usize = 2048;
/// Pages of shared memory, half of which are mapped.
const SHMEM_PAGES: usize = 512;
/// Other pages charged to the cgroup: directories and block maps.
const SLACK_PAGES: u64 = 64;

/// Enters a cgroup, maps a file and half of some shared memory, and reads another file. For the
/// setup of a child, so it only makes system calls.
fn settle(procs: &CString, mapped: &File, read: &File, shmem: &File) {
    let check = |is_good: bool| {
        if !is_good {
            // SAFETY: ends the child.
            unsafe { libc::_exit(101) };
        }
    };
    // SAFETY: system calls on our own descriptors and addresses (see BASE).
    unsafe {
        let fd = libc::open(procs.as_ptr(), libc::O_WRONLY);
        check(libc::write(fd, c"0".as_ptr().cast(), 1) == 1);
        let map = |at: usize, pages: usize, file: &File| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let access = if at == BASE { libc::PROT_READ } else { access };
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let got = libc::mmap(
                at as *mut _,
                pages * PAGE,
                access,
                flags,
                file.as_raw_fd(),
                0,
            );
            check(got != libc::MAP_FAILED);
        };
        map(BASE, FILE_PAGES, mapped);
        map(BASE + (1 << 30), SHMEM_PAGES / 2, shmem);
        for page in 0..FILE_PAGES {
            ((BASE + page * PAGE) as *const u8).read_volatile();
            let mut byte = 0u8;
            let (to, at) = (std::ptr::from_mut(&mut byte).cast(), (page * PAGE) as i64);
            check(libc::pread(read.as_raw_fd(), to, 1, at) == 1);
        }
        for page in 0..SHMEM_PAGES {
            let at = (page * PAGE) as i64;
            check(libc::pwrite(shmem.as_raw_fd(), c"x".as_ptr().cast(), 1, at) == 1);
        }
        support::fill(BASE + (1 << 30), SHMEM_PAGES / 2);
    }
}

/// The report after look number `look` at the page cache. Expensive looks are rare.
fn report(agent: &mut Agent, look: u64) -> SubjectReport {
    for _ in 0..300 {
        agent.tick().unwrap();
        if agent.cost().cache_looks == look {
            return agent.report().remove(0);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("no look number {look}: {:?}", agent.cost());
}

/// Anonymous memory of a process as counted by the kernel.
fn anon_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() * 1024
}

/// File pages seen accessed, and all file pages.
fn file_pages(report: &SubjectReport) -> [u64; 2] {
    let (resident, unseen) = (report.resident_bytes[1], report.unseen_bytes[1]);
    [resident - unseen, resident].map(|bytes| bytes / PAGE as u64)
}

fn is_near(pages: u64, wanted: u64) -> bool {
    pages.abs_diff(wanted) <= SLACK_PAGES
}

/// Compares resident memory with what was read, and with counters of the cgroup and the processes.
fn check_sums(all: &SubjectReport, cgroup: &Cgroup, pids: [u32; 2]) {
    let stat = cgroup.stat().unwrap();
    let [seen, files] = file_pages(all);
    assert_eq!(seen, 0);
    assert!(
        is_near(files, 2 * FILE_PAGES as u64),
        "{files} pages of files"
    );
    let shmem_pages = all.shmem_bytes.unwrap() / PAGE as u64;
    assert_eq!(shmem_pages, SHMEM_PAGES as u64);
    // Cgroup counters lag a little.
    let counted = all.resident_bytes[1] + all.shmem_bytes.unwrap();
    let lag = (4 * SLACK_PAGES) * PAGE as u64;
    assert!(
        counted.abs_diff(stat.file_bytes) <= lag,
        "{counted} of {}",
        stat.file_bytes
    );
    // Pages the children still share with their parent since the fork count once for both.
    let anon = all.resident_bytes[0] - all.shmem_bytes.unwrap();
    let each = pids.map(anon_bytes);
    let (least, most) = (each[0].max(each[1]), each[0] + each[1]);
    assert!(
        anon + lag >= least && anon <= most + lag,
        "{anon} of {each:?}"
    );
    assert_eq!((all.processes, all.unmapped_cache_bytes), (2, None));
}

#[test]
fn every_page_of_a_cgroup_counts_once_and_is_as_young_as_its_last_access() {
    let Some(walk) = opened("pagewalk", TEST, PageWalk::open()) else {
        return;
    };
    let place = match need::memcg("files") {
        Ok(place) => place,
        Err(why) => return println!("SKIPPED {TEST}: {why}"),
    };
    let dir = on_disk();
    let mapped = cold_file(&dir.path().join("mapped"), FILE_PAGES);
    let read = cold_file(&dir.path().join("read"), FILE_PAGES);
    let shmem =
        File::from(rustix::fs::memfd_create("files", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    shmem.set_len((SHMEM_PAGES * PAGE) as u64).unwrap();
    let procs = place.cgroup().dir().join("cgroup.procs");
    let procs = CString::new(Path::as_os_str(&procs).as_bytes()).unwrap();
    let settled = (0..5).find_map(|_| {
        let children = [(); 2].map(|()| Child::spawn(|| settle(&procs, &mapped, &read, &shmem)));
        Some((children, Kept::new(&read, FILE_PAGES)?))
    });
    let (children, _kept) = settled.expect("the kernel takes pages away all the time");

    let mut config = AgentConfig::new("1s,5s".parse().unwrap());
    config.clear = ClearPolicy::exact();
    let horizon_ms = config.intervals.horizon_ms();
    let targets = Targets::Listed(vec![Subject::Cgroup(place.cgroup().clone())]);
    let mut agent = Agent::new(Box::new(walk), Roots::default(), targets, config).unwrap();
    let Some(ages) = opened("pagecache", TEST, FileAges::with_frames(horizon_ms)) else {
        return;
    };
    // Only if a page is young again after a clear does the agent learn that several processes map
    // it, and that it must be cleared in another way.
    for _ in 0..3 {
        agent.tick().unwrap();
        std::thread::sleep(Duration::from_millis(600));
    }
    agent.follow_files(ages).unwrap();

    let all = report(&mut agent, 1);
    check_sums(&all, place.cgroup(), [children[0].pid, children[1].pid]);

    // Half of the mapped file through one of two mappings, a quarter of the other by its
    // descriptor.
    children[1].read(BASE, FILE_PAGES / 2, 1, 0);
    (0..FILE_PAGES as u64 / 4).for_each(|page| read_page(&read, page));
    children[0].write(BASE + (1 << 30), SHMEM_PAGES / 4, 1, 0);
    let later = report(&mut agent, 2);
    let [seen, files] = file_pages(&later);
    assert!(
        is_near(files, 2 * FILE_PAGES as u64),
        "{files} pages of files"
    );
    let wanted = (FILE_PAGES / 2 + FILE_PAGES / 4) as u64;
    assert!(
        is_near(seen, wanted),
        "{seen} pages of files seen, {wanted} were accessed"
    );
    assert_eq!(agent.cost().cache_dropped, 0);
}

/// The packaged service has no more than these.
#[test]
fn files_are_followed_without_the_rights_of_an_administrator() {
    const TEST: &str = "files without CAP_SYS_ADMIN";
    if opened("pagecache", TEST, FileAges::with_frames(60_000)).is_none() {
        return;
    }
    // Capabilities belong to threads: this one exists only for the test.
    let opened = std::thread::spawn(|| {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let mut sets = capabilities(None).unwrap();
        let kept = CapabilitySet::BPF | CapabilitySet::PERFMON;
        sets.effective &= kept;
        sets.permitted &= kept;
        set_capabilities(None, sets).unwrap();
        FileAges::with_frames(60_000).map(drop)
    });
    opened.join().unwrap().unwrap();
}
