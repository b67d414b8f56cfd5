// SPDX-License-Identifier: Apache-2.0
//! One process under observation: its mappings, its ages, how its accessed bits are cleared.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use agewise_policy::agemap::{AgeMap, Facts, Leaves, Look, LookCounts, Part, RangeSizes};
use agewise_policy::generations::{PageType, Sizes};
use agewise_policy::sample::{self, Bounds, Level};
use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits};
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use super::Tap;
use super::followed::{Estimate, Followed};
use super::share::{self, FrameSet};
use crate::access::{
    AccessError, AccessSource, AddressRange, Batch, LeafRun, PAGE_BYTES, SightSink, TABLE_BYTES,
    TableSight, Target,
};
use crate::clear::hand::KernelHand;
use crate::clear::shared::MapCounts;
use crate::clear::{ClearError, ClearPolicy, ClearReport, Clearer};
use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::error::FileError;
use crate::glance::Glances;
use crate::memory::NodeMap;
use crate::process::{Process, ProcessError};
use crate::untrusted::Untrusted;
use crate::vma::{MapsReader, Vma, VmaKind, VmaTable};

/// Milliseconds of the clock that ages are told by.
pub(super) fn clock_ms() -> u64 {
    monotonic_ns() / 1_000_000
}

/// A process under observation.
#[derive(Debug)]
pub struct Space {
    pub(super) process: Process,
    pub(super) comm: Untrusted,
    pub(super) vmas: VmaTable,
    pub(super) map: AgeMap,
    clearer: Clearer,
    /// Numbers of the mappings that are looked at, and whether their pages may be shared.
    looked_at: Vec<u32>,
    pub(super) shareable: Vec<bool>,
    /// What is read of them.
    pub(super) followed: Followed,
    glances: Glances,
    maps_read: MapsRead,
    /// Before the look, as the kernel counts them.
    resident_pages: u64,
    virtual_bytes: u64,
    /// Sets of subjects it is counted in, by index.
    pub(super) subjects: Vec<usize>,
    pub(super) refaulted_pages: u64,
    /// What the last look found accessed, by how long it had been idle: pages.
    pub(super) returned: Option<Histogram>,
    pub(super) looks: u64,
    pub(super) last_look_ms: u64,
    /// The tick that last found it.
    pub(super) tick: u64,
    /// Why the last look or clear failed.
    pub(super) trouble: Option<String>,
}

/// What one look at one process cost, CPU ns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LookCost {
    pub walk_ns: u64,
    pub classify_ns: u64,
    pub clear_ns: u64,
    pub counts: LookCounts,
    pub clear: ClearReport,
}

/// Why a process was not looked at to the end.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpaceError {
    #[error(transparent)]
    Eye(#[from] AccessError),
    #[error(transparent)]
    Maps(#[from] FileError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Clear(#[from] ClearError),
}

impl SpaceError {
    /// The process is gone, or another one now: nothing is wrong with us.
    pub fn is_gone(&self) -> bool {
        match self {
            SpaceError::Eye(error) => error.is_target_gone(),
            SpaceError::Maps(error) => error.is_not_found(),
            SpaceError::Process(error) => error.is_gone(),
            SpaceError::Clear(error) => matches!(error, ClearError::Gone { .. }),
        }
    }
}

/// What all processes of a tick have in common.
pub(super) struct Shared<'a> {
    /// Frames seen young in any mapping that may be shared.
    pub young: &'a FrameSet,
    /// Frames already counted, for each set of subjects this process is counted in.
    pub counted: Vec<(Part, &'a mut FrameSet)>,
    pub nodes: &'a Nodes,
}

/// The NUMA nodes, where there are several.
#[derive(Debug)]
pub(super) struct Nodes {
    /// Node ids, ascending; never empty.
    pub ids: Vec<u32>,
    pub map: Option<NodeMap>,
}

impl Nodes {
    /// The position of the node of a frame.
    pub fn ordinal(&self, frame: u64) -> usize {
        let node = self.map.as_ref().and_then(|map| map.node_of(frame));
        node.and_then(|node| self.ids.iter().position(|id| *id == node))
            .unwrap_or(0)
    }
}

/// What one look does besides.
pub(super) struct Extra<'a> {
    /// Bounds by which to tell what came back into use.
    pub returned_bounds: Option<&'a Intervals>,
    /// Accesses that somebody else saw and cleared, by table. Who does that clears for us as well.
    pub also_young: Option<HashMap<u64, PageSet>>,
    /// Who listens.
    pub tap: Option<&'a mut dyn Tap>,
}

impl Space {
    /// Begins to observe. `born_ms`: when it started, if its target was being observed by then.
    pub(super) fn new(
        process: Process,
        policy: ClearPolicy,
        counts: Arc<MapCounts>,
        horizon_ms: u64,
        born_ms: Option<u64>,
    ) -> Self {
        let map = match born_ms {
            Some(born_ms) => AgeMap::newborn(born_ms, horizon_ms),
            None => AgeMap::new(clock_ms(), horizon_ms),
        };
        Space {
            comm: process.comm().unwrap_or_default(),
            clearer: Clearer::with_counts(process.pid(), policy, counts),
            vmas: VmaTable::new(),
            map,
            looked_at: Vec::new(),
            shareable: Vec::new(),
            followed: Followed::default(),
            glances: Glances::default(),
            maps_read: MapsRead::default(),
            resident_pages: 0,
            virtual_bytes: 0,
            subjects: Vec::new(),
            refaulted_pages: 0,
            returned: None,
            looks: 0,
            last_look_ms: clock_ms(),
            tick: 0,
            trouble: None,
            process,
        }
    }

    /// Whether it still is the process it was; also notes how much of it is resident.
    pub(super) fn is_alive(&mut self) -> bool {
        let stat = self.process.check().ok();
        if let Some(stat) = &stat {
            (self.resident_pages, self.virtual_bytes) = (stat.rss_pages, stat.virtual_bytes);
        }
        stat.is_some()
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its name when it was found.
    pub fn comm(&self) -> &Untrusted {
        &self.comm
    }

    /// The ages of its pages.
    pub fn map(&self) -> &AgeMap {
        &self.map
    }

    /// Its mappings, as they were at the last look.
    pub fn vmas(&self) -> &VmaTable {
        &self.vmas
    }

    /// Why the last look or clear failed, if it did.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Bytes of memory that observing it takes.
    pub fn memory_bytes(&self) -> usize {
        self.map.memory_bytes()
            + self.clearer.memory_bytes()
            + self.glances.memory_bytes()
            + self.followed.memory_bytes()
            + self.vmas.memory_bytes()
    }

    /// Limits the CPU time of clearing in the looks to come.
    pub(super) fn set_clear_budget_ns(&mut self, budget_ns: Option<u64>) {
        self.clearer.set_budget_ns(budget_ns);
    }

    /// Reads its mappings. A long list of them that seems to be as it was is not read every time.
    pub(super) fn read_mappings(
        &mut self,
        reader: &mut MapsReader,
        within: Option<&[AddressRange]>,
    ) -> Result<(), SpaceError> {
        if self.maps_read.is_good_for(self.virtual_bytes) && self.followed.level() > 0 {
            self.maps_read.looks += 1;
            return Ok(());
        }
        let began_ns = thread_cpu_ns();
        self.vmas.read_by(reader, self.process.pid())?;
        let vmas = self.vmas.vmas().iter().zip(0..);
        let looked_at = vmas.filter(|(vma, _)| is_looked_at(vma) && is_within(vma.range, within));
        self.looked_at.clear();
        self.looked_at.extend(looked_at.map(|(_, number)| number));
        self.shareable.clear();
        self.maps_read = MapsRead {
            cpu_ns: thread_cpu_ns().saturating_sub(began_ns),
            virtual_bytes: self.virtual_bytes,
            looks: 0,
        };
        Ok(())
    }

    /// The mappings that are looked at.
    pub(super) fn looked_at(&self) -> impl ExactSizeIterator<Item = &Vma> {
        let vmas = self.vmas.vmas();
        self.looked_at
            .iter()
            .map(move |number| &vmas[*number as usize])
    }

    /// How coarse the sample of it is; 0: everything is followed.
    pub(super) fn level(&self) -> Level {
        self.followed.level()
    }

    /// Resident pages before the look, as the kernel counts them.
    pub(super) fn resident_pages(&self) -> u64 {
        self.resident_pages
    }

    /// The mappings as the sample takes them, as of the last look.
    pub(super) fn areas(&self) -> &[sample::Area] {
        self.followed.areas()
    }

    /// Takes in the mappings as they were read.
    pub(super) fn take_mappings(&mut self) {
        if self.maps_read.looks > 0 && self.shareable.is_empty() {
            return;
        }
        let vmas = self.vmas.vmas();
        let mappings = self.looked_at.iter().map(|number| &vmas[*number as usize]);
        let shared = self
            .shareable
            .iter()
            .copied()
            .chain(std::iter::repeat(false));
        self.followed.set_mappings(mappings.zip(shared));
    }

    /// Says what is followed from now on.
    pub(super) fn follow(&mut self, level: Level, whole_limit: u64, bounds: &Bounds) {
        self.followed.choose(level, whole_limit, bounds);
    }

    /// What a sample says of all of it; `None` where everything is followed.
    pub(super) fn estimate(&self, now_ms: u64, bounds: Option<&Intervals>) -> Option<Estimate> {
        let is_sample = self.followed.is_sample();
        is_sample.then(|| self.followed.estimate(&self.map, now_ms, bounds))
    }

    /// Resident pages by label and type: those followed, or what they stand for.
    pub fn sizes(&self) -> Sizes {
        match self.estimate(self.last_look_ms, None) {
            Some(estimate) => estimate.scaled,
            None => *self.map.generations().sizes(),
        }
    }

    /// The same of a range of pages, such as a mapping: of a sample about.
    pub fn sizes_within(&self, pages: std::ops::Range<u64>) -> RangeSizes {
        self.followed.sizes_within(&self.map, pages)
    }

    /// Pages in swap.
    pub fn swapped_pages(&self) -> u64 {
        match self.followed.is_sample() {
            true => self.followed.swapped_pages(),
            false => self.map.swapped().iter().sum(),
        }
    }

    /// Pages followed, of those resident.
    pub fn followed_pages(&self) -> u64 {
        self.map.generations().pages().iter().sum()
    }

    /// Notes the frames that are young in mappings that may be shared. Clears nothing.
    pub(super) fn peek(
        &self,
        source: &mut dyn AccessSource,
        young: &mut FrameSet,
    ) -> Result<u64, SpaceError> {
        let followed = self.followed.ranges.iter().zip(&self.followed.of);
        let ranges: Vec<AddressRange> = followed
            .filter(|(_, (mapping, _))| self.is_shareable(*mapping))
            .map(|(range, _)| *range)
            .collect();
        if ranges.is_empty() {
            return Ok(0);
        }
        let mut sink = |sight: &TableSight<'_>| {
            share::frames(sight, &sight.bits.young, |_, frame| {
                young.insert(frame);
            });
        };
        let report = source.scan(&Target::from(&self.process), &ranges, &mut sink)?;
        Ok(report.cost.cpu_ns)
    }

    /// Notes what was accessed so far, where somebody else may clear it before the next look.
    pub(super) fn glance(&mut self, source: &mut dyn AccessSource) -> Result<u64, SpaceError> {
        let target = Target::from(&self.process);
        Ok(self.glances.glance(source, &target)?)
    }

    /// Looks at all of it once, and clears.
    pub(super) fn look(
        &mut self,
        source: &mut dyn AccessSource,
        shared: Shared<'_>,
        extra: Extra<'_>,
    ) -> Result<LookCost, SpaceError> {
        let began = thread_cpu_ns();
        let target = Target::from(&self.process);
        let now_ns = monotonic_ns();
        let is_sample = self.followed.is_sample();
        if is_sample {
            self.followed.set_known(&self.process.status()?);
        }
        let vmas = self.vmas.vmas();
        let mappings: Vec<Mapping<'_>> = self
            .followed
            .mappings
            .iter()
            .map(|number| Mapping {
                vma: &vmas[self.looked_at[*number as usize] as usize],
                is_shareable: self
                    .shareable
                    .get(*number as usize)
                    .copied()
                    .unwrap_or(false),
            })
            .collect();
        if extra.also_young.is_none() {
            self.clearer
                .begin(now_ns, mappings.iter().map(|mapping| mapping.vma));
            self.clearer
                .set_resident_pages(is_sample.then_some(self.resident_pages));
        }
        let (scanned, failed) = {
            let mut sink = Sink {
                look: self.map.look(),
                clearer: &mut self.clearer,
                hand: KernelHand::new(&self.process),
                mappings: &mappings,
                of: &self.followed.of,
                is_sample,
                shared,
                also_young: extra.also_young.as_ref(),
                tap: extra.tap,
                target,
                glances: &mut self.glances,
                parts: Vec::new(),
                failed: None,
            };
            let scanned = source.scan(&target, &self.followed.ranges, &mut sink);
            // A look that broke off is dropped, which keeps what it did not reach.
            let scanned = scanned.map(|report| (report, sink.look.finish_with_returned()));
            (scanned, sink.failed)
        };
        self.glances.end(&self.followed.ranges);
        let (scanned, (mut counts, back)) = match scanned {
            Ok(found) => found,
            Err(error) => {
                if matches!(error, AccessError::Changed { .. }) {
                    self.clearer.forget();
                }
                return Err(error.into());
            }
        };
        if is_sample {
            raise(&mut counts, self.followed.known_pages());
        }
        let cleared = match failed {
            Some(error) => Err(error),
            None if extra.also_young.is_some() => Ok(ClearReport::default()),
            None => self.clearer.finish(&mut KernelHand::new(&self.process)),
        };
        // The generation ends where reading did, however long that took: what was read late may have been
        // accessed late.
        let now_ms = clock_ms();
        self.returned = extra.returned_bounds.map(|bounds| {
            let mut returned = Histogram::new(bounds);
            returned.add_window(self.map.generations(), &back, now_ms, OldestPages::AtLeast);
            returned
        });
        self.map.advance(now_ms);
        self.looks += 1;
        self.last_look_ms = now_ms;
        self.refaulted_pages += counts.refaulted;
        let clear = cleared?;
        let total_ns = thread_cpu_ns() - began;
        let classify_ns = total_ns.saturating_sub(scanned.cost.cpu_ns + clear.cpu_ns);
        Ok(LookCost {
            walk_ns: scanned.cost.cpu_ns,
            classify_ns,
            clear_ns: clear.cpu_ns,
            counts,
            clear,
        })
    }
}

impl Space {
    /// Whether pages of the mapping may be shared, by its place among those followed.
    fn is_shareable(&self, mapping: u32) -> bool {
        let number = self.followed.mappings.get(mapping as usize);
        number.is_some_and(|number| self.shareable.get(*number as usize).is_some_and(|is| *is))
    }
}

/// When the mappings were read last, and what that cost.
#[derive(Clone, Copy, Debug, Default)]
struct MapsRead {
    cpu_ns: u64,
    /// Size of the address space then.
    virtual_bytes: u64,
    /// Looks since.
    looks: u32,
}

/// Reading so long a list of mappings is worth to be saved,
const MAPS_DEAR_NS: u64 = 1_000_000;
/// for so many looks: memory may be mapped elsewhere without the address space growing.
const MAPS_KNOWN_LOOKS: u32 = 8;

impl MapsRead {
    fn is_good_for(&self, virtual_bytes: u64) -> bool {
        self.cpu_ns > MAPS_DEAR_NS
            && self.virtual_bytes == virtual_bytes
            && self.looks < MAPS_KNOWN_LOOKS
    }
}

/// From what a sample showed to what there is.
fn raise(counts: &mut LookCounts, known_pages: u64) {
    let seen = u128::from(counts.present.max(1));
    let known = u128::from(known_pages.max(counts.present));
    let raised = |pages: u64| (u128::from(pages) * known / seen) as u64;
    *counts = LookCounts {
        tables: counts.tables,
        present: known_pages.max(counts.present),
        young: raised(counts.young),
        appeared: raised(counts.appeared),
        gone: raised(counts.gone),
        swapped_out: raised(counts.swapped_out),
        refaulted: raised(counts.refaulted),
    };
}

/// Memory that has an age and is resident memory of the process.
fn is_looked_at(vma: &Vma) -> bool {
    !matches!(vma.kind, VmaKind::Special | VmaKind::Hugetlb)
}

/// Whether a mapping has anything of these addresses.
fn is_within(range: AddressRange, within: Option<&[AddressRange]>) -> bool {
    within.is_none_or(|within| {
        let at = within.partition_point(|wanted| wanted.end <= range.start);
        within
            .get(at)
            .is_some_and(|wanted| wanted.start < range.end)
    })
}

/// A mapping of which something is followed.
struct Mapping<'a> {
    vma: &'a Vma,
    is_shareable: bool,
}

/// Parts from this on are those of mappings that are followed whole, in the order of the others.
pub(super) const WHOLE_PARTS: usize = 128;

struct Sink<'a, 't> {
    look: Look<'a>,
    clearer: &'a mut Clearer,
    hand: KernelHand<'a>,
    mappings: &'a [Mapping<'a>],
    /// Mapping of each range that is read, and whether that is followed whole.
    of: &'a [(u32, bool)],
    is_sample: bool,
    shared: Shared<'a>,
    also_young: Option<&'a HashMap<u64, PageSet>>,
    tap: Option<&'t mut dyn Tap>,
    target: Target,
    glances: &'a mut Glances,
    parts: Vec<(Part, PageSet)>,
    failed: Option<ClearError>,
}

impl Sink<'_, '_> {
    /// The mapping that a range is of, and its number.
    fn mapping(&self, range: usize) -> Option<(usize, &Mapping<'_>)> {
        let number = self.of.get(range)?.0 as usize;
        Some((number, self.mappings.get(number)?))
    }

    fn kind(&self, range: usize) -> Option<VmaKind> {
        self.mapping(range).map(|(_, mapping)| mapping.vma.kind)
    }

    fn is_shareable(&self, range: usize) -> bool {
        self.mapping(range)
            .is_some_and(|(_, mapping)| mapping.is_shareable)
    }

    /// What the bits of a sight mean; it is noted to be cleared.
    fn judge(&mut self, sight: &TableSight<'_>) -> PageSet {
        let Some((number, _)) = self.mapping(sight.range) else {
            return sight.bits.young;
        };
        if self.is_sample {
            self.clearer.gap();
        }
        let range = number;
        self.clearer.judge(&TableSight { range, ..*sight }).young
    }

    /// Which pages are file pages. What was written in a private mapping of a file is anonymous;
    /// the kernel maps the file's own pages there clean and read-only.
    fn files(&self, sight: &TableSight<'_>) -> PageSet {
        match self.kind(sight.range) {
            Some(VmaKind::FileShared) => PageSet::ALL,
            Some(VmaKind::FilePrivate) => sight.bits.present.without(&sight.bits.dirty),
            _ => PageSet::NONE,
        }
    }

    /// Pages of other nodes than the first, and pages that another process counts.
    fn note_parts(&mut self, sight: &TableSight<'_>, is_shareable: bool, bits: &mut TableBits) {
        let several_nodes = self.shared.nodes.map.is_some();
        let is_whole = self
            .of
            .get(sight.range)
            .is_some_and(|(_, is_whole)| *is_whole);
        let base = if self.is_sample && is_whole {
            WHOLE_PARTS
        } else {
            0
        };
        self.parts.clear();
        if !several_nodes && !is_shareable {
            return;
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
            if !is_shareable {
                return;
            }
            for (part, counted) in &mut shared.counted {
                if counted.insert(frame) {
                    set(base + usize::from(*part) + node, page);
                }
            }
            if !sight.bits.young.contains(page) && shared.young.contains(frame) {
                bits.young.insert(page);
            }
        });
        debug_assert!(masks.iter().all(|(part, _)| *part < 2 * WHOLE_PARTS));
        self.parts
            .extend(masks.iter().map(|(part, mask)| (*part as Part, *mask)));
    }
}

impl Sink<'_, '_> {
    /// Leaves of one type, alone in this process, of which no look and no glance saw anything else.
    fn plain_leaves(&mut self, run: &LeafRun<'_>, page_type: PageType) {
        let first = run.first();
        if run.tables() == 0 {
            return;
        }
        if let Some((number, mapping)) = self.mapping(first.range) {
            let kind = mapping.vma.kind;
            if self.is_sample {
                self.clearer.gap();
            }
            self.clearer.judge_leaves(&run.of_range(number));
            self.glances.take_in(first, kind);
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

impl SightSink for Sink<'_, '_> {
    fn table(&mut self, sight: &TableSight<'_>) {
        let mut bits = *sight.bits;
        match self.also_young {
            None => bits.young = self.judge(sight),
            Some(also) => {
                if let Some(also) = also.get(&(sight.va / TABLE_BYTES)) {
                    bits.young |= *also & sight.bits.present;
                }
            }
        }
        if let Some(kind) = self.kind(sight.range) {
            bits.young |= self.glances.take_in(sight, kind);
        }
        let is_shareable = self.is_shareable(sight.range);
        self.note_parts(sight, is_shareable, &mut bits);
        if let Some(tap) = &mut self.tap {
            tap.table(&self.target, sight, &bits.young);
        }
        let facts = Facts {
            index: sight.va / TABLE_BYTES,
            bits: &bits,
            files: self.files(sight),
            parts: &self.parts,
        };
        // The source shows tables upwards; one that did not would be shown to us again next time.
        let taken = self.look.table(facts);
        debug_assert!(taken.is_ok());
    }

    fn leaves(&mut self, run: &LeafRun<'_>) {
        let page_type = match self.kind(run.first().range) {
            Some(VmaKind::FileShared) => PageType::File,
            Some(VmaKind::Anon) => PageType::Anon,
            // Each page has a type of its own.
            _ => return run.sights().for_each(|sight| self.table(&sight)),
        };
        let range = run.first().range;
        let singly = self.is_shareable(range) || self.tap.is_some() || self.also_young.is_some();
        if singly || self.shared.nodes.map.is_some() {
            return run.sights().for_each(|sight| self.table(&sight));
        }
        // What was accessed anyway, or never glanced, is as it was seen.
        let mut from = 0;
        for at in 0..run.tables() {
            if !run.is_young() && self.glances.has_seen(run.va(at)) {
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

    fn batch_end(&mut self, batch: &Batch) -> ControlFlow<()> {
        if let Some(tap) = &mut self.tap {
            tap.batch_end(&self.target, batch);
        }
        if self.failed.is_none() && self.also_young.is_none() {
            self.failed = self.clearer.clear(&mut self.hand, batch).err();
        }
        ControlFlow::Continue(())
    }
}

/// Bytes of one table's worth of pages, for readers of the constants above.
const _: () = assert!(TABLE_BYTES == PAGE_BYTES * PAGES_PER_TABLE as u64);
