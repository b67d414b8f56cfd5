// SPDX-License-Identifier: Apache-2.0
//! The daemon: tick after tick, within its budget, until told to end.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use agewise_engine::proactive::Action;
use agewise_engine::workingset::Intervals;
use agewise_host::agent::{Agent, AgentConfig, PathFilter, SCAN_INTERVAL_MIN_MS, Targets};
use agewise_host::cgroup::{CgroupError, Hierarchy, TreeLimits};
use agewise_host::root::{ProcRoot, Roots};
use anyhow::Context;

use super::actor::{Actor, Around};
use super::ahead::{Ahead, Held};
use super::config::{Config, Matcher};
use super::files::{Files, FilesConfig};
use super::hand::{Done, Older, PageOut};
use super::journal::{Journal, unix_ms};
use super::observer::{self, Key, LimitHits, Seen};
use super::outlet::Outlet;
use super::pace::Pace;
use super::privileges;
use super::protect::Protector;
use super::record::{Acted, AheadLine, Change, Message, Privileges, Squeezed, Started};
use super::showcase;
use super::state::{Event, Hub, OwnUse, Reason, Reclaimed, Scope, Settings, Snapshot};
use super::world::World;
use crate::command::observe;
use crate::lean;
use crate::signal::{Stop, Woken};

/// Age bounds told apart for policies: as many as a histogram has.
const BOUNDS_MAX: usize = agewise_engine::workingset::INTERVALS_MAX;
/// In one go at most so much is moved: a tick is late by what that takes (0.3 s).
const MOVE_MAX_BYTES: u64 = 64 << 20;

/// How the daemon was started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration; none: the defaults.
    pub config: Option<PathBuf>,
    /// Nothing is moved, whatever the configuration says.
    pub dry_run: bool,
    /// End after this many ticks.
    pub ticks: Option<u64>,
    /// Show a machine that is made up.
    pub demo: bool,
}

impl Options {
    /// Reads the configuration.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub fn read(&self) -> anyhow::Result<Config> {
        Ok(match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        })
    }
}

/// The running daemon.
pub struct Daemon {
    config: Config,
    matcher: Arc<Matcher>,
    dry_run: bool,
    agent: Agent,
    hub: Hub,
    journal: Journal,
    pace: Pace,
    world: World,
    actors: HashMap<Key, Actor>,
    /// Holds targets under a budget, where a rule asks for that.
    ahead: Option<Ahead>,
    protector: Option<Protector>,
    /// What the guilty of thrashing had to give.
    squeezed: HashMap<Key, Reclaimed>,
    refaulted: HashMap<Key, Refaulted>,
    hits: LimitHits,
    own: OwnUse,
    /// Processes never acted upon: ourselves and those we came from.
    own_line: Vec<u32>,
    sequence: u64,
    began: Instant,
    began_cpu: Duration,
    was_short: bool,
}

/// What came back to a subject. Processes take their counts with them when they end.
#[derive(Clone, Copy, Debug, Default)]
struct Refaulted {
    raw_bytes: u64,
    sum_bytes: u64,
}

fn targets(config: &Config, matcher: &Arc<Matcher>) -> anyhow::Result<Targets> {
    let hierarchy = match Hierarchy::discover(&ProcRoot::default()) {
        Ok(hierarchy) => Some(hierarchy),
        // Without cgroups processes can be observed all the same.
        Err(CgroupError::NoMemoryController { .. }) if !matcher.pids().is_empty() => None,
        Err(error) => return Err(error.into()),
    };
    let filter = Arc::clone(matcher);
    Ok(Targets::Matched {
        hierarchy,
        limits: TreeLimits {
            depth_max: usize::try_from(config.observe.depth_max.0).unwrap_or(usize::MAX),
            count_max: usize::try_from(config.observe.cgroups_max.0).unwrap_or(usize::MAX),
        },
        filter: PathFilter::new(move |path| filter.is_observed(path)),
        pids: matcher.pids(),
    })
}

/// The bounds that policies ask for, together; those of the most demanding one if they are too many.
fn policy_bounds(config: &Config) -> Option<Intervals> {
    use agewise_engine::proactive::Controller;
    let mut wanted: Vec<Intervals> = config
        .act
        .iter()
        .map(|act| Controller::new(&act.policy.0).pace().bounds)
        .collect();
    wanted.sort_by_key(|bounds| std::cmp::Reverse(bounds.bounds_ms().len()));
    let mut all: Vec<u64> = Vec::new();
    for bounds in &wanted {
        let mut more = [&all, bounds.bounds_ms()].concat();
        more.sort_unstable();
        more.dedup();
        if more.len() <= BOUNDS_MAX {
            all = more;
        }
    }
    (!wanted.is_empty()).then(|| Intervals::new(all).unwrap_or_default())
}

fn agent_config(config: &Config) -> AgentConfig {
    let returned = policy_bounds(config);
    let mut agent = AgentConfig::new(config.observe.intervals.0.clone());
    agent.scan_interval_ms = Some(observe::millis(config.observe.tick.0));
    // Half of the budget for clearing, the rest for looking.
    agent.clear_percent = Some(config.observe.cpu_percent.0 / 2.0);
    agent.returned = returned;
    agent
}

impl Daemon {
    /// Opens what it needs. Nothing is looked at yet.
    ///
    /// # Errors
    /// No eye that tells pages apart, no cgroups, a journal that cannot be written.
    pub fn open(config: Config, hub: Hub, dry_run: bool) -> anyhow::Result<Self> {
        let matcher = Arc::new(Matcher::new(&config)?);
        let mut journal =
            Journal::open(&config.journal).with_context(|| journal_failed(&config))?;
        let targets = targets(&config, &matcher)?;
        let (mut agent, note) = observe::open_agent(targets, agent_config(&config))?;
        if !config.act.is_empty() {
            lean::require_page_ages(&mut agent)?;
        }
        journal.write(
            "start",
            &Started {
                version: env!("CARGO_PKG_VERSION"),
                pid: std::process::id(),
                eye: agent.eye().name(),
                dry_run,
                rules: config.act.len(),
                note,
            },
        );
        let pace = Pace::new(
            config.observe.cpu_percent.0,
            observe::millis(config.observe.tick.0),
        );
        Ok(Daemon {
            matcher,
            dry_run,
            agent,
            hub,
            journal,
            pace,
            world: World::default(),
            actors: HashMap::new(),
            ahead: None,
            protector: Protector::new(&config.protect),
            squeezed: HashMap::new(),
            refaulted: HashMap::new(),
            hits: LimitHits::default(),
            own: OwnUse::default(),
            own_line: lean::ourselves_and_ancestors(&ProcRoot::default()),
            sequence: 0,
            began: Instant::now(),
            began_cpu: lean::own_cpu(),
            was_short: false,
            config,
        })
    }

    /// Where what it knows can be read.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Follows another configuration from the next tick on. What it knows of memory is kept.
    ///
    /// # Errors
    /// What cannot be opened; then nothing has changed.
    pub fn reload(&mut self, config: Config) -> anyhow::Result<()> {
        let matcher = Arc::new(Matcher::new(&config)?);
        let targets = targets(&config, &matcher)?;
        if config.journal != self.config.journal {
            self.journal =
                Journal::open(&config.journal).with_context(|| journal_failed(&config))?;
        }
        let renewed = agent_config(&config);
        if renewed.intervals != self.agent.config().intervals
            || renewed.returned != self.agent.config().returned
        {
            // Bounds decide how ages are kept: those of before cannot be told by the new ones.
            let (agent, _) = observe::open_agent(targets, renewed)?;
            self.agent = agent;
        } else {
            self.agent.set_targets(targets);
        }
        if config.act != self.config.act {
            self.actors.clear();
        }
        self.pace.set(
            config.observe.cpu_percent.0,
            observe::millis(config.observe.tick.0),
        );
        if config.protect != self.config.protect {
            self.protector = Protector::new(&config.protect);
        }
        self.matcher = matcher;
        self.config = config;
        Ok(())
    }

    /// Says something in the journal.
    pub fn say(&mut self, record: &str, message: String) {
        self.journal.write(record, &Message { message });
    }

    /// Looks once, publishes, acts. Returns when it wants to do so again, on the clock of
    /// [`Agent::now_ms`].
    ///
    /// # Errors
    /// The hierarchy of cgroups as a whole cannot be read.
    pub fn tick(&mut self, cancel: &AtomicBool) -> anyhow::Result<u64> {
        let began_ms = Agent::now_ms();
        self.pace.begin(began_ms);
        let cpu_before = lean::own_cpu();
        let tick = self.agent.tick()?;
        let seen = observer::subjects(&self.agent);
        self.follow(&seen);
        self.publish(&seen, tick.truncated, began_ms, cpu_before);
        let looked_cpu = lean::own_cpu().saturating_sub(cpu_before);
        self.own.scan_cpu_ms = looked_cpu.as_secs_f64() * 1e3;
        self.own.scan_cpu_total_ms += self.own.scan_cpu_ms;
        let next_ms = self
            .pace
            .spent(began_ms, Agent::now_ms(), self.own.scan_cpu_ms);
        self.say_if_short();
        let act_cpu = lean::own_cpu();
        self.protect(&seen, cancel);
        self.act(&seen, cancel);
        self.own.move_cpu_total_ms += lean::own_cpu().saturating_sub(act_cpu).as_secs_f64() * 1e3;
        Ok(self.next_look_ms(began_ms, next_ms))
    }

    /// Policies may want a look sooner than the tick; the budget has the last word.
    fn next_look_ms(&mut self, began_ms: u64, next_ms: u64) -> u64 {
        let wanted = self.actors.values().filter_map(Actor::look_ms).min();
        let tick_ms = observe::millis(self.config.observe.tick.0);
        let pace_ms = wanted
            .unwrap_or(tick_ms)
            .clamp(SCAN_INTERVAL_MIN_MS, tick_ms);
        if pace_ms != self.agent.config().scan_interval_ms() {
            self.agent.set_scan_interval_ms(pace_ms);
            self.pace.set(self.config.observe.cpu_percent.0, pace_ms);
        }
        let earliest_ms = Agent::now_ms() + self.pace.debt_ms();
        next_ms.min((began_ms + pace_ms).max(earliest_ms))
    }

    /// Takes up what is new and lets go of what is gone.
    fn follow(&mut self, seen: &[Seen]) {
        let there: HashSet<&Key> = seen.iter().map(|seen| &seen.key).collect();
        let gone: Vec<Key> = self
            .actors
            .keys()
            .filter(|key| !there.contains(key))
            .cloned()
            .collect();
        for key in gone {
            self.actors.remove(&key);
            let change = Change {
                subject: &key.0,
                policy: None,
            };
            self.journal.write("gone", &change);
        }
        self.hits.retain(|key| there.contains(key));
        self.squeezed.retain(|key, _| there.contains(key));
        self.refaulted.retain(|key, _| there.contains(key));
        for seen in seen {
            let rule = match &seen.cgroup {
                Some(cgroup) => self.matcher.rule(cgroup.path()),
                None => seen
                    .pids
                    .first()
                    .and_then(|pid| self.matcher.rule_of_pid(*pid)),
            };
            let Some(rule) = rule.filter(|_| !self.actors.contains_key(&seen.key)) else {
                continue;
            };
            let act = &self.config.act[rule];
            let actor = Actor::new(rule, &act.policy.0, self.dry_run || act.dry_run);
            let change = Change {
                subject: &seen.key.0,
                policy: Some(actor.reason.name()),
            };
            self.journal.write("follow", &change);
            self.actors.insert(seen.key.clone(), actor);
        }
        let names: HashSet<&str> = seen.iter().map(|seen| &*seen.key.0).collect();
        self.hub.forget_reports(|cgroup| names.contains(cgroup));
    }

    fn publish(&mut self, seen: &[Seen], is_truncated: bool, began_ms: u64, cpu_before: Duration) {
        self.sequence += 1;
        let settings = self.hub.settings();
        let mut subjects = observer::views(
            &self.agent,
            seen,
            &self.actors,
            &self.config.observe.intervals.0,
            &settings,
            &mut self.hits,
        );
        for (view, seen) in subjects.iter_mut().zip(seen) {
            let count = self.refaulted.entry(seen.key.clone()).or_default();
            count.sum_bytes += view.refaulted_bytes.saturating_sub(count.raw_bytes);
            count.raw_bytes = view.refaulted_bytes;
            view.refaulted_bytes = count.sum_bytes;
            if let Some(squeezed) = self.squeezed.get(&seen.key) {
                let bytes = squeezed.bytes(Reason::Thrash);
                view.reclaimed.add(Reason::Thrash, bytes);
            }
        }
        let machine = self.world.machine();
        let cpu = lean::own_cpu();
        self.own.scan_cpu_ms = cpu.saturating_sub(cpu_before).as_secs_f64() * 1e3;
        self.own.scan_ms = Agent::now_ms().saturating_sub(began_ms) as f64;
        self.own.cpu_ms = cpu.saturating_sub(self.began_cpu).as_secs_f64() * 1e3;
        let elapsed_ms = self.began.elapsed().as_secs_f64() * 1e3;
        self.own.cpu_percent = self.own.cpu_ms / elapsed_ms.max(1.0) * 100.0;
        self.own.resident_bytes = own_resident_bytes();
        self.own.ages_bytes = self.agent.memory_bytes() as u64;
        self.own.ticks = self.sequence;
        (self.own.late_ms, self.own.late_max_ms) = self.pace.lateness_ms();
        let pressed: Vec<Scope> = subjects
            .iter()
            .filter(|view| view.is_under_reclaim)
            .flat_map(|view| {
                self.agent.nodes().iter().map(|node| Scope {
                    cgroup: Some(Arc::clone(&view.name)),
                    node: *node,
                })
            })
            .collect();
        let nodes = self.agent.nodes().to_vec();
        let whole: Vec<Scope> = nodes
            .iter()
            .filter(|_| machine.is_under_reclaim)
            .map(|node| Scope {
                cgroup: None,
                node: *node,
            })
            .collect();
        self.hub.publish(Snapshot {
            sequence: self.sequence,
            time_ms: self.agent.last_tick_ms(),
            unix_ms: unix_ms(),
            nodes,
            intervals: self.config.observe.intervals.0.clone(),
            subjects,
            machine,
            own: self.own,
            budget: self.pace.budget(),
            is_truncated,
        });
        for scope in whole.into_iter().chain(pressed) {
            self.hub.tell(Event::Pressure(scope));
        }
    }

    fn say_if_short(&mut self) {
        let budget = self.pace.budget();
        // Not for every tick around the border.
        let is_short = match self.was_short {
            true => budget.actual_ms as f64 > budget.tick_ms as f64 * 0.9,
            false => budget.is_short(),
        };
        if is_short != self.was_short {
            self.was_short = is_short;
            self.journal
                .write(if is_short { "short" } else { "on_pace" }, &budget);
        }
    }

    /// Looks whether a protected cgroup thrashes, and holds back who is to blame.
    fn protect(&mut self, seen: &[Seen], cancel: &AtomicBool) {
        let Some(protector) = &mut self.protector else {
            return;
        };
        let snapshot = self.hub.snapshot();
        let views = &snapshot.subjects;
        let lines = protector.look(Agent::now_ms(), seen, views, &self.matcher, &self.own_line);
        for line in &lines {
            self.journal.write("thrashing", line);
        }
        for (seen, view) in seen.iter().zip(views) {
            let resident = view.resident_bytes();
            let excess = protector.excess_bytes(&seen.key, resident[0].saturating_add(resident[1]));
            if excess == 0 || self.dry_run {
                continue;
            }
            let pids: Vec<u32> = seen
                .pids
                .iter()
                .copied()
                .filter(|pid| !self.own_line.contains(pid))
                .collect();
            let mut hand = PageOut {
                agent: &mut self.agent,
                cancel,
                rehearse: false,
            };
            let done = hand.run(&pids, [Some(0); 2], excess.min(MOVE_MAX_BYTES));
            let line = Squeezed {
                subject: &seen.key.0,
                excess_bytes: excess,
                done: &done,
            };
            self.journal.write("squeeze", &line);
            let count = self.squeezed.entry(seen.key.clone()).or_default();
            count.add(Reason::Thrash, done.left_bytes());
        }
    }

    /// Asks every actor, and does what it says.
    fn act(&mut self, seen: &[Seen], cancel: &AtomicBool) {
        let machine = self.hub.snapshot().machine;
        if self.actors.is_empty() {
            return self.hold(Vec::new());
        }
        let now_ms = Agent::now_ms();
        let around = Around {
            machine,
            backend: self.world.backend(),
            refault_ns: self.world.refault_ns(now_ms),
        };
        let mut held = Vec::new();
        // Of targets below one another the lowest has its processes for itself.
        let mut order: Vec<&Seen> = seen
            .iter()
            .filter(|seen| self.actors.contains_key(&seen.key))
            .collect();
        order.sort_by_key(|seen| std::cmp::Reverse(seen.key.0.matches('/').count()));
        let mut taken: HashSet<u32> = self.own_line.iter().copied().collect();
        for seen in order {
            let pids: Vec<u32> = seen
                .pids
                .iter()
                .copied()
                .filter(|pid| taken.insert(*pid))
                .collect();
            if cancel.load(std::sync::atomic::Ordering::Relaxed) {
                return;
            }
            let actor = &self.actors[&seen.key];
            if actor.wants_heat() {
                held.push(Held {
                    key: seen.key.clone(),
                    cgroup: seen.cgroup.clone(),
                    pids,
                    spec: self.config.act[actor.rule].policy.0.clone(),
                    dry_run: actor.dry_run,
                });
            } else {
                self.act_on(seen, &pids, &around, cancel);
            }
        }
        self.hold(held);
    }

    /// Gives targets under a budget to the thread that holds them, and writes down what it did.
    fn hold(&mut self, held: Vec<Held>) {
        if held.is_empty() {
            // Nobody to hold any more: the thread ends, and its eye closes.
            if self.ahead.take().is_some() {
                self.agent.set_also_young(None);
            }
            return;
        }
        if self.ahead.is_none() {
            let eye = agewise_host::pagewalk::PageWalk::open();
            let started = eye
                .map_err(anyhow::Error::from)
                .and_then(|eye| Ok(Ahead::start(Box::new(eye))?));
            match started {
                Ok(ahead) => {
                    self.agent.set_also_young(Some(ahead.seen()));
                    self.ahead = Some(ahead);
                }
                Err(error) => return self.say("trouble", format!("budget: {error:#}")),
            }
        }
        let Some(ahead) = &self.ahead else { return };
        ahead.hold(held);
        for (key, report) in ahead.take_reports() {
            let Some(actor) = self.actors.get_mut(&key) else {
                continue;
            };
            actor.reclaimed.add(actor.reason, report.left_bytes);
            actor.rehearsed_bytes = actor.rehearsed_bytes.saturating_add(report.rehearsed_bytes);
            self.own.move_cpu_total_ms += report.move_cpu_ns as f64 / 1e6;
            let line = AheadLine {
                phase: "after",
                subject: &key.0,
                policy: actor.reason.name(),
                dry_run: actor.dry_run,
                report: &report,
            };
            self.journal.write("action", &line);
        }
    }

    fn act_on(&mut self, seen: &Seen, pids: &[u32], around: &Around, cancel: &AtomicBool) {
        let (Some(actor), Some(ages)) = (self.actors.get_mut(&seen.key), self.agent.ages(seen.at))
        else {
            return;
        };
        let now_ms = Agent::now_ms();
        let decision = actor.decide(now_ms, seen.cgroup.as_ref(), &ages, around);
        let is_news = actor.is_news(&decision);
        let resident = ages.resident.total();
        let mut line = Acted {
            phase: "before",
            subject: &seen.key.0,
            policy: actor.reason.name(),
            dry_run: actor.dry_run,
            resident_bytes: resident[0].saturating_add(resident[1]),
            swapped_bytes: ages.out_bytes,
            decision: &decision,
            done: None,
        };
        if decision.action == Action::Nothing {
            if is_news {
                self.journal.write("hold", &line);
            }
            return;
        }
        self.journal.write("action", &line);
        let mut hand = PageOut {
            agent: &mut self.agent,
            cancel,
            rehearse: actor.dry_run,
        };
        let sort_first = self.config.act[actor.rule].sort_first;
        let done = match decision.action {
            Action::Nothing => Done::default(),
            Action::PageOut {
                older_than_ms,
                bytes_max,
            } => {
                if sort_first {
                    let half = |age: Option<u64>| age.map(|age| age / 2 + 1);
                    hand.sort(pids, older_than_ms.map(half), bytes_max);
                }
                hand.run(pids, older_than_ms, bytes_max.min(MOVE_MAX_BYTES))
            }
            Action::Coldest { types, bytes_max } => {
                let ages: Older = types.map(|takes| takes.then_some(0));
                hand.run(pids, ages, bytes_max.min(MOVE_MAX_BYTES))
            }
            Action::Sort {
                older_than_ms,
                bytes_max,
            } => hand.sort(pids, older_than_ms, bytes_max),
            Action::Reclaim { bytes, anon } => reclaim(seen, bytes, anon, actor.dry_run),
        };
        actor.done(&decision.action, &done);
        line.phase = "after";
        line.done = Some(&done);
        self.journal.write("action", &line);
    }

    /// Says that it ends.
    pub fn finish(&mut self, why: &str) {
        self.journal.write(
            "stop",
            &Message {
                message: why.to_owned(),
            },
        );
    }
}

fn journal_failed(config: &Config) -> String {
    format!("cannot open the journal {}", config.journal.file.display())
}

/// Lets the kernel reclaim from a cgroup.
fn reclaim(seen: &Seen, bytes: u64, anon: bool, rehearse: bool) -> Done {
    let began_ns = agewise_host::clock::thread_cpu_ns();
    let mut done = Done {
        tried_bytes: bytes,
        ..Done::default()
    };
    let Some(cgroup) = &seen.cgroup else {
        return done;
    };
    if rehearse {
        done.rehearsed_bytes = bytes;
        return done;
    }
    let anon_of = || cgroup.stat().map(|stat| (stat.anon_bytes, stat.file_bytes));
    let before = anon_of();
    match cgroup.reclaim(bytes, anon) {
        Ok(_) => {
            if let (Ok(before), Ok(after)) = (before, anon_of()) {
                done.left_anon_bytes = before.0.saturating_sub(after.0);
                done.left_file_bytes = before.1.saturating_sub(after.1);
            }
        }
        Err(error) => done.troubles.push(error.to_string()),
    }
    done.cpu_ns = agewise_host::clock::thread_cpu_ns().saturating_sub(began_ns);
    done
}

fn own_resident_bytes() -> u64 {
    agewise_host::process::Process::open_in(&Roots::default().proc, std::process::id())
        .and_then(|own| own.rss_bytes())
        .unwrap_or(0)
}

/// Settings with which the report files begin: the bins of the configuration on every node.
pub fn first_settings(config: &Config) -> Settings {
    let nodes = agewise_host::memory::online_nodes(&Roots::default().sys).unwrap_or_default();
    let nodes = if nodes.is_empty() { vec![0] } else { nodes };
    Settings {
        intervals: nodes
            .into_iter()
            .map(|node| (node, config.observe.intervals.0.clone()))
            .collect(),
        ..Settings::default()
    }
}

/// Runs until a signal says to end.
///
/// # Errors
/// What keeps it from starting. Later troubles are told in the journal, and it goes on.
pub fn run(options: &Options) -> anyhow::Result<Option<i32>> {
    if options.demo {
        return showcase::run(options);
    }
    let config = options.read()?;
    // Before there is any other thread: capabilities belong to each by itself.
    let kept = privileges::drop_others().context("cannot drop privileges")?;
    let stop = Stop::install_for_daemon()?;
    let hub = Hub::new(first_settings(&config));
    let files = match config.files.enabled {
        true => Some(Files::start(&hub, &files_config(&config), Agent::now_ms)?),
        false => None,
    };
    let mut daemon = Daemon::open(config, hub.clone(), options.dry_run)?;
    daemon
        .journal
        .write("privileges", &Privileges { kept: &kept });
    if let Some(files) = &files {
        daemon.say("files", files.describe());
    }
    let mut outlet = Outlet::default();
    outlet.follow(&daemon.config.metrics, &hub)?;
    if let Some(place) = outlet.describe() {
        daemon.say("serve", place);
    }
    notify(&[sd_notify::NotifyState::Ready]);
    let mut troubles: Option<String> = None;
    let mut ticks = 0;
    while stop.requested().is_none() {
        if stop.take_reload() {
            reload(&mut daemon, &mut outlet, options);
        }
        hub.take_wake();
        let next_ms = match daemon.tick(stop.flag()) {
            Ok(next_ms) => {
                troubles = None;
                next_ms
            }
            Err(error) => {
                let error = format!("{error:#}");
                if troubles.as_ref() != Some(&error) {
                    daemon.say("trouble", error.clone());
                    troubles = Some(error);
                }
                Agent::now_ms() + observe::millis(daemon.config.observe.tick.0)
            }
        };
        notify(&[sd_notify::NotifyState::Watchdog]);
        ticks += 1;
        if options.ticks.is_some_and(|most| ticks >= most) {
            break;
        }
        wait(&stop, &daemon, next_ms);
    }
    notify(&[sd_notify::NotifyState::Stopping]);
    let signal = stop.requested();
    daemon.finish(match signal {
        Some(_) => "a signal",
        None => "as many ticks as asked for",
    });
    Ok(signal)
}

fn files_config(config: &Config) -> FilesConfig {
    FilesConfig {
        dir: config.files.directory.clone(),
        ..FilesConfig::default()
    }
}

/// Waits for the next tick. A reader may bring it forward, but not beyond the budget.
fn wait(stop: &Stop, daemon: &Daemon, next_ms: u64) {
    /// A sleeping daemon answers its watchdog.
    const ALIVE_EVERY: Duration = Duration::from_secs(5);
    let mut next_ms = next_ms;
    loop {
        let left = Duration::from_millis(next_ms.saturating_sub(Agent::now_ms()));
        if left.is_zero() {
            return;
        }
        match stop.wait_for(Instant::now() + left.min(ALIVE_EVERY), daemon.hub.wake_fd()) {
            Woken::Signal => return,
            Woken::Readable => {
                daemon.hub.take_wake();
                let earliest_ms = daemon.agent.last_tick_ms() + SCAN_INTERVAL_MIN_MS;
                let affordable_ms = Agent::now_ms() + daemon.pace.debt_ms();
                next_ms = next_ms.min(earliest_ms.max(affordable_ms));
            }
            Woken::Time => notify(&[sd_notify::NotifyState::Watchdog]),
        }
    }
}

fn reload(daemon: &mut Daemon, outlet: &mut Outlet, options: &Options) {
    notify(&[
        sd_notify::NotifyState::Reloading,
        sd_notify::NotifyState::monotonic_usec_now().unwrap_or(sd_notify::NotifyState::Reloading),
    ]);
    let reloaded = options.read().and_then(|config| {
        // An address that cannot be had changes nothing else either.
        outlet.follow(&config.metrics, &daemon.hub)?;
        daemon.reload(config).inspect_err(|_| {
            let _ = outlet.follow(&daemon.config.metrics, &daemon.hub);
        })
    });
    let told = match reloaded {
        Ok(()) => ("reload", "the configuration was read again".to_owned()),
        Err(error) => (
            "reload_failed",
            format!("the configuration of before stays: {error:#}"),
        ),
    };
    if told.0 == "reload_failed" {
        eprintln!("agewise: {}", told.1);
    }
    daemon.say(told.0, told.1);
    notify(&[sd_notify::NotifyState::Ready]);
}

/// Tells systemd, if it started us.
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    // Nobody listening is no failure, and a listener that fails changes nothing of our work.
    let _ = sd_notify::notify(states);
}
