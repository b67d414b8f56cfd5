// SPDX-License-Identifier: Apache-2.0
//! A fault source for tests.

use super::{Fault, FaultSource};
use crate::access::AccessError;

/// Delivers the given faults of watched processes.
#[derive(Debug, Default)]
pub struct FakeFaults {
    /// Faults to deliver, in time order.
    pub faults: Vec<Fault>,
    /// Number of faults lost.
    pub lost: u64,
    /// Processes currently watched.
    pub watched: Vec<u32>,
}

impl FaultSource for FakeFaults {
    fn watch(&mut self, pid: u32) -> Result<(), AccessError> {
        self.watched.push(pid);
        Ok(())
    }

    fn forget(&mut self, pid: u32) {
        self.watched.retain(|&watched| watched != pid);
    }

    fn drain(&mut self, into: &mut Vec<Fault>) -> Result<(), AccessError> {
        let watched = &self.watched;
        into.extend(
            self.faults
                .drain(..)
                .filter(|fault| watched.contains(&fault.pid)),
        );
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.lost
    }
}
