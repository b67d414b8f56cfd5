// SPDX-License-Identifier: Apache-2.0
//! The clocks that readings carry.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// `CLOCK_MONOTONIC`, ns: when something was seen or cleared.
pub fn monotonic_ns() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// `CLOCK_BOOTTIME`, ns: as `CLOCK_MONOTONIC`, and goes on while the machine sleeps.
pub fn boottime_ns() -> u64 {
    nanos(clock_gettime(ClockId::Boottime))
}

/// CPU time of the calling thread, kernel and user, ns: what something cost.
pub fn thread_cpu_ns() -> u64 {
    nanos(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time this process has used so far, all threads, kernel and user.
pub fn process_cpu() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::ProcessCPUTime)))
}

fn nanos(time: Timespec) -> u64 {
    (time.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec as u64)
}
