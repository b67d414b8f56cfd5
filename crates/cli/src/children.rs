// SPDX-License-Identifier: Apache-2.0
//! Processes that we started: ending them, and what they used.

use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Asks `child` to end. Not one that was waited for: its pid may be somebody else's by now.
pub fn terminate(child: &Child) {
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    // A stopped process would not notice.
    let _ = kill_process(Pid::from_child(child), Signal::CONT);
}

/// Ends `child`, and waits for it: killed if asking it does not help `within` that time. True if it did not
/// need that. One that has ended already is left alone.
pub fn end(child: &mut Child, within: Duration) -> bool {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return true;
    }
    // What it would say must not block it.
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

/// What children that have been waited for used, their own such children included.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChildrenUsage {
    /// CPU time, kernel and user.
    pub cpu: Duration,
    /// Most resident memory of any one of them.
    pub resident_peak_bytes: u64,
}

impl ChildrenUsage {
    /// The peak, if it is a child's own: between fork and exec a child has our memory, and the
    /// kernel's maximum remembers that.
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
    // SAFETY: rusage is plain numbers, for which zero is a value; the call writes all of it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::getrusage(who, &mut usage) == 0).then_some(usage)
    }
}

/// In KiB on Linux (getrusage(2)).
fn peak_bytes(usage: &libc::rusage) -> u64 {
    (usage.ru_maxrss as u64).saturating_mul(1024)
}

/// Usage of children (getrusage(2), RUSAGE_CHILDREN).
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
