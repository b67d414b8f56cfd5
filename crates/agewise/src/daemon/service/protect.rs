// SPDX-License-Identifier: Apache-2.0
//! Holding back who makes a protected cgroup thrash.

use std::sync::atomic::AtomicBool;

use agewise_host::agent::Agent;

use super::Daemon;
use super::act::MOVE_MAX_BYTES;
use crate::daemon::hand::PageOut;
use crate::daemon::observer::Seen;
use crate::daemon::record::Squeezed;
use crate::daemon::state::Reason;

impl Daemon {
    /// Looks whether a protected cgroup thrashes, and holds back who is to blame.
    pub(super) fn protect(&mut self, seen: &[Seen], cancel: &AtomicBool) {
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
}
