// SPDX-License-Identifier: Apache-2.0
//! Parsers of `/proc/PID/{stat,status,cgroup}`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::FileError;
use crate::untrusted::Untrusted;

/// Task flags, the ninth field of `stat` (include/linux/sched.h; stable from 4.x to 7.x).
const PF_EXITING: u64 = 0x0000_0004;
const PF_KTHREAD: u64 = 0x0020_0000;

/// The kind of a process, with regard to its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessKind {
    /// It has its own address space.
    User,
    /// A kernel thread: no user memory.
    KernelThread,
    /// It has exited and waits to be reaped; it has no memory any more.
    Zombie,
    /// It is exiting and freeing its memory.
    Exiting,
}

/// The fields of `/proc/PID/stat` that agewise uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The name, at most 15 bytes; may contain anything but NUL.
    pub comm: Untrusted,
    /// The state letter: R, S, D, T (stopped), t (traced), Z, X, I.
    pub state: char,
    /// Pid of the parent.
    pub ppid: u32,
    /// Its session: the pid of the leader. 0 if the leader is in another pid namespace, or if the
    /// process is being torn down.
    pub session: u32,
    /// Whether it has a controlling terminal.
    pub has_terminal: bool,
    /// Device number of that terminal, as packed by the kernel (`tty_nr`, proc(5)); 0 for none.
    pub terminal: u32,
    pub kind: ProcessKind,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// CPU time in user mode, in clock ticks (USER_HZ).
    pub user_ticks: u64,
    /// CPU time in kernel mode, in clock ticks.
    pub system_ticks: u64,
    /// Number of threads.
    pub threads: u32,
    /// Start time in clock ticks after boot. With the pid it identifies the process for good.
    pub start_ticks: u64,
    /// Size of the address space.
    pub virtual_bytes: u64,
    /// Resident pages, from counters that lag by a few dozen pages per CPU.
    pub rss_pages: u64,
}

impl Stat {
    /// Parses the line in `stat`. The name may itself contain spaces and parentheses.
    pub fn parse(path: &Path, line: impl AsRef<[u8]>) -> Result<Self, FileError> {
        let line = line.as_ref();
        let bad = |expected| FileError::format(path, expected, &String::from_utf8_lossy(line));
        let find = |at: Option<usize>| at.ok_or_else(|| bad("a name in parentheses"));
        let open = find(line.iter().position(|byte| *byte == b'('))?;
        let close = find(line.iter().rposition(|byte| *byte == b')'))?;
        let comm = find((close > open).then_some(open + 1)).map(|from| &line[from..close])?;
        let rest = std::str::from_utf8(&line[close + 1..]).map_err(|_| bad("numbers"))?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // proc(5) counts fields from 1, and the state is field 3.
        let field = |number: usize| {
            fields
                .get(number - 3)
                .copied()
                .ok_or_else(|| bad("24 fields"))
        };
        let number = |n| field(n)?.parse::<u64>().map_err(|_| bad("a number"));
        let state = field(3)?.chars().next().ok_or_else(|| bad("a state"))?;
        let flags = number(9)?;
        let kind = match state {
            'Z' | 'X' | 'x' => ProcessKind::Zombie,
            _ if flags & PF_KTHREAD != 0 => ProcessKind::KernelThread,
            _ if flags & PF_EXITING != 0 => ProcessKind::Exiting,
            _ => ProcessKind::User,
        };
        Ok(Self {
            comm: comm.into(),
            state,
            ppid: u32::try_from(number(4)?).map_err(|_| bad("a pid"))?,
            session: field(6)?
                .parse::<i64>()
                .map_or(0, |id| u32::try_from(id).unwrap_or(0)),
            has_terminal: field(7)? != "0",
            // Printed as a signed number.
            terminal: field(7)?.parse::<i32>().map_or(0, i32::cast_unsigned),
            kind,
            minor_faults: number(10)?,
            major_faults: number(12)?,
            user_ticks: number(14)?,
            system_ticks: number(15)?,
            threads: u32::try_from(number(20)?).unwrap_or(u32::MAX),
            start_ticks: number(22)?,
            virtual_bytes: number(23)?,
            rss_pages: number(24)?,
        })
    }

    /// CPU time in user and kernel mode in ns, exact to a clock tick.
    pub fn cpu_ns(&self) -> u64 {
        let ticks = self.user_ticks.saturating_add(self.system_ticks);
        ticks.saturating_mul(1_000_000_000) / rustix::param::clock_ticks_per_second()
    }

    /// Whether the first thread has ended or is ending while others are left. The process may then
    /// live on without it, and only the others show its memory.
    pub fn outlives_leader(&self) -> bool {
        matches!(self.kind, ProcessKind::Zombie | ProcessKind::Exiting) && self.threads > 1
    }

    /// Takes over from a living thread the fields that the ended first thread no longer has.
    pub(super) fn take_from(&mut self, thread: &Stat) {
        self.state = thread.state;
        self.kind = thread.kind;
        self.rss_pages = thread.rss_pages;
    }
}

/// The fields of `/proc/PID/status` that agewise uses. Sizes are as exact as the kernel's counters,
/// which lag by up to a few dozen pages per CPU since 6.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Thread group id. Differs from the requested pid if that was a thread.
    pub tgid: u32,
    /// Real user id.
    pub uid: u32,
    /// Effective user id.
    pub euid: u32,
    /// Resident size.
    pub rss_bytes: u64,
    /// Resident anonymous memory.
    pub rss_anon_bytes: u64,
    /// Resident file mappings.
    pub rss_file_bytes: u64,
    /// Resident shared memory (tmpfs, shared anonymous).
    pub rss_shmem_bytes: u64,
    /// Anonymous memory in swap.
    pub swap_bytes: u64,
    /// Memory of the page tables.
    pub page_table_bytes: u64,
}

impl Status {
    /// Parses `status`. Kernel threads have no memory lines, so those fields stay zero.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let mut status = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let mut words = value.split_ascii_whitespace();
            let id = |word: Option<&str>| {
                word.and_then(|w| w.parse().ok())
                    .ok_or_else(|| FileError::format(path, "a number", line))
            };
            match key {
                "Tgid" => status.tgid = id(words.next())?,
                "Uid" => [status.uid, status.euid] = [id(words.next())?, id(words.next())?],
                "VmRSS" => status.rss_bytes = kib(path, line, value)?,
                "RssAnon" => status.rss_anon_bytes = kib(path, line, value)?,
                "RssFile" => status.rss_file_bytes = kib(path, line, value)?,
                "RssShmem" => status.rss_shmem_bytes = kib(path, line, value)?,
                "VmSwap" => status.swap_bytes = kib(path, line, value)?,
                "VmPTE" => status.page_table_bytes = kib(path, line, value)?,
                _ => {}
            }
        }
        Ok(status)
    }
}

/// Parses `123 kB`; returns bytes.
pub(crate) fn kib(path: &Path, line: &str, value: &str) -> Result<u64, FileError> {
    value
        .trim()
        .strip_suffix("kB")
        .and_then(|n| n.trim_end().parse::<u64>().ok())
        .and_then(|kib| kib.checked_mul(1024))
        .ok_or_else(|| FileError::format(path, "a size in kB", line))
}

/// One line of `/proc/PID/cgroup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Hierarchy number; 0 is cgroup v2.
    pub hierarchy: u32,
    /// The v1 controllers of the hierarchy (or its `name=`); empty for v2.
    pub controllers: Vec<String>,
    /// Path below the root of the hierarchy, `/` for the root, as seen in the cgroup namespace.
    pub path: PathBuf,
    /// Whether the cgroup has been removed while the process is still inside.
    pub removed: bool,
}

/// Parses `/proc/PID/cgroup`. Paths may contain colons, and bytes that are not UTF-8.
pub fn parse_memberships(path: &Path, text: &[u8]) -> Result<Vec<Membership>, FileError> {
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            let bad = || {
                let line = String::from_utf8_lossy(line);
                FileError::format(path, "hierarchy:controllers:path", &line)
            };
            let mut parts = line.splitn(3, |byte| *byte == b':');
            let mut word = || std::str::from_utf8(parts.next()?).ok();
            let hierarchy = word().and_then(|n| n.parse().ok()).ok_or_else(bad)?;
            let controllers = word().ok_or_else(bad)?;
            let full = parts.next().ok_or_else(bad)?;
            let (shown, removed) = match full.strip_suffix(b" (deleted)") {
                Some(rest) => (rest, true),
                None => (full, false),
            };
            Ok(Membership {
                hierarchy,
                controllers: controllers
                    .split(',')
                    .filter(|c| !c.is_empty())
                    .map(str::to_owned)
                    .collect(),
                path: OsStr::from_bytes(shown).into(),
                removed,
            })
        })
        .collect()
}
