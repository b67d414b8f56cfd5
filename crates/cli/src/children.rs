// SPDX-License-Identifier: Apache-2.0
//! Ending processes that we started.

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
