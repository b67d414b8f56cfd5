// SPDX-License-Identifier: Apache-2.0
//! Rules about dirty file pages, which no reference trace covers.

use agewise_kernel::folio::{Flag, Pfn};
use agewise_kernel::ids::{MemcgId, NodeId};
use agewise_kernel::mglru::{self, Profile, Settings};
use agewise_kernel::reclaim::{Reclaimer, ScanControl};

use crate::machine::{Layout, Machine};
use crate::trace::Touch;

/// A machine with 4000 file pages, all dirty.
fn machine(profile: Profile) -> Machine {
    let settings = Settings {
        profile,
        ..Settings::default()
    };
    let layout = Layout {
        anon: 0,
        file: 4000,
        mapped: false,
        no_recency: false,
    };
    let mut machine = Machine::with_layout(layout, settings, 6000);
    for page in 0..4000 {
        machine.access(Touch::Read(page));
    }
    machine.lru.drain_all();
    for pfn in (0..6000).map(Pfn) {
        if machine.lru.folios[pfn].has(Flag::Lru) {
            machine.lru.folios[pfn].set(Flag::Dirty);
        }
    }
    machine
}

/// One pass of direct reclaim for 64 pages that scans about `pages` pages.
fn reclaim(machine: &mut Machine, pages: u64, io_allowed: bool) -> ScanControl {
    let mut sc = ScanControl::new(Reclaimer::Direct, MemcgId::ROOT, 64);
    sc.io_allowed = io_allowed;
    sc.priority = (4000 / pages).ilog2();
    mglru::shrink_node(&mut machine.lru, &mut machine.world, NodeId(0), &mut sc);
    machine.verify();
    sc
}

fn profile(name: &str) -> Profile {
    *Profile::by_name(name).expect("known profile")
}

#[test]
fn only_v6_sorts_dirty_pages_without_isolating_them() {
    for (name, sorts) in [("v6", true), ("6.12", false), ("7.2", false)] {
        let mut machine = machine(profile(name));
        let sc = reclaim(&mut machine, 60, true);
        assert_eq!(sc.seen.dirty == 0, sorts, "{name}");
    }
}

#[test]
fn who_must_not_start_io_leaves_dirty_pages_until_7_2() {
    for (name, leaves) in [("6.12", true), ("7.2", false)] {
        let sc = reclaim(&mut machine(profile(name)), 60, false);
        assert_eq!(sc.seen.dirty == 0, leaves, "{name}");
    }
}

#[test]
fn the_flusher_is_woken_after_each_batch_in_7_2_and_once_a_pass_before() {
    for (name, once) in [("6.12", true), ("7.2", false)] {
        let mut machine = machine(profile(name));
        let sc = reclaim(&mut machine, 1000, true);
        assert!(sc.seen.dirty > 64, "{name}");
        let wakes = machine.world.flusher_wakes;
        // The machine has two cgroups, and a pass visits both.
        assert_eq!((1..=2).contains(&wakes), once, "{name}: {wakes}");
    }
}
