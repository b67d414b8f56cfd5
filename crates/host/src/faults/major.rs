// SPDX-License-Identifier: Apache-2.0
//! Finds out which faults were major: opens a perf event on each CPU, and matches these events with
//! the faults reported before.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use libbpf_rs::{Link, ProgramMut};

use super::{Fault, FaultKind};

/// A thread's last fault may still be waiting for a device. Without a major event it counts as
/// minor only after this time.
const SETTLED_NS: u64 = 50_000_000;

/// An event from the ring: a fault, or a notice that the thread's fault at this page was major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub fault: Fault,
    pub was_major: bool,
}

/// Returns the faults with their kinds. `events` are in time order. `is_complete` means that no
/// notice of a major fault was lost.
pub(super) fn settle(events: &[Event], now_ns: u64, is_complete: bool) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::with_capacity(events.len());
    let mut last_of: HashMap<u32, usize> = HashMap::new();
    let minor = if is_complete {
        FaultKind::Minor
    } else {
        FaultKind::Unknown
    };
    for event in events {
        let last = last_of.get(&event.fault.tid).copied();
        if event.was_major {
            let last = last.filter(|&last| faults[last].address == event.fault.address);
            if let Some(last) = last {
                faults[last].kind = FaultKind::Major;
            }
            continue;
        }
        // A thread that faults again is done with its previous fault.
        if let Some(last) = last.filter(|&last| faults[last].kind == FaultKind::Unknown) {
            faults[last].kind = minor;
        }
        last_of.insert(event.fault.tid, faults.len());
        faults.push(event.fault);
    }
    for &last in last_of.values() {
        let fault = &mut faults[last];
        let is_settled = now_ns.saturating_sub(fault.time_ns) > SETTLED_NS;
        if fault.kind == FaultKind::Unknown && is_settled {
            fault.kind = minor;
        }
    }
    faults
}

/// The part of `struct perf_event_attr` common to all kernels (include/uapi/linux/perf_event.h,
/// `PERF_ATTR_SIZE_VER0`).
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_PAGE_FAULTS_MAJ: u64 = 6;
/// Bit 0 of the flags: counting starts when a program is attached.
const DISABLED: u64 = 1;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// Attaches the program to the major faults of every CPU that is online.
pub(super) fn attach(program: &ProgramMut<'_>) -> libbpf_rs::Result<Vec<Link>> {
    let mut links = Vec::new();
    for cpu in 0..configured_cpus() {
        let event = match open_event(cpu) {
            Ok(event) => event,
            // The CPU is offline.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
            Err(error) => return Err(error.into()),
        };
        links.push(program.attach_perf_event(event.as_raw_fd())?);
        // The link closes it.
        let _ = event.into_raw_fd();
    }
    Ok(links)
}

/// The CPUs that are online; `None` if this is not known.
pub(super) fn online_cpus() -> Option<String> {
    std::fs::read_to_string("/sys/devices/system/cpu/online").ok()
}

fn configured_cpus() -> libc::c_int {
    // SAFETY: sysconf has no preconditions.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    libc::c_int::try_from(count).unwrap_or(1).max(1)
}

fn open_event(cpu: libc::c_int) -> io::Result<OwnedFd> {
    let attr = PerfEventAttr {
        kind: PERF_TYPE_SOFTWARE,
        size: size_of::<PerfEventAttr>() as u32,
        config: PERF_COUNT_SW_PAGE_FAULTS_MAJ,
        sample_period: 1,
        flags: DISABLED,
        ..PerfEventAttr::default()
    };
    const EVERY_PROCESS: libc::pid_t = -1;
    const NO_GROUP: libc::c_int = -1;
    // SAFETY: `attr` has the size it states and outlives the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            EVERY_PROCESS,
            cpu,
            NO_GROUP,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time_ms: u64, tid: u32, page: u64, was_major: bool) -> Event {
        Event {
            fault: Fault {
                time_ns: time_ms * 1_000_000,
                address: page * 4096,
                pid: 1,
                tid,
                write: false,
                kind: FaultKind::Unknown,
            },
            was_major,
        }
    }

    fn kinds(events: &[Event], now_ms: u64, is_complete: bool) -> Vec<FaultKind> {
        let faults = settle(events, now_ms * 1_000_000, is_complete);
        faults.iter().map(|fault| fault.kind).collect()
    }

    #[test]
    fn word_of_a_major_fault_belongs_to_the_last_of_its_thread_at_that_page() {
        use FaultKind::{Major, Minor, Unknown};
        let events = [
            event(1, 5, 10, false),
            event(2, 6, 10, false),
            event(3, 5, 10, true),
            event(4, 5, 11, false),
            event(5, 5, 12, false),
            event(6, 6, 99, true),
        ];
        // Thread 6's only fault, and thread 5's last, may still be waiting.
        assert_eq!(kinds(&events, 10, true), [Major, Unknown, Minor, Unknown]);
        assert_eq!(kinds(&events, 100, true), [Major, Minor, Minor, Minor]);
        // If notices may be lost, their absence proves nothing.
        assert_eq!(
            kinds(&events, 100, false),
            [Major, Unknown, Unknown, Unknown]
        );
    }
}
