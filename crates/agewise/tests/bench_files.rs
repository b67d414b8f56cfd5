// SPDX-License-Identifier: Apache-2.0
//! The figures of `agewise bench files` that do not depend on the speed of the machine.

use std::process::Command;

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use serde_json::Value;
use support::{AGEWISE, blind, one};

#[test]
fn every_way_of_reading_is_seen_and_only_what_is_cold_leaves() {
    skip_if!("bench files", blind());
    let _one = one();
    let output = Command::new(AGEWISE)
        .args(["bench", "files", "--size", "128M", "--pairs", "6"])
        .args(["--span", "50ms", "--format", "json"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let reasons = [
        "memory cgroup",
        "not permitted",
        "not available here",
        "cachestat",
    ];
    if !output.status.success() && reasons.iter().any(|why| said.contains(why)) {
        return println!("SKIPPED bench files: {}", said.trim());
    }
    assert!(output.status.success(), "{said}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ratio = |name: &str| {
        let value = found[format!("{name}_ratio")].as_f64();
        value.unwrap_or_else(|| panic!("{name}: {found}"))
    };
    let mut ways = vec![
        "pread",
        "long_pread",
        "sendfile",
        "io_uring",
        "mmap",
        "mixed",
    ];
    if found["io_uring_missed_ratio"].is_null() {
        println!("SKIPPED io_uring: the kernel or its settings do not allow it");
        ways.retain(|way| *way != "io_uring");
    }
    for way in ways {
        let missed = ratio(&format!("{way}_missed"));
        let wrong = ratio(&format!("{way}_false"));
        assert!(missed <= 0.005 && wrong <= 0.01, "{way}: {found}");
    }
    assert!(ratio("resident_error").abs() <= 0.01, "{found}");
    assert!(ratio("dropping_cold") >= 0.99, "{found}");
    assert!(ratio("dropping_hot") <= 0.005, "{found}");
    let of_maps = found["maps_bytes_per_page"].as_f64().unwrap();
    assert!(of_maps <= 1.0, "{found}");
}
