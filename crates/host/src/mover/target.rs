// SPDX-License-Identifier: Apache-2.0
//! What may be acted upon, and why not.

use std::sync::OnceLock;

use crate::access::AccessError;
use crate::error::FileError;
use crate::guest;
use crate::process::{Process, ProcessError, ProcessKind};
use crate::root::ProcRoot;

/// Why memory was not paged out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageoutError {
    /// The process may not be touched: it is ourselves.
    #[error("process {pid} is agewise itself, which does not page itself out")]
    Ourselves {
        /// The pid.
        pid: u32,
    },
    /// The process may not be touched: it waits for our answer.
    #[error("process {pid} is an ancestor of agewise: it would wait for itself; left alone")]
    Ancestor {
        /// The pid.
        pid: u32,
    },
    /// The process may not be touched: everything depends on it.
    #[error("process {pid} is init: paging it out can stall the whole machine; left alone")]
    Init {
        /// The pid.
        pid: u32,
    },
    /// The process may not be touched: what its guests use is not known.
    #[error("{}; left alone", guest::note(*pid))]
    Guests {
        /// The pid.
        pid: u32,
    },
    /// No permission.
    #[error(
        "no permission to page out process {pid}: needs CAP_SYS_NICE and the right to read it \
         (CAP_SYS_PTRACE for other users' processes); run as root"
    )]
    Denied {
        /// The pid.
        pid: u32,
    },
    /// The kernel cannot do it.
    #[error(
        "this kernel cannot page out another process: process_madvise(MADV_PAGEOUT) needs Linux \
         5.10, CONFIG_ADVISE_SYSCALLS and CONFIG_SWAP or file memory"
    )]
    NotSupported,
    /// The kernel finds no memory by a pidfd once the first thread has ended.
    #[error(
        "process {pid} runs on without its first thread: process_madvise cannot reach its memory; \
         limit its cgroup instead (memory.high, memory.reclaim)"
    )]
    LostLeader {
        /// The pid.
        pid: u32,
    },
    /// The system call failed otherwise.
    #[error("process_madvise(MADV_PAGEOUT) on process {pid}: {source}")]
    System {
        /// The pid.
        pid: u32,
        /// What the system said.
        source: std::io::Error,
    },
    /// The access source that looks right before the call failed; nothing was moved without it.
    #[error("cannot look again before paging out: {reason}")]
    Recheck {
        /// What the source said.
        reason: String,
    },
    /// The access source does not know the age of single pages.
    #[error(
        "moving memory out needs the age of single pages, which the access source that works here \
         ({source_name}) does not know: run as root (`agewise doctor` says what else is missing)"
    )]
    NoPageAges {
        /// Name of the source.
        source_name: String,
    },
    /// The process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file of the kernel.
    #[error(transparent)]
    File(#[from] FileError),
}

impl PageoutError {
    /// Of a look at process `pid` that failed.
    pub(crate) fn from_source(pid: u32, error: &AccessError) -> Self {
        if error.is_target_gone() {
            ProcessError::Gone { pid }.into()
        } else {
            Self::Recheck {
                reason: error.to_string(),
            }
        }
    }

    /// The process has ended, or has replaced itself.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Process(error) => error.is_gone(),
            Self::File(error) => error.is_not_found(),
            _ => false,
        }
    }
}

/// Refuses ourselves and the processes we came from, init, kernel threads, hosts of KVM guests,
/// what has exited, and kernels without pidfds.
pub fn check_target(process: &Process) -> Result<(), PageoutError> {
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
    if guest::runs_guests(&ProcRoot::default(), pid) {
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

/// This process and its ancestors, by pid, this process first. They are never moved out: a process
/// that waits for our answer would pay for it.
///
/// Read once: a process that adopts us later is one of them too.
pub fn own_lineage() -> &'static [u32] {
    static LINEAGE: OnceLock<Vec<u32>> = OnceLock::new();
    LINEAGE.get_or_init(|| lineage(&ProcRoot::default(), std::process::id()))
}

fn lineage(root: &ProcRoot, pid: u32) -> Vec<u32> {
    let mut line = vec![pid];
    while let Some(&pid) = line.last() {
        match Process::open_in(root, pid).and_then(|process| process.stat()) {
            // /proc may change while we climb: a circle must end.
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
        match check_target(&parent) {
            Err(PageoutError::Ancestor { pid }) => assert_eq!(pid, parent.pid()),
            // In a container the test may be started by its init.
            Err(PageoutError::Init { pid: 1 }) => {}
            other => panic!("{other:?}"),
        }
    }
}
