// SPDX-License-Identifier: Apache-2.0
//! Files that a look did not reach, because the walk of their file system was cut short: they stay
//! as they were for a few looks, instead of losing their ages.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use agewise_policy::agemap::AgeMap;
use agewise_policy::generations::{LABEL_UNSEEN, LABELS, Label, PageType};
use agewise_policy::table::PAGES_PER_TABLE;

use super::accesses::Accesses;
use super::cached::CachedFile;
use super::gather::Word;
use super::shown::{Key, SuperBlock};

/// Most looks in a row that may not reach a file: it may be gone.
const LOOKS_MAX: u32 = 3;

/// What is known of a look that did not reach everything.
pub(super) struct Unreached<'a> {
    /// File systems that were not shown to their end.
    pub cut_short: &'a [Arc<SuperBlock>],
    pub accesses: &'a Accesses,
    /// Number of the look.
    pub look: u32,
}

impl Unreached<'_> {
    /// Keeps the files that may not have been reached, and adds the pages they had to `words`.
    pub fn keep(&self, files: &mut HashMap<Key, CachedFile>, map: &AgeMap, words: &mut Vec<Word>) {
        if self.cut_short.is_empty() {
            return;
        }
        for file in files.values_mut() {
            let is_shown = file.look == self.look;
            if is_shown || file.unreached >= LOOKS_MAX || !self.cut_short.contains(&file.on) {
                continue;
            }
            (file.look, file.unreached) = (self.look, file.unreached + 1);
            const LAST: Label = LABELS as Label - 1;
            map.runs_labelled(file.numbers(), LABEL_UNSEEN, LAST, |run| {
                let pages = &run.pages;
                for at in pages.start / 64..pages.end.div_ceil(64) {
                    let from = pages.start.max(at * 64) % 64;
                    let count = pages.end.min(at * 64 + 64) - pages.start.max(at * 64);
                    let present = (u64::MAX >> (64 - count)) << from;
                    words.push(Word {
                        at,
                        present,
                        young: present & self.accessed(file, at),
                        out: 0,
                        is_file: run.page_type == PageType::File,
                    });
                }
                ControlFlow::Continue(())
            });
        }
    }

    /// The accessed pages of a file among 64 page numbers of the age map.
    fn accessed(&self, file: &CachedFile, at: u64) -> u64 {
        const TABLE: u64 = PAGES_PER_TABLE as u64;
        // A slot of less than 64 pages begins within a word.
        let page = (at * 64).saturating_sub(file.slot.first);
        let block = file.inode.block(page / TABLE);
        let noted = self.accesses.blocks.get(&block);
        let word = noted.map_or(0, |set| set[(page % TABLE / 64) as usize]);
        word << file.slot.first.saturating_sub(at * 64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::LOOKS_MAX;
    use crate::pagecache::CacheKind;
    use crate::pagecache::fake::{Shared, cold_pages, file};

    #[test]
    fn what_a_look_did_not_reach_stays_as_it_was_for_a_few_looks() {
        let shared = Shared::default();
        let mut ages = shared.ages(3_600_000);
        // The smaller ones share a word of the age map.
        let files = [1, 2, 3].map(|number| file(number, CacheKind::File, 7, 8 << (number / 3)));
        shared.0.lock().unwrap().files = files.to_vec();
        ages.look(&|_| true).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        shared.0.lock().unwrap().unreached = vec![2, 3];
        for _ in 0..LOOKS_MAX {
            shared.0.lock().unwrap().files[1].read = 0b11;
            ages.look(&|_| true).unwrap();
            assert_eq!(cold_pages(&ages, 20), [6, 8, 16]);
        }
        ages.look(&|_| true).unwrap();
        assert_eq!(cold_pages(&ages, 20), [8]);

        // A look that reaches it begins anew.
        shared.0.lock().unwrap().unreached.clear();
        ages.look(&|_| true).unwrap();
        shared.0.lock().unwrap().unreached = vec![2, 3];
        for _ in 0..LOOKS_MAX {
            ages.look(&|_| true).unwrap();
        }
        assert_eq!(ages.files().count(), 3);
        shared.0.lock().unwrap().files.truncate(1);
        shared.0.lock().unwrap().unreached.clear();
        ages.look(&|_| true).unwrap();
        assert_eq!(ages.files().count(), 1, "a whole walk found no more");
    }
}
