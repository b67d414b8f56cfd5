// SPDX-License-Identifier: Apache-2.0
//! The loops above a lruvec under the multi-gen LRU: where they start and stop.

mod support;

use agewise_kernel::folio::{Flag, FolioType};
use agewise_kernel::ids::{MemcgId, NodeId};
use agewise_kernel::mglru::profile;
use agewise_kernel::reclaim::Reclaimer;
use agewise_kernel::reclaim::kswapd::Kswapd;
use agewise_kernel::reclaim::memcg_limit::{CgroupRequest, try_to_free_mem_cgroup_pages};
use support::node::Machine;

const NODE: NodeId = NodeId(0);
const NORMAL: usize = 2;

/// The multi-gen LRU starts where it expects to reach the target, and goes on from there.
#[test]
fn priorities_of_a_request_only_fall() {
    let zones = [(0, 0), (0, 0), (100_000, 50_000), (0, 0)];
    let mut machine = Machine::multi_gen(zones, profile::V7_2);
    machine.add_pages(MemcgId::ROOT, FolioType::File, NORMAL, 2000);
    let request = CgroupRequest {
        nr_pages: 4000,
        reclaimer: Reclaimer::Proactive,
        ..CgroupRequest::limit(MemcgId::ROOT, 0, NODE)
    };
    let _ = try_to_free_mem_cgroup_pages(&mut machine.lru, &mut machine.world, request);
    let calls = machine.world.slab_calls.iter();
    let priorities: Vec<u32> = calls.map(|&(_, priority)| priority).collect();
    assert!(
        priorities[0] == 6 && priorities.is_sorted_by(|a, b| a >= b),
        "{priorities:?}"
    );
}

/// Under the multi-gen LRU it stops early only if each zone also has what it reserves
/// (`zone_watermark_ok` in `should_abort_scan`).
#[test]
fn a_zone_below_its_reserve_keeps_kswapd_going() {
    let zones = [(1000, 500), (0, 0), (5000, 150), (0, 0)];
    let mut machine = Machine::multi_gen(zones, profile::V7_2);
    machine.world.zones[0][0].reserve_pages = [0, 0, 500, 500];
    machine.add_pages(MemcgId::ROOT, FolioType::File, NORMAL, 40_000);
    let mut kswapd = Kswapd::new(NODE, 1);
    assert!(kswapd.wake(&machine.lru, &machine.world, 0, 3));
    kswapd.step(&mut machine.lru, &mut machine.world);
    // NORMAL is above its high watermark of 300 after 150 pages; the target is the sum of both.
    let freed = machine.world.evicted.len();
    assert!(freed >= 360, "{freed}");
}

/// Anonymous memory does not count as reclaimable where swap has no room
/// (`can_reclaim_anon_pages` in `set_initial_priority`).
#[test]
fn the_first_priority_counts_what_can_leave() {
    let slab_priority = |swap_pages| {
        let zones = [(0, 0), (0, 0), (1500, 20), (0, 0)];
        let mut machine = Machine::multi_gen(zones, profile::V7_2);
        machine.world.swap_pages = swap_pages;
        machine.add_pages(MemcgId::ROOT, FolioType::File, NORMAL, 15_000);
        // What was in swap before counts as inactive.
        machine.new_page_flag = Some(Flag::Swapcache);
        machine.add_pages(MemcgId::ROOT, FolioType::Anon, NORMAL, 40_000);
        let mut kswapd = Kswapd::new(NODE, 1);
        assert!(kswapd.wake(&machine.lru, &machine.world, 0, 3));
        kswapd.step(&mut machine.lru, &mut machine.world);
        machine.world.slab_calls[0].1
    };
    // The target is 90 pages: 55,000 make 15 - 7, 15,000 make 13 - 7.
    assert_eq!([slab_priority(1 << 20), slab_priority(0)], [8, 6]);
}
