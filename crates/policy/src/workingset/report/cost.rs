// SPDX-License-Identifier: Apache-2.0
//! What it costs to read memory back: by backend, as measured here.

use crate::generations::{ByType, PageType};

/// Weight of a new measurement that stands for many: a sixteenth.
const SMOOTHING: f64 = 1.0 / 16.0;
/// Measurements after which the first guess is forgotten.
const WARM_UP: u64 = 16;

/// Where evicted memory goes and comes back from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// Compressed memory.
    Zram,
    /// Swap on a device without moving parts.
    Ssd,
    /// Swap on a disk.
    Disk,
    /// Files.
    File,
}

impl Backend {
    /// All.
    pub const ALL: [Backend; 4] = [Backend::Zram, Backend::Ssd, Backend::Disk, Backend::File];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Zram => "zram",
            Backend::Ssd => "ssd",
            Backend::Disk => "disk",
            Backend::File => "file",
        }
    }

    /// What a fault costs before one was measured, ns: orders of magnitude.
    fn first_guess_ns(self) -> f64 {
        match self {
            Backend::Zram => 10_000.0,
            Backend::Ssd | Backend::File => 100_000.0,
            Backend::Disk => 8_000_000.0,
        }
    }
}

/// The mean latency of faults of one backend: an exponentially weighted moving average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackendCost {
    fault_ns: f64,
    measurements: u64,
}

impl BackendCost {
    /// Before any measurement.
    pub fn new(backend: Backend) -> Self {
        BackendCost {
            fault_ns: backend.first_guess_ns(),
            measurements: 0,
        }
    }

    /// Takes in `faults` that waited `waited_ns` in all. The first measurements count as their plain
    /// mean, so that the guess is soon forgotten.
    pub fn measure(&mut self, faults: u64, waited_ns: u64) {
        if faults == 0 {
            return;
        }
        self.measurements = self.measurements.saturating_add(1);
        let weight = match self.measurements {
            early if early <= WARM_UP => 1.0 / early as f64,
            _ => SMOOTHING,
        };
        self.fault_ns += weight * (waited_ns as f64 / faults as f64 - self.fault_ns);
    }

    /// Mean time of a fault, ns.
    pub fn fault_ns(&self) -> f64 {
        self.fault_ns
    }

    /// Whether it was measured at all, or is a guess.
    pub fn is_measured(&self) -> bool {
        self.measurements > 0
    }
}

/// All backends, and which of them anonymous memory goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct RefaultCost {
    backends: [BackendCost; 4],
    /// Share of each backend in the swap in use, in the order of [`Backend::ALL`].
    swap_shares: [f64; 4],
}

impl Default for RefaultCost {
    /// All swap on an SSD, nothing measured.
    fn default() -> Self {
        RefaultCost {
            backends: Backend::ALL.map(BackendCost::new),
            swap_shares: [0.0, 1.0, 0.0, 0.0],
        }
    }
}

impl RefaultCost {
    /// Takes in faults of a backend: see [`BackendCost::measure`].
    pub fn measure(&mut self, backend: Backend, faults: u64, waited_ns: u64) {
        self.backends[backend as usize].measure(faults, waited_ns);
    }

    /// The cost of a backend.
    pub fn backend(&self, backend: Backend) -> &BackendCost {
        &self.backends[backend as usize]
    }

    /// Says where swapped pages go, by weight (free or used bytes). Without any they go nowhere, and
    /// the shares stay as they were.
    pub fn set_swap(&mut self, weights: &[(Backend, u64)]) {
        let total: u128 = weights.iter().map(|(_, weight)| u128::from(*weight)).sum();
        if total == 0 {
            return;
        }
        self.swap_shares = [0.0; 4];
        for (backend, weight) in weights {
            self.swap_shares[*backend as usize] += *weight as f64 / total as f64;
        }
    }

    /// Expected time of a refault of each type, ns.
    pub fn fault_ns(&self) -> ByType<f64> {
        let shares = self.backends.iter().zip(self.swap_shares);
        let mut by_type = [0.0; 2];
        by_type[PageType::Anon as usize] = shares.map(|(cost, share)| cost.fault_ns * share).sum();
        by_type[PageType::File as usize] = self.backend(Backend::File).fault_ns;
        by_type
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_forgets_its_guess_and_follows_the_device() {
        let mut cost = BackendCost::new(Backend::Zram);
        assert!(!cost.is_measured());
        cost.measure(0, 5);
        assert!(!cost.is_measured());
        cost.measure(10, 40_000);
        assert_eq!(cost.fault_ns(), 4000.0);
        cost.measure(1, 8000);
        assert_eq!(cost.fault_ns(), 6000.0);
        for _ in 0..200 {
            cost.measure(4, 400_000);
        }
        assert!(
            (cost.fault_ns() - 100_000.0).abs() < 10.0,
            "{}",
            cost.fault_ns()
        );
    }

    #[test]
    fn swap_costs_what_its_devices_cost_in_their_shares() {
        let mut cost = RefaultCost::default();
        for (backend, ns) in [
            (Backend::Zram, 5000),
            (Backend::Ssd, 80_000),
            (Backend::File, 60_000),
        ] {
            for _ in 0..32 {
                cost.measure(backend, 1, ns);
            }
        }
        cost.set_swap(&[(Backend::Zram, 3 << 30), (Backend::Ssd, 1 << 30)]);
        let [anon_ns, file_ns] = cost.fault_ns();
        assert!((anon_ns - 23_750.0).abs() < 1e-6);
        assert!((file_ns - 60_000.0).abs() < 1e-6);
        cost.set_swap(&[]);
        assert_eq!(cost.fault_ns()[0], anon_ns);
    }
}
