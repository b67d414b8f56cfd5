// SPDX-License-Identifier: Apache-2.0
//! What may be acted upon, and why not.

use crate::error::FileError;
use crate::process::{Process, ProcessError, ProcessKind};

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
    /// The process may not be touched unless asked for by name.
    #[error(
        "process {pid} is init: paging it out can stall the whole machine; ask for it explicitly"
    )]
    Init {
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
        "process {pid} goes on without its first thread: process_madvise reaches no memory of it; \
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
    /// The eye that looks again before the call failed; nothing was moved without it.
    #[error("cannot look again before paging out: {reason}")]
    Recheck {
        /// What the eye said.
        reason: String,
    },
    /// The process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file of the kernel.
    #[error(transparent)]
    File(#[from] FileError),
}

impl PageoutError {
    /// The process has ended, or has replaced itself.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Process(error) => error.is_gone(),
            Self::File(error) => error.is_not_found(),
            _ => false,
        }
    }
}

/// Refuses ourselves, init (unless `allow_init`), kernel threads, what has exited, and kernels
/// without pidfds.
pub fn check_target(process: &Process, allow_init: bool) -> Result<(), PageoutError> {
    let pid = process.pid();
    if process.is_self() {
        return Err(PageoutError::Ourselves { pid });
    }
    if process.is_init() && !allow_init {
        return Err(PageoutError::Init { pid });
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
    if process.pidfd().is_none() {
        return Err(PageoutError::NotSupported);
    }
    if process.has_lost_leader() {
        return Err(PageoutError::LostLeader { pid });
    }
    Ok(())
}
