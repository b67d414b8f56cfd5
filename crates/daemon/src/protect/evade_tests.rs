// SPDX-License-Identifier: Apache-2.0
//! Culprits that spread over several cgroups, or move between them, seen by a whole [`Protector`].

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use agewise_host::cgroup::{Hierarchy, Version};
use agewise_host::root::Roots;
use agewise_host::throttle::Ledger;
use serde_json::Value;

use super::tests::{NOWHERE, config, machine};
use super::*;
use crate::health::Health;

const GROWN_BYTES: u64 = 64 << 20;

/// Directories that stand in for cgroups.
struct Scene {
    top: tempfile::TempDir,
    hierarchy: Hierarchy,
}

impl Scene {
    fn new(paths: &[&str]) -> Self {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().join("cgroup");
        for path in paths {
            let dir = root.join(&path[1..]);
            fs::create_dir_all(&dir).unwrap();
            for (file, text) in [
                ("cgroup.procs", ""),
                ("memory.current", "0"),
                ("memory.high", "max"),
                ("cgroup.freeze", "0"),
                ("cgroup.events", "frozen 1"),
            ] {
                fs::write(dir.join(file), text).unwrap();
            }
        }
        let hierarchy = Hierarchy::at(Version::V2, root);
        Scene { top, hierarchy }
    }

    fn file(&self, path: &str, file: &str) -> std::path::PathBuf {
        self.hierarchy.root.join(&path[1..]).join(file)
    }

    fn grow(&self, path: &str) {
        for path in Path::new(path)
            .ancestors()
            .filter(|of| of.parent().is_some())
        {
            let file = self.file(path.to_str().unwrap(), "memory.current");
            let now: u64 = fs::read_to_string(&file).unwrap().parse().unwrap();
            fs::write(&file, (now + GROWN_BYTES).to_string()).unwrap();
        }
    }

    /// What was done to whom in these seconds, while `/web` suffers. In each second `grows` names
    /// the cgroups that grow.
    fn acts<'a>(
        &self,
        paths: &[&str],
        seconds: u64,
        grows: impl Fn(u64) -> Vec<&'a str>,
    ) -> Vec<(String, String)> {
        let (config, matcher) =
            config("[protect]\ncgroups = ['/web']\nup_to = 'freeze'\nfreeze = '1s'\n");
        let root = Roots::below(self.top.path()).proc;
        let throttle = Throttle::new(root.clone(), Ledger::default());
        let mut protector = Protector::new(&config.protect, root, Some(throttle)).unwrap();
        let (mut seen, views) = machine(paths);
        for seen in &mut seen {
            seen.cgroup = Some(Cgroup::open(&self.hierarchy, &*seen.key.0).unwrap());
        }
        let mut journal_config = config.journal.clone();
        journal_config.file = self.top.path().join("journal");
        let journal = Journal::open(&journal_config, &Health::default()).unwrap();
        for second in 0..seconds {
            protector.follow(&seen, &views, &matcher, &NOWHERE);
            let read = |watched: &Watched| {
                let used_bytes = watched.cgroup.as_ref()?.usage_bytes().ok()??;
                Some(match watched.is_protected {
                    true => Counters {
                        refaulted_pages: [second * 4000, 0],
                        full_stall_us: Some(second * 500_000),
                        ..Counters::default()
                    },
                    false => Counters {
                        used_bytes,
                        full_stall_us: Some(0),
                        ..Counters::default()
                    },
                })
            };
            protector.poll(second * 1000, read, &matcher, &journal);
            for path in grows(second) {
                self.grow(path);
            }
        }
        let text = fs::read_to_string(&journal_config.file).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let done = lines.filter(|line: &Value| line["phase"] == "after");
        done.map(|line| {
            assert!(
                line["trouble"].is_null() && line["refused"].is_null(),
                "{line}"
            );
            ["target", "act"].map(|key| line[key].as_str().unwrap().to_owned())
        })
        .map(|[target, act]| (target, act))
        .collect()
    }

    /// Gives cgroups away; `false` if this takes more than we have.
    fn belong_to(&self, user: u32, paths: &[&str]) -> bool {
        let mut given = paths.iter().map(|path| self.file(path, ""));
        given.all(|dir| chown(dir, Some(user), None).is_ok())
    }
}

fn targets(acts: &[(String, String)]) -> Vec<&str> {
    let mut targets: Vec<&str> = acts.iter().map(|(target, _)| &**target).collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// Nobody gets the pods of others frozen by spreading what he demands over two of his own.
#[test]
fn a_slice_of_strangers_is_not_held_back_for_two_of_them() {
    let test = "a_slice_of_strangers_is_not_held_back_for_two_of_them";
    let paths = ["/pods", "/pods/a", "/pods/b", "/pods/innocent", "/web"];
    let both = |_| vec!["/pods/a", "/pods/b"];
    let scene = Scene::new(&paths);
    if !scene.belong_to(0, &paths) {
        return println!("SKIPPED {test}: giving directories away takes root");
    }
    let acts = scene.acts(&paths, 40, both);
    assert_eq!(targets(&acts), ["/pods/a"], "{acts:?}");
    assert!(acts.iter().any(|(_, act)| act == "freeze"), "{acts:?}");
    // What belongs to one user answers as a whole.
    let scene = Scene::new(&paths);
    assert!(scene.belong_to(1000, &["/pods"]));
    assert_eq!(targets(&scene.acts(&paths, 40, both)), ["/pods"]);
}

/// What one user asks for does not get all programs of another held back.
#[test]
fn in_the_greatest_of_strangers_only_the_cause_is_held_back() {
    let test = "in_the_greatest_of_strangers_only_the_cause_is_held_back";
    let paths = [
        "/all",
        "/all/a",
        "/all/a/hog",
        "/all/a/idle",
        "/all/b",
        "/web",
    ];
    let scene = Scene::new(&paths);
    if !(scene.belong_to(0, &paths) && scene.belong_to(1000, &paths[1..4])) {
        return println!("SKIPPED {test}: giving directories away takes root");
    }
    let acts = scene.acts(&paths, 40, |_| vec!["/all/a/hog", "/all/a/hog", "/all/b"]);
    assert_eq!(targets(&acts), ["/all/a/hog"], "{acts:?}");
}

/// A program that takes memory and gives it back once a second has grown in none if it is always
/// looked at at the same moment.
#[test]
fn a_program_that_grows_and_shrinks_in_step_with_the_daemon_is_found() {
    let (config, matcher) = config("[protect]\ncgroups = ['/web']\n");
    let mut protector = Protector::new(&config.protect, ProcRoot::new("/nowhere"), None).unwrap();
    let (seen, views) = machine(&["/hog", "/web"]);
    protector.follow(&seen, &views, &matcher, &NOWHERE);
    let directory = tempfile::tempdir().unwrap();
    let mut journal_config = config.journal.clone();
    journal_config.file = directory.path().join("journal");
    let journal = Journal::open(&journal_config, &Health::default()).unwrap();
    let mut now_ms = 0;
    while now_ms < 60_000 {
        let read = |watched: &Watched| {
            Some(match watched.is_protected {
                true => Counters {
                    refaulted_pages: [now_ms * 4, 0],
                    full_stall_us: Some(now_ms * 500),
                    ..Counters::default()
                },
                false => Counters {
                    used_bytes: (now_ms % 1000) << 20,
                    full_stall_us: Some(0),
                    ..Counters::default()
                },
            })
        };
        protector.poll(now_ms, read, &matcher, &journal);
        now_ms = protector.next_ms(now_ms);
    }
    let text = fs::read_to_string(&journal_config.file).unwrap();
    assert!(text.contains("\"guilty\":\"/hog\""), "{text}");
}

/// A program that moves to another cgroup whenever it is held back.
#[test]
fn a_program_that_moves_between_cgroups_of_its_user_is_held_back_with_them() {
    let test = "a_program_that_moves_between_cgroups_of_its_user_is_held_back_with_them";
    let paths = ["/user", "/user/a", "/user/b", "/user/c", "/user/d", "/web"];
    let moves = |second: u64| vec![paths[1 + second as usize / 7 % 4]];
    let scene = Scene::new(&paths);
    if !scene.belong_to(1000, &paths) {
        return println!("SKIPPED {test}: giving directories away takes root");
    }
    let acts = scene.acts(&paths, 60, moves);
    let froze = |(target, act): &(String, String)| target == "/user" && act == "freeze";
    assert!(acts.iter().any(froze), "{acts:?}");
    // In one of root's, only those that it was in.
    let scene = Scene::new(&paths);
    let acts = scene.acts(&paths, 60, moves);
    assert!(!targets(&acts).contains(&"/user"), "{acts:?}");
}
