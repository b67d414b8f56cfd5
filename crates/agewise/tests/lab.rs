// SPDX-License-Identifier: Apache-2.0
//! `agewise lab` as a program: its output, what it refuses, and that it is deterministic.

mod program;

use program::{agewise, json_lines, words};

#[test]
fn runs_print_the_same_bytes_twice() {
    for format in ["table", "json", "csv"] {
        let line = format!("lab run scan --policy classic,mglru:7.2 --seeds 2 --format {format}");
        let args = words(&line);
        let (ok, first, _) = agewise(&args);
        assert!(ok);
        assert!(
            first.contains("major_faults") && first.contains("mglru:7.2"),
            "{first}"
        );
        assert_eq!(first, agewise(&args).1);
    }
}

/// The events of one run, in the format that scripts for the kernel's tracepoints read.
#[test]
fn reclaim_is_traced_as_ftrace_prints_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    let path = file.to_str().unwrap();
    let run = |subject: &str, path: &str| {
        let policy = "--policy=classic";
        agewise(&words(&format!(
            "lab run {subject} {policy} --seeds=1 --trace-events {path}"
        )))
    };
    let (ok, plain, _) = agewise(&["lab", "run", "scan", "--policy=classic", "--seeds=1"]);
    let (traced_ok, traced, error) = run("scan", path);
    assert!(ok && traced_ok, "{error}");
    assert_eq!(plain, traced, "tracing changes nothing");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("# tracer: nop\n"), "{}", &text[..200]);
    let events = text.lines().filter(|line| !line.starts_with('#'));
    assert!(events.clone().count() > 10);
    for event in events {
        let (head, body) = event.split_once(": ").unwrap();
        assert!(head.contains(" [000] ..... "), "{event}");
        assert!(body.starts_with("mm_vmscan_"), "{event}");
    }
    let (ok, out, error) = run("scan", "/nonexistent/trace");
    assert!(
        !ok && out.is_empty() && error.contains("/nonexistent/trace"),
        "{error}"
    );
    let two = ["lab", "run", "scan", "kv", "--trace-events", path];
    assert!(agewise(&two).2.contains("one run"));
}

#[test]
fn what_is_unknown_is_told_with_the_nearest_name() {
    for (line, expected) in [
        ("lab run scam", "did you mean `scan`"),
        ("lab run nothing.toml", "nothing.toml"),
        ("lab run kv --policy mglru:7.3", "did you mean `mglru:7.2`"),
        ("lab run kv --set swapiness=3", "did you mean `swappiness`"),
        ("lab run kv --set swappiness=300", "0 to 200"),
        ("lab run kv --swap nvmee", "did you mean `nvme`"),
        ("lab run kv --memory 100K", "512 KiB"),
        ("lab run kv --memory much", "not a size"),
        ("lab inspect kv --at 2", "not a duration"),
        (
            "lab inspect kv --at 1ms --file /proc/vmstats",
            "/proc/vmstat",
        ),
        (
            "lab verify-kernel --reference /nonexistent.csv",
            "/nonexistent.csv",
        ),
    ] {
        let (ok, _, error) = agewise(&words(line));
        assert!(!ok && error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn the_machine_shows_its_files() {
    let (ok, text, _) = agewise(&["lab", "inspect", "kv", "--at", "20ms"]);
    assert!(ok && text.starts_with("memcg 1 /\n node     0\n"), "{text}");
    assert!(text.contains("memcg 2 /workload"), "{text}");
    let args = words(
        "lab inspect kv --at 20ms --policy mglru:6.12 --write \
             /sys/kernel/mm/lru_gen/min_ttl_ms=5 --file \
             /sys/kernel/mm/lru_gen/min_ttl_ms",
    );
    assert_eq!(agewise(&args).1, "8\n");
    let refused = words("lab inspect kv --at 1ms --write /sys/kernel/debug/lru_gen=x");
    assert!(agewise(&refused).2.contains("EINVAL"));
}

#[test]
fn everything_is_listed() {
    let (ok, text, _) = agewise(&["lab", "list"]);
    assert!(ok);
    for name in [
        "anon-zipf-099",
        "mglru:v6",
        "hdd",
        "stat_flush_us",
        "stall_full_ms",
    ] {
        assert!(text.contains(name), "{name}");
    }
}

/// Two row sets in the format of the reference: measured in guests with Linux 7.2 and 6.12.
const REFERENCE: &str = "\
kver,nomadv,rep,lru_gen_enabled,limit_bytes,phase,pattern,npages,hot,theta,seed,touches,misses,elapsed,pgscan,tracehash,err
7.2.12+deb13-cloud,0,1,0x0007,33554432,populate,file-zipf,16384,0,0.99,12345,16384,0,4.6,8247,255ba275b9a4968d,0
7.2.12+deb13-cloud,0,1,0x0007,33554432,warm,file-zipf,16384,0,0.99,12345,50000,6755,4.2,6794,255ba275b9a4968d,0
7.2.12+deb13-cloud,0,1,0x0007,33554432,main,file-zipf,16384,0,0.99,12345,200000,21557,12.4,21560,255ba275b9a4968d,0
6.12.117+deb12-cloud,0,1,0x0000,33554432,populate,file-zipf,16384,0,0.99,12345,16384,0,3.4,8260,255ba275b9a4968d,0
6.12.117+deb12-cloud,0,1,0x0000,33554432,warm,file-zipf,16384,0,0.99,12345,50000,6544,2.2,6531,255ba275b9a4968d,0
6.12.117+deb12-cloud,0,1,0x0000,33554432,main,file-zipf,16384,0,0.99,12345,200000,19982,10.8,20015,255ba275b9a4968d,0
";

#[test]
fn a_reference_is_verified_line_by_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("reference.csv");
    std::fs::write(&path, REFERENCE).expect("written");
    let path = path.to_str().expect("a plain path");
    let line = format!("lab verify-kernel --reference {path} --format json");
    let args = words(&line);
    let (ok, text, error) = agewise(&args);
    assert!(ok, "{text}{error}");
    let rows = json_lines(&text);
    assert_eq!(rows.len(), 6);
    let main = &rows[2];
    let keys: Vec<&String> = main.as_object().expect("an object").keys().collect();
    assert_eq!(keys.len(), 28, "{keys:?}");
    assert_eq!(
        (&main["kernel"], &main["lru_gen"]),
        (&"7.2".into(), &7.into())
    );
    let simulated = main["misses_sim"].as_u64().expect("a count");
    assert!((21_000..22_000).contains(&simulated), "{simulated}");
    let (_, only, _) = agewise(&[&args[..], &["--kernel", "6.12"]].concat());
    assert_eq!(only.lines().count(), 3);
    std::fs::write(
        path,
        REFERENCE.replace("255ba275b9a4968d", "255ba275b9a4968e"),
    )
    .expect("written");
    let (ok, _, error) = agewise(&args);
    assert!(!ok && error.contains("trace hash"), "{error}");
}

/// A trace is a workload like any other: the same fields, the same bytes twice, and misses as
/// counted by hand where memory suffices.
#[test]
fn traces_run_as_workloads_do() {
    let directory = tempfile::tempdir().expect("a place for files");
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    let pages: String = (0..30_000u64)
        .map(|n| format!("{}\n", n * n % 1009))
        .collect();
    std::fs::write(path("one.trace"), pages).expect("written");
    let csv: String = (0..4000u64)
        .map(|n| {
            let (page, class) = (n % 1000, if n % 2 == 0 { "anon" } else { "file" });
            format!("{},{page},w,{},{class}\n", n * 1_000_000, 7 + n % 2)
        })
        .collect();
    std::fs::write(
        path("two.csv"),
        format!("time_ns,page,kind,process,class\n{csv}"),
    )
    .expect("written");
    let pattern = path("*.[ct]*");
    let args = |format| {
        let policies = "--policy classic,mglru:7.2";
        format!("lab run {pattern} {policies} --memory 200% --format {format}")
    };
    let run = |format| {
        let (ok, out, errors) = agewise(&words(&args(format)));
        assert!(ok, "{errors}");
        out
    };
    let json = run("json");
    assert_eq!(json, run("json"));
    let value = |workload: &str, measure: &str| {
        let line = json.lines().find(|line| {
            line.contains(&format!(
                "\"workload\":\"{workload}\",\"policy\":\"mglru:7.2\""
            )) && line.contains(&format!("\"measure\":\"{measure}\""))
        });
        let line: serde_json::Value = serde_json::from_str(line.expect(measure)).expect("JSON");
        line["mean"].as_f64().expect("a number")
    };
    // Squares modulo a prime: half of the residues and 0, each read once from the file.
    assert_eq!(value("one", "accesses"), 30_000.0);
    assert_eq!(value("one", "file_in"), 505.0);
    assert_eq!(value("one", "swap_out"), 0.0);
    // Half of the pages are anonymous; the others are written through a descriptor. One access per
    // millisecond: times are kept.
    assert_eq!(value("two", "minor_faults"), 500.0);
    assert!((3999.0..4100.0).contains(&value("two", "time_ms")));
    let text = run("text");
    assert!(text.contains("trace two, memory") && text.contains("500 anonymous; 500 of files"));
    assert_eq!(run("csv").matches("workload,policy").count(), 1);
}

/// What a trace recorded by interval does not record is reported, and its effect is shown.
#[test]
fn an_order_that_is_not_known_is_said_and_measured() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/sqlite.pages");
    let line = format!("lab run {trace} --memory 40% --policy mglru:7.2");
    let args = words(&line);
    let (ok, text, errors) = agewise(&args);
    assert!(ok, "{errors}");
    assert!(
        text.contains("order inside an interval (50 ms) is not known"),
        "{text}"
    );
    let faults = text.lines().find(|line| line.starts_with("major_faults"));
    assert!(faults.expect("a row").contains(" to "), "{text}");
    let one = |order: &str, seed: &str| {
        let more = ["--order", order, "--seeds", seed, "--format", "csv"];
        agewise(&[&args[..], &more].concat()).1
    };
    assert_ne!(one("forward", "1"), one("reverse", "1"));
    let (ok, out, errors) = agewise(&["lab", "inspect", trace, "--at", "1s", "--memory", "40%"]);
    assert!(
        ok && out.contains("memcg") && out.contains("/workload"),
        "{errors}"
    );
}

/// The fields of `lab reproduce --format json`, and a claim that is reproduced.
#[test]
fn documents_are_reproduced_with_verdicts() {
    let (ok, said, _) = agewise(&["lab", "reproduce"]);
    assert!(ok && said.contains("refault-distance: ") && said.contains("loop-twice/classic"));
    let args = |format| {
        let what = "refault-distance --benchmark loop-longer/classic";
        format!("lab reproduce {what} --seeds 2 --format {format}")
    };
    let (ok, said, _) = agewise(&words(&args("json")));
    assert!(ok);
    assert_eq!(
        agewise(&words(&args("json"))).1,
        said,
        "the same bytes twice"
    );
    let (row, summary) = said.trim().split_once('\n').expect("a row and the summary");
    assert!(
        summary.contains("\"claims\":0"),
        "the document has no figure: {summary}"
    );
    let row: serde_json::Value = serde_json::from_str(row).expect("a line of JSON");
    for field in [
        "benchmark",
        "document_before",
        "document_after",
        "ours_before",
        "ours_after",
        "change",
        "ci_low",
        "ci_high",
        "verdict",
    ] {
        assert!(row.get(field).is_some(), "{field} in {row}");
    }
    assert_eq!(row["benchmark"], "loop-longer/classic");
    assert_eq!(row["ours_before"], 0.0);
    assert_eq!(row["verdict"], "own");
    let (ok, said, _) = agewise(&words(&args("csv")));
    assert!(ok && said.lines().count() == 2, "{said}");
    assert!(said.starts_with("benchmark,document_before,document_after,ours_before,"));
    let (ok, said, _) = agewise(&words(&args("text")));
    assert!(
        ok && said.contains("four of five are ten times too large"),
        "{said}"
    );
    for (wrong, expected) in [
        ("refault-distnace", "did you mean `refault-distance`"),
        (
            "refault-distance --benchmark loop-twcie/classic",
            "did you mean `loop-twice/classic`",
        ),
        (
            "refault-distance --variant rd-activ",
            "did you mean `rd-active`",
        ),
        ("refault-distance --seeds 0", "1..=100000"),
    ] {
        let (ok, _, error) = agewise(&words(&format!("lab reproduce {wrong}")));
        assert!(!ok && error.contains(expected), "{error}");
    }
}

/// On a machine with several zones, each zone has its own measures beside those of the machine.
#[test]
fn zones_are_measured_one_by_one() {
    let args = words("lab run aging --policy classic+zone,classic --seeds 1");
    let (ok, said, error) = agewise(&[&args[..], &["--format", "json"]].concat());
    assert!(ok, "{error}");
    let rows = json_lines(&said);
    let value = |policy: &str, measure: &str| {
        let is_it = |row: &&serde_json::Value| row["policy"] == policy && row["measure"] == measure;
        let row = rows
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("no {measure}"));
        row["mean"].as_f64().expect("a number")
    };
    let of = |policy: &str, zone: &str, what: &str| value(policy, &format!("zone_{zone}_{what}"));
    for policy in ["classic+zone", "classic"] {
        for zone in ["dma32", "normal"] {
            let listed: f64 = [
                "inactive_file",
                "active_file",
                "inactive_anon",
                "active_anon",
            ]
            .iter()
            .map(|list| of(policy, zone, list))
            .sum();
            let held = of(policy, zone, "allocated") - of(policy, zone, "evicted_file");
            assert!(
                held >= listed && listed > 0.0,
                "{policy} {zone}: {listed} of {held}"
            );
        }
        assert!(of(policy, "normal", "residency_file_ms") > 0.0);
    }
    // With lists per node, pages of all zones leave at the same age. With lists per zone and
    // allocation from the highest zone first, pages once allocated in the lower zone stay there.
    let lower = of("classic", "dma32", "residency_file_ms");
    let higher = of("classic", "normal", "residency_file_ms");
    assert!(
        (lower / higher - 1.0).abs() < 0.05,
        "{lower} and {higher} ms"
    );
    assert_eq!(of("classic+zone", "dma32", "evicted_file"), 0.0);
    let (ok, said, _) = agewise(&["lab", "run", "kv", "--policy", "classic", "--seeds", "1"]);
    assert!(
        ok && !said.contains("zone_"),
        "one zone is the machine: {said}"
    );
}

/// Random machines pass all checks; a case from a file is replayed, and errors in it are reported.
#[test]
fn machines_at_random_agree() {
    let (worked, out, error) = agewise(&["lab", "fuzz", "--cases=20", "--format=json"]);
    assert!(worked, "{error}");
    let outcome: serde_json::Value = serde_json::from_str(&out).expect("json");
    assert_eq!(outcome["passed"], 20);
    assert!(outcome["what"].is_null());
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("one.case");
    let machine = r#"{"policy":"mglru","pages":600,"swap":null,"seed":1}"#;
    let steps = r#"{"process":{"group":0}}
{"map":{"process":0,"pages":900,"huge":false,"locked":false}}
{"touch":{"process":0,"range":0,"from":0,"pages":900,"write":true}}"#;
    std::fs::write(&path, format!("{machine}\n{steps}\n")).expect("written");
    let (worked, out, error) = agewise(&["lab", "fuzz", path.to_str().expect("UTF-8")]);
    assert!(worked && out.contains("nothing disagreed"), "{out}{error}");
    std::fs::write(&path, format!("{machine}\n{{\"spoon\":{{}}}}\n")).expect("written");
    let (worked, _, error) = agewise(&["lab", "fuzz", path.to_str().expect("UTF-8")]);
    assert!(!worked && error.contains("line 2: unknown"), "{error}");
}
