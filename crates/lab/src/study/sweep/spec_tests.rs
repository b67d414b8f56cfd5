// SPDX-License-Identifier: Apache-2.0
use super::*;

fn lines(text: &str) -> Vec<String> {
    let line = |cell: &Values| {
        let parts: Vec<String> = cell.iter().map(|(k, v)| format!("{k}={v}")).collect();
        parts.join(" ")
    };
    cells(text).unwrap().cells.iter().map(line).collect()
}

#[test]
fn grids_are_products_without_what_is_skipped() {
    let text = r#"
            seeds = 2
            [[grid]]
            workload = ["kv", "loop"]
            policy = ["classic", "mglru"]
            set.swappiness = [10, 100]
            swap = ["", "none"]
            [[skip]]
            workload = "loop"
            swap = ["none", "hdd"]
            [[skip]]
            policy = "classic"
            set.swappiness = 100
            [[grid]]
            workload = "kv"
            policy = "classic"
            set.swappiness = 10
        "#;
    assert_eq!(
        lines(text),
        [
            "policy=classic seeds=2 set.swappiness=10 workload=kv",
            "policy=classic seeds=2 set.swappiness=10 swap=none workload=kv",
            "policy=mglru seeds=2 set.swappiness=10 workload=kv",
            "policy=mglru seeds=2 set.swappiness=100 workload=kv",
            "policy=mglru seeds=2 set.swappiness=10 swap=none workload=kv",
            "policy=mglru seeds=2 set.swappiness=100 swap=none workload=kv",
            "policy=classic seeds=2 set.swappiness=10 workload=loop",
            "policy=mglru seeds=2 set.swappiness=10 workload=loop",
            "policy=mglru seeds=2 set.swappiness=100 workload=loop",
        ]
    );
}

#[test]
fn a_condition_that_no_cell_meets_is_told() {
    let of = |skip: &str| {
        let grid = "[[grid]]\nworkload = ['kv', 'loop']\npolicy = 'classic'";
        cells(&format!("{grid}\n[[skip]]\n{skip}")).unwrap().notes
    };
    assert_eq!(of("workload = 'kv'"), [""; 0]);
    assert_eq!(
        of("workload = ['kw', 'lop']\nmemory = '8M'"),
        ["a [[skip]] leaves out no cell, as none has memory = 8M, workload = kw or lop"]
    );
}

#[test]
fn fewer_cells_than_were_asked_for_are_told() {
    let of = |draw: u64| {
        let grid = "[[grid]]\nworkload = ['kv', 'loop']\npolicy = ['classic', 'arc']";
        let described = cells(&format!("{grid}\ndraw = {draw}")).unwrap();
        (described.cells.len(), described.notes.join("; "))
    };
    assert_eq!(of(4), (4, String::new()));
    let words = "draw = 5, but only 4 different cells were found".to_owned();
    assert_eq!(of(5), (4, words));
}

#[test]
fn draws_repeat_and_stay_in_range() {
    let text = |seed: u64| {
        format!(
            r#"
                [[grid]]
                draw = 200
                draw_seed = {seed}
                workload = ["kv", "loop"]
                policy = "classic"
                memory = {{ from = "8M", to = "64M", scale = "log" }}
                set.swappiness = {{ from = 0, to = 2 }}
            "#
        )
    };
    let cells = cells(&text(3)).unwrap().cells;
    assert_eq!(cells.len(), 200);
    let pages = |cell: &Values| cell["memory"].strip_suffix('p').unwrap().parse().unwrap();
    let pages: Vec<u64> = cells.iter().map(pages).collect();
    assert!(pages.iter().all(|pages| (2048..=16384).contains(pages)));
    let below = pages.iter().filter(|pages| **pages < 5793).count();
    assert!((70..130).contains(&below), "half below the middle: {below}");
    for swappiness in ["0", "1", "2"] {
        assert!(
            cells
                .iter()
                .any(|cell| cell["set.swappiness"] == swappiness)
        );
    }
    assert_eq!(lines(&text(3)), lines(&text(3)));
    assert_ne!(lines(&text(3)), lines(&text(4)));
    let few = "[[grid]]\ndraw = 9\nworkload = ['kv', 'loop']\npolicy = 'classic'";
    assert_eq!(lines(few).len(), 2, "there are no more");
}

#[test]
fn mistakes_are_told() {
    for (text, expected) in [
        ("", "no [[grid]]"),
        ("grid = 1", "write [[grid]]"),
        ("[[grid]]\nworkload = 'kv'", "no policy"),
        ("[[grid]]\nworklod = 'kv'", "did you mean `workload`"),
        ("[[grid]]\npolicy = 'a'", "no workload, and no trace"),
        (
            "[[grid]]\nworkload = 'a'\ntrace = 'b'\npolicy = 'c'",
            "not both",
        ),
        ("[[grid]]\nset = 1", "set.NAME"),
        ("[[grid]]\nworkload = []", "workload has no value"),
        (
            "[[grid]]\nworkload = 'x*y'\npolicy = 'a'",
            "no file matches",
        ),
        ("[[grid]]\nmemory = { from = 1 }", "a range is"),
        ("[[grid]]\nmemory = { from = 2, to = 1 }", "a range is"),
        (
            "[[grid]]\nmemory = { from = 0, to = 1, scale = 'log' }",
            "a range is",
        ),
        ("[[grid]]\nmemory = { from = '1M', to = 9 }", "a range is"),
        (
            "[[grid]]\nworkload = 'kv'\npolicy = 'a'\nmemory = { from = 1, to = 2 }",
            "give the [[grid]] `draw`",
        ),
        (
            "[[grid]]\nworkload = 'kv'\npolicy = 'a'\n[[skip]]\npolicy = 'a'",
            "every cell",
        ),
        ("[[grid]]\ndraw = -1", "draw is a number"),
        ("[[grid]]\ndraw = 0", "draw is a number from 1 to"),
        ("[[grid]", "line 1, column"),
    ] {
        let error = cells(text).err().unwrap().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
