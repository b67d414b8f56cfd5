// SPDX-License-Identifier: Apache-2.0
//! Choice of the device that serves swap or files.

use super::device::Device;
use super::system::System;

impl System {
    /// The device that serves swap or files; `None` for swap if there is no swap.
    pub fn disk(&mut self, swap: bool) -> Option<&mut Device> {
        match &mut self.swap_device {
            None if swap => None,
            Some(own) if swap && !self.swap_on_file_disk => Some(own),
            _ => Some(&mut self.file_device),
        }
    }
}
