// SPDX-License-Identifier: Apache-2.0
//! Converts the results of a tick to the snapshot that readers see.

use std::sync::Arc;

use agewise_cli::units::unix_ms;
use agewise_host::agent::TickReport;

use super::Daemon;
use crate::observer::{self, Seen};
use crate::state::{Event, LargestFiles, Scope, Snapshot, SubjectView};

impl Daemon {
    pub(super) fn publish(&mut self, seen: &[Seen], tick: &TickReport, began_ms: u64) {
        self.meter.own.ticks += 1;
        let settings = self.hub.settings();
        let mut subjects = observer::views(
            &self.agent,
            seen,
            &self.config.observe.intervals.0,
            &settings,
            &mut self.tracked,
        );
        self.complete(&mut subjects, seen);
        let machine = self.world.machine();
        let files = self.largest_files();
        self.count_own(began_ms);
        let nodes = self.agent.nodes().to_vec();
        let pressed = pressed(&nodes, machine.is_under_reclaim, &subjects);
        self.hub.publish(Snapshot {
            sequence: self.meter.own.ticks,
            time_ms: self.agent.last_tick_ms(),
            unix_ms: unix_ms(),
            nodes,
            intervals: self.config.observe.intervals.0.clone(),
            subjects,
            machine,
            files,
            own: self.meter.own,
            budget: self.pace.budget(),
            is_truncated: tick.truncated,
            unseen_processes: tick.failed,
            unseen_cgroups: tick.unseen_cgroups,
        });
        if !pressed.is_empty() {
            self.hub.tell(Event::Pressure(pressed));
        }
    }

    /// Brings what the daemon itself uses up to date.
    fn count_own(&mut self, began_ms: u64) {
        self.meter.count();
        let now_ms = self.now_ms();
        let own = &mut self.meter.own;
        own.scan_ms = now_ms.saturating_sub(began_ms) as f64;
        own.ages_bytes = self.agent.memory_bytes() as u64;
        own.cache_lost_looks = self.agent.cost().cache_lost_looks;
        own.journal_lost_lines = self.journal.lost_lines();
        own.late_ms = self.pace.late_ms();
        own.late_max_ms = self.pace.late_max_ms();
    }

    /// The largest files, if anybody can see them.
    fn largest_files(&mut self) -> Option<LargestFiles> {
        let now_ms = self.now_ms();
        let is_served = self.config.metrics.enabled;
        is_served.then(|| self.lister.files(&mut self.agent, now_ms))?
    }

    /// Adds what the daemon knows about subjects and its agent does not.
    fn complete(&mut self, subjects: &mut [SubjectView], seen: &[Seen]) {
        for (view, seen) in subjects.iter_mut().zip(seen) {
            view.less = self.curves.of(&seen.key);
            view.shrink_limit_bytes = self.shrinkers.limit_bytes(&seen.key);
        }
    }
}

/// The nodes of the machine, if it is under reclaim, and of the cgroups that are.
fn pressed(nodes: &[u32], is_machine: bool, subjects: &[SubjectView]) -> Arc<[Scope]> {
    let cgroups = subjects.iter().filter(|view| view.is_under_reclaim);
    let cgroups = cgroups.map(|view| Some(Arc::clone(&view.name)));
    let scopes = is_machine.then_some(None).into_iter().chain(cgroups);
    scopes
        .flat_map(|cgroup| {
            nodes.iter().map(move |node| Scope {
                cgroup: cgroup.clone(),
                node: *node,
            })
        })
        .collect()
}
