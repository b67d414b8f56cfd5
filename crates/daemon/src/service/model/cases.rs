// SPDX-License-Identifier: Apache-2.0
//! Sequences that once went wrong, or that chance is slow to find.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use agewise_host::access::PAGE_BYTES;
use agewise_host::container::Containers;
use agewise_host::throttle::Ledger;
use agewise_policy::budget::KernelFirst;
use agewise_policy::table::{PageSet, TableBits};

use super::*;
use crate::actor::Actor;
use crate::ahead::Report;
use crate::hand::Done;
use crate::observer;
use crate::outlet::Outlet;
use crate::state::Reason;

#[test]
fn rules_that_move_pages_need_a_source_that_tells_them_apart() {
    let mut world = World::new();
    machine::tell_pages(false);
    world.reload(Text::Rules);
    assert_eq!(world.text, Text::UpTo("freeze"), "taken by a reload");
    world.reload(Text::Rehearsal);
    assert_eq!(
        world.text,
        Text::Rehearsal,
        "without a rule it does not matter"
    );
    world.start(Text::Rules);
    assert!(world.daemon.is_none(), "taken by a start");
    machine::tell_pages(true);
    world.start(Text::UpTo("freeze"));
    world.reload(Text::Rules);
    assert_eq!(world.text, Text::Rules);
}

#[test]
fn the_journal_is_opened_again_also_by_a_reload_that_fails() {
    let mut world = World::new();
    let [path, archived] = ["journal", "archived"].map(|name| world.machine.file(name));
    std::fs::rename(&path, archived).unwrap();
    world.write(Text::Broken);
    let daemon = world.daemon.as_mut().unwrap();
    crate::service::reload(daemon, &mut Outlet::apart(None), &world.options);
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains("reload_failed"), "{text}");
}

#[test]
fn counters_do_not_fall_when_a_rule_goes_and_comes_back() {
    let mut world = World::new();
    world.reload(Text::Rules);
    world.tick();
    let daemon = world.daemon.as_mut().unwrap();
    let mut of_other = daemon
        .tracked
        .actors
        .iter_mut()
        .filter(|(key, _)| &*key.0 == "/other");
    let (_, actor) = of_other.next().expect("a rule for it");
    actor.counted.moved(actor.reason, 8192, 4096);
    actor.counted.rehearsed(12_288, true, u64::MAX);
    for (text, acts) in [(Text::UpTo("freeze"), false), (Text::Rules, true)] {
        world.reload(text);
        world.tick();
        let daemon = world.daemon.as_ref().unwrap();
        let snapshot = daemon.hub.snapshot();
        let mut subjects = snapshot.subjects.iter();
        let view = subjects.find(|view| &*view.name == "/other").unwrap();
        assert_eq!(view.policy.is_some(), acts);
        let reclaimed = &view.reclaimed;
        assert_eq!(
            (reclaimed.total_bytes(), reclaimed.file_bytes),
            (8192, 4096)
        );
        assert_eq!(view.rehearsed_bytes, 12_288);
        assert_eq!(daemon.tracked.retired.is_empty(), acts);
    }
}

#[test]
fn what_came_back_is_counted_also_when_a_process_ends() {
    let mut world = World::new();
    world.reload(Text::Rules);
    // Those of the machine are too large for pids to be followed.
    let sleep = || std::process::Command::new("sleep").arg("60").spawn();
    let mut children = [sleep().unwrap(), sleep().unwrap()];
    let pids = children.each_ref().map(|child| child.id());
    pids.iter().for_each(|pid| world.adopt(*pid, 2));
    let came_back = |world: &mut World, swapped: &[(u32, usize)]| {
        for (pid, pages) in swapped {
            let maps = world.machine.file(&format!("proc/{pid}/maps"));
            let maps = std::fs::read_to_string(maps).unwrap();
            let va = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
            let swapped = PageSet::range(0..*pages);
            let bits = TableBits {
                present: PageSet::ALL.without(&swapped),
                swapped,
                ..TableBits::default()
            };
            machine::map(*pid, va, bits);
        }
        world.tick();
        let snapshot = world.daemon.as_ref().unwrap().hub.snapshot();
        snapshot.subject("/batch").unwrap().found_refaulted_bytes / PAGE_BYTES
    };
    let out = [(pids[0], 100), (pids[1], 80)];
    assert_eq!(came_back(&mut world, &out), 0);
    let back = [(pids[0], 0), (pids[1], 30)];
    assert_eq!(came_back(&mut world, &back), 150);
    world.machine.exit(pids[0]);
    assert_eq!(came_back(&mut world, &[(pids[1], 0)]), 180);
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// It has learned how much it may take, and when.
#[test]
fn an_actor_stays_when_rules_for_others_change() {
    const ONE: &str = "[[act]]\ncgroups = ['/other']\npolicy = 'age:1s/2s'\n";
    const TWO: &str = "[[act]]\ncgroups = ['/batch']\npolicy = 'age:1s/9s'\n\
                       [[act]]\ncgroups = ['/other']\npolicy = 'age:1s/2s'\n";
    const OTHER: &str = "[[act]]\ncgroups = ['/other']\npolicy = 'age:1s/3s'\n";
    let mut world = World::new();
    let mut followed = |text| {
        world.reload(Text::Acts(text));
        world.tick();
        let actors = &world.daemon.as_ref().unwrap().tracked.actors;
        let rule = actors.iter().find(|(key, _)| &*key.0 == "/other");
        let journal = std::fs::read_to_string(world.machine.file("journal")).unwrap();
        let lines = journal
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let follows = lines.filter(|line: &serde_json::Value| {
            line["record"] == "follow" && line["target"] == "/other"
        });
        (rule.unwrap().1.rule, follows.count())
    };
    assert_eq!(followed(ONE), (0, 1));
    assert_eq!(followed(TWO), (1, 1));
    assert_eq!(followed(ONE), (0, 1));
    assert_eq!(followed(OTHER), (0, 2));
}

/// What a budget did before its cgroup, its rule or the daemon went.
#[test]
fn what_was_done_for_a_target_without_a_rule_is_written_and_counted() {
    let mut world = World::new();
    let daemon = world.daemon.as_mut().unwrap();
    let report = Report {
        policy: "budget",
        steps: 3,
        left_bytes: 8192,
        ..Report::default()
    };
    let key = (Arc::from("/gone"), 7);
    daemon.record(vec![(key.clone(), report)]);
    assert_eq!(daemon.tracked.retired[&key].reclaimed.total_bytes(), 8192);
    let journal = std::fs::read_to_string(world.machine.file("journal")).unwrap();
    let line: serde_json::Value = serde_json::from_str(journal.lines().last().unwrap()).unwrap();
    for (key, value) in [
        ("phase", "after"),
        ("target", "/gone"),
        ("policy", "budget"),
    ] {
        assert_eq!(line[key], value);
    }
}

#[test]
fn that_the_kernel_has_the_limit_first_is_written_once() {
    let mut world = World::new();
    let daemon = world.daemon.as_mut().unwrap();
    let key = (Arc::from("/held"), 7);
    let actor = Actor::new(0, &"budget:1G".parse().unwrap(), false);
    daemon.tracked.actors.insert(key.clone(), actor);
    for came_in_pages in [0, 5] {
        let report = Report {
            policy: "budget",
            kernel_first: Some(KernelFirst {
                came_in_pages,
                until_pages: 9,
            }),
            ..Report::default()
        };
        daemon.record(vec![(key.clone(), report)]);
    }
    let journal = std::fs::read_to_string(world.machine.file("journal")).unwrap();
    let lines = journal
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let is_hold = |line: &serde_json::Value| line["record"] == "hold";
    let holds: Vec<_> = lines.filter(is_hold).collect();
    let why = serde_json::json!({
        "reason": "kernel_first", "came_in_pages": 0, "until_pages": 9
    });
    assert_eq!(holds.len(), 1, "{holds:?}");
    assert_eq!(
        (&holds[0]["target"], &holds[0]["why"]),
        (&"/held".into(), &why)
    );
}

#[test]
fn the_file_memory_of_a_squeeze_is_counted_with_a_rule_and_without() {
    let mut world = World::new();
    world.reload(Text::Rules);
    world.tick();
    let done = Done {
        left_anon_bytes: 4096,
        left_file_bytes: 8192,
        ..Done::default()
    };
    let names = ["/other", "/batch"];
    let daemon = world.daemon.as_mut().unwrap();
    for view in &daemon.hub.snapshot().subjects {
        if names.contains(&&*view.name) {
            daemon.count_squeezed(&(Arc::clone(&view.name), view.id), &done);
        }
    }
    world.tick();
    let snapshot = world.daemon.as_ref().unwrap().hub.snapshot();
    for name in names {
        let reclaimed = snapshot.subject(name).unwrap().reclaimed;
        let counted = (reclaimed.bytes(Reason::PROTECT), reclaimed.file_bytes);
        assert_eq!(counted, (12_288, 8192), "{name}");
    }
}

#[test]
fn one_that_is_frozen_goes_on_where_its_counters_cannot_be_read() {
    let mut world = World::with_frozen();
    world.run(&Step::Break(Fault::Stat(2)));
    world.run(&Step::Rest(11));
    assert!(world.frozen_since_ms.is_empty());
}

/// Looks may be far apart.
#[test]
fn a_thaw_that_failed_is_tried_again_between_two_looks() {
    let mut world = World::with_frozen();
    for step in [
        Step::Break(Fault::Freeze(2)),
        Step::Jump(60_000),
        Step::Mend,
        Step::Jump(60_000),
    ] {
        world.run(&step);
    }
    assert!(world.frozen_since_ms.is_empty());
}

/// Acting on many targets takes longer than a culprit may stay frozen.
#[test]
fn one_that_is_frozen_goes_on_while_others_are_acted_upon() {
    let mut world = World::with_frozen();
    world.reload(Text::Rules);
    world.tick();
    let is_frozen = |world: &World| {
        let value = world.machine.value(2, Fault::Freeze(2), "cgroup.freeze");
        value == "1"
    };
    assert!(is_frozen(&world));
    world.machine.pass(FREEZE_MS);
    let daemon = world.daemon.as_mut().unwrap();
    let mut containers = Containers::new(&world.machine.roots().proc);
    let seen = observer::subjects(&daemon.agent, &mut containers);
    daemon.act(&seen, &world.cancel);
    assert!(!is_frozen(&world));
}

#[test]
fn a_look_after_which_the_daemon_is_to_end_does_nothing() {
    for (ends, squeezed) in [(false, 1), (true, 0)] {
        let mut world = World::new();
        world.cancel.store(ends, Ordering::Relaxed);
        for _ in 0..6 {
            world.thrash(2);
            world.machine.pass(1000);
            world.tick();
            world.check();
        }
        assert_eq!(world.acts, [squeezed, 0, 0]);
    }
}

#[test]
fn a_reload_keeps_the_pace_that_rules_want() {
    let mut world = World::new();
    let paces = |world: &World| {
        let daemon = world.daemon.as_ref().unwrap();
        let agent_ms = daemon.agent.config().scan_interval_ms();
        (daemon.pace.budget().tick_ms, agent_ms)
    };
    for _ in 0..2 {
        world.reload(Text::Rules);
        world.tick();
        assert_eq!(paces(&world), (1000, 200), "a fifth of the age of the rule");
    }
}

#[test]
fn what_cannot_be_undone_is_a_trouble_until_it_can() {
    let mut world = World::with_frozen();
    let reasons = |world: &World| world.daemon.as_ref().unwrap().hub.health().reasons();
    assert_eq!(reasons(&world), [""; 0]);
    world.run(&Step::Break(Fault::Freeze(2)));
    world.run(&Step::Jump(60_000));
    world.run(&Step::Jump(1000));
    let told = reasons(&world);
    assert!(
        told.len() == 1 && told[0].starts_with("ledger: "),
        "{told:?}"
    );
    world.run(&Step::Mend);
    world.run(&Step::Jump(60_000));
    assert_eq!(reasons(&world), [""; 0]);
}

#[test]
fn what_the_daemon_before_could_not_undo_is_undone_by_the_end_of_this_one() {
    for text in [
        Text::UpTo("report"),
        Text::Rehearsal,
        Text::Rules,
        Text::NoJournal,
    ] {
        let mut world = World::new();
        world.run(&Step::Hurt(2, 16));
        assert!(world.acts[0] > 0, "nothing was tried");
        world.run(&Step::Break(Fault::High(2)));
        world.run(&Step::Crash(text));
        world.run(&Step::Mend);
        world.run(&Step::End(text));
    }
}

/// The kernel takes memory of all that is in a cgroup: that must not happen to one in which some
/// must stay.
#[test]
fn the_kernel_chooses_only_where_everything_may_go() {
    const BATCH: &str = "[[act]]\ncgroups = ['/batch']\npolicy = 'pressure:period=1s'\n\
                         files = true\ndry_run = false\n";
    const NESTED: &str = "[[act]]\ncgroups = ['/batch/job']\npolicy = 'age:1s/2s'\n\
                          [[act]]\ncgroups = ['/batch']\npolicy = 'pressure:period=1s'\n\
                          files = true\ndry_run = false\n";
    const GUESTS: &str = "[[act]]\ncgroups = ['/batch']\npolicy = 'pressure:period=1s'\n\
                          files = true\nguests = true\ndry_run = false\n";
    let asked = |text, procs: &str, guest: bool| {
        let mut world = World::new();
        // Those of the machine are too large for pids to be followed.
        let mut child = std::process::Command::new("sleep");
        let mut child = child.arg("60").spawn().unwrap();
        world.adopt(child.id(), 3);
        let dir = world.machine.dir(2);
        std::fs::write(dir.join("memory.reclaim"), "").unwrap();
        let job = world.machine.dir(3).join("cgroup.procs");
        let pids = std::fs::read_to_string(&job).unwrap();
        std::fs::write(&job, pids + procs).unwrap();
        if guest {
            let fds = format!("proc/{}/fd", child.id());
            let fds = world.machine.file(&fds);
            std::fs::create_dir(&fds).unwrap();
            std::os::unix::fs::symlink("anon_inode:kvm-vm", fds.join("9")).unwrap();
        }
        world.reload(Text::Acts(text));
        assert_eq!(world.text, Text::Acts(text));
        (0..4).for_each(|_| world.second(true));
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::read_to_string(dir.join("memory.reclaim")).unwrap()
    };
    let us = format!("{}\n", std::process::id());
    assert_ne!(asked(BATCH, "", false), "", "all of it may go");
    assert_eq!(asked(BATCH, "", true), "", "guests");
    assert_ne!(asked(GUESTS, "", true), "", "guests that may go");
    assert_eq!(asked(BATCH, &us, false), "", "the daemon itself");
    assert_eq!(asked(BATCH, "1\n", false), "", "init");
    assert_eq!(
        asked(NESTED, "", false),
        "",
        "the rehearsal of another rule"
    );
}

/// `agewise shrink` may act then.
#[test]
fn a_daemon_that_does_not_act_any_more_leaves_the_ledger_to_others() {
    const SHRINKS: &str = "dry_run = true\n[[act]]\ncgroups = ['/batch']\npolicy = 'shrink'\n\
                           dry_run = false\n";
    let mut world = World::with_frozen();
    let take = |world: &World| {
        let (ledger, _) = Ledger::open(&world.machine.state())?;
        ledger.claim()
    };
    assert!(take(&world).is_err());
    for text in [Text::UpTo("report"), Text::Rehearsal] {
        world.reload(text);
        world.tick();
        // A child that another test has just forked has the lock until it runs a program.
        let began = std::time::Instant::now();
        while let Err(error) = take(&world) {
            assert!(began.elapsed().as_secs() < 10, "{error}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        world.reload(Text::Acts(SHRINKS));
        (0..60).for_each(|_| world.second(true));
        assert!(high(&world, 2) != "max" && take(&world).is_err());
    }
}

#[test]
fn a_budget_that_cannot_be_held_is_said_once() {
    let mut world = World::new();
    let daemon = world.daemon.as_mut().unwrap();
    (0..100).for_each(|_| {
        world.machine.pass(1000);
        daemon.say_not_held("no source");
    });
    let journal = std::fs::read_to_string(world.machine.file("journal")).unwrap();
    assert_eq!(journal.matches("budget: no source").count(), 1);
}
