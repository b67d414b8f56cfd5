// SPDX-License-Identifier: Apache-2.0
//! Shared by live tests of the daemon: a daemon with its own journal, cgroups, and exercisers.

pub mod cached;
#[path = "../../../host/tests/support/need.rs"]
pub mod need;
#[path = "../program/mod.rs"]
pub mod program;
pub mod refuse;
pub mod thrash;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use agewise_bench::exercise::spawned::Spawned;
use agewise_host::cgroup::{Hierarchy, OwnCgroup};
use agewise_host::root::ProcRoot;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub const AGEWISE: &str = env!("CARGO_BIN_EXE_agewise");
pub const MIB: u64 = 1 << 20;

/// Tests run one at a time: ages are in real time, and the machine may be small.
static ONE: Mutex<()> = Mutex::new(());

pub fn one() -> MutexGuard<'static, ()> {
    ONE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Directories of the cgroups created by `agewise run` with this pid.
pub fn cgroups_of(pid: u32) -> Vec<PathBuf> {
    fn search(dir: PathBuf, name: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name() == name {
                    found.push(entry.path());
                }
                search(entry.path(), name, found);
            }
        }
    }
    let hierarchy = Hierarchy::discover(&ProcRoot::default()).unwrap();
    let mut found = Vec::new();
    search(hierarchy.root, &format!("agewise-run-{pid}"), &mut found);
    found
}

/// Far longer than anything here takes. A daemon spends at most 1/20 of a core on looks at the page
/// cache, so on a machine with much of it they are half a minute apart.
const PATIENCE: Duration = Duration::from_secs(240);

/// Waits until it is so; fails if that takes too long.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The last lines of a journal, for a message.
pub fn newest(journal: &[Value]) -> String {
    let lines = journal.iter().rev().take(20).rev();
    let lines: Vec<String> = lines.map(Value::to_string).collect();
    lines.join("\n")
}

/// Why page tables cannot be read here; `None` if they can.
pub fn blind() -> Option<String> {
    let output = Command::new(AGEWISE)
        .args(["doctor", "--format", "json"])
        .output()
        .expect("run agewise");
    let row = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"))
        .find(|line| line["name"] == "pagewalk")
        .unwrap_or_else(|| panic!("no row of pagewalk: {output:?}"));
    let why = "page tables cannot be read (root and BPF are needed)";
    (row["state"] != "available").then(|| need::lacks("pagewalk", why))
}

/// Skips a test that cannot run here, with a message that says why.
#[macro_export]
macro_rules! skip_if {
    ($name:literal, $why:expr) => {
        if let Some(why) = $why {
            println!("SKIPPED {}: {why}", $name);
            return;
        }
    };
}

/// A daemon with its own configuration and journal; killed when dropped.
pub struct Daemon {
    pub child: Child,
    pub directory: TempDir,
}

impl Daemon {
    pub fn start(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_config(directory.path(), config);
        let child = spawn(directory.path());
        let daemon = Daemon { child, directory };
        daemon.wait_for("start", |_| true);
        daemon
    }

    /// The directory of its ledger.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub fn ledger(&self) -> PathBuf {
        self.state().join("ledger")
    }

    pub fn journal(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.directory.path().join("journal"));
        let text = text.unwrap_or_default();
        // A reader may see only the start of the line that is being written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        program::json_lines(whole)
    }

    /// Waits for a record of this kind that satisfies `is_it`.
    pub fn wait_for(&self, record: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let journal = self.journal();
            let found = journal
                .iter()
                .find(|line| line["record"] == record && is_it(line));
            if let Some(found) = found {
                return found.clone();
            }
            assert!(
                began.elapsed() < PATIENCE,
                "no such {record} in {}",
                newest(&journal)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Starts another daemon with the same configuration; returns its error message.
    pub fn spawn_again(daemon: &Daemon) -> String {
        let output = Command::new(AGEWISE)
            .args(["daemon", "--ticks", "1", "--config"])
            .arg(daemon.directory.path().join("agewise.toml"))
            .env("STATE_DIRECTORY", daemon.state())
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    pub fn end(mut self) -> Vec<Value> {
        self.signal(Signal::TERM);
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0));
        self.journal()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A failed test must not leave a mount behind either.
        let began = Instant::now();
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
        }
        while matches!(self.child.try_wait(), Ok(None)) && began.elapsed().as_secs() < 5 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn write_config(directory: &Path, config: &str) {
    let journal = directory.join("journal");
    let text = format!("journal.file = '{}'\n{config}", journal.display());
    std::fs::write(directory.join("agewise.toml"), text).unwrap();
}

pub fn spawn(directory: &Path) -> Child {
    Command::new(AGEWISE)
        .args(["daemon", "--config"])
        .arg(directory.join("agewise.toml"))
        .env("STATE_DIRECTORY", directory.join("state"))
        .stderr(Stdio::null())
        .spawn()
        .expect("start the daemon")
}

/// Touches half of its memory all the time, and the other half never again.
pub fn half_cold(size: &str) -> Spawned {
    let line = format!("--size {size} --pattern hotcold:0.5 --rate 20000");
    let arguments = program::words(&line);
    Spawned::start(Path::new(AGEWISE), arguments, None).expect("start an exerciser")
}

/// A memory cgroup for the test, removed on drop.
pub struct Group {
    pub path: String,
    pub dir: PathBuf,
    own: OwnCgroup,
}

impl Group {
    /// `Err` says why it cannot be made here.
    pub fn create(name: &str) -> Result<Self, String> {
        need::memcg(name).map(Group::of)
    }

    /// One below it.
    pub fn below(&self, name: &str) -> Self {
        let hierarchy = self.own.cgroup().hierarchy();
        Group::of(OwnCgroup::make(hierarchy, Path::new(&self.path), name).unwrap())
    }

    fn of(own: OwnCgroup) -> Self {
        let (path, dir) = (own.cgroup().name(), own.cgroup().dir());
        Group { path, dir, own }
    }

    pub fn take_in(&self, pid: u32) {
        self.own.take_in(pid).unwrap();
    }
}
