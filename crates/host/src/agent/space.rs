// SPDX-License-Identifier: Apache-2.0
//! One process under observation: its mappings, its ages, how its accessed bits are cleared.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use agewise_policy::agemap::{AgeMap, Facts, Leaves, Look, LookCounts, Part};
use agewise_policy::generations::PageType;
use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits};
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use super::share::{self, FrameSet};
use crate::clear::hand::KernelHand;
use crate::clear::shared::MapCounts;
use crate::clear::{ClearError, ClearPolicy, ClearReport, Clearer};
use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::error::FileError;
use crate::eye::{
    AccessSource, AddressRange, Batch, EyeError, LeafRun, PAGE_BYTES, SightSink, TABLE_BYTES,
    TableSight, Target,
};
use crate::glance::Glances;
use crate::memory::NodeMap;
use crate::process::Process;
use crate::rounds::{Rounds, Terms};
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
    /// The mappings that are looked at, and whether their pages may be shared.
    pub(super) ranges: Vec<AddressRange>,
    kinds: Vec<VmaKind>,
    pub(super) shareable: Vec<bool>,
    glances: Glances,
    rounds: Rounds,
    /// Before the look, as the kernel counts them.
    resident_pages: Option<u64>,
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
    Eye(#[from] EyeError),
    #[error(transparent)]
    Maps(#[from] FileError),
    #[error(transparent)]
    Clear(#[from] ClearError),
}

impl SpaceError {
    /// The process is gone, or another one now: nothing is wrong with us.
    pub fn is_gone(&self) -> bool {
        match self {
            SpaceError::Eye(error) => error.is_target_gone(),
            SpaceError::Maps(error) => error.is_not_found(),
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
            ranges: Vec::new(),
            kinds: Vec::new(),
            shareable: Vec::new(),
            glances: Glances::default(),
            rounds: Rounds::default(),
            resident_pages: None,
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
        self.resident_pages = stat.as_ref().map(|stat| stat.rss_pages);
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
            + self.rounds.memory_bytes()
            + self.vmas.memory_bytes()
    }

    /// Limits the CPU time of clearing in the looks to come.
    pub(super) fn set_clear_budget_ns(&mut self, budget_ns: Option<u64>) {
        self.clearer.set_budget_ns(budget_ns);
    }

    /// Reads its mappings.
    pub(super) fn read_mappings(&mut self, reader: &mut MapsReader) -> Result<(), SpaceError> {
        self.vmas.read_by(reader, self.process.pid())?;
        self.ranges.clear();
        self.kinds.clear();
        self.shareable.clear();
        for vma in self.vmas.vmas().iter().filter(|vma| is_looked_at(vma)) {
            self.ranges.push(vma.range);
            self.kinds.push(vma.kind);
        }
        Ok(())
    }

    /// The mappings that are looked at.
    pub(super) fn looked_at(&self) -> impl Iterator<Item = &Vma> {
        self.vmas.vmas().iter().filter(|vma| is_looked_at(vma))
    }

    /// Notes the frames that are young in mappings that may be shared. Clears nothing.
    pub(super) fn peek(
        &self,
        eye: &mut dyn AccessSource,
        young: &mut FrameSet,
    ) -> Result<u64, SpaceError> {
        let ranges: Vec<AddressRange> = self
            .ranges
            .iter()
            .zip(&self.shareable)
            .filter_map(|(range, shareable)| shareable.then_some(*range))
            .collect();
        if ranges.is_empty() {
            return Ok(0);
        }
        let mut sink = |sight: &TableSight<'_>| {
            share::frames(sight, &sight.bits.young, |_, frame| {
                young.insert(frame);
            });
        };
        let report = eye.scan(&Target::from(&self.process), &ranges, &mut sink)?;
        Ok(report.cost.cpu_ns)
    }

    /// Notes what was accessed so far, where somebody else may clear it before the next look.
    pub(super) fn glance(&mut self, eye: &mut dyn AccessSource) -> Result<u64, SpaceError> {
        let target = Target::from(&self.process);
        Ok(self.glances.glance(eye, &target)?)
    }

    /// Looks at all of it once, and clears.
    pub(super) fn look(
        &mut self,
        eye: &mut dyn AccessSource,
        shared: Shared<'_>,
        extra: Extra<'_>,
    ) -> Result<LookCost, SpaceError> {
        let began = thread_cpu_ns();
        let target = Target::from(&self.process);
        let now_ns = monotonic_ns();
        if extra.also_young.is_none() {
            self.clearer.begin(
                now_ns,
                self.vmas.vmas().iter().filter(|vma| is_looked_at(vma)),
            );
        }
        let may_leave_out = self.may_leave_out(&shared, &extra);
        let (scanned, failed) = {
            let mut sink = Sink {
                look: self.map.look(),
                clearer: &mut self.clearer,
                hand: KernelHand::new(&self.process),
                kinds: &self.kinds,
                shareable: &self.shareable,
                shared,
                also_young: extra.also_young.as_ref(),
                glances: &mut self.glances,
                parts: Vec::new(),
                failed: None,
            };
            let terms = Terms {
                ranges: &self.ranges,
                may: &may_leave_out,
                now_ns,
                resident_pages: self.resident_pages,
            };
            let scanned = self.rounds.scan(eye, &target, &terms, &mut sink);
            // A look that broke off is dropped, which keeps what it did not reach.
            let scanned = scanned.map(|report| (report, sink.look.finish_with_returned()));
            (scanned, sink.failed)
        };
        self.glances.end(&self.ranges);
        let (scanned, (mut counts, back)) = match scanned {
            Ok(found) => found,
            Err(error) => {
                if matches!(error, EyeError::Changed { .. }) {
                    self.clearer.forget();
                }
                return Err(error.into());
            }
        };
        counts.present += scanned.left_out_pages;
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
    /// Which ranges need not be read in every look: memory of this process alone, of one node, whose
    /// bits nobody clears unseen.
    fn may_leave_out(&self, shared: &Shared<'_>, extra: &Extra<'_>) -> Vec<bool> {
        let nobody_else = shared.nodes.map.is_none()
            && extra.also_young.is_none()
            && !self.clearer.is_exact()
            && !self.clearer.clears_unseen();
        let ranges = self.kinds.iter().enumerate();
        ranges
            .map(|(of, kind)| {
                let is_shareable = self.shareable.get(of).copied().unwrap_or(true);
                nobody_else && *kind == VmaKind::Anon && !is_shareable
            })
            .collect()
    }
}

/// Memory that has an age and is resident memory of the process.
fn is_looked_at(vma: &Vma) -> bool {
    !matches!(vma.kind, VmaKind::Special | VmaKind::Hugetlb)
}

struct Sink<'a> {
    look: Look<'a>,
    clearer: &'a mut Clearer,
    hand: KernelHand<'a>,
    kinds: &'a [VmaKind],
    shareable: &'a [bool],
    shared: Shared<'a>,
    also_young: Option<&'a HashMap<u64, PageSet>>,
    glances: &'a mut Glances,
    parts: Vec<(Part, PageSet)>,
    failed: Option<ClearError>,
}

impl Sink<'_> {
    /// Which pages are file pages. What was written in a private mapping of a file is anonymous;
    /// the kernel maps the file's own pages there clean and read-only.
    fn files(&self, sight: &TableSight<'_>) -> PageSet {
        match self.kinds.get(sight.range) {
            Some(VmaKind::FileShared) => PageSet::ALL,
            Some(VmaKind::FilePrivate) => sight.bits.present.without(&sight.bits.dirty),
            _ => PageSet::NONE,
        }
    }

    /// Pages of other nodes than the first, and pages that another process counts.
    fn note_parts(&mut self, sight: &TableSight<'_>, is_shareable: bool, bits: &mut TableBits) {
        let several_nodes = self.shared.nodes.map.is_some();
        let nodes = self.shared.nodes.ids.len();
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
                set(node, page);
            }
            if !is_shareable {
                return;
            }
            for (part, counted) in &mut shared.counted {
                if counted.insert(frame) {
                    set(usize::from(*part) + node, page);
                }
            }
            if !sight.bits.young.contains(page) && shared.young.contains(frame) {
                bits.young.insert(page);
            }
        });
        debug_assert!(masks.iter().all(|(part, _)| *part < nodes * 128));
        self.parts
            .extend(masks.iter().map(|(part, mask)| (*part as Part, *mask)));
    }
}

impl Sink<'_> {
    /// Leaves of one type, alone in this process, of which no look and no glance saw anything else.
    fn plain_leaves(&mut self, run: &LeafRun<'_>, page_type: PageType) {
        let first = run.first();
        if run.tables() == 0 {
            return;
        }
        self.clearer.judge_leaves(run);
        if let Some(kind) = self.kinds.get(first.range) {
            self.glances.take_in(first, *kind);
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

impl SightSink for Sink<'_> {
    fn table(&mut self, sight: &TableSight<'_>) {
        let mut bits = *sight.bits;
        match self.also_young {
            None => bits.young = self.clearer.judge(sight).young,
            Some(also) => {
                if let Some(also) = also.get(&(sight.va / TABLE_BYTES)) {
                    bits.young |= *also & sight.bits.present;
                }
            }
        }
        if let Some(kind) = self.kinds.get(sight.range) {
            bits.young |= self.glances.take_in(sight, *kind);
        }
        let is_shareable = self.shareable.get(sight.range).copied().unwrap_or(false);
        self.note_parts(sight, is_shareable, &mut bits);
        let facts = Facts {
            index: sight.va / TABLE_BYTES,
            bits: &bits,
            files: self.files(sight),
            parts: &self.parts,
        };
        // The eye shows tables upwards; one that did not would be shown to us again next time.
        let taken = self.look.table(facts);
        debug_assert!(taken.is_ok());
    }

    fn leaves(&mut self, run: &LeafRun<'_>) {
        let page_type = match self.kinds.get(run.first().range) {
            Some(VmaKind::FileShared) => PageType::File,
            Some(VmaKind::Anon) => PageType::Anon,
            // Each page has a type of its own.
            _ => return run.sights().for_each(|sight| self.table(&sight)),
        };
        let range = run.first().range;
        let is_shareable = self.shareable.get(range).copied().unwrap_or(false);
        if is_shareable || self.shared.nodes.map.is_some() || self.also_young.is_some() {
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

    fn left_out(&mut self, range: AddressRange, pages: u64) {
        self.look
            .keep(range.start / TABLE_BYTES..range.end / TABLE_BYTES);
        self.clearer.left_out(range, pages);
    }

    fn batch_end(&mut self, batch: &Batch) -> ControlFlow<()> {
        if self.failed.is_none() && self.also_young.is_none() {
            self.failed = self.clearer.clear(&mut self.hand, batch).err();
        }
        ControlFlow::Continue(())
    }
}

/// Bytes of one table's worth of pages, for readers of the constants above.
const _: () = assert!(TABLE_BYTES == PAGE_BYTES * PAGES_PER_TABLE as u64);
