// SPDX-License-Identifier: Apache-2.0
//! File pages that were dropped: treated like pages in swap until they are read again.
//!
//! The kernel does not record them, so only this module knows how often dropping was a mistake.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::cached::CachedFile;
use super::gather::Word;
use super::shown::Key;
use super::slots::Slot;

/// Most files with dropped pages; later ones are not followed.
const FILES_MAX: usize = 1 << 16;
/// Pages not read again for this long, in ms, are assumed to be gone with their file.
const KEPT_MS: u64 = 3_600_000;

/// Dropped pages, by file.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    files: HashMap<Key, OfFile>,
}

#[derive(Debug)]
struct OfFile {
    slot: Slot,
    /// The time when the last of them was dropped.
    since_ms: u64,
    /// Pages by page number of the age map / 64.
    words: BTreeMap<u64, u64>,
}

impl Dropped {
    /// Adds pages of a file (by index) that were dropped.
    pub fn add(&mut self, file: &CachedFile, pages: &Range<u64>, now_ms: u64) {
        let key = file.inode.key();
        if !self.files.contains_key(&key) && self.files.len() >= FILES_MAX {
            return;
        }
        let of = self.files.entry(key).or_insert_with(|| OfFile {
            slot: file.slot,
            since_ms: now_ms,
            words: BTreeMap::new(),
        });
        if of.slot != file.slot {
            (of.slot, of.words) = (file.slot, BTreeMap::new());
        }
        of.since_ms = now_ms;
        let end = file.slot.pages();
        for page in pages.start.min(end)..pages.end.min(end) {
            let page = file.slot.first + page;
            *of.words.entry(page / 64).or_default() |= 1 << (page % 64);
        }
    }

    /// Removes pages that are present again according to `words` (sorted), and adds those still out
    /// to `words`. Keeps the files of the latter even if look number `look` did not show them.
    /// Returns the number of pages that are back, by cgroup.
    pub fn look(
        &mut self,
        words: &mut Vec<Word>,
        files: &mut HashMap<Key, CachedFile>,
        (look, now_ms): (u32, u64),
    ) -> HashMap<u64, u64> {
        let mut back: HashMap<u64, u64> = HashMap::new();
        let shown = words.len();
        self.files.retain(|key, of| {
            let known = files.get_mut(key).filter(|file| file.slot == of.slot);
            let (Some(file), true) = (known, now_ms < of.since_ms.saturating_add(KEPT_MS)) else {
                return false;
            };
            let mut returned = 0;
            of.words.retain(|at, out| {
                let present = present_at(&words[..shown], *at);
                returned += u64::from((*out & present).count_ones());
                *out &= !present;
                if *out != 0 {
                    words.push(Word::out(*at, *out));
                }
                *out != 0
            });
            if returned > 0 {
                *back.entry(file.cgroup).or_default() += returned;
            }
            if file.look != look && !of.words.is_empty() {
                // All of the file is out, but it keeps its place in the age map.
                (file.look, file.pages, file.dirty_pages) = (look, 0, 0);
                file.runs = Vec::new();
            }
            !of.words.is_empty()
        });
        if words.len() > shown {
            words.sort_unstable_by_key(|word| word.at);
        }
        back
    }

    /// Approximate bytes of memory used.
    pub fn memory_bytes(&self) -> usize {
        let words = self.files.values().map(|of| of.words.len());
        self.files.capacity() * size_of::<(Key, OfFile)>()
            + words.sum::<usize>() * 2 * size_of::<(u64, u64)>()
    }
}

/// The pages a look showed in one word of the age map, which several files may share.
fn present_at(words: &[Word], at: u64) -> u64 {
    let from = words.partition_point(|word| word.at < at);
    let of = words[from..].iter().take_while(|word| word.at == at);
    of.fold(0, |present, word| present | word.present)
}

#[cfg(test)]
mod tests {
    use agewise_policy::workingset::Intervals;
    use proptest::prelude::*;

    use crate::pagecache::CacheKind;
    use crate::pagecache::fake::{self, FakeFile, Shared};

    const ALL: &dyn Fn(u64) -> bool = &|_| true;

    fn file(number: u64, pages: u32) -> FakeFile {
        fake::file(number, CacheKind::File, 7, pages)
    }

    #[test]
    fn pages_that_were_dropped_and_are_read_again_have_come_back() {
        let intervals: Intervals = "1h".parse().unwrap();
        let shared = Shared::default();
        let mut ages = shared.ages(3_600_000);
        ages.keep_returned(intervals);
        shared.0.lock().unwrap().files = vec![file(1, 10), file(2, 3)];
        ages.look(ALL).unwrap();
        let seen = ages.files().find(|file| file.pages == 10).unwrap().clone();
        ages.note_dropped(&seen, &(0..10));
        shared.0.lock().unwrap().files.remove(0);
        for _ in 0..2 {
            ages.look(ALL).unwrap();
            let pages: u64 = ages.droppable(ALL).iter().flatten().sum();
            assert_eq!(pages, 3, "what is out is not resident");
            assert_eq!(ages.returned(ALL).unwrap().1, 0);
        }
        // A part of it is read again.
        shared.0.lock().unwrap().files.push(FakeFile {
            read: 0b1111,
            ..file(1, 4)
        });
        ages.look(ALL).unwrap();
        let (returned, refaulted) = ages.returned(ALL).unwrap();
        assert_eq!((returned.total(), refaulted), ([0, 4], 4));
        assert_eq!(ages.returned(&|id| id != 7).unwrap().1, 0, "of others");
        // The rest comes back later.
        shared.0.lock().unwrap().files[1].pages = 64;
        ages.look(ALL).unwrap();
        assert_eq!(ages.returned(ALL).unwrap().1, 4, "it grew out of its place");
    }

    proptest! {
        /// Compared with a plain set of pages.
        #[test]
        fn what_is_out_is_what_was_dropped_and_not_seen_since(
            steps in prop::collection::vec((0u64..40, 0u64..40, 1u32..40), 1..20),
        ) {
            let shared = Shared::default();
            let mut ages = shared.ages(3_600_000);
            ages.keep_returned("1h".parse().unwrap());
            let same_size = FakeFile { read: 1, ..file(1, 40) };
            shared.0.lock().unwrap().files = vec![same_size];
            ages.look(ALL).unwrap();
            let (mut out, mut back) = (std::collections::BTreeSet::new(), 0);
            for (from, length, pages) in steps {
                let seen = ages.files().next().unwrap().clone();
                ages.note_dropped(&seen, &(from..(from + length).min(64)));
                out.extend(from..(from + length).min(64));
                let mut now = FakeFile { pages, ..same_size };
                now.read = 1;
                shared.0.lock().unwrap().files = vec![now];
                ages.look(ALL).unwrap();
                let there = out.iter().filter(|page| **page < u64::from(pages)).count();
                out.retain(|page| *page >= u64::from(pages));
                back += there as u64;
                prop_assert_eq!(ages.returned(ALL).unwrap().1, back);
            }
        }
    }
}
