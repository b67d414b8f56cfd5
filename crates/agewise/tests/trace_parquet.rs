// SPDX-License-Identifier: Apache-2.0
//! Traces as Parquet, as the program writes and reads them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

fn run(place: &Path, arguments: &str) -> Output {
    Command::new(cargo_bin("agewise"))
        .args(arguments.split(' '))
        .current_dir(place)
        .output()
        .unwrap()
}

#[test]
fn a_parquet_trace_keeps_everything_and_says_what_it_was_made_from() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let ok = |arguments: &str| {
        let output = run(place.path(), arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let error = |arguments: &str| {
        let output = run(place.path(), arguments);
        assert!(!output.status.success(), "{arguments} succeeded");
        String::from_utf8(output.stderr).unwrap()
    };
    let first =
        |text: String| -> Value { serde_json::from_str(text.lines().next().unwrap()).unwrap() };
    let text = "time_ns,page,count,kind,process,class\n5,7,3,w,12,anon\n1000000000,1,1,r,13,file\n";
    fs::write(at("t.csv"), text).unwrap();
    ok("trace convert t.csv t.pagetrace");
    ok("trace convert t.pagetrace t.parquet");
    let info = first(ok("trace info t.parquet --format json"));
    assert_eq!(info["trace_format"], "parquet");
    let points = |trace: &str| {
        let points = ok(&format!(
            "lab curve {trace} --policy lru --sizes 2 --format json"
        ));
        first(points)["misses"].clone()
    };
    assert_eq!(points("t.parquet"), points("t.csv"));
    ok("trace convert t.parquet back.pagetrace");
    assert_eq!(
        fs::read(at("back.pagetrace")).unwrap(),
        fs::read(at("t.pagetrace")).unwrap()
    );
    ok("trace convert t.csv of-csv --to parquet");
    let bytes = fs::read(at("of-csv")).unwrap();
    let said = String::from_utf8_lossy(&bytes);
    let sum = Command::new("sha256sum")
        .arg(at("t.csv"))
        .output()
        .unwrap()
        .stdout;
    let sha256 = String::from_utf8_lossy(&sum)[..64].to_owned();
    assert!(said.contains(&sha256) && said.contains("t.csv"), "{said}");
    fs::write(at("cut.parquet"), &bytes[..bytes.len() - 9]).unwrap();
    let said = error("trace info cut.parquet");
    assert!(said.contains("cut.parquet: this is not parquet"), "{said}");
    let said = error("lab show of-csv");
    assert!(said.contains("it is a trace"), "{said}");
}
