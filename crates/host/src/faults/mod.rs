// SPDX-License-Identifier: Apache-2.0
//! The page faults of chosen processes: which page, when, in exact order.
//!
//! Source: the tracepoints `exceptions:page_fault_user` and `page_fault_kernel` (Linux 3.14 and later,
//! x86), reached through BTF: tracefs need not be mounted. A page fault is the processor's: nothing
//! mapped (first touch, file page, refault from swap) or not allowed (a write to a shared or protected
//! page). An access that only sets an accessed bit is none.
//!
//! Which faults were major (something had to be read for them) comes from the kernel's own count,
//! the software event `PERF_COUNT_SW_PAGE_FAULTS_MAJ` on every CPU: the tracepoints fire before the
//! fault is handled.

#[cfg(test)]
pub(crate) mod fake;
mod major;
mod program;

use crate::access::AccessError;
use crate::clock::monotonic_ns;
use program::Program;

/// Default size in bytes of the ring between kernel and reader: some 524 000 faults.
pub const RING_BYTES: u32 = 16 << 20;
/// Smallest ring: a page.
pub const RING_BYTES_MIN: u32 = 4096;
/// Largest ring.
pub const RING_BYTES_MAX: u32 = 1 << 30;

/// One page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// Address of the page.
    pub address: u64,
    /// Process (thread group).
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// It wanted to write.
    pub write: bool,
    /// The page was mapped and the access not allowed: copy on write, or a protection.
    pub protection: bool,
    /// Whether it had to read.
    pub kind: FaultKind,
}

/// What handling a fault took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultKind {
    /// Not known: the kernel was still handling it, or does not say.
    #[default]
    Unknown,
    /// No reading.
    Minor,
    /// Something was read from a device, or another thread's reading waited for.
    Major,
}

/// Something that tells page faults.
pub trait FaultSource {
    /// Watches a process from now on.
    ///
    /// # Errors
    /// Too many processes are watched.
    fn watch(&mut self, pid: u32) -> Result<(), AccessError>;

    /// Watches it no more.
    fn forget(&mut self, pid: u32);

    /// Appends what happened since the last call, in order of time; at most a ring full, the rest comes
    /// with the next call.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    fn drain(&mut self, into: &mut Vec<Fault>) -> Result<(), AccessError>;

    /// Faults that found the ring full and are lost, since the beginning.
    fn dropped(&self) -> u64;

    /// Whether minor and major faults can be distinguished.
    fn tells_majors(&self) -> bool {
        false
    }
}

/// The running kernel's page faults. Dropping it takes the programs out of the kernel.
pub struct Faults {
    program: Program,
    /// Lost when it was asked last.
    dropped: u64,
}

impl Faults {
    /// Loads and attaches; no faults arrive until a process is watched.
    ///
    /// # Errors
    /// [`AccessError::NoPrivilege`]; [`AccessError::Unsupported`] without BTF, ring buffers (Linux 5.8) or the
    /// tracepoints.
    pub fn open() -> Result<Self, AccessError> {
        Self::with_ring(RING_BYTES)
    }

    /// With a ring of this many bytes, rounded up to a power of two within [`RING_BYTES_MIN`] and
    /// [`RING_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`Faults::open`].
    pub fn with_ring(ring_bytes: u32) -> Result<Self, AccessError> {
        let bytes = ring_bytes.clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        let program = Program::load(bytes.next_power_of_two())?;
        Ok(Faults {
            program,
            dropped: 0,
        })
    }
}

impl FaultSource for Faults {
    fn watch(&mut self, pid: u32) -> Result<(), AccessError> {
        self.program.watched.watch(pid, 1)
    }

    fn forget(&mut self, pid: u32) {
        self.program.watched.forget(pid);
    }

    fn drain(&mut self, into: &mut Vec<Fault>) -> Result<(), AccessError> {
        let mut events = self.program.watched.drain()?;
        // Two processors can take their places in the ring in another order than their times.
        events.sort_by_key(|event| event.fault.time_ns);
        let before = std::mem::replace(&mut self.dropped, self.program.watched.dropped());
        let all_told = self.tells_majors() && self.dropped == before;
        into.extend(major::settle(&events, monotonic_ns(), all_told));
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.program.watched.dropped()
    }

    fn tells_majors(&self) -> bool {
        self.program.tells_majors()
    }
}
