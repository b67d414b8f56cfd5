// SPDX-License-Identifier: Apache-2.0
//! A process for tests to act upon: this test program, started again with the requested memory
//! layout, taking one command per line.

#[path = "../support/tlb.rs"]
mod tlb;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use agewise_host::swap::{ZramDevice, ZramOptions};

pub const PAGE: u64 = 4096;
const ENV: &str = "AGEWISE_TEST_CHILD";

/// The memory of the child.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    pub anon_pages: u64,
    /// In huge pages.
    pub thp: bool,
    /// Pages of a file that are mapped shared and read.
    pub file_pages: u64,
}

/// A running child, killed on drop.
pub struct Target {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// First address of the anonymous memory.
    pub anon: u64,
    /// First address of the file mapping; 0 for none.
    pub file: u64,
}

impl Target {
    pub fn start(layout: Layout) -> Self {
        let spec = format!(
            "{} {} {}",
            layout.anon_pages,
            u8::from(layout.thp),
            layout.file_pages
        );
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_process", "--ignored", "--nocapture"])
            .env(ENV, spec)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut target = Self {
            child,
            stdin,
            stdout,
            anon: 0,
            file: 0,
        };
        let ready = target.answer();
        let mut addresses = ready.split(' ').map(|word| word.parse().unwrap());
        target.anon = addresses.next().unwrap();
        target.file = addresses.next().unwrap();
        target
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command and waits until it is done.
    pub fn tell(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }

    /// Sends a command without an answer.
    pub fn send(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
        self.stdin.flush().unwrap();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn wait(&mut self) {
        self.child.wait().unwrap();
    }

    /// Reads an answer. The test harness prints lines, too; ours begin with an at sign (it may
    /// print "test child_process ... " on the same line before that).
    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.stdout.read_line(&mut line).unwrap() > 0,
                "the child has ended"
            );
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim().to_owned();
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body of the child; returns at once in an ordinary test run.
pub fn run() {
    let Ok(spec) = std::env::var(ENV) else { return };
    // The child must not outlive a test that was killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let numbers: Vec<u64> = spec.split(' ').map(|word| word.parse().unwrap()).collect();
    let memory = Memory::new(numbers[0], numbers[1] == 1, numbers[2]);
    println!("@{} {}", memory.anon as u64, memory.file as u64);
    let mut churning = None;
    let mut device = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        let verb = words.next().unwrap();
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        match verb {
            "touch" => {
                tlb::flush();
                memory.touch(number(), number());
            }
            "check" => assert!(memory.is_unharmed(), "a page came back changed"),
            "lock" => memory.lock(number(), number()),
            "unmap" => memory.unmap(number(), number()),
            "churn" => churning = Some(memory.churn(number())),
            "join" => churning.take().map_or((), |thread| thread.join().unwrap()),
            "zram" => {
                let made = device.insert(ZramDevice::create(&ZramOptions::new(number())).unwrap());
                println!("@{}", made.id());
                continue;
            }
            "exec" => {
                use std::os::unix::process::CommandExt;
                // The shell reports completion in our place.
                let error = Command::new("sh")
                    .args(["-c", "echo @done; sleep 60"])
                    .exec();
                panic!("{error}");
            }
            "exit" => std::process::exit(0),
            other => panic!("unknown command {other}"),
        }
        println!("@done");
    }
}

struct Memory {
    anon: *mut u64,
    anon_pages: u64,
    file: *mut u64,
    file_pages: u64,
}

const WORDS: usize = PAGE as usize / 8;

/// Half random, half repetitive: lz4 compresses it to about half.
fn word(page: u64, index: usize) -> u64 {
    let seed = (page * WORDS as u64 + index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if index.is_multiple_of(4) {
        seed ^ (seed >> 29)
    } else {
        page
    }
}

impl Memory {
    fn new(anon_pages: u64, thp: bool, file_pages: u64) -> Self {
        let anon = map_anon(anon_pages, thp);
        for page in 0..anon_pages {
            for index in 0..WORDS {
                // SAFETY: within the new mapping.
                unsafe {
                    anon.add(page as usize * WORDS + index)
                        .write(word(page, index))
                };
            }
        }
        let file = if file_pages > 0 {
            map_file(file_pages)
        } else {
            std::ptr::null_mut()
        };
        Self {
            anon,
            anon_pages,
            file,
            file_pages,
        }
    }

    fn touch(&self, first: u64, pages: u64) {
        for page in first..first + pages {
            // SAFETY: tests only touch mapped pages.
            unsafe { self.anon.add(page as usize * WORDS).read_volatile() };
        }
    }

    fn is_unharmed(&self) -> bool {
        let same = |base: *mut u64, pages: u64| {
            (0..pages).all(|page| {
                (0..WORDS).all(|index| {
                    // SAFETY: tests only check while everything is mapped.
                    unsafe { base.add(page as usize * WORDS + index).read() == word(page, index) }
                })
            })
        };
        same(self.anon, self.anon_pages) && same(self.file, self.file_pages)
    }

    /// From a separate thread, unmaps, remaps, locks, unlocks and forks, all over the second half
    /// of the memory. The contents are the same afterwards.
    fn churn(&self, ms: u64) -> std::thread::JoinHandle<()> {
        const CHUNK: u64 = 64;
        let (anon, pages) = (self.anon as usize, self.anon_pages);
        std::thread::spawn(move || {
            let end = std::time::Instant::now() + std::time::Duration::from_millis(ms);
            let mut round = 0u64;
            while std::time::Instant::now() < end {
                round += 1;
                let chunks = pages / 2 / CHUNK;
                let first = pages / 2 + word(round, 0) % chunks * CHUNK;
                let at = (anon + (first * PAGE) as usize) as *mut std::ffi::c_void;
                let bytes = (CHUNK * PAGE) as usize;
                renew(at.cast(), first, CHUNK);
                // SAFETY: a part of our memory, which stays mapped, and a child that only exits.
                unsafe {
                    rustix::mm::mlock(at, bytes).unwrap();
                    rustix::mm::munlock(at, bytes).unwrap();
                    if round.is_multiple_of(16) {
                        match libc::fork() {
                            0 => libc::_exit(0),
                            child => assert_eq!(libc::waitpid(child, &mut 0, 0), child),
                        }
                    }
                }
            }
        })
    }

    fn at(&self, page: u64) -> *mut std::ffi::c_void {
        self.anon.wrapping_add(page as usize * WORDS).cast()
    }

    fn lock(&self, first: u64, pages: u64) {
        // SAFETY: a part of our own mapping.
        unsafe { rustix::mm::mlock(self.at(first), (pages * PAGE) as usize).unwrap() };
    }

    fn unmap(&self, first: u64, pages: u64) {
        // SAFETY: nobody accesses these pages afterwards.
        unsafe { rustix::mm::munmap(self.at(first), (pages * PAGE) as usize).unwrap() };
    }
}

/// Unmaps pages and maps new ones in their place, with the same contents.
fn renew(at: *mut u64, first: u64, pages: u64) {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let bytes = (pages * PAGE) as usize;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a part of our memory that nobody else uses in the meantime. Nothing else in the
    // process maps memory here: the kernel would have to place it exactly at this address.
    unsafe {
        munmap(at.cast(), bytes).unwrap();
        std::thread::yield_now();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        assert_eq!(
            mmap_anonymous(at.cast(), bytes, prot, flags).unwrap(),
            at.cast()
        );
        for page in 0..pages {
            for index in 0..WORDS {
                at.add(page as usize * WORDS + index)
                    .write(word(first + page, index));
            }
        }
    }
}

fn map_anon(pages: u64, thp: bool) -> *mut u64 {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    const HUGE: usize = 2 << 20;
    let bytes = (pages * PAGE) as usize;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, longer than needed so that it contains an aligned part.
    let raw = unsafe {
        mmap_anonymous(std::ptr::null_mut(), bytes + HUGE, prot, MapFlags::PRIVATE).unwrap()
    };
    let aligned = raw.map_addr(|at| at.next_multiple_of(HUGE));
    let advice = if thp {
        Advice::LinuxHugepage
    } else {
        Advice::LinuxNoHugepage
    };
    // SAFETY: a part of the new mapping.
    unsafe { madvise(aligned, bytes, advice).unwrap() };
    aligned.cast()
}

fn map_file(pages: u64) -> *mut u64 {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
    // In the build directory, since /tmp may be a tmpfs, whose pages go to swap.
    let dir = std::env::current_exe().unwrap();
    let mut file = tempfile::tempfile_in(dir.parent().unwrap()).unwrap();
    for page in 0..pages {
        let bytes: Vec<u8> = (0..WORDS)
            .flat_map(|i| word(page, i).to_ne_bytes())
            .collect();
        file.write_all(&bytes).unwrap();
    }
    // Clean pages can be dropped, while dirty ones wait for the disk.
    file.sync_all().unwrap();
    let bytes = (pages * PAGE) as usize;
    // SAFETY: a new shared mapping of our own file, as long as the file.
    unsafe {
        let at = mmap(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ,
            MapFlags::SHARED,
            &file,
            0,
        );
        let at = at.unwrap();
        madvise(at, bytes, Advice::Random).unwrap();
        for page in 0..pages as usize {
            at.cast::<u64>().add(page * WORDS).read_volatile();
        }
        at.cast()
    }
}
