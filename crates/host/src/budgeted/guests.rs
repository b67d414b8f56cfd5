// SPDX-License-Identifier: Apache-2.0
//! Whether a process under a budget runs KVM guests. It may begin to at any time: when it was
//! opened, it may have been a program about to start one.

use crate::clock;
use crate::guest::{self, Guests};
use crate::mover::PageoutError;
use crate::root::ProcRoot;

/// Its descriptors are read again after this time, in ns.
const AGAIN_NS: u64 = 1_000_000_000;
/// Reading them takes at most one part in this many of one core: a process may have many.
const CORE_SHARE: u64 = 200;

/// What is known about the guests of a process.
#[derive(Debug)]
pub(super) struct GuestsOf {
    asked: Guests,
    pub root: ProcRoot,
    are_there: bool,
    pub due_ns: u64,
}

impl GuestsOf {
    /// Of a process that runs none now, unless they are included.
    pub fn new(asked: Guests) -> Self {
        GuestsOf {
            asked,
            root: ProcRoot::default(),
            are_there: false,
            due_ns: clock::monotonic_ns() + AGAIN_NS,
        }
    }

    /// Refuses a process that runs guests, unless they are included.
    pub fn check(&mut self, pid: u32) -> Result<(), PageoutError> {
        if self.asked == Guests::Included {
            return Ok(());
        }
        let now_ns = clock::monotonic_ns();
        if now_ns >= self.due_ns {
            let began_ns = clock::thread_cpu_ns();
            self.are_there = guest::runs_guests(&self.root, pid);
            let took_ns = clock::thread_cpu_ns().saturating_sub(began_ns);
            self.due_ns = now_ns + AGAIN_NS.max(took_ns.saturating_mul(CORE_SHARE));
        }
        self.known(pid)
    }

    /// Refuses a process that ran guests at the last check.
    pub fn known(&self, pid: u32) -> Result<(), PageoutError> {
        match self.are_there {
            true => Err(PageoutError::Guests { pid }),
            false => Ok(()),
        }
    }
}
