// SPDX-License-Identifier: Apache-2.0
//! A process with a real KVM virtual machine: its memory is marked everywhere, and leaves only if
//! somebody asks for it.

mod program;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Command, Stdio};

use agewise_cli::children::Killed;
use program::{agewise, agewise_code, json_lines};
use serde_json::json;

/// linux/kvm.h.
const KVM_CREATE_VM: libc::Ioctl = 0xae01;
const KVM_GET_VCPU_MMAP_SIZE: libc::Ioctl = 0xae04;
const KVM_CREATE_VCPU: libc::Ioctl = 0xae41;

const MACHINE: &str = "AGEWISE_TEST_MACHINE";

/// Creates a machine with one CPU, which never runs, and waits for the end of standard input.
#[test]
#[ignore = "a child of the other test"]
fn machine() {
    if std::env::var_os(MACHINE).is_none() {
        return;
    }
    let call = |of: &File, number, argument: libc::c_ulong| {
        // SAFETY: these requests take a number.
        let answer = unsafe { libc::ioctl(of.as_raw_fd(), number, argument) };
        let error = std::io::Error::last_os_error();
        if answer < 0 {
            println!("cannot: {error}");
            std::process::exit(0);
        }
        answer
    };
    // SAFETY: the caller owns the descriptor that was just made.
    let made = |fd| unsafe { File::from_raw_fd(fd) };
    let kvm = File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .unwrap();
    let vm = made(call(&kvm, KVM_CREATE_VM, 0));
    let size = call(&kvm, KVM_GET_VCPU_MMAP_SIZE, 0) as usize;
    let cpu = made(call(&vm, KVM_CREATE_VCPU, 0));
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let state = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            access,
            shared,
            cpu.as_raw_fd(),
            0,
        )
    };
    assert_ne!(state, libc::MAP_FAILED);
    println!("\nready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// A process with a machine, or why there is none.
fn start() -> Result<Killed, String> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .map_err(|error| format!("/dev/kvm: {error}"))?;
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "machine", "--ignored", "--nocapture"])
        .env(MACHINE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        match line.strip_prefix("cannot: ") {
            _ if line == "ready" => return Ok(child),
            Some(why) => return Err(format!("no virtual machine: {why}")),
            None => {}
        }
    }
    panic!("the child has ended: {:?}", child.0.wait());
}

#[test]
fn what_guests_access_is_not_seen_and_everything_says_so() {
    let child = match start() {
        Ok(child) => child,
        Err(why) => return println!("SKIPPED memory of KVM guests: {why}"),
    };
    let pid = child.0.id();
    let name = pid.to_string();
    let report = |format| {
        let times = ["--duration", "300ms", "--scan-interval", "100ms"];
        agewise(&[&["report", "--pid", &name, "--format", format][..], &times].concat())
    };
    let (is_done, out, said) = report("json");
    if !is_done && said.contains("no access source works here") {
        return println!("SKIPPED memory of KVM guests: {said}");
    }
    assert_eq!(json_lines(&out)[0]["guest_hosts"], json!([pid]), "{out}");
    let note = format!("process {pid} runs KVM guests");
    assert!(said.contains(&note), "{said}");
    let (_, out, _) = report("csv");
    let mut rows = csv::Reader::from_reader(out.as_bytes());
    let column = rows
        .headers()
        .unwrap()
        .iter()
        .position(|name| name == "guest_hosts");
    for row in rows.records() {
        assert_eq!(row.unwrap().get(column.unwrap()), Some(&*name));
    }
    let (_, out, _) = agewise(&["doctor", "--format", "json"]);
    let lines = json_lines(&out);
    let line = lines.iter().find(|line| line["name"] == "guests").unwrap();
    assert!(line["found"].as_str().unwrap().contains(&name), "{line}");

    for command in [&["reclaim"][..], &["sort", "--duration", "500ms"]] {
        let act = |more: &[&str]| {
            let args = ["--pid", &name, "--older-than", "200ms", "--dry-run"];
            agewise_code(&[command, &args, more].concat())
        };
        let (status, _, said) = act(&[]);
        if said.contains("needs the age of single pages") {
            return println!("SKIPPED moving memory of KVM guests: {said}");
        }
        assert!(status == Some(1) && said.contains("left alone"), "{said}");
        let (status, _, said) = act(&["--guests"]);
        let warning = format!("{note}: what they access is not in its page tables");
        assert!(status == Some(0) && said.contains(&warning), "{said}");
    }
}
