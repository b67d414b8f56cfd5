// SPDX-License-Identifier: Apache-2.0
//! The daemon as a program: real processes and cgroups, signals, stalls and kills. Needs root and
//! BPF; skipped with a message otherwise.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use agewise_cli::children::Killed;
use agewise_host::process::Process;
use rustix::process::Signal;
use serde_json::Value;
use support::need::zram;
use support::{AGEWISE, Daemon, Group, MIB, blind, half_cold, one, spawn, write_config};

fn age_rule(pid: u32, more: &str) -> String {
    format!(
        "[observe]\ncgroups = []\ntick = '500ms'\ncpu_percent = 50\n[[act]]\npids = [{pid}]\n\
         policy = 'age:2s/1s,backoff=off'\n{more}"
    )
}

#[test]
fn a_configuration_is_printed_checked_and_refused_with_its_line() {
    let default = Command::new(AGEWISE)
        .args(["config", "default"])
        .output()
        .unwrap();
    assert!(default.status.success());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("agewise.toml");
    let check = || {
        let output = Command::new(AGEWISE)
            .args(["config", "check"])
            .arg(&file)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    std::fs::write(&file, &default.stdout).unwrap();
    assert_eq!(check(), (Some(0), String::new()));
    std::fs::write(&file, "[observe]\n\ntick = 'often'\n").unwrap();
    let (code, error) = check();
    assert_eq!(code, Some(78));
    assert!(
        error.contains("line 3") && error.contains("tick"),
        "{error}"
    );
    assert!(error.contains("agewise.toml"), "{error}");
    // The daemon refuses it too, before it does anything.
    let daemon = || {
        let output = Command::new(AGEWISE)
            .args(["daemon", "--config"])
            .arg(&file)
            .env("STATE_DIRECTORY", directory.path())
            .output();
        output.unwrap()
    };
    let output = daemon();
    let unit = include_str!("../../../packaging/systemd/agewise.service");
    assert_eq!(output.status.code(), Some(78));
    assert!(unit.contains("RestartPreventExitStatus=78\n"), "{unit}");

    // So do both where a file could not be written.
    let nowhere = directory.path().join("none/journal");
    let text = format!("journal.file = '{}'\n", nowhere.display());
    std::fs::write(&file, text).unwrap();
    let wanted = format!("journal.file: {}: there is no directory", nowhere.display());
    let (code, error) = check();
    assert_eq!(code, Some(78), "{error}");
    assert!(error.contains(&wanted), "{error}");
    let output = daemon();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains(&wanted), "{said}");
}

#[test]
fn a_rehearsal_moves_nothing_and_writes_what_it_would_have_moved() {
    skip_if!("a_rehearsal_moves_nothing", blind());
    let _one = one();
    let exerciser = half_cold("32M");
    let daemon = Daemon::start(&age_rule(exerciser.pid(), ""));
    let after = |line: &Value| line["phase"] == "after";
    let line = daemon.wait_for("action", |line| {
        after(line) && line["rehearsed_bytes"].as_u64() > Some(0)
    });
    assert_eq!(line["dry_run"], true);
    assert_eq!(line["policy"], "age");
    assert_eq!(line["reason"], "older");
    let status = Process::open(exerciser.pid()).unwrap().status().unwrap();
    assert_eq!(status.swap_bytes, 0);
    let journal = daemon.end();
    let actions: Vec<&Value> = journal
        .iter()
        .filter(|line| line["record"] == "action")
        .collect();
    // One line before each action, and one after it.
    for pair in actions.chunks(2) {
        assert_eq!(pair[0]["phase"], "before");
        assert!(pair.get(1).is_none_or(|line| after(line)));
    }
    let mut holds = journal.iter().filter(|line| line["record"] == "hold");
    assert!(holds.all(|line| line["phase"].is_null()));
    assert_eq!(journal.last().unwrap()["record"], "stop");
    exerciser.finish().unwrap();
}

#[test]
fn a_bad_configuration_changes_nothing_and_a_good_one_is_taken() {
    skip_if!("a_bad_configuration_changes_nothing", blind());
    let _one = one();
    let exerciser = half_cold("8M");
    let daemon = Daemon::start(
        "metrics.listen = '127.0.0.1:9'\n\
         [observe]\ncgroups = []\ntick = '200ms'\ncpu_percent = 50\npids = [1]\n",
    );
    let doubt = |what: &str| {
        daemon.wait_for("doubt", |line| {
            line["message"].as_str().unwrap().starts_with(what)
        });
    };
    doubt("metrics.listen has no effect");
    write_config(daemon.directory.path(), "[observe]\ntic = '1s'\n");
    daemon.signal(Signal::HUP);
    let line = daemon.wait_for("reload_failed", |_| true);
    let message = line["message"].as_str().unwrap();
    assert!(message.contains("unknown field `tic`"), "{message}");
    // A FIFO that nobody writes to must not block the daemon either.
    let toml = daemon.directory.path().join("agewise.toml");
    std::fs::remove_file(&toml).unwrap();
    let made = Command::new("mkfifo").arg(&toml).status().unwrap();
    assert!(made.success());
    daemon.signal(Signal::HUP);
    daemon.wait_for("reload_failed", |line| {
        line["message"]
            .as_str()
            .unwrap()
            .contains("not a regular file")
    });
    std::fs::remove_file(&toml).unwrap();
    let rule = age_rule(exerciser.pid(), "");
    write_config(daemon.directory.path(), &rule);
    daemon.signal(Signal::HUP);
    daemon.wait_for("reload", |_| true);
    daemon.wait_for("follow", |line| line["policy"] == "age");
    let rule = rule.replace("age:2s/1s,backoff=off", "cost");
    write_config(daemon.directory.path(), &rule);
    daemon.signal(Signal::HUP);
    daemon.wait_for("unfollow", |line| line["policy"] == "age");
    daemon.wait_for("follow", |line| line["policy"] == "cost");
    // What is taken only later is named.
    write_config(
        daemon.directory.path(),
        &format!("{rule}\n[files]\nenabled = true\n[metrics]\nallow_remote = true\n"),
    );
    daemon.signal(Signal::HUP);
    daemon.wait_for("reload", |line| {
        let message = line["message"].as_str().unwrap();
        message.contains("[files] takes effect at the next start")
    });
    doubt("metrics.allow_remote has no effect");
    // A process that the daemon follows may end at any time.
    let pid = exerciser.pid().to_string();
    exerciser.finish().unwrap();
    daemon.wait_for("gone", |line| {
        line["target"].as_str().unwrap().starts_with(&pid)
    });
    daemon.end();
}

#[test]
fn cold_memory_leaves_and_a_killed_daemon_goes_on_when_started_again() {
    skip_if!("cold_memory_leaves", blind());
    let _one = one();
    let device = match zram(128 * MIB) {
        Ok(device) => device,
        Err(why) => return println!("SKIPPED cold_memory_leaves: {why}"),
    };
    let exerciser = half_cold("64M");
    let process = Process::open(exerciser.pid()).unwrap();
    let config = age_rule(exerciser.pid(), "dry_run = false\n");
    let mut daemon = Daemon::start(&config);
    let left = |line: &Value| line["left_anon_bytes"].as_u64().unwrap_or(0);
    let line = daemon.wait_for("action", |line| left(line) > 0);
    let [at_ms, next_ms] = ["unix_ms", "next_unix_ms"].map(|name| line[name].as_u64().unwrap());
    assert!(next_ms.abs_diff(at_ms) < 60_000, "{line}");
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    daemon.child = spawn(daemon.directory.path());
    let second = daemon.child.id();
    daemon.wait_for("start", |line| line["pid"] == second);
    let began = Instant::now();
    while process.status().unwrap().swap_bytes < 28 * MIB {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{:#?}",
            daemon.journal()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let journal = daemon.end();
    let starts = journal.iter().filter(|l| l["record"] == "start").count();
    assert_eq!(starts, 2);
    // Memory in use stayed.
    let status = process.status().unwrap();
    assert!(status.swap_bytes <= 36 * MIB, "{status:?}");
    exerciser.finish().unwrap();
    device.remove().unwrap();
}

/// Number of processes in the scale test, in cgroups of ten; `AGEWISE_SCALE=PROCESSES` overrides
/// it.
const PROCESSES: usize = 2000;
/// Mapped by each process and hardly touched: 16 GiB in all.
const MAPPED_BYTES: usize = 8 << 20;

/// Not a test: the scale test starts many of these.
#[test]
#[ignore = "only a child of the test of scale"]
fn a_process_of_the_test_of_scale() {
    if std::env::var_os("AGEWISE_SCALE_CHILD").is_none() {
        return;
    }
    let mut memory: Vec<u8> = Vec::with_capacity(MAPPED_BYTES);
    for at in (0..MAPPED_BYTES).step_by(64 * 4096) {
        memory.spare_capacity_mut()[at].write(1);
    }
    println!("ready");
    std::thread::sleep(Duration::from_secs(3600));
    drop(memory);
}

/// Many processes in many cgroups come and go: the budget is kept, and memory stays bounded.
#[test]
#[ignore = "minutes; run by `cargo test --test daemon -- --ignored many`"]
fn many_processes_in_many_cgroups_stay_within_the_budget() {
    skip_if!("many_processes", blind());
    let _one = one();
    let count = std::env::var("AGEWISE_SCALE")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(PROCESSES);
    let top = match Group::create("scale") {
        Ok(top) => top,
        Err(why) => return println!("SKIPPED many_processes: {why}"),
    };
    let groups: Vec<Group> = (0..count.div_ceil(10))
        .map(|n| top.below(&n.to_string()))
        .collect();
    let start = |group: &Group| {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "--nocapture",
                "a_process_of_the_test_of_scale",
            ])
            .env("AGEWISE_SCALE_CHILD", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        group.take_in(child.id());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(
            lines
                .map_while(Result::ok)
                .any(|line| line.ends_with("ready"))
        );
        Killed(child)
    };
    let mut children: Vec<Killed> = (0..count).map(|n| start(&groups[n / 10])).collect();
    let config = format!("[observe]\ncgroups = ['{}/**']\n", top.path);
    let daemon = Daemon::start(&config);
    let own = Process::open(daemon.child.id()).unwrap();
    let cpu_ms = || {
        let stat = own.stat().unwrap();
        let ticks = stat.user_ticks + stat.system_ticks;
        ticks as f64 * 1e3 / rustix::param::clock_ticks_per_second() as f64
    };
    let (began, cpu_began_ms) = (Instant::now(), cpu_ms());
    let mut next = 0;
    while began.elapsed() < Duration::from_secs(60) {
        // Some processes end, and others take their place.
        for _ in 0..5 {
            children[next % count] = start(&groups[next % count / 10]);
            next += 7;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let used_ms = cpu_ms() - cpu_began_ms;
    // 1 % of the time, what was saved up at the start (another minute's worth), and one look.
    let granted_ms = began.elapsed().as_secs_f64() * 10.0 + 600.0;
    let resident = own.rss_bytes().unwrap();
    let mapped_pages = (count * MAPPED_BYTES / 4096) as f64;
    println!(
        "{count} processes: {used_ms:.0} ms CPU of {granted_ms:.0}, {:.1} MiB resident",
        resident as f64 / MIB as f64
    );
    let journal = daemon.end();
    let look_ms = journal
        .iter()
        .find(|line| line["record"] == "short")
        .and_then(|line| line["actual_ms"].as_f64())
        .map_or(0.0, |ms| ms / 100.0);
    assert!(
        used_ms <= granted_ms + 2.0 * look_ms,
        "{used_ms} of {granted_ms}, a look {look_ms}"
    );
    assert!(resident as f64 <= 64.0 * MIB as f64 + 1.1 * mapped_pages);
    drop(children);
}
