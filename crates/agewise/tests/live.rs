// SPDX-License-Identifier: Apache-2.0
//! The command on real processes, end to end. Needs root (page tables, other processes' memory)
//! and, where memory has to leave, zram; skipped with a message otherwise.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use agewise_bench::exercise::spawned::Spawned;
use agewise_host::swap::ZramDevice;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::need::zram;
use support::program::{json_lines, words};
use support::{AGEWISE, blind, one};

fn agewise(arguments: &[&str]) -> Output {
    Command::new(AGEWISE)
        .args(arguments)
        .output()
        .expect("run agewise")
}

fn exerciser(arguments: &[&str]) -> Spawned {
    Spawned::start(Path::new(AGEWISE), arguments, None).expect("start an exerciser")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The last line of NDJSON output.
fn last(output: &Output) -> Value {
    let said = text(&output.stdout);
    let line = said
        .lines()
        .last()
        .unwrap_or_else(|| panic!("nothing said: {output:?}"));
    serde_json::from_str(line).expect("JSON")
}

fn number(value: &Value, field: &str) -> u64 {
    value[field]
        .as_u64()
        .unwrap_or_else(|| panic!("no {field} in {value}"))
}

fn ended(child: &mut Child) -> std::process::ExitStatus {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match child.try_wait().expect("wait") {
            Some(status) => return status,
            None if Instant::now() > deadline => {
                child.kill().expect("kill");
                panic!("it did not end");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// What a demo that has ended left behind.
fn traces(pid: u32) -> Vec<String> {
    let mut found = Vec::new();
    for directory in ["/dev/shm", "/var/tmp"] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let ours = format!("-{pid}");
        found.extend(names.filter(|name| name.starts_with("agewise") && name.contains(&ours)));
    }
    // The header of its device names it.
    let devices = ZramDevice::remove_stale().expect("remove what is left");
    found.extend((0..devices).map(|_| "a zram device".to_owned()));
    found
}

#[test]
fn reclaim_takes_the_cold_half_and_leaves_the_hot_one() {
    let _one = one();
    skip_if!(
        "reclaim_takes_the_cold_half_and_leaves_the_hot_one",
        blind()
    );
    let device = match zram(512 << 20) {
        Ok(device) => device,
        Err(why) => {
            return println!("SKIPPED reclaim_takes_the_cold_half_and_leaves_the_hot_one: {why}");
        }
    };
    let exerciser = exerciser(&["--size", "64M", "--pattern", "hotcold:0.5"]);
    let pid = exerciser.pid().to_string();
    let rehearsal = agewise(&words(&format!(
        "reclaim --pid {pid} --older-than 4s --dry-run --format json"
    )));
    assert!(rehearsal.status.success(), "{rehearsal:?}");
    let planned = last(&rehearsal);
    assert_eq!(number(&planned, "left_bytes"), 0);
    assert!(number(&planned, "rehearsed_bytes") >= 31 << 20, "{planned}");
    let limited = agewise(&words(&format!(
        "reclaim --pid {pid} --older-than 4s --max-bytes 4M --watch 0s --format \
             json"
    )));
    let limited = last(&limited);
    assert!(
        (1..=4 << 20).contains(&number(&limited, "left_bytes")),
        "{limited}"
    );
    let output = agewise(&words(&format!(
        "reclaim --pid {pid} --older-than 4s --watch 1s --format json"
    )));
    assert!(output.status.success(), "{output:?}");
    let total = last(&output);
    // 32 MiB are cold, and 2 of the program itself; part is already out. The hot half has 32 MiB.
    let left = number(&total, "left_anon_bytes");
    let both = left + number(&limited, "left_anon_bytes");
    assert!((31 << 20..=35 << 20).contains(&both), "{limited} {total}");
    assert!(number(&total, "resident_after_bytes") < number(&total, "resident_before_bytes"));
    assert!(number(&total, "refaulted_bytes") <= left / 50, "{total}");
    exerciser.finish().expect("every page is what it was");
    device.remove().expect("remove zram");
}

#[test]
fn a_huge_keep_leaves_everything() {
    let _one = one();
    skip_if!("a_huge_keep_leaves_everything", blind());
    let _swap = match zram(64 << 20) {
        Ok(device) => device,
        Err(why) => return println!("SKIPPED a_huge_keep_leaves_everything: {why}"),
    };
    let exerciser = exerciser(&["--size", "16M"]);
    let pid = exerciser.pid().to_string();
    let output = agewise(&words(&format!(
        "reclaim --pid {pid} --older-than 500ms --keep 1G --format json"
    )));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(number(&last(&output), "left_bytes"), 0, "{output:?}");
    exerciser.finish().expect("unharmed");
}

#[test]
fn what_makes_no_sense_is_an_error_and_moves_nothing() {
    let _one = one();
    let own = std::process::id();
    for (arguments, says) in [
        ("--pid 1 --older-than 1s --interval 5s", "shorter than"),
        ("--pid 1 --older-than 5s --observe 1s", "too short"),
        ("--pid 1 --older-than 0s", "zero"),
        ("--pid 1 --older-than 5s --max-bytes 0", "zero"),
        ("--pid 1 --older-than 5s --rate 0", "zero"),
        ("--older-than 5s", "--pid"),
        ("--pid 2 --older-than 5s", ""),
        ("--pid 4194304 --older-than 5s", "4194304"),
        (
            "--cgroup /nonexistent/cgroup --older-than 5s",
            "nonexistent",
        ),
        (&format!("--pid {own} --older-than 5s"), "ancestors"),
    ] {
        let output = agewise(&[&["reclaim"], &words(arguments)[..]].concat());
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        assert!(output.status.code().is_some(), "{arguments:?} was killed");
        assert!(said.contains(says), "{arguments:?} said: {said}");
        assert!(!said.contains("panicked"), "{arguments:?} said: {said}");
    }
}

#[test]
fn a_target_that_ends_is_told_and_not_a_failure_of_agewise() {
    let _one = one();
    skip_if!(
        "a_target_that_ends_is_told_and_not_a_failure_of_agewise",
        blind()
    );
    let mut sleeper = Command::new("sleep").arg("1").spawn().expect("sleep");
    let pid = sleeper.id().to_string();
    let reaper = std::thread::spawn(move || sleeper.wait());
    let output = agewise(&["reclaim", "--pid", &pid, "--older-than", "3s"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stderr).contains("gone"), "{output:?}");
    reaper.join().expect("join").expect("wait");
}

#[test]
fn a_stopped_process_can_be_reclaimed_and_goes_on() {
    let _one = one();
    skip_if!("a_stopped_process_can_be_reclaimed_and_goes_on", blind());
    let _swap = match zram(64 << 20) {
        Ok(device) => device,
        Err(why) => return println!("SKIPPED a_stopped_process_can_be_reclaimed: {why}"),
    };
    let exerciser = exerciser(&["--size", "16M"]);
    let pid = Pid::from_raw(exerciser.pid() as i32).expect("pid");
    kill_process(pid, Signal::STOP).expect("stop");
    let output = agewise(&[
        "reclaim",
        "--pid",
        &exerciser.pid().to_string(),
        "--older-than",
        "1s",
        "--watch",
        "0s",
        "--format",
        "json",
    ]);
    assert!(output.status.success(), "{output:?}");
    assert!(number(&last(&output), "left_bytes") > 8 << 20, "{output:?}");
    kill_process(pid, Signal::CONT).expect("continue");
    exerciser.finish().expect("unharmed");
}

#[test]
fn run_ends_as_its_command_does() {
    let _one = one();
    skip_if!("run_ends_as_its_command_does", blind());
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["/nonexistent/program"], 127),
        (&["/"], 126),
    ] {
        let output = Command::new(AGEWISE)
            .args(["run", "--older-than", "1s", "--"])
            .args(command)
            .output()
            .expect("run");
        assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
    }
    let output = agewise(&["run", "--older-than", "1ms", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn run_passes_streams_and_signals_on_and_reports() {
    let _one = one();
    skip_if!("run_passes_streams_and_signals_on_and_reports", blind());
    let directory = tempfile::tempdir().expect("tempdir");
    let report = directory.path().join("report");
    let mut child = Command::new(AGEWISE)
        .args(["run", "--older-than", "400ms", "--report"])
        .arg(&report)
        .args([
            "--",
            "sh",
            "-c",
            "trap 'echo ended; exit 9' TERM; echo ready; while :; do sleep 0.1; done",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawn");
    let mut out = std::io::BufReader::new(child.stdout.take().expect("pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).expect("read");
    assert_eq!(line, "ready\n");
    std::thread::sleep(Duration::from_secs(1));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("kill");
    assert_eq!(ended(&mut child).code(), Some(9));
    line.clear();
    std::io::BufRead::read_line(&mut out, &mut line).expect("read");
    assert_eq!(line, "ended\n");
    let said = std::fs::read_to_string(&report).expect("report");
    let lines = json_lines(&said);
    let (run, looks) = lines.split_last().expect("lines");
    assert_eq!(
        (&run["record"], number(run, "exit_code")),
        (&"run".into(), 9)
    );
    assert!(!looks.is_empty() && looks.iter().all(|line| line["record"] == "look"));
    assert!(number(run, "resident_peak_bytes") > 0);
}

#[test]
fn signals_at_any_moment_leave_nothing_behind() {
    let _one = one();
    skip_if!("signals_at_any_moment_leave_nothing_behind", blind());
    // Left by others.
    ZramDevice::remove_stale().expect("remove stale devices");
    for (round, delay_ms) in [50, 400, 900, 1700, 3500, 11_000, 14_000]
        .into_iter()
        .enumerate()
    {
        let mut child = Command::new(AGEWISE)
            .args(["demo", "--zram"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("spawn");
        std::thread::sleep(Duration::from_millis(delay_ms));
        let signal = if round % 2 == 0 {
            Signal::INT
        } else {
            Signal::TERM
        };
        let pid = child.id();
        // On a fast machine it may have ended by itself.
        let _ = kill_process(Pid::from_child(&child), signal);
        let status = ended(&mut child);
        // Before the handler is installed, which takes time on a busy machine, the signal kills it,
        // and there is nothing to undo.
        let expected = Some(128 + signal.as_raw());
        assert!(
            status.code() == expected
                || status.success()
                || status.signal() == Some(signal.as_raw()) && delay_ms < 1000,
            "round {round}: {status}"
        );
        assert_eq!(traces(pid), Vec::<String>::new(), "round {round}");
    }
}

/// A file system that is unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(size: &str) -> Result<SmallDisk, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "agewise-test"])
            .arg(directory.path())
            .output()
            .map_err(|error| format!("no mount: {error}"))?;
        if mounted.status.success() {
            Ok(SmallDisk(directory))
        } else {
            Err(format!("no small disk: {}", text(&mounted.stderr).trim()))
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_disk_that_fills_ends_a_recording_whose_beginning_stays_readable() {
    let _one = one();
    skip_if!("a_disk_that_fills", blind());
    let disk = match SmallDisk::new("192k") {
        Ok(disk) => disk,
        Err(why) => {
            println!("SKIPPED a_disk_that_fills: {why}");
            return;
        }
    };
    let out = disk.0.path().join("t.pages");
    let out = out.to_str().expect("UTF-8");
    // Scattered pages take a byte or two each, so it takes some seconds to fill the disk.
    let recorded = agewise(&words(&format!(
        "trace record --interval 20ms --out {out} -- {AGEWISE} exercise --size 128M \
             --pattern uniform --rate 300000 --seconds 6"
    )));
    let said = text(&recorded.stderr);
    assert_eq!(recorded.status.code(), Some(1), "{said}");
    assert!(
        said.contains(out) && said.contains("stays readable"),
        "{said}"
    );
    assert!(said.contains("the command continues"), "{said}");
    let info = agewise(&["trace", "info", out, "--format", "json"]);
    assert!(info.status.success(), "{}", text(&info.stderr));
    assert!(number(&last(&info), "accesses") > 10_000);
    assert!(
        text(&info.stderr).contains("cut off"),
        "{}",
        text(&info.stderr)
    );
}

/// Page faults appear between the looks at their exact times, and a page that faulted is not
/// recorded as seen in the same interval again.
#[test]
fn recorded_page_faults_are_in_order_and_counted_once() {
    let _one = one();
    skip_if!("recorded_page_faults_are_in_order", blind());
    let directory = tempfile::tempdir().expect("a place for the trace");
    let record = |name: &str, faults: &str| {
        let out = directory.path().join(name);
        let out = out.to_str().expect("UTF-8");
        let arguments = [
            "trace", "record", "--format", "json", "--out", out, "--faults", faults,
        ];
        // The shell gives the recorder time to find the program before it touches its memory.
        let script = format!("sleep 0.5; exec {AGEWISE} exercise --size 32M --seconds 1");
        let recorded = agewise(&[&arguments[..], &["--", "sh", "-c", &script]].concat());
        assert!(recorded.status.success(), "{}", text(&recorded.stderr));
        let said = text(&recorded.stderr);
        let summary = said.lines().rev().find(|line| line.starts_with('{'));
        let summary: Value = serde_json::from_str(summary.expect("a summary")).expect("JSON");
        let cat = text(&agewise(&["trace", "cat", out, "--format", "json"]).stdout);
        (summary, json_lines(&cat))
    };
    let (summary, records) = record("off.pages", "off");
    assert_eq!(number(&summary, "faults"), 0);
    assert!(records.iter().all(|record| record["evidence"] != "fault"));

    let (summary, records) = record("auto.pages", "auto");
    if number(&summary, "faults") == 0 {
        println!("SKIPPED recorded_page_faults_are_in_order: no tracepoint here");
        return;
    }
    assert_eq!(number(&summary, "faults_dropped"), 0, "{summary}");
    let (mut last_ns, mut faults) = (0, 0);
    let mut faulted = std::collections::HashMap::new();
    let mut in_look = false;
    for record in &records {
        let time_ns = number(record, "time_ns");
        assert!(time_ns >= last_ns, "{record} after {last_ns}");
        let first = number(record, "page");
        let evidence = record["evidence"].as_str().expect("a word");
        let is_fault = matches!(evidence, "fault" | "minor_fault" | "major_fault");
        // A new interval begins after the records of a look. A look that found only faulted pages
        // has no records, so a fault over half an interval ago may belong to the interval before.
        if in_look && (is_fault || time_ns != last_ns) {
            faulted.clear();
        }
        (in_look, last_ns) = (!is_fault, time_ns);
        if is_fault {
            assert!(record["kind"] == "r" || record["kind"] == "w");
            faults += 1;
            faulted.insert(first, time_ns);
        } else {
            let again = (first..first + number(record, "count"))
                .filter_map(|page| faulted.get(&page))
                .any(|fault_ns| time_ns - fault_ns < 50_000_000);
            assert!(!again, "{record} faulted in its interval");
        }
    }
    assert_eq!(faults, number(&summary, "faults"));
    assert!(faults > 32 << 8 >> 4, "{summary}");
}

/// A program for which seeing every access would be too expensive is recorded at lower cost, and
/// the trace still shows what the program did within each second.
#[test]
fn a_program_that_recording_would_slow_is_spared() {
    let _one = one();
    skip_if!("a_program_that_recording_would_slow_is_spared", blind());
    let directory = tempfile::tempdir().expect("a place for the trace");
    let out = directory.path().join("t.pages");
    let out = out.to_str().expect("UTF-8");
    let exerciser = exerciser(&["--size", "256M", "--pattern", "uniform", "--rate", "0"]);
    let pid = exerciser.pid().to_string();
    let recorded = agewise(&words(&format!(
        "trace record --pid {pid} --duration 6s --max-slowdown 2% --out {out} \
             --format json"
    )));
    exerciser.finish().expect("unharmed");
    assert!(recorded.status.success(), "{}", text(&recorded.stderr));
    let summary = last(&recorded);
    assert_eq!(number(&summary, "spared_processes"), 1, "{summary}");
    let (all, inferred) = (number(&summary, "accesses"), number(&summary, "inferred"));
    assert!(inferred * 2 > all && inferred < all, "{summary}");
    let info = last(&agewise(&["trace", "info", out, "--format", "json"]));
    assert_eq!(number(&info, "inferred"), inferred);
    let cat = text(&agewise(&["trace", "cat", out, "--from", "5s", "--format", "json"]).stdout);
    let mut pages = std::collections::HashSet::new();
    for line in json_lines(&cat) {
        let first = number(&line, "page");
        pages.extend(first..first + number(&line, "count"));
    }
    // All of the 256 MiB were touched several times in that second.
    assert!((63_000..70_000).contains(&pages.len()), "{}", pages.len());
}

/// Cold pages are marked and pages in use are activated, without changing a page or causing a fault
/// that reads from disk.
#[test]
fn sort_marks_the_cold_half_and_raises_the_hot_one() {
    let _one = one();
    skip_if!("sort_marks_the_cold_half_and_raises_the_hot_one", blind());
    let exerciser = exerciser(&words("--size 64M --pattern hotcold:0.5 --rate 40000"));
    let pid = exerciser.pid().to_string();
    let sort = |more: &[&str]| {
        let target = ["sort", "--pid", &pid, "--older-than", "2s"];
        let times = ["--interval", "700ms", "--duration", "4s"];
        let rest = ["--format", "json"];
        let output = agewise(&[&target[..], &times[..], &rest[..], more].concat());
        assert!(output.status.success(), "{output:?}");
        let total = last(&output);
        // It does not end with the last interval that is complete.
        assert!(total["seconds"].as_f64() >= Some(4.0), "{total}");
        assert!(number(&total, "used_bytes") > 24 << 20, "{total}");
        total
    };
    let tried = sort(&["--dry-run"]);
    assert_eq!(number(&tried, "sorted_bytes"), 0);
    assert_eq!(number(&tried, "calls"), 0);
    assert!(number(&tried, "asked_bytes") > 24 << 20, "{tried}");
    let sorted = sort(&[]);
    let half = 32u64 << 20;
    assert!(number(&sorted, "sorted_bytes") > half * 3 / 4, "{sorted}");
    let lru_gen = std::fs::read_to_string("/sys/kernel/mm/lru_gen/enabled").unwrap_or_default();
    if matches!(lru_gen.trim(), "" | "0x0000") {
        assert!(number(&sorted, "raised_bytes") > half / 2, "{sorted}");
    } else {
        assert_eq!(number(&sorted, "raised_bytes"), 0, "{sorted}");
    }
    assert_eq!(number(&sort(&["--cold-only"]), "raised_bytes"), 0);
    exerciser.finish().expect("no page changed");
}
