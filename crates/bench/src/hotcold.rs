// SPDX-License-Identifier: Apache-2.0
//! Whether reclaim takes only cold pages: the agent tracks an exerciser with a hot half, its cold
//! memory is moved to a zram device of our own, and every page is checked.

use std::path::Path;
use std::time::{Duration, Instant};

use agewise_host::access::AddressRange;
use agewise_host::agent::{Agent, Subject, Targets};
use agewise_host::mover::{self, PageoutLimits, ProcessMover, RunSet, SourceRecheck};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::swap::{ZramDevice, ZramOptions};
use anyhow::{Context, bail};

use super::PAGE_BYTES;
use super::tally::ratio;
use crate::exercise::spawned::Spawned;
use agewise_cli::observe;
use agewise_cli::signal::Stop;

/// Memory idle for this long is cold.
const OLDER_THAN: Duration = Duration::from_secs(4);
/// Time between two scans.
const INTERVAL: Duration = Duration::from_secs(1);

/// The pages that were taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Share of the cold half that was taken.
    pub cold_ratio: f64,
    /// Share of the hot half that was taken.
    pub hot_ratio: f64,
}

/// Observes an exerciser, reclaims from it and checks the result.
///
/// # Errors
/// No zram here, missing privileges, or the exerciser found a changed page afterwards.
pub fn measure(program: &Path, size_bytes: u64, stop: &Stop) -> anyhow::Result<Taken> {
    let device = ZramDevice::create(&ZramOptions::new(size_bytes.saturating_mul(2)))
        .context("eviction is measured to a zram device")?;
    let size = size_bytes.to_string();
    let arguments = [
        "--size",
        &size,
        "--pattern",
        "hotcold:0.5",
        "--rate",
        "200000",
    ];
    let exerciser = Spawned::start(program, arguments, Some(stop))?;
    let region = *exerciser
        .truth()
        .regions()
        .first()
        .context("the exerciser has no memory")?;
    let subject = Subject::process(&ProcRoot::default(), exerciser.pid())?;
    let config = observe::cold_config(OLDER_THAN, INTERVAL)?;
    let (mut agent, _) = observe::open_agent(Targets::Listed(vec![subject]), config)?;
    age(&mut agent, OLDER_THAN + 2 * INTERVAL, stop)?;
    let process = Process::open_user(&ProcRoot::default(), exerciser.pid())?;
    let mut mover = ProcessMover::open(&process)?;
    let ages = [Some(observe::millis(OLDER_THAN)); 2];
    let cold = mover::find_cold(&mut agent, exerciser.pid(), ages, u64::MAX)?
        .context("the exerciser is gone")?;
    let moved = mover::move_out(
        &mut mover,
        &cold.plan,
        PageoutLimits::default(),
        &mut SourceRecheck::new(agent.source(), cold.target),
        stop.flag(),
        |_| (),
    );
    if let Some(error) = moved.error {
        return Err(error.into());
    }
    let hot_pages = (region.pages as f64 * 0.5).round() as u64;
    let middle = region.address + hot_pages * PAGE_BYTES;
    let end = region.address + region.pages * PAGE_BYTES;
    let part = |start, end| {
        let whole = RunSet::from_runs([AddressRange { start, end }]);
        ratio(moved.evicted.anon.intersect(&whole).bytes(), whole.bytes())
    };
    let taken = Taken {
        cold_ratio: part(middle, end),
        hot_ratio: part(region.address, middle),
    };
    exerciser
        .finish()
        .context("after its cold half was moved out and brought back")?;
    device.remove()?;
    Ok(taken)
}

/// Ticks the agent for `duration`.
pub fn age(agent: &mut Agent, duration: Duration, stop: &Stop) -> anyhow::Result<()> {
    let interval = Duration::from_millis(agent.config().scan_interval_ms());
    let mut next = Instant::now();
    let end = next + duration;
    loop {
        agent.tick()?;
        next += interval;
        if next > end {
            return Ok(());
        }
        if observe::pause_until(Some(&mut *agent), stop, next) {
            bail!("interrupted");
        }
    }
}
