// SPDX-License-Identifier: Apache-2.0
//! The walker of the page cache on the running kernel, beside what the kernel itself counts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use agewise_host::access::AccessError;
use agewise_host::pagecache::{CacheKind, CacheSink, CacheWalk, Inode, Leaf, SuperBlock};

/// Pages by inode and kind.
#[derive(Default)]
struct Pages {
    open: Vec<u64>,
    files: BTreeMap<(u32, u64), (Vec<u64>, u64)>,
    by_kind: BTreeMap<String, u64>,
}

impl CacheSink for Pages {
    fn leaves(&mut self, _: &SuperBlock, _: &Inode, leaves: &[Leaf]) {
        for leaf in leaves {
            for bit in (0..64).filter(|bit| leaf.present >> bit & 1 == 1) {
                let first = leaf.first_page() + (bit << leaf.shift());
                self.open.extend(first..first + (1 << leaf.shift()));
            }
        }
    }

    fn end(&mut self, on: &SuperBlock, inode: &Inode, valid: bool) {
        let pages = std::mem::take(&mut self.open);
        if valid {
            *self.by_kind.entry(format!("{:?}", on.kind)).or_default() += pages.len() as u64;
            self.files
                .insert((on.device, inode.number), (pages, inode.pages));
        }
    }
}

fn walker() -> Option<CacheWalk> {
    match CacheWalk::open() {
        Ok(walk) => Some(walk),
        Err(error @ (AccessError::NoPrivilege { .. } | AccessError::Unsupported { .. })) => {
            println!("SKIPPED {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn all_of_the_cache_is_what_meminfo_says() {
    let Some(mut walk) = walker() else { return };
    let mut pages = Pages::default();
    let report = walk.walk(|_| true, &mut pages).unwrap();
    println!("{report:?} {:?}", pages.by_kind);
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    println!("{}", text.lines().take(5).collect::<Vec<_>>().join("\n"));
    let mut wrong: Vec<_> = pages
        .files
        .iter()
        .filter(|(_, (p, n))| p.len() as u64 != *n)
        .collect();
    wrong.sort_by_key(|(_, (p, n))| n.abs_diff(p.len() as u64));
    let sum: i64 = wrong
        .iter()
        .map(|(_, (p, n))| p.len() as i64 - *n as i64)
        .sum();
    println!("{} wrong, by {sum}", wrong.len());
    for ((dev, ino), (p, n)) in wrong.iter().rev().take(10) {
        let mut q = p.clone();
        q.dedup();
        println!(
            "{dev} {ino} {} {} of {n}: {:?} .. {:?}",
            p.len(),
            q.len(),
            &p[..p.len().min(20)],
            p.last()
        );
    }
}
