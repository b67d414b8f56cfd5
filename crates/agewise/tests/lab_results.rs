// SPDX-License-Identifier: Apache-2.0
//! Results of the lab describe what was run, can be repeated, and can be compared.

mod program;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use program::{agewise, words};

/// A directory with a trace and the results made from it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().expect("a directory"));
        let pages: String = (0..20_000u64)
            .map(|n| format!("{}\n", n * n % 1009 + n % 7))
            .collect();
        fs::write(place.at("one.trace"), pages).expect("written");
        let workload = program::small_workload(20_000);
        fs::write(place.at("small.toml"), workload).expect("written");
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the command and stores its output in a file of that name.
    fn result(&self, name: &str, arguments: &[&str]) -> String {
        let file = fs::File::create(self.at(name)).expect("a file");
        let status = Command::new(assert_cmd::cargo::cargo_bin("agewise"))
            .args(arguments)
            .current_dir(self.0.path())
            .stdout(Stdio::from(file))
            .status();
        assert!(status.expect("a program").success(), "{arguments:?}");
        self.at(name).to_string_lossy().into_owned()
    }

    /// Runs the command in the directory: whether it succeeded, standard output and standard error.
    fn run(&self, arguments: &[&str]) -> (bool, String, String) {
        let output = Command::new(assert_cmd::cargo::cargo_bin("agewise"))
            .args(arguments)
            .current_dir(self.0.path())
            .output()
            .expect("a program");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.success(),
            text(&output.stdout),
            text(&output.stderr),
        )
    }
}

/// A run with all that a result has to describe.
fn run_and(format: &str) -> Vec<&str> {
    let run = "lab run small.toml one.trace --policy classic+zone,mglru --proactive age:50ms/100ms \
               --memory 400p --set swappiness=10 --seeds 2 --access mapped --format";
    words(run).into_iter().chain([format]).collect()
}

fn sha256sum(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output();
    let text = String::from_utf8(output.expect("sha256sum").stdout).expect("text");
    text.split(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn every_row_says_what_was_run() {
    let place = Place::new();
    let path = place.result("r.json", &run_and("json"));
    let text = fs::read_to_string(path).expect("text");
    let row = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    let last = row(text.lines().last().expect("rows"));
    for (field, value) in [
        ("workload", "one"),
        ("policy", "mglru:7.2+age:50ms/100ms"),
        ("agent", "age:50ms/100ms"),
        ("swap", "zram"),
        ("settings", "swappiness=10"),
        ("seeds", "1-2"),
        ("options", "access=mapped"),
        ("source", "one.trace"),
        ("source_sha256", &sha256sum(&place.at("one.trace"))),
        ("version", env!("CARGO_PKG_VERSION")),
    ] {
        assert_eq!(last[field], value, "{field}");
    }
    assert_eq!(last["memory_bytes"], 400 * 4096);
    assert!(last["damon"].is_null() && last["build"].is_string());
    let first = row(text.lines().next().expect("rows"));
    assert_eq!(first["policy"], "classic+zone");
    assert!(first["agent"].is_null());
    let csv = place.result("r.csv", &run_and("csv"));
    let csv = fs::read_to_string(csv).expect("text");
    let header = csv.lines().next().expect("a header");
    let of_json: Vec<String> = text
        .lines()
        .next()
        .expect("rows")
        .split(",\"")
        .map(|part| {
            part.split('"')
                .find(|name| name.len() > 1 || *name == "n" || *name == "p")
        })
        .map(|name| name.unwrap_or_default().to_owned())
        .collect();
    assert_eq!(header.split(',').collect::<Vec<_>>(), of_json);
}

#[test]
fn results_are_shown_and_run_again() {
    let place = Place::new();
    for format in ["json", "csv", "parquet"] {
        let name = format!("r.{format}");
        place.result(&name, &run_and(format));
        let (ok, said, error) = place.run(&["lab", "show", &name]);
        assert!(ok, "{error}");
        for expected in [
            "run of small",
            "run of one",
            "classic+zone, classic+zone+age:50ms/100ms, mglru:7.2, mglru:7.2+age:50ms/100ms",
            "(400 pages)",
            "swappiness=10",
            "1-2",
        ] {
            assert!(said.contains(expected), "{format}: {said}");
        }
        let (ok, said, error) = place.run(&["lab", "rerun", &name]);
        assert!(
            ok && said.starts_with("the same "),
            "{format}: {said}{error}"
        );
    }
    let (_, of_csv, _) = place.run(&["lab", "show", "r.csv", "--format", "json"]);
    let (_, of_parquet, _) = place.run(&["lab", "show", "r.parquet", "--format", "json"]);
    assert_eq!(of_csv, of_parquet, "each form holds the whole of it");
}

#[test]
fn curves_are_run_again() {
    let place = Place::new();
    let curve = words("lab curve one.trace --policy lru,reuse:look=0.5 --points 5");
    let sampled = ["--sampled", "--rate", "0.3", "--samples", "2"];
    for (name, more) in [
        ("c.json", vec!["--format", "json"]),
        ("c.csv", [&["--format", "csv"][..], &sampled].concat()),
    ] {
        place.result(
            name,
            &[&curve[..], &["--parquet", "c.parquet"], &more].concat(),
        );
        for name in [name, "c.parquet"] {
            let (ok, said, error) = place.run(&["lab", "rerun", name]);
            assert!(ok && said.starts_with("the same "), "{name}: {said}{error}");
            let (_, said, _) = place.run(&["lab", "show", name]);
            assert!(said.contains("lru, reuse:look=0.5"), "{said}");
        }
    }
    fs::create_dir(place.at("moved")).expect("a directory");
    fs::rename(place.at("one.trace"), place.at("moved/one.trace")).expect("moved");
    let (ok, _, error) = place.run(&["lab", "rerun", "c.json"]);
    assert!(
        !ok && error.contains("one.trace") && error.contains("--from"),
        "{error}"
    );
    let from = ["lab", "rerun", "c.json", "--from", "moved"];
    let (ok, said, error) = place.run(&from);
    assert!(ok, "{said}{error}");
    let (ok, _, error) = place.run(&[&from[..], &["--trace-memory", "1"]].concat());
    assert!(!ok && error.contains("raise --trace-memory"), "{error}");
    fs::write(place.at("moved/one.trace"), "1\n2\n").expect("changed");
    let (ok, _, error) = place.run(&from);
    assert!(
        !ok && error.contains("is not what the result is of"),
        "{error}"
    );
}

/// Results that do not have the text: csv, which escapes it.
#[test]
fn profiles_are_found_by_content() {
    let place = Place::new();
    let move_to = |from: &str, to: &str| {
        let to = place.at(to);
        fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
        fs::rename(place.at(from), to).expect("moved");
    };
    let rerun = |arguments: &[&str]| {
        let (ok, said, error) = place.run(&[&["lab", "rerun"], arguments].concat());
        assert_eq!(ok, said.starts_with("the same "), "{said}{error}");
        error
    };
    fs::create_dir(place.at("mine")).expect("a directory");
    fs::write(place.at("mine/my.toml"), "tier_gain = [1, 1]\n").expect("written");
    let hash = sha256sum(&place.at("mine/my.toml"));
    let run = "lab run one.trace --policy mglru:mine/my.toml,lru --seeds 1 --format csv";
    place.result("r.csv", &words(run));
    let curve = "lab curve one.trace --sizes 200 --policy mglru-mapped:mine/my.toml --format csv";
    place.result("c.csv", &words(curve));
    move_to("mine/my.toml", "elsewhere/renamed.toml");
    for name in ["r.csv", "c.csv"] {
        let error = rerun(&[name]);
        let expected = format!("the result needs mine/my.toml with SHA-256 {hash}: there is no");
        assert!(error.contains(&expected), "{error}");
        for from in ["elsewhere", "elsewhere/renamed.toml"] {
            assert_eq!(rerun(&[name, "--from", "mine", "--from", from]), "");
        }
    }
    // What is sent to others together is found there.
    move_to("elsewhere/renamed.toml", "sent/my.toml");
    move_to("c.csv", "sent/c.csv");
    move_to("one.trace", "sent/one.trace");
    move_to("sent/my.toml", "sent/other.toml");
    // A file that cannot be read, even by root.
    symlink("/proc/self/mem", place.at("sent/a.toml")).expect("a link");
    assert_eq!(rerun(&["sent/c.csv"]), "");
    move_to("sent/other.toml", "sent/my.toml");
    // A changed one is not used.
    let (_, said, error) = place.run(&["lab", "show", "sent/c.csv"]);
    assert_eq!(error, "");
    let profile = format!("  profile   mglru-mapped:mine/my.toml, SHA-256 {hash}\n");
    assert!(said.contains(&profile), "{said}");
    fs::write(place.at("sent/my.toml"), "tier_gain = [5, 7]\n").expect("written");
    let error = rerun(&["sent/c.csv"]);
    assert!(
        error.contains("sent/my.toml is not what the result is of"),
        "{error}"
    );
    for command in ["lab show sent/c.csv", "lab check sent/c.csv sent/c.csv"] {
        let (ok, _, error) = place.run(&words(command));
        assert!(
            ok && error.contains("sent/my.toml has changed since"),
            "{error}"
        );
    }
    fs::copy(place.at("sent/my.toml"), place.at("mine/my.toml")).expect("a file");
    let curve = curve.replace("one.trace", "sent/one.trace");
    place.result("changed.csv", &words(&curve));
    let (_, said, error) = place.run(&["lab", "check", "sent/c.csv", "changed.csv"]);
    let expected = format!("differs: profile of mglru-mapped:mine/my.toml: `{hash}` and `");
    assert!(said.contains(&expected), "{said}{error}");
}

#[test]
fn manifests_are_found_where_they_were_moved() {
    let place = Place::new();
    let manifest = "file,trace_name,format\none.trace,first,text\n";
    fs::write(place.at("list.csv"), manifest).expect("written");
    let curve = "lab curve first --manifest list.csv --sizes 200 --policy lru --format json";
    place.result("c.json", &words(curve));
    let rerun = ["lab", "rerun", "c.json", "--from", "moved/list.csv"];
    fs::create_dir(place.at("moved")).expect("a directory");
    for name in ["list.csv", "one.trace"] {
        fs::rename(place.at(name), place.at("moved").join(name)).expect("moved");
    }
    let (ok, _, error) = place.run(&rerun[..3]);
    assert!(!ok && error.contains("list.csv"), "{error}");
    let (ok, said, error) = place.run(&rerun);
    assert!(ok && said.starts_with("the same "), "{said}{error}");
}

#[test]
fn what_differs_is_said() {
    let place = Place::new();
    let run = words("lab run one.trace --policy classic --format json");
    let path = place.result("r.json", &run);
    let text = fs::read_to_string(&path).expect("text");
    let wrong = text.replacen("\"mean\":", "\"mean\":1", 1);
    fs::write(place.at("wrong.json"), wrong).expect("written");
    let (ok, said, _) = place.run(&["lab", "rerun", "wrong.json"]);
    assert!(
        !ok && said.contains("the first is row 1 (one classic accesses): mean was"),
        "{said}"
    );
    let other = text.replace("\"build\":\"", "\"build\":\"other ");
    fs::write(place.at("other.json"), other).expect("written");
    let (ok, said, error) = place.run(&["lab", "rerun", "other.json"]);
    assert!(ok && error.contains("build other "), "{said}{error}");
    for (content, expected) in [
        ("", "it is empty"),
        ("{\"a\":1}\n", "no result of `agewise lab run`"),
        ("{\"workload\":", "no result of `agewise lab run`"),
        ("workload,policy,n\nkv,classic,3\n", "row 1: missing field"),
        ("PAR1", "bad is damaged: it has no checksum"),
        ("\u{1}\u{2}", "no result of `agewise lab run`"),
    ] {
        fs::write(place.at("bad"), content).expect("written");
        let (ok, _, error) = place.run(&["lab", "show", "bad"]);
        assert!(!ok && error.contains(expected), "{content}: {error}");
    }
    assert!(
        agewise(&["lab", "show", "/nonexistent"])
            .2
            .contains("/nonexistent")
    );
}

#[test]
fn what_got_worse_is_found() {
    let place = Place::new();
    let run = words("lab run small.toml --policy classic,mglru --seeds 4");
    for format in ["json", "parquet"] {
        let more = |memory, format| [&run[..], &["--memory", memory, "--format", format]].concat();
        let less = place.result("less", &more("2M", format));
        let (ok, said, error) = place.run(&["lab", "check", &less, &less]);
        assert!(
            ok && said.contains("0 of 44 cells are worse"),
            "{said}{error}"
        );
        let has_only_means = said.contains("json and csv have only their means");
        assert_eq!(has_only_means, format == "json", "{said}");
        // The same with the slowest swap; another memory size would be another cell.
        let slow = place.result(
            "slow",
            &[&more("2M", format)[..], &["--swap", "hdd"]].concat(),
        );
        let (ok, said, error) = place.run(&["lab", "check", &less, &slow, "--budget", "5%"]);
        assert!(!ok && said.contains("differs: swap: `"), "{said}{error}");
        let is_worse = |line: &str| line.starts_with("worse: small classic 2.0 MiB time_ms: ");
        assert!(said.lines().any(is_worse), "{said}");
        let (_, said, error) = place.run(&["lab", "check", &slow, &less, "--format", "json"]);
        assert!(error.contains("differs: swap: `hdd` and `"), "{error}");
        let of_time = said
            .lines()
            .find(|line| line.contains("time_ms"))
            .expect("a cell");
        assert!(of_time.ends_with("\"worse\":false}"), "{of_time}");
        let other = place.result("other", &more("3M", format));
        let (ok, _, error) = place.run(&["lab", "check", &less, &other]);
        assert!(!ok && error.contains("in common"), "{error}");
    }
    let one_seed = words("lab run small.toml --policy classic --seeds 1 --format json");
    let one_seed = place.result("one-seed", &one_seed);
    let (_, said, _) = place.run(&["lab", "check", &one_seed, &one_seed]);
    assert!(!said.contains("only their means"), "{said}");
    let curve = words("lab curve one.trace --sizes 50 --format json --policy");
    let lru = place.result("lru", &[&curve[..], &["lru"]].concat());
    let (ok, _, error) = place.run(&["lab", "check", "less", &lru]);
    assert!(!ok && error.contains("the other of `lab curve`"), "{error}");
    let text = fs::read_to_string(&lru).expect("text");
    fs::write(
        place.at("more"),
        text.replace("\"miss_ratio\":0.", "\"miss_ratio\":0.9"),
    )
    .expect("written");
    let (ok, said, _) = place.run(&["lab", "check", &lru, "more"]);
    assert!(
        !ok && said.contains("worse: one lru 50 pages miss_ratio"),
        "{said}"
    );
}

#[test]
fn traces_of_one_name_are_two_traces() {
    let place = Place::new();
    for (directory, pages) in [("a", 10), ("b", 20)] {
        fs::create_dir(place.at(directory)).expect("a directory");
        let text: String = (0..60).map(|n| format!("{}\n", n % pages)).collect();
        fs::write(place.at(directory).join("t.trace"), text).expect("written");
    }
    let line = "lab curve a/t.trace b/t.trace --policy lru --sizes 4";
    let (ok, printed, _) = place.run(&words(line));
    assert!(
        ok && printed.contains("t: 60 accesses, 10 pages"),
        "{printed}"
    );
    assert!(printed.contains("t: 60 accesses, 20 pages"), "{printed}");
}

#[test]
fn names_of_files_cannot_control_a_terminal() {
    let place = Place::new();
    let name = "x\u{1b}[31m\u{202e}.trace";
    fs::copy(place.at("one.trace"), place.at(name)).expect("a file");
    for line in [
        "lab run NAME --policy classic,lru --seeds 1",
        "lab run NAME --policy classic --seeds 1 --format csv",
        "lab curve NAME --policy lru --sizes 200 --svg out.svg --html out.html",
        "lab curve NAME --policy lru --sizes 200 --format csv",
        "trace info NAME",
        "trace info NAME --format csv",
    ] {
        let words = line.split(' ').map(|word| match word {
            "NAME" => name,
            word => word,
        });
        let (ok, said, error) = place.run(&words.collect::<Vec<_>>());
        assert!(ok && said.contains("x\\x1b[31m\\u{202e}"), "{said}{error}");
        let is_raw = |c: char| matches!(c, '\u{1b}' | '\u{202e}');
        assert!(
            !said.contains(is_raw) && !error.contains(is_raw),
            "{said}{error}"
        );
    }
    for picture in ["out.svg", "out.html"] {
        let text = fs::read_to_string(place.at(picture)).expect("text");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{picture}");
    }
    let line = [
        "lab", "curve", name, "--policy", "lru", "--sizes", "200", "--format", "json",
    ];
    let (_, said, _) = place.run(&line);
    let row = said.lines().next().expect("a row");
    let row: serde_json::Value = serde_json::from_str(row).expect("JSON");
    assert_eq!(row["source"], name, "which rerun has to find");
}

#[test]
fn mistakes_are_said_once_and_in_full() {
    let place = Place::new();
    for (arguments, expected) in [
        (
            "check a b --significance 2",
            "'2' is not a share above 0 and up to 100%",
        ),
        ("curve small", "agewise: small: No such file"),
        ("curve kv", "kv is a workload, and curves are of traces"),
        ("run kv --set swappines=1", "did you mean `swappiness`?"),
        (
            "run kv --policy classic,lru,classic",
            "the policy classic is given twice",
        ),
        (
            "curve one.trace --policy lru,lru",
            "the policy lru is given twice",
        ),
        (
            "reproduce mglru --benchmark pft",
            "one of memcached, redis, fio, ",
        ),
        (
            "whatif none.trace",
            "agewise: none.trace: No such file or directory (os error 2)",
        ),
    ] {
        let line = format!("lab {arguments}");
        let (ok, _, error) = place.run(&words(&line));
        assert!(!ok && error.contains(expected), "{error}");
    }
}
