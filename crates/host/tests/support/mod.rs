// SPDX-License-Identifier: Apache-2.0
//! A forked process that accesses its memory on request, for live tests and measurements.
//!
//! The child of a multithreaded process is very restricted: no allocation, no locks. So it takes
//! orders through a shared page, and only touches memory.

#![allow(dead_code)] // each test uses its own part

pub mod hang;
pub mod need;
mod tlb;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};

pub const PAGE: usize = 4096;
/// Pages of 4 KiB in one of the kernel's pages, all of which an access touches.
pub fn pages_at_once() -> usize {
    rustix::param::page_size() / PAGE
}

/// All pages of 4 KiB in the kernel's pages that contain one of these, given in ascending order:
/// page numbers, or addresses with a `unit` of [`PAGE`].
pub fn whole(pages: impl IntoIterator<Item = usize>, unit: usize) -> Vec<usize> {
    let bytes = pages_at_once() * unit;
    let mut firsts: Vec<usize> = pages.into_iter().map(|page| page / bytes * bytes).collect();
    firsts.dedup();
    let all = firsts.into_iter();
    all.flat_map(|first| (first..first + bytes).step_by(unit))
        .collect()
}

/// Where children map their memory: nothing else is mapped there.
pub const BASE: usize = 0x1000_0000_0000;

/// The shared page.
#[repr(C)]
pub struct Orders {
    /// 0: none, 1: read, 2: write, 3: end the leading thread, 4: work forever.
    order: AtomicU64,
    start: AtomicU64,
    pages: AtomicU64,
    run: AtomicU64,
    gap: AtomicU64,
    done: AtomicU64,
    /// Duration of the last order in ns.
    took_ns: AtomicU64,
    /// Wait for orders by spinning, so that the target counts as running.
    spin: AtomicU64,
}

/// A child process, killed and reaped on drop.
pub struct Child {
    pub pid: u32,
    orders: NonNull<Orders>,
}

impl Child {
    /// Forks; the child runs `setup` and then takes orders.
    pub fn spawn(setup: impl FnOnce()) -> Self {
        let flags = MapFlags::SHARED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping; zeroes are valid `Orders`.
        let orders: NonNull<Orders> = unsafe {
            let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, access, flags).unwrap();
            NonNull::new(at.cast()).unwrap()
        };
        // SAFETY: the child only makes system calls and touches its own memory and `orders`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        // SAFETY: mapped above, in both processes.
        let shared = unsafe { orders.as_ref() };
        if pid == 0 {
            // SAFETY: a plain system call: die with the test.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            setup();
            shared.done.store(1, SeqCst);
            serve(shared);
        }
        let child = Child {
            pid: pid as u32,
            orders,
        };
        child.wait(0);
        child
    }

    fn orders(&self) -> &Orders {
        // SAFETY: mapped until drop.
        unsafe { self.orders.as_ref() }
    }

    fn wait(&self, before: u64) {
        while self.orders().done.load(SeqCst) == before {
            let (pid, status) = self.ended();
            assert_eq!(pid, 0, "the child ended with status {status}");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Its pid and status if it has ended, otherwise zeroes. Leaves it to be reaped on drop.
    fn ended(&self) -> (i32, i32) {
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: zeroes are a valid value, which the call on our own child may replace.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            assert_eq!(libc::waitid(libc::P_PID, self.pid, &raw mut info, flags), 0);
            (info.si_pid(), info.si_status())
        }
    }

    /// Waits until its leading thread, or all of it, has ended and is not reaped.
    pub fn wait_until_zombie(&self) {
        let began = Instant::now();
        let path = format!("/proc/{}/stat", self.pid);
        while !std::fs::read_to_string(&path).unwrap().contains(") Z ") {
            assert!(began.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn order(&self, order: u64, start: usize, pages: usize, run: usize, gap: usize) -> u64 {
        let shared = self.orders();
        let before = shared.done.load(SeqCst);
        shared.start.store(start as u64, SeqCst);
        shared.pages.store(pages as u64, SeqCst);
        shared.run.store(run as u64, SeqCst);
        shared.gap.store(gap as u64, SeqCst);
        shared.order.store(order, SeqCst);
        self.wait(before);
        shared.took_ns.load(SeqCst)
    }

    /// Reads `run` of every `run + gap` pages in `start..start + pages`. Returns the duration in
    /// ns.
    pub fn read(&self, start: usize, pages: usize, run: usize, gap: usize) -> u64 {
        self.order(1, start, pages, run, gap)
    }

    /// Writes them; otherwise like [`read`](Self::read).
    pub fn write(&self, start: usize, pages: usize, run: usize, gap: usize) -> u64 {
        self.order(2, start, pages, run, gap)
    }

    /// Makes the child wait for orders by spinning on a CPU, or asleep.
    pub fn spin(&self, on: bool) {
        self.orders().spin.store(u64::from(on), SeqCst);
    }

    /// From now on calls `work` with an increasing number, forever.
    pub fn tumble(&self, work: fn(usize)) {
        self.orders().start.store(work as usize as u64, SeqCst);
        self.orders().order.store(4, SeqCst);
    }

    /// Ends the leader; other threads stay.
    pub fn exit_leader(&self) {
        self.orders().order.store(3, SeqCst);
    }

    /// Kills and reaps the child.
    pub fn kill(&self) {
        // SAFETY: our own child, not reaped yet.
        unsafe {
            libc::kill(self.pid as i32, libc::SIGKILL);
            libc::waitpid(self.pid as i32, std::ptr::null_mut(), 0);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        // SAFETY: mapped in `spawn`, and no longer used.
        unsafe { rustix::mm::munmap(self.orders.as_ptr().cast(), PAGE).unwrap() };
    }
}

fn serve(shared: &Orders) -> ! {
    loop {
        let order = shared.order.load(SeqCst);
        if order == 0 {
            if shared.spin.load(SeqCst) == 0 {
                // SAFETY: a plain system call.
                unsafe { libc::usleep(200) };
            }
            continue;
        }
        if order == 3 {
            // SAFETY: ends only this thread.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        if order == 4 {
            let work = shared.start.load(SeqCst) as usize;
            // SAFETY: the address of a function of this program, passed by `Child::tumble`; a fork
            // has the same code at the same address.
            let work: fn(usize) = unsafe { std::mem::transmute(work) };
            for round in 0.. {
                work(round);
            }
        }
        tlb::flush();
        let began = now_ns();
        let (start, pages) = (
            shared.start.load(SeqCst) as usize,
            shared.pages.load(SeqCst) as usize,
        );
        let (run, gap) = (
            shared.run.load(SeqCst) as usize,
            shared.gap.load(SeqCst) as usize,
        );
        let mut page = 0;
        while page + run <= pages {
            for at in page..page + run {
                let at = (start + at * PAGE) as *mut u64;
                // SAFETY: the caller that gave the order guarantees that these pages are mapped
                // accordingly.
                unsafe {
                    let value = at.read_volatile();
                    if order == 2 {
                        at.write_volatile(value.wrapping_add(1));
                    }
                }
            }
            page += run + gap;
        }
        shared.took_ns.store(now_ns() - began, SeqCst);
        shared.order.store(0, SeqCst);
        shared.done.fetch_add(1, SeqCst);
    }
}

fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Maps anonymous memory at a fixed address. For the child's setup: no allocation, no panic
/// message.
pub fn map_fixed(at: usize, pages: usize, advice: i32) {
    // SAFETY: fixed addresses where nothing else is mapped (see BASE).
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let got = libc::mmap(at as *mut _, pages * PAGE, access, flags, -1, 0);
        // A kernel without huge pages knows no advice about them, and then none is needed.
        let is_heeded = || {
            libc::madvise(got, pages * PAGE, advice) == 0
                || (advice == libc::MADV_NOHUGEPAGE && *libc::__errno_location() == libc::EINVAL)
        };
        if got == libc::MAP_FAILED || !is_heeded() {
            libc::_exit(101);
        }
    }
}

/// Writes a word into each of these pages.
pub fn fill(at: usize, pages: usize) {
    for page in 0..pages {
        // SAFETY: mapped writable by the caller.
        unsafe { ((at + page * PAGE) as *mut u64).write_volatile(page as u64 + 1) };
    }
}

/// The frames of these pages, in units of 4 KiB.
pub fn pagemap(pid: u32, at: usize, pages: usize) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let at_once = pages_at_once();
    let mut bytes = vec![0; pages.div_ceil(at_once) * 8];
    let file = std::fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
    file.read_exact_at(&mut bytes, (at / PAGE / at_once * 8) as u64)
        .unwrap();
    let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().unwrap());
    let frames = bytes.chunks(8).map(|chunk| word(chunk) & ((1 << 55) - 1));
    let all = frames.flat_map(|frame| (0..at_once as u64).map(move |page| (frame, page)));
    all.map(|(frame, page)| frame * at_once as u64 + page)
        .take(pages)
        .collect()
}
