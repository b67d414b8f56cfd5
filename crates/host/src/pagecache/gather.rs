// SPDX-License-Identifier: Apache-2.0
//! Converts what a walk of the page cache shows to words of the age map, and to files and their
//! owners.

use std::collections::HashMap;
use std::sync::Arc;

use agewise_policy::table::{PAGES_PER_TABLE, PageSet};

use super::accesses::{Accesses, Block};
use super::cached::{CachedFile, FILES_MAX, Mapped, Owner, Run};
use super::frames::Folios;
use super::layout::Leaf;
use super::shown::{CacheKind, CacheSink, Inode, Key, SuperBlock};
use super::slots::{Slot, Slots};
use crate::access::PAGE_BYTES;

/// 64 page numbers of the age map, or the part of them that belongs to one file.
pub(super) struct Word {
    /// Page number / 64.
    pub at: u64,
    pub present: u64,
    pub young: u64,
    /// Dropped and not read again since.
    pub out: u64,
    pub is_file: bool,
}

impl Word {
    /// A word of pages that are no longer present.
    pub fn out(at: u64, out: u64) -> Self {
        Word {
            at,
            present: 0,
            young: 0,
            out,
            is_file: true,
        }
    }
}

/// The inputs of a look besides what the walk shows.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub accesses: &'a Accesses,
    /// Whether the pages of a cgroup count, by its kernfs id.
    pub owned: &'a dyn Fn(u64) -> bool,
    pub mapped: Option<&'a Mapped<'a>>,
}

/// The result of a walk.
pub(super) struct Gathered {
    pub words: Vec<Word>,
    /// Slots that become free at the end of this look.
    pub given_up: Vec<Slot>,
    /// Pages accessed through mappings.
    pub mapped: HashMap<Block, PageSet>,
    pub void: u64,
    pub unfollowed: u64,
    /// File systems that were not shown to their end.
    pub cut_short: Vec<Arc<SuperBlock>>,
}

/// Collects what the walk shows.
pub(super) struct Gather<'a> {
    asked: Asked<'a>,
    slots: &'a mut Slots,
    files: &'a mut HashMap<Key, CachedFile>,
    look: u32,
    found: Gathered,
    shown: Shown,
}

/// The file that is being shown.
enum Shown {
    /// None of its pages counts so far; their owner, from the first of them on.
    Others(Option<Run>),
    Followed(Open),
    /// Some of its pages count, but it cannot be followed.
    Refused,
}

/// A file that is being shown.
struct Open {
    file: CachedFile,
    /// Number of pages by cgroup.
    owners: Vec<(u64, u64)>,
    /// Index of its first word.
    words_from: usize,
    /// Whether it kept the slot it had before.
    is_known: bool,
}

impl CacheSink for Gather<'_> {
    fn leaves(
        &mut self,
        on: &Arc<SuperBlock>,
        inode: &Inode,
        leaves: &[Leaf],
        folios: &Folios<'_>,
    ) {
        for (at, leaf) in leaves.iter().enumerate() {
            let counts = (self.asked.owned)(leaf.cgroup);
            self.shown = match (self.take_shown(), counts) {
                (Shown::Others(before), true) => match self.begin(on, inode, before) {
                    Some(open) => self.add(open, leaf, (at, folios)),
                    None => Shown::Refused,
                },
                (Shown::Followed(open), true) => self.add(open, leaf, (at, folios)),
                // Their pages are accessed too, and must not be taken for those of the owner of the
                // pages before them.
                (Shown::Others(before), false) => Shown::Others(before.or(Some(others(leaf)))),
                (Shown::Followed(mut open), false) => {
                    open.file.begin_run(others(leaf));
                    Shown::Followed(open)
                }
                (Shown::Refused, _) => Shown::Refused,
            };
        }
    }

    fn end(&mut self, _: &Arc<SuperBlock>, inode: &Inode, valid: bool) {
        let Shown::Followed(mut open) = self.take_shown() else {
            return;
        };
        if !valid {
            // A known file and its slot are removed at the end of the look.
            self.found.void += 1;
            self.found.words.truncate(open.words_from);
            if !open.is_known {
                self.found.given_up.push(open.file.slot);
            }
            return;
        }
        let most = open.owners.iter().max_by_key(|(id, pages)| (*pages, *id));
        open.file.cgroup = most.map_or(0, |(id, _)| *id);
        // On a machine with one node, nearly all files have a single owner.
        if let [Run { owner, .. }] = open.file.runs[..]
            && owner.node == 0
        {
            open.file.runs = Vec::new();
        }
        let before = self.files.insert(inode.key(), open.file);
        if let Some(before) = before.filter(|_| !open.is_known) {
            self.found.given_up.push(before.slot);
        }
    }

    fn cut_short(&mut self, on: &Arc<SuperBlock>) {
        self.found.cut_short.push(Arc::clone(on));
    }
}

impl<'a> Gather<'a> {
    /// Starts gathering for look number `look`.
    pub fn new(
        asked: Asked<'a>,
        slots: &'a mut Slots,
        files: &'a mut HashMap<Key, CachedFile>,
        look: u32,
    ) -> Self {
        Gather {
            asked,
            slots,
            files,
            look,
            found: Gathered {
                words: Vec::new(),
                given_up: Vec::new(),
                mapped: HashMap::new(),
                void: 0,
                unfollowed: 0,
                cut_short: Vec::new(),
            },
            shown: Shown::Others(None),
        }
    }

    /// Returns the result. A file that was not shown to its end is given up.
    pub fn finish(mut self) -> Gathered {
        if let Shown::Followed(open) = self.take_shown()
            && !open.is_known
        {
            self.found.given_up.push(open.file.slot);
        }
        self.found
    }

    fn take_shown(&mut self) -> Shown {
        std::mem::replace(&mut self.shown, Shown::Others(None))
    }

    /// Opens the file in its slot, or in a new one if it has none or outgrew it; `None` if there is
    /// no room for it. A file that outgrew its slot is being written, so its pages are young.
    /// `before` is the owner of its pages shown before.
    fn begin(&mut self, on: &Arc<SuperBlock>, inode: &Inode, before: Option<Run>) -> Option<Open> {
        let needed = inode.size_bytes.div_ceil(PAGE_BYTES);
        let known = self.files.get(&inode.key());
        let same = known.filter(|file| {
            file.inode.number == inode.number
                && file.inode.generation == inode.generation
                && file.on.device == on.device
                && file.slot.holds(needed)
        });
        let slot = match same {
            Some(file) => Some(file.slot),
            None if known.is_none() && self.files.len() >= FILES_MAX => None,
            None => self.slots.take(needed),
        };
        let Some(slot) = slot else {
            self.found.unfollowed += 1;
            return None;
        };
        Some(Open {
            file: CachedFile {
                inode: *inode,
                on: Arc::clone(on),
                cgroup: 0,
                pages: 0,
                dirty_pages: 0,
                slot,
                runs: before.into_iter().collect(),
                look: self.look,
                unreached: 0,
            },
            owners: Vec::new(),
            words_from: self.found.words.len(),
            is_known: same.is_some(),
        })
    }

    fn add(&mut self, mut open: Open, leaf: &Leaf, (at, folios): (usize, &Folios<'_>)) -> Shown {
        let file = &mut open.file;
        let owner = Owner {
            cgroup: leaf.cgroup,
            node: self.node(leaf, (at, folios)),
        };
        file.begin_run(Run {
            first_page: leaf.first_page(),
            owner,
        });
        file.pages += leaf.pages();
        file.dirty_pages += u64::from(leaf.unclean().count_ones()) << leaf.shift();
        match open.owners.iter_mut().find(|(id, _)| *id == leaf.cgroup) {
            Some((_, pages)) => *pages += leaf.pages(),
            None => open.owners.push((leaf.cgroup, leaf.pages())),
        }
        // A bit of a leaf above the last level represents more than one page.
        let parts = 1u64 << leaf.shift();
        for part in 0..parts {
            let first_page = leaf.first_page() + 64 * part;
            let present = match parts {
                1 => leaf.present,
                _ if leaf.present >> (64 * part / parts) & 1 == 1 => u64::MAX,
                _ => 0,
            };
            let page = file.slot.first + first_page;
            // A slot of less than 64 pages begins within a word. Pages beyond the size the inode
            // had do not fit: they are in the totals now, and in the ages from the next look on.
            let room = file.slot.pages().saturating_sub(first_page).min(64);
            let present = present & u64::MAX.checked_shr(64 - room as u32).unwrap_or(0);
            let block = file.inode.block(first_page / PAGES_PER_TABLE as u64);
            let word = (first_page % PAGES_PER_TABLE as u64 / 64) as usize;
            let noted = self.asked.accesses.blocks.get(&block);
            let mut young = noted.map_or(0, |set| set[word]);
            if let Some(mapped) = self.asked.mapped {
                let mut touched = 0;
                folios.each(at, leaf, part, |page, frame| {
                    touched |= u64::from(mapped.touched.contains(frame)) << page;
                });
                if touched != 0 {
                    self.found.mapped.entry(block).or_default()[word] |= touched;
                }
                young |= touched;
            }
            self.found.words.push(Word {
                at: page / 64,
                present: present << (page % 64),
                young: (present & young) << (page % 64),
                out: 0,
                is_file: file.on.kind != CacheKind::Shmem,
            });
        }
        Shown::Followed(open)
    }

    /// The node of the first page of a leaf, as an index.
    fn node(&self, leaf: &Leaf, (at, folios): (usize, &Folios<'_>)) -> u8 {
        let Some(node_of) = self.asked.mapped.and_then(|mapped| mapped.node_of) else {
            return 0;
        };
        let mut first = None;
        folios.each(at, leaf, 0, |_, frame| {
            first.get_or_insert(frame);
        });
        first.map_or(0, node_of)
    }
}

/// The owner of the pages of a leaf that does not count.
fn others(leaf: &Leaf) -> Run {
    Run {
        first_page: leaf.first_page(),
        owner: Owner {
            cgroup: leaf.cgroup,
            node: 0,
        },
    }
}
