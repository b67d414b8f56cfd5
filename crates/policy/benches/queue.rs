// SPDX-License-Identifier: Apache-2.0
//! The cost per page of ordering a budget's pages: 1 GiB of 4 KiB pages (512 tables); a quarter of
//! them, most of it hot, is touched between two looks.

use std::collections::BTreeMap;

use agewise_policy::budget::{Order, PageQueue, Seen};
use agewise_policy::table::{PageSet, TableBits};
use divan::counter::ItemsCount;

const TABLES: u64 = 512;
const PAGES: u64 = TABLES * 512;
const QUEUED: u64 = 4096;

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

fn look(state: &mut u64) -> BTreeMap<u32, Vec<Seen>> {
    let mut table = |index: u64| Seen {
        index,
        bits: TableBits {
            present: PageSet::ALL,
            young: PageSet::from_words(|word| {
                // Some words are touched every time, others rarely.
                let sparse = random(state) & random(state) & random(state);
                match word % 4 {
                    0 => random(state) | random(state),
                    _ => sparse & random(state),
                }
            }),
            ..TableBits::default()
        },
        movable: PageSet::ALL,
    };
    BTreeMap::from([(1, (0..TABLES).map(&mut table).collect())])
}

#[divan::bench(args = [Order::Reuse, Order::Heat])]
fn scan(bencher: divan::Bencher, order: Order) {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let looks: Vec<_> = (0..8).map(|_| look(&mut state)).collect();
    let mut queue = PageQueue::new(order);
    for look in looks.iter().cycle().take(32) {
        queue.scan(look, true, QUEUED);
    }
    let mut next = looks.iter().cycle();
    bencher.counter(ItemsCount::new(PAGES)).bench_local(|| {
        let look = next.next().expect("a cycle has no end");
        queue.scan(look, true, QUEUED)
    });
}
