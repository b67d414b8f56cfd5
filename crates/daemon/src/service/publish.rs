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
use crate::state::{Event, LargestFiles, Scope, Snapshot, SubjectView};

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
        self.own.cpu_percent = self.recent.percent(elapsed_ms, self.own.cpu_ms);
        self.own.resident_bytes = own_resident_bytes();
        self.own.ages_bytes = self.agent.memory_bytes() as u64;
        self.own.ticks = self.sequence;
        self.own.journal_lost_lines = self.journal.lost_lines();
        self.own.late_ms = self.pace.late_ms();
        self.own.late_max_ms = self.pace.late_max_ms();
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
            // When a process ends, what the agent counted for it disappears.
            let sum_bytes = self.refaulted.entry(seen.key.clone()).or_default();
            *sum_bytes += self.agent.last_refaulted_bytes(&seen.pids);
            view.refaulted_bytes = *sum_bytes;
            view.less = self.curves.of(&seen.key);
            view.shrink_limit_bytes = self.shrinkers.limit_bytes(&seen.key);
        }
    }
}

/// CPU time over about the last minute.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Two earlier moments, each with the CPU time until then, ms.
    marks: [(f64, f64); 2],
}

impl Recent {
    /// The time after which a moment replaces an earlier one, ms.
    const EVERY_MS: f64 = 40_000.0;

    /// The share of one core since the earlier moment, percent, 40 to 80 s if looks are not further
    /// apart.
    fn percent(&mut self, now_ms: f64, cpu_ms: f64) -> f64 {
        if now_ms - self.marks[1].0 >= Self::EVERY_MS {
            self.marks = [self.marks[1], (now_ms, cpu_ms)];
        }
        let [(then_ms, then_cpu_ms), _] = self.marks;
        (cpu_ms - then_cpu_ms) / (now_ms - then_ms).max(1.0) * 100.0
    }
}

fn own_resident_bytes() -> u64 {
    agewise_host::process::Process::open_in(&Roots::default().proc, std::process::id())
        .and_then(|own| own.rss_bytes())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_that_of_the_last_minute() {
        let mut recent = Recent::default();
        let mut cpu_ms = 0.0;
        for second in 1..=600 {
            // A tenth of a core at first, then a hundredth.
            cpu_ms += if second <= 300 { 100.0 } else { 10.0 };
            let percent = recent.percent(f64::from(second) * 1000.0, cpu_ms);
            match second {
                1..=300 => assert!((percent - 10.0).abs() < 1e-6, "{second}: {percent}"),
                380.. => assert!((percent - 1.0).abs() < 1e-6, "{second}: {percent}"),
                _ => assert!((1.0..=10.1).contains(&percent), "{second}: {percent}"),
            }
        }
    }
}
