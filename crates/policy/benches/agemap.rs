// SPDX-License-Identifier: Apache-2.0
//! The cost of a look per page: 1 GiB of 4 KiB pages (512 tables), one look and one advance each
//! time.

use agewise_policy::agemap::{AgeMap, Facts};
use agewise_policy::table::{PageSet, TableBits};
use agewise_policy::workingset::{Histogram, OldestPages};
use divan::counter::ItemsCount;

const TABLES: u64 = 512;
const PAGES: u64 = TABLES * 512;

fn main() {
    divan::main();
}

/// Our own generator: the benchmark must not depend on a crate's choice of numbers.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// What is accessed in a look.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// Nothing: memory that was filled and left.
    Idle,
    /// All of it: 2 MiB leaves, or a sweep.
    AllYoung,
    /// Half of the tables entirely, the other half idle.
    HotCold,
    /// Each page with probability one half: every word is mixed, and ages are scattered.
    Random,
    /// Each page of half of the memory with probability 1/16.
    Sparse,
}

fn looks(load: Load) -> Vec<Vec<TableBits>> {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut word = |table: u64| match load {
        Load::Idle => 0,
        Load::AllYoung => u64::MAX,
        Load::HotCold => u64::MAX * (table % 2),
        Load::Random => random(&mut state),
        Load::Sparse if table.is_multiple_of(2) => {
            (0..4).fold(u64::MAX, |w, _| w & random(&mut state))
        }
        Load::Sparse => 0,
    };
    let mut table = |at: u64| TableBits {
        present: PageSet::ALL,
        young: PageSet::from_words(|_| word(at)),
        ..TableBits::default()
    };
    (0..8)
        .map(|_| (0..TABLES).map(&mut table).collect())
        .collect()
}

fn look(map: &mut AgeMap, tables: &[TableBits], now_ms: u64) {
    let mut look = map.look();
    for (index, bits) in (0..).zip(tables) {
        look.table(Facts {
            index,
            bits,
            files: PageSet::NONE,
            parts: &[],
        })
        .unwrap();
    }
    divan::black_box(look.finish());
    map.advance(now_ms);
}

#[divan::bench(args = [Load::Idle, Load::AllYoung, Load::HotCold, Load::Random, Load::Sparse])]
fn classify(bencher: divan::Bencher<'_, '_>, load: Load) {
    let looks = looks(load);
    let mut map = AgeMap::new(0, 600_000);
    let mut tick = 0;
    let mut next = move || {
        look(&mut map, &looks[tick % looks.len()], tick as u64 * 1000);
        tick += 1;
    };
    (0..40).for_each(|_| next());
    bencher.counter(ItemsCount::new(PAGES)).bench_local(next);
}

#[divan::bench]
fn histogram(bencher: divan::Bencher<'_, '_>) {
    let looks = looks(Load::Random);
    let mut map = AgeMap::new(0, 600_000);
    (0..40).for_each(|tick: u64| look(&mut map, &looks[tick as usize % 8], tick * 1000));
    let intervals = "1s,5s,30s,2m,10m".parse().unwrap();
    bencher.bench_local(|| {
        let mut histogram = Histogram::new(&intervals);
        let window = map.generations();
        histogram.add_window(window, window.sizes(), 40_000, OldestPages::AtLeast);
        histogram
    });
}

#[divan::bench]
fn histogram_of_a_range(bencher: divan::Bencher<'_, '_>) {
    let looks = looks(Load::Random);
    let mut map = AgeMap::new(0, 600_000);
    (0..40).for_each(|tick: u64| look(&mut map, &looks[tick as usize % 8], tick * 1000));
    bencher
        .counter(ItemsCount::new(PAGES))
        .bench_local(|| map.sizes_within(0..u64::MAX));
}
