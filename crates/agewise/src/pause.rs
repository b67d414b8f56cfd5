// SPDX-License-Identifier: Apache-2.0
//! Waiting between two ticks of an agent.

use std::time::Instant;

use agewise_host::agent::Agent;

use crate::signal::Stop;

/// Sleeps until `deadline` or until an end is asked for; true in the latter case. Where somebody
/// else clears accessed bits, the agent glances at them meanwhile.
pub fn until(agent: &mut Agent, stop: &Stop, deadline: Instant) -> bool {
    let Some(period) = agent.glance_every() else {
        return stop.wait_until(deadline);
    };
    loop {
        let next = Instant::now() + period;
        if next >= deadline {
            return stop.wait_until(deadline);
        }
        if stop.wait_until(next) {
            return true;
        }
        agent.glance();
    }
}
