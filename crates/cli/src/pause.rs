// SPDX-License-Identifier: Apache-2.0
//! Waiting between two looks.

use std::time::Instant;

use agewise_host::agent::Agent;

use crate::signal::Stop;

/// Sleeps until `deadline` or until an exit is requested; returns true in the latter case. If
/// another program clears accessed bits, the agent reads them meanwhile.
pub fn until(agent: Option<&mut Agent>, stop: &Stop, deadline: Instant) -> bool {
    if let Some(agent) = agent
        && let Some(period) = agent.interim_period()
    {
        loop {
            let next = Instant::now() + period;
            if next >= deadline {
                break;
            }
            if stop.wait_until(next) {
                return true;
            }
            agent.interim_scan();
        }
    }
    stop.wait_until(deadline)
}
