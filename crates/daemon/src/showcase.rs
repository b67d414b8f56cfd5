// SPDX-License-Identifier: Apache-2.0
//! The daemon on a made-up machine: shows what it serves, without root.

use std::time::{Duration, Instant};

use super::config::{Listen, Metrics};
use super::demo;
use super::options::Options;
use super::outlet::Outlet;
use super::state::{Hub, Snapshot};
use agewise_cli::observe;
use agewise_cli::signal::Stop;
use agewise_cli::units::unix_ms;

/// Looks that are already over at the start, so that the time line is not empty.
const PAST_TICKS: u64 = 240;

/// How much longer each machine of a fleet has been observed than the previous one.
const APART_MS: u64 = 4000;

/// The state of the machine at the look with this number; the machine was started at
/// `first_unix_ms`.
fn look(sequence: u64, tick_ms: u64, first_unix_ms: u64) -> Snapshot {
    let time_ms = sequence.saturating_mul(tick_ms);
    let snapshot = demo::snapshot(sequence, time_ms);
    at(snapshot, first_unix_ms.saturating_add(time_ms))
}

/// Moves what was seen to this time.
fn at(mut snapshot: Snapshot, unix_ms: u64) -> Snapshot {
    snapshot.unix_ms = unix_ms;
    if let Some(files) = &mut snapshot.files {
        files.unix_ms = unix_ms;
    }
    snapshot
}

/// Runs until a signal ends it, or for the requested number of ticks.
///
/// # Errors
/// If the configuration is invalid, or its address is not available.
pub fn run(options: &Options) -> anyhow::Result<Option<i32>> {
    let config = options.read()?;
    let stop = Stop::install()?;
    let tick_ms = observe::millis(config.observe.tick.0);
    if options.hosts > 1 {
        return fleet(options, &config.metrics, tick_ms, &stop);
    }
    let hub = Hub::new(demo::settings());
    let mut metrics = config.metrics;
    metrics.enabled = true;
    let first_unix_ms = unix_ms().saturating_sub(PAST_TICKS * tick_ms);
    hub.keep_timeline();
    for sequence in 1..=PAST_TICKS {
        hub.publish(look(sequence, tick_ms, first_unix_ms));
    }
    let mut outlet = Outlet::default();
    outlet.follow(&metrics, &hub)?;
    if let Some(place) = outlet.describe() {
        agewise_cli::note!("a made-up machine: {place}");
    }
    let mut next = Instant::now();
    for sequence in PAST_TICKS + 1.. {
        if options
            .ticks
            .is_some_and(|most| sequence - PAST_TICKS > most)
        {
            break;
        }
        next += Duration::from_millis(tick_ms);
        if stop.wait_until(next) {
            break;
        }
        hub.publish(look(sequence, tick_ms, first_unix_ms));
        if let Some(said) = outlet.publish(&hub) {
            agewise_cli::note!("{said}");
        }
    }
    Ok(stop.requested())
}

/// Shows many machines, each on its own port.
fn fleet(
    options: &Options,
    metrics: &Metrics,
    tick_ms: u64,
    stop: &Stop,
) -> anyhow::Result<Option<i32>> {
    let Listen::Tcp(first) = &metrics.listen else {
        anyhow::bail!("--hosts takes ports: set metrics.listen to ADDRESS:PORT");
    };
    let mut hosts = Vec::new();
    for host in 0..options.hosts {
        let Some(port) = first.port().checked_add(host) else {
            anyhow::bail!(
                "no {} ports from {} on: choose a lower one",
                options.hosts,
                first.port()
            );
        };
        let address = std::net::SocketAddr::new(first.ip(), port);
        let metrics = Metrics {
            enabled: true,
            listen: Listen::Tcp(address),
            textfile: None,
            otlp: None,
            ..metrics.clone()
        };
        let (hub, mut outlet) = (Hub::new(demo::settings()), Outlet::default());
        outlet.follow(&metrics, &hub)?;
        hosts.push((host, hub, outlet));
    }
    let count = hosts.len();
    agewise_cli::note!("{count} made-up machines: metrics at ports from {first} on");
    let mut next = Instant::now();
    for sequence in 1.. {
        for (host, hub, _) in &hosts {
            // As if each had been started a while after the previous one.
            let started_ms = u64::from(*host) * APART_MS;
            let time_ms = (PAST_TICKS + sequence) * tick_ms + started_ms;
            let snapshot = demo::snapshot_of_host(*host, sequence, time_ms);
            hub.publish(at(snapshot, unix_ms()));
        }
        next += Duration::from_millis(tick_ms);
        if options.ticks.is_some_and(|most| sequence >= most) || stop.wait_until(next) {
            break;
        }
    }
    Ok(stop.requested())
}
