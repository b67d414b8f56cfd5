// SPDX-License-Identifier: Apache-2.0
//! Reclaim of the whole machine: order of cgroups, protection, initial priority, `min_ttl`.

use agewise_kernel::ids::{MemcgId, NodeId};
use agewise_kernel::mglru::{self, Profile, Settings, profile::MemcgOrder};
use agewise_kernel::reclaim::{DEF_PRIORITY, Reclaimer, ScanControl};
use agewise_kernel::world::Protection;

use crate::machine::{Layout, Machine};
use crate::trace::Touch;

const NODE: NodeId = NodeId(0);

/// A machine with 4000 anon pages in its cgroup, aged so that all can be evicted.
fn machine(profile: &str, order: Option<MemcgOrder>) -> Machine {
    let settings = Settings {
        profile: *Profile::by_name(profile).expect("known profile"),
        memcg_order: order,
        ..Settings::default()
    };
    let layout = Layout {
        anon: 4000,
        file: 0,
        mapped: false,
        no_recency: false,
    };
    let mut machine = Machine::with_layout(layout, settings, 6000);
    for page in 0..4000 {
        machine.access(Touch::Anon(page));
    }
    machine.lru.drain_all();
    machine
}

fn request(reclaimer: Reclaimer, pages: u64) -> ScanControl {
    ScanControl::new(reclaimer, MemcgId::ROOT, pages)
}

/// Direct reclaim: one pass per priority until enough is reclaimed.
fn reclaim(machine: &mut Machine, pages: u64) -> u64 {
    let mut sc = request(Reclaimer::Direct, pages);
    for priority in (0..=DEF_PRIORITY).rev() {
        sc.priority = priority;
        mglru::shrink_node(&mut machine.lru, &mut machine.world, NODE, &mut sc);
        if sc.nr_reclaimed >= pages {
            break;
        }
    }
    machine.verify();
    sc.nr_reclaimed
}

#[test]
fn the_machine_reclaims_what_it_wants_in_any_order() {
    for profile in ["7.2", "6.14", "6.12", "v6"] {
        for order in [MemcgOrder::MemcgLru, MemcgOrder::Cursor] {
            let mut machine = machine(profile, Some(order));
            for _ in 0..4 {
                let reclaimed = reclaim(&mut machine, 32);
                assert!(
                    (32..=128).contains(&reclaimed),
                    "{profile} {order:?}: {reclaimed}"
                );
            }
        }
    }
}

#[test]
fn min_is_never_reclaimed_and_low_only_at_need() {
    for order in [MemcgOrder::MemcgLru, MemcgOrder::Cursor] {
        let mut machine = machine("7.2", Some(order));
        machine.world.protection = Protection {
            min_pages: 5000,
            low_pages: 5000,
            usage_pages: 4002,
        };
        assert_eq!(reclaim(&mut machine, 32), 0, "{order:?}");
        machine.world.protection.min_pages = 0;
        let reclaimed = reclaim(&mut machine, 32);
        let memcg = machine.memcg.index();
        match order {
            // The second visit to a cgroup within its low protection reclaims the few pages beyond
            // it.
            MemcgOrder::MemcgLru => {
                assert!(machine.lru.memcgs[memcg].low_events > 0);
                assert!(machine.counts()[2] > 0, "nothing was even sorted");
            }
            MemcgOrder::Cursor => assert_eq!(reclaimed, 0, "kept for the retry"),
        }
    }
}

/// The kernels count a visit below `memory.low`; the patches of 2022 leave the cgroup to a second
/// pass.
#[test]
fn cgroups_are_visited_in_the_order_of_the_profile() {
    for (profile, events) in [("v6", 0), ("6.12", 1), ("6.14", 1), ("7.2", 1)] {
        let mut machine = machine(profile, None);
        machine.world.protection = Protection {
            min_pages: 0,
            low_pages: 5000,
            usage_pages: 4002,
        };
        reclaim(&mut machine, 32);
        let low_events = machine.lru.memcgs[machine.memcg.index()].low_events;
        assert_eq!(low_events.min(1), events, "{profile}: {low_events}");
    }
}

#[test]
fn a_large_request_starts_at_a_lower_priority() {
    let mut machine = machine("7.2", None);
    let mut sc = request(Reclaimer::Kswapd, 512);
    mglru::shrink_node(&mut machine.lru, &mut machine.world, NODE, &mut sc);
    // Nothing is inactive yet: fls(0) - 1 - fls(511) is below the lower bound.
    assert_eq!(sc.priority, DEF_PRIORITY / 2);
    let mut sc = request(Reclaimer::Kswapd, 63);
    mglru::shrink_node(&mut machine.lru, &mut machine.world, NODE, &mut sc);
    assert_eq!(sc.priority, DEF_PRIORITY, "small requests do not");
}

#[test]
fn min_ttl_kills_rather_than_evict_the_young() {
    for profile in ["7.2", "6.12"] {
        let mut machine = machine(profile, None);
        let mut step = |min_ttl_ms: u32, now_ms: u64| {
            machine.lru.mglru.min_ttl_ms = min_ttl_ms;
            machine.world.now_ns = now_ms * 1_000_000;
            let mut sc = request(Reclaimer::Kswapd, 32);
            // Small cgroups are skipped at high priority values.
            sc.priority = 6;
            let before = machine.world.kills;
            let killed = mglru::age_node(&mut machine.lru, &mut machine.world, NODE, &mut sc);
            assert_eq!(killed, machine.world.kills > before);
            killed
        };
        assert!(!step(0, 10), "{profile}: off");
        assert!(step(1000, 10), "{profile}: everything is 10 ms old");
        assert!(step(1000, 1000), "{profile}: not yet");
        assert!(
            !step(1000, 1004),
            "{profile}: the oldest generation is old enough"
        );
    }
}

/// The patch set of 2022 ages in kswapd; the kernels do not.
#[test]
fn kswapd_ages_in_v6_only() {
    for (profile, ages) in [("7.2", false), ("6.12", false), ("v6", true)] {
        let mut machine = machine(profile, None);
        // Empty old generations are retired, so two remain.
        let mut sc = request(Reclaimer::Kswapd, 32);
        sc.priority = 6;
        mglru::shrink_node(&mut machine.lru, &mut machine.world, NODE, &mut sc);
        let before = machine.lru.work.agings;
        let mut sc = request(Reclaimer::Kswapd, 32);
        mglru::age_node(&mut machine.lru, &mut machine.world, NODE, &mut sc);
        assert_eq!(machine.lru.work.agings > before, ages, "{profile}");
    }
}
