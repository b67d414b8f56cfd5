// SPDX-License-Identifier: Apache-2.0
//! The files through real system calls: mounted in their own directory, for a made-up machine.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::demo;
use crate::state::{ReportSetting, Scope, Settings, SubjectView};

/// When the made-up machine was last observed.
const LOOKED_MS: u64 = 100_000;
const ENTRY: [&str; 3] = ["cgroup", "web", "memory.workingset.page_age"];

fn at_once() -> u64 {
    LOOKED_MS
}

fn hub(settings: Settings) -> Hub {
    let hub = Hub::new(settings);
    hub.publish(demo::snapshot(1, LOOKED_MS));
    hub
}

fn config(dir: &Path, means: Means) -> FilesConfig {
    FilesConfig {
        dir: dir.join("files"),
        means,
    }
}

/// Mounts, or prints why it cannot.
fn mounted(test: &str, hub: &Hub, dir: &Path, clock: fn() -> u64) -> Option<Files> {
    match Files::start(hub, &config(dir, Means::Fuse), clock) {
        Ok(files) => Some(files),
        Err(FilesError::NoFuse { source, .. }) => {
            println!("SKIPPED {test}: no FUSE here ({source})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn write(path: &Path, text: &str) -> Result<(), i32> {
    let mut file = OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(|error| error.raw_os_error().unwrap())?;
    file.write(text.as_bytes())
        .map(|written| assert_eq!(written, text.len()))
        .map_err(|error| error.raw_os_error().unwrap())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

fn events(file: &fs::File, timeout: Duration) -> PollFlags {
    let mut polled = [PollFd::new(file, PollFlags::PRI)];
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut polled, Some(&timeout)).unwrap();
    polled[0].revents() & (PollFlags::PRI | PollFlags::ERR)
}

fn is_mounted(dir: &Path) -> bool {
    read(Path::new("/proc/self/mountinfo")).contains(&format!(" {} ", dir.display()))
}

/// The document's selftest sets 6, 10 and 15 s and reads every 5 s.
#[test]
fn a_node_reports_by_the_bounds_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(Settings::default());
    let test = "a_node_reports_by_the_bounds_it_was_given";
    let Some(files) = mounted(test, &hub, dir.path(), at_once) else {
        return;
    };
    let report = files.dir().join("node0/workingset_report");
    let file = |name: &str| report.join(name);
    assert_eq!(read(&file("page_age_intervals")), "\n");
    assert_eq!(read(&file("refresh_interval")), "0\n");
    assert_eq!(read(&file("report_threshold")), "0\n");
    assert_eq!(read(&file("page_age")), "", "off: an empty read");

    write(&file("page_age_intervals"), "6000,10000,15000\n").unwrap();
    write(&file("refresh_interval"), "5000").unwrap();
    assert_eq!(read(&file("page_age_intervals")), "6000,10000,15000\n");
    assert_eq!(read(&file("refresh_interval")), "5000\n");
    let text = read(&file("page_age"));
    let uppers: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(uppers, ["6000", "10000", "15000", "18446744073709551615"]);
    let histogram: agewise_policy::workingset::Histogram = text.parse().unwrap();
    let snapshot = hub.snapshot();
    let machine = snapshot.subject("/").unwrap().node(0).unwrap();
    assert_eq!(
        histogram.total(),
        machine.resident_bytes,
        "the root counts all below it"
    );
    // The daemon uses what was set in the file, and the file shows what the daemon sets.
    assert_eq!(
        hub.settings().intervals_of(0).bounds_ms(),
        [6000, 10_000, 15_000]
    );
    let scope = Scope {
        cgroup: None,
        node: 0,
    };
    hub.set_report(scope.clone(), |set| set.report_threshold_ms = 1234);
    assert_eq!(read(&file("report_threshold")), "1234\n");
    assert_eq!(hub.settings().reports[&scope].refresh_interval_ms, 5000);
    assert_eq!(
        read(&files.dir().join("node1/workingset_report/page_age")),
        ""
    );
}

#[test]
fn a_cgroup_reports_by_node() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(Settings::default());
    let Some(files) = mounted("a_cgroup_reports_by_node", &hub, dir.path(), at_once) else {
        return;
    };
    let web = files.dir().join("cgroup/web");
    let interval = web.join("memory.workingset.refresh_interval");
    assert_eq!(read(&interval), "N0=0 N1=0 \n");
    write(&interval, "N1=5000\n").unwrap();
    assert_eq!(read(&interval), "N0=0 N1=5000 \n");
    write(&web.join("memory.workingset.report_threshold"), "N0=7").unwrap();
    assert_eq!(
        read(&web.join("memory.workingset.report_threshold")),
        "N0=8 N1=0 \n"
    );
    write(
        &files
            .dir()
            .join("node1/workingset_report/page_age_intervals"),
        "30000",
    )
    .unwrap();
    let text = read(&web.join("memory.workingset.page_age"));
    let rest = text.strip_prefix("N1\n30000 anon=").expect(&text);
    assert!(rest.contains("\n18446744073709551615 anon="), "{text}");
    write(&interval, "N0=5000").unwrap();
    let text = read(&web.join("memory.workingset.page_age"));
    assert!(text.starts_with("N0\n18446744073709551615 anon="), "{text}");
    assert!(text.contains("\nN1\n30000 anon="), "{text}");
    // The bytes of this cgroup, not of its neighbours.
    let total: u64 = text
        .split(['=', ' ', '\n'])
        .zip(text.split(['=', ' ', '\n']).skip(1))
        .filter(|(key, _)| ["anon", "file"].contains(key))
        .map(|(_, bytes)| bytes.parse::<u64>().unwrap())
        .sum();
    let resident = hub.snapshot().subject("/web").unwrap().resident_bytes();
    assert_eq!(total, resident[0] + resident[1]);
}

fn edge_cases_of_cgroups(dir: &Path) {
    let web = dir.join("cgroup/web/memory.workingset.refresh_interval");
    for (text, result) in [
        ("N0", Err(libc::EINVAL)),
        ("N0=", Err(libc::EINVAL)),
        ("0=1000", Err(libc::EINVAL)),
        ("N=1000", Err(libc::EINVAL)),
        ("N2=1000", Err(libc::EINVAL)),
        ("N0=1000 N1=1000", Err(libc::EINVAL)),
        ("N0=1s", Err(libc::EINVAL)),
        ("N0=4294967296", Err(libc::ERANGE)),
        ("N0=1000\n", Ok(())),
        ("N0=0", Ok(())),
    ] {
        assert_eq!(write(&web, text), result, "{text:?}");
    }
}

/// Sections 1 and 6 of the document's interface, as the errno of write(2).
#[test]
fn edge_cases_are_errors_of_write() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(Settings::default());
    let Some(files) = mounted("edge_cases_are_errors_of_write", &hub, dir.path(), at_once) else {
        return;
    };
    let report = files.dir().join("node0/workingset_report");
    let bounds = |count: u32| {
        let bounds: Vec<String> = (1..=count).map(|i| (i * 1000).to_string()).collect();
        bounds.join(",")
    };
    let (fits, too_many) = (bounds(31), bounds(32));
    let intervals = report.join("page_age_intervals");
    for (text, result) in [
        (fits.as_str(), Ok(())),
        (too_many.as_str(), Err(libc::ERANGE)),
        ("1000,1000", Err(libc::EINVAL)),
        ("2000,1000", Err(libc::EINVAL)),
        ("1,2", Err(libc::EINVAL)),
        ("4,5", Ok(())),
        ("1000, 2000", Err(libc::EINVAL)),
        ("1000 2000", Err(libc::EINVAL)),
        ("1000,,2000", Err(libc::EINVAL)),
        ("1000,", Err(libc::EINVAL)),
        ("1s", Err(libc::EINVAL)),
        ("-1", Err(libc::EINVAL)),
        ("4294967296", Err(libc::ERANGE)),
        ("0", Ok(())),
        ("0x10,020000", Ok(())),
        ("\n", Ok(())),
    ] {
        assert_eq!(write(&intervals, text), result, "{text:?}");
    }
    assert_eq!(read(&intervals), "\n", "cleared");
    for name in ["refresh_interval", "report_threshold"] {
        for (text, result) in [
            ("5000\n", Ok(())),
            ("", Ok(())),
            ("\n", Err(libc::EINVAL)),
            ("-1", Err(libc::EINVAL)),
            ("1 ", Err(libc::EINVAL)),
            ("4294967296", Err(libc::ERANGE)),
            ("4294967295", Ok(())),
            ("0", Ok(())),
        ] {
            assert_eq!(write(&report.join(name), text), result, "{name} {text:?}");
        }
    }
    edge_cases_of_cgroups(files.dir());
    assert_eq!(write(&intervals, &"1".repeat(5000)), Err(libc::E2BIG));
    for (path, errno) in [
        ("node0/workingset_report/page_age", libc::EACCES),
        ("cgroup/web/memory.workingset.page_age", libc::EACCES),
        ("node2", libc::ENOENT),
        ("cgroup/nowhere", libc::ENOENT),
        ("cgroup/memory.workingset.page_age", libc::ENOENT),
    ] {
        let written = write(&files.dir().join(path), "1");
        assert_eq!(written, Err(errno), "{path}");
    }
    assert!(fs::create_dir(files.dir().join("cgroup/mine")).is_err());
    assert!(fs::remove_file(&intervals).is_err());
    assert!(fs::set_permissions(&intervals, fs::Permissions::from_mode(0o777)).is_err());
}

#[test]
fn a_file_behaves_like_those_of_sysfs() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(demo::settings());
    let Some(files) = mounted(
        "a_file_behaves_like_those_of_sysfs",
        &hub,
        dir.path(),
        at_once,
    ) else {
        return;
    };
    // First as a shell writes, with truncation; then as a program that keeps the file open.
    let interval = files.dir().join("node0/workingset_report/refresh_interval");
    fs::write(&interval, "3000\n").unwrap();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&interval)
        .unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "3000\n");
    file.write_all(b"4000").unwrap();
    file.rewind().unwrap();
    text.clear();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "4000\n");

    // Byte by byte: the text remains that of the first read, whatever happens meanwhile.
    let page_age = ENTRY
        .iter()
        .fold(files.dir().to_owned(), |path, name| path.join(name));
    let whole = read(&page_age);
    assert!(whole.len() > 20, "{whole}");
    let mut file = fs::File::open(&page_age).unwrap();
    let mut bytes = [0; 7];
    file.read_exact(&mut bytes).unwrap();
    hub.publish(demo::snapshot(2, LOOKED_MS + 50_000));
    text.clear();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes).into_owned() + &text, whole);

    let mut names: Vec<String> = fs::read_dir(files.dir().join("cgroup/batch"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "job-1",
            "job-2",
            "memory.workingset.page_age",
            "memory.workingset.refresh_interval",
            "memory.workingset.report_threshold"
        ]
    );
    let mode = |path: &str| files.dir().join(path).metadata().unwrap().mode() & 0o7777;
    assert_eq!(mode(""), 0o500);
    assert_eq!(mode("cgroup/web"), 0o500);
    assert_eq!(mode("cgroup/web/memory.workingset.page_age"), 0o400);
    assert_eq!(mode("node0/workingset_report/refresh_interval"), 0o600);
}

/// A minute after the last look: thresholds of 10 s have passed.
fn a_minute_later() -> u64 {
    LOOKED_MS + 60_000
}

#[test]
fn who_polls_is_told_of_pressure() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(demo::settings());
    let scopes = [None, Some("/web")].map(|cgroup| Scope {
        cgroup: cgroup.map(Arc::from),
        node: 0,
    });
    for scope in &scopes {
        // Long enough that no new look is needed.
        hub.set_report(scope.clone(), |set| set.refresh_interval_ms = 600_000);
    }
    let Some(files) = mounted(
        "who_polls_is_told_of_pressure",
        &hub,
        dir.path(),
        a_minute_later,
    ) else {
        return;
    };
    let paths = [
        "node0/workingset_report/page_age",
        "cgroup/web/memory.workingset.page_age",
    ];
    let mut open: Vec<fs::File> = paths
        .iter()
        .map(|path| fs::File::open(files.dir().join(path)).unwrap())
        .collect();
    let both = PollFlags::PRI | PollFlags::ERR;
    for file in &mut open {
        assert_eq!(events(file, Duration::ZERO), both, "never read");
        file.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(events(file, Duration::from_millis(20)), PollFlags::empty());
    }
    for (index, scope) in scopes.iter().enumerate() {
        let waiter = {
            let file = open[index].try_clone().unwrap();
            std::thread::spawn(move || (events(&file, Duration::from_secs(20)), Instant::now()))
        };
        std::thread::sleep(Duration::from_millis(100));
        let told = Instant::now();
        hub.tell(Event::Pressure([scope.clone()].into()));
        let (events_seen, woken) = waiter.join().unwrap();
        assert_eq!(events_seen, both);
        assert!(woken.saturating_duration_since(told) < Duration::from_secs(15));
        let file = &mut open[index];
        file.rewind().unwrap();
        file.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(events(file, Duration::ZERO), PollFlags::empty(), "read");
        // Again, within the threshold: no notification.
        hub.tell(Event::Pressure([scope.clone()].into()));
        assert_eq!(events(file, Duration::from_millis(200)), PollFlags::empty());
    }
}

/// A daemon that looks when asked to.
fn look_when_asked(hub: &Hub, is_done: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (hub, is_done) = (hub.clone(), Arc::clone(is_done));
    std::thread::spawn(move || {
        while !is_done.load(Ordering::SeqCst) {
            if hub.take_wake() {
                let sequence = hub.snapshot().sequence + 1;
                hub.publish(demo::snapshot(sequence, a_minute_later()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    })
}

#[test]
fn an_expired_report_makes_the_daemon_look() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(Settings::default());
    let test = "an_expired_report_makes_the_daemon_look";
    let Some(files) = mounted(test, &hub, dir.path(), a_minute_later) else {
        return;
    };
    // The write itself wakes the aging thread: no read is necessary.
    let is_done = Arc::new(AtomicBool::new(false));
    hub.take_wake();
    write(
        &files.dir().join("node0/workingset_report/refresh_interval"),
        "5000",
    )
    .unwrap();
    let daemon = look_when_asked(&hub, &is_done);
    let newer = hub.wait_newer(1, Duration::from_secs(20)).expect("a look");
    assert_eq!(newer.time_ms, a_minute_later());
    is_done.store(true, Ordering::SeqCst);
    daemon.join().unwrap();

    // Without a daemon that responds, a read still ends, with what is known.
    hub.publish(demo::snapshot(newer.sequence + 1, LOOKED_MS));
    let began = Instant::now();
    write(
        &files
            .dir()
            .join("node0/workingset_report/page_age_intervals"),
        "1000",
    )
    .unwrap();
    let text = read(&files.dir().join("node0/workingset_report/page_age"));
    assert!(text.starts_with("1000 anon="), "{text}");
    assert!(began.elapsed() < LOOK_TIMEOUT * 4);
}

#[test]
fn what_goes_away_is_gone_for_who_has_it_open_too() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(demo::settings());
    let test = "what_goes_away_is_gone_for_who_has_it_open_too";
    let Some(files) = mounted(test, &hub, dir.path(), at_once) else {
        return;
    };
    let path = files.dir().join("cgroup/web/memory.workingset.page_age");
    let mut file = fs::File::open(&path).unwrap();
    let mut snapshot = demo::snapshot(2, LOOKED_MS);
    snapshot.subjects.retain(|subject| &*subject.name != "/web");
    snapshot.nodes.retain(|node| *node != 1);
    hub.publish(snapshot);
    let error = file.read(&mut [0; 9]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    assert_eq!(
        fs::File::open(&path).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
    assert!(!files.dir().join("node1").exists());
    assert_eq!(
        write(
            &files
                .dir()
                .join("cgroup/batch/memory.workingset.refresh_interval"),
            "N1=1"
        ),
        Err(libc::EINVAL),
        "offline"
    );
}

#[test]
fn nothing_stays_mounted_and_readers_do_not_keep_it() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(demo::settings());
    let test = "nothing_stays_mounted_and_readers_do_not_keep_it";
    let Some(files) = mounted(test, &hub, dir.path(), at_once) else {
        return;
    };
    let place = files.dir().to_owned();
    assert!(is_mounted(&place));
    let again = Files::start(&hub, &config(dir.path(), Means::Any), at_once);
    assert!(
        matches!(again, Err(FilesError::Served { .. })),
        "one daemon a directory"
    );
    let open = fs::File::open(place.join("node0/workingset_report/page_age")).unwrap();
    drop(files);
    assert!(!is_mounted(&place));
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    drop(open);
    // And it can be mounted again.
    let files = Files::start(&hub, &config(dir.path(), Means::Fuse), at_once).unwrap();
    assert!(files.describe().ends_with("(FUSE)"), "{}", files.describe());
}

#[test]
fn other_users_are_kept_out() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let hub = hub(demo::settings());
    let test = "other_users_are_kept_out";
    let Some(files) = mounted(test, &hub, dir.path(), at_once) else {
        return;
    };
    let has_setpriv = std::process::Command::new("setpriv")
        .arg("--version")
        .output()
        .is_ok();
    if !has_setpriv || !rustix::process::geteuid().is_root() {
        println!("SKIPPED {test}: no root, or no setpriv");
        return;
    }
    let report = files.dir().join("node0/workingset_report/page_age");
    let tried = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"])
        .arg(report)
        .output()
        .unwrap();
    assert!(
        !tried.status.success() && tried.stdout.is_empty(),
        "{tried:?}"
    );
}

const CHILD_DIR: &str = "AGEWISE_TEST_FILES_DIR";

/// Not a test: the process that `a_killed_daemon_is_cleaned_up_after` starts and kills.
#[test]
#[ignore = "started by another test"]
fn serve_until_killed() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    let hub = hub(demo::settings());
    let means = match std::env::var_os("AGEWISE_TEST_PLAIN") {
        Some(_) => Means::Plain,
        None => Means::Fuse,
    };
    let config = FilesConfig {
        dir: dir.into(),
        means,
    };
    let _files = Files::start(&hub, &config, at_once).unwrap();
    println!("serving");
    std::thread::sleep(Duration::from_secs(60));
}

fn a_daemon_that_is_killed(dir: &Path, is_plain: bool) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "files::tests::serve_until_killed",
        ])
        .env(CHILD_DIR, dir)
        .stdout(std::process::Stdio::piped());
    if is_plain {
        command.env("AGEWISE_TEST_PLAIN", "1");
    }
    let mut child = command.spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let is_serving = output
        .lines()
        .map_while(Result::ok)
        .any(|line| line.contains("serving"));
    assert!(is_serving, "the child did not mount");
    let hub = hub(demo::settings());
    let config = FilesConfig {
        dir: dir.to_owned(),
        ..FilesConfig::default()
    };
    let refused = Files::start(&hub, &config, at_once);
    assert!(matches!(refused, Err(FilesError::Served { .. })));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_killed_daemon_is_cleaned_up_after() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(demo::settings());
    let test = "a_killed_daemon_is_cleaned_up_after";
    if mounted(test, &hub, dir.path(), at_once).is_none() {
        return;
    }
    let place = dir.path().join("files");
    a_daemon_that_is_killed(&place, false);
    let error = fs::metadata(&place).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "left mounted");
    let files = Files::start(&hub, &config(dir.path(), Means::Fuse), at_once).unwrap();
    assert!(files.dir().join("node0").is_dir());
    drop(files);
    assert!(!is_mounted(&place));

    a_daemon_that_is_killed(&place, true);
    assert!(place.join("node0").is_dir(), "left behind");
    let files = Files::start(&hub, &config(dir.path(), Means::Plain), at_once).unwrap();
    drop(files);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
}

// ---- plain files

fn ask(files: &Files, line: &str) -> String {
    let mut control = UnixStream::connect(files.dir().join("control")).unwrap();
    control.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    control.read_to_string(&mut answer).unwrap();
    answer
}

/// Waits for what the keeper writes after a tick.
fn becomes(path: &Path, wanted: impl Fn(Option<&str>) -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        if wanted(fs::read_to_string(path).ok().as_deref()) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn plain_files_are_rewritten_and_take_writes_through_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(Settings::default());
    let files = Files::start(&hub, &config(dir.path(), Means::Plain), at_once).unwrap();
    assert!(!files.is_fuse() && files.describe().contains("plain files"));
    let interval = "cgroup/web/memory.workingset.refresh_interval";
    assert_eq!(read(&files.dir().join(interval)), "N0=0 N1=0 \n");
    assert_eq!(ask(&files, &format!("write {interval} N0=5000\n")), "ok\n");
    assert_eq!(
        ask(&files, &format!("read {interval}\n")),
        "ok 14\nN0=5000 N1=0 \n"
    );
    assert!(ask(&files, &format!("write {interval} N0\n")).starts_with("error 22 "));
    assert!(ask(&files, "write node0/workingset_report/page_age 1\n").starts_with("error 13 "));
    assert!(ask(&files, "read ../../etc/passwd\n").starts_with("error 2 "));
    assert!(ask(&files, "remove node0\n").starts_with("error 2 "));
    assert!(ask(&files, &format!("remove {interval}\n")).starts_with("error 22 "));
    assert!(ask(&files, "\n").starts_with("error 2 "));
    hub.publish(demo::snapshot(2, LOOKED_MS));
    assert!(becomes(&files.dir().join(ENTRY.join("/")), |text| text
        .is_some_and(|text| text.starts_with("N0\n"))));
    assert!(becomes(&files.dir().join(interval), |text| text
        == Some("N0=5000 N1=0 \n")));
    // A cgroup may have any name, and be where something is in the way.
    let mut snapshot = demo::snapshot(3, LOOKED_MS);
    let of = |name: &str, id: u64| SubjectView {
        name: name.into(),
        id,
        ..snapshot.subjects[1].clone()
    };
    let more = [of("/.new", 91), of("/blocked", 92), of("/z", 93)];
    snapshot.subjects.extend(more);
    fs::write(files.dir().join("cgroup/blocked"), "").unwrap();
    hub.publish(snapshot);
    for name in [".new", "z"] {
        let file = format!("cgroup/{name}/memory.workingset.page_age");
        assert!(becomes(&files.dir().join(file), |text| text.is_some()));
    }
    fs::remove_file(files.dir().join("cgroup/blocked")).unwrap();
    // A cgroup that vanishes is removed, with its directory.
    let mut snapshot = demo::snapshot(4, LOOKED_MS);
    snapshot
        .subjects
        .retain(|subject| !subject.name.starts_with("/batch"));
    hub.publish(snapshot);
    let batch = files.dir().join("cgroup/batch");
    assert!(becomes(
        &batch.join("job-1/memory.workingset.page_age"),
        |text| text.is_none()
    ));
    assert!(becomes(&batch.join("memory.workingset.page_age"), |text| {
        text.is_none()
    }));
    let began = Instant::now();
    while batch.exists() {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "its directory is left"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let mode = |path: &str| files.dir().join(path).metadata().unwrap().mode() & 0o777;
    assert_eq!((mode("control"), mode("node0")), (0o600, 0o700));
    let place = files.dir().to_owned();
    drop(files);
    assert_eq!(fs::read_dir(place).unwrap().count(), 0);
}

#[test]
fn a_client_of_plain_files_waits_for_pressure() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(Settings::default());
    let scope = Scope {
        cgroup: Some(Arc::from("/web")),
        node: 0,
    };
    hub.set_report(scope.clone(), |set| {
        *set = ReportSetting {
            refresh_interval_ms: 600_000,
            report_threshold_ms: 1000,
        };
    });
    let files = Files::start(&hub, &config(dir.path(), Means::Plain), a_minute_later).unwrap();
    let mut control = UnixStream::connect(files.dir().join("control")).unwrap();
    control
        .write_all(format!("wait {}\n", ENTRY.join("/")).as_bytes())
        .unwrap();
    control
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    std::thread::sleep(Duration::from_millis(100));
    hub.tell(Event::Pressure([scope].into()));
    let mut answer = String::new();
    control.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "ok\n");
}
