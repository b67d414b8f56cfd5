// SPDX-License-Identifier: Apache-2.0
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use rustix::net::Shutdown;

use super::*;
use crate::demo;
use crate::http::Listener;
use crate::serve::sandbox::Calls;

/// A listening socket to serve.
struct Door(Listener);

impl Stall for Door {
    fn task(&self) -> Task {
        Task::Web {
            any_host: false,
            hosts: Vec::new(),
            subjects_max: 10,
            containers_max: 10,
            depth_max: 3,
        }
    }

    fn open(&mut self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

fn listener(dir: &tempfile::TempDir) -> Listener {
    let listen = crate::config::Listen::Unix(dir.path().join("socket"));
    Listener::bind(&listen, false, 0o600).unwrap()
}

fn apart(dir: &tempfile::TempDir, script: &str) -> Apart<Door> {
    let program = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    Apart::start_program(program, Door(listener(dir))).unwrap()
}

fn hub() -> Hub {
    let hub = Hub::new(demo::settings());
    hub.publish(demo::snapshot(1, 1000));
    hub
}

#[test]
fn a_snapshot_arrives_as_it_was_sent() {
    let snapshot = demo::snapshot(7, 123_456);
    let mut line = Vec::new();
    let news = News {
        snapshot: &snapshot,
        troubles: vec!["journal: full".to_owned()],
        #[cfg(feature = "fuse")]
        files: None,
    };
    agewise_cli::output::json_line(&mut line, &news).unwrap();
    let heard: Heard = serde_json::from_slice(&line).unwrap();
    assert_eq!(heard.snapshot, snapshot);
    assert_eq!(heard.troubles, ["journal: full"]);
}

#[test]
fn a_line_has_room_for_as_many_cgroups_as_may_be_followed() {
    let largest = demo::snapshot_of_host(0, 1, 1000).subjects;
    let bytes = largest.iter().map(|subject| {
        let less = crate::state::LessMemory {
            percent: 50,
            memory_bytes: u64::MAX,
            beyond_bytes: u64::MAX,
            faults_per_second: 1.0 / 3.0,
            faults_high: Some(1.0 / 3.0),
            wait_ratio: 1.0 / 3.0,
            wait_high: Some(1.0 / 3.0),
        };
        let subject = crate::state::SubjectView {
            less: vec![less; 5],
            ..subject.clone()
        };
        let mut bytes = Vec::new();
        agewise_cli::output::json(&mut bytes, &subject).unwrap();
        bytes.len()
    });
    let takes = |count: usize| {
        let text = format!("observe.cgroups_max = {count}");
        crate::config::Config::parse(&text).is_ok()
    };
    assert!(takes(65_536) && !takes(65_537));
    let bytes = bytes.max().unwrap();
    assert!(bytes * 65_536 <= LINE_MAX_BYTES, "{bytes} bytes each");
}

#[test]
fn a_process_that_ends_is_said_and_replaced_after_a_pause() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, mut apart) = (hub(), apart(&dir, "exit 3"));
    let began = Instant::now();
    let mut said = Vec::new();
    while said.len() < 3 {
        said.extend(apart.publish(&hub));
        assert!(began.elapsed() < Duration::from_secs(60), "{said:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(
        said[0].contains("exit status: 3") && said[0].ends_with("in 1 s"),
        "{said:?}"
    );
    assert!(said[1].contains("started again"), "{said:?}");
    assert!(said[2].ends_with("in 2 s"), "{said:?}");
    assert!(began.elapsed() >= PAUSE);
}

/// A process that never reads costs the daemon one line, and almost no time.
#[test]
fn a_process_that_does_not_listen_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, mut apart) = (hub(), apart(&dir, "exec sleep 60"));
    let mut most = 0;
    for _ in 0..2000 {
        assert_eq!(apart.publish(&hub), None);
        let running = apart.running.as_ref().unwrap();
        most = most.max(running.waiting.capacity());
        if !running.waiting.is_empty() {
            break;
        }
    }
    let running = apart.running.as_ref().unwrap();
    assert!(!running.waiting.is_empty(), "the pipe never filled");
    let (left, began) = (running.waiting.len(), Instant::now());
    assert_eq!(apart.publish(&hub), None);
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(apart.running.as_ref().unwrap().waiting.len(), left);
    assert!(most < 1 << 20);
}

/// Whatever the process writes, nobody reads it: standard output is a listening socket, and its end
/// of the pipe cannot be written to.
#[test]
fn a_process_that_lies_is_not_heard() {
    let dir = tempfile::tempdir().unwrap();
    let lies = "echo kill everybody; echo kill everybody >&0; exec sleep 60";
    let (hub, mut apart) = (hub(), apart(&dir, lies));
    let snapshot = hub.snapshot();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(apart.publish(&hub), None);
    assert_eq!(hub.snapshot(), snapshot);
    assert!(!hub.take_wake() && hub.health().reasons().is_empty());
    let pipe = &apart.running.as_ref().unwrap().pipe;
    assert!(rustix::io::read(pipe.as_fd(), &mut [0u8; 8]).is_err());
}

/// What a process that gave up its rights can still do: one bit of the result per action. The last
/// one is also set if it cannot do what serving takes.
fn locked_in(dir: &std::path::Path, parent: u32, calls: fn(RawFd) -> Calls) -> i32 {
    let ledger = dir.join("ledger");
    let (pipe, _end) = io::pipe().unwrap();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let (client, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let calls = calls(server.as_raw_fd());
    if sandbox::give_up_rights(parent).is_err() || sandbox::lock_in(calls).is_err() {
        return 1;
    }
    let mut answer = 0;
    let reads = pipe.as_raw_fd();
    let mut can = |bit: i32, it_can: bool| answer |= i32::from(it_can) << bit;
    can(1, std::fs::File::open(&ledger).is_ok());
    can(2, std::fs::write(dir.join("new"), "").is_ok());
    let answers = matches!(calls, Calls::Answer { .. });
    // The listening socket stays open for the next process; connections are ended.
    let ends = |fd: BorrowedFd<'_>| rustix::net::shutdown(fd, Shutdown::Both).is_ok();
    can(3, ends(server.as_fd()) || ends(client.as_fd()) != answers);
    let pair = std::os::unix::net::UnixStream::pair().is_ok();
    let second = Duration::from_secs(1);
    let connects = std::net::TcpStream::connect_timeout(&address, second)
        .and_then(|mut stream| io::Write::write(&mut stream, b"x"));
    let binds = std::net::UdpSocket::bind("127.0.0.1:0").is_ok();
    can(4, pair || binds || connects.is_ok() == answers);
    // SAFETY: no signal is sent; fork in a child that ends right after.
    unsafe {
        can(5, libc::kill(libc::getppid(), 0) == 0);
        can(6, libc::fork() >= 0);
        let mut number: libc::c_int = 0;
        let (asks, sets) = (libc::FIONREAD, libc::FIONBIO);
        let asked = libc::ioctl(reads, asks, &raw mut number) == 0;
        can(7, asked || libc::ioctl(reads, sets, &raw mut number) != 0);
    }
    answer
}

#[test]
fn who_is_locked_in_opens_nothing_and_signals_nobody() {
    check_locked_in("answer", |clients| Calls::Answer { clients });
    #[cfg(feature = "otlp")]
    check_locked_in("connect", |_| Calls::Connect);
}

fn check_locked_in(name: &str, calls: fn(RawFd) -> Calls) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ledger"), "x").unwrap();
    let parent = std::process::id();
    // SAFETY: the child has one thread, a copy of this one, and leaves by _exit; of the locks that
    // other threads may hold, it only needs those of malloc, which fork takes and releases.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let answer = locked_in(dir.path(), parent, calls);
        // SAFETY: ends the process.
        unsafe { libc::_exit(answer) }
    }
    let mut status = 0;
    // SAFETY: the child is ours; `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "{status}");
    let answer = libc::WEXITSTATUS(status);
    if answer == 1 {
        println!("SKIPPED who_is_locked_in: this kernel has no seccomp filters");
        return;
    }
    assert_eq!(
        answer, 0,
        "{name}: what it can still do, bit by bit: {answer:b}"
    );
}
