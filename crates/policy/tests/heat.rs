// SPDX-License-Identifier: Apache-2.0
//! Heat against the obvious model: a float a page; and what it is worth on the loads it is for.

use std::collections::HashMap;

use agewise_policy::heat::{Candidates, HeatMap};
use agewise_policy::table::{PageSet, TableBits};
use proptest::prelude::*;

fn set(pages: &mut PageSet, page: u64) {
    pages.insert((page % 512) as usize);
}

/// Page, young: tables of all of them, ascending.
fn tables(pages: &[(u64, bool)], out: &[u64]) -> Vec<(u64, TableBits)> {
    let mut tables = std::collections::BTreeMap::<u64, TableBits>::new();
    for &(page, young) in pages {
        let bits = tables.entry(page / 512).or_default();
        set(&mut bits.present, page);
        if young {
            set(&mut bits.young, page);
        }
    }
    for &page in out {
        set(&mut tables.entry(page / 512).or_default().swapped, page);
    }
    tables.into_iter().collect()
}

fn scan(map: &mut HeatMap, pages: &[(u64, bool)], out: &[u64]) {
    let mut scan = map.scan();
    for (index, bits) in tables(pages, out) {
        scan.table(index, &bits);
    }
    scan.finish();
}

fn candidates(pages: impl Iterator<Item = u64>) -> Vec<Candidates> {
    let pages: Vec<(u64, bool)> = pages.map(|page| (page, false)).collect();
    let of = |(index, bits): (u64, TableBits)| Candidates {
        index,
        pages: bits.present,
    };
    tables(&pages, &[]).into_iter().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Over any scans, heats are near the float's, up to what rounding by chance adds up to.
    #[test]
    fn heat_is_near_the_float(
        decay in prop_oneof![Just(0.5), Just(0.9), Just(0.95), Just(0.98)],
        chances in prop::collection::vec(0u32..100, 1..600),
        scans in 1usize..400,
        seed in any::<u64>(),
    ) {
        let mut map = HeatMap::new(decay);
        let mut model = vec![0.0f64; chances.len()];
        let mut state = seed | 1;
        for _ in 0..scans {
            let mut seen = Vec::new();
            for (page, chance) in chances.iter().enumerate() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let young = (state >> 33) % 100 < u64::from(*chance);
                model[page] = model[page] * decay + f64::from(u8::from(young));
                seen.push((page as u64, young));
            }
            scan(&mut map, &seen, &[]);
        }
        for (page, exact) in model.iter().enumerate() {
            let heat = map.heat(page as u64);
            if *exact < 0.05 {
                prop_assert!(heat < 0.08, "{heat} for {exact}");
            } else {
                prop_assert!((0.65..1.5).contains(&(heat / exact)), "{heat} for {exact}");
            }
        }
    }

    /// As many as asked for (or all), none twice, none that is warmer than one left behind.
    #[test]
    fn the_coldest_are_chosen(
        young in prop::collection::vec(prop::collection::vec(any::<bool>(), 700), 1..12),
        pages in 0u64..900,
    ) {
        let mut map = HeatMap::new(0.9);
        for looked in &young {
            let seen: Vec<_> = looked.iter().enumerate().map(|(p, y)| (p as u64 * 3, *y)).collect();
            scan(&mut map, &seen, &[]);
        }
        let runs = map.coldest(&candidates((0..700).map(|page| page * 3)), pages);
        let chosen: Vec<u64> = runs.iter().cloned().flatten().collect();
        prop_assert!(chosen.is_sorted_by(|a, b| a < b));
        prop_assert_eq!(chosen.len() as u64, pages.min(700));
        let warmest = chosen.iter().map(|page| map.heat(*page)).fold(0.0, f64::max);
        let left = (0..700).map(|page| page * 3).filter(|page| !chosen.contains(page));
        for page in left {
            // Within a quarter of an octave they count as the same.
            prop_assert!(map.heat(page) * 1.2 >= warmest);
        }
    }
}

#[test]
fn what_is_gone_is_forgotten_and_what_is_out_is_not() {
    let mut map = HeatMap::new(0.9);
    scan(
        &mut map,
        &[(1, true), (2, true), (3, true), (5000, true)],
        &[],
    );
    scan(&mut map, &[(1, false)], &[2]);
    assert!((map.heat(1) - 0.9).abs() < 0.1 && (map.heat(2) - 0.9).abs() < 0.1);
    assert_eq!((map.heat(3), map.heat(5000)), (0.0, 0.0));
    assert_eq!(map.memory_bytes() / 512, 1);
}

#[test]
fn a_long_silence_makes_everything_cold() {
    let mut map = HeatMap::new(0.95);
    let one = [(7, true), (8, false)];
    for _ in 0..3000 {
        scan(&mut map, &one, &[]);
    }
    assert!((15.0..25.0).contains(&map.heat(7)), "{}", map.heat(7));
    for _ in 0..3000 {
        scan(&mut map, &[(7, false), (8, true)], &[]);
    }
    assert_eq!(map.heat(7), 0.0);
    assert!(map.heat(8) > 15.0);
}

#[test]
fn neighbours_alike_make_runs() {
    let mut map = HeatMap::new(0.9);
    let seen: Vec<_> = (0..2048).map(|page| (page, page < 1024)).collect();
    scan(&mut map, &seen, &[]);
    let runs = map.coldest(&candidates(0..2048), 1200);
    assert_eq!(runs.len(), 1, "{runs:?}");
    // The cold half, then the end of the warm one.
    assert_eq!(runs[0], 848..2048);
}

/// Misses of a memory of `capacity` pages; accessed bits are read every `every` accesses.
fn misses(decay: Option<f64>, trace: &[u64], pages: u64, capacity: usize, every: usize) -> usize {
    let mut map = HeatMap::new(decay.unwrap_or(0.5));
    let mut resident: HashMap<u64, (bool, usize)> = HashMap::new();
    let (mut victims, mut missed) = (Vec::new(), 0);
    for (at, &page) in trace.iter().enumerate() {
        if at % every == every - 1 {
            let mut seen: Vec<_> = resident
                .iter()
                .map(|(page, (young, _))| (*page, *young))
                .collect();
            seen.sort_unstable();
            let out: Vec<u64> = (0..pages)
                .filter(|page| !resident.contains_key(page))
                .collect();
            scan(&mut map, &seen, &out);
            resident.values_mut().for_each(|(young, _)| *young = false);
            victims.clear();
        }
        let is_hit = resident.contains_key(&page);
        missed += usize::from(!is_hit && at >= trace.len() / 5);
        if !is_hit && resident.len() >= capacity {
            loop {
                if victims.is_empty() {
                    victims = batch(decay, &map, &resident);
                }
                let victim = victims.pop().unwrap();
                let used = resident.get(&victim).is_none_or(|(young, _)| *young);
                if !used || (resident.contains_key(&victim) && resident.values().all(|(y, _)| *y)) {
                    resident.remove(&victim);
                    break;
                }
            }
        }
        resident.insert(page, (true, at));
    }
    missed
}

/// The next 256 victims, the coldest or the longest unused.
fn batch(decay: Option<f64>, map: &HeatMap, resident: &HashMap<u64, (bool, usize)>) -> Vec<u64> {
    let mut idle: Vec<_> = resident.iter().filter(|(_, (young, _))| !young).collect();
    if idle.is_empty() {
        idle = resident.iter().collect();
    }
    if decay.is_some() {
        let mut pages: Vec<u64> = idle.iter().map(|(page, _)| **page).collect();
        pages.sort_unstable();
        let runs = map.coldest(&candidates(pages.into_iter()), 256);
        return runs.into_iter().flatten().collect();
    }
    // Exact LRU: the oldest last, since the last one is taken first.
    idle.sort_unstable_by_key(|(_, (_, at))| std::cmp::Reverse(*at));
    idle.iter()
        .rev()
        .take(256)
        .rev()
        .map(|(page, _)| **page)
        .collect()
}

fn random(state: &mut u64) -> f64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

/// On a skewed load heat misses less than exact LRU, on a loop much less, on a uniform one as much.
#[test]
fn it_beats_recency_where_frequency_counts() {
    let pages = 2048u64;
    let weights: Vec<f64> = (0..pages)
        .map(|rank| 1.0 / (rank as f64 + 1.0).powf(0.99))
        .collect();
    let sum: f64 = weights.iter().sum();
    let mut state = 5;
    let zipf: Vec<u64> = (0..40_000)
        .map(|_| {
            let mut left = random(&mut state) * sum;
            let rank = weights.iter().position(|weight| {
                left -= weight;
                left <= 0.0
            });
            // Popular pages lie all over.
            rank.unwrap_or(0) as u64 * 1031 % pages
        })
        .collect();
    let uniform: Vec<u64> = (0..20_000)
        .map(|_| (random(&mut state) * pages as f64) as u64)
        .collect();
    let looped: Vec<u64> = (0..20_000).map(|at| at % 1280).collect();
    let both = |trace: &[u64]| {
        let heat = misses(Some(0.98), trace, pages, 1024, 1000);
        (heat as f64, misses(None, trace, pages, 1024, 1000) as f64)
    };
    let (heat, lru) = both(&zipf);
    assert!(heat < lru * 0.92, "zipf: {heat} of {lru}");
    let (heat, lru) = both(&looped);
    assert!(heat < lru * 0.75, "loop: {heat} of {lru}");
    let (heat, lru) = both(&uniform);
    assert!(heat < lru * 1.03, "uniform: {heat} of {lru}");
}
