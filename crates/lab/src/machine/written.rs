// SPDX-License-Identifier: Apache-2.0
//! Writes that end while reclaim works: the time that its work takes passes, and devices report.

use agewise_kernel::folio::{Flag, FolioTable, FolioType, Pfn};
use agewise_kernel::work::Work;

use super::events::Event;
use super::frames::Owner;
use super::system::System;

impl System {
    /// A page whose write has ended by now. Pages that nobody uses any more are left to the
    /// machine: reclaim may have isolated them.
    pub(super) fn take_written(&mut self, folios: &mut FolioTable, work: &Work) -> Option<Pfn> {
        let writes = self.disk(true).is_some_and(|disk| !disk.model.synchronous);
        if !writes && self.clock.under_writeback == 0 {
            return None;
        }
        self.now_ns += self.clock.pay_early(work);
        let mut events = std::mem::take(&mut self.events);
        let ended = events.pop_wanted(self.now_ns, |event| match event {
            Event::WritebackDone(pfn) => !self.is_unused(folios, pfn),
            _ => false,
        });
        self.events = events;
        let Some(Event::WritebackDone(pfn)) = ended else {
            return None;
        };
        self.end_writeback(folios, pfn);
        Some(pfn)
    }

    /// Records that a page has been written.
    pub(super) fn end_writeback(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        let folio = &mut folios[pfn];
        folio.clear(Flag::Writeback);
        if folio.has(Flag::Dirty) && folio.folio_type() == FolioType::File {
            // It was dirtied again meanwhile, and the flusher may have skipped it since.
            self.dirty_queue.push_back(pfn);
        }
        self.clock.under_writeback -= 1;
        *self.write_pending_mut(pfn) -= folio.nr_pages();
    }

    /// Whether the last user of a page in the swap cache went away.
    pub(super) fn is_unused(&self, folios: &FolioTable, pfn: Pfn) -> bool {
        self.frames.mapcount(pfn) == 0
            && matches!(self.frames.owner(pfn), Owner::Swap { .. })
            && !self.is_named_by_leaves(folios, pfn)
    }
}

#[cfg(test)]
mod tests {
    use super::super::address_space::MapOptions;
    use super::super::device::DeviceKind;
    use super::super::{Limits, Machine, MachineConfig, Policy, ProcessId, SwapConfig};
    use agewise_kernel::ids::MemcgId;

    /// A machine with a program of 1400 pages below a limit of 1000.
    fn machine(policy: &str, device: DeviceKind, swap_pages: u32) -> (Machine, ProcessId, u64) {
        let mut machine = Machine::new(MachineConfig {
            policy: Policy::parse(policy).unwrap(),
            swap: Some(SwapConfig::new(device, swap_pages)),
            ..MachineConfig::new(1 << 14)
        });
        let limits = Limits {
            max_pages: 1000,
            ..Limits::default()
        };
        let memcg = machine.add_memcg(MemcgId::ROOT, "t", limits);
        let process = machine.add_process(memcg);
        let first = machine.map(process, &MapOptions::anon(1400)).unwrap();
        (machine, process, first)
    }

    /// Pages on their way out have a slot too, and generations stay in memory where fewer than 64
    /// are free.
    #[test]
    fn swap_of_more_than_twice_what_does_not_fit_is_enough_on_any_device() {
        for policy in Policy::names() {
            for device in DeviceKind::ALL {
                let (mut machine, process, first) = machine(&policy, device, 1000);
                for touch in 0..14_000 {
                    machine.access(process, first + touch * 611 % 1400, touch % 3 == 0);
                }
                let context = format!("{policy} {device:?}");
                assert_eq!(machine.counters().oom_kill, 0, "{context}");
                assert_eq!(machine.check(), Ok(()), "{context}");
            }
        }
    }

    #[test]
    fn no_more_of_a_huge_page_is_under_way_than_the_queue_holds() {
        let mut machine = Machine::new(MachineConfig {
            swap: Some(SwapConfig::new(DeviceKind::Hdd, 1 << 13)),
            ..MachineConfig::new(1 << 14)
        });
        let limits = Limits {
            max_pages: 2700,
            ..Limits::default()
        };
        let memcg = machine.add_memcg(MemcgId::ROOT, "t", limits);
        let process = machine.add_process(memcg);
        for (huge, pages) in [(true, 2560), (false, 500)] {
            let options = MapOptions {
                huge,
                ..MapOptions::anon(pages)
            };
            let first = machine.map(process, &options).unwrap();
            for vpn in first..first + pages {
                machine.access(process, vpn, true);
            }
        }
        assert_eq!(machine.counters().oom_kill, 0);
        assert!(machine.counters().pswpout >= 512);
        assert_eq!(machine.check(), Ok(()));
    }

    #[test]
    fn a_page_whose_user_is_gone_is_left_to_the_machine() {
        let (mut machine, process, first) = machine("mglru", DeviceKind::Hdd, 700);
        for vpn in first..first + 1100 {
            machine.access(process, vpn, true);
        }
        let under_writeback = machine.sys.clock.under_writeback;
        assert!(under_writeback > 0);
        machine.exit(process);
        machine.sys.now_ns += 1_000_000_000;
        let Machine { lru, sys, .. } = &mut machine;
        assert_eq!(sys.take_written(&mut lru.folios, &lru.work), None);
        assert_eq!(sys.clock.under_writeback, under_writeback);
        machine.run_events();
        assert_eq!(machine.sys.clock.under_writeback, 0);
        assert_eq!(machine.sys.swap.used(), 0);
        assert_eq!(machine.check(), Ok(()));
    }

    #[test]
    fn work_is_paid_for_once() {
        let (mut machine, ..) = machine("mglru", DeviceKind::Ssd, 700);
        let begun = machine.begin_work();
        machine.lru.work.unmaps += 5;
        let Machine { lru, sys, .. } = &mut machine;
        assert_eq!(sys.take_written(&mut lru.folios, &lru.work), None);
        assert_eq!(machine.now_ns(), 5 * machine.config.cost.unmap_ns);
        machine.lru.work.unmaps += 2;
        machine.pay_for_work(&begun);
        assert_eq!(machine.now_ns(), 7 * machine.config.cost.unmap_ns);
        assert_eq!(machine.policy_ns, machine.now_ns());
    }
}
