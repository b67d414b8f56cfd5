// SPDX-License-Identifier: Apache-2.0
//! Results of policies with a profile of one's own: they carry its text.

use std::fs;
use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

/// Runs a command; returns whether it succeeded, its output and its messages.
fn run(place: &Path, arguments: &str) -> (bool, Vec<u8>, String) {
    let output = Command::new(cargo_bin("agewise"))
        .args(arguments.split(' '))
        .current_dir(place)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.success(), output.stdout, said)
}

const PROFILE: &str = "# ours\ntier_gain = [1, 1]\n";

#[test]
fn a_result_is_run_again_without_the_file_of_its_profile() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let pages: String = (0..4000u64).map(|n| format!("{}\n", n * n % 997)).collect();
    fs::write(place.join("t.trace"), pages).unwrap();
    fs::write(place.join("my.toml"), PROFILE).unwrap();
    let make = |name: &str, arguments: &str| {
        let (ok, out, said) = run(place, arguments);
        assert!(ok, "{arguments}: {said}");
        fs::write(place.join(name), out).unwrap();
    };
    let lab_run = "lab run t.trace --policy mglru:my.toml,lru --seeds 2 --format";
    make("r.parquet", &format!("{lab_run} parquet"));
    make("r.json", &format!("{lab_run} json"));
    let curve = "lab curve t.trace --sizes 200 --policy mglru-mapped:my.toml --format json";
    make("c.json", curve);
    fs::remove_file(place.join("my.toml")).unwrap();
    let names = ["r.parquet", "r.json", "c.json"];
    for name in names {
        let (ok, out, said) = run(place, &format!("lab rerun {name}"));
        assert!(
            ok && out.starts_with(b"the same ") && said.is_empty(),
            "{name}: {said}"
        );
        let shown = String::from_utf8(run(place, &format!("lab show {name}")).1).unwrap();
        let expected = "\n            # ours\n            tier_gain = [1, 1]\n";
        assert!(shown.contains(expected), "{shown}");
        let json = run(place, &format!("lab show {name} --format json")).1;
        let first = json.split(|byte| *byte == b'\n').next().unwrap();
        let cell: Value = serde_json::from_slice(first).unwrap();
        assert_eq!(cell["policy_profile"], PROFILE);
    }
    // Another file of that name is not what was run.
    fs::write(place.join("my.toml"), "tier_gain = [5, 7]\n").unwrap();
    for name in names {
        let (ok, _, said) = run(place, &format!("lab rerun {name}"));
        assert!(
            ok && said.contains("`lab rerun` uses the recorded one"),
            "{said}"
        );
    }
    // Results of earlier versions do not have the text, and are compared as they are.
    let text = fs::read_to_string(place.join("c.json")).unwrap();
    let recorded = format!(",\"policy_profile\":{}", Value::from(PROFILE));
    let old = text.replace(&recorded, "");
    assert_ne!(old, text);
    fs::write(place.join("old.json"), old).unwrap();
    let (ok, _, said) = run(place, "lab rerun old.json");
    assert!(
        !ok && said.contains("is not what the result is of"),
        "{said}"
    );
    fs::write(place.join("my.toml"), PROFILE).unwrap();
    let (ok, _, said) = run(place, "lab rerun old.json");
    assert!(ok, "{said}");
    // A text that does not have the hash is not run.
    let forged = text.replace("[1, 1]", "[5, 7]");
    fs::write(place.join("forged.json"), forged).unwrap();
    fs::remove_file(place.join("my.toml")).unwrap();
    let (ok, _, said) = run(place, "lab rerun forged.json");
    assert!(!ok && said.contains("the result needs my.toml"), "{said}");
}
