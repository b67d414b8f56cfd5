// SPDX-License-Identifier: Apache-2.0
//! Runs agewise to its end.

#![allow(dead_code, reason = "each test program uses its part of it")]

use assert_cmd::Command;

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
