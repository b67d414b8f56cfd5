// SPDX-License-Identifier: Apache-2.0
//! The cost of moving a page out to a zram device of our own. It moves the half of an exerciser
//! that is known to be cold, so nothing is searched and nothing rechecked.

use std::path::Path;

use agewise_host::access::AddressRange;
use agewise_host::mover::{self, NoRecheck, PageoutLimits, PageoutReport, Plan, ProcessMover};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::swap::{ZramDevice, ZramOptions};
use anyhow::{Context, bail};

use super::PAGE_BYTES;
use crate::exercise::spawned::Spawned;
use agewise_cli::signal::Stop;

/// Moves out the cold half of an exerciser of `size_bytes`.
///
/// # Errors
/// No zram here, missing privileges, or the exerciser found a changed page afterwards.
pub fn measure(
    program: &Path,
    size_bytes: u64,
    huge: bool,
    stop: &Stop,
) -> anyhow::Result<PageoutReport> {
    let device = ZramDevice::create(&ZramOptions::new(size_bytes))
        .context("eviction is measured to a zram device")?;
    let size = size_bytes.to_string();
    let mut arguments = vec![
        "--size",
        &size,
        "--pattern",
        "hotcold:0.5",
        "--rate",
        "20000",
    ];
    if huge {
        arguments.push("--thp");
    }
    let exerciser = Spawned::start(program, arguments, Some(stop))?;
    let region = *exerciser
        .truth()
        .regions()
        .first()
        .context("the exerciser has no memory")?;
    let hot = region.pages.div_ceil(2);
    let cold = AddressRange::new(
        region.address + hot * PAGE_BYTES,
        (region.pages - hot) * PAGE_BYTES,
    );
    let plan = if huge {
        Plan::new([], [cold])
    } else {
        Plan::of_base([cold])
    };
    let process = Process::open_user(&ProcRoot::default(), exerciser.pid())?;
    let mut mover = ProcessMover::open(&process)?;
    let moved = mover::move_out(
        &mut mover,
        &plan,
        PageoutLimits::default(),
        &mut NoRecheck,
        stop.flag(),
        |_| (),
    );
    if let Some(error) = moved.error {
        return Err(error.into());
    }
    if stop.requested().is_some() {
        bail!("interrupted");
    }
    exerciser
        .finish()
        .context("after its cold half was moved out and brought back")?;
    device.remove()?;
    Ok(moved.report)
}
