// SPDX-License-Identifier: Apache-2.0
//! Traces that come through a pipe: read once, or refused by those who read twice.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;

/// A loop, larger than a pipe.
fn trace() -> String {
    (0..100_000).map(|n| format!("{}\n", n % 1000)).collect()
}

fn agewise(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(cargo_bin("agewise"));
    command.args(arguments).current_dir(directory);
    command.timeout(Duration::from_secs(60));
    command
}

fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part));
    parts.concat()
}

#[test]
fn a_pipe_gives_what_a_file_gives() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("loop.lirs"), trace()).unwrap();
    let shift = ["--page-shift", "12"];
    for of in [
        &[
            "size",
            "loop.lirs",
            "--format",
            "csv",
            "--cost-model",
            "ssd",
        ][..],
        &["lab", "whatif", "loop.lirs", "--format", "csv"],
        &["trace", "convert", "loop.lirs", "OUT"],
        &[
            "trace",
            "sample",
            "loop.lirs",
            "OUT",
            "--rate",
            "0.1",
            "--no-check",
        ],
    ] {
        let run = |trace: &str, out: &str| {
            let arguments = of.iter().map(|part| match *part {
                "loop.lirs" => trace,
                "OUT" => out,
                other => other,
            });
            let arguments: Vec<&str> = match of[0] {
                "trace" => arguments.chain(shift).collect(),
                _ => arguments.collect(),
            };
            let mut command = agewise(&arguments, dir.path());
            let output = command.write_stdin(self::trace()).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", text(&output));
            let written = std::fs::read(dir.path().join(out)).unwrap_or_default();
            (String::from_utf8(output.stdout).unwrap(), written)
        };
        let (file, pipe) = (run("loop.lirs", "a"), run("/dev/stdin", "b"));
        let said = pipe.0.replace("stdin", "loop.lirs");
        assert_eq!((file.0, file.1), (said, pipe.1), "{of:?}");
    }
}

#[test]
fn who_reads_twice_refuses_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for (arguments, hint) in [
        (&["lab", "run", "TRACE", "--memory", "50%"][..], ""),
        (&["lab", "curve", "TRACE", "--policy", "lru"], ""),
        (&["trace", "convert", "TRACE", "o.oracleGeneral"], ""),
        (&["trace", "sample", "TRACE", "o"], "--no-check"),
    ] {
        for pipe in ["/dev/stdin", "fifo"] {
            let arguments = arguments.iter().map(|part| match *part {
                "TRACE" => pipe,
                other => other,
            });
            let arguments: Vec<&str> = arguments.collect();
            let mut command = agewise(&arguments, dir.path());
            let output = command.write_stdin(trace()).output().unwrap();
            let said = text(&output);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
            assert!(
                said.contains("it has to be read twice"),
                "{arguments:?}: {said}"
            );
            assert!(said.contains(hint), "{said}");
        }
    }
}
