// SPDX-License-Identifier: Apache-2.0
//! The page cache of a cgroup under a budget: which of its pages are present and were accessed, and
//! dropping clean pages.
//!
//! Other observers of files walk the whole page cache at each look. A budget looks often, so it
//! walks only the inodes known to belong to it, and accessed inodes that are not known yet. Now and
//! then it walks everything, to find files that were cached earlier and that nobody reads.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use agewise_policy::budget::{Gone, Seen};
use agewise_policy::table::PageSet;

use super::known::{Known, TABLES_MAX, by_table};
use super::{Choose, HeldFiles};
use crate::access::{AccessError, PAGE_BYTES};
use crate::cgroup::{Cgroup, CgroupError, TreeLimits};
use crate::clock;
use crate::error::FileError;
use crate::pagecache::{
    AccessNotes, Accessed, Accesses, CacheReader, CacheWalk, DropLimits, Dropper, Key, Mounts,
    check_cachestat,
};
use crate::root::ProcRoot;

/// Walks of the whole page cache take at most one part in this many of one core.
const CORE_SHARE: u64 = 200;
/// Least time between two walks of the whole page cache, in ns.
const WALKS_NS: u64 = 30_000_000_000;

/// Whether accesses are still noted is proved by a look: before a move, by one at most this old.
const PROOF_NS: u64 = 100_000_000;

/// CPU time per look, in ns, for inodes accessed anywhere on the machine whose owner is not known.
/// The rest wait for the next looks: a build reads thousands of files.
const STRANGERS_NS: u64 = 1_000_000;

/// Most inodes remembered as belonging to others.
const STRANGERS_MAX: usize = 1 << 18;

/// Limits on the descendant cgroups that are followed.
const CGROUPS: TreeLimits = TreeLimits {
    depth_max: 64,
    count_max: 1 << 12,
};

/// No limits: the caller limits what it selects.
const LIMITS: DropLimits = DropLimits {
    bytes_max: u64::MAX,
    rate_bytes_per_s: u64::MAX,
    rehearse: false,
    far: false,
    files_max: usize::MAX,
};

/// Why the files of a cgroup cannot be kept under a budget.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The page cache, or the accesses to it, cannot be read.
    #[error("page cache: {0}")]
    Source(#[from] AccessError),
    #[error("page cache: {0}")]
    Cgroup(#[from] CgroupError),
    #[error("page cache: {0}")]
    Mounts(#[from] FileError),
}

/// Files whose pages are charged to a cgroup or to those below it.
pub struct BudgetedFiles {
    cgroup: Cgroup,
    /// Excludes these cgroups and those below them.
    without: Vec<PathBuf>,
    walk: Box<dyn CacheReader>,
    accessed: Box<dyn AccessNotes>,
    /// Accesses since the last look that counts, as far as they have been read.
    since: Accesses,
    /// When they were last read.
    read_ns: u64,
    mounts: Mounts,
    known: Known,
    looks: u32,
    walk_due_ns: u64,
    walked_ns: u64,
}

impl BudgetedFiles {
    /// Starts without any knowledge of the files.
    ///
    /// # Errors
    /// The errors of [`CacheWalk::open`] and [`Accessed::open`]; also if the kernel lacks
    /// `cachestat`, without which none of the files could be dropped.
    pub fn open(cgroup: Cgroup) -> Result<Self, FilesError> {
        check_cachestat()?;
        let walk = CacheWalk::open()?;
        Ok(Self::new(
            cgroup,
            Box::new(walk),
            Box::new(Accessed::open()?),
        ))
    }

    fn new(cgroup: Cgroup, walk: Box<dyn CacheReader>, accessed: Box<dyn AccessNotes>) -> Self {
        BudgetedFiles {
            cgroup,
            without: Vec::new(),
            walk,
            accessed,
            since: Accesses::default(),
            read_ns: 0,
            mounts: Mounts::default(),
            known: Known::default(),
            looks: 0,
            walk_due_ns: 0,
            walked_ns: 0,
        }
    }

    fn read_accesses(&mut self) -> Result<(), FilesError> {
        let later = self.accessed.look()?;
        self.since.add(later);
        self.read_ns = clock::monotonic_ns();
        Ok(())
    }

    fn begin_look(&mut self) -> Result<(), FilesError> {
        let below = self.cgroup.descendants(CGROUPS)?.cgroups;
        let is_spared = |cgroup: &&Cgroup| {
            let mut without = self.without.iter();
            without.any(|path| cgroup.path().starts_with(path))
        };
        let all = below.iter().chain([&self.cgroup]);
        let owned = all.filter(|cgroup| !is_spared(cgroup)).map(Cgroup::id);
        self.known.owned = owned.collect();
        self.mounts = Mounts::read(&ProcRoot::default())?;
        self.looks += 1;
        let addresses = self.known.begin(self.looks);
        if clock::monotonic_ns() < self.walk_due_ns {
            for address in addresses {
                self.walk.walk_inode(address, &mut self.known)?;
            }
            return Ok(());
        }
        let walked = self.walk.walk(&mut self.known)?;
        self.walked_ns += walked.cpu_ns;
        let pause_ns = walked.cpu_ns.saturating_mul(CORE_SHARE).max(WALKS_NS);
        self.walk_due_ns = clock::monotonic_ns().saturating_add(pause_ns);
        Ok(())
    }

    /// Walks files again if pages were accessed that were not present.
    fn follow_newcomers(&mut self) -> Result<(), FilesError> {
        let mut changed = HashSet::new();
        let is_full = self.known.is_full();
        for (block, pages) in &self.since.blocks {
            let name = self.known.names.get(&(block.inode, block.number));
            let Some(file) = name.and_then(|name| self.known.files.get_mut(name)) else {
                continue;
            };
            let present = match file.table(block.block.into()) {
                Some(table) => table.present(),
                // There was no room for it.
                None if is_full => continue,
                None => PageSet::NONE,
            };
            if !pages.without(&present).is_empty() && changed.insert(block.inode) {
                file.forget_presence();
            }
        }
        for address in changed {
            self.walk.walk_inode(address, &mut self.known)?;
        }
        Ok(())
    }

    /// Walks inodes that were accessed and are not known.
    fn ask_about_strangers(&mut self) -> Result<(), FilesError> {
        let known = &self.known;
        let is_new = |address: &Key| {
            !known.names.contains_key(address) && !known.strangers.contains(address)
        };
        let accessed = self.since.blocks.keys();
        let accessed = accessed.map(|block| (block.inode, block.number));
        let new: HashSet<Key> = accessed.filter(is_new).collect();
        if self.known.strangers.len() + new.len() > STRANGERS_MAX {
            self.known.strangers.clear();
        }
        let began_ns = clock::thread_cpu_ns();
        for address in new {
            if clock::thread_cpu_ns().saturating_sub(began_ns) > STRANGERS_NS {
                break;
            }
            let pages = self.walk.walk_inode(address.0, &mut self.known)?;
            // Without pages nobody owns it: those read next may be ours.
            if pages > 0 && !self.known.names.contains_key(&address) {
                self.known.strangers.insert(address);
            }
        }
        Ok(())
    }
}

impl HeldFiles for BudgetedFiles {
    fn spare(&mut self, without: &[PathBuf]) {
        if self.without != without {
            self.without = without.to_vec();
        }
    }

    fn look(&mut self, counts: bool) -> Result<BTreeMap<u64, Vec<Seen>>, FilesError> {
        self.read_accesses()?;
        match counts {
            true => self.begin_look()?,
            false => self.follow_newcomers()?,
        }
        self.ask_about_strangers()?;
        let files = self.known.files.iter();
        let seen = files
            .map(|(name, file)| (*name, file.seen(&self.since)))
            .collect();
        if counts {
            self.since = Accesses::default();
        }
        Ok(seen)
    }

    fn trouble(&self) -> Option<String> {
        self.known.is_full().then(|| {
            format!(
                "page cache: more than {TABLES_MAX} files, or parts of 2 MiB of large ones; the \
                 rest is left to the kernel"
            )
        })
    }

    fn take_walked_ns(&mut self) -> u64 {
        std::mem::take(&mut self.walked_ns)
    }

    fn move_out(
        &mut self,
        name: u64,
        runs: &[Range<u64>],
        choose: &mut Choose<'_>,
        rehearse: bool,
    ) -> Result<Gone, FilesError> {
        if clock::monotonic_ns().saturating_sub(self.read_ns) > PROOF_NS {
            self.read_accesses()?;
        }
        let Some(file) = self.known.files.get_mut(&name) else {
            return Ok(Gone::default());
        };
        let mut seen: Vec<Seen> = Vec::new();
        for (index, _) in runs.iter().cloned().flat_map(by_table) {
            let table = file.table(index).copied();
            if let Some(table) = table.filter(|_| seen.last().is_none_or(|s| s.index != index)) {
                let later = self.accessed.peek(&file.block(index))?;
                let accessed = file.accessed(index, &self.since) | later;
                seen.push(file.seen_table(index, &table, accessed));
            }
        }
        let chosen = file.whole(&choose(&seen));
        if chosen.is_empty() || rehearse {
            return Ok(Gone::default());
        }
        let path = self.walk.path(&file.on, &file.inode)?;
        let find = |path: PathBuf| {
            let (device, number) = (file.on.device, file.inode.number);
            self.mounts.find(device, &path, number)
        };
        let place = path.and_then(find);
        let mut gone = Gone {
            left_pages: 0,
            calls: chosen.len() as u64,
        };
        let (on, inode, never) = (Arc::clone(&file.on), file.inode, AtomicBool::new(false));
        Dropper::new(LIMITS, &never).drop_chosen(
            (&on, &inode),
            place.as_ref(),
            &chosen,
            &mut |run, report| {
                gone.left_pages += report.left_bytes / PAGE_BYTES;
                file.tried(run, report.left_bytes + report.vanished_bytes);
            },
        )?;
        Ok(gone)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cgroup::{Hierarchy, Version};
    use crate::pagecache::CacheKind;
    use crate::pagecache::fake::{self, FakeFile, Shared};

    pub fn file(number: u64, cgroup: u64, pages: u32) -> FakeFile {
        fake::file(number, CacheKind::File, cgroup, pages)
    }

    /// The first word of the present, young and swapped pages of the only table.
    fn words(seen: &[Seen]) -> [u64; 3] {
        let [seen] = seen else { panic!("{seen:?}") };
        [seen.bits.present, seen.bits.young, seen.bits.swapped].map(|set| set[0])
    }

    #[test]
    fn files_of_the_cgroup_are_shown_while_they_are_in_memory_and_after() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/below")).unwrap();
        std::fs::create_dir(dir.path().join("b")).unwrap();
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        let [a, below, b] = ["/a", "/a/below", "/b"].map(|path| {
            let cgroup = Cgroup::open(&hierarchy, path);
            cgroup.unwrap()
        });
        let shared = Shared::default();
        let files = [
            file(1, a.id(), 8),
            file(2, below.id(), 4),
            file(3, b.id(), 4),
        ];
        shared.0.lock().unwrap().files = files.to_vec();
        let mut held = BudgetedFiles::new(a, Box::new(shared.clone()), Box::new(shared.clone()));
        let seen = held.look(true).unwrap();
        let sizes: Vec<u64> = seen
            .values()
            .map(|seen| seen[0].bits.present.len())
            .collect();
        assert_eq!((seen.len(), sizes.iter().sum::<u64>()), (2, 12));
        assert!(seen.values().all(|seen| words(seen)[1] == 0), "{seen:?}");
        let name = *seen
            .iter()
            .find(|(_, seen)| words(seen)[0] == 0xff)
            .unwrap()
            .0;

        // Two pages are read: seen before the next look and at it, but not after.
        shared.0.lock().unwrap().files[0].read = 0b11;
        assert_eq!(words(&held.look(false).unwrap()[&name]), [0xff, 0b11, 0]);
        assert_eq!(words(&held.look(true).unwrap()[&name]), [0xff, 0b11, 0]);
        assert_eq!(words(&held.look(false).unwrap()[&name]), [0xff, 0, 0]);

        // Where accesses were lost, any page may have been accessed.
        shared.0.lock().unwrap().dropped = 1;
        assert_eq!(words(&held.look(true).unwrap()[&name]), [0xff, 0xff, 0]);
        assert_eq!(words(&held.look(true).unwrap()[&name]), [0xff, 0, 0]);

        // Also when pages are checked once more before they go.
        shared.0.lock().unwrap().dropped = 1;
        held.look(false).unwrap();
        let mut young = Vec::new();
        let mut none = |seen: &[Seen]| {
            young = words(seen).to_vec();
            Vec::new()
        };
        let all = std::slice::from_ref(&(0..8));
        held.move_out(name, all, &mut none, false).unwrap();
        assert_eq!(young, [0xff, 0xff, 0]);
        held.look(true).unwrap();

        // Half of it is dropped; then one of those pages comes back and is seen before the next
        // walk.
        shared.0.lock().unwrap().files[0].pages = 4;
        assert_eq!(words(&held.look(true).unwrap()[&name]), [0xf, 0, 0xf0]);
        shared.0.lock().unwrap().files[0].read = 1 << 5;
        shared.0.lock().unwrap().files[0].pages = 6;
        let seen = held.look(false).unwrap();
        assert_eq!(words(&seen[&name]), [0x3f, 1 << 5, 0xc0]);
        assert_eq!(seen[&name][0].movable[0], 0x3f);
    }

    #[test]
    fn nothing_goes_on_an_old_proof_that_accesses_are_noted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a")).unwrap();
        let cgroup = Cgroup::open(&Hierarchy::at(Version::V2, dir.path()), "/a").unwrap();
        let shared = Shared::default();
        shared.0.lock().unwrap().files = vec![file(1, cgroup.id(), 8)];
        let mut held =
            BudgetedFiles::new(cgroup, Box::new(shared.clone()), Box::new(shared.clone()));
        let name = *held.look(true).unwrap().keys().next().unwrap();
        shared.0.lock().unwrap().is_blind = true;
        held.read_ns = 0;
        let run = std::slice::from_ref(&(0..8));
        let mut all = |_: &[Seen]| run.to_vec();
        assert!(held.move_out(name, run, &mut all, false).is_err());
    }

    #[test]
    fn a_file_read_while_none_of_its_pages_is_in_memory_is_no_stranger() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a")).unwrap();
        let cgroup = Cgroup::open(&Hierarchy::at(Version::V2, dir.path()), "/a").unwrap();
        let ours = file(1, cgroup.id(), 8);
        let other = file(2, 77, 8);
        let shared = Shared::default();
        let mut held =
            BudgetedFiles::new(cgroup, Box::new(shared.clone()), Box::new(shared.clone()));
        held.look(true).unwrap();
        shared.0.lock().unwrap().files = vec![other];
        for file in [ours, other] {
            let pages = PageSet::range(0..1);
            held.since.blocks.insert(fake::block(&file, 0), pages);
        }
        assert!(held.look(false).unwrap().is_empty());
        shared.0.lock().unwrap().files = vec![ours, other];
        assert_eq!(held.look(false).unwrap().len(), 1);
        assert_eq!(held.known.strangers.len(), 1);
    }
}
