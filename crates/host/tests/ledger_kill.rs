// SPDX-License-Identifier: Apache-2.0
//! Kills a program before and after every system call while it records, does and undoes an action:
//! the next one always undoes what is left.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use agewise_host::throttle::{Kind, Ledger, Step, Undo};

/// Exit code of the child if ptrace is not permitted.
const NO_TRACE: i32 = 77;

/// Directories that represent a cgroup and the state directory.
struct Scene {
    _top: tempfile::TempDir,
    cgroup: PathBuf,
    state: PathBuf,
    socket: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        let (cgroup, state, socket) = (at("cgroup"), at("state"), at("socket"));
        fs::create_dir(&cgroup).unwrap();
        fs::write(cgroup.join("memory.high"), "max").unwrap();
        fs::write(cgroup.join("cgroup.freeze"), "0").unwrap();
        Scene {
            _top: top,
            cgroup,
            state,
            socket,
        }
    }

    fn undo(&self, kind: Kind, file: &str, value: &str) -> Undo {
        Undo {
            dir: self.cgroup.clone(),
            inode: fs::metadata(&self.cgroup).unwrap().ino(),
            kind,
            steps: vec![Step::Write {
                file: self.cgroup.join(file),
                value: value.to_owned(),
            }],
        }
    }

    /// The actions of a daemon; with `ends`, it also undoes them.
    fn act(&self, ends: bool) {
        let (ledger, undone) = Ledger::open(&self.state).unwrap();
        assert!(undone.is_nothing());
        ledger.add(Undo::socket(&self.socket)).unwrap();
        let listener = UnixListener::bind(&self.socket).unwrap();
        let squeeze = self.undo(Kind::Squeeze, "memory.high", "max");
        ledger.add(squeeze).unwrap();
        fs::write(self.cgroup.join("memory.high"), "100").unwrap();
        let freeze = self.undo(Kind::Freeze, "cgroup.freeze", "0");
        ledger.add(freeze).unwrap();
        fs::write(self.cgroup.join("cgroup.freeze"), "1").unwrap();
        if !ends {
            return;
        }
        ledger.undo(&self.cgroup, Kind::Freeze).unwrap();
        assert!(ledger.undo_throttles().is_well());
        drop(listener);
        ledger.undo(&self.socket, Kind::Socket).unwrap();
    }

    fn assert_undone(&self, when: &str) {
        let (_, undone) = Ledger::open(&self.state).unwrap();
        assert!(undone.is_well(), "{when}: {undone:?}");
        let value = |file: &str| fs::read_to_string(self.cgroup.join(file)).unwrap();
        assert_eq!(value("memory.high"), "max", "{when}");
        assert_eq!(value("cgroup.freeze"), "0", "{when}");
        assert!(!self.socket.exists(), "{when}");
        let left = fs::read_dir(&self.state).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{when}: the ledger is left");
    }
}

/// How a child ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Killed,
    Exited(i32),
}

/// Runs `work` in a child that is killed at its `stop`-th system call entry or exit.
fn run_killed(stop: usize, work: impl FnOnce()) -> End {
    // SAFETY: the child has one thread, a copy of this one, and leaves by _exit. Of the locks that
    // other threads may hold it only needs those of malloc, which fork takes and releases.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ptrace without pointers, a signal to itself, and an exit.
        unsafe {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                libc::_exit(NO_TRACE);
            }
            libc::raise(libc::SIGSTOP);
        }
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(worked.is_err())) }
    }
    assert!(pid > 0, "fork");
    let mut stops = 0;
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call; the child is ours, and nobody else waits for it.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(waited, pid);
        if libc::WIFEXITED(status) {
            return End::Exited(libc::WEXITSTATUS(status));
        }
        if libc::WIFSIGNALED(status) {
            return End::Killed;
        }
        if stops == stop {
            // SAFETY: the child is stopped and not reaped.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            continue;
        }
        stops += 1;
        // SAFETY: as above; no pointers.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, 0) };
    }
}

#[test]
fn whenever_it_is_killed() {
    let mut stop = 1;
    loop {
        let scene = Scene::new();
        let end = run_killed(stop, || scene.act(true));
        if end == End::Exited(NO_TRACE) {
            println!("SKIPPED whenever_it_is_killed: processes cannot be traced here");
            return;
        }
        scene.assert_undone(&format!("killed at stop {stop}"));
        if end != End::Killed {
            assert_eq!(end, End::Exited(0));
            break;
        }
        stop += 1;
    }
    assert!(stop > 100, "only {stop} stops: the calls were not seen");
}

#[test]
fn one_that_is_killed_while_it_undoes() {
    let mut stop = 1;
    loop {
        let scene = Scene::new();
        let end = run_killed(usize::MAX, || scene.act(false));
        if end == End::Exited(NO_TRACE) {
            println!("SKIPPED one_that_is_killed_while_it_undoes: processes cannot be traced here");
            return;
        }
        assert_eq!(end, End::Exited(0));
        assert_eq!(value_of(&scene.cgroup), "1", "nothing was undone yet");
        let end = run_killed(stop, || drop(Ledger::open(&scene.state)));
        scene.assert_undone(&format!("killed at stop {stop} of undoing"));
        if end != End::Killed {
            assert_eq!(end, End::Exited(0));
            break;
        }
        stop += 1;
    }
    assert!(stop > 30, "only {stop} stops: the calls were not seen");
}

fn value_of(cgroup: &Path) -> String {
    fs::read_to_string(cgroup.join("cgroup.freeze")).unwrap()
}
