// SPDX-License-Identifier: Apache-2.0
//! The exerciser as a program: its output, its exit, and that it detects a changed page.

mod program;

use std::io::{Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use agewise_bench::exercise::spawned::Spawned;
use agewise_bench::exercise::truth::{Kind, State, now_ns};
use assert_cmd::prelude::*;
use program::{json_lines, wait_for_handler, words};
use rustix::process::{Pid, Signal, kill_process};

const AGEWISE: &str = env!("CARGO_BIN_EXE_agewise");

fn agewise(arguments: &[&str]) -> Command {
    let mut command = Command::new(AGEWISE);
    command.args(arguments);
    command
}

#[test]
fn it_ends_by_itself_and_tells_in_json() {
    let output = agewise(&words("exercise --size 16M --seconds 0.3 --every 100ms"))
        .args(["--format", "json"])
        .output()
        .expect("run");
    assert!(output.status.success(), "{output:?}");
    let lines = json_lines(&String::from_utf8(output.stdout).expect("UTF-8"));
    let (total, intervals) = lines.split_last().expect("lines");
    assert_eq!(total["record"], "total");
    assert_eq!(total["changed_pages"], 0);
    assert!(total["ops"].as_u64() > Some(1000), "{total}");
    assert!(total["p50_ns"].as_u64() <= total["max_ns"].as_u64());
    assert!(intervals.iter().all(|line| line["record"] == "interval"));
}

#[test]
fn truth_is_live_and_true() {
    let directory = tempfile::tempdir().expect("tempdir");
    let file = directory.path().join("mapped");
    let exerciser = Spawned::start(
        Path::new(AGEWISE),
        words("--size 8M --pattern hotcold:0.5 --file-size 1M --rate 200000 --file")
            .into_iter()
            .map(std::ffi::OsStr::new)
            .chain([file.as_os_str()]),
        None,
    )
    .expect("start");
    let truth = exerciser.truth();
    assert_eq!(truth.state(), State::Steady);
    assert_eq!(truth.pid(), exerciser.pid());
    let kinds: Vec<_> = truth.regions().iter().map(|r| (r.kind, r.pages)).collect();
    assert_eq!(kinds, [(Kind::Anon, 2048), (Kind::File, 256)]);
    let ops = truth.ops();
    std::thread::sleep(Duration::from_secs(1));
    assert!(truth.ops() > ops, "operations go on");
    // A cycle over 1152 hot pages takes 6 ms; allow much more on a busy machine.
    let now = now_ns();
    for region in truth.regions() {
        for page in 0..region.pages {
            let last = truth.last_access_ns(region.first_slot + page);
            assert!(last > 0 && last <= now_ns());
            let hot = page < region.pages / 2;
            assert_eq!(
                hot,
                now.saturating_sub(last) < 900_000_000,
                "page {page} of {region:?}"
            );
        }
    }
    assert!(file.exists());
    exerciser.finish().expect("unharmed");
    assert!(!file.exists(), "the file it made is gone");
}

#[test]
fn a_changed_page_is_an_error() {
    let exerciser = Spawned::start(Path::new(AGEWISE), ["--size", "4M", "--rate", "1000"], None)
        .expect("start");
    let region = exerciser.truth().regions()[0];
    // This page is cold, so only the final check can find the change.
    let address = region.address + (region.pages - 1) * 4096 + 2048;
    let mut memory = match std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/{}/mem", exerciser.pid()))
    {
        Ok(memory) => memory,
        Err(error) => {
            println!("SKIPPED a_changed_page_is_an_error: /proc/PID/mem: {error}");
            return;
        }
    };
    memory.seek(SeekFrom::Start(address)).expect("seek");
    memory.write_all(b"x").expect("write");
    let error = exerciser.finish().expect_err("it must notice").to_string();
    assert!(error.contains("a page may have changed"), "{error}");
}

#[test]
fn signals_end_it_at_any_moment_and_leave_nothing() {
    let directory = tempfile::tempdir().expect("tempdir");
    for (round, signal) in [Signal::INT, Signal::TERM, Signal::HUP, Signal::INT]
        .into_iter()
        .enumerate()
    {
        let file = directory.path().join("mapped");
        let mut child = agewise(&["exercise", "--size", "64M", "--file-size", "16M"])
            .arg("--file")
            .arg(&file)
            .spawn()
            .expect("spawn");
        // From before the first page is written until well into its work.
        if round > 0 {
            wait_for_handler(child.id(), signal.as_raw());
        }
        std::thread::sleep(Duration::from_millis(20 + 60 * round as u64 * round as u64));
        kill_process(Pid::from_child(&child), signal).expect("kill");
        let deadline = Instant::now() + Duration::from_secs(20);
        let status = loop {
            match child.try_wait().expect("wait") {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    child.kill().expect("kill");
                    panic!("it did not end after {signal:?}");
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        // The first signal may come before the handler exists; nothing has to be undone then.
        let too_early = round == 0 && status.signal() == Some(signal.as_raw());
        assert!(status.success() || too_early, "round {round}: {status}");
        assert!(!file.exists(), "round {round}: its file stayed");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (arguments, says) in [
        ("--size 0", "nothing to exercise"),
        ("--size 4096T", "available"),
        ("--size big", "not a size"),
        ("--pattern hotcold:7", "from 0 to 1"),
        ("--pattern elephant", "not a pattern"),
        ("--pattern hotcold:0.5 --active 0.1", "leave --active out"),
        ("--file-size 1M", "--file"),
        ("--seconds 0", "above 0"),
        (
            "--size 1M --file /proc/version --file-size 1M",
            "cannot make --file",
        ),
        (
            "--size 1M --truth /nonexistent/truth",
            "truth file /nonexistent/truth",
        ),
    ] {
        let mut exercise = agewise(&["exercise"]);
        let assert = exercise.args(words(arguments)).assert().failure();
        let stderr = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(stderr.contains(says), "{arguments:?} said: {stderr}");
    }
}
