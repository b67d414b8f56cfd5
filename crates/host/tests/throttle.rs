// SPDX-License-Identifier: Apache-2.0
//! Squeezing, freezing and killing real processes in their own cgroup.

#[path = "support/need.rs"]
mod need;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agewise_host::cgroup::{Cgroup, Hierarchy, Mounts, OwnCgroup, Version};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::throttle::{Ledger, Throttle, ThrottleError, Untouchable, untouchable};
use need::{runs, runs_again};

/// A memory cgroup, removed on drop, with busy processes in their own sessions.
struct Place {
    cgroup: Cgroup,
    children: Vec<Child>,
    _own: OwnCgroup,
}

impl Place {
    fn new(test: &str, name: &str) -> Option<Place> {
        let own = match need::memcg(name) {
            Ok(own) => own,
            Err(why) => {
                println!("SKIPPED {test}: {why}");
                return None;
            }
        };
        Some(Place {
            cgroup: own.cgroup().clone(),
            _own: own,
            children: Vec::new(),
        })
    }

    /// Loops forever in a shell, so that its CPU time shows whether it runs.
    fn spawn(&mut self) -> u32 {
        let procs = self.cgroup.dir().join("cgroup.procs");
        let script = format!("echo $$ > {} && while :; do :; done", procs.display());
        let child = Command::new("setsid")
            .args(["sh", "-c", &script])
            .stdout(Stdio::null())
            .spawn()
            .expect("setsid of util-linux");
        self.children.push(child);
        let began = Instant::now();
        loop {
            let pids = self.cgroup.procs(true).unwrap();
            if pids.len() == self.children.len() {
                return *pids.last().unwrap();
            }
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "it did not start"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn throttle(state: Option<&Path>) -> Throttle {
    let ledger = state.map(|state| {
        let (ledger, undone) = Ledger::open(state).unwrap();
        assert!(undone.is_well(), "{undone:?}");
        ledger
    });
    Throttle::new(ProcRoot::default(), ledger.unwrap_or_default())
}

#[test]
fn a_frozen_cgroup_stands_still_and_goes_on() {
    let Some(mut place) = Place::new("a_frozen_cgroup_stands_still_and_goes_on", "freeze") else {
        return;
    };
    let pid = place.spawn();
    assert!(runs_again(pid));
    let mut hands = throttle(None);
    match hands.freeze(&place.cgroup) {
        Err(ThrottleError::NoFreezer { why, .. }) => {
            println!("SKIPPED a_frozen_cgroup_stands_still_and_goes_on: {why}");
            return;
        }
        other => other.unwrap(),
    }
    assert!(!runs(pid));
    hands.freeze(&place.cgroup).unwrap();
    hands.thaw(&place.cgroup).unwrap();
    assert!(runs_again(pid));
    // The same if it is dropped while frozen.
    hands.freeze(&place.cgroup).unwrap();
    assert!(!runs(pid));
    drop(hands);
    assert!(runs_again(pid));
}

/// A chain of processes, each of which starts the next one and ends, for as long as a file exists.
const FORKS: &str = "next() { [ -e \"$0\" ] && { next & } }; next";

#[test]
fn one_that_forks_all_the_time_is_frozen_whole() {
    const TEST: &str = "one_that_forks_all_the_time_is_frozen_whole";
    let Some(mut place) = Place::new(TEST, "forks") else {
        return;
    };
    let goes_on = tempfile::NamedTempFile::new().unwrap();
    let procs = place.cgroup.dir().join("cgroup.procs");
    let script = format!("echo $$ > {}; {FORKS}", procs.display());
    let child = Command::new("setsid")
        .args(["sh", "-c", &script])
        .arg(goes_on.path())
        .spawn()
        .expect("setsid of util-linux");
    place.children.push(child);
    let pids = || place.cgroup.procs(true).unwrap();
    let has_changed = |before: &[u32]| {
        (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            pids() != before
        })
    };
    assert!(has_changed(&[]));
    let mut hands = throttle(None);
    for round in 0..10 {
        match hands.freeze(&place.cgroup) {
            Err(ThrottleError::NoFreezer { why, .. }) if round == 0 => {
                println!("SKIPPED {TEST}: {why}");
                return;
            }
            other => other.unwrap(),
        }
        let frozen = pids();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(pids(), frozen, "round {round}");
        assert!(!frozen.is_empty());
        hands.thaw(&place.cgroup).unwrap();
        assert!(has_changed(&frozen), "round {round}");
    }
}

/// In v1, processes in different freezer cgroups cannot be frozen together; none may stand still
/// while that is found out.
#[test]
fn one_in_several_freezers_is_left_running() {
    const TEST: &str = "one_in_several_freezers_is_left_running";
    let Some(mut place) = Place::new(TEST, "several") else {
        return;
    };
    let mounts = Mounts::read(&ProcRoot::default()).unwrap();
    let Some(freezer) = mounts.controller_dir("freezer") else {
        return println!("SKIPPED {TEST}: no freezer hierarchy");
    };
    let apart = freezer.join(format!("agewise-test-several-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&apart) {
        return println!("SKIPPED {TEST}: no freezer cgroup can be made here ({error})");
    }
    let [_, pid] = [place.spawn(), place.spawn()];
    fs::write(apart.join("cgroup.procs"), pid.to_string()).unwrap();
    let began = Instant::now();
    let result = throttle(None).freeze(&place.cgroup);
    let took = began.elapsed();
    fs::write(freezer.join("cgroup.procs"), pid.to_string()).unwrap();
    fs::remove_dir(&apart).unwrap();
    assert!(
        matches!(result, Err(ThrottleError::NoFreezer { .. })),
        "{result:?}"
    );
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn the_next_one_thaws_what_a_killed_one_froze() {
    let Some(mut place) = Place::new("the_next_one_thaws_what_a_killed_one_froze", "ledger") else {
        return;
    };
    let pid = place.spawn();
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger");
    let mut hands = throttle(Some(dir.path()));
    if let Err(ThrottleError::NoFreezer { why, .. }) = hands.freeze(&place.cgroup) {
        println!("SKIPPED the_next_one_thaws_what_a_killed_one_froze: {why}");
        return;
    }
    assert!(ledger.exists());
    // Killed: nothing is undone. Copy its ledger to a directory that this process has not locked.
    assert!(!runs(pid));
    let next = tempfile::tempdir().unwrap();
    fs::copy(&ledger, next.path().join("ledger")).unwrap();
    fs::remove_file(&ledger).unwrap();
    std::mem::forget(hands);
    let ledger = next.path().join("ledger");
    let hands = throttle(Some(next.path()));
    assert!(runs_again(pid));
    assert!(!ledger.exists());
    drop(hands);
}

#[test]
fn a_squeeze_is_taken_back() {
    let Some(mut place) = Place::new("a_squeeze_is_taken_back", "squeeze") else {
        return;
    };
    place.spawn();
    let file = |name: &str| fs::read_to_string(place.cgroup.dir().join(name)).unwrap();
    let name = match place.cgroup.hierarchy().version {
        Version::V1 => "memory.soft_limit_in_bytes",
        Version::V2 => "memory.high",
    };
    let before = file(name);
    let mut hands = throttle(None);
    let written = hands.squeeze(&place.cgroup, 64 << 20).unwrap();
    assert_eq!(written, place.cgroup.dir().join(name));
    assert_eq!(file(name), format!("{}\n", 64 << 20));
    hands.squeeze(&place.cgroup, 32 << 20).unwrap();
    hands.release(&place.cgroup).unwrap();
    assert_eq!(file(name), before, "as it was before the first squeeze");
    hands.squeeze(&place.cgroup, 32 << 20).unwrap();
    drop(hands);
    assert_eq!(file(name), before);
}

#[test]
fn a_kill_ends_all_of_them() {
    let Some(mut place) = Place::new("a_kill_ends_all_of_them", "kill") else {
        return;
    };
    place.spawn();
    place.spawn();
    let mut hands = throttle(None);
    let killed = hands.kill(&place.cgroup).unwrap();
    assert_eq!(
        (killed.ended, killed.left.len(), killed.is_complete()),
        (2, 0, true)
    );
    for child in &mut place.children {
        assert!(!child.wait().unwrap().success());
    }
}

#[test]
fn ourselves_and_what_started_us_are_left_alone() {
    let root = ProcRoot::default();
    let Ok(hierarchy) = Hierarchy::discover(&root) else {
        println!("SKIPPED ourselves_and_what_started_us_are_left_alone: no memory cgroups");
        return;
    };
    let all = Cgroup::open(&hierarchy, "/").unwrap();
    assert_eq!(untouchable(&root, &all).unwrap(), Some(Untouchable::Root));
    let mut hands = throttle(None);
    let mine = Process::open(std::process::id()).unwrap();
    let own = Cgroup::of_process(&hierarchy, &mine).unwrap();
    if let Some(own) = own.filter(|own| !own.is_root()) {
        assert!(untouchable(&root, &own).unwrap().is_some());
        for result in [
            hands.freeze(&own),
            hands.kill(&own).map(|_| ()),
            hands.squeeze(&own, 1).map(|_| ()),
        ] {
            assert!(
                matches!(result, Err(ThrottleError::Untouchable { .. })),
                "{result:?}"
            );
        }
    }
    // A child without its own session belongs to ours.
    let Some(mut place) = Place::new("ourselves_and_what_started_us_are_left_alone", "own") else {
        return;
    };
    assert_eq!(untouchable(&root, &place.cgroup).unwrap(), None, "empty");
    let procs: PathBuf = place.cgroup.dir().join("cgroup.procs");
    let child = Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(&procs, child.id().to_string()).unwrap();
    place.children.push(child);
    assert_eq!(
        untouchable(&root, &place.cgroup).unwrap(),
        Some(Untouchable::Session)
    );
    let error = hands.freeze(&place.cgroup).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("a process of the session of agewise"),
        "{error}"
    );
}
