// SPDX-License-Identifier: Apache-2.0
//! Keeps the kernel's statistics of cgroups fresh that a hard limit holds: with old ones the kernel
//! kills although swap has room.
//!
//! To reclaim anonymous memory, the classic LRU moves pages from the active list to the inactive
//! one while that one is the shorter (`inactive_is_low`), and it takes both lengths from statistics
//! that it sums up every two seconds, or when they are read. A program that touches all of its
//! memory, some of which is in swap, within less time (a garbage collector, memcached's crawler)
//! gets all its pages activated: the inactive list is empty, and was long when last summed up. If
//! there are no file pages either, nothing is scanned any more (`shrink_lruvec` ends its loop once
//! no inactive or file page is left, without noticing that the active list was skipped), and after
//! 16 futile passes, within a millisecond, the OOM killer acts (Linux 6.18, v1 and v2 alike; the
//! multi-gen LRU and `memory.high` are not affected). Reading `memory.stat` sums them up at once.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Cgroup, Version};
use crate::clock::thread_cpu_ns;

/// Time between two readings while a limit is hit. Each finds out whether it was since the last
/// one; if so, the statistics are read.
const EVERY: Duration = Duration::from_millis(10);
/// While none is hit, it doubles up to this: waking up is what costs (50 us in a virtual machine).
const EVERY_MAX: Duration = Duration::from_millis(80);

/// CPU time of all such threads of this process, ns.
static CPU_NS: AtomicU64 = AtomicU64::new(0);

/// Keeps the statistics of limited cgroups fresh, by a thread of its own from the first one on.
/// Dropping this ends it.
#[derive(Debug, Default)]
pub struct FreshStatistics {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    limited: Mutex<Vec<Limited>>,
    is_ending: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Limited>> {
        self.limited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(shared: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(shared);
        std::thread::Builder::new()
            .name("agewise-fresh".into())
            .spawn(move || shared.run())
    }

    fn run(&self) {
        let (mut pause, mut counted_ns) = (EVERY, 0);
        while !self.is_ending.load(Ordering::SeqCst) {
            let hit = self.refresh();
            let cpu_ns = thread_cpu_ns();
            CPU_NS.fetch_add(cpu_ns - counted_ns, Ordering::Relaxed);
            counted_ns = cpu_ns;
            pause = match hit {
                Some(true) => EVERY,
                Some(false) => EVERY_MAX.min(pause * 2),
                None => {
                    std::thread::park();
                    continue;
                }
            };
            std::thread::park_timeout(pause);
        }
    }

    /// Whether any limit was hit since the last call; `None` if there is none.
    fn refresh(&self) -> Option<bool> {
        let (mut limited, mut is_hit) = (self.lock(), false);
        limited.retain_mut(|of| match of.refresh() {
            Ok(hit) => {
                is_hit |= hit;
                true
            }
            // The cgroup is gone. Any other error may pass.
            Err(error) => error.raw_os_error() != Some(libc::ENODEV),
        });
        (!limited.is_empty()).then_some(is_hit)
    }
}

impl FreshStatistics {
    /// CPU time that all of them in this process have used so far.
    pub fn cpu() -> Duration {
        Duration::from_nanos(CPU_NS.load(Ordering::Relaxed))
    }

    /// Keeps those of a cgroup fresh, too. One without such files needs none: it has no limit.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn add(&mut self, cgroup: &Cgroup) -> io::Result<()> {
        let (dir, id) = (cgroup.dir(), cgroup.id());
        let is_known = |of: &Limited| of.dir == dir && of.id == id;
        if self.shared.lock().iter().any(is_known) {
            return Ok(());
        }
        let Ok(of) = Limited::open(dir, cgroup.hierarchy().version) else {
            return Ok(());
        };
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => Shared::start(&self.shared)?,
        };
        let mut limited = self.shared.lock();
        // One that was removed may have had the same name.
        limited.retain(|before| before.dir != of.dir);
        limited.push(of);
        drop(limited);
        self.thread.insert(thread).thread().unpark();
        Ok(())
    }

    /// Leaves all cgroups alone but those whose directory `is_kept`.
    pub fn retain(&self, is_kept: impl Fn(&Path) -> bool) {
        self.shared.lock().retain(|of| is_kept(&of.dir));
    }
}

impl Drop for FreshStatistics {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// A cgroup with a limit.
#[derive(Debug)]
struct Limited {
    dir: PathBuf,
    /// The inode of the directory.
    id: u64,
    /// Changes whenever the limit is hit.
    hits: File,
    statistics: File,
    /// What `hits` said last.
    last: Vec<u8>,
}

impl Limited {
    fn open(dir: PathBuf, version: Version) -> io::Result<Self> {
        let hits = match version {
            Version::V1 => "memory.failcnt",
            Version::V2 => "memory.events",
        };
        Ok(Limited {
            hits: File::open(dir.join(hits))?,
            statistics: File::open(dir.join("memory.stat"))?,
            id: dir.metadata()?.ino(),
            dir,
            last: Vec::new(),
        })
    }

    /// Has the kernel sum up its statistics if the limit was hit since the last call; returns
    /// whether it was.
    fn refresh(&mut self) -> io::Result<bool> {
        let mut now = [0; 512];
        let length = self.hits.read_at(&mut now, 0)?;
        if now[..length] == self.last {
            return Ok(false);
        }
        self.last = now[..length].to_vec();
        // The kernel makes the whole text, whatever the length that is read.
        self.statistics.read_at(&mut [0; 64], 0)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cgroup::Hierarchy;

    #[test]
    fn statistics_are_read_once_the_limit_was_hit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        assert!(Limited::open(path.clone(), Version::V1).is_err());
        fs::write(path.join("memory.failcnt"), "7\n").unwrap();
        fs::write(path.join("memory.stat"), "cache 0\n").unwrap();
        let mut limited = Limited::open(path.clone(), Version::V1).unwrap();
        assert!(limited.refresh().unwrap(), "it may have been hit before");
        assert!(!limited.refresh().unwrap());
        fs::write(path.join("memory.failcnt"), "8\n").unwrap();
        assert!(limited.refresh().unwrap());
        assert!(!limited.refresh().unwrap());
    }

    #[test]
    fn a_cgroup_that_replaced_another_of_its_name_is_read() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("app");
        let hierarchy = Hierarchy::at(Version::V2, top.path());
        let mut fresh = FreshStatistics::default();
        let mut ids = Vec::new();
        // A directory of its own each time: inodes may be used again.
        for other in ["first", "second"] {
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("memory.events"), "max 7\n").unwrap();
            fs::write(dir.join("memory.stat"), "anon 0\n").unwrap();
            let cgroup = Cgroup::open(&hierarchy, "/app").unwrap();
            (0..2).for_each(|_| fresh.add(&cgroup).unwrap());
            let limited = fresh.shared.lock();
            assert_eq!(limited.len(), 1);
            ids.push(limited[0].id);
            drop(limited);
            fs::rename(&dir, top.path().join(other)).unwrap();
        }
        assert_ne!(ids[0], ids[1]);
    }
}
