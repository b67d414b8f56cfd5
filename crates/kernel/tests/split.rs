// SPDX-License-Identifier: Apache-2.0
//! Huge folios for which swap has no room in one piece.

mod support;

use agewise_kernel::classic::Settings;
use agewise_kernel::folio::{Flag, FolioType, Pfn};
use agewise_kernel::ids::{LruvecId, MemcgId};
use agewise_kernel::mglru::profile;
use agewise_kernel::reclaim::shrink_folios::shrink_folios;
use agewise_kernel::reclaim::{BatchOutcome, Reclaimer, ScanControl};
use support::node::Machine;

const ROOT: LruvecId = LruvecId(0);
const HUGE: Pfn = Pfn(512);
const ZONES: [(u64, u64); 4] = [(0, 0), (0, 0), (4096, 1024), (0, 0)];

fn machines() -> [Machine; 3] {
    [
        Machine::new(ZONES, Settings::linux_7_2(), profile::V7_2),
        Machine::multi_gen(ZONES, profile::V6_12),
        Machine::multi_gen(ZONES, profile::V7_2),
    ]
}

/// Reclaims an isolated huge folio between two isolated pages, with this many free slots.
fn reclaim(machine: &mut Machine, flag: Option<Flag>, slots: u64) -> (Vec<Pfn>, BatchOutcome) {
    let folios = &mut machine.lru.folios;
    folios.start(HUGE, FolioType::Anon, 2, 9, ROOT);
    folios[HUGE].set(Flag::Workingset);
    if let Some(flag) = flag {
        folios[HUGE].set(flag);
    }
    let mut batch = vec![Pfn(1), HUGE, Pfn(2)];
    for pfn in [Pfn(1), Pfn(2)] {
        folios.start(pfn, FolioType::Anon, 2, 0, ROOT);
    }
    machine.world.swap_pages = slots;
    let mut sc = ScanControl::new(Reclaimer::Direct, MemcgId::ROOT, 32);
    let (lru, world) = (&mut machine.lru, &mut machine.world);
    let outcome = shrink_folios(lru, world, ROOT, &mut sc, &mut batch, false);
    assert_eq!(sc.nr_scanned, 514, "whole or split, it is scanned once");
    (batch, outcome)
}

#[test]
fn its_pages_go_one_by_one_and_in_order() {
    for mut machine in machines() {
        let (left, outcome) = reclaim(&mut machine, None, 1000);
        let mut expected = vec![Pfn(1)];
        expected.extend((512..1024).map(Pfn));
        expected.push(Pfn(2));
        assert_eq!((machine.world.evicted, left), (expected, Vec::new()));
        assert_eq!((outcome.reclaimed, outcome.pageouts), (514, 514));
        let events = machine.lru.lruvecs[0].events;
        assert_eq!((events.thp_swpout, events.thp_swpout_fallback), (0, 1));
        assert_eq!((events.stolen(), machine.lru.work.splits), (514, 1));
    }
}

#[test]
fn pages_without_a_slot_stay_and_are_active() {
    for mut machine in machines() {
        let (left, outcome) = reclaim(&mut machine, None, 101);
        assert_eq!((outcome.reclaimed, outcome.activated), (101, [413, 0]));
        let mut expected: Vec<Pfn> = (612..1024).map(Pfn).collect();
        expected.push(Pfn(2));
        assert_eq!(left, expected);
        for &pfn in &left[..412] {
            let folio = &machine.lru.folios[pfn];
            assert!(folio.order() == 0 && folio.has(Flag::Active) && folio.has(Flag::Workingset));
        }
    }
}

#[test]
fn one_that_somebody_holds_stays_whole() {
    for mut machine in machines() {
        let (left, outcome) = reclaim(&mut machine, Some(Flag::BatchPending), 1000);
        assert_eq!((left, outcome.activated), (vec![HUGE], [512, 0]));
        assert_eq!(machine.lru.folios[HUGE].order(), 9);
        assert_eq!(machine.lru.work.splits, 0);
    }
}
