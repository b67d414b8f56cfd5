// SPDX-License-Identifier: Apache-2.0
//! One tick after another: look, publish, decide, act.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agewise_host::agent::{Agent, AgentConfig, PathFilter, SCAN_INTERVAL_MIN_MS, Targets};
use agewise_host::cgroup::{CgroupError, FreshStatistics, Hierarchy, TreeLimits};
use agewise_host::clear::Means;
use agewise_host::container::Containers;
use agewise_host::mover;
use agewise_host::root::ProcRoot;
use agewise_policy::proactive::Controller;
use agewise_policy::sample::Bounds;
use agewise_policy::workingset::Intervals;
use anyhow::Context;

use super::at_limit::AtLimit;
use super::meter::Meter;
use super::pids::{self, BoundPids};
use super::protect;
use super::rules::rule_of;
use super::shrink;
use super::surroundings::Surroundings;
use super::undo::Found;
use crate::actor::Actor;
use crate::ahead::Ahead;
use crate::config::{Config, Matcher};
use crate::curves::AllCurves;
use crate::journal::Journal;
use crate::largest::Lister;
use crate::news::News;
use crate::observer::{self, Key, Seen};
use crate::pace::Pace;
use crate::protect::{Own, Protector};
use crate::record::{Change, Message, Started};
use crate::shrinkers::Shrinkers;
use crate::state::Hub;
use crate::tracked::Tracked;
use crate::world::World;
use agewise_cli::{observe, output};

/// Maximum number of age bounds distinguished for policies, as for a histogram.
const BOUNDS_MAX: usize = agewise_policy::workingset::INTERVALS_MAX;

/// The running daemon.
pub struct Daemon {
    pub(super) config: Config,
    pub(super) matcher: Arc<Matcher>,
    pids: BoundPids,
    pub(super) dry_run: bool,
    pub(super) around: Surroundings,
    pub(super) agent: Agent,
    pub(super) containers: Containers,
    pub(super) hub: Hub,
    pub(super) journal: Journal,
    pub(super) pace: Pace,
    pub(super) world: World,
    pub(super) tracked: Tracked,
    /// Holds targets under a budget, if a rule requires it.
    pub(super) ahead: Option<Ahead>,
    /// Why it cannot, as far as it was written.
    pub(super) not_held: News,
    /// Why the page cache could not be looked at.
    blind: News,
    /// That there are more cgroups than are followed.
    truncated: News,
    pub(super) protector: Option<Protector>,
    pub(super) at_limit: AtLimit,
    /// Holds cgroups as small as possible without harm.
    pub(super) shrinkers: Shrinkers,
    /// The ledger, or why there is none.
    pub(super) found: Found,
    pub(super) curves: AllCurves,
    pub(super) lister: Lister,
    pub(super) meter: Meter,
    pub(super) own: Own,
    /// When the last look ended.
    pub(super) looked_ms: u64,
}

fn targets(
    root: &ProcRoot,
    config: &Config,
    matcher: &Arc<Matcher>,
    pids: &BoundPids,
) -> anyhow::Result<Targets> {
    let hierarchy = match Hierarchy::discover(root) {
        Ok(hierarchy) => Some(hierarchy),
        // Processes can be observed even without cgroups.
        Err(CgroupError::NoMemoryController { .. }) if !pids.is_empty() => None,
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
        pids: pids.values().cloned().collect(),
    })
}

/// The bounds of all policies together; if they are too many, those of the most demanding policy.
fn policy_bounds(config: &Config) -> Option<Intervals> {
    let controllers = config.act.iter().map(|act| Controller::new(&act.policy.0));
    let mut wanted: Vec<Intervals> = controllers
        .filter(|controller| controller.shrinks().is_none())
        .map(|controller| controller.pace().bounds)
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
    // Half of the budget is for clearing, the rest for looking.
    agent.clear_percent = Some(config.observe.cpu_percent.0 / 2.0);
    agent.returned = returned;
    if !moves_pages(config) {
        agent = agent.sampled(Bounds::default());
        if !config.act.is_empty() {
            // The kernel reclaims by its lists, so they must stay as they are.
            agent.clear.means = Means::Refs;
        }
    }
    agent
}

/// Writes the first lines of a journal: the start, what was undone before it, and pids without a
/// process.
fn write_start(journal: &Journal, started: &Started, found: &Found, pids: &BoundPids) {
    journal.write("start", started);
    for message in found.said() {
        let message = message.clone();
        journal.write("undo", &Message { message });
    }
    pids::report_unbound(journal, pids, &BoundPids::new());
}

/// Opens an agent for targets; also returns messages about it. If the page cache cannot be
/// followed, the rest is still useful.
fn open_agent(
    around: &Surroundings,
    targets: Targets,
    config: &Config,
) -> anyhow::Result<(Agent, Option<String>)> {
    let opened = (around.open_agent)(&around.roots, targets, agent_config(config))?;
    let (mut agent, mut note) = opened;
    if config.follows_files()
        && let Err(error) = observe::follow_files(&mut agent)
    {
        let text = format!("files: {}", output::chain(&error));
        note = Some(note.map_or(text.clone(), |note| format!("{note}; {text}")));
    }
    Ok((agent, note))
}

/// Whether a rule acts on single pages.
fn moves_pages(config: &Config) -> bool {
    let mut rules = config.act.iter();
    rules.any(|act| Controller::new(&act.policy.0).shrinks().is_none())
}

impl Daemon {
    /// Opens everything it needs, without looking at memory yet.
    ///
    /// # Errors
    /// If there is no source that distinguishes pages, there are no cgroups, or the journal cannot
    /// be written.
    pub(super) fn open(
        config: Config,
        hub: Hub,
        dry_run: bool,
        found: Found,
        around: Surroundings,
    ) -> anyhow::Result<Self> {
        let matcher = Arc::new(Matcher::new(&config)?);
        let journal = Journal::open(&config.journal, hub.health())
            .with_context(|| journal_failed(&config))?;
        let proc = &around.roots.proc;
        let pids = pids::bind(proc, &matcher, &BoundPids::new());
        let targets = targets(proc, &config, &matcher, &pids)?;
        let (mut agent, note) = open_agent(&around, targets, &config)?;
        if moves_pages(&config) {
            mover::require_page_ages(&mut agent)?;
        }
        let started = Started {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            source: agent.source().name(),
            dry_run,
            rules: config.act.len(),
            note,
        };
        write_start(&journal, &started, &found, &pids);
        let throttle = protect::open_throttle(proc, &config.protect, dry_run, &found)?;
        let protector = Protector::new(&config.protect, proc.clone(), throttle);
        let mut shrinkers = Shrinkers::default();
        let throttle = shrink::open_throttle(proc, &config, dry_run, &found)?;
        shrinkers.equip(throttle, &journal);
        let tick_ms = observe::millis(config.observe.tick.0);
        let pace = Pace::new(config.observe.cpu_percent.0, tick_ms);
        Ok(Daemon {
            matcher,
            pids,
            dry_run,
            agent,
            containers: Containers::new(&around.roots.proc),
            hub,
            journal,
            pace,
            world: World::new(around.roots.clone()),
            around,
            tracked: Tracked::default(),
            ahead: None,
            not_held: News::default(),
            blind: News::default(),
            truncated: News::default(),
            protector,
            at_limit: AtLimit::default(),
            shrinkers,
            curves: AllCurves::new(found.state()),
            found,
            lister: Lister::default(),
            meter: Meter::new(),
            own: Own::new(mover::own_lineage()),
            looked_ms: 0,
            config,
        })
    }

    /// The clock of its surroundings.
    pub(super) fn now_ms(&self) -> u64 {
        (self.around.now_ms)()
    }

    /// Opens the journal again: the file may have been moved away to be archived. If it cannot be
    /// opened, the old one stays.
    pub(super) fn reopen_journal(&self) {
        if let Ok(journal) = Journal::open(&self.config.journal, self.hub.health()) {
            self.journal.replace_by(journal);
        }
    }

    /// Adopts another configuration from the next tick on. What is known about memory is kept.
    ///
    /// # Errors
    /// If something cannot be opened; nothing has changed then.
    pub fn reload(&mut self, config: Config) -> anyhow::Result<()> {
        let matcher = Arc::new(Matcher::new(&config)?);
        let proc = &self.around.roots.proc;
        let pids = pids::bind(proc, &matcher, &self.pids);
        let wanted = targets(proc, &config, &matcher, &pids)?;
        // Also if it is the same: the file may have been moved away to be archived.
        let journal = Journal::open(&config.journal, self.hub.health())
            .with_context(|| journal_failed(&config))?;
        let renewed = agent_config(&config);
        let is_kept = renewed.intervals == self.agent.config().intervals
            && renewed.returned == self.agent.config().returned
            && config.follows_files() == self.config.follows_files();
        // Bounds determine how ages are kept: the old ages do not fit new bounds.
        let (mut agent, note, wanted) = if is_kept {
            (None, None, Some(wanted))
        } else {
            let (agent, note) = open_agent(&self.around, wanted, &config)?;
            (Some(agent), note, None)
        };
        if moves_pages(&config) {
            mover::require_page_ages(agent.as_mut().unwrap_or(&mut self.agent))?;
        }
        let throttle = shrink::open_throttle(proc, &config, self.dry_run, &self.found)?;
        self.renew_protection(&config.protect)?;
        self.shrinkers.equip(throttle, &self.journal);
        self.journal.replace_by(journal);
        if let Some(message) = note {
            self.journal.write("reload", &Message { message });
        }
        pids::report_unbound(&self.journal, &pids, &self.pids);
        self.pids = pids;
        // Before there is another agent, which has not seen anybody yet.
        self.renew_rules(&config.act, &matcher);
        match agent {
            Some(agent) => {
                self.agent = agent;
                self.agent
                    .set_also_young(self.ahead.as_ref().map(Ahead::seen));
            }
            None => self.agent.set_clear(renewed.clear, renewed.clear_percent),
        }
        if let Some(wanted) = wanted {
            self.agent.set_targets(wanted);
        }
        let tick_ms = observe::millis(config.observe.tick.0);
        self.pace
            .set(config.observe.cpu_percent.0, tick_ms, tick_ms);
        self.matcher = matcher;
        self.config = config;
        Ok(())
    }

    /// Writes a message to the journal.
    pub fn say(&mut self, record: &str, message: String) {
        self.journal.write(record, &Message { message });
    }

    /// Looks once, publishes, acts. Returns when to call it again, on the clock of
    /// [`Agent::now_ms`].
    ///
    /// # Errors
    /// If the cgroup hierarchy as a whole cannot be read.
    pub fn tick(&mut self, cancel: &AtomicBool) -> anyhow::Result<u64> {
        let began_ms = self.now_ms();
        self.pace.begin(began_ms);
        self.journal.retry();
        self.meter.begin_look();
        let tick = self.look()?;
        self.say_if_blind();
        self.say_if_truncated(tick.truncated);
        self.looked_ms = self.now_ms();
        let seen = observer::subjects(&self.agent, &mut self.containers);
        self.follow(&seen);
        self.renew_statistics(&seen);
        self.curves.take(&self.agent, &seen);
        self.publish(&seen, &tick, began_ms);
        let cpu_ms = self.meter.end_look(self.acting_cpu());
        let next_ms = self.pace.spent(began_ms, self.now_ms(), cpu_ms);
        self.say_if_short();
        if cancel.load(Ordering::Relaxed) {
            // All is undone next.
            return Ok(next_ms);
        }
        self.protect(&seen, cancel);
        self.act(&seen, cancel);
        self.meter.end_tick(self.acting_cpu());
        Ok(self.next_look_ms(began_ms, next_ms))
    }

    /// CPU time of the threads that hold budgets and keep statistics fresh.
    fn acting_cpu(&self) -> Duration {
        self.ahead.as_ref().map(Ahead::cpu).unwrap_or_default() + FreshStatistics::cpu()
    }

    /// When to look next: policies may want a look before the tick, as far as the budget allows.
    fn next_look_ms(&mut self, began_ms: u64, next_ms: u64) -> u64 {
        let wanted = self
            .tracked
            .actors
            .values()
            .filter_map(Actor::look_ms)
            .min();
        let tick_ms = observe::millis(self.config.observe.tick.0);
        let pace_ms = wanted
            .unwrap_or(tick_ms)
            .clamp(SCAN_INTERVAL_MIN_MS, tick_ms);
        self.agent.set_scan_interval_ms(pace_ms);
        self.pace
            .set(self.config.observe.cpu_percent.0, tick_ms, pace_ms);
        let earliest_ms = self.now_ms() + self.pace.debt_ms();
        next_ms.min((began_ms + pace_ms).max(earliest_ms))
    }

    /// Adds actors for new subjects and drops those that are gone.
    fn follow(&mut self, seen: &[Seen]) {
        let there: HashSet<&Key> = seen.iter().map(|seen| &seen.key).collect();
        for key in self.tracked.retain(&there) {
            let change = Change {
                target: &key.0,
                container: None,
                policy: None,
            };
            self.journal.write("gone", &change);
        }
        let tracked = &mut self.tracked;
        for seen in seen {
            let rule = rule_of(&self.matcher, seen);
            let Some(rule) = rule.filter(|_| !tracked.actors.contains_key(&seen.key)) else {
                continue;
            };
            let act = &self.config.act[rule];
            let mut actor = Actor::new(rule, &act.policy.0, self.dry_run || act.dry_run);
            actor.files = act.files;
            actor.counted = tracked.retired.remove(&seen.key).unwrap_or_default();
            let change = Change {
                target: &seen.key.0,
                container: seen.container.as_ref(),
                policy: Some(actor.reason.name()),
            };
            self.journal.write("follow", &change);
            tracked.actors.insert(seen.key.clone(), actor);
        }
        let names: HashSet<&str> = seen.iter().map(|seen| &*seen.key.0).collect();
        self.hub.forget_reports(|cgroup| names.contains(cgroup));
    }

    /// Says why the page cache could not be looked at: no file memory goes without that.
    fn say_if_blind(&mut self) {
        let now_ms = self.now_ms();
        let Some(trouble) = self.agent.files_trouble() else {
            return;
        };
        if self.blind.is_news(now_ms, trouble) {
            let message = format!("page cache: {trouble}");
            self.say("trouble", message);
        }
    }

    fn say_if_truncated(&mut self, is_truncated: bool) {
        if !is_truncated {
            return;
        }
        let observe = &self.config.observe;
        let message = format!(
            "not all cgroups are followed, so rules do not apply to the others: there are more \
             than observe.cgroups_max = {}, or some deeper than observe.depth_max = {}",
            observe.cgroups_max.0, observe.depth_max.0
        );
        if self.truncated.is_news(self.now_ms(), &message) {
            self.say("trouble", message);
        }
    }

    fn say_if_short(&mut self) {
        if let Some(is_short) = self.pace.short_news(self.now_ms()) {
            let record = if is_short { "short" } else { "on_pace" };
            self.journal.write(record, &self.pace.budget());
        }
    }

    pub fn finish(&mut self, why: &str) {
        // First, because a supervisor may not wait for the rest.
        self.shrinkers.undo_all(&self.journal);
        if let Some(protector) = &mut self.protector {
            protector.undo_all(&self.matcher, &self.journal);
        }
        self.settle();
        self.end_ahead();
        self.curves.finish();
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
