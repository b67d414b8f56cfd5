// SPDX-License-Identifier: Apache-2.0
//! The time that policy work takes, as far as it passes before the end of a piece of work.

use agewise_kernel::work::Work;

use super::cost::{CostModel, difference};

/// Time that passes during a piece of policy work. As long as it waits for no device, nothing
/// happens meanwhile, and it is paid for at its end.
#[derive(Clone, Debug)]
pub(super) struct WorkClock {
    /// The machine's.
    pub cost: CostModel,
    cpus: usize,
    /// Work done before the current piece, or paid for since.
    pub paid: Work,
    /// Time paid for before the end of a piece, of all of them, in ns.
    pub early_ns: u64,
    /// Pages under writeback, huge ones counted once.
    pub under_writeback: u64,
}

impl WorkClock {
    pub fn new(cost: CostModel, cpus: usize) -> WorkClock {
        WorkClock {
            cost,
            cpus,
            paid: Work::default(),
            early_ns: 0,
            under_writeback: 0,
        }
    }

    /// Pays for the work that has not been paid for, and returns the CPU time that it takes, in ns.
    pub fn pay_early(&mut self, work: &Work) -> u64 {
        let ns = self.cost.price(&difference(work, &self.paid), self.cpus);
        self.paid = *work;
        self.early_ns += ns;
        ns
    }
}
