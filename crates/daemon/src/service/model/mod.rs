// SPDX-License-Identifier: Apache-2.0
//! The daemon compared with a simple model: whatever happens to it and around it, in any order,
//! what it did to others is recorded, allowed, and undone.
//!
//! `make model SEEDS=100 STEPS=10000` runs it for longer than `make test` does.

mod cases;
mod checks;
mod machine;
mod shrinking;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config as Runs, RngAlgorithm, TestRng, TestRunner};

use super::surroundings::Surroundings;
use super::undo::{Found, undo};
use super::{Daemon, first_settings};
use crate::options::Options;
use crate::state::Hub;
use agewise_policy::whatif::{Curves, Estimate};
use machine::{FULL_BYTES, Fault, Machine, NAMES};

/// How long a culprit is frozen.
const FREEZE_MS: u64 = 3000;

/// A configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    UpTo(&'static str),
    /// Acts, but cannot record it.
    NoJournal,
    Rehearsal,
    /// Also moves memory by rules.
    Rules,
    /// Also holds cgroups as small as possible without harm.
    Shrinks,
    /// Has these rules as well.
    Acts(&'static str),
    Broken,
    Missing,
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Step {
    Make(usize),
    Remove(usize),
    Fork(usize),
    Exec(usize),
    LoseLeader(usize),
    Exit(usize),
    Migrate(usize, usize),
    /// Others set a limit, but never one that the daemon sets: the two could not be distinguished.
    Limit(usize, u64),
    /// Others freeze or thaw a cgroup.
    Freeze(usize, bool),
    /// `/web` suffers for this many seconds because another cgroup takes its memory.
    Hurt(usize, u64),
    /// No cgroup suffers for this many seconds.
    Rest(u64),
    /// The clock jumps.
    Jump(u64),
    Tick,
    Break(Fault),
    Mend,
    /// The daemon is killed and started again.
    Crash(Text),
    /// The daemon ends and is started again.
    End(Text),
    Reload(Text),
    /// `daemon --undo` while the daemon runs.
    Undo,
}

fn texts() -> impl Strategy<Value = Text> {
    prop_oneof![
        6 => Just(Text::UpTo("freeze")),
        2 => Just(Text::UpTo("squeeze")),
        1 => Just(Text::UpTo("report")),
        1 => Just(Text::NoJournal),
        1 => Just(Text::Rehearsal),
        2 => Just(Text::Rules),
        4 => Just(Text::Shrinks),
        2 => Just(Text::Broken),
        1 => Just(Text::Missing),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    let process = 0..32usize;
    let fault = (0..5u8, name.clone()).prop_map(|(kind, name)| match kind {
        0 => Fault::High(name),
        1 => Fault::Freeze(name),
        2 => Fault::Stat(name),
        3 => Fault::Procs(name),
        _ => Fault::Ledger,
    });
    prop_oneof![
        8 => name.clone().prop_map(Step::Make),
        2 => name.clone().prop_map(Step::Remove),
        6 => name.clone().prop_map(Step::Fork),
        2 => process.clone().prop_map(Step::Exec),
        2 => process.clone().prop_map(Step::LoseLeader),
        3 => process.clone().prop_map(Step::Exit),
        2 => (process, name.clone()).prop_map(|(process, name)| Step::Migrate(process, name)),
        2 => (name.clone(), 1..2000u64).prop_map(|(name, mib)| Step::Limit(name, mib)),
        1 => (name.clone(), any::<bool>()).prop_map(|(name, on)| Step::Freeze(name, on)),
        12 => (name, 1..20u64).prop_map(|(name, seconds)| Step::Hurt(name, seconds)),
        4 => (1..90u64).prop_map(Step::Rest),
        1 => (0..100_000_000u64).prop_map(Step::Jump),
        6 => Just(Step::Tick),
        2 => fault.prop_map(Step::Break),
        2 => Just(Step::Mend),
        2 => texts().prop_map(Step::Crash),
        1 => texts().prop_map(Step::End),
        2 => texts().prop_map(Step::Reload),
        1 => Just(Step::Undo),
    ]
}

/// How often cgroups were squeezed, frozen, and limited by a rule.
type Acts = [usize; 3];

/// The daemon, the machine, and what is known about both.
struct World {
    machine: Machine,
    daemon: Option<Daemon>,
    options: Options,
    /// The current configuration.
    text: Text,
    cancel: AtomicBool,
    /// Cgroups that the daemon has frozen, and since when.
    frozen_since_ms: BTreeMap<usize, u64>,
    /// Cgroups that were held back before this step.
    held: checks::Held,
    acts: Acts,
}

impl World {
    fn new() -> Self {
        let mut machine = Machine::new();
        (0..NAMES.len()).for_each(|name| machine.make(name));
        let options = Options {
            config: Some(machine.file("agewise.toml")),
            state: Some(machine.state()),
            ..Options::default()
        };
        let mut world = World {
            machine,
            daemon: None,
            options,
            text: Text::Missing,
            cancel: AtomicBool::new(false),
            frozen_since_ms: BTreeMap::new(),
            held: checks::Held::default(),
            acts: Acts::default(),
        };
        world.start(Text::UpTo("freeze"));
        world
    }

    /// One in which cgroup 2 has just been frozen.
    fn with_frozen() -> Self {
        let mut world = World::new();
        for _ in 0..60 {
            if world.frozen_since_ms.contains_key(&2) {
                return world;
            }
            world.hurt(2, 1);
        }
        panic!("nothing was frozen");
    }

    fn write(&self, text: Text) {
        let path = self.machine.file("agewise.toml");
        let journal = match text {
            Text::NoJournal => "/dev/full".into(),
            _ => self.machine.file("journal"),
        };
        let up_to = match text {
            Text::UpTo(up_to) => up_to,
            _ => "freeze",
        };
        let more = match text {
            Text::Acts(rules) => rules,
            Text::Broken => "oops = [",
            Text::Rehearsal => "dry_run = true\n",
            Text::Rules => "[[act]]\ncgroups = ['/other']\npolicy = 'age:1s/2s'\ndry_run = false\n",
            Text::Shrinks => "[[act]]\ncgroups = ['/**']\npolicy = 'shrink'\ndry_run = false\n",
            _ => "",
        };
        let config = format!(
            "[observe]\ncgroups = ['/**']\ntick = '1s'\n[journal]\nfile = '{}'\n\
             size_max = '64K'\nkeep = 1\n[protect]\ncgroups = ['/web']\nspare = ['/spared']\n\
             up_to = '{up_to}'\nfreeze = '{FREEZE_MS}ms'\n{more}",
            journal.display()
        );
        let _ = std::fs::remove_file(&path);
        if text != Text::Missing {
            std::fs::write(path, config).unwrap();
        }
    }

    /// Starts like the program: undoes, reads its configuration, begins.
    fn start(&mut self, text: Text) {
        self.write(text);
        let mut found = Found::at_start(&self.options);
        let Ok(config) = self.options.read() else {
            self.daemon = None;
            return;
        };
        found.undo_named(&config);
        self.text = text;
        let hub = Hub::new(first_settings(&config));
        let around = Surroundings {
            roots: self.machine.roots(),
            now_ms: machine::now_ms,
            open_agent: machine::open_agent,
        };
        self.daemon = Daemon::open(config, hub, false, found, around).ok();
    }

    /// Reloads as on SIGHUP, however long reading takes.
    fn reload(&mut self, text: Text) {
        self.write(text);
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        let config = daemon.config.clone();
        match self.options.read() {
            Ok(fresh) => match daemon.reload(fresh) {
                Ok(()) => self.text = text,
                Err(_) => assert_eq!(daemon.config, config, "half a reload"),
            },
            Err(_) => assert_eq!(daemon.config, config),
        }
    }

    /// Kills the daemon: its memory is lost, and it undoes nothing.
    fn crash(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            if let Ok(ledger) = daemon.found.ledger() {
                ledger.abandon();
            }
            drop(daemon);
        }
    }

    /// Lets a process that exists be in a cgroup, with memory of this machine.
    fn adopt(&mut self, pid: u32, name: usize) {
        let task = self.machine.file(&format!("proc/{pid}/task/{pid}"));
        std::fs::create_dir_all(task).unwrap();
        self.machine.exec(pid);
        self.machine.migrate(pid, name);
    }

    fn process(&self, number: usize) -> Option<u32> {
        let pids: Vec<u32> = self.machine.processes.keys().copied().collect();
        (!pids.is_empty()).then(|| pids[number % pids.len()])
    }

    /// One second passes, with everything the daemon does in it.
    fn second(&mut self, tick: bool) {
        self.machine.pass(1000);
        let is_due = |at_ms: u64| at_ms <= machine::now_ms();
        match &mut self.daemon {
            Some(daemon) if daemon.watch_due_ms().is_some_and(is_due) => daemon.watch_over(),
            _ => {}
        }
        if tick {
            self.tick();
        }
        (0..NAMES.len()).for_each(|name| self.machine.reclaim(name));
    }

    fn tick(&mut self) {
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        daemon
            .tick(&self.cancel)
            .expect("the hierarchy can be read");
        // Real curves take a quarter of an hour of looks; these say that half the memory would be
        // enough.
        daemon.curves.plant(|| {
            Curves::of_anon(FULL_BYTES, 900_000, |percent| {
                Estimate::exact(f64::from(50u16.saturating_sub(percent)) * 1000.0)
            })
        });
    }

    /// What a second does to the counters while `/web` suffers because of another cgroup.
    fn thrash(&mut self, hog: usize) {
        for (name, group) in &mut self.machine.groups {
            match name {
                0 => {
                    group.refaults += 4000;
                    group.stalled_us += 500_000;
                }
                _ if *name == hog => group.used_bytes += 64 << 20,
                _ => {}
            }
        }
        self.machine.count(0);
        self.machine.count(hog);
    }

    fn hurt(&mut self, hog: usize, seconds: u64) {
        for second in 0..seconds {
            self.thrash(hog);
            self.second(second % 5 == 0);
            self.check();
            self.check_given_back(0, second);
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Make(name) => self.machine.make(name),
            Step::Remove(name) => self.machine.remove(name),
            Step::Fork(name) => self.machine.fork(name),
            Step::Migrate(number, name) => {
                if let Some(pid) = self.process(number) {
                    self.machine.migrate(pid, name);
                }
            }
            Step::Exec(number) | Step::LoseLeader(number) | Step::Exit(number) => {
                let Some(pid) = self.process(number) else {
                    return;
                };
                match step {
                    Step::Exec(_) => self.machine.exec(pid),
                    Step::LoseLeader(_) => self.machine.lose_leader(pid),
                    _ => self.machine.exit(pid),
                }
            }
            Step::Limit(name, mib) => self.machine.limit(name, &((mib << 20) + 1).to_string()),
            Step::Freeze(name, on) => self.machine.freeze(name, on),
            Step::Hurt(hog, seconds) => self.hurt(hog, seconds),
            Step::Rest(seconds) => {
                for _ in 0..seconds {
                    self.second(true);
                    self.check();
                }
                self.check_calm(seconds);
            }
            Step::Jump(ms) => {
                self.machine.pass(ms);
                self.second(false);
            }
            Step::Tick => {
                self.second(true);
                self.check_bounds();
            }
            Step::Break(fault) => self.machine.break_file(fault),
            Step::Mend => self.machine.mend(),
            Step::Crash(text) => {
                self.crash();
                self.start(text);
                self.check_undone();
            }
            Step::End(text) => {
                if let Some(mut daemon) = self.daemon.take() {
                    daemon.finish("the test");
                    self.check_undone();
                }
                self.start(text);
            }
            Step::Reload(text) => {
                self.reload(text);
                // A tick follows immediately, as in the service.
                self.tick();
            }
            Step::Undo => {
                undo(&self.options);
            }
        }
        self.check();
    }
}

/// Runs a sequence, starting with an empty world.
fn play(steps: &[Step]) -> Acts {
    let mut world = World::new();
    steps.iter().for_each(|step| world.run(step));
    world.machine.mend();
    world.crash();
    world.start(Text::Missing);
    world.check_undone();
    world.acts
}

/// Like [`play`]; an error says why it failed.
fn try_play(steps: &[Step]) -> Result<Acts, String> {
    std::panic::catch_unwind(AssertUnwindSafe(|| play(steps))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        text.unwrap_or("a panic without words").to_owned()
    })
}

/// Reduces a failing sequence until every remaining step is needed for the same failure: delta
/// debugging, which removes halves, then quarters, and so on down to single steps.
fn shrink(mut steps: Vec<Step>, why: &str) -> Vec<Step> {
    let mut pieces = 2;
    while pieces <= steps.len() {
        let size = steps.len().div_ceil(pieces);
        let without = |at: usize| {
            let end = (at + size).min(steps.len());
            [&steps[..at], &steps[end..]].concat()
        };
        let mut smaller = (0..steps.len()).step_by(size).map(without);
        match smaller.find(|steps| try_play(steps).is_err_and(|other| other == why)) {
            Some(smaller) => {
                steps = smaller;
                pieces = (pieces - 1).max(2);
            }
            None if size == 1 => break,
            None => pieces = (2 * pieces).min(steps.len()),
        }
    }
    steps
}

/// Runs sequences of this many steps, and shrinks one that fails.
fn run(seed: u64, sequences: usize, length: usize) -> Acts {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Runs::default(), rng);
    let strategy = prop::collection::vec(steps(), length);
    let mut acts = Acts::default();
    for _ in 0..sequences {
        let sequence = strategy.new_tree(&mut runner).expect("steps").current();
        match try_play(&sequence) {
            Ok(more) => acts = std::array::from_fn(|act| acts[act] + more[act]),
            Err(why) => {
                let steps = shrink(sequence, &why);
                panic!("seed {seed}: {why}; as short as it gets: {steps:?}");
            }
        }
    }
    acts
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => default,
    }
}

#[test]
fn whatever_happens_is_noted_allowed_and_undone() {
    let [squeezed, frozen, limited] = run(1, 16, 60);
    assert!(
        squeezed > 20 && frozen > 5 && limited > 5,
        "{squeezed} squeezed, {frozen} frozen, {limited} limited: nothing was tried"
    );
}

/// Runs `SEEDS` sequences of `STEPS` steps each, starting with the seed `FIRST`.
#[test]
#[ignore = "takes minutes: make model"]
fn whatever_happens_for_long() {
    let first = number("FIRST", 1);
    for seed in first..first + number("SEEDS", 100) {
        let [squeezed, frozen, limited] = run(seed, 1, number("STEPS", 10_000) as usize);
        println!("seed {seed}: clean; {squeezed} squeezed, {frozen} frozen, {limited} limited");
    }
}

fn high(world: &World, name: usize) -> String {
    world.machine.value(name, Fault::High(name), "memory.high")
}
