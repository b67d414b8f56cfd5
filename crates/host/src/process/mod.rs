// SPDX-License-Identifier: Apache-2.0
//! Processes, opened once by pidfd and start time, so that a pid reused by another process is
//! noticed rather than acted upon.
//!
//! A process lives as long as one of its threads does. When its first thread has ended
//! (`pthread_exit` in `main`), it shows as a zombie in `/proc/PID/stat` and has no memory in
//! `/proc/PID`; both are then read from a living thread, at `/proc/PID/task/TID`.

mod bound;
pub(crate) mod stat;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

pub use bound::{Bound, BoundError};
pub(crate) use stat::kib;
#[cfg(feature = "testing")]
pub(crate) use stat::parse_memberships;
pub use stat::{Membership, ProcessKind, Stat, Status};

use crate::error::{self, FileError};
use crate::patient;
use crate::root::{ProcRoot, numbers_in};
use crate::untrusted::Untrusted;

/// No process has a larger id, whatever `/proc/sys/kernel/pid_max` is set to.
const PID_MAX: u32 = 1 << 22;

/// Whether a process can have this id.
pub fn is_pid(pid: u32) -> bool {
    (1..=PID_MAX).contains(&pid)
}

/// Why a process cannot be observed or acted upon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    #[error("{pid} is not a process id: give a number from 1 to {PID_MAX}")]
    InvalidPid { pid: u32 },
    #[error("process {pid} does not exist (any more); see `ps` for what runs")]
    Gone { pid: u32 },
    #[error(
        "process {pid} has exited and its number now belongs to another process, which was left \
         alone"
    )]
    Reused { pid: u32 },
    #[error("{pid} is a thread of process {tgid}: memory belongs to the process, use --pid {tgid}")]
    Thread { pid: u32, tgid: u32 },
    #[error(
        "{pid} ({}) is a kernel thread: it has no memory of its own to look at",
        comm.terminal()
    )]
    KernelThread { pid: u32, comm: Untrusted },
    #[error(
        "process {pid} ({}) has exited and waits for its parent {ppid} to reap it: it no longer \
         has memory",
        comm.terminal()
    )]
    Zombie {
        pid: u32,
        comm: Untrusted,
        /// The parent that should reap it.
        ppid: u32,
    },
    #[error("no permission to {action} process {pid}: {advice}")]
    Denied {
        pid: u32,
        /// The action, as a verb phrase.
        action: &'static str,
        advice: &'static str,
    },
    /// The system refused for another reason, for example no free file descriptors.
    #[error("cannot open process {pid}: {source}")]
    System {
        pid: u32,
        /// The error the system returned.
        source: std::io::Error,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

impl ProcessError {
    /// Whether the process no longer exists (gone, reused, or a zombie). A scan over many processes
    /// skips it.
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::Gone { .. } | Self::Reused { .. } | Self::Zombie { .. }
        )
    }

    pub(crate) fn from_file(pid: u32, action: &'static str, error: FileError) -> Self {
        if error.is_not_found() {
            Self::Gone { pid }
        } else if error.is_denied() {
            Self::Denied {
                pid,
                action,
                advice: "run as root, or as its user with CAP_SYS_PTRACE",
            }
        } else {
            Self::File(error)
        }
    }
}

/// A process, identified by pidfd if the kernel has them (5.3), otherwise by its start time alone.
#[derive(Debug)]
pub struct Process {
    root: ProcRoot,
    pid: u32,
    start_ticks: u64,
    pidfd: Option<Arc<OwnedFd>>,
    /// The thread through which its files are read, once the first thread has ended; 0 until then.
    thread: AtomicU32,
}

/// Resident memory from `/proc/PID/statm`, the cheapest file to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statm {
    /// Size of all mappings.
    pub virtual_bytes: u64,
    /// Resident memory.
    pub rss_bytes: u64,
}

impl Process {
    /// Opens a process of this machine.
    pub fn open(pid: u32) -> Result<Self, ProcessError> {
        Self::open_in(&ProcRoot::default(), pid)
    }

    /// Opens a process below another proc root. Only the live `/proc` gets a pidfd.
    pub fn open_in(root: &ProcRoot, pid: u32) -> Result<Self, ProcessError> {
        let raw = is_pid(pid)
            .then(|| Pid::from_raw(pid.cast_signed()))
            .flatten()
            .ok_or(ProcessError::InvalidPid { pid })?;
        let pidfd = if root.is_live() {
            open_pidfd(root, raw, pid)?
        } else {
            None
        };
        let mut process = Self {
            root: root.clone(),
            pid,
            start_ticks: 0,
            pidfd: pidfd.map(Arc::new),
            thread: AtomicU32::new(0),
        };
        let stat = process.read_stat()?;
        process.start_ticks = stat.start_ticks;
        // While the pidfd's process runs, the pid refers to it. Once it has exited, a `stat` that
        // is not a zombie's may belong to another process with the same number.
        if process.has_exited() && stat.kind != ProcessKind::Zombie {
            return Err(ProcessError::Gone { pid });
        }
        Ok(process)
    }

    /// Like [`Process::open_in`], but rejects processes without user memory: kernel threads and
    /// zombies.
    pub fn open_user(root: &ProcRoot, pid: u32) -> Result<Self, ProcessError> {
        let process = Self::open_in(root, pid)?;
        let stat = process.read_stat()?;
        match stat.kind {
            ProcessKind::User => Ok(process),
            ProcessKind::KernelThread => Err(ProcessError::KernelThread {
                pid,
                comm: stat.comm,
            }),
            ProcessKind::Zombie => Err(ProcessError::Zombie {
                pid,
                comm: stat.comm,
                ppid: stat.ppid,
            }),
            ProcessKind::Exiting => Err(ProcessError::Gone { pid }),
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Start time in clock ticks after boot. `(pid, start_ticks)` is unique until the next boot.
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// The pidfd, if the kernel supports them.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// The pidfd, for calls that may outlive this.
    pub(crate) fn shared_pidfd(&self) -> Option<&Arc<OwnedFd>> {
        self.pidfd.as_ref()
    }

    /// The path of a file of the process, for example `smaps`: that of a living thread, if the
    /// first one had ended at the last check.
    pub fn path(&self, file: &str) -> PathBuf {
        match self.thread.load(Ordering::Relaxed) {
            0 => self.own_path(file),
            thread => self.own_path(&format!("task/{thread}/{file}")),
        }
    }

    /// The path of a file about the whole process: `stat`, and files below `task`.
    fn own_path(&self, file: &str) -> PathBuf {
        self.root.of(self.pid).join(file)
    }

    /// Whether, at the last check, its first thread had ended while others lived on. System calls
    /// that find the memory by pidfd (`process_madvise`) fail for such a process.
    pub fn has_lost_leader(&self) -> bool {
        self.thread.load(Ordering::Relaxed) != 0
    }

    /// Whether this is agewise itself, which is never acted upon.
    pub fn is_self(&self) -> bool {
        self.root.is_live() && self.pid == std::process::id()
    }

    /// Whether this is the init process of the machine or container.
    pub fn is_init(&self) -> bool {
        self.pid == 1
    }

    /// Whether the opened process still runs. A zombie does not.
    pub fn is_alive(&self) -> bool {
        self.check().is_ok()
    }

    /// Returns its [`stat`](Self::stat) if the opened process still runs, otherwise `Gone`,
    /// `Zombie` or `Reused`. Call it after reading files by pid: if it returns Ok, the files
    /// belonged to this process.
    pub fn check(&self) -> Result<Stat, ProcessError> {
        if self.has_exited() {
            return match self.read_stat() {
                Ok(stat) if stat.start_ticks == self.start_ticks => Err(ProcessError::Zombie {
                    pid: self.pid,
                    comm: stat.comm,
                    ppid: stat.ppid,
                }),
                Ok(_) => Err(ProcessError::Reused { pid: self.pid }),
                Err(_) => Err(ProcessError::Gone { pid: self.pid }),
            };
        }
        self.stat()
    }

    /// Ok while the opened process still runs. Uses only the pidfd if there is one, which takes 0.3
    /// us, while [`check`](Self::check) reads and parses a file.
    pub fn check_running(&self) -> Result<(), ProcessError> {
        if self.pidfd.is_none() || self.has_exited() {
            self.check()?;
        }
        Ok(())
    }

    pub fn kind(&self) -> Result<ProcessKind, ProcessError> {
        Ok(self.read_stat()?.kind)
    }

    /// Reads `/proc/PID/stat` of exactly this process: a zombie or a reused pid is an error.
    pub fn stat(&self) -> Result<Stat, ProcessError> {
        let stat = self.read_stat()?;
        if stat.start_ticks != self.start_ticks {
            Err(ProcessError::Reused { pid: self.pid })
        } else if stat.kind == ProcessKind::Zombie {
            Err(ProcessError::Zombie {
                pid: self.pid,
                comm: stat.comm,
                ppid: stat.ppid,
            })
        } else {
            Ok(stat)
        }
    }

    /// Bytes it has read from devices so far, including swap-ins: `read_bytes` of `/proc/PID/io`.
    ///
    /// # Errors
    /// The process is gone, or the file may not be read.
    pub fn read_from_device_bytes(&self) -> Result<u64, ProcessError> {
        // It locks out an exec, which may wait for a file system.
        let text = patient::read(self.pid, &self.path("io"))
            .map_err(|e| ProcessError::from_file(self.pid, "read", e))?;
        let mut lines = text.lines();
        let found = lines.find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
        Ok(found.ok_or_else(|| FileError::format(&self.path("io"), "read_bytes", &text))?)
    }

    /// Reads `/proc/PID/status`: sizes and owner.
    pub fn status(&self) -> Result<Status, ProcessError> {
        let path = self.path("status");
        Ok(Status::parse(&path, &self.read("status")?)?)
    }

    /// Reads `/proc/PID/statm`: the resident size, cheaply.
    pub fn statm(&self) -> Result<Statm, ProcessError> {
        let mut text = self.read("statm")?;
        if text.starts_with("0 ") && self.read_stat()?.kind == ProcessKind::User {
            // The thread in use has ended since the last check; `read_stat` has selected another.
            text = self.read("statm")?;
        }
        let page = rustix::param::page_size() as u64;
        let mut fields = text
            .split_ascii_whitespace()
            .map(|n| n.parse::<u64>().ok()?.checked_mul(page));
        let mut next = || {
            fields
                .next()
                .flatten()
                .ok_or_else(|| FileError::format(&self.path("statm"), "sizes in pages", &text))
        };
        Ok(Statm {
            virtual_bytes: next()?,
            rss_bytes: next()?,
        })
    }

    /// Resident memory in bytes.
    pub fn rss_bytes(&self) -> Result<u64, ProcessError> {
        Ok(self.statm()?.rss_bytes)
    }

    /// Its proportional set size in bytes: resident memory, with each page that `n` processes map
    /// counted as `1/n` of a page: `Pss` of `/proc/PID/smaps_rollup` (since 4.14), for which the
    /// kernel walks the page tables.
    ///
    /// # Errors
    /// The process is gone, the file may not be read, or the kernel does not have it.
    pub fn pss_bytes(&self) -> Result<u64, ProcessError> {
        let text = self.read("smaps_rollup")?;
        let mut lines = text.lines();
        let kib = lines.find_map(|line| {
            let value = line.strip_prefix("Pss:")?.strip_suffix("kB")?;
            value.trim().parse::<u64>().ok()?.checked_mul(1024)
        });
        Ok(kib.ok_or_else(|| FileError::format(&self.path("smaps_rollup"), "Pss in kB", &text))?)
    }

    /// The name, at most 15 bytes.
    pub fn comm(&self) -> Result<Untrusted, ProcessError> {
        Ok(self.read_stat()?.comm)
    }

    /// Real user id.
    pub fn uid(&self) -> Result<u32, ProcessError> {
        Ok(self.status()?.uid)
    }

    /// Effective user id.
    pub fn euid(&self) -> Result<u32, ProcessError> {
        Ok(self.status()?.euid)
    }

    /// Thread ids, ascending.
    pub fn threads(&self) -> Result<Vec<u32>, ProcessError> {
        numbers_in(&self.own_path("task"))
            .map_err(|e| ProcessError::from_file(self.pid, "list the threads of", e))
    }

    /// The cgroups it is in, one per hierarchy.
    pub fn cgroups(&self) -> Result<Vec<Membership>, ProcessError> {
        let path = self.path("cgroup");
        let text =
            error::read_bytes(&path).map_err(|e| ProcessError::from_file(self.pid, "read", e))?;
        Ok(stat::parse_memberships(&path, &text)?)
    }

    fn read(&self, file: &str) -> Result<String, ProcessError> {
        error::read(&self.path(file)).map_err(|e| ProcessError::from_file(self.pid, "read", e))
    }

    fn read_stat(&self) -> Result<Stat, ProcessError> {
        let mut stat = self.stat_at(&self.own_path("stat"))?;
        let mut found = 0;
        if stat.outlives_leader()
            && let Some((thread, living)) = self.living_thread()
        {
            stat.take_from(&living);
            found = thread;
        }
        self.thread.store(found, Ordering::Relaxed);
        Ok(stat)
    }

    fn stat_at(&self, path: &Path) -> Result<Stat, ProcessError> {
        let line = error::read_bytes(path)
            .map_err(|error| ProcessError::from_file(self.pid, "read", error))?;
        Ok(Stat::parse(path, line)?)
    }

    /// A thread that has memory: the one already in use if it still does.
    fn living_thread(&self) -> Option<(u32, Stat)> {
        let known = self.thread.load(Ordering::Relaxed);
        let threads = self.threads().ok()?;
        let mut candidates = std::iter::once(known)
            .chain(threads)
            .filter(|thread| *thread != 0 && *thread != self.pid);
        candidates.find_map(|thread| {
            let stat = self
                .stat_at(&self.own_path(&format!("task/{thread}/stat")))
                .ok()?;
            (stat.kind == ProcessKind::User).then_some((thread, stat))
        })
    }

    /// A pidfd becomes readable when the whole thread group has exited.
    fn has_exited(&self) -> bool {
        self.pidfd.as_ref().is_some_and(|fd| {
            let mut fds = [PollFd::new(fd, PollFlags::IN)];
            let zero = rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            matches!(rustix::event::poll(&mut fds, Some(&zero)), Ok(1))
        })
    }
}

fn open_pidfd(root: &ProcRoot, raw: Pid, pid: u32) -> Result<Option<OwnedFd>, ProcessError> {
    match rustix::process::pidfd_open(raw, PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOSYS) => Ok(None),
        Err(Errno::SRCH) => Err(ProcessError::Gone { pid }),
        // EINVAL up to 6.8, ENOENT since then: the id is a thread that does not lead its group.
        Err(source @ (Errno::INVAL | Errno::NOENT)) => {
            let path = root.of(pid).join("status");
            let text = error::read(&path).map_err(|e| ProcessError::from_file(pid, "read", e))?;
            match Status::parse(&path, &text)?.tgid {
                tgid if tgid != pid => Err(ProcessError::Thread { pid, tgid }),
                _ => Err(ProcessError::System {
                    pid,
                    source: source.into(),
                }),
            }
        }
        Err(source) => Err(ProcessError::System {
            pid,
            source: source.into(),
        }),
    }
}

#[cfg(test)]
mod tests;
