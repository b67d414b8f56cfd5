// SPDX-License-Identifier: Apache-2.0
//! Runs agewise to its end: what goes in, and what comes out.

#![allow(dead_code, reason = "each test program uses its part of it")]

use std::time::Duration;

use assert_cmd::Command;
use serde_json::Value;

/// The words of a command line in which none has a blank.
pub fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// The objects of a text that has one on each line.
pub fn json_lines(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}")))
        .collect()
}

/// Whether it succeeded, standard output and standard error.
pub fn agewise(args: &[&str]) -> (bool, String, String) {
    let (code, out, error) = agewise_code(args);
    (code == Some(0), out, error)
}

/// Exit status (`None` if ended by a signal), standard output and standard error.
pub fn agewise_code(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::cargo_bin("agewise")
        .expect("the program is built")
        .args(args)
        .output()
        .expect("the program starts");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// Waits, however slow the machine is, until a process handles a signal (or ignores it: nohup), or
/// has ended.
pub fn wait_for_handler(pid: u32, signal: i32) {
    let field = |status: &str, name| {
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        value.expect("proc_pid_status(5)").trim().to_owned()
    };
    for _ in 0..20_000 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        let has = |set| {
            let bits = u64::from_str_radix(&field(&status, set), 16).expect("bits");
            bits >> (signal - 1) & 1 == 1
        };
        if has("SigCgt:") || has("SigIgn:") || field(&status, "State:").starts_with('Z') {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{pid} does not handle signal {signal}");
}

/// A workload file for the lab: a heap of twice its memory.
pub fn small_workload(touches: u64) -> String {
    format!(
        r#"
description = "Zipf over a heap"
memory = "2MiB"
swap = "zram"

[[process]]
name = "one"

[[process.area]]
name = "heap"
size = "4MiB"

[[process.phase]]
populate = ["heap"]

[[process.phase]]
touches = {touches}
stream = [{{ area = "heap", order = "zipf", theta = 0.99, write = 0.1 }}]
"#
    )
}
