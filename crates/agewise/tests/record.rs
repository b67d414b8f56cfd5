// SPDX-License-Identifier: Apache-2.0
//! `agewise trace record` of a live process. Needs root and BPF; skipped with a message otherwise.

mod program;

use std::process::{Command, Stdio};

use program::agewise;
use serde_json::Value;

/// The last look is at the end, not an interval later.
#[test]
fn a_recording_is_as_long_as_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("t.pages");
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = sleeper.id().to_string();
    let (worked, said, error) = agewise(&[
        "trace",
        "record",
        "--pid",
        &pid,
        "--interval",
        "20s",
        "--duration",
        "1s",
        "--out",
        out.to_str().unwrap(),
        "--format",
        "json",
    ]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    if !worked {
        assert!(error.contains("page tables"), "{error}");
        return println!("SKIPPED a_recording_is_as_long_as_was_asked_for: {error}");
    }
    let summary: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(summary["ended_by"], "duration");
    assert_eq!(summary["intervals"], 2);
    let seconds = summary["seconds"].as_f64().unwrap();
    assert!((1.0..10.0).contains(&seconds), "{summary}");
}

/// As in `trace record -- COMMAND 2>&1 | head -1`.
#[test]
fn the_status_is_the_commands_even_if_nobody_reads_the_summary() {
    let directory = tempfile::tempdir().unwrap();
    let record = |out: &str, stderr: Stdio| {
        Command::new(env!("CARGO_BIN_EXE_agewise"))
            .args(["trace", "record", "--out"])
            .arg(directory.path().join(out))
            .args(["--faults", "off", "--", "sh", "-c", "exit 3"])
            .stderr(stderr)
            .output()
            .unwrap()
    };
    let read = record("read.pages", Stdio::piped());
    if read.status.code() != Some(3) {
        let error = String::from_utf8_lossy(&read.stderr).into_owned();
        assert!(error.contains("page tables"), "{error}");
        return println!("SKIPPED the_status_is_the_commands: {error}");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unread = record("unread.pages", writer.into());
    assert_eq!(unread.status.code(), Some(3));
}
