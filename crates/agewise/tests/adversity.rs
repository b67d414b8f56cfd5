// SPDX-License-Identifier: Apache-2.0
//! Adverse events while `agewise` runs: the cgroup is removed, the pid is reused, there is no
//! BTF, or BPF is refused.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use agewise_cli::children::Killed;
use assert_cmd::cargo::cargo_bin;
use support::Group;
use support::program::words;
use support::refuse::refuse_call;

struct Running(Killed);

impl Running {
    fn sleeper() -> Self {
        let child = Command::new("sleep").arg("60").spawn();
        Running(Killed(child.expect("sleep starts")))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED {test}: needs root");
    }
    root
}

/// Starts a command, which has looked at its target after a second.
fn started(args: &[&str]) -> Child {
    let child = Command::new(cargo_bin("agewise"))
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("agewise starts");
    std::thread::sleep(Duration::from_millis(1000));
    child
}

fn both(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn a_cgroup_that_is_removed_half_way_is_told() {
    let test = "a_cgroup_that_is_removed_half_way_is_told";
    if !is_root(test) {
        return;
    }
    for command in [
        ["report", "--intervals", "200ms", "--duration", "3s"],
        ["files", "--intervals", "200ms", "--duration", "3s"],
        ["reclaim", "--files", "--dry-run", "--older-than", "3s"],
    ] {
        let group = match Group::create("gone") {
            Ok(group) => group,
            Err(why) => return println!("SKIPPED {test}: {why}"),
        };
        let sleeper = Running::sleeper();
        group.take_in(sleeper.pid());
        let dir = group.dir.clone();
        let running = started(&[&command[..], &["--cgroup", &group.path]].concat());
        drop((sleeper, group));
        assert!(!dir.exists(), "{} could not be removed", dir.display());
        let output = running.wait_with_output().unwrap();
        let said = both(&output);
        if command[0] != "report" && said.contains("not available here") {
            println!("SKIPPED {test}: {}: {said}", command[0]);
            continue;
        }
        assert_eq!(output.status.code(), Some(3), "{command:?}: {said}");
        assert!(said.contains("has been removed"), "{command:?}: {said}");
    }
}

#[test]
fn a_process_that_ends_while_it_is_watched_is_no_evidence() {
    let test = "a_process_that_ends_while_it_is_watched_is_no_evidence";
    if !is_root(test) {
        return;
    }
    let sleeper = Running::sleeper();
    let pid = sleeper.pid().to_string();
    let running = started(&words(&format!(
        "reclaim --pid {pid} --older-than 200ms --watch 8s --format json"
    )));
    std::thread::sleep(Duration::from_millis(1500));
    drop(sleeper);
    let output = running.wait_with_output().unwrap();
    let said = both(&output);
    let nothing = [
        "\"left_bytes\":0,",
        "nothing was moved",
        "the age of single pages",
    ];
    if nothing.iter().any(|text| said.contains(text)) {
        println!("SKIPPED {test}: nothing could be moved out: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("\"error\":\"gone while watched"), "{said}");
}

#[test]
fn a_pid_that_is_given_to_somebody_else_is_not_followed() {
    let test = "a_pid_that_is_given_to_somebody_else_is_not_followed";
    if !is_root(test) {
        return;
    }
    let sleeper = Running::sleeper();
    let pid = sleeper.pid();
    let report = started(&["report", "--pid", &pid.to_string(), "--duration", "3s"]);
    drop(sleeper);
    // The next pid can be chosen (CONFIG_CHECKPOINT_RESTORE), but another process may take it
    // first.
    let heir = (0..50).find_map(|_| {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        Some(Running::sleeper()).filter(|next| next.pid() == pid)
    });
    let output = report.wait_with_output().unwrap();
    if heir.is_none() {
        println!("SKIPPED {test}: pid {pid} could not be had again by ns_last_pid");
        return;
    }
    let said = both(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("the process has exited"), "{said}");
}

#[test]
fn without_btf_the_coarse_eye_takes_over_and_says_so() {
    let test = "without_btf_the_coarse_eye_takes_over_and_says_so";
    coarse_because(test, hide_btf, "BTF");
}

#[test]
fn where_bpf_is_refused_the_coarse_eye_takes_over_and_says_so() {
    let test = "where_bpf_is_refused_the_coarse_eye_takes_over_and_says_so";
    coarse_because(test, refuse_bpf, "not permitted");
}

/// A report after `prepare` has taken something away from it.
fn coarse_because(test: &str, prepare: fn() -> std::io::Result<()>, why: &str) {
    if !is_root(test) {
        return;
    }
    let sleeper = Running::sleeper();
    let pid = sleeper.pid().to_string();
    let mut command = Command::new(cargo_bin("agewise"));
    command.args(["report", "--pid", &pid, "--duration", "500ms"]);
    command.args(["--intervals", "100ms"]);
    // SAFETY: system calls only, between fork and exec.
    unsafe { command.pre_exec(prepare) };
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED {test}: nothing can be taken from it here: {error}");
            return;
        }
    };
    let said = both(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains(why), "{said}");
    assert!(said.contains("ages of whole mappings only"), "{said}");
    assert!(said.contains("N0"), "{said}");
}

/// As container run times do: `bpf` is refused by a seccomp filter.
fn refuse_bpf() -> std::io::Result<()> {
    refuse_call(libc::SYS_bpf as u32, libc::EPERM)
}

/// Mounts an empty directory over `/sys/kernel/btf`, for this process alone.
fn hide_btf() -> std::io::Result<()> {
    use std::ptr::null;
    // SAFETY: constant, terminated strings.
    let done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                null(),
                c"/".as_ptr(),
                null(),
                libc::MS_REC | libc::MS_PRIVATE,
                null(),
            ) == 0
            && libc::mount(
                c"none".as_ptr(),
                c"/sys/kernel/btf".as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                null(),
            ) == 0
    };
    if done {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
