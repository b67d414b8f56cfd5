// SPDX-License-Identifier: Apache-2.0
//! `agewise files` and `agewise reclaim --files` on files of which known parts are read.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use agewise_host::pagecache::cachestat;
use rustix::fs::{Advice, fadvise};
use serde_json::Value;

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;
use support::cached::*;
use support::program::{agewise, json_lines, words};
use support::{Group, wait_until};

/// The JSON lines, or `None` if the page cache cannot be followed.
fn records(test: &str, args: &[&str]) -> Option<Vec<Value>> {
    let (worked, out, error) = agewise(args);
    if !worked && is_unfollowed(&error) {
        println!("SKIPPED {test}: {error}");
        return None;
    }
    assert!(worked, "{error}");
    Some(json_lines(&out))
}

/// Whether an error says that the page cache cannot be followed here.
fn is_unfollowed(error: &str) -> bool {
    ["not permitted", "not available here", "is on an overlay"]
        .iter()
        .any(|why| error.contains(why))
}

fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// Creates a file on disk with all pages in memory and clean.
fn cached(path: &Path) -> File {
    fs::write(path, vec![7; (PAGES * PAGE) as usize]).unwrap();
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    fs::read(path).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    file
}

/// Maps a file for the rest of the test: some machines have a DAMON scheme that pages out unmapped
/// pages.
fn hold(file: &File) {
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    let (fd, bytes) = (
        std::os::fd::AsRawFd::as_raw_fd(file),
        (PAGES * PAGE) as usize,
    );
    // SAFETY: a new mapping, which nobody reads.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, flags, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED);
}

#[test]
fn ages_of_a_file_are_those_of_its_halves() {
    let dir = disk();
    let name = OsStr::from_bytes(b"a\n\x1b[31m\xffb");
    let file = cached(&dir.path().join(name));
    hold(&file);
    let stop = AtomicBool::new(false);
    let args = [
        "files",
        "--all",
        "--under",
        dir.path().to_str().unwrap(),
        "--duration",
        "5s",
        "--intervals",
        "3s,1m",
        "--format",
        "json",
    ];
    let found = std::thread::scope(|scope| {
        scope.spawn(|| keep_warm(&file, &stop));
        let found = records("files", &args);
        stop.store(true, Relaxed);
        found
    });
    let Some(found) = found else { return };
    let [of_file, cost] = &found[..] else {
        panic!("{found:?}");
    };
    let path = of_file["path"].as_str().unwrap();
    assert!(path.ends_with("/a\n\u{1b}[31m\\xffb"), "{path:?}");
    let total = PAGES * PAGE;
    assert_eq!(of_file["resident_bytes"], total);
    assert_eq!(of_file["kind"], "file");
    assert_eq!(of_file["deleted"], false);
    let bytes = |bin: usize| of_file["ages"][bin]["bytes"].as_u64().unwrap();
    assert_eq!(bytes(0) + bytes(1) + bytes(2), total);
    // Ages are only as fine as the interval between looks: ages within an interval are spread
    // evenly over it. So part of the half that is read counts as older, but nothing of the other
    // half as young.
    assert!(bytes(0) > total / 20 && bytes(0) <= total / 2, "{of_file}");
    let own = std::process::id();
    let opener = |opener: &Value| opener["pid"] == own;
    assert!(
        of_file["open_by"].as_array().unwrap().iter().any(opener),
        "{of_file}"
    );
    assert_eq!(cost["record"], "cost");
    assert!(cost["file_bytes"].as_u64().unwrap() >= total);
}

#[test]
fn text_and_csv_show_no_controls() {
    let dir = disk();
    let file = cached(&dir.path().join("a\n\u{1b}b"));
    let under = dir.path().to_str().unwrap();
    for format in ["text", "csv"] {
        let line = format!("files --all --under {under} --duration 0s --format {format}");
        let args = words(&line);
        let (worked, out, error) = agewise(&args);
        if !worked && is_unfollowed(&error) {
            return println!("SKIPPED text: {error}");
        }
        assert!(worked, "{error}");
        assert!(out.contains("a\\x0a\\x1bb"), "{out}");
        assert!(!out.contains('\u{1b}'));
        // Nothing was observed.
        let unknown = match format {
            "text" => " ?  /",
            _ => ",false,,",
        };
        assert!(out.contains(unknown), "{out}");
        let sum = format!("  1 file under {under}\n");
        assert_eq!(out.contains(&sum), format == "text", "{out}");
    }
    drop(file);
}

#[test]
fn ages_are_null_if_nothing_was_observed() {
    let dir = disk();
    let file = cached(&dir.path().join("a"));
    let under = dir.path().to_str().unwrap();
    let words = ["files", "--all", "--under", under, "--duration", "0s"];
    let args = [&words[..], &["--format", "json"]].concat();
    let Some(found) = records("ages_are_null", &args) else {
        return;
    };
    let of_file = &found[0];
    assert_eq!(of_file["resident_bytes"], PAGES * PAGE);
    assert!(
        of_file["ages"].is_null() && of_file["oldest_ms"].is_null(),
        "{of_file}"
    );
    let cost = &found[found.len() - 1];
    assert_eq!(cost["matching_bytes"], of_file["resident_bytes"]);
    assert!(cost["file_bytes"].as_u64() > cost["matching_bytes"].as_u64());
    drop(file);
}

/// As a container sees the file systems of the host whose pids it shares.
#[test]
fn a_file_system_that_only_init_has_mounted_is_reached_through_it() {
    const TEST: &str = "a_file_system_that_only_init_has_mounted";
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/mnt"));
    if namespace("1").ok() != namespace("self").ok() {
        return println!("SKIPPED {TEST}: init has a mount namespace of its own");
    }
    let dir = disk();
    let at = dir.path().to_str().unwrap();
    let run = |words: &[&str]| Command::new(words[0]).args(&words[1..]).output();
    let mounted = run(&["mount", "-t", "tmpfs", "agewise-test", at]);
    if !mounted.is_ok_and(|output| output.status.success()) {
        return println!("SKIPPED {TEST}: nothing can be mounted");
    }
    fs::write(dir.path().join("a"), vec![7; PAGE as usize]).unwrap();
    let program = env!("CARGO_BIN_EXE_agewise");
    let script =
        format!("umount {at} && {program} files --all --under / --duration 0s --format json");
    let found = run(&["unshare", "--mount", "sh", "-c", &script]);
    run(&["umount", "-l", at]).unwrap();
    let found = found.unwrap();
    let error = String::from_utf8_lossy(&found.stderr);
    if is_unfollowed(&error) {
        return println!("SKIPPED {TEST}: {error}");
    }
    let out = String::from_utf8_lossy(&found.stdout);
    let expected = format!("/proc/1/root{at}/a");
    let records = json_lines(&out);
    assert!(records.iter().any(|of| of["path"] == *expected), "{error}");
}

/// Reads and writes of shared memory are not seen, so it must not look idle.
#[test]
fn shared_memory_has_no_ages() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return println!("SKIPPED shared memory: no /dev/shm");
    };
    let path = dir.path().join("a");
    fs::write(&path, vec![7; (PAGES * PAGE) as usize]).unwrap();
    let file = File::open(&path).unwrap();
    let under = dir.path().to_str().unwrap();
    let stop = AtomicBool::new(false);
    let run = |how: &str| {
        let line = format!("files --all --under {under} --duration 1s --format {how}");
        agewise(&words(&line))
    };
    let runs = std::thread::scope(|scope| {
        scope.spawn(|| keep_warm(&file, &stop));
        let runs = ["json", "json --older-than 1s", "csv", "text"].map(run);
        stop.store(true, Relaxed);
        runs
    });
    if let Some((_, _, error)) = runs.iter().find(|(worked, ..)| !worked) {
        assert!(is_unfollowed(error), "{error}");
        return println!("SKIPPED shared memory: {error}");
    }
    let [listed, old, csv, text] = runs.map(|(_, out, _)| out);
    let of_file = &json_lines(&listed)[0];
    assert_eq!(of_file["kind"], "shmem", "{of_file}");
    assert_eq!(of_file["resident_bytes"], PAGES * PAGE);
    let (ages, oldest) = (&of_file["ages"], &of_file["oldest_ms"]);
    assert!(ages.is_null() && oldest.is_null(), "{of_file}");
    assert_eq!(json_lines(&old)[0]["files_matching"], 0, "{old}");
    assert!(
        csv.ends_with(&format!(",,false,,{}\n", PAGES * PAGE)),
        "{csv}"
    );
    assert!(text.contains(" ?  /dev/shm/"), "{text}");
    let sum = text.lines().find(|line| line.contains("  1 file under "));
    let bins = sum.unwrap().split_whitespace().filter(|word| *word == "-");
    assert!(bins.count() >= 6, "no bytes by age: {text}");
}

/// A file that is older than the observation cannot be told from one that is as old.
#[test]
fn what_is_older_than_the_observation_is_not_asked_for() {
    let words = ["files", "--all", "--older-than", "1m", "--duration", "30s"];
    let output = Command::new(env!("CARGO_BIN_EXE_agewise"))
        .args(words)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("give a --duration of at least 1 m"), "{said}");
}

/// One that was not read meanwhile is exactly as old as the observation.
#[test]
fn a_file_can_be_as_old_as_the_observation() {
    let dir = disk();
    let file = cached(&dir.path().join("a"));
    hold(&file);
    let under = dir.path().to_str().unwrap();
    let times = ["--older-than", "1s", "--duration", "1s"];
    let words = ["files", "--all", "--under", under, "--format", "json"];
    let args = [&words[..], &times[..]].concat();
    let Some(found) = records("a_file_can_be_as_old", &args) else {
        return;
    };
    assert_eq!(found[0]["record"], "file", "{found:?}");
    drop(file);
}

/// The possible outcomes for bytes that were asked for.
const WHAT_BECAME: [&str; 9] = [
    "left",
    "rehearsed",
    "young",
    "unknown",
    "dirty",
    "stayed",
    "vanished",
    "unreachable",
    "limited",
];

/// A field of the record of the file; the reader's program is charged to the cgroup too.
fn of_file(records: &[Value], field: &str) -> u64 {
    let is_it = |record: &&Value| record["path"].as_str().unwrap().ends_with("/file");
    records.iter().find(is_it).unwrap()[field].as_u64().unwrap()
}

/// `there_bytes` is how much of the file is cached afterwards. What others reclaimed does not
/// count; everything else must be seen. A batch of 64 pages counts for the cgroup of its first
/// page, so some pages may be charged to another.
fn check_rehearsed(records: &[Value], there_bytes: u64) {
    assert_eq!(of_file(records, "left_bytes"), 0, "{records:?}");
    let own = of_file(records, "resident_bytes");
    assert!(own * 10 >= there_bytes * 9, "{records:?}");
    let cold = own - HALF_BYTES;
    let rehearsed = of_file(records, "rehearsed_bytes");
    assert!(rehearsed >= cold * 99 / 100, "{records:?}");
}

/// The same for what was moved. Which of the 64 pages belong to others may have changed since.
fn check_done(records: &[Value], there_bytes: u64) {
    let (own, left) = (
        of_file(records, "resident_bytes"),
        of_file(records, "left_bytes"),
    );
    assert!(own * 10 >= (there_bytes + left) * 9, "{records:?}");
    let cold = own - HALF_BYTES;
    let gone = left + of_file(records, "vanished_bytes");
    assert!(left > 0 && gone >= cold * 99 / 100, "{records:?}");
    assert!(left <= HALF_BYTES * 101 / 100, "{records:?}");
    let parts = WHAT_BECAME.map(|part| of_file(records, &format!("{part}_bytes")));
    let asked = of_file(records, "asked_bytes");
    assert_eq!(parts.iter().sum::<u64>(), asked, "{records:?}");
}

#[test]
fn cold_pages_of_files_leave_and_hot_ones_stay() {
    let cgroup = match Group::create("files") {
        Ok(cgroup) => cgroup,
        Err(why) => return println!("SKIPPED reclaim: {why}"),
    };
    let dir = disk();
    let file = cached_by(&cgroup, &dir.path().join("file"));
    let stop = AtomicBool::new(false);
    let target = &*cgroup.path;
    let in_cache = |pages| cachestat(&file, pages).unwrap().pages * PAGE;
    let run = |more: &[&str]| {
        let line = format!(
            "reclaim --files --cgroup {target} --older-than 2s --interval 500ms --observe 6s \
             --format json"
        );
        let mut args = words(&line);
        args.extend(more);
        records("reclaim --files", &args)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| keep_warm(&file, &stop));
        let rehearsed = run(&["--dry-run"]);
        let rehearsed_bytes = in_cache(0..PAGES);
        // Pages that the machine reclaimed meanwhile come back, charged to the cgroup.
        let path = dir.path().join("file");
        let again = || {
            read_in(&cgroup, &path);
            run(&[])
        };
        let done = rehearsed.is_some().then(again).flatten();
        stop.store(true, Relaxed);
        let (Some(rehearsed), Some(done)) = (rehearsed, done) else {
            return;
        };
        check_rehearsed(&rehearsed, rehearsed_bytes);
        check_done(&done, in_cache(0..PAGES));
        let [hot_bytes, cold_bytes] = [0..PAGES / 2, PAGES / 2..PAGES].map(in_cache);
        assert!(cold_bytes <= HALF_BYTES / 100, "cold pages: {done:?}");
        assert!(hot_bytes >= HALF_BYTES * 995 / 1000, "hot pages: {done:?}");
    });
}

/// Unmapped page cache counts in the curve: a smaller memory would miss what is read repeatedly.
#[test]
fn less_memory_would_read_a_file_again() {
    let cgroup = match Group::create("whatif") {
        Ok(cgroup) => cgroup,
        Err(why) => return println!("SKIPPED whatif --files: {why}"),
    };
    let dir = disk();
    let file = cached_by(&cgroup, &dir.path().join("file"));
    let stop = AtomicBool::new(false);
    let target = &*cgroup.path;
    let mut args = vec!["whatif", "--files", "--cgroup", target, "--format", "json"];
    args.extend(["--memory", "40%,100%", "--policy", "lru"]);
    args.extend(["--duration", "16s", "--interval", "500ms"]);
    let found = std::thread::scope(|scope| {
        scope.spawn(|| keep_warm(&file, &stop));
        let found = records("whatif --files", &args);
        stop.store(true, Relaxed);
        found
    });
    let Some(found) = found else { return };
    let [less, all] = &found[..] else {
        panic!("{found:?}");
    };
    let of = |record: &Value, field: &str| record[field].as_f64().unwrap();
    let total = PAGES as f64 * PAGE as f64;
    let full = of(all, "memory_bytes");
    // Others may have reclaimed cold pages (such as a DAMON scheme of the machine).
    let there = cachestat(&file, 0..PAGES).unwrap().pages as f64 * PAGE as f64;
    assert!(full >= there * 0.9 && full <= total * 1.1, "{all}");
    assert!(of(less, "file_faults_per_second") > 20.0, "{less}");
    assert_eq!(of(less, "anon_faults_per_second"), 0.0, "{less}");
    assert!(of(all, "file_faults_per_second") < 1.0, "{all}");
}

/// Everything a program reads is in the trace, in order, and the lab replays it.
#[test]
fn reads_of_a_program_are_recorded_in_order() {
    let dir = disk();
    let (data, trace) = (dir.path().join("data"), dir.path().join("t.pages"));
    cached(&data);
    let script = "for at in 7 3 900; do dd if=$0 of=/dev/null bs=4096 skip=$at count=2; done";
    let (worked, _, error) = agewise(&[
        "trace",
        "record",
        "--files",
        "--format",
        "json",
        "--out",
        trace.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        script,
        data.to_str().unwrap(),
    ]);
    if !worked && is_unfollowed(&error) {
        println!("SKIPPED reads of a program: {error}");
        assert!(!trace.exists(), "nothing was recorded");
        return;
    }
    assert!(worked, "{error}");
    let summary: Value = serde_json::from_str(error.lines().last().unwrap()).unwrap();
    assert_eq!(summary["ended_by"], "exit");
    assert_eq!(summary["dropped"], 0);
    let (worked, out, error) = agewise(&["trace", "cat", trace.to_str().unwrap(), "--format=json"]);
    assert!(worked, "{error}");
    let pages: Vec<u64> = out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|request| request["kind"] == "r" && request["class"] == "file")
        .map(|request| request["page"].as_u64().unwrap() & ((1 << 40) - 1))
        .collect();
    // Reads by the dynamic loader come in between.
    let mut found = pages
        .iter()
        .filter(|page| [7, 8, 3, 4, 900, 901].contains(*page));
    let wanted = [7, 8, 3, 4, 900, 901];
    let in_order = wanted.iter().all(|page| found.any(|other| other == page));
    assert!(in_order, "{pages:?}");
    if cfg!(feature = "lab") {
        let path = trace.to_str().unwrap();
        let (worked, out, error) = agewise(&["lab", "run", path, "--seeds=1", "--memory=75%"]);
        assert!(
            worked && out.contains("by file descriptor"),
            "{out} {error}"
        );
    }
}

/// The trace of a cgroup that is removed ends there, and is complete.
#[test]
fn a_cgroup_is_recorded_to_its_end() {
    let cgroup = match Group::create("recorded") {
        Ok(cgroup) => cgroup,
        Err(why) => return println!("SKIPPED record --cgroup: {why}"),
    };
    let dir = disk();
    let (data, trace) = (dir.path().join("data"), dir.path().join("t.pages"));
    cached(&data);
    let mut recorder = Command::new(env!("CARGO_BIN_EXE_agewise"))
        .args(["trace", "record", "--files", "--format=json", "--cgroup"])
        .arg(&cgroup.dir)
        .arg("--out")
        .arg(&trace)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("a recording", || {
        trace.exists() || recorder.try_wait().unwrap().is_some()
    });
    read_in(&cgroup, &data);
    // Processes elsewhere are not recorded.
    fs::read(&data).unwrap();
    let place = cgroup.dir.clone();
    drop(cgroup);
    assert!(!place.exists(), "the recorder would wait for its end");
    let recorded = recorder.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&recorded.stderr);
    if !recorded.status.success() && is_unfollowed(&error) {
        println!("SKIPPED record --cgroup: {error}");
        return;
    }
    assert!(recorded.status.success(), "{error}");
    let summary: Value = serde_json::from_slice(&recorded.stdout).unwrap();
    assert_eq!(summary["ended_by"], "exit");
    // The file, and what the loader reads of libraries, however short-lived a process was.
    let read_pages = summary["read_pages"].as_u64().unwrap();
    assert!((PAGES..PAGES + 200).contains(&read_pages), "{summary}");
    let (worked, out, error) = agewise(&["trace", "info", trace.to_str().unwrap()]);
    assert!(worked, "{out} {error}");
}
