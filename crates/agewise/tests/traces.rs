// SPDX-License-Identifier: Apache-2.0
//! `agewise trace`, `agewise lab curve` and `agewise lab verify-policies` as programs.

mod program;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin;
use program::{json_lines, words};
use serde_json::Value;
use tempfile::TempDir;

/// Belady's string: FIFO misses 9 times with 3 pages and 10 times with 4.
const BELADY: &str = "1\n2\n3\n4\n1\n2\n5\n1\n2\n3\n4\n5\n";

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        fs::write(self.at(name), content).unwrap();
        self.at(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(cargo_bin("agewise"))
            .args(arguments)
            .current_dir(self.0.path())
            .output()
            .unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn error(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }
}

fn reference(place: &Place, fifo_at_4: u64) {
    place.file("t.trace", BELADY);
    place.file(
        "m.csv",
        "file,trace_name,format\nt.trace,t,\"text, one block number per line\"\n",
    );
    place.file(
        "r.csv",
        &format!(
            "trace_name,cache_size,policy,misses,note\nt,3,fifo,9,\nt,4,fifo,{fifo_at_4},\n\
             t,4,lru,8,\nt,4,belady,6,\nt,4,wtinylfu,12,\"DEGENERATE: window, of nothing\"\n\
             t,4,caffeine:adaptive.Car,7,\n"
        ),
    );
}

const VERIFY: &str = "lab verify-policies --traces . --manifest m.csv --reference r.csv";

#[test]
fn verify_policies_judges_every_row() {
    let place = Place::new();
    reference(&place, 10);
    let json = place.ok(&words(&format!("{VERIFY} --format json")));
    let rows = json_lines(&json);
    assert_eq!(rows.len(), 6);
    let fields = [
        "trace",
        "cache_size",
        "policy",
        "misses",
        "reference",
        "deviation",
        "within",
    ];
    for row in &rows {
        assert!(fields.iter().all(|field| row.get(field).is_some()), "{row}");
    }
    assert_eq!(rows[1]["misses"], 10);
    assert_eq!(rows[1]["deviation"], 0.0);
    assert_eq!(rows[1]["within"], true);
    assert_eq!(rows[4]["standing"], "degenerate");
    assert_eq!(rows[5]["misses"], Value::Null);
    // The same bytes for any number of threads.
    assert_eq!(
        place.ok(&words(&format!("{VERIFY} --format json --jobs 1"))),
        json
    );
    let text = place.ok(&words(VERIFY));
    assert!(
        text.contains("4 of 4 judged rows within tolerance"),
        "{text}"
    );
    let csv = place.ok(&words(&format!("{VERIFY} --format csv --policy lru")));
    assert!(
        csv.starts_with("trace,cache_size,policy,misses,reference,") && csv.contains("t,4,lru,8,8")
    );
}

#[test]
fn verify_policies_fails_when_a_row_is_off() {
    let place = Place::new();
    reference(&place, 11);
    let output = place.run(&words(VERIFY));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("beyond: fifo t at 4 pages: 10 misses, reference 11"),
        "{text}"
    );

    place.file("m.csv", "file,trace_name,format\nother.trace,u,lirs\n");
    assert!(
        place
            .error(&words(VERIFY))
            .contains("no trace of this name")
    );
    place.file("m.csv", "file,trace_name,format\nother.trace,t,lirs\n");
    assert!(place.error(&words(VERIFY)).contains("other.trace"));
}

#[test]
fn curves_in_every_form() {
    let place = Place::new();
    place.file("t.trace", BELADY);
    let arguments = [
        "lab", "curve", "t.trace", "--policy", "fifo,opt", "--sizes", "3,4",
    ];
    let with = |more: &[&str]| place.ok(&[&arguments[..], more].concat());
    let points = json_lines(&with(&["--format", "json"]));
    let misses: Vec<_> = points
        .iter()
        .map(|point| point["misses"].as_u64().unwrap())
        .collect();
    assert_eq!(misses, [9, 10, 7, 6]);
    assert_eq!(points[0]["sampling_rate"], Value::Null);
    let text = with(&words("--html c.html --svg c.svg --parquet c.parquet"));
    assert!(
        text.contains("12 accesses, 5 pages") && text.contains("0.833333"),
        "{text}"
    );
    assert!(
        fs::read_to_string(place.at("c.html"))
            .unwrap()
            .contains("[3,0.75000000,")
    );
    assert!(
        fs::read_to_string(place.at("c.svg"))
            .unwrap()
            .starts_with("<svg")
    );
    assert!(
        fs::read(place.at("c.parquet"))
            .unwrap()
            .starts_with(b"PAR1")
    );
    assert_eq!(with(&["--format", "csv"]).lines().count(), 5);

    let sampled = words("--sampled --rate 0.2 --samples 5 --format json");
    let output = place.run(&[&arguments[..], &sampled].concat());
    assert!(output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("only"),
        "too few pages are reported"
    );
    assert!(
        place
            .error(&["lab", "curve", "t.trace", "--policy", "nothing"])
            .contains("lirs")
    );
}

#[test]
fn traces_are_converted_and_keep_what_they_say() {
    let place = Place::new();
    let ok = |arguments: &str| place.ok(&words(arguments));
    let text = "time_ns,page,count,kind,process,class\n5,7,3,w,12,anon\n1000000000,1,1,r,13,file\n";
    place.file("t.csv", text);
    place.ok(&["trace", "convert", "t.csv", "t.pagetrace"]);
    // One more column says how each access is known; it is empty for observed ones.
    let cat = place.ok(&["trace", "cat", "t.pagetrace", "--format", "csv"]);
    let expected: String = text
        .lines()
        .map(|line| {
            if line.starts_with("time_ns") {
                format!("{line},evidence\n")
            } else {
                format!("{line},\n")
            }
        })
        .collect();
    assert_eq!(cat, expected);
    let later = ok("trace cat t.pagetrace --from 1s --format json");
    assert_eq!(json_lines(&later)[0]["page"], 1);
    assert_eq!(json_lines(&later).len(), 1);

    ok("trace convert t.pagetrace t.lirs.gz --to lirs");
    let info = json_lines(&place.ok(&["trace", "info", "t.lirs.gz", "--format", "json"]));
    assert_eq!(
        (&info[0]["accesses"], &info[0]["compression"]),
        (&4.into(), &"gzip".into())
    );
    assert_eq!(info[0]["sequential"], 2);

    ok("trace convert t.pagetrace t.oracleGeneral.zst --to oracleGeneral");
    let info = json_lines(&place.ok(&["trace", "info", "t.oracleGeneral.zst", "--format", "json"]));
    assert_eq!(info[0]["trace_format"], "oracleGeneral");
    assert_eq!(info[0]["last_time_ns"], 1_000_000_000);
    // As CSV a page trace keeps its header, and becomes the same file again; the CSV of a trace in
    // another format needs none.
    ok("trace convert t.pagetrace back.csv --to csv");
    ok("trace convert back.csv back.pagetrace");
    assert_eq!(
        fs::read(place.at("back.pagetrace")).unwrap(),
        fs::read(place.at("t.pagetrace")).unwrap()
    );
    ok("trace convert t.csv plain.csv --to csv");
    assert_eq!(fs::read_to_string(place.at("plain.csv")).unwrap(), text);
    assert!(
        place
            .error(&["trace", "convert", "t.csv", "./t.csv"])
            .contains("same file")
    );
}

#[test]
fn a_trace_that_was_cut_off_is_read_and_said_to_be() {
    let place = Place::new();
    let pages: String = (0..100_000u64)
        .map(|n| format!("{}\n", n * n % 5003))
        .collect();
    place.file("t.trace", &pages);
    place.ok(&["trace", "convert", "t.trace", "t.pagetrace"]);
    let whole = fs::read(place.at("t.pagetrace")).unwrap();
    fs::write(place.at("t.pagetrace"), &whole[..whole.len() / 2]).unwrap();
    let info = place.ok(&["trace", "info", "t.pagetrace", "--format", "json"]);
    assert!((1..100_000).contains(&json_lines(&info)[0]["accesses"].as_u64().unwrap()));
    for arguments in [
        "trace info t.pagetrace",
        "lab curve t.pagetrace --policy lru --points 2 --format json",
        "lab run t.pagetrace --policy classic --seeds 1 --format json",
        "lab inspect t.pagetrace --at 1ms",
        "lab whatif t.pagetrace --format csv",
        "size t.pagetrace --format json",
    ] {
        let output = place.run(&words(arguments));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {said}");
        assert!(said.matches("cut off").count() == 1, "{arguments}: {said}");
    }
    fs::write(place.at("t.pagetrace"), &whole[..100]).unwrap();
    let said = place.run(&["trace", "info", "t.pagetrace"]).stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(
        said.contains("no requests") && said.contains("cut off after byte"),
        "{said}"
    );
}

#[test]
fn a_bad_output_is_known_before_the_work() {
    let place = Place::new();
    place.file("there.case", "mine");
    for (arguments, expected) in [
        ("lab curve none.trace --svg none/a.svg", "none/a.svg"),
        ("lab curve none.trace --png none/a.png", "none/a.png"),
        ("lab curve none.trace --html none/a.html", "none/a.html"),
        (
            "lab curve none.trace --parquet none/a.parquet",
            "none/a.parquet",
        ),
        ("lab damon none.trace --plot none/a.svg", "none/a.svg"),
        ("lab fuzz --cases 1 --out none/a.case", "none/a.case"),
        ("lab fuzz --cases 1 --out there.case", "there.case exists"),
    ] {
        let output = place.run(&words(arguments));
        assert_eq!(output.status.code(), Some(1), "{arguments}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(expected), "{arguments}: {said}");
    }
    // Nor does one that fails leave anything.
    place.run(&["lab", "curve", "none.trace", "--svg", "a.svg"]);
    place.run(&["trace", "convert", "none.trace", "a.pages"]);
    let names: Vec<_> = fs::read_dir(place.at(".")).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn an_interrupted_sample_is_not_taken_for_a_whole_one() {
    let place = Place::new();
    let pages: String = (0..300_000u64).map(|n| format!("{n}\n")).collect();
    place.file("t.trace", &pages.repeat(10));
    place.file("s.pages", "before");
    let arguments = words("trace sample t.trace s.pages --rate 1 --no-check");
    let mut command = Command::new(cargo_bin("agewise"));
    let mut child = command
        .args(arguments)
        .current_dir(place.at("."))
        .spawn()
        .unwrap();
    while !place.at("s.pages.part").exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().unwrap();
    assert!(
        !child.wait().unwrap().success(),
        "it ended before it was killed"
    );
    assert_eq!(fs::read(place.at("s.pages")).unwrap(), b"before");
}

#[test]
fn samples_tell_their_error() {
    let place = Place::new();
    let pages: String = (0..60_000u64)
        .map(|n| format!("{}\n", n * n % 9973))
        .collect();
    place.file("t.trace", &pages);
    let told = place.ok(&["trace", "sample", "t.trace", "s.pagetrace", "--rate", "0.2"]);
    assert!(
        told.contains("accesses kept") && told.contains("at worst, over 32 sizes"),
        "{told}"
    );
    let info = json_lines(&place.ok(&["trace", "info", "s.pagetrace", "--format", "json"]));
    let footprint = info[0]["footprint_pages"].as_u64().unwrap();
    assert!(
        (800..1200).contains(&footprint),
        "{footprint} of 4987 pages"
    );
}

#[test]
fn bad_input_is_told_with_file_and_place() {
    let place = Place::new();
    place.file("t.trace", "1\n2\nthree\n");
    let told = |arguments: &[&str]| place.error(arguments);
    let message = told(&["trace", "info", "t.trace", "--trace-format", "lirs"]);
    assert!(
        message.contains("t.trace") && message.contains("byte 4 (line 3)"),
        "{message}"
    );
    assert!(told(&["trace", "info", "t.trace"]).contains("cannot tell its format"));
    assert!(told(&["trace", "info", "t.trace", "--trace-format", "x"]).contains("oracleGeneral"));
    assert!(told(&["trace", "info", "no.trace"]).contains("no.trace"));
    place.file("e.trace", "*\n");
    assert!(told(&["trace", "info", "e.trace"]).contains("no requests"));
    place.file("a.lis", "1 -5 0 0\n");
    assert!(told(&["lab", "curve", "a.lis"]).contains("-5 is negative"));
    assert!(told(&["trace", "info", Path::new("/").to_str().unwrap()]).contains("directory"));
}

/// Blocks are read through a descriptor, so page tables show nothing of them.
#[test]
fn an_agent_that_could_see_nothing_is_refused() {
    let place = Place::new();
    place.file("t.lis", "1 4 0 0\n9 4 0 0\n1 4 0 0\n");
    let run = ["lab", "run", "t.lis", "--seeds", "1", "--proactive", "cost"];
    let blind = [&run[..], &["--sight", "page-tables"]].concat();
    let message = place.error(&blind);
    assert!(message.contains("nothing of it is mapped"), "{message}");
    place.ok(&[&blind[..], &["--access", "mapped"]].concat());
    place.ok(&[&run[..], &["--sight", "generations"]].concat());
    place.ok(&run);
}

/// Makes traces that are damaged, each in its way.
fn damaged(place: &Place) {
    let pages: String = (0..20_000u64)
        .map(|n| format!("{}\n", n * n % 5003))
        .collect();
    place.file("t.trace", &pages);
    place.ok(&words(
        "trace convert t.trace t.oracleGeneral --to oracleGeneral",
    ));
    place.ok(&["trace", "convert", "t.trace", "t.lirs.gz", "--to", "lirs"]);
    place.ok(&["trace", "convert", "t.trace", "t.lirs.zst", "--to", "lirs"]);
    let part = |of: &str, name: &str, bytes: usize| {
        let whole = fs::read(place.at(of)).unwrap();
        fs::write(place.at(name), &whole[..bytes.min(whole.len() / 2)]).unwrap();
    };
    part("t.oracleGeneral", "cut.oracleGeneral", 24 * 10 + 7);
    part("t.lirs.gz", "cut.lirs.gz", usize::MAX);
    part("t.lirs.zst", "cut.lirs.zst", usize::MAX);
    fs::write(
        place.at("garbage.gz"),
        b"\x1f\x8b\x08\x00garbage that is no deflate",
    )
    .unwrap();
    fs::write(
        place.at("garbage.xz"),
        b"\xfd7zXZ\x00garbage that is no xz at all",
    )
    .unwrap();
    fs::write(
        place.at("garbage.zst"),
        b"\x28\xb5\x2f\xfdgarbage that is no zstd",
    )
    .unwrap();
    place.file("huge.lis", "1 99999999999 0 0\n");
    place.file("overflow.lis", "18446744073709551615 8 0 0\n");
    place.file("long.lis", "1 18446744073709551616 0 0\n");
    place.file("negative.lis", "5 1 0 0\n-3 1 0 0\n");
    place.file("none.trace", "");
}

/// Invalid traces of every kind: each error names the file, and the place in it if there is one.
#[test]
fn damage_of_every_kind_is_an_error_with_the_place() {
    let place = Place::new();
    damaged(&place);
    for (name, format, expected) in [
        (
            "cut.oracleGeneral",
            None,
            "truncated oracleGeneral: the record at byte 240 has 7 of 24",
        ),
        ("cut.lirs.gz", None, "of its gzip data"),
        ("cut.lirs.zst", None, "of its zstd data"),
        ("garbage.gz", Some("lirs"), "of its gzip data"),
        ("garbage.xz", Some("lirs"), "of its xz data"),
        ("garbage.zst", Some("lirs"), "of its zstd data"),
        ("huge.lis", None, "99999999999"),
        ("overflow.lis", None, "64 bits"),
        ("long.lis", None, "does not fit in 64 bits"),
        ("negative.lis", None, "byte 8 (line 2): -3 is negative"),
        ("none.trace", Some("lirs"), "no requests"),
        ("none.trace", None, "the file is empty"),
        ("t.trace", Some("arc"), "not valid arc at byte 0 (line 1)"),
        ("t.trace", Some("page"), "not page"),
        ("t.lirs.gz", Some("lackey"), "not valid lackey"),
    ] {
        for command in [&["trace", "info"][..], &["lab", "curve"], &["lab", "run"]] {
            let mut arguments = command.to_vec();
            arguments.push(name);
            arguments.extend(
                format
                    .into_iter()
                    .flat_map(|format| ["--trace-format", format]),
            );
            let message = place.error(&arguments);
            assert!(message.contains(name), "{arguments:?}: {message}");
            assert!(message.contains(expected), "{arguments:?}: {message}");
            assert!(!message.contains("panicked"), "{arguments:?}: {message}");
        }
    }
    let full = place.error(&["trace", "convert", "t.trace", "/dev/full", "--to", "page"]);
    assert!(
        full.contains("/dev/full") && full.contains("space"),
        "{full}"
    );
}
