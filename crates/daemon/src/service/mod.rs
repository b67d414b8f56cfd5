// SPDX-License-Identifier: Apache-2.0
//! The daemon as a program: starts, ticks until it must end, and reloads its configuration.

use std::time::{Duration, Instant};

use agewise_host::agent::{Agent, SCAN_INTERVAL_MIN_MS};
use agewise_host::mover::PageoutError;
use agewise_host::root::Roots;
use agewise_host::throttle::{Ledger, Undo};
use anyhow::Context;

use super::config::{Config, ConfigError};
use super::files::{FilesConfig, Shop};
use super::noted::Noted;
use super::options::Options;
use super::outlet::Outlet;
use super::record::Privileges;
use super::state::{Hub, Settings};
use super::{privileges, showcase};
use agewise_cli::observe;
use agewise_cli::signal::{Stop, Woken};

mod act;
mod at_limit;
mod meter;
#[cfg(test)]
mod model;
mod pids;
mod protect;
mod publish;
mod rules;
mod shrink;
mod surroundings;
mod tick;
mod undo;

pub use tick::Daemon;
pub use undo::undo;

use surroundings::Surroundings;
use undo::Found;

/// Memory is returned before pauses of at least this length: that takes a few ms of CPU time. It is
/// less than what a look leaves of the default tick.
const LONG_PAUSE_MS: u64 = 3_000;

/// Initial settings of the report files: the bins of the configuration on every node.
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

/// Whether starting again cannot help: the configuration is invalid, or requests what this machine
/// does not have.
pub fn is_final(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let config = cause.downcast_ref::<ConfigError>();
        let is_config = config.is_some_and(|error| !matches!(error, ConfigError::Slow { .. }));
        let moving = cause.downcast_ref::<PageoutError>();
        is_config || matches!(moving, Some(PageoutError::NoPageAges { .. }))
    })
}

/// Runs until a signal ends it.
///
/// # Errors
/// If it cannot start. Later problems go to the journal, and the daemon continues.
pub fn run(options: &Options) -> anyhow::Result<Option<i32>> {
    if options.demo {
        return showcase::run(options);
    }
    let mut found = Found::at_start(options);
    let config = options.read()?;
    found.undo_named(&config);
    config.check_places(&[])?;
    // Before there is any other thread: capabilities belong to each thread separately.
    let kept = keep_needed(&config)?;
    let stop = Stop::install_for_daemon()?;
    let hub = Hub::new(first_settings(&config));
    found.tell(hub.health());
    let ledger = found.ledger().ok().cloned();
    // Dropped after the files: then nothing is left to undo.
    let _noted = note_files(&config, ledger.as_ref())?;
    let files = match config.files.enabled {
        true => Some(Shop::open(&hub, &files_config(&config), Agent::now_ms)?),
        false => None,
    };
    let mut daemon = Daemon::open(
        config,
        hub.clone(),
        options.dry_run,
        found,
        Surroundings::default(),
    )?;
    report_start(&mut daemon, &kept);
    if let Some(files) = &files {
        daemon.say("files", files.describe());
    }
    let mut shown = Shown {
        outlet: Outlet::apart(ledger),
        files,
    };
    if let Err(error) = shown.outlet.follow(&daemon.config.metrics, &hub) {
        // The journal may be that of a running daemon: record that this one has ended.
        daemon.finish("it could not start");
        return Err(error.into());
    }
    if let Some(place) = shown.outlet.describe() {
        daemon.say("serve", place);
    }
    notify(&[sd_notify::NotifyState::Ready]);
    let mut troubles: Option<String> = None;
    let mut ticks = 0;
    while stop.requested().is_none() {
        hub.take_wake();
        let next_ms = look(&mut daemon, &stop, &mut troubles);
        shown.publish(&mut daemon);
        notify(&[sd_notify::NotifyState::Watchdog]);
        ticks += 1;
        if options.ticks.is_some_and(|most| ticks >= most) {
            break;
        }
        wait(&stop, &mut daemon, &mut shown, next_ms);
        if stop.take_reload() {
            reload(&mut daemon, &mut shown.outlet, options);
        }
    }
    notify(&[sd_notify::NotifyState::Stopping]);
    let signal = stop.requested();
    daemon.finish(match signal {
        Some(_) => "a signal",
        None => "as many ticks as asked for",
    });
    Ok(signal)
}

/// The places where results are shown.
struct Shown {
    outlet: Outlet,
    files: Option<Shop>,
}

impl Shown {
    /// Passes on the results of a tick.
    fn publish(&mut self, daemon: &mut Daemon) {
        let hub = daemon.hub.clone();
        let files = self.files.as_mut();
        let said = [
            self.outlet.publish(&hub),
            files.and_then(|files| files.publish(&hub)),
        ];
        for said in said.into_iter().flatten() {
            daemon.say("serve", said);
        }
    }

    /// Restarts serving processes that have ended.
    fn tend(&mut self, daemon: &mut Daemon) {
        let hub = daemon.hub.clone();
        let files = self.files.as_mut();
        let said = [
            self.outlet.tend(&hub),
            files.and_then(|files| files.tend(&hub)),
        ];
        for said in said.into_iter().flatten() {
            daemon.say("serve", said);
        }
    }
}

/// Makes a tick. Returns when the next one is due; reports a problem only once.
fn look(daemon: &mut Daemon, stop: &Stop, said: &mut Option<String>) -> u64 {
    match daemon.tick(stop.flag()) {
        Ok(next_ms) => {
            *said = None;
            next_ms
        }
        Err(error) => {
            let error = agewise_cli::output::chain(&error);
            if said.as_ref() != Some(&error) {
                daemon.say("trouble", error.clone());
                *said = Some(error);
            }
            Agent::now_ms() + observe::millis(daemon.config.observe.tick.0)
        }
    }
}

/// Drops all privileges but those needed. Returns the names of those kept.
fn keep_needed(config: &Config) -> anyhow::Result<Vec<String>> {
    privileges::drop_others(&needed_besides(config)).context("cannot drop privileges")
}

/// Capabilities that only some configurations need.
fn needed_besides(config: &Config) -> Vec<caps::Capability> {
    let sets = [
        (protect::acts_by_kill(&config.protect), privileges::TO_KILL),
        (
            config.metrics.enabled || config.metrics.otlp.is_some() || config.files.enabled,
            privileges::TO_SERVE,
        ),
    ];
    let needed = sets.into_iter().filter(|(is_needed, _)| *is_needed);
    needed.flat_map(|(_, set)| set).copied().collect()
}

/// Records the mount before it is made.
fn note_files(config: &Config, ledger: Option<&Ledger>) -> anyhow::Result<Option<Noted>> {
    let Some(ledger) = ledger.filter(|_| config.files.enabled) else {
        return Ok(None);
    };
    let dir = std::path::absolute(&config.files.directory)?;
    Ok(Noted::new(ledger, Undo::mount(&dir)))
}

fn files_config(config: &Config) -> FilesConfig {
    FilesConfig {
        dir: config.files.directory.clone(),
        ..FilesConfig::default()
    }
}

/// Returns to the kernel what a look has freed. glibc keeps whatever is below something in use, and
/// with processes that come and go most of it is: 11 MB with 2000 of them.
fn return_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Waits for the next tick. A reader may bring it forward, as far as the budget allows.
fn wait(stop: &Stop, daemon: &mut Daemon, shown: &mut Shown, next_ms: u64) {
    /// How often a waiting daemon answers its watchdog.
    const ALIVE_EVERY: Duration = Duration::from_secs(5);
    if next_ms.saturating_sub(Agent::now_ms()) >= LONG_PAUSE_MS {
        return_memory();
    }
    let mut next_ms = next_ms;
    loop {
        let now_ms = Agent::now_ms();
        if next_ms <= now_ms || stop.requested().is_some() {
            return;
        }
        let watch_ms = daemon.watch_due_ms().unwrap_or(u64::MAX);
        if watch_ms <= now_ms {
            daemon.watch_over();
            continue;
        }
        let left = Duration::from_millis(next_ms.min(watch_ms) - now_ms);
        match stop.wait_for(Instant::now() + left.min(ALIVE_EVERY), daemon.hub.wake_fd()) {
            Woken::Signal | Woken::Gone => return,
            Woken::Readable => {
                daemon.hub.take_wake();
                let earliest_ms = daemon.agent.last_tick_ms() + SCAN_INTERVAL_MIN_MS;
                let affordable_ms = Agent::now_ms() + daemon.pace.debt_ms();
                next_ms = next_ms.min(earliest_ms.max(affordable_ms));
            }
            Woken::Time => {
                notify(&[sd_notify::NotifyState::Watchdog]);
                // The next look may be far away.
                shown.tend(daemon);
            }
        }
    }
}

/// What is known once it has started.
fn report_start(daemon: &mut Daemon, kept: &[String]) {
    daemon.journal.write("privileges", &Privileges { kept });
    report_doubts(daemon);
}

/// Who never runs `config check` finds them in the journal.
fn report_doubts(daemon: &mut Daemon) {
    for doubt in daemon.config.doubts() {
        daemon.say("doubt", doubt);
    }
}

fn reload(daemon: &mut Daemon, outlet: &mut Outlet, options: &Options) {
    notify(&[
        sd_notify::NotifyState::Reloading,
        sd_notify::NotifyState::monotonic_usec_now().unwrap_or(sd_notify::NotifyState::Reloading),
    ]);
    let reloaded = options.read_again().and_then(|config| {
        config.check_places(&[])?;
        let message = match config.files == daemon.config.files {
            true => "the configuration was read again",
            false => "the configuration was read again; [files] takes effect at the next start",
        };
        // If the new address is not available, nothing else changes either.
        outlet.follow(&config.metrics, &daemon.hub)?;
        daemon.reload(config).inspect_err(|_| {
            let _ = outlet.follow(&daemon.config.metrics, &daemon.hub);
        })?;
        Ok(message.to_owned())
    });
    match reloaded {
        Ok(message) => {
            daemon.say("reload", message);
            report_doubts(daemon);
        }
        Err(error) => {
            let error = agewise_cli::output::chain(&error);
            let message = format!("the configuration of before stays: {error}");
            agewise_cli::note!("{message}");
            daemon.reopen_journal();
            daemon.say("reload_failed", message);
        }
    }
    notify(&[sd_notify::NotifyState::Ready]);
}

/// Notifies systemd, if it started the daemon.
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    // It is no failure if nobody listens, and an error does not affect the daemon's work.
    let _ = sd_notify::notify(states);
}
