// SPDX-License-Identifier: Apache-2.0
//! The daemon as a program: on real processes, in real cgroups, through signals, stalls and kills.
//! Needs root and BPF; says so where it has neither.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use agewise::command::exercise::spawned::Spawned;
use agewise_host::cgroup::Hierarchy;
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::swap::{ZramDevice, ZramOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const AGEWISE: &str = env!("CARGO_BIN_EXE_agewise");
const MIB: u64 = 1 << 20;

/// One at a time: ages are of real time, and the machine may be small.
static ONE: Mutex<()> = Mutex::new(());

fn one() -> MutexGuard<'static, ()> {
    ONE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Why page tables cannot be read here, if so.
fn blind() -> Option<String> {
    let output = Command::new(AGEWISE)
        .args(["doctor", "--format", "json"])
        .output()
        .expect("run agewise");
    let sees_pages = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .any(|line| line["name"] == "pagewalk" && line["state"] == "available");
    (!sees_pages).then(|| "page tables cannot be read (root and BPF are needed)".to_owned())
}

macro_rules! skip_if {
    ($name:literal, $why:expr) => {
        if let Some(why) = $why {
            println!("SKIP {}: {why}", $name);
            return;
        }
    };
}

/// A daemon with a configuration and a journal of its own; killed when dropped.
struct Daemon {
    child: Child,
    directory: TempDir,
}

impl Daemon {
    fn start(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_config(directory.path(), config);
        let child = spawn(directory.path());
        let daemon = Daemon { child, directory };
        daemon.wait_for("start", |_| true);
        daemon
    }

    fn journal(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.directory.path().join("journal"));
        text.unwrap_or_default()
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect()
    }

    /// Waits for a record of this kind.
    fn wait_for(&self, record: &str, is_it: impl Fn(&Value) -> bool) -> Value {
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
                began.elapsed() < Duration::from_secs(60),
                "no {record} in {journal:#?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn end(mut self) -> Vec<Value> {
        self.signal(Signal::TERM);
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0));
        self.journal()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_config(directory: &Path, config: &str) {
    let journal = directory.join("journal");
    let text = format!("journal.file = '{}'\n{config}", journal.display());
    std::fs::write(directory.join("agewise.toml"), text).unwrap();
}

fn spawn(directory: &Path) -> Child {
    Command::new(AGEWISE)
        .args(["daemon", "--config"])
        .arg(directory.join("agewise.toml"))
        .stderr(Stdio::null())
        .spawn()
        .expect("start the daemon")
}

/// Half of it is touched all the time, the other half never again.
fn half_cold(size: &str) -> Spawned {
    let arguments = [
        "--size",
        size,
        "--pattern",
        "hotcold:0.5",
        "--rate",
        "20000",
    ];
    Spawned::start(Path::new(AGEWISE), arguments, None).expect("start an exerciser")
}

fn age_rule(pid: u32, more: &str) -> String {
    format!(
        "[observe]\ncgroups = []\ntick = '500ms'\ncpu_percent = 50\n[[act]]\npids = [{pid}]\n\
         policy = 'age:2s/1s,backoff=off'\n{more}"
    )
}

#[test]
fn a_configuration_is_printed_checked_and_refused_with_its_line() {
    let default = Command::new(AGEWISE)
        .args(["config", "default"])
        .output()
        .unwrap();
    assert!(default.status.success());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("agewise.toml");
    let check = || {
        let output = Command::new(AGEWISE)
            .args(["config", "check"])
            .arg(&file)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    std::fs::write(&file, &default.stdout).unwrap();
    assert_eq!(check(), (Some(0), String::new()));
    std::fs::write(&file, "[observe]\n\ntick = 'often'\n").unwrap();
    let (code, error) = check();
    assert_eq!(code, Some(1));
    assert!(
        error.contains("line 3") && error.contains("tick"),
        "{error}"
    );
    assert!(error.contains("agewise.toml"), "{error}");
    // The daemon refuses it as well, before it does anything.
    let output = Command::new(AGEWISE)
        .args(["daemon", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_rehearsal_moves_nothing_and_writes_what_it_would_have_moved() {
    skip_if!("a_rehearsal_moves_nothing", blind());
    let _one = one();
    let exerciser = half_cold("32M");
    let daemon = Daemon::start(&age_rule(exerciser.pid(), ""));
    let after = |line: &Value| line["phase"] == "after";
    let line = daemon.wait_for("action", |line| {
        after(line) && line["rehearsed_bytes"].as_u64() > Some(0)
    });
    assert_eq!(line["dry_run"], true);
    assert_eq!(line["policy"], "age");
    assert_eq!(line["reason"], "older");
    let status = Process::open(exerciser.pid()).unwrap().status().unwrap();
    assert_eq!(status.swap_bytes, 0);
    let journal = daemon.end();
    let actions: Vec<&Value> = journal
        .iter()
        .filter(|line| line["record"] == "action")
        .collect();
    // One line before each action and one after it.
    for pair in actions.chunks(2) {
        assert_eq!(pair[0]["phase"], "before");
        assert!(pair.get(1).is_none_or(|line| after(line)));
    }
    assert_eq!(journal.last().unwrap()["record"], "stop");
    exerciser.finish().unwrap();
}

#[test]
fn a_bad_configuration_changes_nothing_and_a_good_one_is_taken() {
    skip_if!("a_bad_configuration_changes_nothing", blind());
    let _one = one();
    let exerciser = half_cold("8M");
    let daemon =
        Daemon::start("[observe]\ncgroups = []\ntick = '200ms'\ncpu_percent = 50\npids = [1]\n");
    write_config(daemon.directory.path(), "[observe]\ntic = '1s'\n");
    daemon.signal(Signal::HUP);
    let line = daemon.wait_for("reload_failed", |_| true);
    let message = line["message"].as_str().unwrap();
    assert!(message.contains("unknown field `tic`"), "{message}");
    write_config(daemon.directory.path(), &age_rule(exerciser.pid(), ""));
    daemon.signal(Signal::HUP);
    daemon.wait_for("reload", |_| true);
    daemon.wait_for("follow", |line| line["policy"] == "age");
    // Whoever it follows may end at any time.
    let pid = exerciser.pid().to_string();
    exerciser.finish().unwrap();
    daemon.wait_for("gone", |line| {
        line["subject"].as_str().unwrap().starts_with(&pid)
    });
    daemon.end();
}

#[test]
fn cold_memory_leaves_and_a_killed_daemon_goes_on_when_started_again() {
    skip_if!("cold_memory_leaves", blind());
    let _one = one();
    let device = match ZramDevice::create(&ZramOptions::new(128 * MIB)) {
        Ok(device) => device,
        Err(error) => {
            println!("SKIP cold_memory_leaves: {error}");
            return;
        }
    };
    let exerciser = half_cold("64M");
    let process = Process::open(exerciser.pid()).unwrap();
    let config = age_rule(exerciser.pid(), "dry_run = false\n");
    let mut daemon = Daemon::start(&config);
    let left = |line: &Value| line["left_anon_bytes"].as_u64().unwrap_or(0);
    daemon.wait_for("action", |line| left(line) > 0);
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    daemon.child = spawn(daemon.directory.path());
    let second = daemon.child.id();
    daemon.wait_for("start", |line| line["pid"] == second);
    let began = Instant::now();
    while process.status().unwrap().swap_bytes < 28 * MIB {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{:#?}",
            daemon.journal()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let journal = daemon.end();
    let starts = journal.iter().filter(|l| l["record"] == "start").count();
    assert_eq!(starts, 2);
    // What was in use stayed.
    let status = process.status().unwrap();
    assert!(status.swap_bytes <= 36 * MIB, "{status:?}");
    exerciser.finish().unwrap();
    device.remove().unwrap();
}

#[test]
fn ages_are_right_across_a_stall_of_the_daemon() {
    skip_if!("ages_are_right_across_a_stall", blind());
    let _one = one();
    let Some(group) = Group::create("stall") else {
        println!("SKIP ages_are_right_across_a_stall: no memory cgroup can be made here");
        return;
    };
    let exerciser = half_cold("64M");
    group.take_in(exerciser.pid());
    let files = tempfile::tempdir().unwrap();
    let config = format!(
        "[observe]\ncgroups = ['{}']\ntick = '500ms'\ncpu_percent = 50\nintervals = '4s,8s'\n\
         [files]\nenabled = true\ndirectory = '{}'\n",
        group.path,
        files.path().display()
    );
    let daemon = Daemon::start(&config);
    daemon.wait_for("files", |_| true);
    let at = files.path().join("cgroup").join(&group.path[1..]);
    let began = Instant::now();
    while !at.join("memory.workingset.page_age").exists() {
        assert!(began.elapsed() < Duration::from_secs(20), "no files");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::write(at.join("memory.workingset.refresh_interval"), "N0=500").unwrap();
    std::thread::sleep(Duration::from_secs(2));
    daemon.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(10));
    daemon.signal(Signal::CONT);
    std::thread::sleep(Duration::from_secs(2));
    let text = std::fs::read_to_string(at.join("memory.workingset.page_age")).unwrap();
    let anon: Vec<u64> = text
        .lines()
        .filter_map(|line| line.split_once("anon=")?.1.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(anon.len(), 3, "{text}");
    // In ticks the cold half would be some 4 s old by now.
    assert!(anon[0] >= 30 * MIB && anon[2] >= 31 * MIB, "{text}");
    assert!(anon[1] <= 2 * MIB, "{text}");
    daemon.end();
    exerciser.finish().unwrap();
}

/// A memory cgroup of our own.
struct Group {
    path: String,
    dir: PathBuf,
}

impl Group {
    fn create(name: &str) -> Option<Self> {
        let hierarchy = Hierarchy::discover(&ProcRoot::default()).ok()?;
        let path = format!("/agewise-test-{}-{name}", std::process::id());
        let dir = hierarchy.root.join(&path[1..]);
        std::fs::create_dir(&dir).ok()?;
        Some(Group { path, dir })
    }

    fn take_in(&self, pid: u32) {
        std::fs::write(self.dir.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// How many processes and cgroups the test of scale has, unless `AGEWISE_SCALE=PROCESSES` says
/// otherwise; ten processes a cgroup.
const PROCESSES: usize = 2000;
/// Mapped by each, of which a little is touched: 16 GiB in all.
const MAPPED_BYTES: usize = 8 << 20;

/// Not a test: what the test of scale starts many of.
#[test]
#[ignore = "only a child of the test of scale"]
fn a_process_of_the_test_of_scale() {
    if std::env::var_os("AGEWISE_SCALE_CHILD").is_none() {
        return;
    }
    let mut memory: Vec<u8> = Vec::with_capacity(MAPPED_BYTES);
    for at in (0..MAPPED_BYTES).step_by(64 * 4096) {
        memory.spare_capacity_mut()[at].write(1);
    }
    println!("ready");
    std::thread::sleep(Duration::from_secs(3600));
    drop(memory);
}

/// Many processes in many cgroups, some of which come and go: the budget holds, memory is bounded.
#[test]
#[ignore = "minutes; run by `cargo test --test daemon -- --ignored many`"]
fn many_processes_in_many_cgroups_stay_within_the_budget() {
    skip_if!("many_processes", blind());
    let _one = one();
    let count = std::env::var("AGEWISE_SCALE")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(PROCESSES);
    let Some(top) = Group::create("scale") else {
        println!("SKIP many_processes: no memory cgroup can be made here");
        return;
    };
    let groups: Vec<Group> = (0..count.div_ceil(10))
        .map(|n| {
            let group = Group {
                path: format!("{}/{n}", top.path),
                dir: top.dir.join(n.to_string()),
            };
            std::fs::create_dir(&group.dir).unwrap();
            group
        })
        .collect();
    let start = |group: &Group| {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "--nocapture",
                "a_process_of_the_test_of_scale",
            ])
            .env("AGEWISE_SCALE_CHILD", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        group.take_in(child.id());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(
            lines
                .map_while(Result::ok)
                .any(|line| line.ends_with("ready"))
        );
        Killed(child)
    };
    let mut children: Vec<Killed> = (0..count).map(|n| start(&groups[n / 10])).collect();
    let config = format!("[observe]\ncgroups = ['{}/**']\n", top.path);
    let daemon = Daemon::start(&config);
    let own = Process::open(daemon.child.id()).unwrap();
    let cpu_ms = || {
        let stat = own.stat().unwrap();
        let ticks = stat.user_ticks + stat.system_ticks;
        ticks as f64 * 1e3 / rustix::param::clock_ticks_per_second() as f64
    };
    let (began, cpu_began_ms) = (Instant::now(), cpu_ms());
    let mut next = 0;
    while began.elapsed() < Duration::from_secs(60) {
        // Some end, and others come in their place.
        for _ in 0..5 {
            children[next % count] = start(&groups[next % count / 10]);
            next += 7;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let used_ms = cpu_ms() - cpu_began_ms;
    // 1 % of the time, what was saved at the start (another minute's worth), and one look.
    let granted_ms = began.elapsed().as_secs_f64() * 10.0 + 600.0;
    let resident = own.rss_bytes().unwrap();
    let mapped_pages = (count * MAPPED_BYTES / 4096) as f64;
    println!(
        "{count} processes: {used_ms:.0} ms CPU of {granted_ms:.0}, {:.1} MiB resident",
        resident as f64 / MIB as f64
    );
    let journal = daemon.end();
    let look_ms = journal
        .iter()
        .find(|line| line["record"] == "short")
        .and_then(|line| line["actual_ms"].as_f64())
        .map_or(0.0, |ms| ms / 100.0);
    assert!(
        used_ms <= granted_ms + 2.0 * look_ms,
        "{used_ms} of {granted_ms}, a look {look_ms}"
    );
    assert!(resident as f64 <= 64.0 * MIB as f64 + 1.1 * mapped_pages);
    drop(children);
}

/// Killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
