// SPDX-License-Identifier: Apache-2.0
//! Protecting a working set, on real processes in cgroups of our own: the culprit is squeezed,
//! frozen, and killed if configured, and everything reversible is undone, however the daemon ends.
//! Needs root, BPF, zram and memory cgroups; skipped with a message otherwise.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use rustix::process::Signal;
use serde_json::Value;
use support::need::runs_again;
use support::thrash::Scene;
use support::{AGEWISE, Daemon, one, wait_until, write_config};

/// Starts a daemon in a session of its own: it never acts on processes of its own session.
fn spawn(directory: &Path, more: &[&str]) -> Child {
    Command::new("setsid")
        .arg(AGEWISE)
        .args(["daemon", "--config"])
        .arg(directory.join("agewise.toml"))
        .args(more)
        .env("STATE_DIRECTORY", directory.join("state"))
        .stderr(Stdio::null())
        .spawn()
        .expect("setsid of util-linux")
}

fn start(config: &str, more: &[&str]) -> Daemon {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path(), config);
    let child = spawn(directory.path(), more);
    let daemon = Daemon { child, directory };
    daemon.wait_for("start", |_| true);
    daemon
}

fn is_act<'a>(act: &'a str, phase: &'a str) -> impl Fn(&Value) -> bool + 'a {
    move |line| line["act"] == act && line["phase"] == phase
}

fn count(daemon: &Daemon, act: &str) -> usize {
    let is_it = is_act(act, "after");
    let journal = daemon.journal();
    journal
        .iter()
        .filter(|line| line["record"] == "action" && is_it(line))
        .count()
}

/// Waits until an act was done once more.
fn wait_once_more(daemon: &Daemon, act: &str) {
    let (before, began) = (count(daemon, act), Instant::now());
    while count(daemon, act) <= before {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "no {act} in {:#?}",
            daemon.journal()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

macro_rules! scene {
    ($name:literal) => {
        match Scene::start($name) {
            Ok(scene) => scene,
            Err(why) => {
                println!("SKIPPED {}: {why}", $name);
                return;
            }
        }
    };
}

#[test]
fn the_guilty_is_squeezed_and_frozen_and_goes_on_however_the_daemon_ends() {
    let _one = one();
    let scene = scene!("frozen");
    let before = scene.limit();
    let mut daemon = start(&scene.config("freeze", "freeze = '3s'\n"), &[]);
    let named = daemon.wait_for("thrashing", |line| line["guilty"].is_string());
    assert_eq!(named["guilty"], scene.hog_group.path.as_str());
    let squeezed = daemon.wait_for("action", is_act("squeeze", "after"));
    assert!(squeezed["trouble"].is_null(), "{squeezed}");
    assert_ne!(scene.limit(), before);
    let frozen = daemon.wait_for("action", is_act("freeze", "after"));
    if let Some(trouble) = frozen["trouble"].as_str() {
        assert!(trouble.contains("cannot be frozen"), "{trouble}");
        println!("SKIPPED the_guilty_is_squeezed_and_frozen: {trouble}");
        return;
    }
    assert!(!scene.hog_runs(), "{:#?}", daemon.journal());
    assert!(daemon.ledger().exists());
    daemon.wait_for("action", is_act("thaw", "after"));
    assert!(runs_again(scene.hog.pid()));

    // Killed while the culprit is frozen: it stays frozen until the next daemon starts.
    wait_once_more(&daemon, "freeze");
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(!scene.hog_runs() && daemon.ledger().exists());
    assert_eq!(undo(&daemon, &[]).0, Some(0));
    assert!(runs_again(scene.hog.pid()) && !daemon.ledger().exists());
    assert_eq!(scene.limit(), before);

    // Killed again, and followed by a daemon that only reports.
    daemon.child = spawn(daemon.directory.path(), &[]);
    wait_once_more(&daemon, "freeze");
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(!scene.hog_runs());
    daemon.child = spawn(daemon.directory.path(), &["--dry-run"]);
    daemon.wait_for("undo", |_| true);
    assert!(runs_again(scene.hog.pid()) && !daemon.ledger().exists());
    assert_eq!(scene.limit(), before);
    daemon.signal(Signal::TERM);
    daemon.child.wait().unwrap();

    // Ended by SIGTERM while the culprit is frozen.
    daemon.child = spawn(daemon.directory.path(), &[]);
    wait_once_more(&daemon, "freeze");
    let ledger = daemon.ledger();
    let journal = daemon.end();
    assert!(runs_again(scene.hog.pid()) && !ledger.exists());
    assert_eq!(scene.limit(), before);
    assert_eq!(journal.last().unwrap()["record"], "stop");
    assert!(runs_again(scene.desk.pid()));
    check_pairs(&journal);
}

/// Runs `agewise daemon --undo` with more arguments; returns its status and messages.
fn undo(daemon: &Daemon, more: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(AGEWISE)
        .args(["daemon", "--undo"])
        .args(more)
        .env("STATE_DIRECTORY", daemon.state())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// Kills a daemon while the hog is frozen.
fn kill_while_frozen(scene: &Scene, daemon: &mut Daemon) {
    wait_once_more(daemon, "freeze");
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(!scene.hog_runs() && daemon.ledger().exists());
}

#[test]
fn undo_needs_no_configuration_and_removes_all_that_is_stale() {
    let _one = one();
    let scene = scene!("undone");
    let before = scene.limit();
    let place = tempfile::tempdir().unwrap();
    let (files, socket) = (place.path().join("files"), place.path().join("socket"));
    let config = scene.config("freeze", "freeze = '60s'\n");
    let config = format!(
        "{config}[files]\nenabled = true\ndirectory = '{}'\n[metrics]\nenabled = true\n\
         listen = 'unix:{}'\n",
        files.display(),
        socket.display()
    );
    let mut daemon = start(&config, &[]);
    let trial = daemon.wait_for("action", is_act("freeze", "after"));
    if let Some(trouble) = trial["trouble"].as_str() {
        println!("SKIPPED undo_needs_no_configuration: nothing can be frozen: {trouble}");
        return;
    }
    let toml = daemon.directory.path().join("agewise.toml");
    let is_undone = |daemon: &Daemon| {
        assert!(runs_again(scene.hog.pid()) && !daemon.ledger().exists());
        assert_eq!(scene.limit(), before);
        assert!(!socket.exists());
        assert_eq!(std::fs::read_dir(&files).map_or(0, Iterator::count), 0);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(files.to_str().unwrap()));
    };
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(!scene.hog_runs() && daemon.ledger().exists() && socket.exists());
    // No configuration.
    let (status, said) = undo(&daemon, &[]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("was undone"), "{said}");
    is_undone(&daemon);
    assert!(undo(&daemon, &[]).1.contains("nothing to undo"));

    // A broken one: undo works, and a normal start also undoes before it is refused.
    for restarts in [false, true] {
        write_config(daemon.directory.path(), &config);
        daemon.child = spawn(daemon.directory.path(), &[]);
        kill_while_frozen(&scene, &mut daemon);
        std::fs::write(&toml, "oops = [").unwrap();
        if restarts {
            let status = spawn(daemon.directory.path(), &[]).wait().unwrap();
            assert_eq!(status.code(), Some(78));
        } else {
            let (status, said) = undo(&daemon, &["--config", toml.to_str().unwrap()]);
            assert_eq!(status, Some(0), "{said}");
        }
        is_undone(&daemon);
    }

    // The option's former name, a configuration that moved, and a ledger with another owner.
    write_config(daemon.directory.path(), &config);
    daemon.child = spawn(daemon.directory.path(), &[]);
    kill_while_frozen(&scene, &mut daemon);
    std::os::unix::fs::chown(daemon.ledger(), Some(65534), Some(65534)).unwrap();
    let output = Command::new(AGEWISE)
        .args("daemon --let-go --config /nonexistent/agewise.toml".split(' '))
        .env("STATE_DIRECTORY", daemon.state())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    is_undone(&daemon);
}

#[test]
fn a_damaged_line_is_said_and_the_others_are_undone() {
    let _one = one();
    let scene = scene!("damaged");
    let before = scene.limit();
    let mut daemon = start(&scene.config("freeze", "freeze = '60s'\n"), &[]);
    let frozen = daemon.wait_for("action", is_act("freeze", "after"));
    if let Some(trouble) = frozen["trouble"].as_str() {
        println!("SKIPPED a_damaged_line_is_said: nothing can be frozen: {trouble}");
        return;
    }
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let text = std::fs::read_to_string(daemon.ledger()).unwrap();
    assert!(
        text.contains(" squeeze\t") && text.contains(" freeze\t"),
        "{text}"
    );
    std::fs::write(daemon.ledger(), text.replace(" squeeze\t", " squeze\t")).unwrap();
    let (status, said) = undo(&daemon, &[]);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("cannot be read") && said.contains("squeze"),
        "{said}"
    );
    assert!(runs_again(scene.hog.pid()), "what can be undone is");
    assert!(scene.limit() != before && daemon.ledger().exists());
    // Repaired by hand, as the message asks.
    std::fs::write(daemon.ledger(), text).unwrap();
    assert_eq!(undo(&daemon, &[]).0, Some(0));
    assert_eq!(scene.limit(), before);
}

#[test]
fn nothing_is_done_without_a_journal() {
    let _one = one();
    let scene = scene!("unwritten");
    let before = scene.limit();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let config = format!(
        "journal.file = '/dev/full'\n{}[metrics]\nenabled = true\nlisten = 'unix:{}'\n",
        scene.config("kill", ""),
        socket.display()
    );
    std::fs::write(directory.path().join("agewise.toml"), config).unwrap();
    let said = File::create(directory.path().join("said")).unwrap();
    let child = Command::new("setsid")
        .arg(AGEWISE)
        .args(["daemon", "--config"])
        .arg(directory.path().join("agewise.toml"))
        .env("STATE_DIRECTORY", directory.path().join("state"))
        .stderr(said)
        .spawn()
        .expect("setsid of util-linux");
    let daemon = Daemon { child, directory };
    // The daemon decides three times what to do to the culprit: each time two lines are lost.
    let wanted = lost_lines(&socket) + 6.0;
    let began = Instant::now();
    while lost_lines(&socket) < wanted {
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(120), "nothing was to be done");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(scene.hog_runs());
    assert_eq!(scene.limit(), before);
    // The ledger contains only the socket.
    let noted = std::fs::read_to_string(daemon.ledger()).unwrap();
    assert!(
        noted.contains(" socket\t") && noted.lines().count() == 2,
        "{noted}"
    );
    let health = ask(&socket, "/healthz");
    assert!(
        health.contains(" 503 ") && health.contains("journal: /dev/full"),
        "{health}"
    );
    daemon.signal(Signal::TERM);
    let said = daemon.directory.path().join("said");
    let said = std::fs::read_to_string(said).unwrap();
    assert_eq!(said.matches("cannot be written").count(), 1, "{said}");
}

/// Lines that could not be written to the journal, once the daemon answers.
fn lost_lines(socket: &Path) -> f64 {
    // It exists for a moment before anybody listens.
    let connect = || std::os::unix::net::UnixStream::connect(socket);
    wait_until("a socket", || connect().is_ok());
    let metrics = ask(socket, "/metrics");
    let lost = metrics
        .lines()
        .find_map(|line| line.strip_prefix("agewise_journal_lost_lines_total "));
    lost.map_or(0.0, |lost| lost.parse().unwrap())
}

/// The daemon's answer at its socket.
fn ask(socket: &Path, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Checks that the journal has every act before and after, unless the daemon was killed in between.
fn check_pairs(journal: &[Value]) {
    let acts: Vec<&Value> = journal
        .iter()
        .filter(|line| line["record"] == "action")
        .collect();
    for (at, line) in acts
        .iter()
        .enumerate()
        .filter(|(_, line)| line["phase"] == "after")
    {
        let before = acts[at - 1];
        assert_eq!(before["phase"], "before", "{before} {line}");
        assert_eq!(
            (&before["act"], &before["target"]),
            (&line["act"], &line["target"])
        );
    }
}

#[test]
fn a_rehearsal_acts_on_nobody_and_only_who_is_asked_for_by_name_kills() {
    let _one = one();
    let scene = scene!("killed");
    let before = scene.limit();
    let daemon = start(&scene.config("freeze", "freeze = '1s'\n"), &["--dry-run"]);
    let squeezed = daemon.wait_for("action", is_act("squeeze", "after"));
    assert_eq!(squeezed["dry_run"], true);
    assert!(scene.hog_runs() && scene.limit() == before && !daemon.ledger().exists());
    check_pairs(&daemon.end());

    let mut daemon = start(&scene.config("kill", "freeze = '1s'\n"), &[]);
    let killed = daemon.wait_for("action", is_act("kill", "after"));
    assert_eq!(killed["killed_processes"], 1, "{killed}");
    wait_until("its end", || {
        Process::open_user(&ProcRoot::default(), scene.hog.pid()).is_err()
    });
    assert!(runs_again(scene.desk.pid()));
    daemon.signal(Signal::TERM);
    daemon.child.wait().unwrap();
    check_pairs(&daemon.journal());
    assert!(!daemon.ledger().exists());
}

#[test]
fn who_shares_the_session_of_the_daemon_or_is_spared_is_left_alone() {
    let _one = one();
    let scene = scene!("spared");
    let before = scene.limit();
    // Without a session of its own, so the exercisers belong to this daemon's session.
    let daemon = Daemon::start(&scene.config("freeze", ""));
    let refused = daemon.wait_for("action", is_act("squeeze", "after"));
    let why = refused["refused"].as_str().unwrap_or_default();
    assert!(why.contains("session"), "{refused}");
    let second = Daemon::spawn_again(&daemon);
    assert!(second.contains("another agewise daemon"), "{second}");
    daemon.end();
    let spare = format!("spare = ['{}']\n", scene.hog_group.path);
    let daemon = start(&scene.config("kill", &spare), &[]);
    daemon.wait_for("thrashing", |line| line["guilty"].is_string());
    // By now the culprit would have been squeezed and frozen.
    std::thread::sleep(Duration::from_secs(12));
    let ledger = daemon.ledger();
    let journal = daemon.end();
    assert!(
        journal.iter().all(|line| line["record"] != "action"),
        "{journal:#?}"
    );
    assert!(scene.hog_runs() && scene.limit() == before && !ledger.exists());
}
