// SPDX-License-Identifier: Apache-2.0
//! The decision functions of each profile, case by case.

use crate::folio::{Flag, Folio, FolioTable, FolioType, Pfn};
use crate::ids::LruvecId;

use super::Profile;
use super::ablation::Ablation;
use super::profile::{V6_12, V7_2};

fn folio(folio_type: FolioType, flags: &[Flag]) -> Folio {
    let mut table = FolioTable::new(1);
    table.start(Pfn(0), folio_type, 2, 0, LruvecId(0));
    let mut folio = table[Pfn(0)];
    for &flag in flags {
        folio.set(flag);
    }
    folio
}

use FolioType::{Anon, File};

#[test]
fn tiers_of_repeated_reads() {
    for (profile, tiers, always) in [
        // Referenced, workingset, then the refs field: 0 1 2 3 4 uses.
        (V6_12, [0, 0, 1, 2, 2, 3, 3], 5),
        // Referenced, the refs field, then workingset: tier 3 from the sixth read on.
        (V7_2, [0, 0, 1, 2, 2, 3, 3], 5),
    ] {
        let mut page = folio(File, &[]);
        for (reads, tier) in tiers.into_iter().enumerate() {
            assert_eq!(profile.tier(&page), tier, "{} after {reads}", profile.name);
            assert_eq!(profile.always_protected(&page), reads >= always);
            profile.mark_accessed(&mut page);
        }
    }
}

#[test]
fn tiers_of_repeated_reads_with_fewer_tiers() {
    for (of, tiers, expected, always) in [
        // One bit counts uses: tier 1 from two of them on, the last with workingset.
        (V6_12, 3, [0, 0, 1, 2, 2, 2, 2], 3),
        (V7_2, 3, [0, 0, 1, 2, 2, 2, 2], 3),
        // None does: the last tier is the workingset flag alone.
        (V6_12, 2, [0, 0, 1, 1, 1, 1, 1], 2),
        (V7_2, 2, [0, 0, 1, 1, 1, 1, 1], 2),
    ] {
        let profile = Profile { tiers, ..of };
        let mut page = folio(File, &[]);
        for (reads, tier) in expected.into_iter().enumerate() {
            let what = format!("{} with {tiers} tiers after {reads}", profile.name);
            assert_eq!(profile.tier(&page), tier, "{what}");
            assert_eq!(profile.always_protected(&page), reads >= always, "{what}");
            profile.mark_accessed(&mut page);
        }
    }
}

#[test]
fn a_lazy_promotion_is_not_counted_as_protection_in_7_2() {
    let mut page = folio(File, &[]);
    for _ in 0..5 {
        V7_2.mark_accessed(&mut page);
    }
    assert!(V7_2.always_protected(&page) && !V7_2.counts_as_protected(&page));
    let mut page = folio(File, &[]);
    for _ in 0..5 {
        V6_12.mark_accessed(&mut page);
    }
    assert!(V6_12.always_protected(&page) && V6_12.counts_as_protected(&page));
}

/// The generation entered, counted from the youngest.
fn distance(profile: Profile, page: &Folio, rotate: bool) -> u64 {
    7 - profile.insertion_seq(page, 7, [4, 4], rotate)
}

#[test]
fn where_folios_enter() {
    let cases: &[(FolioType, &[Flag], u64, u64)] = &[
        // type, flags, distance in 6.12, in 7.2
        (Anon, &[Flag::Active], 0, 1),
        (Anon, &[Flag::Active, Flag::Workingset], 0, 0),
        (Anon, &[], 1, 1),
        (Anon, &[Flag::Swapcache], 2, 3),
        (Anon, &[Flag::Swapcache, Flag::Referenced], 2, 2),
        (File, &[], 2, 3),
        (File, &[Flag::Referenced], 2, 2),
        (File, &[Flag::Workingset], 2, 2),
        (File, &[Flag::Reclaim, Flag::Dirty], 1, 1),
        (File, &[Flag::Reclaim, Flag::Writeback], 1, 1),
        (File, &[Flag::Reclaim], 2, 3),
    ];
    for (folio_type, flags, in_6_12, in_7_2) in cases {
        let page = folio(*folio_type, flags);
        assert_eq!(
            distance(V6_12, &page, false),
            *in_6_12,
            "6.12 {folio_type:?} {flags:?}"
        );
        assert_eq!(
            distance(V7_2, &page, false),
            *in_7_2,
            "7.2 {folio_type:?} {flags:?}"
        );
    }
    let page = folio(File, &[]);
    assert_eq!(distance(V6_12, &page, true), 3);
    assert_eq!(distance(V7_2, &page, true), 3);
    // With three generations a page enters the one being evicted in 6.12.
    assert_eq!(V6_12.insertion_seq(&page, 7, [5, 5], false), 5);
    // Never below the oldest.
    assert_eq!(V7_2.insertion_seq(&page, 7, [5, 5], false), 5);
}

#[test]
fn unmapped_pages_enter_far_from_the_youngest_of_many_generations() {
    let profile = Profile {
        generations: 7,
        ..V7_2
    };
    let enters = |flags: &[Flag], max_seq, rotate| {
        profile.insertion_seq(&folio(File, flags), max_seq, [0, 0], rotate)
    };
    assert_eq!(enters(&[], 9, false), 3);
    assert_eq!(enters(&[], 9, true), 3);
    assert_eq!(enters(&[Flag::Referenced], 9, false), 4);
    assert_eq!(enters(&[Flag::Active], 9, false), 8);
    // A new lruvec has fewer: its oldest is not below zero.
    assert_eq!(enters(&[], 3, false), 0);
}

#[test]
fn a_fault_marks_the_page() {
    let fault = |profile: Profile, flags: &[Flag]| {
        let mut page = folio(Anon, flags);
        profile.mark_faulted(&mut page, Ablation::default());
        (page.has(Flag::Active), page.has(Flag::Referenced))
    };
    assert_eq!(fault(V6_12, &[]), (true, false));
    assert_eq!(fault(V7_2, &[]), (false, true));
    assert_eq!(fault(V7_2, &[Flag::Workingset]), (true, false));
    assert_eq!(fault(V7_2, &[Flag::Unevictable]), (false, false));
}

#[test]
fn sightings_by_walk() {
    let mut page = folio(Anon, &[]);
    page.set_generation(Some(1));
    assert!(!V7_2.sighted_by_walk(&mut page), "the first only marks");
    assert!(page.has(Flag::Referenced) && !page.has(Flag::Workingset));
    assert!(V7_2.sighted_by_walk(&mut page), "the second promotes");
    assert!(!page.has(Flag::Referenced) && page.has(Flag::Workingset));

    let mut page = folio(Anon, &[Flag::Workingset]);
    page.set_generation(Some(1));
    page.set_refs(2);
    assert!(V6_12.sighted_by_walk(&mut page));
    assert!(!page.has(Flag::Workingset) && page.refs() == 0);
    page.set_generation(None);
    assert!(!V6_12.sighted_by_walk(&mut page), "isolated");
    assert!(page.has(Flag::Referenced), "so that reclaim keeps it");
}

#[test]
fn sightings_by_rmap_take_three_steps_in_7_2() {
    let mut page = folio(File, &[]);
    assert!(!V7_2.sighted_by_rmap(&mut page, false));
    assert!(page.has(Flag::Referenced) && page.refs() == 0);
    assert!(V7_2.sighted_by_rmap(&mut page, false));
    assert_eq!((page.refs(), page.has(Flag::Workingset)), (1, false));
    assert!(V7_2.sighted_by_rmap(&mut page, false));
    assert!(page.has(Flag::Workingset) && !page.has(Flag::Referenced) && page.refs() == 0);
}

#[test]
fn isolation_keeps_what_the_kernel_keeps() {
    let isolated = |profile: Profile, flags: &[Flag]| {
        let mut page = folio(Anon, flags);
        page.set_refs(3);
        profile.isolated(&mut page);
        let has = |flag| page.has(flag);
        (has(Flag::Referenced), has(Flag::Workingset), page.refs())
    };
    let (r, w) = (Flag::Referenced, Flag::Workingset);
    assert_eq!(isolated(V6_12, &[w]), (false, false, 0));
    assert_eq!(isolated(V6_12, &[r, w]), (false, true, 3));
    assert_eq!(isolated(V7_2, &[w]), (false, true, 0));
    assert_eq!(isolated(V7_2, &[r, w]), (true, true, 3));
}

#[test]
fn cold_advice() {
    let mut page = folio(File, &[Flag::Referenced, Flag::Workingset]);
    page.set_generation(Some(0));
    assert!(
        V7_2.deactivate_in_place(&mut page, 0),
        "in the oldest already"
    );
    assert!(!page.has_any(Flag::Referenced as u32 | Flag::Workingset as u32));
    page.set_generation(Some(2));
    assert!(!V7_2.deactivate_in_place(&mut page, 0));
    assert!(!V6_12.deactivate_in_place(&mut page, 0));
}
