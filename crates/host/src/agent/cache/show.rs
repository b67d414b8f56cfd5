// SPDX-License-Identifier: Apache-2.0
//! Shows cached pages to simulations of other sizes, as page tables are shown to them.

use std::collections::HashMap;

use agewise_policy::generations::PageType;
use agewise_policy::whatif::{Fact, Look};

use super::{Agent, Cache};
use crate::cgroup::Cgroup;
use crate::pagecache::{CacheKind, CachedFile};

/// What the last look at the page cache found, by the cgroup that is charged.
pub struct Cached<'a> {
    cache: &'a Cache,
    by_cgroup: HashMap<u64, Vec<&'a CachedFile>>,
}

impl Cached<'_> {
    /// Shows the pages of files charged to a cgroup and those below it.
    pub fn show(&self, of: &Cgroup, look: &mut Look<'_>) {
        let filter = look.filter();
        let ids = self.by_cgroup.keys().copied();
        for id in ids.filter(|id| self.cache.is_of(of, *id)) {
            for file in &self.by_cgroup[&id] {
                let pages = file.size_pages();
                filter.each(file.name_hash(), 0..pages, 0, |page, hash| {
                    let fact = match self.cache.ages.was_used(file, page, id) {
                        Some(true) => Fact::Used,
                        Some(false) => Fact::Idle,
                        None => return,
                    };
                    look.page(hash, 0, PageType::File, fact);
                });
            }
        }
    }
}

impl Cache {
    fn cached(&self) -> Cached<'_> {
        let mut by_cgroup: HashMap<u64, Vec<&CachedFile>> = HashMap::new();
        let is_file = |file: &&CachedFile| file.on.kind == CacheKind::File && file.pages > 0;
        for file in self.ages.files().filter(is_file) {
            for cgroup in file.cgroups() {
                by_cgroup.entry(cgroup).or_default().push(file);
            }
        }
        Cached {
            cache: self,
            by_cgroup,
        }
    }
}

impl Agent {
    /// When the last look at the page cache was, where it is followed, by the clock of ages.
    pub fn cached_ms(&self) -> Option<u64> {
        let cache = self.cache.as_ref().filter(|cache| cache.looks > 0)?;
        Some(cache.ages.last_look_ms())
    }

    /// What that look found, unless it is the one `shown_ms` names, which is then this one: to show
    /// it twice says nothing new.
    pub fn cached(&self, shown_ms: &mut Option<u64>) -> Option<Cached<'_>> {
        let now_ms = self.cached_ms();
        let is_new = std::mem::replace(shown_ms, now_ms) != now_ms;
        let cache = self.cache.as_ref().filter(|_| is_new && now_ms.is_some())?;
        Some(cache.cached())
    }
}

#[cfg(test)]
mod tests {
    use agewise_policy::whatif::{Decider, Params, WhatIf};

    use super::super::tests::{file, nodes, subject};
    use super::*;
    use crate::cgroup::{Hierarchy, Version};
    use crate::pagecache::fake::Shared;

    /// Half of a file is read from look to look, the rest is there.
    #[test]
    fn what_is_read_again_is_missed_by_a_memory_that_does_not_hold_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        let [top, a] = ["/", "/a"].map(|path| Cgroup::open(&hierarchy, path).unwrap());
        let shared = Shared::default();
        let mut cache = Cache::new(shared.ages(3_600_000));
        let mut what_if = WhatIf::new(Params::default());
        for round in 0..40u64 {
            let mut read = file(1, CacheKind::File, a.id(), 64);
            read.read = u64::from(u32::MAX);
            let shmem = file(2, CacheKind::Shmem, a.id(), 64);
            let other = file(3, CacheKind::File, top.id(), 64);
            shared.0.lock().unwrap().files = vec![read, shmem, other];
            // Ages are of real time, of which a look must take some.
            std::thread::sleep(std::time::Duration::from_millis(2));
            cache.look(&[subject(&top)], &nodes());
            let mut look = what_if.look(round * 1000);
            cache.cached().show(&a, &mut look);
            look.finish(0, true);
            if round == 4 {
                what_if.count_anew();
            }
        }
        assert_eq!(what_if.file_pages(), (64, 32));
        let curves = what_if.curves();
        let at = |percent| curves.of(Decider::Lru).at(percent).faults;
        assert!((at(40.0)[1].likely - 32.0).abs() < 1.0, "{:?}", at(40.0));
        assert_eq!((at(60.0)[1].likely, at(40.0)[0].likely), (0.0, 0.0));
    }
}
