// SPDX-License-Identifier: Apache-2.0
//! Page faults that a test makes up.

use super::{Fault, FaultSource};
use crate::access::AccessError;

/// Tells what it is given, of watched processes only.
#[derive(Debug, Default)]
pub struct FakeFaults {
    /// Events to deliver, in order of time.
    pub faults: Vec<Fault>,
    /// What was lost.
    pub lost: u64,
    /// Processes watched now.
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
