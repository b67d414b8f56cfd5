// SPDX-License-Identifier: Apache-2.0
//! A process without its first thread, for tests of two crates.

use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

/// Bytes of memory in use by it.
pub const HOG_BYTES: usize = 16 << 20;

/// A process whose first thread has ended while another one uses memory. Killed on drop.
pub struct Headless(pub u32);

extern "C" fn hold(ready: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: maps memory and writes within it; uses our own descriptor.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), HOG_BYTES, protection, flags, -1, 0);
        if at == libc::MAP_FAILED {
            libc::_exit(1);
        }
        at.cast::<u8>().write_bytes(1, HOG_BYTES);
        libc::mlock(at, 4096);
        libc::write(ready as i32, c"1".as_ptr().cast(), 1);
        loop {
            libc::pause();
        }
    }
}

impl Headless {
    pub fn start() -> Headless {
        Self::start_in(None)
    }

    /// One that enters a cgroup, whose `cgroup.procs` this is, before its first thread ends: from
    /// then on v2 lists it where that thread was, wherever the others are moved.
    pub fn start_in(entrance: Option<&fs::File>) -> Headless {
        let entrance = entrance.map_or(-1, AsRawFd::as_raw_fd);
        let mut ends = [0; 2];
        // SAFETY: the child has one thread and calls no Rust code; the parent owns both ends.
        let (pid, mut ready) = unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            let pid = libc::fork();
            if pid == 0 {
                libc::setsid();
                if entrance != -1 && libc::write(entrance, c"0".as_ptr().cast(), 1) != 1 {
                    libc::_exit(1);
                }
                let mut thread: libc::pthread_t = std::mem::zeroed();
                let end = ends[1] as usize as *mut libc::c_void;
                let failed = libc::pthread_create(&raw mut thread, std::ptr::null(), hold, end);
                if failed != 0 {
                    libc::_exit(1);
                }
                // Ends only this thread.
                libc::syscall(libc::SYS_exit, 0);
            }
            assert!(pid > 0);
            libc::close(ends[1]);
            (pid, fs::File::from_raw_fd(ends[0]))
        };
        let headless = Headless(pid as u32);
        ready.read_exact(&mut [0]).expect("the other thread runs");
        let stat = format!("/proc/{pid}/stat");
        let began = Instant::now();
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            assert!(began.elapsed() < Duration::from_secs(20), "the leader ends");
            std::thread::sleep(Duration::from_millis(5));
        }
        headless
    }

    /// Whether it has ended; reaps it then.
    pub fn has_ended(&self) -> bool {
        // SAFETY: our own child.
        unsafe { libc::waitpid(self.0 as i32, std::ptr::null_mut(), libc::WNOHANG) != 0 }
    }
}

impl Drop for Headless {
    fn drop(&mut self) {
        // SAFETY: our own child; if it was already reaped, neither call applies to it.
        unsafe {
            if libc::waitpid(self.0 as i32, std::ptr::null_mut(), libc::WNOHANG) == 0 {
                libc::kill(self.0 as i32, libc::SIGKILL);
                libc::waitpid(self.0 as i32, std::ptr::null_mut(), 0);
            }
        }
    }
}
