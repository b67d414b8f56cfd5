// SPDX-License-Identifier: Apache-2.0
//! The choice of blocks compared with obvious models.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::choice::upper_half;
use super::*;
use crate::generations::{LABELS, Sizes};

fn area(pages: std::ops::Range<u64>) -> Area {
    Area {
        pages,
        identity: Identity::Address,
        kind: 0,
    }
}

fn pages_of(pieces: &[Piece]) -> BTreeSet<u64> {
    pieces
        .iter()
        .flat_map(|piece| piece.pages.clone())
        .collect()
}

/// Whether a block is followed, determined for that block alone: at each level it is in the
/// selected half.
fn is_followed(block: u64, level: Level) -> bool {
    (1..=level).all(|level| block >> (level - 1) & 1 == upper_half(0, block >> level, level))
}

proptest! {
    /// Checking block by block gives the same answer, and pieces are ascending, disjoint and within
    /// their area.
    #[test]
    fn blocks_are_those_that_win(start in 0u64..2000, length in 1u64..3000, level in 1u8..8) {
        let area = area(start..start + length);
        let pieces = choose(std::slice::from_ref(&area), level, 16, 0);
        let wanted: BTreeSet<u64> =
            area.pages.clone().filter(|page| is_followed(page / 16, level)).collect();
        prop_assert_eq!(pages_of(&pieces), wanted);
        prop_assert!(pieces.windows(2).all(|two| two[0].pages.end <= two[1].pages.start));
    }

    /// A coarser sample follows nothing that the finer one did not; splitting a mapping changes
    /// nothing.
    #[test]
    fn samples_are_nested_and_do_not_depend_on_splits(
        start in 0u64..5000, length in 2u64..5000, at in 1u64..5000, level in 0u8..8,
    ) {
        let whole = area(start..start + length);
        let middle = start + at % length;
        let split = [area(start..middle), area(middle..start + length)];
        let split: Vec<Area> = split.into_iter().filter(|area| !area.pages.is_empty()).collect();
        let finer = pages_of(&choose(std::slice::from_ref(&whole), level, 16, 0));
        let coarser = pages_of(&choose(&[whole], level + 1, 16, 0));
        prop_assert!(coarser.is_subset(&finer));
        prop_assert_eq!(pages_of(&choose(&split, level, 16, 0)), finer);
    }

    /// A page of a file is followed wherever it is mapped, or nowhere.
    #[test]
    fn a_page_of_a_file_is_followed_everywhere_or_nowhere(
        at in [0u64..10_000, 20_000..30_000], from in [0u64..100, 0..100], level in 1u8..6,
    ) {
        let followed = |which: usize| -> BTreeSet<u64> {
            let area = Area {
                pages: at[which]..at[which] + 400,
                identity: Identity::File { seed: 7, first_page: from[which] },
                kind: 1,
            };
            let pieces = choose(&[area], level, 16, 0);
            pages_of(&pieces).into_iter().map(|page| page - at[which] + from[which]).collect()
        };
        let both = from[0].max(from[1])..from[0].min(from[1]) + 400;
        let [a, b] = [followed(0), followed(1)];
        let (a, b): (Vec<_>, Vec<_>) = (a.range(both.clone()).collect(), b.range(both).collect());
        prop_assert_eq!(a, b);
    }

    #[test]
    fn scaled_sums_are_exact(
        whole in prop::collection::vec([0u64..1000, 0..10], LABELS),
        sampled in prop::collection::vec([0u64..1000, 0..3], LABELS),
        known in [0u64..1 << 40, 0..2000],
    ) {
        let sizes = |of: &[[u64; 2]]| -> Sizes { std::array::from_fn(|label| of[label]) };
        let (whole, sampled) = (sizes(&whole), sizes(&sampled));
        let scaled = scale(&whole, &sampled, known);
        for page_type in 0..2 {
            let sum = |sizes: &Sizes| sizes.iter().map(|by| by[page_type]).sum::<u64>();
            let seen = sum(&whole) + sum(&sampled);
            prop_assert_eq!(sum(&scaled), known[page_type].max(seen));
            for label in 0..LABELS {
                let at_least = whole[label][page_type] + sampled[label][page_type];
                prop_assert!(scaled[label][page_type] >= at_least);
            }
        }
    }
}

#[test]
fn what_is_followed_is_bounded_whatever_there_is() {
    let bounds = Bounds::default();
    for resident in (10..40).flat_map(|shift| [1u64 << shift, (1 << shift) + 4099]) {
        let level = level_for(resident, 0, &bounds);
        let bound = bounds.sampled_pages();
        assert!(resident >> level <= bound, "{resident}");
        assert_ne!(level, 1, "a half costs more than all");
        let least = if level == LEVEL_MIN {
            bound / 4
        } else {
            bound / 2
        };
        assert!(level == 0 || resident >> level >= least);
        // It never becomes finer.
        assert!(level_for(resident / 2, level, &bounds) >= level);
    }
    assert_eq!(level_for(u64::MAX, 0, &bounds), LEVEL_MAX);
}

#[test]
fn small_mappings_are_followed_whole_as_far_as_they_fit() {
    let areas = [area(0..4), area(100..107), area(200..216), area(1000..9000)];
    let limit = |pages_max| whole_limit([&areas[..]].into_iter(), pages_max);
    // 4 and 7 pages are in one size class.
    assert_eq!([3, 4, 11, 27, 9000].map(limit), [3, 3, 15, 4095, u64::MAX]);
    let pieces = choose(&areas, 5, 16, limit(27));
    let whole: u64 = pieces
        .iter()
        .filter(|piece| piece.is_whole)
        .map(|p| p.pages.end - p.pages.start)
        .sum();
    assert_eq!(whole, 27);
    // Neighbours of one kind are one mapping.
    let mut split = [area(0..4), area(4..4000)];
    assert!(
        choose(&split, 3, 16, 15)
            .iter()
            .all(|piece| !piece.is_whole)
    );
    split[1].kind = 1;
    assert_eq!(
        choose(&split, 3, 16, 15)
            .iter()
            .filter(|piece| piece.is_whole)
            .count(),
        1
    );
}

#[test]
fn mappings_above_the_limit_are_sampled_with_all_their_areas() {
    let areas = [area(0..3), area(3..8), area(100..104), area(200..300)];
    let of = |limit| sampled(&areas, limit).collect::<Vec<_>>();
    assert_eq!(of(0), [0, 1, 2, 3]);
    assert_eq!(of(4), [0, 1, 3]);
    assert_eq!(of(8), [3]);
    assert!(of(100).is_empty());
}
