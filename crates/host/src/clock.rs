// SPDX-License-Identifier: Apache-2.0
//! The clocks used for timestamps and costs.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns `CLOCK_MONOTONIC` in ns: the time at which something was seen or cleared.
pub fn monotonic_ns() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Returns `CLOCK_BOOTTIME` in ns: like `CLOCK_MONOTONIC`, but it keeps running during suspend.
pub fn boottime_ns() -> u64 {
    nanos(clock_gettime(ClockId::Boottime))
}

thread_local! {
    /// CPU time that other threads spent for this one.
    static HELPERS_NS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the CPU time of the calling thread in ns, kernel and user, with that of threads which
/// read for it.
pub fn thread_cpu_ns() -> u64 {
    nanos(clock_gettime(ClockId::ThreadCPUTime)).saturating_add(HELPERS_NS.get())
}

/// Counts CPU time that another thread spent for this one.
pub(crate) fn count_helper(cpu_ns: u64) {
    HELPERS_NS.set(HELPERS_NS.get().saturating_add(cpu_ns));
}

/// Returns the CPU time this process has used so far: all threads, kernel and user.
pub fn process_cpu() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::ProcessCPUTime)))
}

fn nanos(time: Timespec) -> u64 {
    (time.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_helpers_use_counts_for_the_thread_they_help() {
        let before_ns = thread_cpu_ns();
        count_helper(1 << 50);
        assert!(thread_cpu_ns() - before_ns >= 1 << 50);
        assert!(std::thread::spawn(thread_cpu_ns).join().unwrap() < 1 << 50);
    }
}
