// SPDX-License-Identifier: Apache-2.0
//! Results of policies with a profile of one's own: they carry its text.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use agewise_lab::study::again::run_request;
use agewise_lab::study::base::Base;
use agewise_lab::study::description::{Description, PROFILE as COLUMN};
use agewise_lab::study::parquet;
use agewise_lab::study::result::ResultFile;
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

/// The output of a command that succeeds.
fn ok(place: &Path, arguments: &str) -> Vec<u8> {
    let (ok, out, said) = run(place, arguments);
    assert!(ok, "{arguments}: {}{said}", String::from_utf8_lossy(&out));
    out
}

const PROFILE: &str = "# ours\ntier_gain = [1, 1]\n";

/// Writes a trace and a profile.
fn prepare(place: &Path) {
    let pages: String = (0..4000u64).map(|n| format!("{}\n", n * n % 997)).collect();
    fs::write(place.join("t.trace"), pages).unwrap();
    fs::write(place.join("my.toml"), PROFILE).unwrap();
}

#[test]
fn a_result_is_run_again_without_the_file_of_its_profile() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    prepare(place);
    let make =
        |name: &str, arguments: &str| fs::write(place.join(name), ok(place, arguments)).unwrap();
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

#[test]
fn a_sweep_with_a_profile_has_the_same_columns_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    prepare(place);
    for (grid, cells) in [
        (
            "workload = 't.trace'\npolicy = ['mglru:my.toml', 'lru']\nseeds = 2",
            "out",
        ),
        (
            "trace = 't.trace'\npolicy = ['mglru-mapped:my.toml', 'lru']\nsizes = '200'",
            "curves",
        ),
    ] {
        fs::write(place.join("s.toml"), format!("[[grid]]\n{grid}\n")).unwrap();
        ok(place, &format!("lab sweep s.toml --out {cells}"));
        let rows = ResultFile::read(&place.join(cells)).unwrap().rows;
        let found: BTreeSet<Vec<_>> = rows.iter().map(|row| row.keys().collect()).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        let profiles: BTreeSet<_> = rows.iter().map(|row| row[COLUMN.name].as_str()).collect();
        assert_eq!(profiles, BTreeSet::from([None, Some(PROFILE)]));
    }
}

#[test]
fn a_null_profile_is_in_parquet_only() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    prepare(place);
    let lab_run = "lab run t.trace --seeds 2 --format";
    let of_ours = ok(
        place,
        &format!("{lab_run} json --policy mglru:my.toml,classic"),
    );
    let of_lru = ok(place, &format!("{lab_run} json --policy lru --memory 300p"));
    let has = |text: &[u8], count: usize| {
        let text = String::from_utf8_lossy(text).into_owned();
        assert_eq!(text.matches(COLUMN.name).count(), count, "{text}");
    };
    has(&of_lru, 0);
    has(&ok(place, &format!("{lab_run} csv --policy lru")), 0);
    has(
        &ok(place, &format!("{lab_run} csv --policy mglru:my.toml,lru")),
        1,
    );
    // Results put together are as their parts.
    fs::write(place.join("all.json"), [of_ours, of_lru].concat()).unwrap();
    ok(place, "lab rerun all.json");
    // What only the new row has is named: here the result lacks a field.
    let text = fs::read_to_string(place.join("all.json")).unwrap();
    let lacks = text.replace(",\"damon\":null", "");
    assert_ne!(lacks, text);
    fs::write(place.join("lacks.json"), lacks).unwrap();
    let (_, out, said) = run(place, "lab rerun lacks.json");
    let out = String::from_utf8(out).unwrap();
    assert!(
        out.ends_with(": damon was nothing, is null\n"),
        "{out}{said}"
    );
}

#[test]
fn parquet_of_earlier_versions_is_run_again_without_the_column() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    prepare(place);
    let path = place.join("r.parquet");
    let whole = ok(
        place,
        "lab run t.trace --policy lru,classic --seeds 2 --format parquet",
    );
    fs::write(&path, &whole).unwrap();
    let description = ResultFile::read(&path).unwrap().description;
    let Description::Run { cells } = &description else {
        panic!("not of a run");
    };
    let mut base = Base::of(&path);
    base.limits.memory_max_bytes = 1 << 30;
    let request = run_request(cells, &base).unwrap();
    let mut outcome = request.run(&Arc::default(), |_| ()).unwrap();
    outcome.cells.clone_from(cells);
    let mut table = outcome.run_table();
    assert!(parquet::bytes(&table, &description).unwrap() == whole);
    ok(place, "lab rerun r.parquet");
    table.remove(COLUMN.name);
    fs::write(&path, parquet::bytes(&table, &description).unwrap()).unwrap();
    assert!(!ResultFile::read(&path).unwrap().rows[0].contains_key(COLUMN.name));
    let out = ok(place, "lab rerun r.parquet");
    assert!(out.starts_with(b"the same "));
}
