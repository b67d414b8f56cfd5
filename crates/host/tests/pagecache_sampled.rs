// SPDX-License-Identifier: Apache-2.0
//! A large file that is read very often, of which one block in eight is followed. Needs root and
//! BPF; otherwise prints so and skips.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use agewise_host::pagecache::{Block, CachedFile, Cold, FileAges, FilesLook};
use agewise_policy::table::PAGES_PER_TABLE;

mod cache;
#[path = "support/need.rs"]
mod need;
use cache::{Kept, PAGE, advise, on_disk, read_page};
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
