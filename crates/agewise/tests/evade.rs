// SPDX-License-Identifier: Apache-2.0
//! How `report` and `reclaim` treat processes and cgroups that try to hide.

#[allow(dead_code, reason = "each test program uses its part of it")]
#[path = "../../host/tests/support/headless.rs"]
mod headless;
#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::Duration;

use agewise_host::cgroup::Hierarchy;
use agewise_host::root::ProcRoot;
use assert_cmd::cargo::cargo_bin;
use headless::{HOG_BYTES, Headless};
use serde_json::Value;
use support::program::{json_lines, words};
use support::{Daemon, blind, one};

fn agewise(args: &[&str]) -> Output {
    Command::new(cargo_bin("agewise"))
        .args(args)
        .output()
        .expect("agewise starts")
}

/// The age records; if there are none, panics with the error output.
fn ages(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = json_lines(&text);
    lines.retain(|line| line["record"] != "cost");
    assert!(
        !lines.is_empty(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    lines
}

/// Anonymous memory in all bins of a record.
fn resident_bytes(record: &Value) -> u64 {
    fn sum(value: &Value) -> u64 {
        match value {
            Value::Object(fields) => fields
                .iter()
                .map(|(key, value)| match (key.as_str(), value) {
                    ("anon_bytes", Value::Number(bytes)) => bytes.as_u64().unwrap_or(0),
                    (_, value) => sum(value),
                })
                .sum(),
            Value::Array(values) => values.iter().map(sum).sum(),
            _ => 0,
        }
    }
    sum(record)
}

#[test]
fn memory_of_a_process_without_its_first_thread_is_reported() {
    let child = Headless::start();
    let pid = child.0.to_string();
    for source in ["auto", "pagemap"] {
        let args = ["report", "--pid", &pid, "--duration", "1s", "--eye", source];
        let output = agewise(&[&args[..], &["--format", "json"]].concat());
        let records = ages(&output);
        assert!(
            resident_bytes(&records[0]) >= HOG_BYTES as u64,
            "{source}: {records:?}"
        );
    }
}

#[test]
fn what_cannot_be_moved_of_it_is_said() {
    let child = Headless::start();
    let pid = child.0.to_string();
    for args in [
        "reclaim --older-than 100ms --observe 200ms --watch 0s --pid",
        "sort --older-than 400ms --duration 2s --pid",
    ] {
        let words: Vec<&str> = args.split(' ').chain([&pid[..]]).collect();
        let output = agewise(&words);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        let is_named = said.contains("without its first thread");
        let cannot_look = said.contains("agewise doctor");
        if cannot_look && !is_named {
            println!(
                "SKIPPED what_cannot_be_moved_of_it_is_said: page tables cannot be read: {said}"
            );
            return;
        }
        assert!(is_named, "{said}");
        assert_eq!(output.status.code(), Some(1), "{said}");
    }
}

/// A cgroup with a process, whose name is not valid text.
struct Odd {
    dir: PathBuf,
    child: Child,
}

impl Drop for Odd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for _ in 0..500 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_cgroup_whose_name_is_no_text_is_reported() {
    let test = "a_cgroup_whose_name_is_no_text_is_reported";
    let Ok(hierarchy) = Hierarchy::discover(&ProcRoot::default()) else {
        println!("SKIPPED {test}: no memory cgroups");
        return;
    };
    let name = format!("agewise-test-odd-{}", std::process::id());
    let bytes = [name.as_bytes(), b"\xff"].concat();
    let dir = hierarchy.root.join(OsStr::from_bytes(&bytes));
    if let Err(error) = fs::create_dir(&dir) {
        println!("SKIPPED {test}: {error}");
        return;
    }
    let child = Command::new("sleep").arg("600").spawn().expect("sleep");
    let odd = Odd { dir, child };
    fs::write(odd.dir.join("cgroup.procs"), odd.child.id().to_string()).unwrap();
    let shown = format!("/{name}\\xff");
    let raw = [b"/", &bytes[..]].concat();
    let targets: [Vec<&OsStr>; 3] = [
        ["--all", "--top", "0"].map(OsStr::new).into(),
        ["--cgroup", &shown].map(OsStr::new).into(),
        vec![OsStr::new("--cgroup"), OsStr::from_bytes(&raw)],
    ];
    for target in targets {
        let args = words("report --duration 1s --format json --eye pagemap");
        let output = Command::new(cargo_bin("agewise"))
            .args(args)
            .args(&target)
            .output();
        let output = output.expect("agewise runs");
        let records = ages(&output);
        let found = records
            .iter()
            .find(|record| record.to_string().contains(&format!("{name}\\\\xff")));
        let found = found.unwrap_or_else(|| panic!("{target:?}: {records:?}"));
        assert!(resident_bytes(found) > 0, "{found}");
    }
}

#[test]
fn in_a_time_namespace_processes_are_who_they_are() {
    const TEST: &str = "in_a_time_namespace_processes_are_who_they_are";
    if let Some(why) = blind() {
        println!("SKIPPED {TEST}: {why}");
        return;
    }
    let unshare = ["--time", "--boottime", "100000", "--fork", "--kill-child"];
    let works = Command::new("unshare").args(unshare).arg("true").output();
    if !works.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED {TEST}: no time namespaces, or no unshare(1)");
        return;
    }
    let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
    let pid = child.id().to_string();
    let output = Command::new("unshare")
        .args(unshare)
        .arg(cargo_bin("agewise"))
        .args(["report", "--duration", "1s", "--format", "json", "--pid"])
        .arg(&pid)
        .output()
        .expect("unshare");
    child.kill().expect("ours");
    child.wait().expect("ours");
    let records = ages(&output);
    assert!(resident_bytes(&records[0]) > 0, "{records:?}");
}

/// Starts a process with the given pid that waits forever, as if pids had wrapped around; an error
/// if the kernel does not allow choosing a pid.
fn start_as(pid: u32) -> std::io::Result<Headless> {
    let wanted = pid as libc::pid_t;
    // SAFETY: all zero is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    args.set_tid = (&raw const wanted) as u64;
    args.set_tid_size = 1;
    let size = size_of::<libc::clone_args>();
    // SAFETY: without shared memory this is a fork, and the child calls no Rust code.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size) } {
        0 => loop {
            // SAFETY: only waits for a signal.
            unsafe { libc::pause() };
        },
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(Headless(pid)),
    }
}

#[test]
fn a_rule_for_a_pid_does_not_follow_the_next_process_with_that_number() {
    const TEST: &str = "a_rule_for_a_pid_does_not_follow_the_next_process_with_that_number";
    if let Some(why) = blind() {
        println!("SKIPPED {TEST}: {why}");
        return;
    }
    let _one = one();
    let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
    let pid = child.id();
    let daemon = Daemon::start(&format!(
        "[observe]\ncgroups = []\ntick = '200ms'\ncpu_percent = 50\n[[act]]\npids = [{pid}]\n\
         policy = 'age:2s/1s,backoff=off'\n"
    ));
    let is_it = |line: &Value| {
        let subject = line["target"].as_str().unwrap_or("");
        subject.starts_with(&format!("{pid} "))
    };
    daemon.wait_for("follow", is_it);
    child.kill().unwrap();
    child.wait().unwrap();
    let next = match start_as(pid) {
        Ok(next) => next,
        Err(error) => {
            println!("SKIPPED {TEST}: no process with a pid of our choice: {error}");
            return;
        }
    };
    daemon.wait_for("gone", is_it);
    // Reloading the configuration does not change that.
    daemon.signal(rustix::process::Signal::HUP);
    daemon.wait_for("reload", |_| true);
    std::thread::sleep(Duration::from_secs(1));
    let journal = daemon.end();
    let follows = journal
        .iter()
        .filter(|line| line["record"] == "follow" && is_it(line));
    assert_eq!(follows.count(), 1, "{journal:#?}");
    drop(next);
}
