// SPDX-License-Identifier: Apache-2.0
//! Fake proc trees for rare cases (reused pids, odd names), real children for the rest.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;

fn fake(dir: &Path, pid: u32, stat: &str) {
    let dir = dir.join(pid.to_string());
    fs::create_dir_all(dir.join("task").join(pid.to_string())).unwrap();
    fs::write(dir.join("stat"), stat).unwrap();
}

/// Builds a stat line as described in proc(5): flags is field 9, start time field 22.
fn line(pid: u32, comm: &str, state: char, flags: u64, start: u64) -> String {
    format!(
        "{pid} ({comm}) {state} 1 7 7 0 -1 {flags} 11 12 13 14 15 16 17 18 20 0 3 0 {start} \
         1000 50\n"
    )
}

#[test]
fn names_with_parentheses_and_newlines_parse() {
    let dir = tempfile::tempdir().unwrap();
    let root = ProcRoot::new(dir.path());
    fake(dir.path(), 5, &line(5, "a) S 1 (b\nc", 'T', 0, 99));
    let process = Process::open_in(&root, 5).unwrap();
    let stat = process.stat().unwrap();
    assert_eq!(stat.comm, "a) S 1 (b\nc");
    assert_eq!(stat.state, 'T');
    assert_eq!((stat.session, stat.has_terminal), (7, false));
    assert_eq!((stat.minor_faults, stat.major_faults), (11, 13));
    assert_eq!(
        (stat.user_ticks, stat.system_ticks, stat.threads),
        (15, 16, 3)
    );
    assert_eq!(process.start_ticks(), 99);
    assert_eq!(stat.rss_pages, 50);
    assert!(!process.is_self());
}

#[test]
fn a_reused_pid_is_noticed_by_its_start_time() {
    let dir = tempfile::tempdir().unwrap();
    let root = ProcRoot::new(dir.path());
    fake(dir.path(), 5, &line(5, "first", 'S', 0, 99));
    let process = Process::open_in(&root, 5).unwrap();
    assert!(process.is_alive());
    fake(dir.path(), 5, &line(5, "second", 'S', 0, 200));
    assert!(matches!(
        process.check(),
        Err(ProcessError::Reused { pid: 5 })
    ));
    fs::remove_dir_all(dir.path().join("5")).unwrap();
    assert!(matches!(
        process.check(),
        Err(ProcessError::Gone { pid: 5 })
    ));
}

#[test]
fn kernel_threads_zombies_and_the_dying_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let root = ProcRoot::new(dir.path());
    fake(dir.path(), 2, &line(2, "kthreadd", 'S', 0x20_8040, 0));
    fake(dir.path(), 3, &line(3, "dead", 'Z', 0x40_000c, 5));
    fake(dir.path(), 4, &line(4, "dying", 'R', 0x40_0004, 6));
    fake(dir.path(), 5, &line(5, "fine", 'S', 0x40_0000, 7));
    assert!(matches!(
        Process::open_user(&root, 2),
        Err(ProcessError::KernelThread { .. })
    ));
    assert!(matches!(
        Process::open_user(&root, 3),
        Err(ProcessError::Zombie { ppid: 1, .. })
    ));
    assert!(matches!(
        Process::open_user(&root, 4),
        Err(ProcessError::Gone { .. })
    ));
    assert!(matches!(
        Process::open_user(&root, 9),
        Err(ProcessError::Gone { pid: 9 })
    ));
    assert_eq!(Process::open_user(&root, 5).unwrap().pid(), 5);
}

#[test]
fn pids_are_the_numbers_of_proc_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let root = ProcRoot::new(dir.path());
    for pid in [30, 4, 200] {
        fake(dir.path(), pid, &line(pid, "fine", 'S', 0, 7));
    }
    fs::create_dir(dir.path().join("sys")).unwrap();
    fs::write(dir.path().join("meminfo"), "").unwrap();
    assert_eq!(root.pids().unwrap(), [4, 30, 200]);
    assert!(ProcRoot::new("/nowhere").pids().unwrap_err().is_not_found());
}

#[test]
fn truncated_files_are_format_errors_with_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let root = ProcRoot::new(dir.path());
    fake(dir.path(), 5, "5 (half) S 1 7");
    let error = Process::open_in(&root, 5).unwrap_err();
    assert!(
        error.to_string().contains("5/stat: expected 24 fields"),
        "{error}"
    );
    assert!(matches!(
        Process::open_in(&root, 0),
        Err(ProcessError::InvalidPid { pid: 0 })
    ));
    assert!(matches!(
        Process::open_in(&root, PID_MAX + 1),
        Err(ProcessError::InvalidPid { .. })
    ));
}

#[test]
fn status_and_memberships_parse() {
    let path = Path::new("status");
    let text = "Name:\tx\nTgid:\t7\nUid:\t1\t1000\t1\t1\nVmLck:\t       4 kB\n\
                VmHWM:\t 4096 kB\nVmRSS:\t 2048 kB\nRssAnon:\t1024 kB\nRssFile:\t1020 kB\n\
                RssShmem:\t4 kB\nVmSwap:\t8 kB\nVmPTE:\t16 kB\n";
    let status = Status::parse(path, text).unwrap();
    assert_eq!((status.tgid, status.uid, status.euid), (7, 1, 1000));
    assert_eq!(
        status.rss_bytes,
        status.rss_anon_bytes + status.rss_file_bytes + status.rss_shmem_bytes
    );
    assert_eq!((status.swap_bytes, status.page_table_bytes), (8192, 16384));
    assert!(Status::parse(path, "VmRSS:\t18446744073709551615 kB\n").is_err());

    let parsed = stat::parse_memberships(
        path,
        b"9:name=systemd:/\n4:cpu,memory:/a:b\n0::/x\xff (deleted)\n",
    )
    .unwrap();
    assert_eq!(parsed[1].controllers, ["cpu", "memory"]);
    assert_eq!(parsed[1].path, Path::new("/a:b"));
    assert_eq!(
        (
            parsed[2].path.as_os_str().as_bytes(),
            parsed[2].removed,
            parsed[2].hierarchy
        ),
        (&b"/x\xff"[..], true, 0)
    );
    assert!(stat::parse_memberships(path, b"nonsense\n").is_err());
}

#[test]
fn a_real_child_lives_and_dies() {
    let mut child = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let process = Process::open(child.id()).unwrap();
    assert!(process.is_alive());
    assert!(!process.is_self() && !process.is_init());
    // Until it sleeps it is still being loaded, and grows between two reads.
    while process.stat().unwrap().state != 'S' {
        std::thread::yield_now();
    }
    let (rss_bytes, pss_bytes) = (process.rss_bytes().unwrap(), process.pss_bytes().unwrap());
    assert!(
        0 < pss_bytes && pss_bytes <= rss_bytes,
        "{pss_bytes} of {rss_bytes}"
    );
    assert!(!process.cgroups().unwrap().is_empty());
    child.kill().unwrap();
    // Not reaped yet: a zombie as soon as the signal is delivered.
    while process.is_alive() {
        std::thread::yield_now();
    }
    assert!(matches!(process.check(), Err(ProcessError::Zombie { .. })));
    child.wait().unwrap();
    assert!(matches!(
        process.check(),
        Err(ProcessError::Gone { .. } | ProcessError::Reused { .. })
    ));
    assert!(matches!(
        Process::open(child.id()),
        Err(ProcessError::Gone { .. })
    ));
}

#[test]
fn ourselves_and_our_threads_are_recognised() {
    let process = Process::open(std::process::id()).unwrap();
    assert!(process.is_self());
    assert_eq!(process.status().unwrap().tgid, std::process::id());
    let (ready, wait) = std::sync::mpsc::channel::<()>();
    let (send, tids) = std::sync::mpsc::channel();
    let keeper = std::thread::spawn(move || {
        send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32)
            .unwrap();
        let _ = wait.recv();
    });
    let thread = tids.recv().unwrap();
    let tgid_of_thread = match Process::open(thread) {
        Err(ProcessError::Thread { tgid, .. }) => tgid,
        other => panic!("a thread was taken for a process: {other:?}"),
    };
    assert_eq!(tgid_of_thread, std::process::id());
    drop(ready);
    keeper.join().unwrap();
}

#[test]
fn a_process_is_followed_through_the_threads_that_are_left() {
    let dir = tempfile::tempdir().unwrap();
    let root = ProcRoot::new(dir.path());
    let task = |thread: u32| dir.path().join(format!("5/task/{thread}"));
    let add = |thread: u32, state: char, statm: &str| {
        fs::create_dir_all(task(thread)).unwrap();
        fs::write(task(thread).join("stat"), line(thread, "hog", state, 0, 99)).unwrap();
        fs::write(task(thread).join("statm"), statm).unwrap();
    };
    fake(dir.path(), 5, &line(5, "hog", 'S', 0, 99));
    fs::write(dir.path().join("5/statm"), "90 80 7 0 0 0 0\n").unwrap();
    let page = rustix::param::page_size() as u64;
    let process = Process::open_user(&root, 5).unwrap();
    assert_eq!(process.rss_bytes().unwrap(), 80 * page);
    assert_eq!(process.path("maps"), dir.path().join("5/maps"));
    // The first thread ends.
    add(6, 'S', "90 70 7 0 0 0 0\n");
    add(7, 'S', "90 60 7 0 0 0 0\n");
    fake(dir.path(), 5, &line(5, "hog", 'Z', 0, 99));
    fs::write(dir.path().join("5/statm"), "0 0 0 0 0 0 0\n").unwrap();
    assert!(!process.has_lost_leader(), "not looked at since");
    assert_eq!(process.rss_bytes().unwrap(), 70 * page);
    assert!(process.is_alive() && process.has_lost_leader());
    assert_eq!(process.path("maps"), task(6).join("maps"));
    let stat = process.stat().unwrap();
    assert_eq!((stat.kind, stat.state), (ProcessKind::User, 'S'));
    // The thread used instead ends, then the last one.
    fs::remove_dir_all(task(6)).unwrap();
    assert!(process.is_alive());
    assert_eq!(process.path("maps"), task(7).join("maps"));
    add(7, 'Z', "0 0 0 0 0 0 0\n");
    assert!(process.check().unwrap_err().is_gone());
    assert!(matches!(
        Process::open_user(&root, 5),
        Err(ProcessError::Zombie { .. })
    ));
}
