// SPDX-License-Identifier: Apache-2.0
//! Feeds cached pages to simulations of other memory sizes, as is done for page tables.

use std::collections::HashMap;

use agewise_policy::generations::PageType;
use agewise_policy::whatif::{Fact, Look};

use super::{Agent, Cache};
use crate::cgroup::Cgroup;
use crate::pagecache::{Block, CacheKind, CachedFile, Uses};

/// News about the page cache since it was last shown: the pages used, and after a look also the
/// pages present, by the cgroup they are charged to.
pub struct Cached<'a> {
    cache: &'a Cache,
    uses: &'a Uses,
    /// The files present, if a new look found them.
    by_cgroup: Option<HashMap<u64, Vec<&'a CachedFile>>>,
}

impl Cached<'_> {
    /// Whether a new look found which pages are present. Otherwise only used pages are shown.
    pub fn is_look(&self) -> bool {
        self.by_cgroup.is_some()
    }

    /// Shows the file pages charged to a cgroup and those below it.
    pub fn show(&self, of: &Cgroup, look: &mut Look<'_>) {
        match &self.by_cgroup {
            Some(by_cgroup) => self.show_all(by_cgroup, of, look),
            None => self.show_used(of, look),
        }
    }

    fn show_all(
        &self,
        by_cgroup: &HashMap<u64, Vec<&CachedFile>>,
        of: &Cgroup,
        look: &mut Look<'_>,
    ) {
        let ages = &self.cache.ages;
        let ids = by_cgroup.keys().copied();
        for id in ids.filter(|id| self.cache.is_of(of, *id)) {
            for file in &by_cgroup[&id] {
                for block in ages.blocks(file) {
                    let used = self.uses.get(&block);
                    self.show_block(look, file, &block, |at, page| {
                        let is_own = ages.is_present(file, page) && file.cgroup_of(page) == id;
                        let is_used = used.is_some_and(|used| used.contains(at));
                        let fact = if is_used { Fact::Used } else { Fact::Idle };
                        is_own.then_some(fact)
                    });
                }
            }
        }
    }

    fn show_used(&self, of: &Cgroup, look: &mut Look<'_>) {
        for (block, used) in self.uses {
            let file = self.cache.ages.file_of(block);
            let Some(file) = file.filter(|file| file.on.kind == CacheKind::File) else {
                continue;
            };
            self.show_block(look, file, block, |at, page| {
                let is_own = used.contains(at) && self.cache.is_of(of, file.cgroup_of(page));
                is_own.then_some(Fact::Used)
            });
        }
    }

    /// Shows a block, and those it stands for as if they were like it: the pages that are in the
    /// sample and for which `fact` returns something. It is passed the index of the page in the
    /// block, and that of the page like it in the file.
    fn show_block(
        &self,
        look: &mut Look<'_>,
        file: &CachedFile,
        block: &Block,
        fact: impl Fn(usize, u64) -> Option<Fact>,
    ) {
        let filter = look.filter();
        for number in self.cache.ages.stands_for(block) {
            let pages = Block {
                block: number,
                ..*block
            }
            .pages();
            let in_file = pages.start..pages.end.min(file.size_pages());
            filter.each(file.name_hash(), in_file, 0, |page, hash| {
                let at = (page - pages.start) as usize;
                if let Some(fact) = fact(at, block.pages().start + at as u64) {
                    look.page(hash, 0, PageType::File, fact);
                }
            });
        }
    }
}

impl Cache {
    fn shown<'a>(&'a self, uses: &'a Uses, is_look: bool) -> Cached<'a> {
        Cached {
            cache: self,
            uses,
            by_cgroup: is_look.then(|| self.by_cgroup()),
        }
    }

    fn by_cgroup(&self) -> HashMap<u64, Vec<&CachedFile>> {
        let mut by_cgroup: HashMap<u64, Vec<&CachedFile>> = HashMap::new();
        let is_file = |file: &&CachedFile| file.on.kind == CacheKind::File && file.pages > 0;
        for file in self.ages.files().filter(is_file) {
            for cgroup in file.cgroups() {
                by_cgroup.entry(cgroup).or_default().push(file);
            }
        }
        by_cgroup
    }
}

impl Agent {
    /// The time of the last look at the page cache, on the clock of ages; `None` before the first,
    /// or if it is not followed.
    pub fn cached_ms(&self) -> Option<u64> {
        let cache = self.cache.as_ref().filter(|cache| cache.looks > 0)?;
        Some(cache.ages.last_look_ms())
    }

    /// Returns the uses of the page cache since the last call, for [`cached`](Self::cached). Empty
    /// if it is not followed. An error reading accesses appears as a trouble in reports.
    pub fn take_cache_uses(&mut self) -> Uses {
        let Some(cache) = &mut self.cache else {
            return Uses::default();
        };
        cache.ages.take_uses().unwrap_or_else(|error| {
            cache.trouble = Some(error.to_string());
            Uses::default()
        })
    }

    /// Returns what to show of the page cache: `uses`, and the pages present unless `shown_ms` is
    /// the time of the look that found them. Sets `shown_ms` to that time. `None` before the first
    /// look.
    pub fn cached<'a>(&'a self, uses: &'a Uses, shown_ms: &mut Option<u64>) -> Option<Cached<'a>> {
        let now_ms = self.cached_ms()?;
        let is_new = shown_ms.replace(now_ms) != Some(now_ms);
        Some(self.cache.as_ref()?.shown(uses, is_new))
    }
}

#[cfg(test)]
mod tests {
    use agewise_policy::whatif::{Decider, Params, WhatIf};

    use super::super::tests::{nodes, subject};
    use super::*;
    use crate::cgroup::{Hierarchy, Version};
    use crate::pagecache::fake::{FakeFile, Shared, file};

    /// The root and a cgroup below it, with the directory that contains them.
    fn cgroups() -> (tempfile::TempDir, [Cgroup; 2]) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        let cgroups = ["/", "/a"].map(|path| Cgroup::open(&hierarchy, path).unwrap());
        (dir, cgroups)
    }

    /// Half of a file is read between any two looks; the rest is only present.
    #[test]
    fn what_is_read_again_is_missed_by_a_memory_that_does_not_hold_it() {
        let (_dir, [top, a]) = cgroups();
        let shared = Shared::default();
        let mut cache = Cache::new(shared.ages(3_600_000));
        let mut what_if = WhatIf::new(Params::default());
        for round in 0..40u64 {
            let mut read = file(1, CacheKind::File, a.id(), 64);
            read.read = u64::from(u32::MAX);
            let shmem = file(2, CacheKind::Shmem, a.id(), 64);
            let other = file(3, CacheKind::File, top.id(), 64);
            shared.0.lock().unwrap().files = vec![read, shmem, other];
            // Ages are in real time, so a look must take some.
            std::thread::sleep(std::time::Duration::from_millis(2));
            cache.look(&[subject(&top)], &nodes());
            let uses = cache.ages.take_uses().unwrap();
            let mut look = what_if.look(round * 1000);
            cache.shown(&uses, true).show(&a, &mut look);
            look.finish(0, true);
            if round == 4 {
                what_if.count_anew();
            }
        }
        let pages = what_if.file_pages();
        assert_eq!((pages.resident, pages.unused), (64, 32));
        let curves = what_if.curves();
        let at = |percent| curves.of(Decider::Lru).at(percent).faults;
        assert!((at(40.0)[1].likely - 32.0).abs() < 1.0, "{:?}", at(40.0));
        assert_eq!((at(60.0)[1].likely, at(40.0)[0].likely), (0.0, 0.0));
    }

    /// The time depends on what is cached of a file, not on the size it claims.
    #[test]
    fn of_a_sparse_file_only_what_is_there_is_shown() {
        let (_dir, [top, a]) = cgroups();
        let shared = Shared::default();
        let mut cache = Cache::new(shared.ages(3_600_000));
        let mut what_if = WhatIf::new(Params::default());
        let sparse = FakeFile {
            sparse_bytes: 1 << 52,
            ..file(1, CacheKind::File, a.id(), 64)
        };
        shared.0.lock().unwrap().files = vec![sparse];
        step(&mut cache, &mut what_if, Some(&top), &a, 0);
        assert_eq!(what_if.file_pages().resident, 64);
        let files = cache.ages.files();
        let blocks = files.flat_map(|file| cache.ages.blocks(file));
        assert_eq!(blocks.map(|block| block.block).collect::<Vec<_>>(), [0]);
    }

    /// Shows to the model what was used of a cgroup since the last step, a second ago, after a look
    /// at all below `top` if it is given.
    fn step(
        cache: &mut Cache,
        what_if: &mut WhatIf,
        top: Option<&Cgroup>,
        of: &Cgroup,
        round: u64,
    ) {
        if let Some(top) = top {
            std::thread::sleep(std::time::Duration::from_millis(2));
            cache.look(&[subject(top)], &nodes());
        }
        let uses = cache.ages.take_uses().unwrap();
        let mut look = what_if.look(round * 1000);
        cache.shown(&uses, top.is_some()).show(of, &mut look);
        look.finish(0, top.is_some());
    }

    /// Only the cgroup to which a page is charged has it, whoever else reads it: at a look, and
    /// between two looks at that cgroup alone.
    #[test]
    fn a_file_of_two_owners_is_shown_to_each_in_part() {
        let (_dir, [top, a]) = cgroups();
        for (first, second) in [(top.id(), a.id()), (a.id(), top.id())] {
            let shared = Shared::default();
            let mut cache = Cache::new(shared.ages(3_600_000));
            let mut what_if = WhatIf::new(Params::default());
            for round in 0..4 {
                let mut read = file(1, CacheKind::File, first, 64);
                (read.blocks, read.other, read.read) = (4, Some((3, second)), u64::MAX);
                shared.0.lock().unwrap().files = vec![read];
                let looked_at = (round % 2 == 0).then_some(&a);
                step(&mut cache, &mut what_if, looked_at, &a, round);
            }
            let blocks = if first == a.id() { 3 } else { 1 };
            assert_eq!(what_if.file_pages().resident, blocks * 64);
        }
    }

    /// The faults of a simulated LRU at 40 and 60 % of a file of 64 blocks. Half of each block is
    /// read all the time.
    fn faults_of_busy_file(is_sampled: bool) -> [f64; 2] {
        let (_dir, [top, a]) = cgroups();
        let shared = Shared::default();
        let mut ages = shared.ages(3_600_000);
        if is_sampled {
            ages.allow_sample();
        }
        let mut cache = Cache::new(ages);
        let mut what_if = WhatIf::new(Params::default());
        for round in 0..60u64 {
            let mut read = file(1, CacheKind::File, a.id(), 64);
            (read.blocks, read.read) = (64, u64::from(u32::MAX));
            let mut fake = shared.0.lock().unwrap();
            (fake.files, fake.events) = (vec![read], 1 << 40);
            drop(fake);
            let looked_at = (round % 2 == 0).then_some(&top);
            step(&mut cache, &mut what_if, looked_at, &a, round);
            if round == 9 {
                what_if.count_anew();
            }
        }
        assert_eq!(
            shared.0.lock().unwrap().sampled.len(),
            usize::from(is_sampled)
        );
        let curves = what_if.curves();
        assert_eq!(curves.full_bytes, 64 * 64 * 4096);
        [40.0, 60.0].map(|percent| curves.of(Decider::Lru).at(percent).faults[1].likely)
    }

    #[test]
    fn what_is_followed_by_sample_stands_for_the_rest() {
        let [some, none] = faults_of_busy_file(true);
        assert_eq!([some, none], faults_of_busy_file(false));
        assert!(some > 1000.0 && none == 0.0, "{some} {none}");
    }

    /// A loop over more than a memory size can hold is seen piece by piece between two looks.
    #[test]
    fn uses_between_looks_are_shown_in_their_order() {
        let (_dir, [top, a]) = cgroups();
        let shared = Shared::default();
        let mut cache = Cache::new(shared.ages(3_600_000));
        let mut what_if = WhatIf::new(Params::default());
        let read = |pages| {
            let own = file(1, CacheKind::File, a.id(), 64);
            let others = file(2, CacheKind::File, top.id(), 64);
            shared.0.lock().unwrap().files = [own, others]
                .map(|file| FakeFile {
                    read: pages,
                    ..file
                })
                .into();
        };
        for round in 0..160u64 {
            // 8 of 32 pages at a time: each look at the cache has seen all of them.
            read(0xff << (round % 4 * 8));
            let looked_at = (round % 4 == 0).then_some(&top);
            step(&mut cache, &mut what_if, looked_at, &a, round);
            if round == 19 {
                what_if.count_anew();
            }
        }
        let curves = what_if.curves();
        assert_eq!(curves.full_bytes, 64 * 4096);
        let at = |percent| curves.of(Decider::Lru).at(percent).faults[1];
        assert!((at(40.0).likely - 8.0).abs() < 0.5, "{:?}", at(40.0));
        // The upper bound is doubled for files.
        assert!(
            at(40.0).high < 20.0,
            "known from piece to piece: {:?}",
            at(40.0)
        );
        assert_eq!(at(70.0).likely, 0.0);
    }
}
