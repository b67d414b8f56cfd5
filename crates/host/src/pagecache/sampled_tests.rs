// SPDX-License-Identifier: Apache-2.0
use agewise_policy::generations::LABELS;
use proptest::prelude::*;

use super::*;
use crate::pagecache::fake::{self, Shared, cold_pages};
use crate::pagecache::{CacheKind, FileAges};
use agewise_policy::table::PageSet;
use agewise_policy::workingset::Histogram;

const KEY: Key = (1 << 40, 77);
const BLOCKS: u32 = 64;

fn block(number: u32) -> Block {
    Block {
        inode: KEY.0,
        number: KEY.1,
        block: number,
    }
}

fn accesses(blocks: u32, events: u64) -> Accesses {
    Accesses {
        blocks: (0..blocks).map(|at| (block(at), PageSet::ALL)).collect(),
        events,
        ..Accesses::default()
    }
}

#[test]
fn one_block_of_each_group_stands_for_the_group() {
    let mut sampled = Sampled::default();
    assert_eq!(sampled.stand_in(&block(9)), block(9));
    assert_eq!(sampled.stands_for(&block(9)), 9..10);
    assert!(sampled.add(KEY).is_some() && sampled.has(&KEY));
    let mut places = [0; GROUP as usize];
    for group in 0..1000 {
        let all = group * GROUP..(group + 1) * GROUP;
        let followed: Vec<u32> = all.clone().filter(|at| is_chosen(&block(*at))).collect();
        let [one] = followed[..] else {
            panic!("group {group}: {followed:?}")
        };
        places[(one % GROUP) as usize] += 1;
        for at in all.clone() {
            assert_eq!(sampled.stand_in(&block(at)), block(one));
            let stands_for = if at == one { all.clone() } else { 0..0 };
            assert_eq!(sampled.stands_for(&block(at)), stands_for);
        }
    }
    assert!(
        places.iter().all(|count| (100..150).contains(count)),
        "{places:?}"
    );
}

#[test]
fn only_large_files_and_only_above_a_rate() {
    let mut sampled = Sampled::default();
    assert_eq!(sampled.busy(&accesses(BLOCKS, 100_001), 2000), [KEY]);
    assert!(sampled.busy(&accesses(BLOCKS, 100_000), 2000).is_empty());
    assert!(sampled.busy(&accesses(31, u64::MAX), 2000).is_empty());
    let slot = sampled.add(KEY).unwrap();
    assert!(sampled.busy(&accesses(BLOCKS, u64::MAX), 2000).is_empty());
    // Another file whose number has the same low bits stays whole.
    let other = (KEY.0 + 1, KEY.1 + SAMPLED_FILES_MAX as u32);
    assert!(sampled.add(other).is_none() && !sampled.has(&other));
    assert!(sampled.remove_gone(|key| *key == KEY).is_empty());
    assert_eq!(sampled.remove_gone(|_| false), [slot]);
    assert!(sampled.add(other).is_some());
}

/// Reads half of each block of a file of 64 blocks, and looks. Returns how long after the previous
/// look this one was, ms.
fn read_half(shared: &Shared, ages: &mut FileAges, events: u64) -> u64 {
    let mut file = fake::file(77, CacheKind::File, 7, 64);
    file.blocks = BLOCKS;
    file.read = u64::from(u32::MAX);
    {
        let mut cache = shared.0.lock().unwrap();
        cache.files = vec![file];
        cache.events = events;
    }
    std::thread::sleep(std::time::Duration::from_millis(5));
    let before_ms = ages.last_look_ms();
    ages.look(&|_| true).unwrap();
    ages.last_look_ms() - before_ms
}

/// Which pages were read since the look before the last, `since_ms` ago, and which were not.
fn histogram(ages: &FileAges, since_ms: u64) -> Histogram {
    let file = ages.files().next().unwrap();
    let recent = format!("{}ms", since_ms + 2).parse().unwrap();
    let (histogram, oldest_ms, youngest_ms) = ages.ages(file, &recent, &|_| true);
    assert_eq!(youngest_ms, 0);
    assert!(oldest_ms >= 20, "{oldest_ms}");
    histogram
}

#[test]
fn ages_of_a_file_read_too_often_are_those_of_its_sample() {
    let shared = Shared::default();
    let mut ages = shared.ages(3_600_000);
    for _ in 0..3 {
        read_half(&shared, &mut ages, u64::MAX);
    }
    assert!(shared.0.lock().unwrap().sampled.is_empty(), "not allowed");
    ages.allow_sample();
    let since_ms = (0..8).map(|_| read_half(&shared, &mut ages, u64::MAX));
    let since_ms = since_ms.last().unwrap();
    assert_eq!(shared.0.lock().unwrap().sampled.len(), 1);
    let half = u64::from(BLOCKS) * 32;
    let found = histogram(&ages, since_ms);
    let amounts: Vec<u64> = found.bins().iter().map(|bin| bin.amounts[1]).collect();
    assert_eq!(amounts.iter().sum::<u64>(), 2 * half);
    assert_eq!(amounts[0], half, "as if all were followed: {amounts:?}");
    let by_owner = ages.sizes_by_owner();
    let all: u64 = by_owner
        .values()
        .flat_map(|sizes| sizes.iter())
        .map(|of| of[1])
        .sum();
    assert_eq!(all, 2 * half);
    // Which of its pages are cold is known only of a few: none can be dropped.
    let file = ages.files().next().unwrap();
    assert!(ages.is_sampled(file));
    assert_eq!(cold_pages(&ages, 0), [0]);
    assert_eq!(ages.droppable(&|_| true).iter().flatten().sum::<u64>(), 0);
    // It is forgotten with its file.
    shared.0.lock().unwrap().files.clear();
    assert_eq!(ages.look(&|_| true).unwrap().sampled, 0);
}

proptest! {
    #[test]
    fn scaled_pages_are_as_many_as_there_are(
        sample in proptest::collection::vec((0..1000u64, 0..3u64), LABELS),
        total in [0..u64::MAX >> 32, 0..1000u64],
    ) {
        let mut of: Box<Sizes> = Box::new([[0; 2]; LABELS]);
        for (label, (anon, file)) in sample.iter().enumerate() {
            of[label] = [*anon, *file];
        }
        let mut sizes: Box<Sizes> = Box::new([[0; 2]; LABELS]);
        add_scaled(&mut sizes, &of, total);
        for page_type in 0..2 {
            let sum: u64 = sizes.iter().map(|pages| pages[page_type]).sum();
            prop_assert_eq!(sum, total[page_type]);
            let all: u64 = of.iter().map(|pages| pages[page_type]).sum();
            for (is, sampled) in sizes.iter().zip(of.iter()).filter(|_| all > 0) {
                let exact = total[page_type] as f64 * sampled[page_type] as f64 / all as f64;
                prop_assert!((is[page_type] as f64 - exact).abs() <= 1.0 + exact * 1e-9);
            }
        }
    }
}
