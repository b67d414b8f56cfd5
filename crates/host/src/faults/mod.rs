// SPDX-License-Identifier: Apache-2.0
//! The page faults of chosen processes: which page, when, in exact order.
//!
//! Source: the tracepoints `exceptions:page_fault_user` and `page_fault_kernel` (Linux 3.14 and later,
//! x86), reached through BTF: tracefs need not be mounted. A page fault is the processor's: nothing
//! mapped (first touch, file page, refault from swap) or not allowed (a write to a shared or protected
//! page). An access that only sets an accessed bit is none.

pub mod fake;
mod program;

use crate::eye::EyeError;
use program::Program;

/// Bytes of the ring between kernel and reader, unless told otherwise: some 524 000 faults.
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
}

/// Something that tells page faults.
pub trait FaultSource {
    /// Watches a process from now on.
    ///
    /// # Errors
    /// Too many processes are watched.
    fn watch(&mut self, pid: u32) -> Result<(), EyeError>;

    /// Watches it no more.
    fn forget(&mut self, pid: u32);

    /// Appends what happened since the last call, in order of time; at most a ring full, the rest comes
    /// with the next call.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    fn drain(&mut self, into: &mut Vec<Fault>) -> Result<(), EyeError>;

    /// Faults that found the ring full and are lost, since the beginning.
    fn dropped(&self) -> u64;
}

/// The running kernel's page faults. Dropping it takes the programs out of the kernel.
pub struct Faults(Program);

impl Faults {
    /// Loads and attaches; nothing is told until a process is watched.
    ///
    /// # Errors
    /// [`EyeError::NoPrivilege`]; [`EyeError::Unsupported`] without BTF, ring buffers (Linux 5.8) or the
    /// tracepoints.
    pub fn open() -> Result<Self, EyeError> {
        Self::with_ring(RING_BYTES)
    }

    /// With a ring of this many bytes, rounded up to a power of two within [`RING_BYTES_MIN`] and
    /// [`RING_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`Faults::open`].
    pub fn with_ring(ring_bytes: u32) -> Result<Self, EyeError> {
        let bytes = ring_bytes.clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        Program::load(bytes.next_power_of_two()).map(Self)
    }
}

impl FaultSource for Faults {
    fn watch(&mut self, pid: u32) -> Result<(), EyeError> {
        self.0.watch(pid)
    }

    fn forget(&mut self, pid: u32) {
        self.0.forget(pid);
    }

    fn drain(&mut self, into: &mut Vec<Fault>) -> Result<(), EyeError> {
        let first = into.len();
        self.0.drain(into)?;
        // Two processors can take their places in the ring in another order than their times.
        into[first..].sort_by_key(|fault| fault.time_ns);
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.0.dropped()
    }
}
