// SPDX-License-Identifier: Apache-2.0
//! Converts the results of a tick to the snapshot that readers see.

use std::sync::Arc;
use std::time::Duration;

use agewise_cli::units::unix_ms;
use agewise_host::agent::TickReport;
use agewise_host::clock;
use agewise_host::root::Roots;

use super::Daemon;
use crate::observer::{self, Seen};
use crate::state::{Event, LargestFiles, Reason, Scope, Snapshot, SubjectView};

impl Daemon {
    pub(super) fn publish(
        &mut self,
        seen: &[Seen],
        tick: &TickReport,
        began_ms: u64,
        cpu_before: Duration,
    ) {
        self.sequence += 1;
        let settings = self.hub.settings();
        let mut subjects = observer::views(
            &self.agent,
            seen,
            &self.actors,
            &self.retired,
            &self.config.observe.intervals.0,
            &settings,
            &mut self.hits,
        );
        self.complete(&mut subjects, seen);
        let machine = self.world.machine();
        let files = self.largest_files();
        self.count_own(began_ms, cpu_before);
        let of_cgroups: Vec<Scope> = subjects
            .iter()
            .filter(|view| view.is_under_reclaim)
            .flat_map(|view| {
                self.agent.nodes().iter().map(|node| Scope {
                    cgroup: Some(Arc::clone(&view.name)),
                    node: *node,
                })
            })
            .collect();
        let nodes = self.agent.nodes().to_vec();
        let of_machine: Vec<Scope> = nodes
            .iter()
            .filter(|_| machine.is_under_reclaim)
            .map(|node| Scope {
                cgroup: None,
                node: *node,
            })
            .collect();
        self.hub.publish(Snapshot {
            sequence: self.sequence,
            time_ms: self.agent.last_tick_ms(),
            unix_ms: unix_ms(),
            nodes,
            intervals: self.config.observe.intervals.0.clone(),
            subjects,
            machine,
            files,
            own: self.own,
            budget: self.pace.budget(),
            is_truncated: tick.truncated,
            unseen_processes: tick.failed,
            unseen_cgroups: tick.unseen_cgroups,
        });
        let scopes: Arc<[Scope]> = of_machine.into_iter().chain(of_cgroups).collect();
        if !scopes.is_empty() {
            self.hub.tell(Event::Pressure(scopes));
        }
    }
}

impl Daemon {
    /// Brings what the daemon itself uses up to date.
    fn count_own(&mut self, began_ms: u64, cpu_before: Duration) {
        let cpu = clock::process_cpu();
        self.own.scan_cpu_ms = cpu.saturating_sub(cpu_before).as_secs_f64() * 1e3;
        self.own.scan_ms = self.now_ms().saturating_sub(began_ms) as f64;
        self.own.cpu_ms = cpu.saturating_sub(self.began_cpu).as_secs_f64() * 1e3;
        let elapsed_ms = self.began.elapsed().as_secs_f64() * 1e3;
        self.own.cpu_percent = self.own.cpu_ms / elapsed_ms.max(1.0) * 100.0;
        self.own.resident_bytes = own_resident_bytes();
        self.own.ages_bytes = self.agent.memory_bytes() as u64;
        self.own.ticks = self.sequence;
        self.own.journal_lost_lines = self.journal.lost_lines();
        (self.own.late_ms, self.own.late_max_ms) = self.pace.lateness_ms();
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
            let count = self.refaulted.entry(seen.key.clone()).or_default();
            count.sum_bytes += view.refaulted_bytes.saturating_sub(count.raw_bytes);
            count.raw_bytes = view.refaulted_bytes;
            view.refaulted_bytes = count.sum_bytes;
            view.less = self.curves.of(&seen.key);
            view.shrink_limit_bytes = self.shrinkers.limit_bytes(&seen.key);
            if let Some(squeezed) = self.squeezed.get(&seen.key) {
                let bytes = squeezed.bytes(Reason::THRASH);
                view.reclaimed.add(Reason::THRASH, bytes);
            }
        }
    }
}

fn own_resident_bytes() -> u64 {
    agewise_host::process::Process::open_in(&Roots::default().proc, std::process::id())
        .and_then(|own| own.rss_bytes())
        .unwrap_or(0)
}
