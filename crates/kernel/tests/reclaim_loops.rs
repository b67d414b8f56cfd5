// SPDX-License-Identifier: Apache-2.0
//! The loops above a lruvec: cgroups, priorities, retries, kswapd, throttling.

mod support;

use agewise_kernel::classic::{self, List, Settings};
use agewise_kernel::folio::{Flag, FolioType, Pfn};
use agewise_kernel::ids::{MemcgId, NodeId};
use agewise_kernel::mglru::profile;
use agewise_kernel::reclaim::direct::{DirectRequest, try_to_free_pages};
use agewise_kernel::reclaim::kswapd::{Kswapd, Next};
use agewise_kernel::reclaim::memcg_limit::{
    CgroupRequest, reclaim_proactively, try_to_free_mem_cgroup_pages,
};
use agewise_kernel::reclaim::tree::TreeWalk;
use agewise_kernel::reclaim::{MAX_RECLAIM_RETRIES, Reclaimer};
use agewise_kernel::world::{Protection, Throttle};
use proptest::prelude::*;
use support::node::Machine;

const NODE: NodeId = NodeId(0);
const NORMAL: usize = 2;

fn limit(memcg: MemcgId) -> CgroupRequest {
    CgroupRequest::limit(memcg, 0, NODE)
}

fn direct() -> DirectRequest {
    DirectRequest {
        order: 0,
        reclaim_idx: 3,
        io_allowed: true,
        cpu: 0,
        node: NODE,
    }
}

fn walk(machine: &mut Machine, mut walk: TreeWalk, count: usize) -> Vec<u32> {
    let next = || walk.next(&mut machine.lru).map(|memcg| memcg.0);
    std::iter::from_fn(next).take(count).collect()
}

#[test]
fn partial_walks_go_on_where_the_last_one_stopped() {
    let mut machine = Machine::simple(1000, 500);
    // root 0 -> 1 -> 2, 3; root -> 4.
    let one = machine.add_cgroup(MemcgId::ROOT);
    machine.add_cgroup(one);
    machine.add_cgroup(one);
    machine.add_cgroup(MemcgId::ROOT);
    let full = walk(&mut machine, TreeWalk::full(MemcgId::ROOT), 9);
    assert_eq!(full, [0, 1, 2, 3, 4]);
    assert_eq!(walk(&mut machine, TreeWalk::full(one), 9), [1, 2, 3]);

    let partial = || TreeWalk::partial(MemcgId::ROOT, NODE);
    assert_eq!(walk(&mut machine, partial(), 2), [0, 1]);
    assert_eq!(walk(&mut machine, partial(), 2), [2, 3]);
    // The rest of the round, and no more.
    assert_eq!(walk(&mut machine, partial(), 9), [4]);
    // A walk that starts after the last cgroup begins the next round.
    assert_eq!(walk(&mut machine, partial(), 1), [0]);
    assert_eq!(walk(&mut machine, partial(), 9), [1, 2, 3, 4]);
    assert_eq!(walk(&mut machine, partial(), 4), [0, 1, 2, 3]);
    // A walk ends when another walk completes the round.
    let mut overtaken = partial();
    assert_eq!(overtaken.next(&mut machine.lru), Some(MemcgId(4)));
    assert_eq!(walk(&mut machine, partial(), 1), [0]);
    assert_eq!(overtaken.next(&mut machine.lru), None);
    // If the cursor's cgroup is removed, the walk restarts.
    assert_eq!(walk(&mut machine, partial(), 3), [1, 2, 3]);
    machine.lru.memcg_offline(MemcgId(3), 0);
    assert_eq!(walk(&mut machine, partial(), 9), [0, 1, 2, 4]);
}

#[test]
fn limit_reclaim_takes_its_target_and_shrinks_slab_after_each_priority() {
    let mut machine = Machine::simple(100_000, 50_000);
    let memcg = machine.add_cgroup(MemcgId::ROOT);
    machine.add_pages(memcg, FolioType::File, NORMAL, 4000);
    let reclaimed =
        try_to_free_mem_cgroup_pages(&mut machine.lru, &mut machine.world, limit(memcg));
    // Priorities 12 to 7 scan 0, 1, 3, 7, 15 and 31 pages times the file share of 70 %.
    assert_eq!(reclaimed, 2 + 4 + 10 + 21);
    let priorities: Vec<u32> = machine.world.slab_calls.iter().map(|call| call.1).collect();
    assert_eq!(priorities, [12, 11, 10, 9, 8, 7]);
    // The oldest pages were evicted.
    assert_eq!(machine.world.evicted.first(), Some(&Pfn(0)));
}

#[test]
fn an_empty_cgroup_is_tried_twice_and_nothing_happens() {
    let mut machine = Machine::simple(1000, 500);
    let memcg = machine.add_cgroup(MemcgId::ROOT);
    let reclaimed =
        try_to_free_mem_cgroup_pages(&mut machine.lru, &mut machine.world, limit(memcg));
    assert_eq!((reclaimed, machine.world.slab_calls.len()), (0, 26));
}

#[test]
fn forced_deactivation_comes_to_the_rescue_of_file_pages_only() {
    for (folio_type, rescued) in [(FolioType::File, true), (FolioType::Anon, false)] {
        let mut machine = Machine::simple(100_000, 50_000);
        let memcg = machine.add_cgroup(MemcgId::ROOT);
        let first = machine.add_pages(memcg, folio_type, NORMAL, 500);
        // The flush sees all pages inactive; then all become active.
        classic::flush_stats(&mut machine.lru);
        for pfn in first.0..first.0 + 500 {
            machine.lru.mark_accessed(Pfn(pfn), 0);
            machine.lru.mark_accessed(Pfn(pfn), 0);
        }
        machine.lru.drain_all();
        let reclaimed =
            try_to_free_mem_cgroup_pages(&mut machine.lru, &mut machine.world, limit(memcg));
        // Active anon alone neither starts the scan nor sets the flag for skipped deactivation.
        assert_eq!(reclaimed > 0, rescued, "{folio_type:?}");
    }
}

#[test]
fn protected_cgroups_are_spared_and_low_is_broken_at_last() {
    let mut machine = Machine::simple(100_000, 50_000);
    let parent = machine.add_cgroup(MemcgId::ROOT);
    let [hard, soft] = [0; 2].map(|_| machine.add_cgroup(parent));
    for memcg in [hard, soft] {
        machine.add_pages(memcg, FolioType::File, NORMAL, 1000);
    }
    machine.world.protection = vec![Protection::default(); 4];
    machine.world.protection[hard.index()] = Protection {
        min_pages: 1000,
        low_pages: 0,
        usage_pages: 1000,
    };
    machine.world.protection[soft.index()] = Protection {
        min_pages: 0,
        low_pages: 2000,
        usage_pages: 1000,
    };
    let reclaimed =
        try_to_free_mem_cgroup_pages(&mut machine.lru, &mut machine.world, limit(parent));
    assert!(reclaimed >= 32);
    // Only the soft-protected cgroup lost pages, after two runs in vain, and it was notified.
    assert!(machine.world.evicted.iter().all(|pfn| pfn.0 >= 1000));
    assert!(machine.lru.memcgs[soft.index()].low_events > 0);
    assert_eq!(machine.lru.memcgs[hard.index()].low_events, 0);
    // A cgroup's own protection does not apply to its own limit.
    let own = try_to_free_mem_cgroup_pages(&mut machine.lru, &mut machine.world, limit(hard));
    assert!(own >= 32);
}

#[test]
fn proactive_requests_reach_their_target_or_say_how_far_they_got() {
    let mut machine = Machine::simple(100_000, 50_000);
    let memcg = machine.add_cgroup(MemcgId::ROOT);
    machine.add_pages(memcg, FolioType::File, NORMAL, 2000);
    let request = |nr_pages| CgroupRequest {
        nr_pages,
        reclaimer: Reclaimer::Proactive,
        ..limit(memcg)
    };
    let reclaimed = reclaim_proactively(&mut machine.lru, &mut machine.world, request(1000));
    assert!((1000..1100).contains(&reclaimed.unwrap()));
    let short = reclaim_proactively(&mut machine.lru, &mut machine.world, request(5000));
    let short = short.unwrap_err();
    assert_eq!(short.asked_pages, 5000);
    assert_eq!(machine.world.evicted.len(), 2000);
}

#[test]
fn swappiness_of_a_request_decides_the_type() {
    for (swappiness, evicts) in [(0, FolioType::File), (201, FolioType::Anon)] {
        let mut machine = Machine::simple(100_000, 50_000);
        let memcg = machine.add_cgroup(MemcgId::ROOT);
        machine.add_pages(memcg, FolioType::Anon, NORMAL, 1000);
        machine.add_pages(memcg, FolioType::File, NORMAL, 1000);
        let request = CgroupRequest {
            nr_pages: 100,
            reclaimer: Reclaimer::Proactive,
            swappiness: Some(swappiness),
            ..limit(memcg)
        };
        reclaim_proactively(&mut machine.lru, &mut machine.world, request).unwrap();
        let of_type = |pfn: &Pfn| machine.lru.folios[*pfn].folio_type() == evicts;
        assert!(machine.world.evicted.iter().all(of_type), "{swappiness}");
    }
}

#[test]
fn pages_of_unusable_zones_are_passed_over() {
    const DMA32: usize = 1;
    let zones = [(0, 0), (10_000, 100), (10_000, 5000), (0, 0)];
    for (settings, limited) in [
        (Settings::linux_6_12(), false),
        (Settings::linux_7_2(), true),
    ] {
        let mut machine = Machine::new(zones, settings, profile::V7_2);
        let memcg = MemcgId::ROOT;
        machine.add_pages(memcg, FolioType::File, NORMAL, 40_000);
        let low = machine.add_pages(memcg, FolioType::File, DMA32, 500);
        let request = DirectRequest {
            reclaim_idx: DMA32,
            ..direct()
        };
        let reclaimed = try_to_free_pages(&mut machine.lru, &mut machine.world, request);
        assert!(reclaimed >= 32);
        let state = &machine.lru.lruvecs[0].classic;
        let skipped = machine.lru.lruvecs[0].events.pgscan_skip[NORMAL];
        let first = machine.world.evicted[0];
        if limited {
            // Beyond 32768 skipped entries, pages are taken regardless of their zone.
            assert_eq!(first, Pfn(32 << 10));
        } else {
            assert_eq!(first, low);
            assert_eq!(skipped, 40_000);
            assert_eq!(state.size_pages(List::InactiveFile, 3), 40_500 - reclaimed);
        }
    }
}

fn run_kswapd(machine: &mut Machine, kswapd: &mut Kswapd) -> (u32, Next) {
    for step in 1..2000 {
        let next = kswapd.step(&mut machine.lru, &mut machine.world);
        if next != Next::Run {
            return (step, next);
        }
    }
    panic!("kswapd never rests");
}

#[test]
fn kswapd_reclaims_up_to_the_high_watermark_and_naps_before_it_sleeps() {
    let mut machine = Machine::simple(10_000, 300);
    machine.add_pages(MemcgId::ROOT, FolioType::File, NORMAL, 9000);
    let mut kswapd = Kswapd::new(NODE, 1);
    assert!(kswapd.wake(&machine.lru, &machine.world, 0, 3));
    // Already awake.
    assert!(!kswapd.wake(&machine.lru, &machine.world, 0, 3));
    let (_, next) = run_kswapd(&mut machine, &mut kswapd);
    assert_eq!(next, Next::Nap);
    let high = machine.world.zones[0][NORMAL].high_pages;
    assert!((high + 1..high + 700).contains(&machine.free_pages()));
    assert_eq!(
        kswapd.step(&mut machine.lru, &mut machine.world),
        Next::Sleep
    );
    assert_eq!(kswapd.counters.pageoutrun, 1);

    // A balanced node does not wake it.
    assert!(!kswapd.wake(&machine.lru, &machine.world, 0, 3));
    // Pressure during the nap is counted, and it runs again.
    machine.world.zones[0][NORMAL].free_pages = 300;
    assert!(kswapd.wake(&machine.lru, &machine.world, 0, 3));
    assert_eq!(run_kswapd(&mut machine, &mut kswapd).1, Next::Nap);
    machine.world.zones[0][NORMAL].free_pages = 300;
    assert!(kswapd.wake(&machine.lru, &machine.world, 0, 3));
    assert_eq!(run_kswapd(&mut machine, &mut kswapd).1, Next::Nap);
    assert_eq!(kswapd.counters.kswapd_low_wmark_hit_quickly, 1);
    // The node is unbalanced at the end of an uninterrupted nap.
    machine.world.zones[0][NORMAL].free_pages = 300;
    assert_eq!(run_kswapd(&mut machine, &mut kswapd).1, Next::Nap);
    assert_eq!(kswapd.counters.kswapd_high_wmark_hit_quickly, 1);
}

/// Nothing can be reclaimed: kswapd gives up after 16 runs, and resumes as in its kernel version.
#[test]
fn a_hopeless_node_is_left_alone() {
    for settings in [Settings::linux_6_12(), Settings::linux_7_2()] {
        let revives_at_once = !settings.balanced_node_revives_kswapd;
        let zones = [(0, 0), (0, 0), (10_000, 10), (0, 0)];
        let mut machine = Machine::new(zones, settings, profile::V7_2);
        let mut kswapd = Kswapd::new(NODE, 1);
        assert!(kswapd.wake(&machine.lru, &machine.world, 0, 3));
        let (_, next) = run_kswapd(&mut machine, &mut kswapd);
        assert_eq!(next, Next::Nap);
        assert_eq!(machine.lru.nodes[0].kswapd_failures, MAX_RECLAIM_RETRIES);
        assert_eq!(kswapd.counters.pageoutrun, 16);
        assert_eq!(
            kswapd.step(&mut machine.lru, &mut machine.world),
            Next::Sleep
        );
        assert!(!kswapd.wake(&machine.lru, &machine.world, 0, 3));
        // No task waits for progress that will not come.
        try_to_free_pages(&mut machine.lru, &mut machine.world, direct());
        assert_eq!(machine.world.throttles, []);

        machine.add_pages(MemcgId::ROOT, FolioType::File, NORMAL, 100);
        assert!(try_to_free_pages(&mut machine.lru, &mut machine.world, direct()) > 0);
        assert_eq!(machine.lru.nodes[0].kswapd_failures == 0, revives_at_once);
        machine.world.zones[0][NORMAL].free_pages = 5000;
        machine.add_pages(MemcgId::ROOT, FolioType::File, NORMAL, 100);
        try_to_free_pages(&mut machine.lru, &mut machine.world, direct());
        assert_eq!(machine.lru.nodes[0].kswapd_failures, 0);
    }
}

#[test]
fn direct_reclaim_without_progress_waits_before_the_last_priority() {
    let mut machine = Machine::simple(10_000, 10);
    try_to_free_pages(&mut machine.lru, &mut machine.world, direct());
    // Nothing is about to be written.
    assert_eq!(machine.world.throttles, []);
    machine.world.write_pending_pages = 1;
    try_to_free_pages(&mut machine.lru, &mut machine.world, direct());
    let tick = (Throttle::NoProgress, 4_000_000);
    // One wait in each of the two runs.
    assert_eq!(machine.world.throttles, [tick, tick]);
    machine.add_pages(MemcgId::ROOT, FolioType::File, NORMAL, 1000);
    try_to_free_pages(&mut machine.lru, &mut machine.world, direct());
    assert_eq!(machine.world.throttles.len(), 2);
}

#[test]
fn a_congested_cgroup_waits_only_where_much_is_to_be_written() {
    for (written_pages, waits) in [(10, false), (600, true)] {
        let mut machine = Machine::simple(100_000, 50_000);
        let memcg = machine.add_cgroup(MemcgId::ROOT);
        let first = machine.add_pages(memcg, FolioType::File, NORMAL, written_pages);
        machine.flag_pages(first, written_pages, Flag::Writeback);
        machine.flag_pages(first, written_pages, Flag::Reclaim);
        machine.add_pages(memcg, FolioType::File, NORMAL, 1000 - written_pages);
        machine.world.write_pending_pages = written_pages.into();
        try_to_free_mem_cgroup_pages(&mut machine.lru, &mut machine.world, limit(memcg));
        let waited = |at: &(Throttle, u64)| at.0 == Throttle::Congested;
        assert_eq!(machine.world.throttles.iter().any(waited), waits);
    }
}

/// Dirty file pages: in 6.12 kswapd writes those it meets again; 7.2 leaves them to the flusher.
#[test]
fn dirty_files_wake_the_flusher_and_6_12_writes_them_itself() {
    for (settings, profile) in [
        (Settings::linux_6_12(), profile::V6_12),
        (Settings::linux_7_2(), profile::V7_2),
    ] {
        let writes = profile.kswapd_writes_files;
        let zones = [(0, 0), (0, 0), (10_000, 300), (0, 0)];
        let mut machine = Machine::new(zones, settings, profile);
        let first = machine.add_pages(MemcgId::ROOT, FolioType::File, NORMAL, 200);
        machine.flag_pages(first, 200, Flag::Dirty);
        let mut kswapd = Kswapd::new(NODE, 1);
        assert!(kswapd.wake(&machine.lru, &machine.world, 0, 3));
        // Statistics are flushed between steps, so that activated pages can be deactivated.
        for _ in 0..200 {
            kswapd.step(&mut machine.lru, &mut machine.world);
            classic::flush_stats(&mut machine.lru);
        }
        assert!(machine.world.flusher_wakes > 0);
        assert_eq!(!machine.world.written.is_empty(), writes);
        assert_eq!(!machine.world.evicted.is_empty(), writes);
    }
}

#[test]
fn kswapd_waits_when_it_meets_writeback_it_asked_for() {
    let mut machine = Machine::simple(10_000, 300);
    let first = machine.add_pages(MemcgId::ROOT, FolioType::File, NORMAL, 200);
    machine.flag_pages(first, 200, Flag::Writeback);
    let mut kswapd = Kswapd::new(NODE, 1);
    assert!(kswapd.wake(&machine.lru, &machine.world, 0, 3));
    for _ in 0..200 {
        kswapd.step(&mut machine.lru, &mut machine.world);
        classic::flush_stats(&mut machine.lru);
    }
    let waited = (Throttle::Writeback, 100_000_000);
    assert!(machine.world.throttles.contains(&waited));
}

#[test]
fn flushed_sizes_are_sums_over_the_subtree() {
    let mut machine = Machine::simple(100_000, 50_000);
    let parent = machine.add_cgroup(MemcgId::ROOT);
    let [left, right] = [0; 2].map(|_| machine.add_cgroup(parent));
    for (memcg, pages) in [(parent, 10), (left, 200), (right, 3000)] {
        machine.add_pages(memcg, FolioType::File, NORMAL, pages);
    }
    let seen = |machine: &Machine, memcg: MemcgId| {
        let lruvec = machine.lru.lruvec_id(memcg, NODE);
        classic::stats::counts(&machine.lru, lruvec).pages(List::InactiveFile)
    };
    assert_eq!(seen(&machine, parent), 0);
    classic::flush_stats(&mut machine.lru);
    let all = [MemcgId::ROOT, parent, left, right].map(|memcg| seen(&machine, memcg));
    assert_eq!(all, [3210, 3210, 200, 3000]);
    machine.add_pages(left, FolioType::File, NORMAL, 1);
    assert_eq!(seen(&machine, parent), 3210);
    machine.lru.classic.exact_stats = true;
    assert_eq!(seen(&machine, parent), 3211);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(usize, FolioType, usize, u32),
    Mark(u32),
    Cold(u32),
    Limit(usize),
    Direct(usize),
    Kswapd,
    Flush,
    Offline(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let folio_type = prop_oneof![Just(FolioType::Anon), Just(FolioType::File)];
    prop_oneof![
        4 => (0..4_usize, folio_type, 1..3_usize, 1..80_u32)
            .prop_map(|(memcg, folio_type, zone, count)| Step::Add(memcg, folio_type, zone, count)),
        6 => any::<u32>().prop_map(Step::Mark),
        2 => any::<u32>().prop_map(Step::Cold),
        3 => (0..4_usize).prop_map(Step::Limit),
        2 => (1..3_usize).prop_map(Step::Direct),
        3 => Just(Step::Kswapd),
        1 => Just(Step::Flush),
        1 => (1..4_usize).prop_map(Step::Offline),
    ]
}

/// The pages on all lists, counted by walking them; asserts that sizes agree.
fn listed_pages(machine: &Machine) -> u64 {
    let mut listed = 0;
    for lruvec in &machine.lru.lruvecs {
        for list in List::ALL {
            let state = &lruvec.classic;
            let walked = state.list(list).iter_from_tail(&machine.lru.folios).count() as u64;
            assert_eq!(walked, state.total_pages(list));
            let by_zone: u64 = state.size_pages(list, NORMAL) - state.size_pages(list, 0);
            assert_eq!(walked, by_zone);
            listed += walked;
        }
    }
    listed
}

proptest! {
    /// Every page stays on one list until it is evicted, in any tree and with any reclaimer.
    #[test]
    fn no_page_is_lost(
        steps in prop::collection::vec(step(), 1..120),
        old: bool,
    ) {
        let (settings, profile) = if old {
            (Settings::linux_6_12(), profile::V6_12)
        } else {
            (Settings::linux_7_2(), profile::V7_2)
        };
        let zones = [(0, 0), (4000, 100), (4000, 100), (0, 0)];
        let mut machine = Machine::new(zones, settings, profile);
        let parent = machine.add_cgroup(MemcgId::ROOT);
        let memcgs = [MemcgId::ROOT, parent, machine.add_cgroup(parent), machine.add_cgroup(parent)];
        let mut kswapd = Kswapd::new(NODE, 1);
        let mut added = 0;
        for step in steps {
            let is_usable = |machine: &Machine, memcg: usize| {
                machine.lru.memcgs[memcgs[memcg].index()].online
            };
            match step {
                Step::Add(memcg, folio_type, zone, count) if is_usable(&machine, memcg) => {
                    machine.add_pages(memcgs[memcg], folio_type, zone, count);
                    added += count;
                }
                Step::Mark(page) | Step::Cold(page) if added > 0 => {
                    let pfn = Pfn(page % added);
                    if !machine.lru.folios[pfn].has(Flag::Lru) {
                        continue;
                    }
                    if matches!(step, Step::Mark(_)) {
                        machine.lru.mark_accessed(pfn, 0);
                        machine.lru.mark_accessed(pfn, 0);
                    } else {
                        machine.lru.deactivate(pfn, 0);
                    }
                }
                Step::Limit(memcg) => {
                    let request = limit(memcgs[memcg]);
                    try_to_free_mem_cgroup_pages(&mut machine.lru, &mut machine.world, request);
                }
                Step::Direct(reclaim_idx) => {
                    let request = DirectRequest { reclaim_idx, ..direct() };
                    try_to_free_pages(&mut machine.lru, &mut machine.world, request);
                }
                Step::Kswapd => {
                    kswapd.wake(&machine.lru, &machine.world, 0, 3);
                    kswapd.step(&mut machine.lru, &mut machine.world);
                }
                Step::Flush => classic::flush_stats(&mut machine.lru),
                Step::Offline(memcg) => {
                    let memcg = memcgs[memcg];
                    let group = &machine.lru.memcgs[memcg.index()];
                    let children = &group.children;
                    let leaf = children.iter().all(|child| !machine.lru.memcgs[child.index()].online);
                    if group.online && leaf {
                        machine.lru.memcg_offline(memcg, 0);
                    }
                }
                _ => {}
            }
            prop_assert_eq!(listed_pages(&machine) + machine.world.evicted.len() as u64, added.into());
        }
    }
}
