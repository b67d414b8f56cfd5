// SPDX-License-Identifier: Apache-2.0
//! `agewise whatif` and `agewise shrink` on an exerciser in a memory cgroup of its own: it uses one
//! half of its memory repeatedly and the other half never.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use agewise_bench::exercise::spawned::Spawned;
use agewise_host::cgroup::OwnCgroup;
use agewise_host::swap::ZramDevice;
use serde_json::Value;
use support::need::{memcg, zram};
use support::program::{json_lines, words};
use support::{AGEWISE, MIB, blind, half_cold, one};

/// Dropped in this order: the exerciser must end before its cgroup can be removed.
struct Scene {
    exerciser: Option<Spawned>,
    _device: ZramDevice,
    memcg: OwnCgroup,
    state: tempfile::TempDir,
}

impl Scene {
    /// Creates the scene; `Err` says why that is impossible here.
    fn new(test: &str) -> Result<Self, String> {
        if let Some(why) = blind() {
            return Err(why);
        }
        let memcg = memcg(test)?;
        let device = zram(256 * MIB)?;
        let entrance = memcg.entrance().map_err(|e| e.to_string())?;
        let words = words("--size 64M --pattern hotcold:0.5 --rate 20000 --no-final-check");
        let exerciser = Spawned::start_in(Path::new(AGEWISE), words, Some(&entrance), None);
        Ok(Scene {
            exerciser: Some(exerciser.map_err(|e| format!("{e:#}"))?),
            _device: device,
            memcg,
            state: tempfile::tempdir().expect("a directory"),
        })
    }

    /// Runs in a session of its own: a cgroup with a process of agewise's session is left alone.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("setsid");
        command.arg(AGEWISE).args(words);
        command.env("STATE_DIRECTORY", self.state.path());
        command
    }

    /// Runs a command on the cgroup.
    fn run(&self, words: &[&str]) -> Output {
        let name = self.memcg.cgroup().name();
        let words = [
            words,
            &["--cgroup", &name, "--duration", "4s", "--format", "json"],
        ]
        .concat();
        self.command(&words).output().expect("agewise runs")
    }

    fn limit_bytes(&self) -> Option<u64> {
        let limits = self.memcg.cgroup().limits().expect("it is there");
        limits.high_bytes.or(limits.max_bytes)
    }

    fn await_limit(&self, child: &mut Child) {
        let began = Instant::now();
        while self.limit_bytes().is_none() {
            assert!(began.elapsed() < Duration::from_secs(120), "no limit");
            let ended = child.try_wait().expect("ours");
            assert!(ended.is_none(), "it ended without a limit");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    json_lines(&text)
}

#[test]
fn live_half_of_the_memory_is_known_to_do() {
    let _one = one();
    let scene = match Scene::new("half") {
        Ok(scene) => scene,
        Err(why) => return println!("SKIPPED live_half_of_the_memory_is_known_to_do: {why}"),
    };
    let output = scene.run(&["whatif", "--memory", "30%,80%"]);
    assert!(output.status.success(), "{output:?}");
    let lines = lines(&output);
    assert_eq!(lines.len(), 6, "two sizes, three policies: {lines:?}");
    for pair in lines.chunks(2) {
        let faults = |at: usize| pair[at]["faults_per_second"].as_f64().expect("a number");
        assert!(
            faults(0) > 1000.0 && faults(1) < faults(0) / 20.0,
            "{pair:?}"
        );
        for line in pair {
            let number = |field: &str| line[field].as_f64().unwrap_or(f64::INFINITY);
            assert!(
                number("faults_low") <= number("faults_per_second"),
                "{line}"
            );
            assert!(
                number("faults_per_second") <= number("faults_high"),
                "{line}"
            );
            assert!(number("observed_seconds") > 1.0, "{line}");
            assert!(number("wait_ratio") > 0.0 || number("faults_per_second") == 0.0);
        }
    }
}

/// What was known by then is printed, and the status says that it is not all.
#[test]
fn live_size_says_that_it_was_interrupted() {
    let _one = one();
    if let Some(why) = blind() {
        return println!("SKIPPED live_size_says_that_it_was_interrupted: {why}");
    }
    let mut sleeper = Command::new("sleep").arg("60").spawn().expect("sleep");
    let interrupt = |child: &std::process::Child| {
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a child");
    };
    // Nothing is known after the first look.
    let mut early = Command::new(AGEWISE)
        .args(["whatif", "--pid", &sleeper.id().to_string()])
        .args(["--duration", "60s", "--interval", "15s"])
        .spawn()
        .expect("agewise runs");
    std::thread::sleep(Duration::from_secs(2));
    interrupt(&early);
    assert_eq!(early.wait().expect("it ends").code(), Some(130));
    let size = Command::new(AGEWISE)
        .args(["size", "--pid", &sleeper.id().to_string()])
        .args("--duration 60s --interval 500ms --format json".split(' '))
        .stdout(Stdio::piped())
        .spawn()
        .expect("agewise runs");
    std::thread::sleep(Duration::from_secs(5));
    interrupt(&size);
    let output = size.wait_with_output().expect("it ends");
    sleeper.kill().expect("a child");
    sleeper.wait().expect("a child");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(!lines(&output).is_empty());
}

#[test]
fn live_a_target_that_is_gone_before_anything_was_counted_has_its_exit_status() {
    let _one = one();
    if let Some(why) = blind() {
        return println!("SKIPPED a_target_that_is_gone_before_anything_was_counted: {why}");
    }
    for command in ["whatif", "size"] {
        let mut sleeper = Command::new("sleep").arg("2").spawn().expect("sleep");
        let output = Command::new(AGEWISE)
            .args([command, "--pid", &sleeper.id().to_string()])
            // The second look comes after its end.
            .args(["--duration", "16s", "--interval", "4s"])
            .output()
            .expect("agewise runs");
        sleeper.wait().expect("a child");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("nothing is known yet"), "{said}");
        assert_eq!(output.status.code(), Some(3), "{said}");
    }
}

#[test]
fn live_it_does_not_watch_beyond_the_duration() {
    let _one = one();
    let test = "live_it_does_not_watch_beyond_the_duration";
    if let Some(why) = blind() {
        return println!("SKIPPED {test}: {why}");
    }
    // All of its memory is there once it has started, and half of it is used no more.
    let exerciser = half_cold("8M");
    let pid = exerciser.pid().to_string();
    // Three seconds learn. The look at the end comes soon after one that an interval requires.
    let words = ["--duration", "4100ms", "--interval", "1s"];
    let output = Command::new(AGEWISE)
        .args(["whatif", "--pid", &pid, "--format", "json"])
        .args(words)
        .output();
    drop(exerciser);
    let output = output.expect("agewise runs");
    let line = lines(&output).remove(0);
    let observed = line["observed_seconds"].as_f64().expect("a number");
    assert!((0.5..1.6).contains(&observed), "{line}");
    assert!(line["unused_bytes"].as_u64() > Some(3 * MIB), "{line}");
    assert_eq!(line["unseen_processes"], 0, "{line}");
    assert!(line["refault_us"].as_f64() > Some(0.0), "{line}");
}

/// What was counted until then is printed, but not as if it were all that was asked for.
#[test]
fn live_a_target_that_goes_away_is_said_and_ends_with_3() {
    let _one = one();
    let test = "live_a_target_that_goes_away_is_said_and_ends_with_3";
    if let Some(why) = blind() {
        return println!("SKIPPED {test}: {why}");
    }
    for command in ["whatif", "size"] {
        let mut sleeper = Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = sleeper.id().to_string();
        let words = ["--pid", &pid, "--format", "json", "--duration", "30s"];
        let watcher = Command::new(AGEWISE)
            .arg(command)
            .args(words)
            .stdout(Stdio::piped())
            .spawn();
        std::thread::sleep(Duration::from_secs(4));
        sleeper.kill().expect("a child");
        sleeper.wait().expect("a child");
        let output = watcher.expect("agewise runs").wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{command}: {output:?}");
        let last = lines(&output).pop().expect("a line");
        assert_eq!(last["gone"], "the process has exited", "{command}: {last}");
    }
}

#[test]
fn live_what_hurts_is_refused_and_a_plan_changes_nothing() {
    let _one = one();
    let scene = match Scene::new("hurts") {
        Ok(scene) => scene,
        Err(why) => return println!("SKIPPED live_what_hurts_is_refused: {why}"),
    };
    let refused = scene.run(&["shrink", "--to", "25%", "--max-wait", "0.01%"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("refused"), "{said}");
    assert_eq!(scene.limit_bytes(), None);
    let planned = scene.run(&["shrink", "--to", "70%", "--max-wait", "5%", "--dry-run"]);
    assert!(planned.status.success(), "{planned:?}");
    let mut lines = lines(&planned);
    let verdict = lines.pop().expect("a line");
    assert_eq!(verdict["verdict"], "planned");
    assert_eq!(
        verdict["limit_bytes"],
        lines[lines.len() - 1]["limit_bytes"]
    );
    assert!(
        lines.iter().all(|line| line["record"] == "plan") && lines.len() > 2,
        "{lines:?}"
    );
    assert_eq!(scene.limit_bytes(), None);
    let root = scene
        .command(&["shrink", "--cgroup", "/", "--duration", "1s"])
        .output();
    assert_eq!(root.expect("agewise runs").status.code(), Some(1));
}

#[test]
fn live_an_empty_cgroup_is_not_watched_for_too_short() {
    let _one = one();
    let test = "live_an_empty_cgroup_is_not_watched_for_too_short";
    if let Some(why) = blind() {
        return println!("SKIPPED {test}: {why}");
    }
    let memcg = match memcg("empty") {
        Ok(memcg) => memcg,
        Err(why) => return println!("SKIPPED {test}: {why}"),
    };
    let words = ["whatif", "--duration", "1s", "--cgroup"];
    let output = Command::new(AGEWISE)
        .args(words)
        .arg(memcg.cgroup().name())
        .output()
        .expect("agewise runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("there is no process in it"), "{said}");
}

#[test]
fn live_a_shrink_ends_with_the_last_process() {
    let _one = one();
    let mut scene = match Scene::new("last") {
        Ok(scene) => scene,
        Err(why) => return println!("SKIPPED live_a_shrink_ends_with_the_last_process: {why}"),
    };
    let name = scene.memcg.cgroup().name();
    let line = format!("shrink --duration 3s --to 60% --cgroup {name}");
    let words = words(&line);
    let more = ["--max-wait", "50%", "--format", "json"];
    let mut command = scene.command(&[&words[..], &more].concat());
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.expect("agewise runs");
    scene.await_limit(&mut child);
    let exerciser = scene.exerciser.take().expect("there");
    exerciser.finish().expect("no page changed");
    let output = child.wait_with_output().expect("agewise ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the last process has left"), "{said}");
    let verdict = lines(&output).pop().expect("a line");
    assert_eq!(
        (&verdict["record"], &verdict["verdict"]),
        (&"verdict".into(), &"stopped".into())
    );
    let reason = verdict["reason"].as_str().expect("text");
    assert!(reason.contains("the last process has left"), "{reason}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(scene.limit_bytes(), None);
}

/// As systemd does to all its units when it applies the settings of one after a `daemon-reload`.
#[test]
fn live_a_limit_that_somebody_else_sets_is_not_said_to_be_kept() {
    let _one = one();
    let scene = match Scene::new("taken") {
        Ok(scene) => scene,
        Err(why) => {
            return println!(
                "SKIPPED live_a_limit_that_somebody_else_sets_is_not_said_to_be_kept: {why}"
            );
        }
    };
    let name = scene.memcg.cgroup().name();
    // A single step, which is the goal: it is only held.
    let line = format!("shrink --duration 3s --to 98% --max-wait 50% --keep --cgroup {name}");
    let words = [&words(&line)[..], &["--format", "json"]].concat();
    let mut child = scene
        .command(&words)
        .stdout(Stdio::piped())
        .spawn()
        .expect("agewise runs");
    scene.await_limit(&mut child);
    let files =
        ["memory.high", "memory.limit_in_bytes"].map(|of| scene.memcg.cgroup().dir().join(of));
    let file = files.iter().find(|file| file.exists()).expect("a limit");
    std::fs::write(file, "512M").expect("root");
    let output = child.wait_with_output().expect("agewise ends");
    let verdict = lines(&output).pop().expect("a line");
    let reason = verdict["reason"].as_str().expect("text");
    assert!(reason.contains("somebody else has set"), "{verdict}");
    assert_eq!(verdict["kept"], false, "{verdict}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(scene.limit_bytes(), Some(512 * MIB));
}

#[test]
fn live_what_a_killed_shrink_left_is_undone() {
    let _one = one();
    let mut scene = match Scene::new("killed") {
        Ok(scene) => scene,
        Err(why) => return println!("SKIPPED live_what_a_killed_shrink_left_is_undone: {why}"),
    };
    let name = scene.memcg.cgroup().name();
    let line = format!("shrink --cgroup {name} --duration 3s --to 60% --max-wait 50%");
    let words = words(&line);
    let mut child = scene.command(&words).spawn().expect("agewise runs");
    scene.await_limit(&mut child);
    child.kill().expect("ours");
    child.wait().expect("ours");
    assert!(scene.limit_bytes().is_some(), "it was killed");
    let undone = scene
        .command(&["daemon", "--undo"])
        .output()
        .expect("agewise runs");
    assert!(undone.status.success(), "{undone:?}");
    assert_eq!(scene.limit_bytes(), None);
    scene
        .exerciser
        .take()
        .expect("there")
        .finish()
        .expect("no page changed");
}
