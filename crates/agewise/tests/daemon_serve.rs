// SPDX-License-Identifier: Apache-2.0
//! Separate processes serve the web page and the report files, and send metrics: they have no
//! privileges, are replaced when they end, and end with the daemon.

#[cfg(feature = "fuse")]
#[path = "../../host/tests/support/need.rs"]
mod need;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use agewise_cli::children::Killed;
use rustix::process::Signal;

const AGEWISE: &str = env!("CARGO_BIN_EXE_agewise");

struct Daemon {
    child: Killed,
    top: tempfile::TempDir,
}

impl Daemon {
    fn start() -> Self {
        Self::serving("200ms", |at| {
            format!(
                "[metrics]\nenabled = true\nlisten = 'unix:{}'\n",
                at("socket")
            )
        })
    }

    fn serving(tick: &str, what: impl FnOnce(&dyn Fn(&str) -> String) -> String) -> Self {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name).display().to_string();
        let config = format!(
            "journal.file = '{}'\n[observe]\npids = [{}]\ncgroups = []\ntick = '{tick}'\n\
             cpu_percent = 50\n{}",
            at("journal"),
            std::process::id(),
            what(&at),
        );
        fs::write(at("agewise.toml"), config).unwrap();
        let child = Command::new(AGEWISE)
            .args(["daemon", "--config", &at("agewise.toml")])
            .env("STATE_DIRECTORY", at("state"))
            .env("NOTIFY_SOCKET", at("notify"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let child = Killed(child);
        Daemon { child, top }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.top.path().join(name)
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.at("socket")).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// The pid of the serving process, once it answers with the daemon's data.
    fn server(&self) -> u32 {
        wait_for("metrics", || {
            let answer = self.get("/metrics")?;
            answer.contains("agewise_").then_some(())
        });
        self.only_child()
    }

    fn only_child(&self) -> u32 {
        wait_for("the process that serves", || {
            let children = format!("/proc/{0}/task/{0}/children", self.child.id());
            let children = fs::read_to_string(children).ok()?;
            children
                .split_ascii_whitespace()
                .find_map(|pid| pid.parse().ok())
        })
    }

    fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

fn wait_for<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = get() {
            return found;
        }
        // The budget may delay a look, by as long as starting on a busy machine took.
        assert!(began.elapsed() < Duration::from_secs(180), "no {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn status(pid: u32, key: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_else(|| panic!("no {key} in {text}"))
        .trim_start_matches(':')
        .trim()
        .to_owned()
}

fn assert_holds_no_rights(server: u32) {
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(server, set), "0000000000000000", "{set}");
    }
    assert_eq!(status(server, "NoNewPrivs"), "1");
    assert_eq!(status(server, "Seccomp"), "2");
    if rustix::process::geteuid().is_root() {
        // A user that nobody else has, where the user namespace has all of them.
        let users = fs::read_to_string("/proc/self/uid_map").unwrap();
        let has_all = users.split_whitespace().eq(["0", "0", "4294967295"]);
        let user = if has_all { "2123456789" } else { "65534" };
        assert_eq!(status(server, "Uid"), [user; 4].join("\t"));
        assert_eq!(status(server, "Groups"), "");
        // Others of that user could not read its memory.
        let memory = fs::metadata(format!("/proc/{server}/mem")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&memory), 0);
    }
}

fn kill(pid: u32) {
    send(pid, Signal::KILL);
}

fn send(pid: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn who_serves_holds_no_rights_and_is_replaced_and_ends_with_the_daemon() {
    let mut daemon = Daemon::start();
    let server = daemon.server();
    assert_holds_no_rights(server);
    let files = fs::read_dir(format!("/proc/{server}/fd")).map_or(0, Iterator::count);
    assert!(files < 12, "{files} descriptors");
    assert!(
        daemon
            .get("/healthz")
            .is_some_and(|answer| answer.contains("200 OK"))
    );

    // Killed from outside, as by the OOM killer.
    kill(server);
    wait_for("line of the journal", || {
        let journal = fs::read_to_string(daemon.at("journal")).ok()?;
        journal
            .contains("the process that serves was started again")
            .then_some(())
    });
    let second = daemon.server();
    assert_ne!(second, server);

    // It may have been taken over, and ignore that its input ends.
    send(second, Signal::STOP);
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    wait_for_end(second);
}

/// To a server that accepts connections and says nothing.
#[cfg(feature = "otlp")]
#[test]
fn who_sends_holds_no_rights_and_is_replaced_and_ends_though_it_waits_for_an_answer() {
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    deaf.set_nonblocking(true).unwrap();
    let port = deaf.local_addr().unwrap().port();
    // A name, unless this system knows none: a bare one has no /etc/hosts.
    let host = match std::net::ToSocketAddrs::to_socket_addrs(&("localhost", port)) {
        Ok(_) => "localhost",
        Err(_) => "127.0.0.1",
    };
    let mut daemon = Daemon::serving("200ms", |_| {
        format!("[metrics.otlp]\nendpoint = 'http://{host}:{port}'\ntimeout = '60s'\n")
    });
    let first = wait_for("a connection", || deaf.accept().ok());
    let sender = daemon.only_child();
    assert_holds_no_rights(sender);
    kill(sender);
    drop(first);
    wait_for("line of the journal", || {
        let journal = fs::read_to_string(daemon.at("journal")).ok()?;
        journal
            .contains("the process that sends metrics was started again")
            .then_some(())
    });
    let _second = wait_for("another connection", || deaf.accept().ok());
    let second = daemon.only_child();
    assert_ne!(second, sender);
    assert_holds_no_rights(second);
    daemon.signal(Signal::TERM);
    let status = wait_for("end of the daemon", || daemon.child.try_wait().unwrap());
    assert!(status.success(), "{status}");
    wait_for_end(second);
}

#[test]
fn an_orderly_end_does_not_wait_for_who_serves() {
    let mut daemon = Daemon::start();
    let server = daemon.server();
    daemon.signal(Signal::TERM);
    let status = wait_for("end of the daemon", || daemon.child.try_wait().unwrap());
    assert!(status.success() && !daemon.at("socket").exists());
    wait_for_end(server);
}

/// As the unit expects (`Type=notify`, `WatchdogSec=60`), also if the next look is far away.
#[test]
fn the_service_manager_hears_that_it_starts_lives_and_stops() {
    let mut bound = None;
    let mut daemon = Daemon::serving("10m", |at| {
        bound = Some(UnixDatagram::bind(at("notify")).unwrap());
        String::new()
    });
    let socket = bound.unwrap();
    // Half of what the unit allows.
    let patience = Some(Duration::from_secs(30));
    socket.set_read_timeout(patience).unwrap();
    let heard = || {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).expect("a message in time");
        String::from_utf8_lossy(&bytes[..length]).trim().to_owned()
    };
    assert_eq!(heard(), "READY=1");
    for _ in 0..3 {
        assert_eq!(heard(), "WATCHDOG=1");
    }
    daemon.signal(Signal::TERM);
    let last = std::iter::repeat_with(heard).find(|message| message != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
    let status = wait_for("end of the daemon", || daemon.child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}

fn wait_for_end(pid: u32) {
    wait_for("end of the process that serves", || {
        (!Path::new(&format!("/proc/{pid}/stat")).exists()).then_some(())
    });
}

#[cfg(feature = "fuse")]
fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.contains(&format!(" {} ", dir.display()))
}

/// Runs something that might never return, with a time limit.
#[cfg(feature = "fuse")]
fn in_time<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(act()));
    done.recv_timeout(Duration::from_secs(60))
        .unwrap_or_else(|_| panic!("{what} hangs"))
}

/// A stopped daemon used to hang `df` and every reader of the files.
#[cfg(feature = "fuse")]
#[test]
fn report_files_are_answered_for_without_rights_and_without_the_daemon() {
    let mut daemon = Daemon::serving("200ms", |at| {
        let directory = at("files");
        format!("[files]\nenabled = true\ndirectory = '{directory}'\n")
    });
    let described = wait_for("line of the journal", || {
        let journal = fs::read_to_string(daemon.at("journal")).ok()?;
        let line = journal.lines().find(|line| line.contains("\"files\""))?;
        Some(line.to_owned())
    });
    if !described.contains("without privileges") {
        // Threads only serve what another program mounted for an ordinary user.
        let is_root = rustix::process::geteuid().is_root();
        assert!(!is_root || !described.contains("(FUSE)"), "{described}");
        let why = need::lacks("fuse", "no FUSE file system can be mounted here");
        return println!("SKIPPED report_files_are_answered_for: {why}");
    }
    let files = daemon.at("files");
    let interval = files.join("node0/workingset_report/refresh_interval");
    let read = |path: &Path| {
        let path = path.to_owned();
        in_time("a read", move || fs::read_to_string(path))
    };
    wait_for("a node", || interval.exists().then_some(()));
    let server = daemon.only_child();
    assert_holds_no_rights(server);
    assert!(is_mounted(&files));
    fs::write(&interval, "700").unwrap();
    assert_eq!(read(&interval).unwrap(), "700\n");
    let bounds = files.join("node0/workingset_report/page_age_intervals");
    fs::write(&bounds, "1000,5000").unwrap();
    let page_age = files.join("node0/workingset_report/page_age");
    wait_for("histogram", || {
        let text = read(&page_age).ok()?;
        (text.lines().count() == 3).then_some(())
    });

    daemon.signal(Signal::STOP);
    let place = files.clone();
    in_time("statfs", move || rustix::fs::statfs(place)).unwrap();
    assert_eq!(read(&interval).unwrap(), "700\n");
    assert_eq!(read(&page_age).unwrap().lines().count(), 3);
    fs::write(&interval, "900").unwrap();
    daemon.signal(Signal::CONT);

    // Writes made while the daemon was stopped still reached it: it passes them to the next
    // process.
    std::thread::sleep(Duration::from_secs(1));
    kill(server);
    wait_for("another process", || {
        (daemon.only_child() != server).then_some(())
    });
    wait_for("what was set", || {
        (read(&interval).ok()? == "900\n").then_some(())
    });
    let second = daemon.only_child();
    assert_holds_no_rights(second);

    daemon.signal(Signal::TERM);
    let status = wait_for("end of the daemon", || daemon.child.try_wait().unwrap());
    assert!(status.success() && !is_mounted(&files));
    wait_for_end(second);
}
