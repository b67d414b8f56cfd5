// SPDX-License-Identifier: Apache-2.0
//! Output of `agewise trace` that ends early, or cannot be written.

mod program;

use std::fs;
use std::process::Command;

use program::agewise_code;

const TRACE: &str = "1\n2\n3\n4\n1\n2\n5\n1\n2\n3\n4\n5\n";

#[test]
fn a_sample_whose_error_cannot_be_printed_is_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("t.trace"), TRACE).unwrap();
    let full = fs::File::options().write(true).open("/dev/full");
    let output = Command::new(env!("CARGO_BIN_EXE_agewise"))
        .args(["trace", "sample", "t.trace", "s.pages", "--rate", "0.9"])
        .current_dir(directory.path())
        .stdout(full.unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn traces_before_one_that_fails_are_summarised() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("t.trace");
    fs::write(&trace, TRACE).unwrap();
    let trace = trace.to_str().unwrap();
    for (format, lines) in [("csv", 3), ("json", 2)] {
        let arguments = ["trace", "info", trace, trace, "none", "--format", format];
        let (code, rows, _) = agewise_code(&arguments);
        assert_eq!(code, Some(1));
        assert_eq!(rows.lines().count(), lines, "{rows}");
    }
}
