// SPDX-License-Identifier: Apache-2.0
//! Turns what a look shows of one process into ages: page types, NUMA nodes, pages shared with
//! others.

use std::collections::HashMap;

use agewise_policy::agemap::{Facts, Leaves, Look, Part};
use agewise_policy::generations::PageType;
use agewise_policy::table::{PageSet, TableBits};
use agewise_policy::workingset::Intervals;

use super::followed::PartOf;
use super::share;
use super::{Judged, Tap};
use crate::access::{AddressRange, Batch, LeafRun, SightSink, TABLE_BYTES, TableSight, Target};
use crate::cgroup::CgroupError;
use crate::frame_set::FrameSet;
use crate::interim::InterimScans;
use crate::look::Clearing;
use crate::memory::{self, NodeMap, Zone};
use crate::root::Roots;
use crate::vma::{Vma, VmaKind};

/// State shared by all processes of a tick.
pub(super) struct Shared<'a> {
    /// Frames found young in any mapping that may be shared.
    pub young: &'a FrameSet,
    /// Frames that other processes counted, for each set of subjects in which this process counts.
    pub counted: Vec<(Part, &'a mut FrameSet)>,
    /// Frames that this process is the first to count, in one of them at least.
    pub fresh: &'a mut FrameSet,
    /// Collects the frames of cached pages accessed through mappings, if the page cache counts
    /// those pages: they then count as pages counted elsewhere.
    pub touched: Option<&'a mut FrameSet>,
    pub nodes: &'a Nodes,
}

impl Shared<'_> {
    /// Counts what a look found. Until then the frames are not counted: a process whose look fails
    /// leaves them to the next.
    pub fn count_fresh(&mut self) {
        for (_, counted) in &mut self.counted {
            counted.add(self.fresh);
        }
    }
}

/// The NUMA nodes, and a map if there are several.
#[derive(Debug)]
pub(super) struct Nodes {
    /// Node ids, ascending; never empty.
    pub ids: Vec<u32>,
    pub map: Option<NodeMap>,
}

impl Nodes {
    /// Finds the nodes of this machine.
    ///
    /// # Errors
    /// `/sys` or `/proc/zoneinfo` cannot be read.
    pub fn find(roots: &Roots) -> Result<Nodes, CgroupError> {
        let mut ids = memory::online_nodes(&roots.sys)?;
        ids.sort_unstable();
        if ids.is_empty() {
            ids.push(0);
        }
        let map = match ids.len() {
            1 => None,
            _ => Some(NodeMap::new(&Zone::all(&roots.proc)?)),
        };
        Ok(Nodes { ids, map })
    }

    /// The first part of the pages counted elsewhere, for set number `at` of a process.
    pub fn first_part(&self, at: usize) -> u8 {
        ((1 + at) * self.ids.len()).min(WHOLE_PARTS - 1) as u8
    }

    /// The index in `ids` of the node of a frame.
    pub fn ordinal(&self, frame: u64) -> usize {
        let node = self.map.as_ref().and_then(|map| map.node_of(frame));
        node.and_then(|node| self.ids.iter().position(|id| *id == node))
            .unwrap_or(0)
    }
}

/// Additional inputs of one look.
pub(super) struct Extra<'a> {
    /// Bounds of the histogram of memory that came back into use.
    pub returned_bounds: Option<&'a Intervals>,
    /// Accesses that another component saw and cleared, by table. That component also clears
    /// anonymous memory for the agent.
    pub also_young: Option<HashMap<u64, PageSet>>,
    /// The listener.
    pub tap: Option<&'a mut dyn Tap>,
}

/// A mapping that is followed, whole or in part.
pub(super) struct Mapping<'a> {
    pub vma: &'a Vma,
    pub is_shareable: bool,
}

/// Parts from here on belong to mappings followed whole, in the same order as the parts below.
pub(super) const WHOLE_PARTS: usize = 128;

/// Turns sights into ages.
pub(super) struct Classifier<'a, 's, 't> {
    pub look: Look<'a>,
    pub clearing: Clearing<'a>,
    pub mappings: &'a [Mapping<'a>],
    /// The mapping of each range that is read.
    pub of: &'a [PartOf],
    pub is_sample: bool,
    pub shared: &'a mut Shared<'s>,
    pub also_young: Option<&'a HashMap<u64, PageSet>>,
    pub tap: Option<&'t mut dyn Tap>,
    pub target: Target,
    pub interim: &'a mut InterimScans,
    pub parts: Vec<(Part, PageSet)>,
}

impl Classifier<'_, '_, '_> {
    /// The mapping of a range, and its index.
    fn mapping(&self, range: usize) -> Option<(usize, &Mapping<'_>)> {
        let number = self.of.get(range)?.mapping as usize;
        Some((number, self.mappings.get(number)?))
    }

    fn kind(&self, range: usize) -> Option<VmaKind> {
        self.mapping(range).map(|(_, mapping)| mapping.vma.kind)
    }

    fn is_shareable(&self, range: usize) -> bool {
        self.mapping(range)
            .is_some_and(|(_, mapping)| mapping.is_shareable)
    }

    /// Tells the clearer what to clear of a sight.
    fn note(&mut self, sight: &TableSight<'_>) {
        let Some(range) = self.mapping(sight.range).map(|(number, _)| number) else {
            return;
        };
        if self.is_sample {
            self.clearing.clearer.gap();
        }
        self.clearing.clearer.judge(&TableSight { range, ..*sight });
    }

    fn files(&self, sight: &TableSight<'_>) -> PageSet {
        self.kind(sight.range)
            .map_or(PageSet::NONE, |kind| kind.files(sight.bits))
    }

    /// The pages that the page cache counts.
    fn cached(&self, sight: &TableSight<'_>) -> PageSet {
        if self.shared.touched.is_none() {
            return PageSet::NONE;
        }
        match self.kind(sight.range) {
            Some(VmaKind::Shmem) => sight.bits.present,
            Some(kind) => kind.files(sight.bits) & sight.bits.present,
            None => PageSet::NONE,
        }
    }

    /// Notes the cached pages that were accessed.
    fn note_touched(&mut self, sight: &TableSight<'_>, cached: &PageSet, young: &PageSet) {
        if let Some(touched) = &mut self.shared.touched {
            share::frames(sight, &(*cached & *young), |_, frame| {
                touched.insert(frame);
            });
        }
    }

    /// Notes pages on other nodes than the first, and pages that are counted elsewhere. Returns
    /// those that every subject has counted in another process.
    fn note_parts(
        &mut self,
        sight: &TableSight<'_>,
        cached: &PageSet,
        bits: &mut TableBits,
    ) -> PageSet {
        let mut elsewhere = PageSet::NONE;
        let is_shareable = self.is_shareable(sight.range);
        let several_nodes = self.shared.nodes.map.is_some();
        let is_whole = self.of.get(sight.range).is_some_and(|of| of.is_whole);
        let base = if self.is_sample && is_whole {
            WHOLE_PARTS
        } else {
            0
        };
        self.parts.clear();
        if !several_nodes && !is_shareable && cached.is_empty() {
            return elsewhere;
        }
        let mut masks: Vec<(usize, PageSet)> = Vec::new();
        let mut set = |part: usize, page: usize| {
            let at = masks
                .iter()
                .position(|(of, _)| *of == part)
                .unwrap_or_else(|| {
                    masks.push((part, PageSet::NONE));
                    masks.len() - 1
                });
            masks[at].1.insert(page);
        };
        let shared = &mut self.shared;
        let present = sight.bits.present;
        share::frames(sight, &present, |page, frame| {
            let node = if several_nodes {
                shared.nodes.ordinal(frame)
            } else {
                0
            };
            if node > 0 {
                set(base + node, page);
            }
            let is_cached = cached.contains(page);
            if !is_shareable && !is_cached {
                return;
            }
            let mut is_fresh = false;
            for (part, counted) in &shared.counted {
                if is_cached || counted.contains(frame) || shared.fresh.contains(frame) {
                    set(base + usize::from(*part) + node, page);
                } else {
                    is_fresh = true;
                }
            }
            if is_fresh {
                shared.fresh.insert(frame);
            } else if !is_cached && !shared.counted.is_empty() {
                elsewhere.insert(page);
            }
            if !sight.bits.young.contains(page) && shared.young.contains(frame) {
                bits.young.insert(page);
            }
        });
        debug_assert!(masks.iter().all(|(part, _)| *part < 2 * WHOLE_PARTS));
        self.parts
            .extend(masks.iter().map(|(part, mask)| (*part as Part, *mask)));
        elsewhere
    }
}

impl Classifier<'_, '_, '_> {
    /// Leaves of one type, mapped by this process only, that look alike in this look and in the
    /// intermediate scans before it.
    fn plain_leaves(&mut self, run: &LeafRun<'_>, page_type: PageType) {
        let first = run.first();
        if run.tables() == 0 {
            return;
        }
        if let Some((number, mapping)) = self.mapping(first.range) {
            let kind = mapping.vma.kind;
            if self.is_sample {
                self.clearing.clearer.gap();
            }
            self.clearing.clearer.judge_leaves(&run.of_range(number));
            self.interim.take_in(first, kind);
        }
        if let Some(tap) = &mut self.tap {
            tap.leaves(&self.target, run);
        }
        let taken = self.look.leaves(Leaves {
            first: first.va / TABLE_BYTES,
            tables: run.tables(),
            young: run.is_young(),
            page_type,
        });
        debug_assert!(taken.is_ok());
    }
}

impl SightSink for Classifier<'_, '_, '_> {
    fn table(&mut self, sight: &TableSight<'_>) {
        let mut bits = *sight.bits;
        let kind = self.kind(sight.range);
        if self.also_young.is_none() || kind != Some(VmaKind::Anon) {
            self.note(sight);
        }
        let table = sight.va / TABLE_BYTES;
        if let Some(also) = self.also_young.and_then(|also| also.get(&table)) {
            bits.young |= *also & sight.bits.present;
        }
        if let Some(kind) = kind {
            bits.young |= self.interim.take_in(sight, kind);
        }
        let cached = self.cached(sight);
        let elsewhere = self.note_parts(sight, &cached, &mut bits);
        self.note_touched(sight, &cached, &bits.young);
        if let Some(tap) = &mut self.tap {
            let judged = Judged {
                young: &bits.young,
                elsewhere: &elsewhere,
            };
            tap.table(&self.target, sight, judged);
        }
        let facts = Facts {
            index: table,
            bits: &bits,
            files: self.files(sight),
            parts: &self.parts,
        };
        // The source shows tables in ascending order. A table out of order would be shown again
        // next time.
        let taken = self.look.table(facts);
        debug_assert!(taken.is_ok());
    }

    fn leaves(&mut self, run: &LeafRun<'_>) {
        let page_type = match self.kind(run.first().range) {
            Some(VmaKind::FileShared) => PageType::File,
            Some(VmaKind::Anon) => PageType::Anon,
            // Each page has its own type.
            _ => return run.sights().for_each(|sight| self.table(&sight)),
        };
        let range = run.first().range;
        let singly = self.is_shareable(range) || self.also_young.is_some();
        let singly = singly || self.shared.touched.is_some() && page_type == PageType::File;
        if singly || self.shared.nodes.map.is_some() {
            return run.sights().for_each(|sight| self.table(&sight));
        }
        // Leaves that are young in this look, or not seen young by an intermediate scan, stay
        // together.
        let mut from = 0;
        for at in 0..run.tables() {
            if !run.is_young() && self.interim.has_seen(run.va(at)) {
                self.plain_leaves(&run.part(from, at), page_type);
                self.table(&run.sight(at));
                from = at + 1;
            }
        }
        self.plain_leaves(&run.part(from, run.tables()), page_type);
    }

    fn unreadable(&mut self, range: AddressRange) {
        self.look
            .keep(range.start / TABLE_BYTES..range.end.div_ceil(TABLE_BYTES));
    }

    fn batch_end(&mut self, batch: &Batch) {
        if let Some(tap) = &mut self.tap {
            tap.batch_end(&self.target, batch);
        }
        self.clearing.batch_end(batch);
    }
}
