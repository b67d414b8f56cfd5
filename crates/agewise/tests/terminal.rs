// SPDX-License-Identifier: Apache-2.0
//! Commands in a terminal that is closed, stalls or falls silent, and signals: each command ends in
//! time and restores the terminal.

mod program;
mod pty;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use agewise_cli::children::Killed;
use assert_cmd::cargo::cargo_bin;
use program::wait_for_handler;
use pty::Pty;

/// Time allowed to end; an idle machine takes less than 200 ms, and on a busy one everything takes
/// longer.
static IN_TIME: LazyLock<Duration> = LazyLock::new(|| {
    let began = Instant::now();
    let version = Command::new(cargo_bin("agewise")).arg("--version").output();
    assert!(version.expect("agewise starts").status.success());
    Duration::from_millis(1000).max(began.elapsed() * 10)
});
/// Time allowed to start and to make the first look.
const PATIENCE: Duration = Duration::from_secs(20);

struct Running(Killed);

impl Running {
    fn sleeper() -> Self {
        let child = Command::new("sleep").arg("600").spawn();
        Running(Killed(child.expect("sleep")))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn send(&self, signal: i32) {
        // SAFETY: a child of ours that was not yet waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// Waits for its end; returns the status and the time it took.
    fn ended(&mut self, why: &str) -> (ExitStatus, Duration) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("wait") {
                return (status, began.elapsed());
            }
            assert!(began.elapsed() < PATIENCE, "{why}: it does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn ends_in_time(&mut self, why: &str) -> ExitStatus {
        let (status, took) = self.ended(why);
        println!("{why}: {} ms", took.as_millis());
        assert!(took < *IN_TIME, "{why}: it took {took:?}");
        status
    }
}

/// Starts `agewise` with the terminal as its standard streams, in a session of its own. Only if
/// `is_controlling` is it the controlling terminal, so that the kernel sends SIGHUP on a hang-up.
fn start(pty: &Pty, args: &[&str], is_controlling: bool) -> Running {
    let mut command = Command::new(cargo_bin("agewise"));
    command.args(args);
    start_in(pty, command, is_controlling)
}

fn start_in(pty: &Pty, mut command: Command, is_controlling: bool) -> Running {
    command.env("TERM", "xterm");
    let stream = || Stdio::from(pty.slave());
    command.stdin(stream()).stdout(stream()).stderr(stream());
    // SAFETY: only system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::setsid();
            if is_controlling {
                libc::ioctl(0, libc::TIOCSCTTY, 0);
            }
            Ok(())
        });
    }
    Running(Killed(command.spawn().expect("agewise starts")))
}

/// Starts `watch` on a sleeping process and waits for its first screen.
fn watching(pty: &mut Pty, sleeper: &Running, is_controlling: bool) -> Running {
    let running = start(pty, &["watch", "--pid", &sleeper.pid()], is_controlling);
    pty.wait_for("\x1b[?1049h", PATIENCE);
    pty.wait_for("sleep", PATIENCE);
    running
}

fn assert_restored(pty: &mut Pty, why: &str) {
    let said = pty.all();
    let entered = said.rfind("\x1b[?1049h").expect("the other screen");
    let left = said.rfind("\x1b[?1049l");
    assert!(left > Some(entered), "{why}: on the other screen: {said:?}");
    assert!(
        said.rfind("\x1b[?25h") >= said.rfind("\x1b[?25l"),
        "{why}: the cursor stayed hidden: {said:?}"
    );
    assert!(pty.is_cooked(), "{why}: raw mode stayed on");
}

/// Asserts that a command that ended at once was refused something, and did not fail otherwise.
fn assert_refused(status: ExitStatus, pty: &mut Pty) {
    assert_eq!(status.code(), Some(1), "{status}: {}", pty.all());
}

#[test]
fn watch_ends_on_every_signal_and_restores_the_terminal() {
    let sleeper = Running::sleeper();
    for signal in [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGALRM,
    ] {
        let why = format!("signal {signal}");
        let mut pty = Pty::open();
        let mut running = watching(&mut pty, &sleeper, true);
        running.send(signal);
        let status = running.ends_in_time(&why);
        assert_eq!(status.code(), Some(128 + signal), "{why}");
        assert_restored(&mut pty, &why);
    }
}

/// As under `timeout` in a script, which makes a process group of its own: the kernel would stop it
/// at the first touch of the terminal, again and again.
#[test]
fn watch_in_the_background_says_so() {
    let pty = Pty::open();
    // Not the last command of the shell, or it would be the shell's process and its group.
    let script = r#"timeout 20 "$0" watch --pid 1; exit $?"#;
    let mut command = Command::new("setsid");
    command.args(["--ctty", "sh", "-c", script]);
    command.arg(cargo_bin("agewise"));
    command.stdin(pty.slave()).stdout(pty.slave());
    let ended = command.output().expect("setsid starts");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("timeout --foreground"), "{said}");
    assert_eq!(ended.status.code(), Some(1), "{said}");
}

#[test]
fn watch_ends_by_its_keys() {
    let sleeper = Running::sleeper();
    let mut pty = Pty::open();
    let mut running = watching(&mut pty, &sleeper, true);
    // Several keys at once: none waits for another.
    pty.write(b"??q");
    assert_eq!(running.ends_in_time("keys").code(), Some(0));
    assert_restored(&mut pty, "keys");
}

/// A key that comes after a resize is not kept until the next one.
#[test]
fn watch_ends_by_the_first_key_after_a_resize() {
    let sleeper = Running::sleeper();
    let mut pty = Pty::open();
    let mut running = watching(&mut pty, &sleeper, true);
    // The first key starts crossterm's own watch for resizes.
    pty.write(b"p");
    pty.wait_for("PAUSED", PATIENCE);
    pty.resize(60);
    std::thread::sleep(Duration::from_millis(300));
    pty.write(b"q");
    assert_eq!(running.ends_in_time("a resize").code(), Some(0));
    assert_restored(&mut pty, "a resize");
}

#[test]
fn watch_follows_what_the_curve_is_asked_of() {
    let sleeper = Running::sleeper();
    let mut pty = Pty::open();
    let mut running = watching(&mut pty, &sleeper, true);
    pty.write(b"w");
    // Wait for single words only, as unchanged text is not drawn again. The second comes after a
    // look.
    pty.wait_for("followed", PATIENCE);
    pty.wait_for("learning", PATIENCE);
    pty.write(b"xq");
    assert_eq!(running.ends_in_time("a curve").code(), Some(0));
    assert_restored(&mut pty, "a curve");
}

#[test]
fn watch_says_that_its_process_has_ended() {
    let mut sleeper = Running::sleeper();
    let mut pty = Pty::open();
    let mut running = watching(&mut pty, &sleeper, true);
    sleeper.send(libc::SIGKILL);
    sleeper.ends_in_time("a sleeper");
    pty.wait_for("it has ended", PATIENCE);
    pty.write(b"q");
    assert_eq!(running.ends_in_time("nothing left").code(), Some(0));
}

#[test]
fn watch_ends_when_its_terminal_is_gone() {
    let sleeper = Running::sleeper();
    for is_controlling in [true, false] {
        let why = format!("closed, controlling: {is_controlling}");
        let mut pty = Pty::open();
        let mut running = watching(&mut pty, &sleeper, is_controlling);
        drop(pty);
        let status = running.ends_in_time(&why);
        assert_eq!(status.code(), Some(128 + libc::SIGHUP), "{why}");
    }
}

#[test]
fn watch_ends_amid_a_key_and_on_a_terminal_that_takes_nothing() {
    let sleeper = Running::sleeper();
    for is_stalled in [false, true] {
        for signal in [Some(libc::SIGTERM), None] {
            let why = format!("stalled: {is_stalled}, signal: {signal:?}");
            let mut pty = Pty::open();
            let mut running = watching(&mut pty, &sleeper, false);
            match is_stalled {
                true => pty.stall(),
                // The start of a key sequence that is never completed.
                false => pty.write(b"\x1b["),
            }
            std::thread::sleep(Duration::from_millis(600));
            match signal {
                Some(signal) => running.send(signal),
                None => drop(pty),
            }
            let status = running.ends_in_time(&why);
            let expected = 128 + signal.unwrap_or(libc::SIGHUP);
            assert_eq!(status.code(), Some(expected), "{why}");
        }
    }
}

#[test]
fn reading_a_trace_shows_a_bar_that_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("t.trace").display().to_string();
    let out = directory.path().join("out").display().to_string();
    std::fs::write(&trace, "1\n2\n3\n".repeat(50_000)).unwrap();
    for words in [
        "lab curve --policy lru,fifo --points 2",
        "lab run --policy classic --seeds 1",
        "lab whatif",
        "size",
        "trace info",
        "trace convert --to csv",
        "trace sample --rate 0.9",
    ] {
        let mut pty = Pty::open();
        let writes = words.starts_with("trace convert") || words.starts_with("trace sample");
        let args: Vec<&str> = words
            .split(' ')
            .chain([&*trace])
            .chain(writes.then_some(&*out))
            .collect();
        let mut running = start(&pty, &args, false);
        assert!(running.0.wait().unwrap().success(), "{}", pty.all());
        let said = pty.all();
        let bar = said
            .rfind("iB read, ")
            .unwrap_or_else(|| panic!("{words}: {said:?}"));
        assert!(
            said[bar..].contains("\x1b[2K"),
            "{words}: not removed: {said:?}"
        );
        let runs = said.find(" runs, ");
        assert!(
            runs.is_none_or(|runs| runs > bar),
            "{words}: two bars at once: {said:?}"
        );
    }
}

/// SIGHUP means to reload, unless it says that the terminal of a daemon in the foreground is gone.
#[test]
fn a_daemon_in_a_terminal_reloads_on_sighup_and_ends_with_its_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let (config, journal) = (directory.path().join("c.toml"), directory.path().join("j"));
    let text = format!("journal.file = {:?}\n", journal.display().to_string());
    std::fs::write(&config, text).unwrap();
    for (is_controlling, is_nohup) in [(true, false), (false, false), (true, true)] {
        let why = format!("controlling: {is_controlling}, nohup: {is_nohup}");
        let _ = std::fs::remove_file(&journal);
        let records = |kind: &str| {
            let text = std::fs::read_to_string(&journal).unwrap_or_default();
            text.contains(&format!("\"record\":\"{kind}\""))
        };
        let wait_for = |kind: &str| {
            let began = Instant::now();
            while !records(kind) {
                assert!(began.elapsed() < PATIENCE, "{why}: no record {kind}");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let mut pty = Pty::open();
        let mut command = Command::new(cargo_bin("agewise"));
        command.arg("daemon").arg("--config").arg(&config);
        command.env("STATE_DIRECTORY", directory.path().join("state"));
        let hangup = if is_nohup {
            libc::SIG_IGN
        } else {
            libc::SIG_DFL
        };
        // SAFETY: only a system call between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::signal(libc::SIGHUP, hangup);
                Ok(())
            });
        }
        let mut running = start_in(&pty, command, is_controlling);
        std::thread::sleep(Duration::from_millis(700));
        if let Some(status) = running.0.try_wait().expect("wait") {
            assert_refused(status, &mut pty);
            return println!(
                "SKIPPED a_daemon_in_a_terminal: it ended, {status}: {}",
                pty.all()
            );
        }
        wait_for("start");
        running.send(libc::SIGHUP);
        wait_for("reload");
        drop(pty);
        if !is_controlling || is_nohup {
            std::thread::sleep(Duration::from_millis(300));
            let (signal, code) = match is_nohup {
                true => (libc::SIGALRM, 128 + libc::SIGALRM),
                false => (libc::SIGTERM, 0),
            };
            running.send(signal);
            assert_eq!(running.ended(&why).0.code(), Some(code), "{why}");
            assert!(records("stop"), "{why}");
            continue;
        }
        let status = running.ended(&why).0;
        assert_eq!(status.code(), Some(128 + libc::SIGHUP), "{why}");
        assert!(records("stop"), "{why}");
    }
}

/// Each runs for minutes unless interrupted.
fn commands(pid: &str, directory: &std::path::Path) -> Vec<Vec<String>> {
    let out = directory.join("out.gz").display().to_string();
    let lines = [
        format!("report --pid {pid} --follow 100s --eye pagemap"),
        format!("size --pid {pid} --duration 400s --interval 100s"),
        format!("trace record --pid {pid} --interval 100s --faults off --out {out}"),
        format!("reclaim --pid {pid} --older-than 300s --dry-run"),
        "exercise --size 1M --rate 10 --seconds 300".to_owned(),
    ];
    let words = |line: &String| line.split(' ').map(str::to_owned).collect();
    lines.iter().map(words).collect()
}

#[test]
fn commands_end_on_every_signal_and_without_their_terminal() {
    let sleeper = Running::sleeper();
    let directory = tempfile::tempdir().unwrap();
    let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
    for words in commands(&sleeper.pid(), directory.path()) {
        for signal in signals.into_iter().map(Some).chain([None]) {
            let why = format!("{} {signal:?}", words.join(" "));
            // A recording from the previous round would not be overwritten.
            let _ = std::fs::remove_file(directory.path().join("out.gz"));
            let args: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut pty = Pty::open();
            let mut running = start(&pty, &args, false);
            wait_for_handler(running.0.id(), signal.unwrap_or(libc::SIGHUP));
            std::thread::sleep(Duration::from_millis(700));
            if let Some(status) = running.0.try_wait().expect("wait") {
                assert_refused(status, &mut pty);
                println!("SKIPPED {why}: it ended by itself, {status}: {}", pty.all());
                break;
            }
            match signal {
                Some(signal) => running.send(signal),
                None => drop(pty),
            }
            let status = running.ends_in_time(&why);
            assert!(status.signal().is_none(), "{why}: {status}, not orderly");
        }
    }
}

/// What is listed depends on privileges and the kernel; that there is a list or a reason does not.
#[test]
fn files_are_listed_in_watch() {
    let sleeper = Running::sleeper();
    let mut pty = Pty::open();
    let mut running = watching(&mut pty, &sleeper, true);
    pty.write(b"f");
    pty.wait_for("DIRTY", PATIENCE);
    pty.write(b"q");
    assert!(running.ends_in_time("q").success());
    assert_restored(&mut pty, "q");
}
