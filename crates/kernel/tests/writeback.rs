// SPDX-License-Identifier: Apache-2.0
//! Writes that end while reclaim works.

mod support;

use agewise_kernel::folio::FolioType;
use agewise_kernel::ids::{MemcgId, NodeId};
use agewise_kernel::mglru::profile;
use agewise_kernel::reclaim::memcg_limit::{CgroupRequest, try_to_free_mem_cgroup_pages};
use support::node::Machine;

const ZONES: [(u64, u64); 4] = [(0, 0), (0, 0), (100_000, 50_000), (0, 0)];
const PAGES: usize = 2000;

/// One call, in a cgroup of anonymous pages. Returns the pages reclaimed and those written.
fn reclaim(mut machine: Machine, queue_depth: Option<usize>) -> (u64, usize) {
    machine.world.slow_device = true;
    machine.world.queue_depth = queue_depth;
    let memcg = machine.add_cgroup(MemcgId::ROOT);
    machine.add_pages(memcg, FolioType::Anon, 2, PAGES as u32);
    let request = CgroupRequest::limit(memcg, 0, NodeId(0));
    let reclaimed = try_to_free_mem_cgroup_pages(&mut machine.lru, &mut machine.world, request);
    (reclaimed, machine.world.written.len())
}

#[test]
fn a_call_frees_what_it_has_written() {
    let machines: [fn() -> Machine; 3] = [
        || Machine::simple(100_000, 50_000),
        || Machine::multi_gen(ZONES, profile::V6_12),
        || Machine::multi_gen(ZONES, profile::V7_2),
    ];
    for (number, machine) in machines.iter().enumerate() {
        let (reclaimed, written) = reclaim(machine(), Some(20));
        assert!((32..200).contains(&reclaimed), "{number}: {reclaimed}");
        assert!(written < PAGES / 4, "{number}: {written}");
        // Where no write ends, all pages go to swap, and none is free.
        let (reclaimed, written) = reclaim(machine(), None);
        assert_eq!(reclaimed, 0, "{number}");
        assert!(written > PAGES / 2, "{number}: {written}");
    }
}
