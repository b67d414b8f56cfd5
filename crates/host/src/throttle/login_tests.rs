// SPDX-License-Identifier: Apache-2.0
//! Fake proc trees and records. The tests of login programs need files that belong to root.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::Mode;

use super::*;

/// `pts/3` as encoded in `stat`.
const PTS_3: u32 = 136 << 8 | 3;
const SHELL: u32 = 50;

struct Fake {
    top: tempfile::TempDir,
    proc: ProcRoot,
}

impl Fake {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        let proc = ProcRoot::new(top.path().join("proc"));
        Fake { top, proc }
    }

    fn run(&self) -> PathBuf {
        self.top.path().join("run")
    }

    /// Adds a process below `ppid` that runs a program with this name.
    fn add(&self, pid: u32, ppid: u32, program: &str, uid: u32, terminal: u32) {
        let dir = self.proc.of(pid);
        fs::create_dir_all(&dir).unwrap();
        let stat = format!(
            "{pid} (sshd) S {ppid} {pid} {pid} {terminal} -1 0 1 2 3 4 5 6 7 8 20 0 1 0 9 1000 50\n"
        );
        fs::write(dir.join("stat"), stat).unwrap();
        let status = format!("Tgid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
        fs::write(dir.join("status"), status).unwrap();
        let file = self.top.path().join(program);
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        symlink(file, dir.join("exe")).unwrap();
    }

    fn is_login(&self) -> bool {
        let process = Process::open_in(&self.proc, SHELL).unwrap();
        let (run, dev) = (self.run(), self.top.path().join("dev"));
        let logins = Logins {
            proc: &self.proc,
            run: &run,
            dev: &dev,
            names: &self.top.path().join("char"),
            sessions: OnceCell::new(),
        };
        logins.is_login(SHELL, &process.stat().unwrap())
    }

    /// Adds a terminal, whose owner is returned.
    fn add_terminal(&self, numbers: &str, name: &str) -> u32 {
        for dir in ["dev", "char"] {
            fs::create_dir_all(self.top.path().join(dir)).unwrap();
        }
        let link = self.top.path().join("char").join(numbers);
        symlink(format!("../../devices/tty/{name}"), link).unwrap();
        let file = self.top.path().join("dev").join(name);
        fs::write(&file, "").unwrap();
        fs::metadata(file).unwrap().uid()
    }

    /// Whether files created by a test belong to root.
    fn makes_roots_files(&self) -> bool {
        fs::metadata(self.top.path()).unwrap().uid() == 0
    }

    fn write_utmp(&self, line: &str, pid: u32) {
        // SAFETY: an all-zero record is valid.
        let mut record: libc::utmpx = unsafe { std::mem::zeroed() };
        record.ut_type = libc::USER_PROCESS;
        record.ut_pid = pid as i32;
        for (to, from) in record.ut_line.iter_mut().zip(line.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: a record consists of numbers only, and outlives the slice.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const record).cast::<u8>(), size_of_val(&record))
        };
        fs::create_dir_all(self.run()).unwrap();
        fs::write(self.run().join("utmp"), bytes).unwrap();
    }

    fn write_logind(&self, terminal: &str, leader: u32) {
        self.write_session(terminal, leader, "active");
    }

    fn write_session(&self, terminal: &str, leader: u32, state: &str) {
        let dir = self.run().join("systemd/sessions");
        fs::create_dir_all(&dir).unwrap();
        let text =
            format!("UID=1000\nTTY={terminal}\nLEADER={leader}\nCLASS=user\nSTATE={state}\n");
        fs::write(dir.join("7"), text).unwrap();
    }
}

#[test]
fn a_pty_of_script_is_no_login_whatever_its_name() {
    let fake = Fake::new();
    fake.add(SHELL, 40, "bash", 1000, PTS_3);
    // A program called sshd by `comm` (as all of these) that is not sshd.
    fake.add(40, 1, "script", 0, 0);
    assert!(!fake.is_login());
}

#[test]
fn a_shell_below_sshd() {
    let fake = Fake::new();
    if !fake.makes_roots_files() {
        println!("SKIPPED a_shell_below_sshd: needs files of root's own");
        return;
    }
    fake.add(SHELL, 40, "bash", 1000, PTS_3);
    // The process for the connection runs as the user, the monitor above it as root.
    fake.add(40, 30, "sshd-session", 1000, 0);
    fake.add(30, 20, "sshd", 0, 0);
    fake.add(20, 1, "sshd", 0, 0);
    assert!(fake.is_login());
    // The same program, started by another user.
    let fake = Fake::new();
    fake.add(SHELL, 40, "bash", 1000, PTS_3);
    fake.add(40, 30, "sshd", 1000, 0);
    fake.add(30, 1, "bash", 1000, 0);
    assert!(!fake.is_login());
    // A program with that name that others can write to.
    let fake = Fake::new();
    fake.add(SHELL, 40, "bash", 1000, PTS_3);
    fake.add(40, 1, "sshd", 0, 0);
    assert!(fake.is_login());
    let file = fake.top.path().join("sshd");
    fs::set_permissions(file, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(!fake.is_login());
}

#[test]
fn a_console_is_one_and_no_terminal_is_none() {
    for (terminal, is_login) in [(4 << 8 | 1, true), (4 << 8 | 64, true), (0, false)] {
        let fake = Fake::new();
        fake.add(SHELL, 1, "sh", 0, terminal);
        assert_eq!(fake.is_login(), is_login, "{terminal}");
    }
}

/// Others may open it: members of `dialout`, for example.
#[test]
fn a_serial_line_is_one_for_whom_it_was_given_to_and_for_whom_logind_knows() {
    let shell = |of_owner: bool| {
        let fake = Fake::new();
        let owner = fake.add_terminal("4:64", "ttyS0");
        let user = if of_owner { owner } else { owner + 1 };
        fake.add(SHELL, 1, "sh", user, 4 << 8 | 64);
        fake
    };
    assert!(shell(true).is_login());
    let fake = shell(false);
    assert!(!fake.is_login());
    // A program that runs as the owner, started by somebody else.
    let owner = fs::metadata(fake.top.path().join("dev/ttyS0"))
        .unwrap()
        .uid();
    let status = format!(
        "Tgid:\t{SHELL}\nUid:\t{}\t{owner}\t{owner}\t{owner}\n",
        owner + 1
    );
    fs::write(fake.proc.of(SHELL).join("status"), status).unwrap();
    assert!(!fake.is_login());
    fake.write_logind("ttyS0", SHELL);
    assert!(fake.is_login());
}

#[test]
fn records_count_only_with_the_process_they_are_of() {
    for (pid, is_login) in [(SHELL, true), (40, true), (41, false)] {
        let fake = Fake::new();
        fake.add(SHELL, 40, "bash", 1000, PTS_3);
        fake.add(40, 1, "xterm", 1000, 0);
        // By utempter, which anybody may start.
        fake.write_utmp("pts/3", pid);
        assert!(!fake.is_login(), "utmp {pid}");
        fake.write_logind("pts/3", pid);
        assert_eq!(fake.is_login(), is_login, "logind {pid}");
        fake.write_logind("pts/33", pid);
        assert!(!fake.is_login(), "another terminal");
    }
}

/// A pipe would be read until the session ends.
#[test]
fn only_files_are_read_as_records() {
    let fake = Fake::new();
    fake.add(SHELL, 40, "bash", 1000, PTS_3);
    fake.add(40, 1, "xterm", 1000, 0);
    fake.write_logind("pts/33", SHELL);
    let path = fake.run().join("systemd/sessions/7.ref");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RWXU).unwrap();
    let mut pipe = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    writeln!(pipe, "TTY=pts/3\nLEADER={SHELL}").unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Whoever reads the record must not wait for ever.
        let is_done = &is_done;
        scope.spawn(move || {
            let is_unread = || rustix::io::ioctl_fionread(&pipe).unwrap() > 0;
            while !is_done.load(Ordering::Relaxed) && is_unread() {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(pipe);
        });
        let is_login = fake.is_login();
        is_done.store(true, Ordering::Relaxed);
        assert!(!is_login);
    });
}

/// Pids and terminals of a session that has ended can be had by trying often enough.
#[test]
fn who_takes_the_pid_and_terminal_of_a_session_that_has_ended_is_not_logged_in() {
    let fake = Fake::new();
    fake.add(SHELL, 40, "bash", 1000, PTS_3);
    fake.add(40, 1, "xterm", 1000, 0);
    fake.write_session("pts/3", SHELL, "online");
    assert!(fake.is_login());
    fake.write_session("pts/3", SHELL, "closing");
    assert!(!fake.is_login());
}

#[test]
fn device_numbers_have_names() {
    assert_eq!(pty_name(PTS_3).as_deref(), Some("pts/3"));
    assert_eq!(pty_name(137 << 8 | 1).as_deref(), Some("pts/257"));
    assert_eq!(pty_name(136 << 8 | 1 << 20).as_deref(), Some("pts/256"));
    assert_eq!(pty_name(4 << 8 | 1), None);
}
