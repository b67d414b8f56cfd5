// SPDX-License-Identifier: Apache-2.0
//! What the daemon itself uses, and which part of its CPU time the budget of looks pays.

use std::time::{Duration, Instant};

use agewise_host::clock::process_cpu;
use agewise_host::root::Roots;

use crate::state::OwnUse;

/// Counts it, from tick to tick.
pub(super) struct Meter {
    pub own: OwnUse,
    began: Instant,
    began_cpu: Duration,
    recent: Recent,
    /// CPU time when the last look began, and when it ended.
    look_began_cpu: Duration,
    look_ended_cpu: Duration,
    /// CPU time of the threads that act on their own, at the end of the last look.
    look_ended_acting_cpu: Duration,
    /// CPU time at the end of the last tick: of the daemon, and of these threads.
    paid_cpu: Duration,
    paid_acting_cpu: Duration,
}

impl Meter {
    pub fn new() -> Self {
        let cpu = process_cpu();
        Meter {
            own: OwnUse::default(),
            began: Instant::now(),
            began_cpu: cpu,
            recent: Recent::default(),
            look_began_cpu: cpu,
            look_ended_cpu: cpu,
            paid_cpu: cpu,
            look_ended_acting_cpu: Duration::ZERO,
            paid_acting_cpu: Duration::ZERO,
        }
    }

    pub fn begin_look(&mut self) {
        self.look_began_cpu = process_cpu();
    }

    /// Brings what readers see up to date.
    pub fn count(&mut self) {
        let cpu = process_cpu();
        self.own.scan_cpu_ms = ms(cpu.saturating_sub(self.look_began_cpu));
        self.own.cpu_ms = ms(cpu.saturating_sub(self.began_cpu));
        self.own.cpu_percent = self
            .recent
            .percent(ms(self.began.elapsed()), self.own.cpu_ms);
        self.own.resident_bytes = own_resident_bytes();
    }

    /// Ends a look. Returns the CPU time to be paid by the budget since the last tick, ms: that of
    /// looks, and of readers and watching in between. Moving memory is requested explicitly and has
    /// its own rate limits; `acting_cpu` is that of the threads that do so on their own, or keep
    /// limits from killing.
    pub fn end_look(&mut self, acting_cpu: Duration) -> f64 {
        self.look_ended_cpu = process_cpu();
        self.look_ended_acting_cpu = acting_cpu;
        self.own.scan_cpu_ms = ms(self.look_ended_cpu.saturating_sub(self.look_began_cpu));
        self.own.scan_cpu_total_ms += self.own.scan_cpu_ms;
        let acting = acting_cpu.saturating_sub(self.paid_acting_cpu);
        let all = self.look_ended_cpu.saturating_sub(self.paid_cpu);
        ms(all.saturating_sub(acting))
    }

    /// Ends a tick: what its own thread took since the look was for moving memory.
    pub fn end_tick(&mut self, acting_cpu: Duration) {
        self.paid_cpu = process_cpu();
        self.paid_acting_cpu = acting_cpu;
        let all = self.paid_cpu.saturating_sub(self.look_ended_cpu);
        let acting = acting_cpu.saturating_sub(self.look_ended_acting_cpu);
        self.own.move_cpu_total_ms += ms(all.saturating_sub(acting));
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// CPU time over about the last minute.
#[derive(Debug, Default)]
struct Recent {
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
