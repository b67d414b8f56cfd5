// SPDX-License-Identifier: Apache-2.0
//! The page cache of several file systems, created in files and mounted. Needs root; otherwise
//! prints so and skips.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use agewise_host::pagecache::{Accessed, CacheWalk};

mod cache;
#[path = "support/need.rs"]
mod need;
use cache::{Loop, PAGE, Seen, accessed, advise, cold_file, read_page, resident};
use need::opened;

#[test]
fn every_file_system_shows_its_pages_and_accesses() {
    let Some(mut walk) = opened("pagecache", "file systems", CacheWalk::open()) else {
        return;
    };
    let Some(mut source) = opened("pagecache", "file systems", Accessed::open()) else {
        return;
    };
    for kind in ["ext4", "xfs", "btrfs"] {
        let Some(mounted) = Loop::new(kind) else {
            continue;
        };
        check_file_system(&mut walk, &mut source, kind, &mounted.at);
        // An overlay on top, whose files use the pages of the files below.
        let part = |name: &str| mounted.at.join(name);
        for name in ["lower", "upper", "work", "merged"] {
            fs::create_dir(part(name)).unwrap();
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            part("lower").display(),
            part("upper").display(),
            part("work").display()
        );
        let merged = part("merged");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(&merged);
        if mount.status().is_ok_and(|status| status.success()) {
            check_file_system(
                &mut walk,
                &mut source,
                &format!("overlay on {kind}"),
                &merged,
            );
            let _ = Command::new("umount").arg("-l").arg(&merged).status();
        } else {
            println!("SKIPPED overlay on {kind}: it cannot be mounted");
        }
        // Unmounted during a walk.
        std::thread::scope(|scope| {
            scope.spawn(|| drop(mounted));
            (0..3).for_each(|_| drop(Seen::walk(&mut walk)));
        });
    }
}

fn check_file_system(walk: &mut CacheWalk, source: &mut Accessed, kind: &str, at: &Path) {
    let file = cold_file(&at.join("file"), 2000);
    // Sequential reads: large folios if the file system supports them.
    advise(&file, libc::POSIX_FADV_SEQUENTIAL);
    file.read_exact_at(&mut vec![0; 1000 * PAGE], 0).unwrap();
    accessed(source, &file);
    let wanted: BTreeSet<u64> = (0..900).filter(|page| page % 5 == 2).collect();
    wanted.iter().for_each(|page| read_page(&file, *page));
    let got = accessed(source, &file);
    assert_eq!(got, wanted, "{kind}");
    let tries = (0..5).any(|_| {
        let before = resident(&file, 2000);
        let (seen, _) = Seen::walk(walk);
        before == resident(&file, 2000) && seen.pages(&file) == before && before.len() >= 1000
    });
    assert!(tries, "{kind}: pages are not those of mincore");
}
