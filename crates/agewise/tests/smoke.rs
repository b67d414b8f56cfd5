// SPDX-License-Identifier: Apache-2.0
//! The program with every set of features: it has the commands that the features promise, rejects
//! the others, and works where neither root nor a feature is needed.

mod program;

use std::path::Path;

use assert_cmd::Command;
use program::words;

fn agewise(arguments: &[&str]) -> assert_cmd::assert::Assert {
    Command::new(env!("CARGO_BIN_EXE_agewise"))
        .args(arguments)
        .assert()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_commands_are_those_of_the_features() {
    let help = text(&agewise(&["--help"]).success().get_output().stdout);
    let has = |name: &str| {
        let mut lines = help.lines();
        lines.any(|line| line.split_whitespace().next() == Some(name))
    };
    for name in [
        "completions",
        "config",
        "daemon",
        "doctor",
        "files",
        "man",
        "reclaim",
        "recommend",
        "report",
        "run",
        "shrink",
        "size",
        "sort",
        "trace",
        "watch",
        "whatif",
    ] {
        assert!(has(name), "{name} is in every build:\n{help}");
    }
    assert_eq!(has("lab"), cfg!(feature = "lab"), "{help}");
    for name in ["bench", "demo", "exercise"] {
        assert_eq!(has(name), cfg!(feature = "bench"), "{name}:\n{help}");
    }
}

/// What a shell's script offers for the last of these words.
fn completions(words: &[&str]) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_agewise"))
        .arg("--")
        .arg("agewise")
        .args(words)
        .env("AGEWISE_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", words.len().to_string())
        .env("_CLAP_IFS", "\n")
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).to_owned()
}

#[test]
fn shells_complete_values_by_asking() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = agewise(&["completions", shell]).success();
        let script = text(&script.get_output().stdout).to_owned();
        assert!(script.contains("AGEWISE_COMPLETE"), "{shell}: {script}");
    }
    let formats = completions(&["trace", "info", "t", "--trace-format", "li"]);
    assert!(formats.contains("lirs"), "{formats}");
    assert!(completions(&["re"]).lines().any(|word| word == "report"));
    let pid = std::process::id().to_string();
    assert!(completions(&["report", "--pid", &pid]).contains(&pid));
    if cfg!(feature = "lab") {
        let policies = completions(&["lab", "run", "kv", "--policy", "classic,mglru"]);
        assert!(policies.contains("classic,mglru:7.2"), "{policies}");
        let agents = completions(&["lab", "run", "kv", "--proactive", ""]);
        assert!(
            agents.contains("budget") && !agents.contains("shrink"),
            "{agents}"
        );
        let workloads = completions(&["lab", "run", "thra"]);
        assert_eq!(workloads.trim(), "thrash");
    }
}

#[test]
fn a_recorded_program_is_sized_without_the_lab() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/sqlite.pages");
    let trace = trace.to_str().expect("a path in UTF-8");
    let sized = agewise(&words(&format!(
        "size {trace} --cost-model zram --points 4 --format json"
    )));
    let lines = text(&sized.success().get_output().stdout);
    assert!(lines.lines().count() >= 4, "{lines}");
    agewise(&["trace", "info", trace]).success();
}

#[test]
fn the_default_configuration_is_accepted() {
    let default = agewise(&["config", "default"]).success();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agewise.toml");
    std::fs::write(&path, &default.get_output().stdout).unwrap();
    agewise(&["config", "check", path.to_str().unwrap()]).success();
}

/// A variable of a script that was never set must not mean the whole machine.
#[test]
fn an_empty_cgroup_is_not_the_root() {
    for arguments in [
        &["files"][..],
        &["reclaim", "--older-than", "5s"],
        &["recommend"],
        &["report"],
        &["shrink"],
        &["size"],
        &["sort"],
        &["trace", "record", "--files", "--out", "t.pages"],
        &["watch"],
        &["whatif"],
    ] {
        let empty = agewise(&[arguments, &["--cgroup", ""]].concat()).code(2);
        let said = text(&empty.get_output().stderr);
        assert!(said.contains("the root is /"), "{arguments:?}: {said}");
    }
}

/// The parser ends with 2 too.
#[test]
fn a_wrong_argument_ends_with_2_however_late_it_is_found() {
    let mut cases = vec![
        ("doctor --need glasses", "no such line"),
        ("recommend --prometheus https://host", "only http://"),
        ("recommend --cgroup / --matching a=1", "cannot be used with"),
        (
            "recommend --prometheus http://host --files",
            "cannot be used with",
        ),
        ("recommend --all --duration 3s", "cannot be used with"),
        (
            "recommend --all --over 1h --history 1d",
            "is longer than --over",
        ),
        (
            "reclaim --pid 1 --older-than 1s --far",
            "cannot be used with",
        ),
        (
            "trace record --out t.pages --children -- true",
            "cannot be used with",
        ),
        ("whatif --pid 1 --memory 60", "60%"),
        (
            "reclaim --pid 1 --older-than 5s --interval 9s",
            "shorter than the scan interval",
        ),
        (
            "reclaim --pid 1 --older-than 5s --observe 3s",
            "--observe 3 s is too short",
        ),
        (
            "run --older-than 1ms -- true",
            "the command was not started",
        ),
        (
            "sort --pid 1 --older-than 1s --interval 2s",
            "shorter than the scan interval",
        ),
        ("trace cat t.pages --collapse-repeats", "as they are stored"),
        (
            "trace record --pid 1 --interval 1ms --out t.pages",
            "at least 10ms",
        ),
        ("trace sample t.pages out.pages --rate 2", "up to 100%"),
        (
            "shrink --cgroup / --to 50% --duration 1ms",
            "at least 400 ms",
        ),
        ("size --pid 1 --files", "give --cgroup"),
        ("size --pid 1 --duration 3s --interval 1s", "a quarter"),
        ("whatif --pid 1 --files", "give --cgroup"),
        ("whatif --pid 1 --duration 2s --interval 5s", "a quarter"),
    ];
    if cfg!(feature = "lab") {
        cases.extend([
            ("lab curve t.pages --sampled --rate 2", "up to 100%"),
            ("lab damon kv --plot map.txt", ".svg or .html"),
            ("lab fuzz --policy optimist", "optimist"),
            ("lab inspect kv --at soon", "not a duration"),
            ("lab run kv --policy optimist", "optimist"),
        ]);
    }
    for (arguments, says) in cases {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let refused = agewise(&arguments).code(2);
        let said = text(&refused.get_output().stderr);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}

#[test]
fn help_that_cannot_be_printed_is_a_failure() {
    for asked in [&["--help"][..], &["--version"], &["report", "--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_agewise"))
            .args(asked)
            .stdout(full.expect("/dev/full"))
            .output()
            .expect("agewise runs");
        assert_eq!(output.status.code(), Some(1), "{asked:?}: {output:?}");
        assert!(
            text(&output.stderr).contains("cannot be written"),
            "{output:?}"
        );
    }
}

#[cfg(not(feature = "web"))]
#[test]
fn what_was_not_built_is_named() {
    let refused = agewise(&["daemon", "--demo", "--ticks", "1"]).failure();
    let error = text(&refused.get_output().stderr);
    assert!(error.contains("--features web"), "{error}");
}
