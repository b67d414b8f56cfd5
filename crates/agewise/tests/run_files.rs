// SPDX-License-Identifier: Apache-2.0
//! `agewise run --older-than --files`: what a program read and no longer reads leaves the page
//! cache, and nothing that others read. Needs root, BPF and memory cgroups; skipped with a message
//! otherwise.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use agewise_host::pagecache::cachestat;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::cached::{HALF_BYTES, PAGE, PAGES, uncached};
use support::need::memcg;
use support::refuse::{die_of_dropped_files, refuse_call};
use support::{AGEWISE, MIB, blind, cgroups_of, one};

/// Looks take turns with pauses 20 times as long, and there may be millions of files.
const PATIENCE: Duration = Duration::from_secs(90);

fn cached(file: &File, pages: std::ops::Range<u64>) -> u64 {
    cachestat(file, pages).map_or(0, |stat| stat.pages * PAGE)
}

/// A directory with the program's file, and a program that reads all of it once and its first half
/// until it is told to stop.
struct Run {
    dir: tempfile::TempDir,
    file: File,
}

impl Run {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = uncached(&dir.path().join("file"));
        Run { dir, file }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command that runs it.
    fn command(&self, more: &[&str]) -> Command {
        let script = "cat $1 > /dev/null; while [ ! -e $2 ]; do head -c $3 $1 > /dev/null; \
                      sleep 0.1; done";
        let mut command = Command::new(AGEWISE);
        command
            .args(["run", "--older-than", "2s", "--interval", "500ms"])
            .args(["--files", "--report"])
            .arg(self.at("report"))
            .args(more)
            .args(["--", "sh", "-c", script, "sh"])
            .args([self.at("file"), self.at("stop")])
            .arg(HALF_BYTES.to_string());
        command
    }

    /// Runs the command until `is_enough`, and returns the last record of the report; `None` if
    /// the page cache cannot be followed.
    fn until(&self, mut command: Command, is_enough: impl Fn() -> bool) -> Option<Value> {
        for old in ["stop", "report"] {
            let _ = fs::remove_file(self.at(old));
        }
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let began = Instant::now();
        while !is_enough() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(100));
        }
        fs::write(self.at("stop"), "").unwrap();
        let output = child.wait_with_output().unwrap();
        if is_skipped(&output) {
            return None;
        }
        assert!(output.status.success(), "{output:?}");
        let text = fs::read_to_string(self.at("report")).unwrap();
        Some(serde_json::from_str(text.lines().last().unwrap()).unwrap())
    }

    /// Runs it until its second half has left, as far as others did not take that before.
    fn until_cold_pages_left(&self) -> Value {
        // What an earlier program read stays charged to its cgroup, which is gone.
        let _file = uncached(&self.at("file"));
        let was_read = std::cell::Cell::new(false);
        let done = self.until(self.command(&[]), || {
            was_read.set(was_read.get() || cached(&self.file, 0..PAGES) > HALF_BYTES);
            was_read.get() && cached(&self.file, PAGES / 2..PAGES) <= HALF_BYTES / 20
        });
        done.unwrap()
    }

    /// Whether it has run for so long.
    fn has_run_for(&self, time: Duration) -> bool {
        let text = fs::read_to_string(self.at("report")).unwrap_or_default();
        let last = text.lines().last().unwrap_or("{}");
        let last: Value = serde_json::from_str(last).unwrap_or_default();
        last["elapsed_ms"].as_u64() > Some(time.as_millis() as u64)
    }
}

fn is_skipped(output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    let is_unable = output.status.code() == Some(125) && said.contains("page cache");
    if is_unable {
        println!("SKIPPED run --files: {said}");
    }
    is_unable
}

/// Answers `ENOSYS` to `cachestat`, as kernels before 6.5 do, from now on in this process.
fn lack_cachestat() -> std::io::Result<()> {
    const CACHESTAT: u32 = 451;
    refuse_call(CACHESTAT, libc::ENOSYS)
}

#[test]
fn a_kernel_that_does_not_tell_clean_pages_is_refused_at_once() {
    let reclaim = ["reclaim", "--cgroup", "/", "--files", "--older-than", "1h"];
    let run = ["run", "--files", "--older-than", "1h", "--", "true"];
    for args in [&reclaim[..], &run] {
        let mut command = Command::new("timeout");
        command.args(["60", AGEWISE]).args(args);
        // SAFETY: it only makes system calls, and reads memory of its own.
        unsafe { command.pre_exec(lack_cachestat) };
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => return println!("SKIPPED a kernel without cachestat: {error}"),
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{args:?}: {said}");
        assert!(said.contains("(cachestat, Linux 6.5)"), "{args:?}: {said}");
    }
}

#[test]
fn cold_files_of_a_program_leave_and_those_of_others_stay() {
    let _one = one();
    if let Some(why) = blind() {
        println!("SKIPPED run --files: {why}");
        return;
    }
    if let Err(why) = memcg("run-files") {
        return println!("SKIPPED run --files: {why}");
    }
    let run = Run::new();
    let other = run.at("other");
    uncached(&other);
    fs::read(&other).unwrap();

    // Others (a DAMON scheme) may reclaim pages meanwhile, so those that are there prove nothing.
    let long = Duration::from_secs(20);
    let mut rehearsal = run.command(&["--dry-run"]);
    // SAFETY: it only makes system calls, and reads memory of its own.
    unsafe { rehearsal.pre_exec(die_of_dropped_files) };
    let Some(rehearsed) = run.until(rehearsal, || run.has_run_for(long)) else {
        return;
    };
    let would = rehearsed["dropped"]["rehearsed_bytes"].as_u64();
    assert!(would >= Some(HALF_BYTES * 9 / 10), "{rehearsed}");
    assert_eq!(rehearsed["dropped"]["left_bytes"], 0, "{rehearsed}");

    let least_bytes = HALF_BYTES * 9 / 10;
    let left_bytes = |done: &Value| done["dropped"]["left_bytes"].as_u64().unwrap();
    let mut done = run.until_cold_pages_left();
    for _ in 0..2 {
        if left_bytes(&done) < least_bytes {
            println!("less than expected, so once more: {done}");
            done = run.until_cold_pages_left();
        }
    }
    let left_bytes = left_bytes(&done);
    assert!(left_bytes >= least_bytes, "{done}");
    assert!(left_bytes <= HALF_BYTES + MIB, "{done}");
    let reclaimed_bytes = done["reclaimed_file_bytes"].as_u64();
    assert!(reclaimed_bytes >= Some(left_bytes), "{done}");
    let warm_bytes = cached(&run.file, 0..PAGES / 2);
    assert!(warm_bytes >= HALF_BYTES * 9 / 10, "{done}");
    // The other file, which is cold as well, has more.
    let asked_bytes = done["dropped"]["asked_bytes"].as_u64();
    assert!(asked_bytes < Some(PAGES * PAGE), "{done}");
}

#[test]
fn a_signal_leaves_no_cgroup_behind_before_and_after_the_start() {
    let _one = one();
    if let Err(why) = memcg("run-files") {
        return println!("SKIPPED run --files: {why}");
    }
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    for (signal, is_early) in [(Signal::INT, true), (Signal::ALARM, false)] {
        let mut child = Command::new(AGEWISE)
            .args(["run", "--older-than", "100s", "--files", "--"])
            .args(["sh", "-c", "touch $0; exec sleep 100"])
            .arg(&started)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let is_due = || match is_early {
            true => !cgroups_of(child.id()).is_empty(),
            false => started.exists(),
        };
        let began = Instant::now();
        while !is_due() && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let pid = child.id();
        if child.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&child), signal).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        if is_skipped(&output) {
            return;
        }
        let expected = Some(128 + signal.as_raw());
        assert_eq!(output.status.code(), expected, "{output:?}");
        assert!(cgroups_of(pid).is_empty(), "{signal:?}");
        let _ = fs::remove_file(&started);
    }
}
