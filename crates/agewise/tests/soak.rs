// SPDX-License-Identifier: Apache-2.0
//! The short form of `agewise bench soak`: each fault once, with a few processes.

use std::process::Command;

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use support::{AGEWISE, blind, one};

#[test]
fn a_daemon_lives_through_each_fault_and_leaves_nothing() {
    skip_if!("soak", blind());
    let _one = one();
    let output = Command::new(AGEWISE)
        .args(["bench", "soak", "--processes", "40", "--cgroups", "8"])
        .args(["--mapped", "64M", "--time", "40s", "--fault-every", "3s"])
        .args(["--cpu-percent", "20", "--format", "json"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // It needs a privilege that a container may lack.
    let is_refused = output.status.code() == Some(1) && output.stdout.is_empty();
    let reasons = ["cannot mount a tmpfs", "memory cgroup", "Permission denied"];
    if is_refused && reasons.iter().any(|why| said.contains(why)) {
        println!("SKIPPED soak: {}", said.trim());
        return;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("{said}"));
    let verdict: serde_json::Value = serde_json::from_str(last).unwrap();
    let count = |name: &str| verdict[name].as_u64().unwrap();
    // There are eight kinds of faults.
    assert!(count("faults") >= 8, "{verdict}");
    assert!(count("looks") > 0 && count("left_behind") == 0, "{verdict}");
    assert!(count("cgroups_came") > 0, "{verdict}");
    // Growth within seconds means nothing, and a few processes are no load.
    let failed = verdict["failed"].as_str().unwrap();
    let counts = failed
        .split(' ')
        .filter(|bar| ["threads", "budget"].contains(bar));
    assert_eq!(counts.count(), 0, "{verdict}");
}
