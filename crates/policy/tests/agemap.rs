// SPDX-License-Identifier: Apache-2.0
//! The age map compared with the obvious model: a hash map from page to generation.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use agewise_policy::agemap::{AgeMap, Facts, Leaves, LookCounts, Run};
use agewise_policy::generations::{LABEL_UNSEEN, LABELS, PageType, Sizes, idle_for};
use agewise_policy::table::{PageSet, TableBits};
use proptest::prelude::*;

/// What the model knows about a page.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Page {
    /// The look that saw it accessed; `None` if it is unseen.
    seq: Option<u64>,
    swapped: bool,
    page_type: PageType,
}

/// One page in one look.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Old,
    Young,
    Swapped,
}

type Looked = BTreeMap<u64, (Seen, PageType)>;

fn bits_of(index: u64, looked: &Looked, wanted: PageType) -> TableBits {
    let mut bits = TableBits::default();
    for (page, (seen, page_type)) in looked.range(index * 512..(index + 1) * 512) {
        let (word, bit) = ((page % 512 / 64) as usize, 1 << (page % 64));
        if *page_type != wanted {
            continue;
        }
        match seen {
            Seen::Old => bits.present[word] |= bit,
            Seen::Young => {
                bits.present[word] |= bit;
                bits.young[word] |= bit;
            }
            Seen::Swapped => bits.swapped[word] |= bit,
        }
    }
    bits
}

fn show(map: &mut AgeMap, looked: &Looked) -> (LookCounts, Sizes) {
    let mut look = map.look();
    let mut indices: Vec<u64> = looked.keys().map(|page| page / 512).collect();
    indices.dedup();
    for index in indices {
        for page_type in PageType::ALL {
            let bits = bits_of(index, looked, page_type);
            if bits != TableBits::default() {
                let even = bits.present & PageSet::new([0x5555_5555_5555_5555; 8]);
                let files = PageSet::new([u64::MAX * page_type as u64; 8]);
                look.table(Facts {
                    index,
                    bits: &bits,
                    files,
                    parts: &[(1, even)],
                })
                .unwrap();
            }
        }
    }
    look.finish_with_returned()
}

#[derive(Default)]
struct Model {
    pages: HashMap<u64, Page>,
    looks: u64,
    counts: LookCounts,
}

impl Model {
    fn look(&mut self, looked: &Looked, seq: u64) {
        let before = std::mem::take(&mut self.pages);
        self.counts.gone += before
            .keys()
            .filter(|page| !looked.contains_key(page))
            .count() as u64;
        for (page, (seen, page_type)) in looked {
            let old = before.get(page);
            let now = (self.looks > 0).then_some(seq);
            let (seq, swapped) = match (seen, old) {
                (Seen::Swapped, old) => {
                    self.counts.swapped_out += u64::from(old.is_some_and(|old| !old.swapped));
                    (old.and_then(|old| old.seq), true)
                }
                (Seen::Young, _) | (Seen::Old, None) if self.looks > 0 => (now, false),
                (_, old) => (old.and_then(|old| old.seq), false),
            };
            self.counts.refaulted += u64::from(!swapped && old.is_some_and(|old| old.swapped));
            self.pages.insert(
                *page,
                Page {
                    seq,
                    swapped,
                    page_type: *page_type,
                },
            );
        }
        self.looks += 1;
    }
}

/// What the next look must find accessed, by the previous label and type.
fn came_back(map: &AgeMap, looked: &Looked, counts: bool) -> Box<Sizes> {
    let mut sizes = Box::new([[0u64; 2]; LABELS]);
    for (page, (seen, _)) in looked {
        if let Some(state) = map.page(*page).filter(|_| counts && *seen == Seen::Young) {
            sizes[usize::from(state.label)][state.page_type as usize] += 1;
        }
    }
    sizes
}

/// Pages of three tables, in runs, so that words and tables are often uniform.
fn looked() -> impl Strategy<Value = Looked> {
    let seen = prop_oneof![
        4 => Just(Some(Seen::Old)),
        4 => Just(Some(Seen::Young)),
        1 => Just(Some(Seen::Swapped)),
        2 => Just(None),
    ];
    let stretch = (
        seen,
        prop_oneof![1u64..4, 40u64..90, 500u64..1100],
        any::<bool>(),
    );
    prop::collection::vec(stretch, 1..14).prop_map(|stretches| {
        let mut looked = Looked::new();
        let mut page = 0u64;
        for (seen, length, is_file) in stretches {
            for _ in 0..length {
                if let Some(seen) = seen.filter(|_| page < 1536) {
                    // Tables far apart, as in an address space.
                    let at = page + page / 512 * 1_000_000 * 512;
                    looked.insert(at, (seen, PageType::ALL[usize::from(is_file)]));
                }
                page += 1;
            }
        }
        looked
    })
}

fn check(map: &AgeMap, model: &Model, births: &[u64], now_ms: u64) -> Result<(), TestCaseError> {
    let mut sizes = Box::new([[0u64; 2]; LABELS]);
    let mut even = Box::new([[0u64; 2]; LABELS]);
    let mut swapped = [0; 2];
    for (page, wanted) in &model.pages {
        let state = map.page(*page).expect("a page the model has");
        prop_assert_eq!(state.swapped, wanted.swapped);
        prop_assert_eq!(state.page_type, wanted.page_type);
        match wanted.seq {
            None => prop_assert_eq!(state.label, LABEL_UNSEEN),
            Some(seq) => {
                let (youngest_ms, oldest_ms) = map
                    .generations()
                    .age_bounds_ms(state.label, now_ms)
                    .unwrap();
                let closed_ms = births.get(seq as usize + 1).copied().unwrap_or(now_ms);
                prop_assert!(oldest_ms.unwrap() >= now_ms - births[seq as usize]);
                prop_assert!(youngest_ms <= now_ms - closed_ms);
            }
        }
        if wanted.swapped {
            swapped[wanted.page_type as usize] += 1;
        } else {
            sizes[usize::from(state.label)][wanted.page_type as usize] += 1;
            if page % 2 == 0 {
                even[usize::from(state.label)][wanted.page_type as usize] += 1;
            }
        }
    }
    prop_assert_eq!(map.generations().sizes(), &*sizes);
    prop_assert_eq!(map.swapped(), swapped);
    let range = map.sizes_within(0..u64::MAX);
    prop_assert_eq!(&range.sizes, &sizes);
    prop_assert_eq!(range.swapped, swapped);
    if let Some(part) = map.part_sizes(1) {
        prop_assert_eq!(part.to_sizes(), *even);
    }
    Ok(())
}

fn check_runs(map: &AgeMap, now_ms: u64, older_than_ms: u64) -> Result<(), TestCaseError> {
    let mut found = Vec::new();
    let mut before: Option<Run> = None;
    let since_ms = idle_for(now_ms, older_than_ms);
    map.runs_idle_since(3..1_000_001 * 512 + 300, &since_ms, |run| {
        if let Some(before) = &before {
            let apart = before.pages.end < run.pages.start || before.page_type != run.page_type;
            assert!(
                before.pages.end <= run.pages.start && apart,
                "{before:?} then {run:?}"
            );
        }
        found.extend(run.pages.clone().map(|page| (page, run.page_type)));
        before = Some(run);
        ControlFlow::Continue(())
    });
    let Some((first, last)) = map.generations().labels_idle_since(&since_ms) else {
        prop_assert!(found.is_empty());
        return Ok(());
    };
    let wanted: Vec<_> = (3..512)
        .chain(1_000_001 * 512..1_000_001 * 512 + 300)
        .filter_map(|page| Some((page, map.page(page)?)))
        .filter(|(_, state)| !state.swapped && (first..=last).contains(&state.label))
        .map(|(page, state)| (page, state.page_type))
        .collect();
    prop_assert_eq!(found, wanted);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn it_knows_what_the_model_knows(
        looks in prop::collection::vec((looked(), 1u64..3000), 1..14),
        generations in prop_oneof![Just(3usize), Just(6), Just(126)],
        older_than_ms in 0u64..15_000,
    ) {
        let mut map = AgeMap::with_capacity(0, u64::MAX, generations);
        let mut model = Model::default();
        let mut now_ms = 0;
        let mut births = vec![0];
        let mut total = LookCounts::default();
        for (seq, (looked, step_ms)) in looks.iter().enumerate() {
            let back = came_back(&map, looked, seq > 0);
            let (counts, returned) = show(&mut map, looked);
            prop_assert_eq!(&returned, &*back);
            model.look(looked, seq as u64);
            check(&map, &model, &births, now_ms)?;
            total.refaulted += counts.refaulted;
            total.swapped_out += counts.swapped_out;
            total.gone += counts.gone;
            let present = looked.values().filter(|(seen, _)| *seen != Seen::Swapped).count();
            prop_assert_eq!(counts.present, present as u64);
            now_ms += step_ms;
            map.advance(now_ms);
            births.push(now_ms);
            check(&map, &model, &births, now_ms)?;
            check_runs(&map, now_ms, older_than_ms)?;
        }
        prop_assert_eq!(total, model.counts);
    }
}

fn full(young: bool) -> TableBits {
    let young = if young { PageSet::ALL } else { PageSet::NONE };
    TableBits {
        present: PageSet::ALL,
        young,
        ..TableBits::default()
    }
}

fn anon(index: u64, bits: &TableBits) -> Facts<'_> {
    Facts {
        index,
        bits,
        files: PageSet::NONE,
        parts: &[],
    }
}

/// What a look finds at a table: nothing, a leaf (accessed or not, of a file or not), or base
/// pages, some of them accessed.
#[derive(Clone, Copy, Debug)]
enum Place {
    Hole,
    Leaf(bool, bool),
    Pages(u64),
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        1 => Just(Place::Hole),
        6 => (any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(y, f)| Place::Leaf(y, f)),
        1 => any::<u64>().prop_map(Place::Pages),
    ]
}

/// Shows `places`, with leaves one by one or in runs.
fn show_places(map: &mut AgeMap, places: &[Place], by_runs: bool) -> (LookCounts, Sizes) {
    let mut look = map.look();
    let mut at = 0;
    while let Some(&place) = places.get(at) {
        let first = at as u64;
        at += 1;
        match place {
            Place::Hole => {}
            Place::Pages(young) => {
                let mut bits = full(false);
                bits.young[5] = young;
                look.table(anon(first, &bits)).unwrap();
            }
            Place::Leaf(young, is_file) if by_runs => {
                let alike = |next: &&Place| match next {
                    Place::Leaf(y, f) => (*y, *f) == (young, is_file),
                    _ => false,
                };
                at += places[at..].iter().take_while(alike).count();
                let leaves = Leaves {
                    first,
                    tables: at as u64 - first,
                    young,
                    page_type: PageType::ALL[usize::from(is_file)],
                };
                look.leaves(leaves).unwrap();
            }
            Place::Leaf(young, is_file) => {
                let facts = Facts {
                    index: first,
                    bits: &full(young),
                    files: PageSet::new([u64::MAX * u64::from(is_file); 8]),
                    parts: &[],
                };
                look.table(facts).unwrap();
            }
        }
    }
    look.finish_with_returned()
}

proptest! {
    #[test]
    fn leaves_together_are_leaves_one_by_one(
        looks in prop::collection::vec(prop::collection::vec(place(), 0..40), 1..12),
    ) {
        let (mut one_by_one, mut by_runs) = (AgeMap::new(0, u64::MAX), AgeMap::new(0, u64::MAX));
        for (number, places) in (1u64..).zip(&looks) {
            let wanted = show_places(&mut one_by_one, places, false);
            let got = show_places(&mut by_runs, places, true);
            prop_assert_eq!(got, wanted);
            for page in (0..40 * 512).step_by(97) {
                prop_assert_eq!(by_runs.page(page), one_by_one.page(page), "page {}", page);
            }
            prop_assert_eq!(by_runs.generations().sizes(), one_by_one.generations().sizes());
            one_by_one.advance(number * 1000);
            by_runs.advance(number * 1000);
        }
    }
}

#[test]
fn leaves_before_what_was_shown_are_refused() {
    let mut map = AgeMap::new(0, u64::MAX);
    let mut look = map.look();
    let leaves = |first, tables| Leaves {
        first,
        tables,
        young: true,
        page_type: PageType::Anon,
    };
    look.leaves(leaves(5, 0)).unwrap();
    look.leaves(leaves(5, 3)).unwrap();
    let error = look.leaves(leaves(7, 1)).unwrap_err();
    assert_eq!((error.index, error.last), (7, 7));
    assert_eq!(look.finish().present, 3 * 512);
}

fn look_at(map: &mut AgeMap, tables: std::ops::Range<u64>, bits: &TableBits) {
    let mut look = map.look();
    for index in tables {
        look.table(anon(index, bits)).unwrap();
    }
    look.finish();
}

#[test]
fn a_process_born_while_watched_has_no_unseen_pages() {
    let mut map = AgeMap::newborn(5000, u64::MAX);
    look_at(&mut map, 0..2, &full(false));
    map.advance(6000);
    let label = map.page(7).unwrap().label;
    assert_eq!(
        map.generations().age_bounds_ms(label, 6000),
        Some((0, Some(1000)))
    );
}

#[test]
fn memory_stays_within_a_tenth_above_one_byte_a_page() {
    let mut map = AgeMap::new(0, u64::MAX);
    let mut mixed = full(true);
    for tables in [1000, 1500, 4096] {
        for tick in 0..3 {
            mixed.young[3] ^= tables << tick;
            look_at(&mut map, 0..tables, &mixed);
            map.advance(tables * 1000 + tick);
        }
        let bytes_per_page = map.memory_bytes() as f64 / map.page_slots() as f64;
        assert!(bytes_per_page <= 1.1, "{bytes_per_page} at {tables} tables");
        assert!(bytes_per_page > 1.0, "tables of one age prove nothing");
    }
    let peak = map.memory_bytes();
    look_at(&mut map, 0..100, &mixed);
    assert!(
        map.memory_bytes() < peak / 10,
        "{} of {peak} bytes kept",
        map.memory_bytes()
    );
    look_at(&mut map, 0..0, &mixed);
    assert_eq!((map.page_slots(), map.generations().pages()), (0, [0, 0]));
}

#[test]
fn tables_of_one_age_take_no_bytes() {
    let mut map = AgeMap::new(0, u64::MAX);
    look_at(&mut map, 0..4096, &full(true));
    map.advance(1000);
    look_at(&mut map, 0..4096, &full(true));
    assert!(map.memory_bytes() < 4096 * 64, "{}", map.memory_bytes());
    assert_eq!(map.generations().pages(), [4096 * 512, 0]);
}

#[test]
fn a_look_that_breaks_off_leaves_the_rest_as_it_was() {
    let mut map = AgeMap::new(0, u64::MAX);
    look_at(&mut map, 0..8, &full(false));
    map.advance(1000);
    let mut look = map.look();
    let bits = full(true);
    look.table(anon(3, &bits)).unwrap();
    look.table(anon(9, &bits)).unwrap();
    let error = look.table(anon(4, &bits)).unwrap_err();
    assert_eq!((error.index, error.last), (4, 9));
    drop(look);
    assert_eq!(map.generations().pages(), [9 * 512, 0]);
    assert_eq!(map.page(5 * 512).unwrap().label, LABEL_UNSEEN);
    assert_ne!(map.page(3 * 512).unwrap().label, LABEL_UNSEEN);
}

#[test]
fn tables_left_out_on_purpose_stay() {
    let mut map = AgeMap::new(0, u64::MAX);
    look_at(&mut map, 0..8, &full(false));
    map.advance(1000);
    let mut look = map.look();
    look.keep(2..5);
    assert_eq!(look.finish().gone, 5 * 512);
    assert_eq!(map.generations().pages(), [3 * 512, 0]);
}
