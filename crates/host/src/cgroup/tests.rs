// SPDX-License-Identifier: Apache-2.0
//! Fake trees of both versions in a temporary directory, and one live test in a cgroup of our own.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::*;
use crate::root::ProcRoot;

fn make(dir: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    for (name, content) in files {
        fs::write(dir.join(name), content).unwrap();
    }
}

#[test]
fn a_v1_cgroup_reads() {
    let top = tempfile::tempdir().unwrap();
    make(
        &top.path().join("web"),
        &[
            ("cgroup.procs", "7\n3\n7\n0\n"),
            ("tasks", "3\n7\n8\n"),
            ("memory.usage_in_bytes", "8192\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            (
                "memory.stat",
                "rss 1\ntotal_rss 4096\ntotal_cache 4096\ntotal_swap 12288\n",
            ),
        ],
    );
    let hierarchy = Hierarchy::at(Version::V1, top.path());
    let web = Cgroup::open(&hierarchy, "web").unwrap();
    assert_eq!(web.procs(false).unwrap(), [3, 7]);
    assert_eq!(web.usage_bytes().unwrap(), Some(8192));
    assert_eq!(web.swap_bytes().unwrap(), Some(12288));
    assert_eq!(web.stat().unwrap().anon_bytes, 4096);
    assert_eq!(web.limits().unwrap(), Limits::default());
    fs::write(web.dir().join("memory.limit_in_bytes"), "4096\n").unwrap();
    assert_eq!(web.limits().unwrap().max_bytes, Some(4096));
}

#[test]
fn a_v2_cgroup_reads_and_its_root_has_no_usage() {
    let top = tempfile::tempdir().unwrap();
    make(
        top.path(),
        &[("cgroup.procs", "1\n"), ("memory.stat", "anon 1\n")],
    );
    make(
        &top.path().join("a"),
        &[
            ("cgroup.procs", ""),
            ("memory.current", "100\n"),
            ("memory.swap.current", "5\n"),
            ("memory.max", "max\n"),
            ("memory.high", "200\n"),
            ("memory.low", "max\n"),
            ("memory.min", "10\n"),
            ("memory.swap.max", "0\n"),
        ],
    );
    let hierarchy = Hierarchy::at(Version::V2, top.path());
    let a = Cgroup::open(&hierarchy, "/a").unwrap();
    assert_eq!(
        (a.usage_bytes().unwrap(), a.swap_bytes().unwrap()),
        (Some(100), Some(5))
    );
    let expected = Limits {
        max_bytes: None,
        high_bytes: Some(200),
        low_bytes: u64::MAX,
        min_bytes: 10,
    };
    assert_eq!(a.limits().unwrap(), expected);
    assert_eq!(expected.lowest_bytes(), Some(200));
    assert_eq!(Limits::default().lowest_bytes(), None);
    assert_eq!(a.swap_room_bytes().unwrap(), Some(0));
    let root = Cgroup::open(&hierarchy, "/").unwrap();
    assert!(root.is_root());
    assert_eq!(root.usage_bytes().unwrap(), None);
    fs::write(a.dir().join("memory.high"), "lots\n").unwrap();
    assert!(
        a.limits()
            .unwrap_err()
            .to_string()
            .contains("a/memory.high")
    );
}

#[test]
fn swap_has_the_least_room_of_all_limits_above() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("a/b");
    fs::create_dir_all(&dir).unwrap();
    let limit = |path: &str, max: &str, current: u64| {
        fs::write(top.path().join(path).join("memory.swap.max"), max).unwrap();
        let current_file = top.path().join(path).join("memory.swap.current");
        fs::write(current_file, current.to_string()).unwrap();
    };
    let open = |version| Cgroup::open(&Hierarchy::at(version, top.path()), "a/b").unwrap();
    let room = |version| open(version).swap_room_bytes().unwrap();
    assert_eq!(room(Version::V2), None, "the kernel has no such file");
    limit("a/b", "max\n", 50);
    limit("a", "max\n", 50);
    assert_eq!(room(Version::V2), None);
    limit("a/b", "100\n", 50);
    assert_eq!(room(Version::V2), Some(50));
    limit("a", "60\n", 55);
    assert_eq!(room(Version::V2), Some(5));
    limit("a", "0\n", 55);
    assert_eq!(room(Version::V2), Some(0));
    assert_eq!(room(Version::V1), None);
}

#[test]
fn a_removed_cgroup_and_one_made_again_are_told_apart() {
    let top = tempfile::tempdir().unwrap();
    let hierarchy = Hierarchy::at(Version::V2, top.path());
    assert!(matches!(
        Cgroup::open(&hierarchy, "a"),
        Err(CgroupError::NotFound { .. })
    ));
    make(
        &top.path().join("a"),
        &[("cgroup.procs", "1\n"), ("memory.current", "1\n")],
    );
    let first = Cgroup::open(&hierarchy, "a").unwrap();
    first.check().unwrap();
    // Created before the first is removed, so that the file system cannot reuse its inode.
    make(&top.path().join("other"), &[("cgroup.procs", "2\n")]);
    fs::remove_dir_all(top.path().join("a")).unwrap();
    assert!(matches!(first.check(), Err(CgroupError::Gone { .. })));
    assert!(matches!(first.procs(false), Err(CgroupError::Gone { .. })));
    assert!(matches!(first.usage_bytes(), Err(CgroupError::Gone { .. })));
    assert!(first.stat().unwrap_err().is_gone());
    fs::rename(top.path().join("other"), top.path().join("a")).unwrap();
    assert!(matches!(first.check(), Err(CgroupError::Recreated { .. })));
    assert!(matches!(
        first.usage_bytes(),
        Err(CgroupError::Recreated { .. })
    ));
    assert_ne!(Cgroup::open(&hierarchy, "a").unwrap().id(), first.id());
}

#[test]
fn listing_keeps_to_depth_and_count_and_says_so() {
    let top = tempfile::tempdir().unwrap();
    for path in ["b", "a/x/deep", "a/y", "a-b"] {
        fs::create_dir_all(top.path().join(path)).unwrap();
    }
    fs::write(top.path().join("cgroup.procs"), "").unwrap();
    let root = Cgroup::open(&Hierarchy::at(Version::V2, top.path()), "/").unwrap();
    let list = |depth_max, count_max| {
        let listing = root
            .descendants(TreeLimits {
                depth_max,
                count_max,
            })
            .unwrap();
        let paths: Vec<String> = listing.cgroups.iter().map(Cgroup::name).collect();
        (paths.join(" "), listing.truncated)
    };
    assert_eq!(
        list(16, 100),
        ("/a /a/x /a/x/deep /a/y /a-b /b".into(), false)
    );
    assert_eq!(list(2, 100), ("/a /a/x /a/y /a-b /b".into(), true));
    assert_eq!(list(1, 100), ("/a /a-b /b".into(), true));
    assert_eq!(list(16, 3), ("/a /a-b /b".into(), true));
    assert!(!list(16, 6).1);
    assert_eq!(list(0, 6), (String::new(), true));
}

#[test]
fn processes_of_the_cgroups_below_count_once() {
    let top = tempfile::tempdir().unwrap();
    make(top.path(), &[("cgroup.procs", "5\n")]);
    make(&top.path().join("a"), &[("cgroup.procs", "9\n5\n")]);
    make(&top.path().join("a/b"), &[("cgroup.procs", "2\n")]);
    fs::create_dir(top.path().join("broken")).unwrap();
    let hierarchy = Hierarchy::at(Version::V2, top.path());
    let root = Cgroup::open(&hierarchy, "/").unwrap();
    assert_eq!(root.procs(false).unwrap(), [5]);
    // A directory without the file is not a cgroup: an error, not an empty answer.
    assert!(root.procs(true).is_err());
    fs::remove_dir(top.path().join("broken")).unwrap();
    assert_eq!(root.procs(true).unwrap(), [2, 5, 9]);
    fs::write(top.path().join("a/cgroup.procs"), "9 5\n").unwrap();
    assert!(root.procs(true).unwrap_err().to_string().contains("a pid"));
}

/// Removes the cgroup when the test ends, even by a panic.
struct OwnCgroup(PathBuf);

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn all_processes_are_known_however_deep_they_are_only_if_none_is_unseen() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("a");
    make(&dir, &[("cgroup.procs", "")]);
    make(&dir.join("b"), &[("cgroup.procs", "7\n3\n")]);
    let hierarchy = Hierarchy::at(Version::V2, top.path());
    let cgroup = Cgroup::open(&hierarchy, "/a").unwrap();
    assert_eq!(cgroup.all_procs().unwrap(), Some(vec![3, 7]));
    make(&dir.join("b"), &[("cgroup.procs", "7\n0\n3\n")]);
    assert_eq!(cgroup.all_procs().unwrap(), None);
    make(&dir.join("b"), &[("cgroup.procs", "7\n")]);
    let mut deep = dir;
    for _ in 0..=TreeLimits::WIDE.depth_max {
        deep.push("x");
        make(&deep, &[("cgroup.procs", "9\n")]);
    }
    assert_eq!(cgroup.all_procs().unwrap(), Some(vec![7, 9]));
}

/// A user who may create cgroups can create some whose files nobody can open.
#[test]
fn paths_too_long_for_the_kernel_hide_nothing_else() {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let top = tempfile::tempdir().unwrap();
    make(&top.path().join("a"), &[("cgroup.procs", "5\n")]);
    make(&top.path().join("b"), &[("cgroup.procs", "6\n")]);
    let name = "y".repeat(250);
    let open = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, top.path().join("a"), open, Mode::empty()).unwrap();
    for _ in 0..20 {
        mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = openat(&at, &name, open, Mode::empty()).unwrap();
        let create = OFlags::CREATE | OFlags::WRONLY;
        openat(&at, "cgroup.procs", create, Mode::RUSR).unwrap();
    }
    let hierarchy = Hierarchy::at(Version::V2, top.path());
    fs::write(top.path().join("cgroup.procs"), "").unwrap();
    let root = Cgroup::open(&hierarchy, "/").unwrap();
    assert_eq!(root.procs(true).unwrap(), [5, 6]);
    let listing = root.descendants(TreeLimits::WIDE).unwrap();
    assert!((10..20).contains(&listing.cgroups.len()) && !listing.truncated);
}

#[test]
fn live_a_process_is_found_in_the_cgroup_it_was_put_in() {
    let hierarchy = match Hierarchy::discover(&ProcRoot::default()) {
        Ok(hierarchy) => hierarchy,
        Err(error) => return println!("SKIPPED live cgroup test: {error}"),
    };
    let name = format!("agewise-test-cgroup-{}", std::process::id());
    let dir = hierarchy.root.join(&name);
    if let Err(error) = fs::create_dir(&dir) {
        return println!(
            "SKIPPED live cgroup test: cannot create {}: {error}",
            dir.display()
        );
    }
    let own = OwnCgroup(dir.clone());
    let cgroup = Cgroup::open(&hierarchy, &name).unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let moved = fs::write(dir.join("cgroup.procs"), child.id().to_string());
    let found = moved.map(|()| {
        let process = Process::open(child.id()).unwrap();
        let of = Cgroup::of_process(&hierarchy, &process).unwrap();
        (
            cgroup.procs(true),
            cgroup.usage_bytes(),
            cgroup.stat(),
            cgroup.limits(),
            of,
        )
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let (procs, usage, stat, limits, of) = found.unwrap();
    assert_eq!(procs.unwrap(), [child.id()]);
    assert!(usage.unwrap().is_some());
    stat.unwrap();
    assert_eq!(limits.unwrap().max_bytes, None);
    assert_eq!(of.unwrap().id(), cgroup.id());
    drop(own);
    assert!(matches!(cgroup.procs(false), Err(CgroupError::Gone { .. })));
    fs::create_dir(&dir).unwrap();
    let _own = OwnCgroup(dir);
    assert!(matches!(cgroup.check(), Err(CgroupError::Recreated { .. })));
}

#[test]
fn hits_of_limits_are_counted_in_both_versions() {
    let dir = tempfile::tempdir().unwrap();
    let open = |version| Cgroup::open(&Hierarchy::at(version, dir.path()), "/").unwrap();
    assert_eq!(open(Version::V2).limit_hits().unwrap(), None);
    assert!(!open(Version::V2).can_reclaim());
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write(
        "memory.events",
        "low 1\nhigh 20\nmax 3\noom 7\noom_kill 2\n",
    );
    write("memory.failcnt", "12\n");
    write(
        "memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    );
    write("memory.reclaim", "");
    assert_eq!(open(Version::V2).oom_kills().unwrap(), Some(2));
    assert_eq!(open(Version::V1).oom_kills().unwrap(), Some(1));
    assert_eq!(open(Version::V2).limit_hits().unwrap(), Some(23));
    assert_eq!(open(Version::V1).limit_hits().unwrap(), Some(12));
    assert_eq!(open(Version::V1).own_limit_hits().unwrap(), Some(12));
    assert_eq!(open(Version::V2).own_limit_hits().unwrap(), Some(23));
    write("memory.events.local", "low 1\nhigh 2\nmax 3\n");
    assert_eq!(open(Version::V2).own_limit_hits().unwrap(), Some(5));
    assert!(open(Version::V2).reclaim(4096, false).unwrap());
    let asked = std::fs::read_to_string(dir.path().join("memory.reclaim")).unwrap();
    assert_eq!(asked, "4096 swappiness=0");
    write("memory.events", "high many\n");
    assert!(open(Version::V2).limit_hits().is_err());
    assert_eq!(open(Version::V2).oom_kills().unwrap(), None);
}

/// The kernel has reclaimed some by then, and would reclaim all of it once more.
#[test]
fn a_reclaim_that_a_signal_interrupts_is_not_repeated() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: a handler that does nothing, without SA_RESTART, for a signal that no test uses.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as libc::sighandler_t;
        assert_eq!(
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()),
            0
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory.reclaim");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let both = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&path);
    // A full pipe makes a write wait, as reclaim does.
    let mut pipe = both.unwrap();
    while pipe.write(&[0; 4096]).is_ok() {}
    let cgroup = Cgroup::open(&Hierarchy::at(Version::V2, dir.path()), "/").unwrap();
    let (send, thread) = std::sync::mpsc::channel();
    let reclaiming = std::thread::spawn(move || {
        // SAFETY: always succeeds.
        send.send(unsafe { libc::pthread_self() }).unwrap();
        cgroup.reclaim(4096, true)
    });
    let thread = thread.recv().unwrap();
    for _ in 0..100 {
        if reclaiming.is_finished() {
            break;
        }
        // SAFETY: the thread has not been joined.
        unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
        std::thread::sleep(Duration::from_millis(10));
    }
    // If it was repeated, it has room now.
    while pipe.read(&mut [0; 4096]).is_ok() {}
    assert!(!reclaiming.join().unwrap().unwrap(), "less was reclaimed");
}

#[test]
fn names_of_any_bytes_are_cgroups_like_others() {
    let top = tempfile::tempdir().unwrap();
    let name = OsStr::from_bytes(b"hog\xff");
    make(&top.path().join("web"), &[("cgroup.procs", "5\n")]);
    make(
        &top.path().join("web").join(name),
        &[("cgroup.procs", "9\n")],
    );
    // A valid UTF-8 name that looks the same as text.
    make(&top.path().join(r"web/hog\xff"), &[("cgroup.procs", "7\n")]);
    let hierarchy = Hierarchy::at(Version::V2, top.path());
    let web = Cgroup::open(&hierarchy, "web").unwrap();
    assert_eq!(web.procs(true).unwrap(), [5, 7, 9]);
    let below = web.descendants(TreeLimits::default()).unwrap().cgroups;
    let names: Vec<String> = below.iter().map(Cgroup::name).collect();
    assert_eq!(names, [r"/web/hog\x5cxff", r"/web/hog\xff"]);
    for cgroup in &below {
        assert_eq!(&Cgroup::open(&hierarchy, cgroup.path()).unwrap(), cgroup);
    }
    // Found by its text if no cgroup has that exact name.
    fs::remove_dir_all(top.path().join(r"web/hog\xff")).unwrap();
    let by_name = Cgroup::open(&hierarchy, r"/web/hog\xff").unwrap();
    assert_eq!(by_name.path(), Path::new("/web").join(name));
    assert_eq!(by_name.procs(false).unwrap(), [9]);
    let missing = Cgroup::open(&hierarchy, OsStr::from_bytes(b"x\xfe")).unwrap_err();
    assert!(
        missing.to_string().contains(r"no cgroup /x\xfe below"),
        "{missing}"
    );
}

#[test]
fn memory_of_a_cgroup_without_the_controller_is_charged_above() {
    let top = tempfile::tempdir().unwrap();
    let memory = [
        ("cgroup.controllers", "cpu memory\n"),
        ("memory.current", "1\n"),
    ];
    let none = [("cgroup.controllers", "cpu\n")];
    make(&top.path().join("udev.service"), &memory);
    make(&top.path().join("udev.service/udev"), &none);
    make(&top.path().join("udev.service/udev/worker"), &none);
    make(&top.path().join("cpu-only"), &none);
    let v2 = Hierarchy::at(Version::V2, top.path());
    let charged = |path| Cgroup::open(&v2, path).unwrap().charged().unwrap().name();
    assert_eq!(charged("/udev.service"), "/udev.service");
    assert_eq!(charged("/udev.service/udev"), "/udev.service");
    assert_eq!(charged("/udev.service/udev/worker"), "/udev.service");
    assert_eq!(charged("/cpu-only"), "/");
    assert_eq!(charged("/"), "/");
    let udev = Cgroup::open(&v2, "/udev.service/udev").unwrap();
    let error = udev.check_memory().unwrap_err().to_string();
    assert!(error.contains("give /udev.service, "), "{error}");
    // One that is removed meanwhile is not taken for one without the controller.
    fs::remove_dir_all(udev.dir()).unwrap();
    assert!(udev.has_memory());
    let v1 = Hierarchy::at(Version::V1, top.path());
    assert!(Cgroup::open(&v1, "/cpu-only").unwrap().has_memory());
}
