// SPDX-License-Identifier: Apache-2.0
//! Traces as Parquet, as the program writes them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin;

fn run(place: &Path, arguments: &str) -> Output {
    Command::new(cargo_bin("agewise"))
        .args(arguments.split(' '))
        .current_dir(place)
        .output()
        .unwrap()
}

#[test]
fn a_parquet_trace_says_what_it_was_made_from_and_is_only_written() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let ok = |arguments: &str| {
        let output = run(place.path(), arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {errors}");
    };
    let error = |arguments: &str| {
        let output = run(place.path(), arguments);
        assert!(!output.status.success(), "{arguments} succeeded");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = "time_ns,page,count,kind,process,class\n5,7,3,w,12,anon\n1000000000,1,1,r,13,file\n";
    fs::write(at("t.csv"), text).unwrap();
    ok("trace convert t.csv t.parquet");
    ok("trace convert t.csv named --to parquet");
    let bytes = fs::read(at("named")).unwrap();
    assert_eq!(bytes, fs::read(at("t.parquet")).unwrap());
    let said = String::from_utf8_lossy(&bytes);
    let sum = Command::new("sha256sum").arg(at("t.csv")).output().unwrap();
    let sha256 = String::from_utf8_lossy(&sum.stdout)[..64].to_owned();
    assert!(said.contains(&sha256) && said.contains("t.csv"), "{said}");
    for command in [
        "trace info t.parquet",
        "trace info t.parquet --trace-format csv",
        "trace cat named",
        "trace convert named back.csv",
        "lab curve named --sizes 2",
        "lab run named",
        "size t.parquet",
    ] {
        let said = error(command);
        let expected = ": this is Parquet, which `trace convert` writes for data frames";
        assert!(said.contains(expected), "{command}: {said}");
    }
    let said = error("lab show named");
    assert!(said.contains("it is a trace"), "{said}");
    for to in ["csv", "parquet"] {
        let said = error(&format!("trace convert t.csv /dev/full --to {to}"));
        let expected = ": No space left on device (os error 28)\n";
        assert!(said.ends_with(expected), "{said}");
    }
}
