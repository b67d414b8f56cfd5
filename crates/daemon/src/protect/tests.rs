// SPDX-License-Identifier: Apache-2.0
use std::collections::HashMap;
use std::path::Path;

use agewise_host::cgroup::{Hierarchy, Version};
use agewise_host::page::pages_per_kernel_page;
use agewise_host::root::Roots;
use agewise_host::throttle::Ledger;
use serde_json::Value;

use super::groups::{is_within, self_and_above};
use super::*;
use crate::config::Config;
use crate::demo;
use crate::health::Health;

pub(super) fn config(text: &str) -> (Config, Matcher) {
    let config = Config::parse(&format!("[observe]\ncgroups = ['/**']\n{text}")).unwrap();
    let matcher = Matcher::new(&config).unwrap();
    (config, matcher)
}

pub(super) const NOWHERE: Ours<'static> = Ours {
    line: &[7],
    cgroup: None,
};

/// Views of these paths, sorted like the agent's, each with one process.
pub(super) fn machine(paths: &[&str]) -> (Vec<Seen>, Vec<SubjectView>) {
    let like = demo::snapshot(1, 1000).subjects[0].clone();
    let views: Vec<SubjectView> = (100..)
        .zip(paths)
        .map(|(id, path)| SubjectView {
            name: Arc::from(*path),
            id,
            ..like.clone()
        })
        .collect();
    let seen = (0..)
        .zip(&views)
        .map(|(at, view)| Seen {
            at,
            key: (Arc::clone(&view.name), view.id),
            cgroup: None,
            container: None,
            pids: views
                .iter()
                .filter(|other| is_within(&other.name, &view.name))
                .map(|other| other.id as u32)
                .collect(),
        })
        .collect();
    (seen, views)
}

#[test]
fn paths_are_within_whole_names() {
    assert!(is_within("/a/b", "/a") && is_within("/a", "/a") && is_within("/a", "/"));
    assert!(!is_within("/ab", "/a") && !is_within("/a", "/a/b"));
    let above: Vec<&Path> = self_and_above(Path::new("/a/b/c")).collect();
    assert_eq!(above, ["/a/b/c", "/a/b", "/a"].map(Path::new));
}

#[test]
fn groups_are_apart_and_what_holds_the_daemon_is_told_by_its_parts() {
    let (_, matcher) = config("[protect]\ncgroups = ['/user/desk']\nspare = ['/vm']\n");
    let (seen, views) = machine(&[
        "/",
        "/batch",
        "/batch/a",
        "/login",
        "/system",
        "/system/agewise",
        "/system/db",
        "/user",
        "/user/desk",
        "/user/desk/tab",
        "/user/game",
        "/vm",
    ]);
    // The agent leaves out the daemon itself, but not the process that started it.
    let at = |name: &str| seen.iter().position(|seen| &*seen.key.0 == name).unwrap();
    let starter = seen[at("/login")].pids.clone();
    let ours = Ours {
        line: &starter,
        cgroup: Some("/system/agewise/main".into()),
    };
    let watched = choose(&seen, &views, &matcher, &ours);
    let told: Vec<(&str, bool, bool)> = watched
        .iter()
        .map(|w| (&*w.name, w.is_protected, w.is_untouchable))
        .collect();
    assert_eq!(
        told,
        [
            ("/user/desk", true, true),
            ("/batch", false, false),
            ("/login", false, true),
            ("/system/agewise", false, true),
            ("/system/db", false, false),
            ("/user/game", false, false),
            ("/vm", false, true),
        ]
    );
}

/// As in a pod, where the path of the daemon starts at its cgroup namespace.
#[test]
fn the_daemon_is_found_where_the_kernel_does_not_tell_its_path() {
    let top = tempfile::tempdir().unwrap();
    let pod = top.path().join("cgroup/kubepods/pod");
    std::fs::create_dir_all(&pod).unwrap();
    let procs = pod.join("cgroup.procs");
    std::fs::write(&procs, std::process::id().to_string()).unwrap();
    let version = Version::V2;
    let hierarchy = Hierarchy::at(version, top.path().join("cgroup"));
    let root = Roots::below(top.path()).proc;
    let (mut seen, _) = machine(&["/kubepods"]);
    seen[0].cgroup = Some(Cgroup::open(&hierarchy, "/kubepods").unwrap());
    let own = Own::new(&[]);
    let find = || own.among(&root, &seen);
    assert_eq!(find().cgroup.as_deref(), Some(Path::new("/kubepods/pod")));
    assert!(find().is_in(&seen[0]));
    std::fs::remove_file(procs).unwrap();
    assert!(find().is_in(&seen[0]), "it is not looked for at every tick");
}

/// The journal lines of a machine on which `/web` is protected and `/batch` grows while it is bad.
fn lines(up_to: &str, seconds: u64, is_bad: impl Fn(u64) -> bool) -> Vec<Value> {
    lines_from(0, up_to, seconds, is_bad)
}

/// As [`lines`], where nothing can be written before the second `from`.
fn lines_from(from: u64, up_to: &str, seconds: u64, is_bad: impl Fn(u64) -> bool) -> Vec<Value> {
    let (config, matcher) = config(&format!(
        "[protect]\ncgroups = ['/web']\nup_to = '{up_to}'\nfreeze = '3s'\n"
    ));
    let mut protector = Protector::new(&config.protect, ProcRoot::new("/nowhere"), None).unwrap();
    let (seen, views) = machine(&["/", "/batch", "/batch/job", "/web"]);
    protector.follow(&seen, &views, &matcher, &NOWHERE);
    let directory = tempfile::tempdir().unwrap();
    let mut journal_config = config.journal.clone();
    journal_config.file = directory.path().join("journal");
    let full = crate::config::Journal {
        file: "/dev/full".into(),
        ..journal_config.clone()
    };
    let open = |config| Journal::open(config, &Health::default()).unwrap();
    let journal = open(&full);
    let mut counters: HashMap<String, Counters> = HashMap::new();
    for second in 0..seconds {
        if second == from {
            journal.replace_by(open(&journal_config));
        }
        let mut count = |name: &str, grown_bytes: u64, refaults: u64, stalled_us: u64| {
            let counters = counters.entry(name.to_owned()).or_default();
            counters.used_bytes += grown_bytes;
            counters.refaulted_pages[0] += refaults;
            let stalled = counters.full_stall_us.get_or_insert(0);
            *stalled += stalled_us;
        };
        let bad = u64::from(is_bad(second));
        count("/web", 0, 4000 * bad, 500_000 * bad);
        count("/batch", (64 << 20) * bad, 0, 0);
        let read = |watched: &Watched| counters.get(&*watched.name).cloned();
        protector.poll(second * 1000, read, &matcher, &journal);
        // Does nothing when called again at once.
        protector.poll(second * 1000 + 1, read, &matcher, &journal);
        assert!(protector.next_ms(second * 1000 + 1) > second * 1000 + 1);
    }
    protector.undo_all(&matcher, &journal);
    assert!(protector.held.is_empty() && protector.excess().is_empty());
    let text = std::fs::read_to_string(&journal_config.file).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn acts_of(lines: &[Value]) -> Vec<(&str, &str)> {
    lines
        .iter()
        .filter(|line| line["record"] == "action")
        .map(|line| {
            let word = |key: &str| line[key].as_str().unwrap();
            assert_eq!((word("target"), word("protected")), ("/batch/job", "/web"));
            assert_eq!(
                (&line["dry_run"], word("policy")),
                (&Value::Bool(true), "protect")
            );
            (word("act"), word("phase"))
        })
        .collect()
}

fn pairs<'a>(acts: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    let both = |act: &&'a str| [(*act, "before"), (*act, "after")];
    acts.iter().flat_map(both).collect()
}

#[test]
fn reports_do_nothing_else() {
    let lines = lines("report", 30, |_| true);
    assert!(!lines.is_empty());
    for line in &lines {
        assert_eq!(line["record"], "thrashing");
        assert_eq!(
            (&line["guilty"], &line["act"]),
            (&"/batch".into(), &"report".into())
        );
        assert!(line["refaults_per_s"].as_f64().unwrap() > 3999.0);
    }
}

#[test]
fn each_step_is_told_before_and_after_and_taken_back_when_all_is_calm() {
    let squeezed = lines("squeeze", 60, |second| second < 8);
    assert_eq!(
        acts_of(&squeezed),
        pairs(&["squeeze", "release"]),
        "{squeezed:#?}"
    );
    assert!(squeezed[1]["limit_bytes"].as_u64().unwrap() >= 64 << 20);
    let frozen = lines("freeze", 60, |second| second < 10);
    // Thawed in time, although the situation was bad until then.
    assert_eq!(
        acts_of(&frozen),
        pairs(&["squeeze", "freeze", "thaw", "release"]),
        "{frozen:#?}"
    );
    let at = |act: &str| {
        let mut lines = frozen.iter();
        let line = lines.position(|line| line["record"] == "action" && line["act"] == act);
        frozen[line.unwrap()].clone()
    };
    assert_eq!(at("freeze")["for_ms"], 3000);
    // If it ends in between, everything is released; nothing is killed unless requested.
    let ended = lines("freeze", 10, |_| true);
    let acts = acts_of(&ended);
    assert_eq!(
        &acts[acts.len() - 4..],
        pairs(&["thaw", "release"]),
        "{ended:#?}"
    );
    let killed = lines("kill", 20, |_| true);
    assert!(acts_of(&killed).contains(&("kill", "after")), "{killed:#?}");
}

/// Nobody is killed because a gentler step could not be recorded.
#[test]
fn steps_that_cannot_be_recorded_are_not_skipped() {
    // Steps were due in the seconds 3 and 8.
    let lines = lines_from(10, "kill", 16, |_| true);
    let acts = acts_of(&lines);
    assert_eq!(acts[0], ("squeeze", "before"), "{lines:#?}");
    assert!(!acts.contains(&("kill", "before")), "{lines:#?}");
}

/// While a machine thrashes, a task that waits for a disk does not freeze.
#[test]
fn a_culprit_that_cannot_be_frozen_in_time_is_killed() {
    let top = tempfile::tempdir().unwrap();
    let job = top.path().join("cgroup/batch/job");
    std::fs::create_dir_all(&job).unwrap();
    for (file, text) in [
        ("cgroup.procs", ""),
        ("memory.current", "536870912"),
        ("memory.high", "max"),
        ("cgroup.freeze", "0"),
        ("cgroup.events", "frozen 0"),
    ] {
        std::fs::write(job.join(file), text).unwrap();
    }
    let hierarchy = Hierarchy::at(Version::V2, top.path().join("cgroup"));
    let (config, matcher) = config("[protect]\ncgroups = ['/web']\nup_to = 'kill'\n");
    let root = Roots::below(top.path()).proc;
    let mut throttle = Throttle::new(root.clone(), Ledger::default());
    throttle.steps_for = std::time::Duration::ZERO;
    let mut protector = Protector::new(&config.protect, root, Some(throttle)).unwrap();
    let (mut seen, views) = machine(&["/batch/job", "/web"]);
    seen[0].cgroup = Some(Cgroup::open(&hierarchy, "/batch/job").unwrap());
    let mut journal_config = config.journal.clone();
    journal_config.file = top.path().join("journal");
    let journal = Journal::open(&journal_config, &Health::default()).unwrap();
    for second in 0..20 {
        protector.follow(&seen, &views, &matcher, &NOWHERE);
        let read = |watched: &Watched| {
            let [grown, suffered] = match watched.is_protected {
                true => [0, second],
                false => [second, 0],
            };
            Some(Counters {
                used_bytes: grown * (64 << 20),
                refaulted_pages: [suffered * 4000, 0],
                full_stall_us: Some(suffered * 500_000),
                ..Counters::default()
            })
        };
        protector.poll(second * 1000, read, &matcher, &journal);
    }
    assert_eq!(protector.excess().len(), 1);
    let high = std::fs::read_to_string(job.join("memory.high")).unwrap();
    // From second 3 on, a step at each poll.
    assert_eq!(high, ((512 - 17 * 8) << 20).to_string());
    std::fs::rename(&job, top.path().join("cgroup/before")).unwrap();
    std::fs::create_dir(&job).unwrap();
    std::fs::write(job.join("memory.current"), "536870912").unwrap();
    assert_eq!(protector.excess(), [], "it is another one");
    let text = std::fs::read_to_string(&journal_config.file).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let after = lines.filter(|line: &Value| line["phase"] == "after");
    let after: Vec<Value> = after.collect();
    let acts = after.iter().map(|line| line["act"].as_str().unwrap());
    let acts: Vec<&str> = acts.collect();
    assert_eq!(acts[..3], ["squeeze", "freeze", "kill"], "{after:#?}");
    assert!(after[1]["trouble"].as_str().unwrap().contains("within 2 s"));
}

/// Who is acted on where nothing is held yet and nobody is a stranger.
fn narrow(demands: &Demands, guilty: &str) -> Arc<str> {
    demands.narrow(&Arc::from(guilty), |_| false, |_| false)
}

#[test]
fn what_is_below_the_guilty_answers_for_itself() {
    let hierarchy = tempfile::tempdir().unwrap();
    for below in ["slice/hog/worker", "slice/idle"] {
        std::fs::create_dir_all(hierarchy.path().join(below)).unwrap();
    }
    let hierarchy = Hierarchy::at(Version::V2, hierarchy.path());
    let (mut seen, mut views) =
        machine(&["/slice", "/slice/hog", "/slice/hog/worker", "/slice/idle"]);
    for seen in &mut seen {
        seen.cgroup = Some(Cgroup::open(&hierarchy, &*seen.key.0).unwrap());
    }
    let mut demands = Demands::default();
    demands.update(&seen, &views, true);
    let grow = |views: &mut [SubjectView], name: &str, mib: u64| {
        let view = views.iter_mut().find(|view| &*view.name == name).unwrap();
        view.swapped_bytes += mib << 20;
    };
    for (name, mib) in [
        ("/slice", 100),
        ("/slice/hog", 90),
        ("/slice/hog/worker", 50),
    ] {
        grow(&mut views, name, mib);
    }
    demands.update(&seen, &views, true);
    let narrowed = |demands: &Demands| narrow(demands, "/slice");
    assert_eq!(&*narrowed(&demands), "/slice/hog");
    assert_eq!(demands.cgroup("/slice/hog").unwrap().name(), "/slice/hog");
    for (name, mib) in [("/slice", 100), ("/slice/hog", 50), ("/slice/idle", 50)] {
        grow(&mut views, name, mib);
    }
    demands.update(&seen, &views, true);
    assert_eq!(&*narrowed(&demands), "/slice");
    let is_held = |name: &str| name == "/slice/idle";
    let held = |of: &Demands| of.narrow(&Arc::from("/slice"), is_held, |_| false);
    assert_eq!(&*held(&demands), "/slice/idle", "half is enough to stay");
    demands.update(&seen, &views, false);
    assert_eq!(&*held(&demands), "/slice/idle");
    demands.update(&seen, &views, true);
    assert_eq!(&*narrowed(&demands), "/slice", "nobody asked for anything");
    assert!(demands.mapped_bytes("/slice") > 0 && demands.mapped_bytes("/x") == 0);
}

/// The hog fills a memfd, which nobody maps.
#[test]
fn demand_is_what_is_charged_not_what_is_mapped() {
    let top = tempfile::tempdir().unwrap();
    let version = Version::V2;
    let hierarchy = Hierarchy::at(version, top.path());
    let (mut seen, views) = machine(&["/s", "/s/hog", "/s/idle"]);
    let mut demands = Demands::default();
    for hog_mib in [100, 200] {
        for (seen, mib) in seen.iter_mut().zip([hog_mib + 200, hog_mib, 200]) {
            let dir = top.path().join(&seen.key.0[1..]);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("memory.current"), (mib << 20).to_string()).unwrap();
            seen.cgroup = Some(Cgroup::open(&hierarchy, &*seen.key.0).unwrap());
        }
        demands.update(&seen, &views, true);
    }
    assert_eq!(&*narrow(&demands, "/s"), "/s/hog");
}

/// If one shrinks while others grow, several have almost all of the demand.
#[test]
fn of_several_that_grow_the_one_that_asks_for_most_is_held_back() {
    let (seen, mut views) = machine(&["/s", "/s/a", "/s/b-long-name", "/s/c"]);
    let mut demands = Demands::default();
    for (view, mib) in views.iter_mut().zip([300, 0, 0, 300]) {
        view.swapped_bytes = mib << 20;
    }
    demands.update(&seen, &views, true);
    for (view, mib) in views.iter_mut().zip([390, 100, 90, 200]) {
        view.swapped_bytes = mib << 20;
    }
    demands.update(&seen, &views, true);
    assert_eq!(&*narrow(&demands, "/s"), "/s/a");
    views[1].swapped_bytes += 1 << 20;
    demands.update(&seen, &views, true);
    assert_eq!(&*narrow(&demands, "/s"), "/s", "its own demand is none");
}

/// The one that causes the demand now is acted upon, gently first; what was done to the other stays
/// until all is calm.
#[test]
fn a_slice_whose_demand_moves_has_another_of_its_cgroups_held_back() {
    let (config, matcher) =
        config("[protect]\ncgroups = ['/web']\nup_to = 'freeze'\nfreeze = '3s'\n");
    let mut protector = Protector::new(&config.protect, ProcRoot::new("/nowhere"), None).unwrap();
    let (seen, mut views) = machine(&["/batch", "/batch/a", "/batch/b", "/web"]);
    protector.follow(&seen, &views, &matcher, &NOWHERE);
    let directory = tempfile::tempdir().unwrap();
    let mut journal_config = config.journal.clone();
    journal_config.file = directory.path().join("journal");
    let journal = Journal::open(&journal_config, &Health::default()).unwrap();
    for second in 0..30 {
        let grows = if second < 6 { 1 } else { 2 };
        for at in [0, grows].into_iter().filter(|_| second < 15) {
            views[at].swapped_bytes += 64 << 20;
        }
        protector.follow(&seen, &views, &matcher, &NOWHERE);
        let bad = second.min(15);
        let read = |watched: &Watched| {
            Some(match watched.is_protected {
                true => Counters {
                    refaulted_pages: [bad * 4000, 0],
                    full_stall_us: Some(bad * 500_000),
                    ..Counters::default()
                },
                false => Counters {
                    used_bytes: bad * (64 << 20),
                    full_stall_us: Some(0),
                    ..Counters::default()
                },
            })
        };
        protector.poll(second * 1000, read, &matcher, &journal);
    }
    let text = std::fs::read_to_string(&journal_config.file).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let acts: Vec<[String; 2]> = lines
        .filter(|line: &Value| line["phase"] == "after")
        .map(|line| ["target", "act"].map(|key| line[key].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(
        acts,
        [
            ["/batch/a", "squeeze"],
            ["/batch/b", "squeeze"],
            ["/batch/b", "freeze"],
            ["/batch/b", "thaw"],
            ["/batch/a", "release"],
            ["/batch/b", "release"],
        ]
    );
}

/// What a watch of ten seconds says of refaults per second of swapped memory: kernels before 5.9
/// count what came back to files only, since the cgroup was made.
fn refaults_per_s(vmstat: impl Fn(u64) -> String) -> f64 {
    let (config, matcher) = config("[protect]\ncgroups = ['/web']\n");
    let top = tempfile::tempdir().unwrap();
    let mut protector = Protector::new(&config.protect, ProcRoot::new(top.path()), None).unwrap();
    let (seen, mut views) = machine(&["/batch", "/web"]);
    let mut decisions = Vec::new();
    for second in 0..10 {
        std::fs::write(top.path().join("vmstat"), vmstat(second)).unwrap();
        views[1].found_refaulted_bytes = second * 4000 * PAGE_BYTES;
        protector.follow(&seen, &views, &matcher, &NOWHERE);
        let read = |_: &Watched| {
            Some(Counters {
                used_bytes: second * (64 << 20),
                refaulted_pages: [0, 1_000_000],
                full_stall_us: Some(second * 500_000),
                ..Counters::default()
            })
        };
        decisions.extend(protector.look(second * 1000, read, &matcher));
    }
    decisions[0].suffering.unwrap().young_refaults_per_s
}

#[test]
fn what_comes_back_from_swap_counts_as_far_as_the_kernel_took_it() {
    assert_eq!(refaults_per_s(|_| "pgfault 7\n".to_owned()), 4000.0);
    let taken = refaults_per_s(|second| format!("pgsteal_kswapd {}\n", second * 200));
    assert_eq!(taken, (200 * pages_per_kernel_page()) as f64);
}

#[test]
fn nobody_protected_nobody_watched() {
    let (config, _) = config("");
    assert!(Protector::new(&config.protect, ProcRoot::new("/nowhere"), None).is_none());
    assert!(!acts(&config.protect, false));
    let (config, _) = self::config("[protect]\ncgroups = ['/a']\nup_to = 'freeze'\n");
    assert!(acts(&config.protect, false) && !acts(&config.protect, true));
}
