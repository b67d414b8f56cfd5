// SPDX-License-Identifier: Apache-2.0
//! The device that serves swap or files, and writing to it on behalf of reclaim.

use agewise_kernel::folio::{FolioTable, Pfn};
use agewise_kernel::world::PageoutOutcome;

use super::device::Device;
use super::frames::Owner;
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

    /// Starts writing a page that reclaim has unmapped (`pageout`).
    pub(super) fn write_out(&mut self, folios: &mut FolioTable, pfn: Pfn) -> PageoutOutcome {
        let pages = folios[pfn].nr_pages();
        if let (Owner::Swap { .. }, Some(store)) = (self.frames.owner(pfn), &mut self.compressed)
            && !store.store_pages(&mut self.frames, pages)
        {
            return PageoutOutcome::Activate;
        }
        // A full queue puts the reclaimer to sleep: this slows reclaim to the device's pace.
        let now_ns = self.now_ns;
        let swap = matches!(self.frames.owner(pfn), Owner::Swap { .. });
        let room_ns = match self.disk(swap) {
            Some(device) => device.has_room_at(now_ns),
            None => now_ns,
        };
        self.wait_until(room_ns);
        let Some(done_ns) = self.start_write(folios, pfn) else {
            return PageoutOutcome::Activate;
        };
        self.counters.vmscan_write[folios[pfn].folio_type().index()] += pages;
        if self.disk(swap).is_some_and(|disk| disk.model.synchronous) {
            self.now_ns = self.now_ns.max(done_ns);
            return PageoutOutcome::Written;
        }
        self.begin_writeback(folios, pfn, done_ns);
        PageoutOutcome::Writeback
    }
}
