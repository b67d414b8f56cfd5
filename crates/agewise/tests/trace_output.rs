// SPDX-License-Identifier: Apache-2.0
//! What `agewise trace` writes without repeats; and output that ends early, or cannot be written.

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

#[test]
fn repeats_are_collapsed_in_what_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("t.trace"), "1\n1\n2\n2\n2\n1\n").unwrap();
    fs::write(at("m.csv"), "file,trace_name,format\nt.trace,t,lirs\n").unwrap();
    let (trace, manifest) = (at("t.trace"), at("m.csv"));
    let flag = "--collapse-repeats";
    for (command, from, to, options) in [
        ("convert", trace.as_str(), at("a.lirs"), &[flag][..]),
        (
            "convert",
            "t_dedup",
            at("b.lirs"),
            &["--manifest", &manifest],
        ),
        ("sample", &trace, at("c.pages"), &["--rate", "1", flag]),
        ("convert", &trace, at("d.oracleGeneral"), &[flag]),
    ] {
        let (code, _, error) = agewise_code(&[&["trace", command, from, &to], options].concat());
        assert_eq!(code, Some(0), "{error}");
        let (_, info, _) = agewise_code(&["trace", "info", &to, "--format", "json"]);
        assert!(
            info.contains("\"accesses\":3,") && info.contains("\"repeats\":0,"),
            "{info}"
        );
    }
    // Where each page comes next, counted in what was written.
    let records = fs::read(at("d.oracleGeneral")).unwrap();
    let next = records
        .chunks(24)
        .map(|record| i64::from_le_bytes(record[16..].try_into().unwrap()));
    assert_eq!(next.collect::<Vec<_>>(), [2, -1, -1]);
}
