// SPDX-License-Identifier: Apache-2.0
//! Attacks on commands by what others name or write: names of processes, and traces. The document
//! `docs/inside/attacks.md` names the tests of all attacks; they must exist.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use agewise_bench::exercise::spawned::Spawned;
use agewise_host::untrusted::is_hidden;
use support::AGEWISE;
use support::program::words;

/// What a command says on both outputs, and its exit status.
fn said(program: &Path, args: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(program).args(args).output().unwrap();
    let bytes = [output.stdout, output.stderr].concat();
    (String::from_utf8(bytes).unwrap(), output.status.code())
}

/// ESC and a mark that turns the direction of text.
const NAME: &str = "a\x1b[2J\u{202e}b";

#[test]
fn no_output_shows_what_the_name_of_a_process_hides() {
    let top = tempfile::tempdir().unwrap();
    let program = top.path().join(NAME);
    symlink(AGEWISE, &program).unwrap();
    let args = words("--size 4M --pattern hotcold:0.5 --rate 1000");
    let exerciser = Spawned::start(&program, args, None).unwrap();
    let pid = exerciser.pid();
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(comm.trim_end_matches('\n'), NAME);
    let reads = [
        format!("report --duration 300ms --intervals 100ms --pid {pid}"),
        format!("reclaim --dry-run --older-than 100ms --observe 200ms --watch 0s --pid {pid}"),
    ];
    for command in reads {
        for format in ["text", "csv", "json"] {
            let line = format!("{command} --format {format}");
            let (said, _) = said(Path::new(AGEWISE), &words(&line));
            let hidden = |c: char| c != '\n' && is_hidden(c);
            assert!(!said.contains(hidden), "{line}: {said:?}");
            assert!(said.contains("[2J"), "{line}: {said}");
        }
    }
    exerciser.finish().unwrap();
    // The summary of a run names the program.
    fs::remove_file(&program).unwrap();
    symlink("/bin/sh", &program).unwrap();
    let program = program.to_str().unwrap();
    let run = ["run", "--older-than", "10s", "--", program, "-c", ":"];
    let (said, _) = said(Path::new(AGEWISE), &run);
    assert!(!said.contains(['\x1b', '\u{202e}']), "{said:?}");
    assert!(said.contains("[2J"), "{said}");
}

/// Millions of distinct pages, or hundreds of MiB from a few KiB, are refused before they cost
/// much.
#[test]
fn a_trace_that_takes_more_than_traces_do_is_refused_by_every_reader() {
    let top = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &mut dyn Iterator<Item = String>| {
        let path = top.path().join(name);
        let to = fs::File::create(&path).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(to, flate2::Compression::best());
        text.for_each(|piece| gzip.write_all(piece.as_bytes()).unwrap());
        gzip.finish().unwrap();
        path.to_str().unwrap().to_owned()
    };
    let many = file("many.trace.gz", &mut (0..300_000).map(|n| format!("{n}\n")));
    let piece = "1\n".repeat(1 << 19);
    let bomb = file("bomb.trace.gz", &mut (0..80).map(|_| piece.clone()));
    for (trace, memory, option) in [
        (&many, "4M", "--trace-memory"),
        (&bomb, "1G", "--expansion-max"),
    ] {
        for command in ["trace info", "lab run", "lab curve"] {
            let more = ["--trace-format", "lirs", "--trace-memory", memory];
            let args = [&words(command)[..], &[&**trace], &more].concat();
            let (said, status) = said(Path::new(AGEWISE), &args);
            assert_eq!(status, Some(1), "{command}: {said}");
            assert!(said.contains(option), "{command}: {said}");
        }
    }
}

#[test]
fn errors_say_everything_once() {
    for command in [
        "report --pid 4194301",
        "report --cgroup /no/such/cgroup",
        "reclaim --older-than 1s --pid 4194301",
        "trace info /no/such/trace",
        "lab run /no/such/trace",
        "config check /no/such/file",
        "daemon --config /no/such/file",
    ] {
        let (said, status) = said(Path::new(AGEWISE), &words(command));
        assert_ne!(status, Some(0), "{command}");
        for line in said.lines() {
            let parts: Vec<&str> = line.split(": ").collect();
            let different: BTreeSet<&&str> = parts.iter().collect();
            assert_eq!(parts.len(), different.len(), "{command}: {line}");
        }
    }
}

#[test]
fn every_test_that_the_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("docs/inside/attacks.md")).unwrap();
    // Rows are `| what is tried | `path`: `test`, `test`; `path`: `test` |`.
    let mut named = 0;
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let mut source = String::new();
        let tests = row.rsplit('|').nth(1).unwrap_or_default();
        for word in tests.split('`').skip(1).step_by(2) {
            if word.contains('/') {
                let path = root.join("crates").join(word);
                source = fs::read_to_string(&path)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            } else {
                assert!(
                    source.contains(&format!("fn {word}(")),
                    "no test {word}: {row}"
                );
                named += 1;
            }
        }
    }
    assert!(named > 50, "{named} tests");
}
