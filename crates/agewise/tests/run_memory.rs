// SPDX-License-Identifier: Apache-2.0
//! `agewise run --memory`: a program in a cgroup of its own, held below a limit. Needs root, BPF,
//! memory cgroups and zram; skipped with a message otherwise.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use agewise_host::cgroup::{Cgroup, FreshStatistics};
use agewise_host::memory::MemInfo;
use agewise_host::root::ProcRoot;
use agewise_host::swap::{self, ZramDevice};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::need::{memcg, zram};
use support::program::words;
use support::{AGEWISE, Daemon, MIB, blind, cgroups_of, one, wait_until};

fn run(arguments: &[&str]) -> Output {
    Command::new(AGEWISE)
        .arg("run")
        .args(arguments)
        .output()
        .expect("run agewise")
}

fn free_swap_bytes() -> u64 {
    let info = MemInfo::of_machine(&ProcRoot::default()).unwrap();
    info.swap_free_bytes
}

/// A swap device for the test; prints a message and returns `None` if the test cannot run.
fn swap(test: &str) -> Option<ZramDevice> {
    swap_of(test, 256 * MIB)
}

fn swap_of(test: &str, bytes: u64) -> Option<ZramDevice> {
    // `run` makes a cgroup of its own as well.
    let made = blind().map_or_else(|| memcg("run"), Err);
    let device = made.and_then(|_| zram(bytes));
    device.map_err(|why| println!("SKIPPED {test}: {why}")).ok()
}

/// As of a pipe whose reader has left: what cannot be printed does not replace the status.
#[test]
fn a_full_standard_error_leaves_the_status_of_the_command() {
    let _one = one();
    if let Some(why) = blind() {
        return println!("SKIPPED a_full_standard_error_leaves_the_status_of_the_command: {why}");
    }
    let full = std::fs::File::options().write(true).open("/dev/full");
    let status = Command::new(AGEWISE)
        .args(["run", "--older-than", "1s", "--", "sh", "-c", "exit 7"])
        .stderr(full.expect("/dev/full"))
        .status();
    assert_eq!(status.expect("run agewise").code(), Some(7));
}

/// Runs a program for six seconds that uses 30 % of 128 MiB, and returns the summary.
fn summary_below_64_mib(more: &[&str]) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report");
    let child = Command::new(AGEWISE)
        .args(["run", "--memory", "64M", "--report"])
        .arg(&report)
        .args(more)
        .args(["--", AGEWISE, "exercise", "--size", "128M"])
        .args(["--pattern", "hotcold:0.3", "--rate", "50000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    wait_until("a cgroup", || !cgroups_of(pid).is_empty());
    let made = cgroups_of(pid);
    assert_eq!(made.len(), 1, "{made:?}");
    std::thread::sleep(Duration::from_secs(6));
    // The signal is passed on: the program checks all its pages once more, and ends.
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "a page is not what it was: {said}");
    assert!(cgroups_of(pid).is_empty());
    let text = std::fs::read_to_string(&report).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn a_program_is_held_below_its_limit() {
    let _one = one();
    let Some(device) = swap("a_program_is_held_below_its_limit") else {
        return;
    };
    let summary = summary_below_64_mib(&["--from-start"]);
    assert_eq!(summary["limit_bytes"], 64 * MIB, "{summary}");
    assert_eq!(summary["exit_code"], 0);
    // Also resident, but not charged to the cgroup: the truth file, which we map too, and
    // libraries.
    assert!(
        summary["resident_peak_bytes"].as_u64().unwrap() <= 80 * MIB,
        "{summary}"
    );
    assert!(
        summary["reclaimed_bytes"].as_u64().unwrap() > 8 * MIB,
        "{summary}"
    );
    assert_eq!(summary["notes"], serde_json::json!([]), "{summary}");
    assert!(summary["not_held"].is_null(), "{summary}");
    // What left is not used again, so the kernel alone does as well.
    let summary = summary_below_64_mib(&[]);
    assert_eq!(summary["reclaimed_bytes"], 0, "{summary}");
    assert_eq!(summary["scans"], 0, "{summary}");
    let first = &summary["not_held"];
    assert_eq!(first["reason"], "kernel_first", "{summary}");
    assert_eq!(first["until_pages"], 2 * 64 * MIB / 4096, "{summary}");
    device.remove().expect("remove zram");
}

#[test]
fn it_ends_as_its_command_does_and_leaves_nothing() {
    let _one = one();
    let Some(device) = swap("it_ends_as_its_command_does_and_leaves_nothing") else {
        return;
    };
    let output = run(&[
        "--memory", "64M", "--by", "heat", "--", "sh", "-c", "exit 9",
    ]);
    assert_eq!(output.status.code(), Some(9), "{output:?}");
    let output = run(&["--memory", "64M", "--", "/nonexistent/program"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    // A process left running continues, and does not keep the cgroup.
    let script = "sleep 60 > /dev/null 2>&1 & echo $!";
    let output = run(&["--memory", "64M", "--", "sh", "-c", script]);
    let left: i32 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap();
    kill_process(Pid::from_raw(left).unwrap(), Signal::KILL).expect("it still runs");
    let mut child = Command::new(AGEWISE)
        .args(["run", "--memory", "64M", "--", "sleep", "60"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    let has_begun = || {
        let made = cgroups_of(pid);
        let procs = made
            .first()
            .map(|dir| std::fs::read_to_string(dir.join("cgroup.procs")));
        procs.is_some_and(|procs| procs.is_ok_and(|procs| !procs.is_empty()))
    };
    wait_until("a process in its cgroup", has_begun);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(cgroups_of(pid).is_empty());
    device.remove().expect("remove zram");
}

#[test]
fn a_limit_that_somebody_else_changed_is_noted() {
    let _one = one();
    let Some(device) = swap("a_limit_that_somebody_else_changed_is_noted") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report");
    let mut child = Command::new(AGEWISE)
        .args(["run", "--memory", "64M", "--report"])
        .arg(&report)
        .args(["--", "sleep", "2"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let changed = |dir: &PathBuf| {
        let files = ["memory.limit_in_bytes", "memory.max"].map(|file| dir.join(file));
        files.iter().any(|file| {
            let set = std::fs::read_to_string(file).unwrap_or_default();
            set.trim() == (64 * MIB).to_string() && std::fs::write(file, "200M").is_ok()
        })
    };
    wait_until("a limit", || cgroups_of(child.id()).iter().any(changed));
    assert!(child.wait().unwrap().success());
    let text = std::fs::read_to_string(&report).unwrap();
    let summary: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let note = "somebody else changed the limit of the cgroup from 64.0 MiB to 200.0 MiB";
    assert_eq!(summary["notes"], serde_json::json!([note]), "{summary}");
    device.remove().expect("remove zram");
}

/// What was killed left swap empty again: the note says how little there was.
#[test]
fn a_kill_with_little_swap_names_it() {
    let _one = one();
    const TEST: &str = "a_kill_with_little_swap_names_it";
    let Some(device) = swap_of(TEST, 16 * MIB) else {
        return;
    };
    let free = swap::free_bytes(&ProcRoot::default()).unwrap();
    if free > 16 * MIB {
        println!("SKIPPED {TEST}: there is other swap");
    } else {
        // 34 MiB for two seconds, then more than fits below the limit and into swap.
        let hold = "head -c 80M /dev/zero | tail -c 34M | sleep 5";
        let script = format!("{hold} & sleep 2; {hold}; wait");
        let output = run(&["--memory", "24M", "--", "sh", "-c", &script]);
        let said = String::from_utf8_lossy(&output.stderr);
        let note = said.split("(least free swap seen: ").nth(1);
        let free = note.and_then(|rest| rest.split_once(' '));
        let (mib, rest) = free.unwrap_or_else(|| panic!("{said}"));
        assert!(
            mib.parse::<f64>().is_ok_and(|mib| mib < 10.0) || rest.starts_with("KiB"),
            "{said}"
        );
    }
    device.remove().expect("remove zram");
}

#[test]
fn a_rehearsal_limits_nothing() {
    let _one = one();
    let Some(device) = swap("a_rehearsal_limits_nothing") else {
        return;
    };
    let script = "head -c 60M /dev/zero | tail -c 50M | sleep 3";
    let output = run(&["--memory", "32M", "--dry-run", "--", "sh", "-c", script]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("no limit of 32.0 MiB set (--dry-run)"),
        "{said}"
    );
    assert!(said.contains("nothing was moved (--dry-run)"), "{said}");
    assert!(!said.contains("  limit "), "{said}");
    device.remove().expect("remove zram");
}

#[test]
fn a_limit_in_which_nothing_runs_is_refused() {
    let output = run(&["--memory", "4K", "--", "true"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("give at least 64.0 KiB"), "{said}");
}

/// What a rehearsal says would have been tried, MiB.
fn rehearsed_mib(output: &Output) -> f64 {
    let said = String::from_utf8_lossy(&output.stderr);
    let tried = said.split(" MiB would have been tried").next().unwrap();
    let tried = tried.rsplit(' ').next().unwrap();
    tried.parse().unwrap_or_else(|_| panic!("{said}"))
}

#[test]
fn a_rehearsal_counts_what_stays_idle_once() {
    let _one = one();
    let Some(device) = swap("a_rehearsal_counts_what_stays_idle_once") else {
        return;
    };
    let script = "head -c 60M /dev/zero | tail -c 30M | sleep 5";
    let output = run(&["--older-than", "1s", "--dry-run", "--", "sh", "-c", script]);
    let would = rehearsed_mib(&output);
    assert!((20.0..60.0).contains(&would), "{would}");
    device.remove().expect("remove zram");
}

#[test]
fn a_rehearsal_announces_no_more_than_swap_takes() {
    let _one = one();
    const TEST: &str = "a_rehearsal_announces_no_more_than_swap_takes";
    let Some(device) = swap_of(TEST, 40 * MIB) else {
        return;
    };
    let free = swap::free_bytes(&ProcRoot::default()).unwrap();
    if free > 40 * MIB {
        println!("SKIPPED {TEST}: there is other swap");
    } else {
        // Two processes, each with less than fits.
        let hold = "head -c 60M /dev/zero | tail -c 30M | sleep 5";
        let script = format!("{hold} & {hold}; wait");
        let output = run(&["--older-than", "1s", "--dry-run", "--", "sh", "-c", &script]);
        let would = rehearsed_mib(&output);
        // And a few pages of files.
        assert!((20.0..45.0).contains(&would), "{would}");
    }
    device.remove().expect("remove zram");
}

/// A file larger than the limit is read repeatedly: part of it stays cached. No swap is needed.
#[test]
fn page_cache_is_held_as_well() {
    let _one = one();
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let (file, report) = (
        directory.path().join("file"),
        directory.path().join("report"),
    );
    std::fs::write(&file, vec![7; 48 * MIB as usize]).unwrap();
    let written = std::fs::File::open(&file).unwrap();
    written.sync_all().unwrap();
    // The first reader is charged.
    rustix::fs::fadvise(&written, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    // 4 MiB at a time: who reads all of it at once is at the limit before anybody else runs.
    let script = "for round in 1 2 3 4; do for part in 0 1 2 3 4 5 6 7 8 9 10 11; do
        dd if=\"$0\" of=/dev/null bs=256K count=16 skip=$((part * 16)) 2> /dev/null; sleep 0.1
    done; done";
    let output = run(&[
        "--memory",
        "32M",
        "--from-start",
        "--files",
        "--report",
        report.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        script,
        file.to_str().unwrap(),
    ]);
    let said = String::from_utf8_lossy(&output.stderr);
    let lacks = [
        "not permitted",
        "not available here",
        "no memory cgroup",
        "page cache: ",
    ];
    if output.status.code() == Some(125) && lacks.iter().any(|why| said.contains(why)) {
        println!("SKIPPED page_cache_is_held_as_well: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let text = std::fs::read_to_string(&report).unwrap();
    let summary: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let of = |field: &str| summary[field].as_u64().unwrap();
    assert!(of("reclaimed_file_bytes") > MIB, "{summary}");
    assert!(
        of("reclaimed_file_bytes") <= of("reclaimed_bytes"),
        "{summary}"
    );
}

/// A program that touches all its memory within the two seconds for which the kernel's statistics
/// may be old. Without fresh ones a kernel with the classic LRU kills it, nine tenths of swap free.
/// What `keep` returns has to prevent that.
fn kills_nobody<T>(test: &str, keep: impl Fn(&Cgroup) -> T) {
    let _one = one();
    let Some(device) = swap(test) else {
        return;
    };
    let own = match memcg("fresh") {
        Ok(own) => own,
        Err(why) => return println!("SKIPPED {test}: {why}"),
    };
    let mut command = Command::new(AGEWISE);
    command.args(words("exercise --size 64M --pattern uniform --rate 100000"));
    own.enter(&mut command).unwrap();
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let usage_bytes = || own.cgroup().usage_bytes().unwrap().unwrap();
    wait_until("its memory", || usage_bytes() >= 64 * MIB);
    own.set_limit(128 * MIB).unwrap();
    let _keeper = keep(own.cgroup());
    wait_until("a limit", || own.set_limit(62 * MIB).is_ok());
    std::thread::sleep(Duration::from_secs(6));
    let hits = own.cgroup().limit_hits().unwrap().unwrap();
    assert_eq!(own.cgroup().oom_kills().unwrap(), Some(0), "{hits} hits");
    assert!(hits > 100, "it hardly reached the limit: {hits} hits");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success(), "a page is not what it was");
    device.remove().expect("remove zram");
}

#[test]
fn a_hard_limit_kills_nobody_while_swap_has_room() {
    kills_nobody("a_hard_limit_kills_nobody_while_swap_has_room", |cgroup| {
        let mut fresh = FreshStatistics::default();
        fresh.add(cgroup).unwrap();
        fresh
    });
}

#[test]
fn nobody_of_at_limit_is_killed_while_swap_has_room() {
    kills_nobody(
        "nobody_of_at_limit_is_killed_while_swap_has_room",
        |cgroup| {
            let path = cgroup.name();
            let config = format!(
                "[observe]\ncgroups = []\ntick = '500ms'\n[protect]\nat_limit = ['{path}']\n"
            );
            let daemon = Daemon::start(&config);
            std::thread::sleep(Duration::from_secs(3));
            daemon
        },
    );
}

#[test]
fn without_swap_it_says_what_is_missing() {
    let _one = one();
    if free_swap_bytes() > 0 {
        println!("SKIPPED without_swap_it_says_what_is_missing: there is swap");
        return;
    }
    let output = run(&["--memory", "64M", "--", "true"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("no free swap") && said.contains("not started"),
        "{said}"
    );
}

#[test]
fn one_way_is_chosen() {
    for (line, wanted) in [
        ("-- true", "--memory"),
        ("--memory 1M --older-than 1s -- true", "cannot be used with"),
        ("--memory 1M --rate 1M/s -- true", "cannot be used with"),
        ("--older-than 1s --by heat -- true", "--memory"),
        ("--older-than 1s --from-start -- true", "--memory"),
        ("--memory 1M --by worst -- true", "possible values"),
    ] {
        let output = run(&words(line));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(wanted), "{line}: {said}");
    }
}
