// SPDX-License-Identifier: Apache-2.0
//! Waiting between two looks.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use agewise_host::agent::Agent;

use crate::signal::Stop;

/// Sleeps until `deadline` or until an end is asked for; true in the latter case. Where somebody
/// else clears accessed bits, the agent glances at them meanwhile.
pub fn until(agent: Option<&mut Agent>, stop: &Stop, deadline: Instant) -> bool {
    let Some(agent) = agent else {
        return stop.wait_until(deadline);
    };
    let period = agent.glance_every();
    let glance = || {
        agent.glance();
        Ok::<(), Infallible>(())
    };
    match glancing(period, stop, deadline, glance) {
        Ok(stopped) => stopped,
        Err(never) => match never {},
    }
}

/// The same for whoever glances without an agent: every `period`, as long as the next one does not fall
/// behind `deadline`.
///
/// # Errors
/// Those of `glance`.
pub fn glancing<E>(
    period: Option<Duration>,
    stop: &Stop,
    deadline: Instant,
    mut glance: impl FnMut() -> Result<(), E>,
) -> Result<bool, E> {
    if let Some(period) = period {
        loop {
            let next = Instant::now() + period;
            if next >= deadline {
                break;
            }
            if stop.wait_until(next) {
                return Ok(true);
            }
            glance()?;
        }
    }
    Ok(stop.wait_until(deadline))
}
