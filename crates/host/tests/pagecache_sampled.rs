// SPDX-License-Identifier: Apache-2.0
//! Accesses to large files at a high rate: one block in eight is followed, the map is full, looks
//! follow each other without a pause. Needs root and BPF; otherwise prints so and skips.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use agewise_host::pagecache::{
    AccessNotes, Accessed, Block, CachedFile, Cold, FileAges, FilesLook,
};
use agewise_policy::table::PAGES_PER_TABLE;

mod cache;
#[path = "support/need.rs"]
mod need;
use cache::{Kept, PAGE, advise, cold_file, on_disk, read_page};
use need::opened;

const BLOCKS: u32 = 64;
const PAGES: u64 = BLOCKS as u64 * PAGES_PER_TABLE as u64;

/// Reads pages of the file, and looks right before and after: the rate of accesses is high.
fn read_between_looks(
    ages: &mut FileAges,
    file: &File,
    is_read: impl Fn(u64) -> bool,
) -> FilesLook {
    ages.look(&|_| true).unwrap();
    ages.take_uses().unwrap();
    let pages = (0..PAGES).filter(|page| is_read(*page));
    pages.for_each(|page| read_page(file, page));
    ages.look(&|_| true).unwrap()
}

#[test]
fn a_file_read_too_often_is_followed_by_sample() {
    let test = "pages of files by sample";
    let Some(mut ages) = opened("pagecache", test, FileAges::open(3_600_000)) else {
        return;
    };
    ages.allow_sample();
    let dir = on_disk();
    let path = dir.path().join("holes");
    File::create(&path)
        .unwrap()
        .set_len(PAGES * PAGE as u64)
        .unwrap();
    let file = File::open(&path).unwrap();
    advise(&file, libc::POSIX_FADV_RANDOM);
    let number = file.metadata().unwrap().ino();
    let of_file = |block: &Block| block.number == number as u32;

    let first = read_between_looks(&mut ages, &file, |_| true);
    let followed = ages
        .take_uses()
        .unwrap()
        .into_keys()
        .filter(of_file)
        .count();
    assert_eq!(followed, BLOCKS as usize, "all of them so far");
    if first.sampled == 0 {
        println!(
            "SKIPPED {test}: {} accesses took too long here",
            first.events
        );
        return;
    }

    let kept = (0..5).find_map(|_| {
        (0..PAGES).for_each(|page| read_page(&file, page));
        Kept::new(&file, PAGES as usize)
    });
    let _kept = kept.expect("the kernel takes pages away all the time");
    ages.look(&|_| true).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let began = Instant::now();
    read_between_looks(&mut ages, &file, |page| page % 4 == 0);
    let recently = format!("{}ms", began.elapsed().as_millis() + 100);
    let uses = ages.take_uses().unwrap();
    let blocks: Vec<&Block> = uses.keys().filter(|block| of_file(block)).collect();
    let mut groups: Vec<u32> = blocks.iter().map(|block| block.block / 8).collect();
    groups.sort_unstable();
    assert_eq!(
        groups,
        (0..BLOCKS / 8).collect::<Vec<_>>(),
        "one of each group"
    );

    let is_it = |of: &&CachedFile| of.inode.number == number && of.pages == PAGES;
    let seen = ages.files().find(is_it).expect("it is in the cache");
    assert!(ages.is_sampled(seen) && blocks.iter().all(|block| ages.stand_in(block) == **block));
    let (by_age, oldest_ms, youngest_ms) = ages.ages(seen, &recently.parse().unwrap(), &|_| true);
    let pages: Vec<u64> = by_age
        .bins()
        .iter()
        .map(|bin| bin.amounts.iter().sum())
        .collect();
    assert_eq!(pages, [PAGES / 4, PAGES - PAGES / 4]);
    assert!(youngest_ms == 0 && oldest_ms > 0);
    let cold = Cold {
        since_ms: ages.idle_for(0),
        owns: &|_| true,
    };
    assert!(ages.cold(seen, &cold).is_empty(), "nobody knows which ones");
}

#[test]
fn a_map_that_is_full_says_how_much_it_dropped() {
    let Some(mut source) = opened("pagecache", "dropped", Accessed::with_tables(64)) else {
        return;
    };
    let dir = on_disk();
    let file = cold_file(&dir.path().join("read"), 1);
    file.set_len(512 * 1000 * PAGE as u64).ok();
    let sparse = File::create(dir.path().join("sparse")).unwrap();
    sparse.set_len(512 * 1000 * PAGE as u64).unwrap();
    let sparse = File::open(dir.path().join("sparse")).unwrap();
    advise(&sparse, libc::POSIX_FADV_RANDOM);
    source.look().unwrap();
    (0..1000).for_each(|block| read_page(&sparse, block * 512));
    let found = source.look().unwrap();
    assert!(
        found.dropped >= 800,
        "{} of {}",
        found.dropped,
        found.events
    );
    assert!(!found.blocks.is_empty() && found.blocks.len() <= 200);
}

/// Looks take tables while a program fills them.
#[test]
fn no_access_is_lost_between_looks() {
    let Some(mut source) = opened("pagecache", "between looks", Accessed::open()) else {
        return;
    };
    const PAGES: u64 = 20_000;
    let dir = on_disk();
    let path = dir.path().join("file");
    let file = cold_file(&path, PAGES as usize);
    std::fs::read(&path).unwrap();
    source.look().unwrap();
    for round in 0..10 {
        let mut seen = source.look().unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Each page once, and always in another block than before.
                (0..PAGES).for_each(|at| read_page(&file, at * 7919 % PAGES));
                is_done.store(true, Relaxed);
            });
            while !is_done.load(Relaxed) {
                seen.add(source.look().unwrap());
            }
        });
        seen.add(source.look().unwrap());
        let number = file.metadata().unwrap().ino() as u32;
        let of_file = seen.blocks.iter().filter(|(at, _)| at.number == number);
        let found = of_file.map(|(_, pages)| pages.pages().count() as u64);
        // Programs that were interrupted are counted: other tests read, too.
        let lost = PAGES.saturating_sub(found.sum());
        let is_whole = lost <= seen.missed && seen.dropped == 0;
        assert!(
            is_whole,
            "round {round}: {lost} lost, {} said to be",
            seen.dropped
        );
    }
}
