// SPDX-License-Identifier: Apache-2.0
//! The size and order of the pages of a trace, which its header has, and options of `agewise size`
//! that only some subjects have.

mod program;

use std::fs;

use program::{agewise, json_lines};
use serde_json::Value;
use tempfile::TempDir;

/// Two pages of 64 KiB, by address and as a page trace.
fn traces() -> (TempDir, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (text, trace) = (at("t.csv"), at("t.pagetrace"));
    let accesses = (0..200u64).map(|n| format!("{},{n}\n", (n % 2) << 16 | 8));
    let lines: String = accesses.collect();
    fs::write(&text, format!("address,time_ms\n{lines}")).unwrap();
    ok(&["trace", "convert", &text, &trace, "--page-shift", "16"]);
    (directory, text, trace)
}

fn ok(arguments: &[&str]) -> String {
    let (worked, out, error) = agewise(arguments);
    assert!(worked, "{arguments:?}: {error}");
    out
}

fn error(arguments: &[&str]) -> String {
    let (worked, out, error) = agewise(arguments);
    assert!(!worked, "{arguments:?}: {out}");
    error
}

fn last(json: &str) -> Value {
    serde_json::from_str(json.lines().last().unwrap()).unwrap()
}

#[test]
fn the_page_size_in_the_header_counts() {
    let (directory, text, trace) = traces();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let info = |trace: &str| last(&ok(&["trace", "info", trace, "--format", "json"]));
    assert_eq!(info(&trace)["page_bytes"], 1 << 16);
    assert_eq!(info(&trace)["footprint_pages"], 2);
    let said = ok(&["trace", "info", &trace]);
    assert!(
        said.contains("2 pages (128.0 KiB at 64.0 KiB a page)"),
        "{said}"
    );
    let table = ok(&["trace", "info", &trace, "--format", "csv"]);
    assert!(
        table.contains(",compression,page_bytes,requests,"),
        "{table}"
    );
    assert!(table.contains(",plain,65536,200,"), "{table}");
    // Whatever is made of it has pages of the same size.
    let (sample, csv) = (at("s.pagetrace"), at("c.csv"));
    ok(&["trace", "sample", &trace, &sample, "--rate", "1"]);
    ok(&["trace", "convert", &trace, &csv, "--to", "csv"]);
    assert_eq!(info(&sample)["page_bytes"], 1 << 16);
    assert_eq!(info(&csv)["page_bytes"], 1 << 16);
    // A format without a header has the pages that are asked for.
    assert_eq!(info(&text)["footprint_pages"], 2);
    assert_eq!(info(&text)["page_bytes"], 4096);
    let size = |trace: &str, shift: &[&str]| {
        last(&ok(&[&["size", trace, "--format", "json"], shift].concat()))["footprint_bytes"]
            .clone()
    };
    assert_eq!(size(&trace, &[]), 2 << 16);
    assert_eq!(size(&text, &[]), 2 << 12);
    assert_eq!(size(&text, &["--page-shift", "14"]), 2 << 14);
}

#[test]
fn a_page_size_that_contradicts_the_header_is_refused() {
    let (_directory, _, trace) = traces();
    for command in [
        &["trace", "info"][..],
        &["trace", "cat"],
        &["size"],
        &["lab", "curve"],
        &["lab", "run"],
    ] {
        let arguments = [command, &[&trace, "--page-shift", "12"]].concat();
        let said = error(&arguments);
        assert!(
            said.contains("page shift 12 was given"),
            "{arguments:?}: {said}"
        );
        assert!(said.contains("its header says 16"), "{arguments:?}: {said}");
    }
    ok(&["trace", "info", &trace, "--page-shift", "16"]);
}

#[test]
fn size_refuses_what_it_cannot_follow() {
    let (_directory, _, trace) = traces();
    let said = error(&["size", "--pid", "1", "--files"]);
    assert!(said.contains("give --cgroup PATH"), "{said}");
    let said = error(&["size", &trace, "--files"]);
    assert!(
        said.contains("'--files'") && said.contains("[TRACE]"),
        "{said}"
    );
    for option in [["--page-shift", "12"], ["--trace-memory", "1G"]] {
        let said = error(&["size", "--pid", "1", option[0], option[1]]);
        assert!(said.contains("--pid <PID>' cannot be used with"), "{said}");
    }
}

/// Belady's string. It has no times: faults are per thousand accesses.
#[test]
fn size_has_the_names_of_whatif_and_takes_a_format() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("any-name");
    fs::write(&path, "1\n2\n3\n4\n1\n2\n5\n1\n2\n3\n4\n5\n").unwrap();
    let trace = path.to_str().unwrap();
    let unknown = error(&["size", "/dev/null"]);
    assert!(unknown.contains("--trace-format"), "{unknown}");
    let size = |format| {
        let of = ["size", trace, "--trace-format", "lirs", "--points", "5"];
        ok(&[&of[..], &["--format", format]].concat())
    };
    let rows = size("json");
    let rows = json_lines(&rows);
    assert_eq!(rows[2]["memory_bytes"], 3 * 4096, "{}", rows[2]);
    // LRU with 3 pages misses 10 times of 12, 5 of them first touches.
    let faults = rows[2]["faults_per_1000_accesses"].as_f64().unwrap();
    assert!((faults - 5000.0 / 12.0).abs() < 1e-9, "{}", rows[2]);
    assert!(rows[2].get("wait_ratio").is_none(), "{}", rows[2]);
    assert_eq!(rows[5]["record"], "summary");
    assert_eq!(rows[5]["footprint_bytes"], 5 * 4096);
    let names = "record,memory_bytes,faults_per_1000_accesses,faults_low,faults_high,wait_us,\
                 wait_high";
    assert_eq!(size("csv").lines().next(), Some(names));
    let refused = error(&["size", trace, "--duration", "3s"]);
    assert!(refused.contains("--duration"), "{refused}");
}

#[test]
fn a_trace_of_damon_keeps_that_its_order_is_not_known() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (damon, csv, sample) = (at("d.txt"), at("d.csv"), at("s.pagetrace"));
    let line =
        |at: u32| format!("k {at}.0: damon_aggregated: target_id=0 nr_regions=1 0-16384: 5 0\n");
    fs::write(&damon, (1..4).map(line).collect::<String>()).unwrap();
    ok(&["trace", "convert", &damon, &csv, "--page-shift", "13"]);
    let text = fs::read_to_string(&csv).unwrap();
    assert!(
        text.starts_with("# page trace: page_shift=13 order=interval"),
        "{text}"
    );
    ok(&["trace", "sample", &damon, &sample, "--rate", "1"]);
    ok(&["trace", "convert", &sample, &csv]);
    let text = fs::read_to_string(&csv).unwrap();
    assert!(text.contains("order=interval"), "{text}");
    assert!(text.contains("converted_from=damon"), "{text}");
}
