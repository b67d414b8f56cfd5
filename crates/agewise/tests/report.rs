// SPDX-License-Identifier: Apache-2.0
//! `agewise report` on real processes: exercisers that record what they touched.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use agewise_cli::children::Killed;
use assert_cmd::cargo::cargo_bin;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::Group;
use support::program::{json_lines, words};

fn agewise(args: &[&str]) -> std::process::Output {
    Command::new(cargo_bin("agewise"))
        .args(args)
        .output()
        .expect("agewise runs")
}

/// Why no memory can be looked at here, by any access source; `None` if it can.
fn sightless() -> Option<String> {
    let own = std::process::id().to_string();
    let look = ["--duration", "150ms", "--scan-interval", "100ms"];
    let output = agewise(&[&["report", "--pid", &own][..], &look].concat());
    if output.status.success() {
        return None;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no access source works here"), "{output:?}");
    Some(said.into_owned())
}

/// A program with `hot` MiB touched all the time and `cold` MiB touched once.
fn holder(hot_mib: u64, cold_mib: u64) -> Killed {
    holder_in(None, hot_mib, cold_mib)
}

/// The same, with its memory charged to a cgroup from the beginning.
fn holder_in(dir: Option<&Group>, hot_mib: u64, cold_mib: u64) -> Killed {
    let size = format!("{}M", hot_mib + cold_mib);
    let pattern = format!("hotcold:{}", hot_mib as f64 / (hot_mib + cold_mib) as f64);
    let enter = match dir {
        Some(dir) => format!("echo $$ > {}/cgroup.procs; ", dir.dir.display()),
        None => String::new(),
    };
    let child = Command::new("sh")
        .args(["-c", &format!("{enter}exec \"$0\" \"$@\"")])
        .arg(cargo_bin("agewise"))
        .args(format!("exercise --size {size} --pattern {pattern} --seconds 60").split(' '))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the exerciser starts");
    let running = Killed(child);
    let wanted_pages = (hot_mib + cold_mib) * 256;
    for _ in 0..200 {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", running.0.id()));
        let resident = statm
            .ok()
            .and_then(|s| s.split(' ').nth(1)?.parse::<u64>().ok());
        if resident.is_some_and(|pages| pages >= wanted_pages) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // Filling touches all pages: wait until that is over.
    std::thread::sleep(Duration::from_millis(300));
    running
}

fn records(output: &std::process::Output) -> Vec<Value> {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    json_lines(&String::from_utf8_lossy(&output.stdout))
}

fn bins(record: &Value) -> Vec<(u64, u64, u64)> {
    let number = |value: &Value| value.as_u64().unwrap();
    record["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|node| node["bins"].as_array().unwrap())
        .map(|bin| {
            (
                // The last bin has no bound.
                bin["upper_ms"].as_u64().unwrap_or(u64::MAX),
                number(&bin["anon_bytes"]),
                number(&bin["file_bytes"]),
            )
        })
        .collect()
}

#[test]
fn hot_memory_is_young_and_cold_memory_is_old() {
    skip_if!("hot_memory_is_young_and_cold_memory_is_old", sightless());
    const MIB: u64 = 1 << 20;
    let exerciser = holder(64, 64);
    let pid = exerciser.0.id().to_string();
    let output = agewise(&words(&format!(
        "report --pid {pid} --duration 4s --intervals 1s,3s,1m --format json"
    )));
    let records = records(&output);
    let (ages, cost) = (&records[0], &records[1]);
    let bins = bins(ages);
    let (young, old) = (bins[0].1, bins[2].1);
    assert!(young.abs_diff(64 * MIB) < 3 * MIB, "{bins:?}");
    assert!(old.abs_diff(64 * MIB) < 3 * MIB, "{bins:?}");
    // All resident memory is in some bin: within 1 % of what the kernel counts.
    let total: u64 = bins.iter().map(|(_, anon, file)| anon + file).sum();
    assert_eq!(ages["resident_bytes"].as_u64(), Some(total));
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let rss = statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096;
    assert!(
        total.abs_diff(rss) < rss / 100 + 256 * 1024,
        "{total} of {rss}"
    );
    assert!(ages["unseen_anon_bytes"].as_u64().unwrap() >= 60 * MIB);
    assert_eq!(cost["record"], "cost");
    assert!(cost["scans"].as_u64().unwrap() >= 4);
    assert!(cost["agemap_bytes_per_page"].as_f64().unwrap() <= 1.1);
}

#[test]
fn follow_prints_again_and_again_and_a_signal_ends_it() {
    skip_if!(
        "follow_prints_again_and_again_and_a_signal_ends_it",
        sightless()
    );
    let exerciser = holder(4, 4);
    let pid = exerciser.0.id().to_string();
    let mut report = Killed(
        Command::new(cargo_bin("agewise"))
            .args(format!("report --pid {pid} --follow 400ms --intervals 200ms,1s").split(' '))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let lines = BufReader::new(report.0.stdout.take().unwrap()).lines();
    let headers = lines
        .map_while(Result::ok)
        .filter(|line| line == "N0")
        .take(3)
        .count();
    assert_eq!(headers, 3);
    kill_process(Pid::from_child(&report.0), Signal::INT).unwrap();
    let ended = report.0.wait().unwrap();
    // The reader of the pipe has gone; either way the exit is orderly.
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn a_process_that_exits_half_way_is_told_and_has_its_own_exit_status() {
    skip_if!(
        "a_process_that_exits_half_way_is_told_and_has_its_own_exit_status",
        sightless()
    );
    let sleeper = Killed(Command::new("sleep").arg("1").spawn().unwrap());
    let pid = sleeper.0.id().to_string();
    std::thread::scope(|scope| {
        let reaper = scope.spawn(move || {
            let mut sleeper = sleeper;
            let _ = sleeper.0.wait();
        });
        let output = agewise(&words(&format!(
            "report --pid {pid} --duration 20s --intervals 300ms"
        )));
        assert_eq!(output.status.code(), Some(3));
        assert!(String::from_utf8_lossy(&output.stdout).contains("# gone: the process has exited"));
        reaper.join().unwrap();
    });
}

/// Processes that sleep, and their pids.
fn sleepers(count: usize) -> (Vec<Killed>, Vec<String>) {
    let start = |_| {
        let sleeper = Killed(Command::new("sleep").arg("60").spawn().unwrap());
        let pid = sleeper.0.id().to_string();
        (sleeper, pid)
    };
    (0..count).map(start).unzip()
}

#[test]
fn pages_that_processes_share_count_once() {
    skip_if!("pages_that_processes_share_count_once", sightless());
    let dir = match Group::create("shared") {
        Ok(dir) => dir,
        Err(why) => return println!("SKIPPED pages_that_processes_share_count_once: {why}"),
    };
    let (sleepers, pids) = sleepers(4);
    for pid in &pids {
        dir.take_in(pid.parse().unwrap());
    }
    let common = words("--duration 300ms --intervals 100ms --format json");
    let one_by_one: u64 = pids
        .iter()
        .map(|pid| {
            let output = agewise(&[&["report", "--pid", pid], &common[..]].concat());
            records(&output)[0]["file_bytes"].as_u64().unwrap()
        })
        .sum();
    let output = agewise(&[&["report", "--cgroup", &dir.path], &common[..]].concat());
    let together = records(&output)[0].clone();
    drop(sleepers);
    assert_eq!(together["processes"], 4);
    let file = together["file_bytes"].as_u64().unwrap();
    // The same program and libraries four times: nearly all file pages are shared.
    assert!(
        file > 0 && file < one_by_one / 2,
        "{file} together, {one_by_one} one by one"
    );
}

#[test]
fn a_low_soft_limit_of_open_files_hides_no_process() {
    skip_if!(
        "a_low_soft_limit_of_open_files_hides_no_process",
        sightless()
    );
    let limited = |args: &[&str]| {
        Command::new("sh")
            .args(["-c", "ulimit -S -n 32; exec \"$0\" \"$@\""])
            .arg(cargo_bin("agewise"))
            .args(args)
            .output()
            .expect("sh runs")
    };
    let (_sleepers, pids) = sleepers(64);
    let common = words("--duration 300ms --intervals 100ms --top 0 --format json");
    let output = limited(&[&["report", "--pid", &pids.join(",")], &common[..]].concat());
    let records = records(&output);
    let is_seen = |record: &&Value| record["file_bytes"].as_u64() > Some(0);
    assert_eq!(records.iter().filter(is_seen).count(), 64, "{output:?}");

    let dir = tempfile::tempdir().unwrap();
    let record = format!("trace record --out {}/trace", dir.path().display());
    for start in ["run --dry-run --older-than 1h", &record] {
        let output = limited(&[&words(start)[..], &["--", "sh", "-c", "ulimit -n"]].concat());
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.trim(), "32", "the limit of a command: {output:?}");
    }
}

#[test]
fn wrong_arguments_are_refused_with_a_reason() {
    let own = std::process::id().to_string();
    let many = (1..=40)
        .map(|i| i.to_string())
        .collect::<Vec<_>>()
        .join(",");
    let cases: [(&[&str], i32, &str); 12] = [
        (&["report"], 2, "--pid"),
        (&["report", "--all", "--pid", "1"], 2, "cannot be used with"),
        (
            &["report", "--pid", &own, "--intervals", "5s,1s"],
            2,
            "must increase",
        ),
        (
            &["report", "--pid", &own, "--intervals", &many],
            2,
            "at most 31",
        ),
        (
            &["report", "--pid", &own, "--intervals", "0,1s"],
            2,
            "holds nothing",
        ),
        (&["report", "--pid", &own, "--duration", "0s"], 2, "zero"),
        (
            &["report", "--pid", &own, "--scan-interval", "1ms"],
            2,
            "measures itself",
        ),
        (
            &["report", "--pid", "1", "--depth", "3"],
            2,
            "cannot be used with",
        ),
        (
            &["watch", "--cgroup", "/", "--depth", "3"],
            2,
            "cannot be used with",
        ),
        (&["report", "--pid", "0"], 2, "from 1 to 4194304"),
        (&["report", "--pid", "4194304"], 1, "4194304 does not exist"),
        (&["report", "--cgroup", "no/such/cgroup"], 1, ""),
    ];
    for (args, code, reason) in cases {
        let output = agewise(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(reason), "{args:?}: {stderr}");
    }
}

fn doctor_row(name: &str) -> Value {
    let doctor = agewise(&["doctor", "--format", "json"]);
    let text = String::from_utf8(doctor.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .find(|line| line["group"] == "source" && line["name"] == name)
        .unwrap()
}

/// Asserts that `report` does with a source what `doctor` says: a report, or the reason why not.
fn assert_as_promised(source: &str, target: &[&str], reasons: &[&str]) {
    let option = target[0];
    let common = ["--duration", "1500ms", "--format", "json"];
    // Somebody may start or stop using DAMON between the two calls: then try again.
    for is_last in [false, false, true] {
        let row = doctor_row(source);
        let found = row["found"].as_str().unwrap();
        let is_promised = row["state"] != "missing" && !found.contains(&format!("not {option}"));
        let report = agewise(&[&["report", "--source", source], target, &common[..]].concat());
        let stderr = String::from_utf8_lossy(&report.stderr);
        if report.status.success() != is_promised && !is_last {
            continue;
        }
        assert_eq!(report.status.success(), is_promised, "{row}: {stderr}");
        if is_promised {
            let text = String::from_utf8(report.stdout).unwrap();
            let ages: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
            let resident = ages["resident_bytes"].as_u64().unwrap();
            assert!(resident >= 8 << 20, "{ages}");
        } else {
            // A target that no kernel offers is a wrong argument.
            let wanted = if stderr.contains("give --pid") { 2 } else { 1 };
            assert_eq!(report.status.code(), Some(wanted), "{stderr}");
            let is_given = reasons.iter().any(|reason| stderr.contains(reason));
            assert!(is_given, "{row}: {stderr}");
        }
        return;
    }
}

/// Whatever sources this kernel has, `report` and `doctor` agree.
#[test]
fn the_kernels_own_sources_work_or_say_why_not_as_doctor_does() {
    let dir = Group::create("sources");
    let target = holder_in(dir.as_ref().ok(), 4, 4);
    let reasons = [
        "in use by",
        "has no /sys/kernel/mm/damon",
        "cannot watch",
        "cannot read",
        "needs Linux",
        "give --pid or --cgroup",
    ];
    assert_as_promised("damon", &["--pid", &target.0.id().to_string()], &reasons);
    match &dir {
        Ok(dir) => {
            assert_as_promised("damon", &["--cgroup", &dir.path], &reasons);
            assert_as_promised("damon", &["--all"], &reasons);
        }
        Err(why) => println!("SKIPPED the cgroups of this test: {why}"),
    }
    let reasons = [
        "CONFIG_LRU_GEN",
        "switched off",
        "debugfs",
        "accounts memory",
    ];
    assert_as_promised("lru_gen", &["--cgroup", "/"], &reasons);
    // Its cgroup can be removed once it has ended.
    drop(target);
}

#[test]
fn sources_are_chosen_by_name_and_refuse_what_they_cannot_do() {
    let target = holder(4, 4);
    let pid = target.0.id().to_string();
    let by_pid = agewise(&words(&format!(
        "report --source lru_gen --pid {pid} --duration 1s"
    )));
    assert_eq!(by_pid.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&by_pid.stderr);
    assert!(
        stderr.contains("by memory cgroup, not by process"),
        "{stderr}"
    );
    // The former name of the option.
    let exact = agewise(&["report", "--eye", "damon", "--pid", &pid, "--exact"]);
    assert_eq!(exact.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&exact.stderr);
    assert!(stderr.contains("--exact"), "{stderr}");
    let unknown = agewise(&["report", "--source", "glasses", "--pid", &pid]);
    assert_eq!(unknown.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&unknown.stderr);
    assert!(
        stderr.contains("pagewalk, pagemap, damon, lru_gen"),
        "{stderr}"
    );

    let coarse = agewise(&words(&format!(
        "report --source pagemap --pid {pid} --duration 300ms --scan-interval 100ms \
             --format json"
    )));
    let stderr = String::from_utf8_lossy(&coarse.stderr);
    assert!(coarse.status.success(), "{stderr}");
    assert!(stderr.contains("whole mappings only"), "{stderr}");
    let text = String::from_utf8(coarse.stdout).unwrap();
    let ages: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert!(ages["anon_bytes"].as_u64().unwrap() >= 8 << 20, "{ages}");
}
