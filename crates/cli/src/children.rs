// SPDX-License-Identifier: Apache-2.0
//! Child processes: ending them, and their resource usage.

use std::ops::{Deref, DerefMut};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A child process that is killed when this is dropped.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Deref for Killed {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Killed {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

/// Sends SIGTERM to `child`, which must not have been waited for: its pid could have been reused.
pub fn terminate(child: &Child) {
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    // A stopped process would not handle the signal.
    let _ = kill_process(Pid::from_child(child), Signal::CONT);
}

/// Ends `child` and waits for it; kills it if it has not ended `within` that time. Returns true if
/// no kill was needed. A child that has already ended is left alone.
pub fn end(child: &mut Child, within: Duration) -> bool {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return true;
    }
    // Close the pipe, so that output nobody reads cannot block it.
    drop(child.stdout.take());
    terminate(child);
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// Resource usage of children that were waited for, including that of their own such children.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChildrenUsage {
    /// CPU time, kernel and user.
    pub cpu: Duration,
    /// The peak resident memory of the largest of them.
    pub resident_peak_bytes: u64,
}

impl ChildrenUsage {
    /// The peak, if it is a child's own. Between fork and exec a child shares our memory, which the
    /// kernel's maximum includes.
    pub fn own_peak_bytes(&self) -> u64 {
        let ours = usage(libc::RUSAGE_SELF).map_or(0, |usage| peak_bytes(&usage));
        if self.resident_peak_bytes > ours {
            self.resident_peak_bytes
        } else {
            0
        }
    }
}

fn usage(who: libc::c_int) -> Option<libc::rusage> {
    // SAFETY: zero is a valid rusage, and the call overwrites all of it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::getrusage(who, &mut usage) == 0).then_some(usage)
    }
}

/// The peak in bytes; the kernel reports KiB (getrusage(2)).
fn peak_bytes(usage: &libc::rusage) -> u64 {
    (usage.ru_maxrss as u64).saturating_mul(1024)
}

/// Resource usage of children (getrusage(2), RUSAGE_CHILDREN).
pub fn children_usage() -> ChildrenUsage {
    let Some(usage) = usage(libc::RUSAGE_CHILDREN) else {
        return ChildrenUsage::default();
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    ChildrenUsage {
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        resident_peak_bytes: peak_bytes(&usage),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn who_does_not_listen_is_killed_and_who_has_ended_is_left_alone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(end(&mut child, Duration::from_secs(10)));
        assert!(end(&mut child, Duration::ZERO), "a second time");
        let mut deaf = Command::new("sh")
            .args([
                "-c",
                "trap '' TERM; echo ready; while :; do sleep 0.1; done",
            ])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 5];
        let out = deaf.stdout.as_mut().unwrap();
        std::io::Read::read_exact(out, &mut ready).unwrap();
        assert!(!end(&mut deaf, Duration::from_millis(200)));
        assert!(deaf.try_wait().unwrap().is_some());
    }
}
