// SPDX-License-Identifier: Apache-2.0
//! Cases of the rule `shrink`.

use super::*;
use crate::curves;

/// The targets that were left alone for this reason, according to the journal.
fn held_for(world: &World, reason: &str) -> Vec<String> {
    let journal = std::fs::read_to_string(world.machine.file("journal")).unwrap();
    let lines = journal
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let held = lines.filter(|line: &serde_json::Value| line["reason"] == reason);
    held.map(|line| {
        assert_eq!(
            (&line["record"], &line["policy"]),
            (&"hold".into(), &"shrink".into())
        );
        line["target"].as_str().unwrap().to_owned()
    })
    .collect()
}

#[test]
fn a_cgroup_that_holds_the_daemon_is_not_shrunk_and_the_journal_says_why() {
    let mut world = World::new();
    world.adopt(std::process::id(), machine::OWN);
    world.reload(Text::Shrinks);
    (0..3).for_each(|_| world.second(true));
    assert_eq!(held_for(&world, "ourselves"), ["/", "/own"], "each once");
}

/// A rule that limits one cgroup.
const BATCH: &str = "[[act]]\ncgroups = ['/batch']\npolicy = 'shrink'\ndry_run = false\n";

/// Of nested cgroups, the lowest that matches a rule is acted upon.
#[test]
fn a_cgroup_that_holds_another_target_is_not_shrunk() {
    const WITH_JOB: &str = "[[act]]\ncgroups = ['/batch/job']\npolicy = 'age:1s/2s'\n\
                            [[act]]\ncgroups = ['/batch']\npolicy = 'shrink'\ndry_run = false\n";
    let shrunk = |text, spared: &str, observed: &str| {
        let mut world = World::new();
        world.write(text);
        let path = world.machine.file("agewise.toml");
        let config = std::fs::read_to_string(&path).unwrap();
        let observe = format!("[observe]\ncgroups = ['{observed}']");
        let config = config.replace("[observe]\ncgroups = ['/**']", &observe);
        std::fs::write(&path, config.replace("/spared", spared)).unwrap();
        let config = world.options.read().unwrap();
        world.daemon.as_mut().unwrap().reload(config).unwrap();
        (0..60).for_each(|_| world.second(true));
        let is_limited = |name: &usize| {
            let high = world
                .machine
                .value(*name, Fault::High(*name), "memory.high");
            high != "max"
        };
        let limited: Vec<usize> = (0..NAMES.len()).filter(is_limited).collect();
        (limited, held_for(&world, "nested"))
    };
    let (limited, held) = shrunk(Text::Shrinks, "/spared", "/**");
    assert!(limited.contains(&4) && !limited.iter().any(|name| [0, 2, 3].contains(name)));
    assert_eq!(held, ["/batch", "/batch/job", "/web"]);
    let batch = || vec!["/batch".to_owned()];
    assert_eq!(
        shrunk(Text::Acts(BATCH), "/spared", "/**"),
        (vec![2], vec![])
    );
    for observed in ["/**", "/batch"] {
        let (limited, held) = shrunk(Text::Acts(BATCH), "/batch/job/deep", observed);
        assert_eq!((limited, held), (vec![], batch()), "{observed}");
    }
    assert_eq!(
        shrunk(Text::Acts(WITH_JOB), "/spared", "/**"),
        (vec![], batch())
    );
}

/// Looks may be ten minutes apart.
#[test]
fn a_limit_is_removed_at_once_when_swap_is_full() {
    let mut world = World::new();
    world.reload(Text::Acts(BATCH));
    (0..60).for_each(|_| world.second(true));
    assert_ne!(high(&world, 2), "max");
    let path = world.machine.file("proc/meminfo");
    let memory = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, memory.replace("SwapFree: 7000000", "SwapFree: 7")).unwrap();
    world.second(false);
    assert_eq!(high(&world, 2), "max");
    let journal = std::fs::read_to_string(world.machine.file("journal")).unwrap();
    let last: serde_json::Value = serde_json::from_str(journal.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["act"], &last["reason"]),
        (&"unlimit".into(), &"swap_full".into())
    );
}

#[test]
fn an_end_undoes_before_it_writes_what_it_knows() {
    let mut world = World::new();
    world.reload(Text::Acts(BATCH));
    (0..60).for_each(|_| world.second(true));
    assert_ne!(high(&world, 2), "max");
    // Whoever writes to it waits for a reader.
    let fresh = format!("{}.new", std::process::id());
    let fifo = curves::history_path(&world.machine.state(), "/batch").with_extension(fresh);
    std::fs::create_dir_all(fifo.parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let file = world.machine.dir(2).join("memory.high");
    let writes_to = fifo.clone();
    let reader = std::thread::spawn(move || {
        let mut history = std::fs::File::open(writes_to).unwrap();
        let high = std::fs::read_to_string(file).unwrap();
        let bytes = std::io::copy(&mut history, &mut std::io::sink()).unwrap();
        (high, bytes)
    });
    world.daemon.take().unwrap().finish("the test");
    assert!(!fifo.exists(), "nothing was written");
    let (high, bytes) = reader.join().unwrap();
    assert_eq!(high, "max");
    assert!(bytes > 0, "nothing was written");
}
