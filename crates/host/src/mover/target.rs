// SPDX-License-Identifier: Apache-2.0
//! Checks which processes may be acted upon.

use std::sync::OnceLock;

use super::report::SkipReason;
use crate::access::AccessError;
use crate::error::FileError;
use crate::guest::{self, Guests};
use crate::process::{Process, ProcessError, ProcessKind};
use crate::root::ProcRoot;

/// Why memory was not paged out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageoutError {
    #[error("process {pid} is agewise itself, which does not page itself out")]
    Ourselves { pid: u32 },
    /// The process is an ancestor of agewise, and may wait for it.
    #[error("process {pid} is an ancestor of agewise: it would wait for itself; left alone")]
    Ancestor { pid: u32 },
    #[error("process {pid} is init: paging it out can stall the whole machine; left alone")]
    Init { pid: u32 },
    #[error("{}; left alone, unless guests are asked for", guest::note(*pid))]
    Guests { pid: u32 },
    #[error(
        "no permission to page out process {pid}: needs CAP_SYS_NICE and the right to read it \
         (CAP_SYS_PTRACE for other users' processes); run as root"
    )]
    Denied { pid: u32 },
    #[error(
        "this kernel cannot page out another process: process_madvise(MADV_PAGEOUT) needs Linux \
         5.10, CONFIG_ADVISE_SYSCALLS and CONFIG_SWAP or file memory"
    )]
    NotSupported,
    /// The first thread has ended, after which the kernel finds no memory by pidfd.
    #[error(
        "process {pid} runs on without its first thread: process_madvise cannot reach its memory; \
         limit its cgroup instead (memory.high, memory.reclaim)"
    )]
    LostLeader { pid: u32 },
    #[error("process_madvise(MADV_PAGEOUT) on process {pid}: {source}")]
    System {
        pid: u32,
        /// The error the system returned.
        source: std::io::Error,
    },
    #[error(
        "process {pid} does not answer (or too many of its user do not): a file system that it \
         maps may hang; what was passed to the kernel last may leave later, or not at all"
    )]
    Unanswered { pid: u32 },
    /// The access source failed in the look right before the call. Nothing is moved without it.
    #[error("cannot look again before paging out: {reason}")]
    Recheck {
        /// The error of the source.
        reason: String,
    },
    /// The access source does not know the age of single pages.
    #[error(
        "moving or marking memory needs the age of single pages, which the access source that \
         works here ({source_name}) does not know: run as root (`agewise doctor` says what else is \
         missing)"
    )]
    NoPageAges { source_name: String },
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    File(#[from] FileError),
}

impl PageoutError {
    /// Converts the error of a look at process `pid`.
    pub(crate) fn from_source(pid: u32, error: &AccessError) -> Self {
        if error.is_target_gone() {
            ProcessError::Gone { pid }.into()
        } else {
            Self::Recheck {
                reason: error.to_string(),
            }
        }
    }

    /// Whether the process has ended or called exec.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Process(error) => error.is_gone(),
            Self::File(error) => error.is_not_found(),
            _ => false,
        }
    }

    /// The reason why pages that were not moved because of it are left out.
    pub(super) fn skip_reason(&self) -> SkipReason {
        match self {
            Self::Unanswered { .. } => SkipReason::Unanswered,
            _ if self.is_gone() => SkipReason::ProcessGone,
            _ => SkipReason::Failed,
        }
    }
}

/// Rejects agewise itself and its ancestors, init, kernel threads, hosts of KVM guests (unless
/// included), processes that have exited, and kernels without pidfds.
pub fn check_target(process: &Process, guests: Guests) -> Result<(), PageoutError> {
    let pid = process.pid();
    if process.is_self() {
        return Err(PageoutError::Ourselves { pid });
    }
    if process.is_init() {
        return Err(PageoutError::Init { pid });
    }
    if own_lineage().contains(&pid) {
        return Err(PageoutError::Ancestor { pid });
    }
    process.check()?;
    let stat = process.stat()?;
    if stat.kind == ProcessKind::KernelThread {
        return Err(ProcessError::KernelThread {
            pid,
            comm: stat.comm,
        }
        .into());
    }
    if guests == Guests::Spared && guest::runs_guests(&ProcRoot::default(), pid) {
        return Err(PageoutError::Guests { pid });
    }
    if process.pidfd().is_none() {
        return Err(PageoutError::NotSupported);
    }
    if process.has_lost_leader() {
        return Err(PageoutError::LostLeader { pid });
    }
    Ok(())
}

/// This process and its ancestors by pid, this process first. They are never moved out, since a
/// process that waits for our result would suffer from it.
///
/// Read once: a process that adopts this one later (a subreaper or init) is already an ancestor.
pub fn own_lineage() -> &'static [u32] {
    static LINEAGE: OnceLock<Vec<u32>> = OnceLock::new();
    LINEAGE.get_or_init(|| lineage(&ProcRoot::default(), std::process::id()))
}

/// A process and its ancestors.
pub(crate) fn lineage(root: &ProcRoot, pid: u32) -> Vec<u32> {
    let mut line = vec![pid];
    while let Some(&pid) = line.last() {
        match Process::open_in(root, pid).and_then(|process| process.stat()) {
            // /proc may change during the walk: do not loop forever.
            Ok(stat) if stat.ppid > 0 && !line.contains(&stat.ppid) => line.push(stat.ppid),
            _ => break,
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_begins_with_us_and_ends_at_the_top() {
        let line = own_lineage();
        assert_eq!(line[0], std::process::id());
        assert_eq!(line[1], std::os::unix::process::parent_id());
        assert!(line.len() >= 2 && !line.contains(&0));
    }

    #[test]
    fn whoever_waits_for_us_is_refused() {
        let parent = Process::open(std::os::unix::process::parent_id()).unwrap();
        match check_target(&parent, Guests::Spared) {
            Err(PageoutError::Ancestor { pid }) => assert_eq!(pid, parent.pid()),
            // In a container, init may have started the test.
            Err(PageoutError::Init { pid: 1 }) => {}
            other => panic!("{other:?}"),
        }
    }
}
