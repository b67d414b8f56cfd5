// SPDX-License-Identifier: Apache-2.0
//! `agewise lab reproduce` as a program: every document, its shortest benchmarks, few seeds.

mod program;

use program::{agewise, json_lines, words};
use serde_json::Value;

fn rows(document: &str, benchmark: &str, more: &[&str]) -> Vec<Value> {
    let args = ["lab", "reproduce", document, "--benchmark", benchmark];
    let args = [&args[..], &["--seeds", "2", "--format", "json"], more].concat();
    let (ok, said, error) = agewise(&args);
    assert!(ok, "{args:?}: {error}");
    let mut rows = json_lines(&said);
    let summary = rows.pop().expect("the last line is the summary");
    let count = |verdict| rows.iter().filter(|row| row["verdict"] == verdict).count();
    assert_eq!(summary["record"], "summary");
    assert_eq!(summary["claims"], rows.len() - count("own"));
    assert_eq!(summary["reproduced"], count("reproduced"));
    rows
}

const VERDICTS: [&str; 6] = [
    "reproduced",
    "same sign",
    "opposite",
    "insensitive",
    "underpowered",
    "own",
];

/// Benchmarks and measures of each document that take a second at most.
#[test]
fn every_document_gives_rows_of_one_shape() {
    for (document, benchmark, expected) in [
        ("damon-lru-sort", "phase/sort", 4),
        ("node-lru", "pagealloc/zones", 1),
        ("node-lru", "paralleldd/1", 1),
        ("node-lru", "aging", 3),
        ("refault-distance", "tpcc", 8),
        ("refault-distance", "fio2", 8),
        ("workingset-report", "redis/age", 5),
    ] {
        let rows = rows(document, benchmark, &[]);
        assert_eq!(rows.len(), expected, "{document} {benchmark}");
        for row in &rows {
            let name = row["benchmark"].as_str().unwrap();
            assert!(name.starts_with(benchmark), "{name}");
            let verdict = row["verdict"].as_str().unwrap();
            assert!(VERDICTS.contains(&verdict), "{name}: {verdict}");
            let has_figure = row["document_change"].is_number();
            assert_eq!(has_figure, verdict != "own", "{row}");
            let raw = row["raw"].as_array().unwrap();
            assert_eq!(raw.len(), 2, "{name}: a pair a seed");
            let mean = raw
                .iter()
                .map(|pair| pair[1].as_f64().unwrap())
                .sum::<f64>()
                / 2.0;
            let ours = row["ours_after"].as_f64().unwrap();
            assert!((mean - ours).abs() <= 1e-9 * mean.abs().max(1.0), "{row}");
            if let (Some(low), Some(high)) = (row["ci_low"].as_f64(), row["ci_high"].as_f64()) {
                let change = row["change"].as_f64().unwrap();
                assert!(low <= change && change <= high, "{row}");
                let holds_zero = low <= 0.0 && high >= 0.0;
                if matches!(verdict, "same sign" | "opposite") {
                    assert!(!holds_zero, "{row}");
                }
            }
        }
    }
}

/// The change printed in the document is shown beside the one computed from its values.
#[test]
fn figures_of_documents_are_theirs() {
    let fio = &rows("refault-distance", "fio/classic", &[])[0];
    assert_eq!(fio["document_before"], 5_125_500.0);
    assert_eq!(fio["document_after"], 5_137_500.0);
    assert_eq!(fio["document_printed"], "+2.3 %");
    assert_eq!(fio["document_within_noise"], true);
    let then = &rows("refault-distance", "tpcc/mglru-6.12", &[])[0];
    assert_eq!(then["document_printed"], "5x");
    let mainline = rows("refault-distance", "tpcc/mainline-6.14", &[]);
    assert!(mainline[0]["ours_after"].as_f64().unwrap() > 0.0);
    for row in mainline {
        assert_eq!(
            row["verdict"], "own",
            "the document has no figure of it: {row}"
        );
    }
}

/// On the multi-gen LRU of its time, the rule has the effect on TPC-C that the document reports, in
/// sign.
#[test]
fn the_rule_helps_the_multi_gen_lru_of_its_time() {
    let rate = &rows("refault-distance", "tpcc/mglru-6.12", &[])[0];
    assert!(rate["change"].as_f64().unwrap() > 0.02, "{rate}");
    let hits = &rows("refault-distance", "loop-twice/mglru-6.12", &[])[0];
    assert_eq!(hits["ours_before"], 0.0);
    assert_eq!(hits["verdict"], "own");
}

/// A variant changes what "after" is; mainline's solution is not a variant of the rule.
#[test]
fn variants_take_the_proposal_apart() {
    let loops = |variant| rows("refault-distance", "loop-twice", &["--variant", variant]);
    let (whole, holes) = (loops("rd"), loops("rd-holes"));
    let after = |rows: &[Value], name: &str| {
        let row = rows.iter().find(|row| row["benchmark"] == name).unwrap();
        row["ours_after"].as_f64().unwrap()
    };
    assert!(after(&whole, "loop-twice/classic") > 0.02);
    assert_eq!(after(&holes, "loop-twice/classic"), 0.0);
    let mainline = "loop-twice/mainline-6.14";
    assert_eq!(after(&whole, mainline), after(&holes, mainline));
    let fair = rows("node-lru", "pagealloc/zones", &["--variant", "node+fair"]);
    assert_eq!(fair[0]["variant"], "node+fair");
    assert!(fair[0]["ours_after"].as_f64().unwrap() > 0.0);
}

/// Same build, same seeds, same bytes, compared with snapshots.
#[test]
fn output_is_golden() {
    for (name, document, benchmark) in [
        ("node_lru_zones", "node-lru", "pagealloc/zones"),
        ("refault_distance_loop", "refault-distance", "loop-twice"),
    ] {
        let args = ["lab", "reproduce", document, "--benchmark", benchmark];
        let (ok, said, _) = agewise(&[&args[..], &["--seeds", "2"]].concat());
        assert!(ok);
        // Skip the first line, which has our version.
        let (_, said) = said.split_once('\n').unwrap();
        insta::assert_snapshot!(name, said);
    }
}

#[test]
fn csv_and_text_say_the_same_as_json() {
    let args = words("lab reproduce node-lru --benchmark pagealloc/zones --seeds 2");
    let row = &rows("node-lru", "pagealloc/zones", &[])[0];
    let (ok, csv, _) = agewise(&[&args[..], &["--format", "csv"]].concat());
    assert!(ok);
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let header = reader.headers().unwrap().clone();
    let record = reader.records().next().unwrap().unwrap();
    for (name, value) in header.iter().zip(&record) {
        let expected = match &row[name] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        assert_eq!(value, expected, "{name}");
    }
    let (ok, text, _) = agewise(&args);
    assert!(ok && text.contains("pagealloc/zones"), "{text}");
    assert!(text.contains(row["verdict"].as_str().unwrap()), "{text}");
}
