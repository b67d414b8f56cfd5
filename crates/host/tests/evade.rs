// SPDX-License-Identifier: Apache-2.0
//! Programs that could go unnoticed, or be mistaken for a user's login: real processes, in cgroups
//! of their own.

#[path = "support/headless.rs"]
mod headless;
#[path = "support/need.rs"]
mod need;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agewise_host::cgroup::{Cgroup, Hierarchy, OwnCgroup, Version};
use agewise_host::guest::Guests;
use agewise_host::mover::{PageoutError, check_target};
use agewise_host::process::{Process, ProcessKind};
use agewise_host::root::ProcRoot;
use agewise_host::throttle::{Killed, Ledger, Throttle, ThrottleError, Untouchable, untouchable};
use agewise_host::vma::VmaTable;
use headless::{HOG_BYTES, Headless};

const PATIENCE: Duration = Duration::from_secs(20);

/// A memory cgroup, or `None` after printing why there is none.
fn place(test: &str, name: &str) -> Option<OwnCgroup> {
    let made = need::memcg(name);
    made.map_err(|why| println!("SKIPPED {test}: {why}")).ok()
}

fn kill(cgroup: &Cgroup) -> Killed {
    hands().kill(cgroup).unwrap()
}

fn hands() -> Throttle {
    Throttle::new(ProcRoot::default(), Ledger::default())
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_process_without_its_first_thread_is_one() {
    let child = Headless::start();
    let process = Process::open_user(&ProcRoot::default(), child.0).unwrap();
    assert!(process.is_alive() && process.has_lost_leader());
    let stat = process.stat().unwrap();
    assert_eq!((stat.kind, stat.session), (ProcessKind::User, child.0));
    let least = HOG_BYTES as u64;
    assert!(process.rss_bytes().unwrap() >= least);
    assert!(stat.rss_pages * 4096 >= least / 2);
    assert!(process.status().unwrap().rss_bytes >= least / 2);
    let mut vmas = VmaTable::new();
    vmas.read(child.0).unwrap();
    vmas.mark_locked(child.0).unwrap();
    let is_hog = |vma: &&agewise_host::vma::Vma| vma.range.end - vma.range.start >= least - 4096;
    assert!(vmas.vmas().iter().any(|vma| is_hog(&vma)));
    assert!(vmas.vmas().iter().any(|vma| vma.locked));
    // An operation the kernel does not support is reported, not mistaken for the end of the
    // process.
    let refused = check_target(&process, Guests::Spared).unwrap_err();
    assert!(
        matches!(refused, PageoutError::LostLeader { .. }),
        "{refused}"
    );
    assert!(!refused.is_gone());
}

#[test]
fn a_process_without_its_first_thread_ends_with_its_last() {
    let child = Headless::start();
    let process = Process::open(child.0).unwrap();
    // SAFETY: our own child.
    unsafe { libc::kill(child.0 as i32, libc::SIGKILL) };
    wait_until("the process ends", || !process.is_alive());
    assert!(process.check().unwrap_err().is_gone());
}

#[test]
fn a_kill_reaches_a_process_without_its_first_thread() {
    let Some(place) = place(
        "a_kill_reaches_a_process_without_its_first_thread",
        "headless",
    ) else {
        return;
    };
    let child = Headless::start_in(Some(&place.entrance().unwrap()));
    let process = Process::open(child.0).unwrap();
    let of = Cgroup::of_process(place.cgroup().hierarchy(), &process).unwrap();
    assert_eq!(of.as_ref(), Some(place.cgroup()));
    assert_eq!(
        untouchable(&ProcRoot::default(), place.cgroup()).unwrap(),
        None
    );
    let killed = kill(place.cgroup());
    assert_eq!(
        (killed.ended, killed.is_complete()),
        (1, true),
        "{killed:?}"
    );
    wait_until("it ends", || child.has_ended());
}

/// The threads of a process but the first.
fn others(child: &Headless) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", child.0)).unwrap();
    let tids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
    tids.filter(|tid| *tid != child.0).collect()
}

/// As v2 lists one whose first thread ended in another cgroup.
#[test]
fn a_process_is_found_by_the_threads_that_it_has_left() {
    let child = Headless::start();
    let top = tempfile::tempdir().unwrap();
    let cgroup = false_cgroup(top.path(), "", "populated 1\n");
    let threads = format!("{}\n", others(&child)[0]);
    fs::write(cgroup.dir().join("cgroup.threads"), threads).unwrap();
    assert_eq!(kill(&cgroup).ended, 1);
    wait_until("it ends", || child.has_ended());
}

#[test]
fn a_kill_reaches_a_process_without_its_first_thread_where_it_was_moved() {
    let test = "a_kill_reaches_a_process_without_its_first_thread_where_it_was_moved";
    let (Some(from), Some(to)) = (place(test, "from"), place(test, "to")) else {
        return;
    };
    if from.cgroup().hierarchy().version == Version::V1 {
        return println!("SKIPPED {test}: with cgroup v1, each thread is moved and listed");
    }
    let child = Headless::start_in(Some(&from.entrance().unwrap()));
    to.take_in(others(&child)[0]).unwrap();
    let killed = kill(to.cgroup());
    assert!(killed.is_complete(), "{killed:?}");
    wait_until("it ends", || child.has_ended());
}

#[test]
fn who_is_forked_meanwhile_is_killed_as_well() {
    let Some(place) = place("who_is_forked_meanwhile_is_killed_as_well", "forks") else {
        return;
    };
    // Each process starts the next one and ends.
    let procs = place.cgroup().dir().join("cgroup.procs");
    let script = format!(
        "echo $$ > {}; f() {{ sleep 0.02; f & }}; f & f & f & f & wait",
        procs.display()
    );
    let mut child = Command::new("setsid")
        .args(["sh", "-c", &script])
        .stdout(Stdio::null())
        .spawn()
        .expect("setsid of util-linux");
    wait_until("it forks", || place.cgroup().procs(true).unwrap().len() > 4);
    let killed = kill(place.cgroup());
    assert!(killed.is_complete() && killed.ended > 0, "{killed:?}");
    std::thread::sleep(Duration::from_millis(100));
    assert!(place.cgroup().procs(true).unwrap().is_empty());
    child.wait().unwrap();
}

/// A sleeping process in its own session, killed on drop.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(
            Command::new("setsid")
                .args(["sleep", "60"])
                .spawn()
                .unwrap(),
        )
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A fake cgroup of plain files, which the kernel does not react to.
fn false_cgroup(top: &Path, procs: &str, events: &str) -> Cgroup {
    let dir = top.join("hog");
    fs::create_dir(&dir).unwrap();
    for (file, text) in [
        ("cgroup.procs", procs),
        ("cgroup.threads", ""),
        ("cgroup.events", events),
        ("cgroup.kill", ""),
    ] {
        fs::write(dir.join(file), text).unwrap();
    }
    Cgroup::open(&Hierarchy::at(Version::V2, top), "/hog").unwrap()
}

#[test]
fn who_is_left_is_said() {
    let sleeper = Sleeper::start();
    let pid = sleeper.0.id();
    wait_until("a session of its own", || {
        Process::open(pid).unwrap().stat().unwrap().session == pid
    });
    let top = tempfile::tempdir().unwrap();
    let cgroup = false_cgroup(top.path(), &format!("{pid}\n"), "populated 1\n");
    let killed = kill(&cgroup);
    assert_eq!((killed.ended, &*killed.left), (0, &[pid][..]));
    assert!(!killed.is_complete());
    assert_eq!(killed.to_string(), format!("1 still live: {pid}"));
    let top = tempfile::tempdir().unwrap();
    let cgroup = false_cgroup(top.path(), "", "populated 1\n");
    let killed = kill(&cgroup);
    assert!(killed.holds_unseen && !killed.is_complete());
    assert_eq!(
        killed.to_string(),
        "processes that cannot be seen still live"
    );
}

#[test]
fn a_cgroup_whose_name_is_no_text_is_frozen_and_killed_with_its_parent() {
    let test = "a_cgroup_whose_name_is_no_text_is_frozen_and_killed_with_its_parent";
    let Some(place) = place(test, "bytes") else {
        return;
    };
    let dir = place.cgroup().dir().join(OsStr::from_bytes(b"hog\xff"));
    if place.cgroup().hierarchy().version == Version::V2 {
        // Otherwise its memory is its parent's.
        let control = place.cgroup().dir().join("cgroup.subtree_control");
        fs::write(control, "+memory").unwrap();
    }
    fs::create_dir(&dir).unwrap();
    let mut hog = Command::new("setsid")
        .args(["sh", "-c", "while :; do :; done"])
        .spawn()
        .expect("setsid of util-linux");
    let pid = hog.id();
    fs::write(dir.join("cgroup.procs"), pid.to_string()).unwrap();
    wait_until("a session of its own", || {
        Process::open(pid).unwrap().stat().unwrap().session == pid
    });
    assert_eq!(place.cgroup().procs(true).unwrap(), [pid]);
    let process = Process::open(pid).unwrap();
    let of = Cgroup::of_process(place.cgroup().hierarchy(), &process)
        .unwrap()
        .unwrap();
    assert_eq!(of.dir(), dir);
    assert!(of.name().ends_with(r"/hog\xff"), "{}", of.name());
    let mut hands = hands();
    match hands.freeze(place.cgroup()) {
        Err(error @ ThrottleError::NoFreezer { .. }) => {
            println!("SKIPPED {test}: freezing: {error}");
        }
        other => {
            other.unwrap();
            // A task counts as frozen a moment before it gives up its CPU.
            wait_until("it is stopped", || !need::runs(pid));
        }
    }
    let killed = hands.kill(place.cgroup()).unwrap();
    assert_eq!(
        (killed.ended, killed.is_complete()),
        (1, true),
        "{killed:?}"
    );
    hog.wait().unwrap();
    wait_until("its cgroup goes", || fs::remove_dir(&dir).is_ok());
}

#[test]
fn a_terminal_of_ones_own_making_is_no_login() {
    let test = "a_terminal_of_ones_own_making_is_no_login";
    let Some(place) = place(test, "script") else {
        return;
    };
    let began = Command::new("setsid")
        .args(["script", "-qc", "sleep 60", "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let mut script = began.expect("setsid of util-linux");
    let pid = script.id();
    // `setsid` execs `script`, whose child leads the session of the terminal.
    let leader = || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        let child = children.split_whitespace().next()?.parse::<u32>().ok()?;
        let stat = Process::open(child).ok()?.stat().ok()?;
        (stat.has_terminal && stat.session == child).then_some(child)
    };
    wait_until("script starts, or is not there", || {
        leader().is_some() || matches!(script.try_wait(), Ok(Some(_)))
    });
    let Some(leader) = leader() else {
        return println!("SKIPPED {test}: no script (util-linux)");
    };
    place.take_in(leader).unwrap();
    place.take_in(pid).unwrap();
    let found = untouchable(&ProcRoot::default(), place.cgroup()).unwrap();
    assert_ne!(found, Some(Untouchable::LoginShell));
    assert_eq!(found, None);
    let killed = kill(place.cgroup());
    assert!(killed.is_complete() && killed.ended >= 2, "{killed:?}");
    script.wait().unwrap();
}
