// SPDX-License-Identifier: Apache-2.0
//! The known files of a budget: their pages, present and absent.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use agewise_policy::budget::Seen;
use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits};

use crate::access::PAGE_BYTES;
use crate::pagecache::{
    Accesses, Block, CacheKind, CacheSink, Folios, Inode, Key, Leaf, SuperBlock,
};

/// A page that could not be dropped (dirty, mapped, locked) is retried after this many looks.
const STUCK_LOOKS: u32 = 16;

/// Pages that are no longer present are remembered for this many looks.
const KNOWN_LOOKS: u32 = 256;

/// Most tables remembered, of 512 pages each. One takes 0.4 KiB here and 1 KiB in the queue of the
/// budget: 180 MiB for 256 GiB of large files, or as many small ones. Further pages are left to the
/// kernel.
pub(super) const TABLES_MAX: usize = 1 << 17;

/// Everything known about the files.
#[derive(Default)]
pub(super) struct Known {
    /// Kernfs ids of the cgroups.
    pub owned: HashSet<u64>,
    /// Files by a name that stays the same while none of their pages is present.
    pub files: BTreeMap<u64, CachedFile>,
    pub names: HashMap<Key, u64>,
    /// Inodes without any page that belongs to the cgroup.
    pub strangers: HashSet<Key>,
    look: u32,
    /// The file being shown, if any of its pages belongs to the cgroup.
    shown: Option<u64>,
    room: Room,
}

/// How many more tables may be remembered.
struct Room {
    tables: usize,
    /// Whether there were more.
    is_exceeded: bool,
}

impl Default for Room {
    fn default() -> Self {
        Room {
            tables: TABLES_MAX,
            is_exceeded: false,
        }
    }
}

/// A file, kept even while none of its pages is present.
pub(super) struct CachedFile {
    pub inode: Inode,
    pub on: Arc<SuperBlock>,
    /// Tables with the index of their first page / 512, ascending. Most files have one, and a map
    /// would allocate eleven.
    tables: Vec<(u64, Table)>,
}

/// The state of 512 pages.
#[derive(Clone, Copy, Default)]
pub(super) struct Table {
    /// Present at the last look.
    present: PageSet,
    /// Dirty or under writeback at the last look.
    unclean: PageSet,
    /// Pages of a large folio other than its first.
    tail: PageSet,
    /// Present at some look.
    known: PageSet,
    /// Dropped since the last look.
    dropped: PageSet,
    /// Could not be dropped when this was tried.
    stuck: PageSet,
    /// The last look that found any of the pages.
    look: u32,
}

impl Known {
    /// Begins a look: forgets which pages were present. Returns the addresses of the known inodes.
    pub fn begin(&mut self, look: u32) -> Vec<u64> {
        self.look = look;
        self.names.clear();
        self.files.retain(|_, file| {
            file.forget_before(look);
            !file.tables.is_empty()
        });
        let tables: usize = self.files.values().map(|file| file.tables.len()).sum();
        self.room = Room {
            tables: TABLES_MAX.saturating_sub(tables),
            is_exceeded: false,
        };
        let files = self.files.values();
        files.map(|file| file.inode.address).collect()
    }

    /// Whether pages found since the last look began are not remembered, as there are too many.
    pub fn is_full(&self) -> bool {
        self.room.is_exceeded
    }
}

/// Takes what walks show, as far as it belongs to the cgroup.
impl CacheSink for Known {
    fn leaves(&mut self, on: &Arc<SuperBlock>, inode: &Inode, leaves: &[Leaf], _: &Folios<'_>) {
        if on.kind != CacheKind::File {
            return;
        }
        let name = inode.name_hash(on);
        let own = leaves.iter();
        for leaf in own.filter(|leaf| self.owned.contains(&leaf.cgroup)) {
            if self.room.tables == 0 && !self.files.contains_key(&name) {
                self.room.is_exceeded = true;
                return;
            }
            let file = self.files.entry(name).or_insert_with(|| CachedFile {
                inode: *inode,
                on: Arc::clone(on),
                tables: Vec::new(),
            });
            if self.shown != Some(name) {
                self.shown = Some(name);
                (file.inode, file.on) = (*inode, Arc::clone(on));
                self.names.insert(inode.key(), name);
            }
            file.found(leaf, self.look, &mut self.room);
        }
    }

    fn end(&mut self, _: &Arc<SuperBlock>, inode: &Inode, valid: bool) {
        let Some(name) = self.shown.take().filter(|_| !valid) else {
            return;
        };
        // It became another inode, so what was shown belongs to nobody.
        self.names.remove(&inode.key());
        self.files.remove(&name);
    }
}

impl CachedFile {
    pub fn block(&self, index: u64) -> Block {
        self.inode.block(index)
    }

    /// The table with this index.
    pub fn table(&self, index: u64) -> Option<&Table> {
        let at = self.place_of(index).ok()?;
        Some(&self.tables[at].1)
    }

    /// The table with this index, which is added if there is room.
    fn table_mut(&mut self, index: u64, room: &mut Room) -> Option<&mut Table> {
        let at = match self.place_of(index) {
            Ok(at) => at,
            Err(_) if room.tables == 0 => {
                room.is_exceeded = true;
                return None;
            }
            Err(at) => {
                room.tables -= 1;
                // By halves: a vector begins with four and doubles.
                if self.tables.len() == self.tables.capacity() {
                    self.tables.reserve_exact(self.tables.len() / 2 + 1);
                }
                self.tables.insert(at, (index, Table::default()));
                at
            }
        };
        Some(&mut self.tables[at].1)
    }

    fn place_of(&self, index: u64) -> Result<usize, usize> {
        self.tables
            .binary_search_by_key(&index, |(index, _)| *index)
    }

    /// Forgets which pages are present, before a walk finds them again.
    pub fn forget_presence(&mut self) {
        for (_, table) in &mut self.tables {
            table.present = PageSet::NONE;
            table.unclean = PageSet::NONE;
            table.tail = PageSet::NONE;
            table.dropped = PageSet::NONE;
        }
    }

    fn forget_before(&mut self, look: u32) {
        self.forget_presence();
        self.tables.retain_mut(|(_, table)| {
            if look.is_multiple_of(STUCK_LOOKS) {
                table.stuck = PageSet::NONE;
            }
            look.saturating_sub(table.look) < KNOWN_LOOKS
        });
        if self.tables.capacity() > 2 * self.tables.len() {
            self.tables.shrink_to_fit();
        }
    }

    fn found(&mut self, leaf: &Leaf, look: u32, room: &mut Room) {
        // A bit of a leaf above the last level represents more than one page.
        let bit_pages = 1u64 << leaf.shift();
        let unclean = leaf.unclean();
        for bit in (0..64).filter(|bit| leaf.present >> bit & 1 == 1) {
            let first = leaf.first_page() + bit * bit_pages;
            let is_tail = leaf.tail >> bit & 1 == 1;
            for (index, pages) in by_table(first + u64::from(!is_tail)..first + bit_pages) {
                if (is_tail || bit_pages > 1)
                    && let Some(table) = self.table_mut(index, room)
                {
                    table.tail |= pages;
                }
            }
            for (index, pages) in by_table(first..first + bit_pages) {
                let Some(table) = self.table_mut(index, room) else {
                    continue;
                };
                table.present |= pages;
                table.known |= pages;
                table.look = look;
                if unclean >> bit & 1 == 1 {
                    table.unclean |= pages;
                }
            }
        }
    }

    /// The state of each table, with the accesses `since` the last look that counted.
    pub fn seen(&self, since: &Accesses) -> Vec<Seen> {
        let tables = self.tables.iter();
        let seen = tables.map(|(index, table)| {
            let accessed = self.accessed(*index, since);
            self.seen_table(*index, table, accessed)
        });
        seen.collect()
    }

    /// The pages of a table that may have been accessed: any of them if many accesses were lost.
    pub fn accessed(&self, index: u64, since: &Accesses) -> PageSet {
        match since.lacks_many() {
            true => PageSet::ALL,
            false => {
                let noted = since.blocks.get(&self.block(index));
                noted.copied().unwrap_or(PageSet::NONE)
            }
        }
    }

    /// The state of a table with these pages accessed.
    pub fn seen_table(&self, index: u64, table: &Table, accessed: PageSet) -> Seen {
        let present = table.present();
        Seen {
            index,
            bits: TableBits {
                present,
                young: table.whole(accessed & table.known),
                swapped: table.known.without(&present),
                ..TableBits::default()
            },
            movable: match self.inode.can_be_dropped(&self.on) {
                true => present.without(&table.stuck).without(&table.unclean),
                false => PageSet::NONE,
            },
        }
    }

    /// Extends runs of pages to whole folios.
    pub fn whole(&self, runs: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut sets: BTreeMap<u64, PageSet> = BTreeMap::new();
        for (index, pages) in runs.iter().cloned().flat_map(by_table) {
            *sets.entry(index).or_default() |= pages;
        }
        let whole = sets.into_iter().flat_map(|(index, pages)| {
            let table = self.table(index);
            let pages = table.map_or(pages, |table| table.whole(pages) & table.present());
            let first = index * PAGES_PER_TABLE as u64;
            let run = |run: Range<usize>| first + run.start as u64..first + run.end as u64;
            pages.runs().map(run).collect::<Vec<_>>()
        });
        whole.collect()
    }

    /// Notes that dropping a run was tried, after which this many of its bytes were gone.
    pub fn tried(&mut self, run: &Range<u64>, gone_bytes: u64) {
        let went = gone_bytes >= (run.end - run.start) * PAGE_BYTES;
        for (index, pages) in by_table(run.clone()) {
            let Ok(at) = self.place_of(index) else {
                continue;
            };
            let table = &mut self.tables[at].1;
            match went {
                true => table.dropped |= pages,
                false => table.stuck |= pages,
            }
        }
    }
}

impl Table {
    /// These pages, extended to each large folio that contains one of them: it stays or goes as a
    /// whole.
    pub fn whole(&self, pages: PageSet) -> PageSet {
        let mut whole = pages;
        for tails in self.tail.runs() {
            let folio = PageSet::range(tails.start.saturating_sub(1)..tails.end);
            if !(pages & folio).is_empty() {
                whole |= folio;
            }
        }
        whole
    }

    pub fn present(&self) -> PageSet {
        self.present.without(&self.dropped)
    }
}

/// Splits a run of pages by table (index of the first page / 512).
pub(super) fn by_table(pages: Range<u64>) -> impl Iterator<Item = (u64, PageSet)> {
    const SIZE: u64 = PAGES_PER_TABLE as u64;
    let tables = pages.start / SIZE..pages.end.div_ceil(SIZE);
    tables.map(move |index| {
        let place = |page: u64| page.clamp(index * SIZE, (index + 1) * SIZE) - index * SIZE;
        let (from, to) = (place(pages.start), place(pages.end));
        (index, PageSet::range(from as usize..to as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::super::files::tests::file;
    use super::*;
    use crate::pagecache::CacheReader;
    use crate::pagecache::fake::Shared;

    #[test]
    fn what_did_not_go_is_left_alone_and_what_went_is_out() {
        let shared = Shared::default();
        shared.0.lock().unwrap().files = vec![file(1, 7, 64)];
        let mut known = Known {
            owned: [7].into(),
            look: 1,
            ..Known::default()
        };
        let mut walk: Box<dyn CacheReader> = Box::new(shared);
        walk.walk(&mut known).unwrap();
        let name = *known.files.keys().next().unwrap();
        let file = known.files.get_mut(&name).unwrap();
        file.tried(&(0..20), 20 * PAGE_BYTES);
        file.tried(&(20..30), 9 * PAGE_BYTES);
        let seen = file.seen(&Accesses::default());
        assert_eq!(seen[0].bits.present, PageSet::range(20..64));
        assert_eq!(seen[0].movable, PageSet::range(30..64));
        assert_eq!(seen[0].bits.swapped, PageSet::range(0..20));
        let addresses = known.begin(STUCK_LOOKS);
        assert_eq!(addresses.len(), 1);
        assert_eq!(
            known.files[&name].seen(&Accesses::default())[0]
                .movable
                .len(),
            0
        );
        walk.walk_inode(addresses[0], &mut known).unwrap();
        let seen = known.files[&name].seen(&Accesses::default());
        assert_eq!(seen[0].movable.len(), 64, "tried again");
        known.begin(STUCK_LOOKS + KNOWN_LOOKS);
        assert!(known.files.is_empty(), "nothing was there for long");
    }

    #[test]
    fn files_take_little_memory_and_only_so_many_are_followed() {
        let shared = Shared::default();
        shared.0.lock().unwrap().files = (1..=5).map(|number| file(number, 7, 8)).collect();
        let mut known = Known {
            owned: [7].into(),
            ..Known::default()
        };
        known.begin(1);
        assert!(size_of::<(u64, Table)>() <= 400);
        known.room.tables = 3;
        let mut walk: Box<dyn CacheReader> = Box::new(shared.clone());
        walk.walk(&mut known).unwrap();
        assert!(known.is_full());
        assert_eq!((known.files.len(), known.names.len()), (3, 3));
        let mut files = known.files.values();
        assert!(files.all(|file| file.tables.capacity() == 1));

        // Room that is left again is used.
        known.begin(2);
        known.room.tables = 3;
        walk.walk(&mut known).unwrap();
        assert_eq!((known.files.len(), known.is_full()), (5, false));
    }

    #[test]
    fn a_large_folio_is_one() {
        let table = Table {
            present: PageSet::range(0..40),
            tail: PageSet::range(9..16) | PageSet::range(17..32),
            ..Table::default()
        };
        let whole = |from, to| table.whole(PageSet::range(from..to));
        assert_eq!(whole(3, 5), PageSet::range(3..5));
        assert_eq!(whole(10, 11), PageSet::range(8..16));
        assert_eq!(whole(15, 17), PageSet::range(8..32));
        assert_eq!(whole(35, 36), PageSet::range(35..36));
    }
}
