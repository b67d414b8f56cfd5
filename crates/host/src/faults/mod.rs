// SPDX-License-Identifier: Apache-2.0
//! The page faults of chosen processes: which page and when, in exact order.
//!
//! The source is the tracepoints `exceptions:page_fault_user` and `page_fault_kernel` (Linux 3.14
//! and later, x86), attached through BTF, so tracefs need not be mounted. These are the processor's
//! page faults: the page is not mapped (first touch, file page, refault from swap), or the access
//! is not allowed (a write to a shared or protected page). An access that only sets an accessed bit
//! causes no fault.
//!
//! Which faults were major (had to read something) comes from the kernel's own count, the software
//! event `PERF_COUNT_SW_PAGE_FAULTS_MAJ` on every CPU, because the tracepoints fire before the
//! fault is handled.

#[cfg(test)]
pub(crate) mod fake;
mod major;
mod program;

use crate::access::AccessError;
use crate::clock::monotonic_ns;
use program::Program;

/// Default size in bytes of the ring between kernel and reader: about 524 000 faults.
pub const RING_BYTES: u32 = 16 << 20;
/// Smallest ring: one page.
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
    /// Process id (thread group).
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Whether it was a write.
    pub write: bool,
    /// Whether it was minor or major.
    pub kind: FaultKind,
}

/// The cost class of a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultKind {
    /// Unknown: the kernel was still handling it, or does not report it.
    #[default]
    Unknown,
    /// Nothing was read.
    Minor,
    /// Something was read from a device, or the fault waited for another thread's read.
    Major,
}

/// A source of page faults.
pub trait FaultSource {
    /// Starts watching a process.
    ///
    /// # Errors
    /// Too many processes are watched.
    fn watch(&mut self, pid: u32) -> Result<(), AccessError>;

    /// Stops watching a process.
    fn forget(&mut self, pid: u32);

    /// Appends the faults since the last call, in time order. At most one full ring; the rest comes
    /// with the next call.
    ///
    /// # Errors
    /// The kernel refuses the read.
    fn drain(&mut self, into: &mut Vec<Fault>) -> Result<(), AccessError>;

    /// Faults lost because the ring was full, since the beginning.
    fn dropped(&self) -> u64;

    /// Whether minor and major faults can be distinguished.
    fn tells_majors(&self) -> bool {
        false
    }
}

/// The page faults of the running kernel. Dropping it detaches the programs.
pub struct Faults {
    program: Program,
    completeness: Completeness,
}

/// Whether every major fault is reported.
struct Completeness {
    /// Faults lost as of the last drain.
    dropped: u64,
    /// The CPUs online when the programs were attached; `None` after another set was seen, since
    /// those that come online later, or again, report nothing. One that goes and comes back between
    /// two drains is not noticed: its major faults count as minor.
    attached_cpus: Option<String>,
}

impl Completeness {
    /// Whether all were reported since the last call.
    fn all(&mut self, dropped: u64, online_cpus: Option<String>) -> bool {
        if self.attached_cpus != online_cpus {
            self.attached_cpus = None;
        }
        std::mem::replace(&mut self.dropped, dropped) == dropped && self.attached_cpus.is_some()
    }
}

impl Faults {
    /// Loads and attaches the programs. No faults arrive until a process is watched.
    ///
    /// # Errors
    /// [`AccessError::NoPrivilege`], or [`AccessError::Unsupported`] without BTF, ring buffers
    /// (Linux 5.8) or the tracepoints.
    pub fn open() -> Result<Self, AccessError> {
        Self::with_ring(RING_BYTES)
    }

    /// Like [`open`](Faults::open), with a ring of this many bytes, rounded up to a power of two
    /// within [`RING_BYTES_MIN`] and [`RING_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`Faults::open`].
    pub fn with_ring(ring_bytes: u32) -> Result<Self, AccessError> {
        let bytes = ring_bytes.clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        let attached_cpus = major::online_cpus();
        let program = Program::load(bytes.next_power_of_two())?;
        let completeness = Completeness {
            dropped: 0,
            attached_cpus,
        };
        Ok(Faults {
            program,
            completeness,
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
        // Two processors may reserve space in the ring in another order than their timestamps.
        events.sort_by_key(|event| event.fault.time_ns);
        let dropped = self.program.watched.dropped();
        let is_complete =
            self.completeness.all(dropped, major::online_cpus()) && self.tells_majors();
        into.extend(major::settle(&events, monotonic_ns(), is_complete));
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.program.watched.dropped()
    }

    fn tells_majors(&self) -> bool {
        self.program.tells_majors()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majors_are_not_all_reported_once_a_cpu_came_or_went() {
        let mut completeness = Completeness {
            dropped: 0,
            attached_cpus: Some("0-1\n".into()),
        };
        let mut all = |dropped, cpus: &str| completeness.all(dropped, Some(format!("{cpus}\n")));
        assert!(all(0, "0-1"));
        assert!(!all(3, "0-1"), "three were lost");
        assert!(all(3, "0-1"));
        assert!(!all(3, "0-2"));
        assert!(!all(3, "0-1"), "a CPU that comes back tells nothing");
    }
}
