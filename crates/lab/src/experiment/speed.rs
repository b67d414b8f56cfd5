// SPDX-License-Identifier: Apache-2.0
//! The case that times the simulator itself: one process with memory for half the pages it touches.

use agewise_kernel::ids::MemcgId;

use crate::machine::address_space::MapOptions;
use crate::machine::device::DeviceKind;
use crate::machine::{Limits, Machine, MachineConfig, Policy, ProcessId, SwapConfig};
use crate::workload::random::{XorShift64Star, Zipf};

/// The order in which pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeedTrace {
    /// Zipf 0.99.
    Zipf,
    /// Each page equally likely.
    Uniform,
}

/// A machine with full memory, and touches drawn beforehand.
pub struct SpeedCase {
    machine: Machine,
    process: ProcessId,
    trace: Vec<u64>,
    pages: u64,
}

impl SpeedCase {
    /// A process that touches `pages` pages, of which half fit into memory, `touches` times per
    /// run. None if an address space or a distribution cannot have that many.
    pub fn new(policy: Policy, order: SpeedTrace, pages: u32, touches: usize) -> Option<SpeedCase> {
        let mut machine = Machine::new(MachineConfig {
            policy,
            swap: Some(SwapConfig {
                compression: None,
                ..SwapConfig::new(DeviceKind::Zram, pages)
            }),
            ..MachineConfig::new(pages)
        });
        let limits = Limits {
            max_pages: u64::from(pages / 2),
            ..Limits::default()
        };
        let memcg = machine.add_memcg(MemcgId::ROOT, "speed", limits);
        let process = machine.add_process(memcg);
        let start_vpn = machine.map(process, &MapOptions::anon(pages.into()))?;
        for page in 0..u64::from(pages) {
            machine.access(process, start_vpn + page, true);
        }
        let mut random = XorShift64Star::new(1);
        let zipf = Zipf::new(pages, 0.99, 1).ok()?;
        let trace = (0..touches)
            .map(|_| match order {
                SpeedTrace::Zipf => zipf.draw(&mut random),
                SpeedTrace::Uniform => random.below(pages),
            })
            .map(|page| start_vpn + u64::from(page))
            .collect();
        Some(SpeedCase {
            machine,
            process,
            trace,
            pages: pages.into(),
        })
    }

    /// Makes all touches once; returns the number of faults.
    pub fn run(&mut self) -> u64 {
        let faults = |machine: &Machine, process| {
            let stats = machine.process_stats(process);
            stats.major_faults + stats.minor_faults
        };
        let before = faults(&self.machine, self.process);
        for &vpn in &self.trace {
            self.machine.access(self.process, vpn, false);
        }
        faults(&self.machine, self.process) - before
    }

    /// Number of touches in a run.
    pub fn touches(&self) -> usize {
        self.trace.len()
    }

    /// Bytes of simulator state per simulated page.
    pub fn bytes_per_page(&self) -> f64 {
        self.machine.footprint_bytes() as f64 / self.pages as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_uniform_trace_misses_and_few_of_a_zipf_one() {
        let share = |order| {
            let policy = Policy::parse("mglru").unwrap();
            let mut case = SpeedCase::new(policy, order, 8192, 50_000).unwrap();
            case.run() as f64 / case.touches() as f64
        };
        let (zipf, uniform) = (share(SpeedTrace::Zipf), share(SpeedTrace::Uniform));
        assert!((0.45..0.6).contains(&uniform), "{uniform}");
        assert!((0.05..0.2).contains(&zipf), "{zipf}");
    }
}
