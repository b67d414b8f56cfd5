// SPDX-License-Identifier: Apache-2.0
//! `agewise doctor` as a program, privileged and not.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

fn records(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn chosen_source(records: &[Value]) -> Option<&str> {
    let chosen = |record: &&Value| record["group"] == "source" && record["chosen"] == true;
    records
        .iter()
        .find(chosen)
        .and_then(|record| record["name"].as_str())
}

#[test]
fn json_has_the_same_fields_in_every_line_and_the_status_tells_whether_observing_works() {
    let output = Command::new(cargo_bin("agewise"))
        .args(["doctor", "--format", "json"])
        .output();
    let output = output.unwrap();
    let records = records(&output);
    assert!(records.len() > 20);
    for record in &records {
        let fields: Vec<&String> = record.as_object().unwrap().keys().collect();
        let expected = [
            "advice", "chosen", "found", "group", "name", "since", "state",
        ];
        let mut fields: Vec<&str> = fields.into_iter().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(fields, expected);
        assert!(["available", "limited", "missing"].contains(&record["state"].as_str().unwrap()));
    }
    let status = output.status.code();
    assert_eq!(
        status,
        Some(if chosen_source(&records).is_some() {
            0
        } else {
            3
        })
    );
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn text_into_a_pipe_has_no_colour() {
    let output = Command::new(cargo_bin("agewise"))
        .arg("doctor")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\x1b'));
    for heading in [
        "Kernel\n",
        "Machine\n",
        "Access sources: ",
        "Movers: ",
        "Observing ",
    ] {
        assert!(text.contains(heading), "{heading}");
    }
}

#[test]
fn without_privileges_it_answers_as_well() {
    if !rustix::process::geteuid().is_root() {
        return println!(
            "SKIP without_privileges_it_answers_as_well: only root can give up rights"
        );
    }
    // The build directory may be closed to others.
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("agewise");
    std::fs::copy(cargo_bin("agewise"), &binary).unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    const NOBODY: u32 = 65_534;
    let output = Command::new(&binary)
        .args(["doctor", "--format", "json"])
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let records = records(&output);
    assert_ne!(chosen_source(&records), Some("pagewalk"));
    let privileges = records
        .iter()
        .find(|record| record["name"] == "privileges")
        .unwrap();
    assert_eq!(privileges["state"], "missing");
    assert!(
        privileges["found"]
            .as_str()
            .unwrap()
            .starts_with("uid 65534, without CAP_BPF")
    );
    let pageout = records
        .iter()
        .find(|record| record["name"] == "pageout")
        .unwrap();
    assert_eq!(pageout["state"], "missing");
    let damon = records.iter().find(|record| record["name"] == "damon");
    let damon = damon.unwrap();
    assert_eq!(damon["state"], "missing", "only root may use it: {damon}");
    if std::path::Path::new("/sys/kernel/mm/damon/admin").exists() {
        assert_eq!(damon["advice"], "run as root", "{damon}");
    }
    assert_eq!(
        output.status.code(),
        Some(if chosen_source(&records).is_some() {
            0
        } else {
            3
        })
    );
}
