// SPDX-License-Identifier: Apache-2.0
//! The parts of a tick, one after the other and each timed by itself: reading page tables,
//! classifying what was read, clearing accessed bits. What they make of an exerciser's pages is
//! judged by its truth.

use std::ops::ControlFlow;

use agewise_host::clear::hand::KernelHand;
use agewise_host::clear::{ClearPolicy, Clearer};
use agewise_host::clock::{monotonic_ns, thread_cpu_ns};
use agewise_host::eye::{
    AccessSource, AddressRange, Batch, Leaf, LeafRun, SightSink, TABLE_BYTES, TableSight, Target,
};
use agewise_host::glance::Glances;
use agewise_host::process::Process;
use agewise_host::rounds::{Rounds, Terms};
use agewise_host::vma::{MapsReader, Vma, VmaKind, VmaTable};
use agewise_policy::agemap::{AgeMap, Facts, Leaves, Look, LookCounts};
use agewise_policy::generations::PageType;
use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits};

use super::PAGE_BYTES;
use super::tally::{Span, Tally};
use crate::exercise::truth::{Kind, Truth};

/// CPU time of one scan by parts, ns, and what it covered.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanParts {
    /// Whether it still runs, and the list of its mappings.
    pub maps_ns: u64,
    /// Reading page tables.
    pub walk_ns: u64,
    /// From young bits to ages: judging, the age map, closing the generation. Without what is noted to
    /// compare it with the truth.
    pub classify_ns: u64,
    /// Clearing accessed bits.
    pub clear_ns: u64,
    /// Glances since the scan before, where somebody else clears.
    pub glance_ns: u64,
    /// Memory found present, bytes.
    pub present_bytes: u64,
}

impl ScanParts {
    /// `ns` of this scan in milliseconds for each GiB present.
    pub fn ms_per_gib(&self, ns: u64) -> f64 {
        if self.present_bytes == 0 {
            return 0.0;
        }
        ns as f64 / 1e6 / (self.present_bytes as f64 / (1u64 << 30) as f64)
    }
}

/// When the reading of each table began and ended in the last scan, by region and table; `None` where that
/// scan was not judged.
type Readings = Vec<Vec<Option<(u64, u64)>>>;

/// One process under observation.
pub struct Observed<'a> {
    process: &'a Process,
    eye: &'a mut dyn AccessSource,
    hand: KernelHand<'a>,
    clearer: Clearer,
    map: AgeMap,
    vmas: VmaTable,
    maps: MapsReader,
    truth: &'a Truth,
    readings: Readings,
    has_readings: bool,
    read: Vec<Read>,
    glances: Glances,
    glance_ns: u64,
    rounds: Rounds,
    workload_only: bool,
}

impl<'a> Observed<'a> {
    /// Of an exerciser. Ages are told apart up to `horizon_ms`.
    pub fn new(
        process: &'a Process,
        eye: &'a mut dyn AccessSource,
        truth: &'a Truth,
        policy: ClearPolicy,
        horizon_ms: u64,
    ) -> Self {
        let readings = truth
            .regions()
            .iter()
            .map(|region| vec![None; (region.pages as usize).div_ceil(PAGES_PER_TABLE) + 1])
            .collect();
        Self {
            process,
            eye,
            hand: KernelHand::new(process),
            clearer: Clearer::new(process.pid(), policy),
            map: AgeMap::new(monotonic_ns() / 1_000_000, horizon_ms),
            vmas: VmaTable::new(),
            maps: MapsReader::new(),
            truth,
            readings,
            has_readings: false,
            read: Vec::new(),
            glances: Glances::default(),
            glance_ns: 0,
            rounds: Rounds::default(),
            workload_only: false,
        }
    }

    /// Looks at nothing but the memory that has a truth: not at the program itself, its libraries and
    /// stacks, which are in base pages whatever the workload is in.
    pub fn of_workload_only(self) -> Self {
        Self {
            workload_only: true,
            ..self
        }
    }

    /// The ages so far.
    pub fn map(&self) -> &AgeMap {
        &self.map
    }

    /// The eye, for a second look.
    pub fn eye(&mut self) -> &mut dyn AccessSource {
        self.eye
    }

    /// Sees what was accessed so far, as an agent does between two ticks.
    ///
    /// # Errors
    /// The process is gone, or cannot be read.
    pub fn glance(&mut self) -> anyhow::Result<()> {
        let target = Target::from(self.process);
        self.glance_ns += self.glances.glance(self.eye, &target)?;
        Ok(())
    }

    /// One scan. With `tally`, every page with a truth is judged if the scan before was one with a tally too:
    /// the costs then include that, and what is noted for it.
    ///
    /// # Errors
    /// The process is gone, or cannot be read or cleared.
    pub fn scan(&mut self, tally: Option<&mut Tally>) -> anyhow::Result<ScanParts> {
        if tally.is_none() {
            self.forget_readings();
        }
        let begin_ns = thread_cpu_ns();
        let stat = self.process.check()?;
        self.vmas.read_by(&mut self.maps, self.process.pid())?;
        let seen: Vec<&Vma> = self
            .vmas
            .vmas()
            .iter()
            .filter(|vma| vma.kind != VmaKind::Special)
            .filter(|vma| !self.workload_only || is_of_workload(self.truth, vma.range))
            .collect();
        let ranges: Vec<AddressRange> = seen.iter().map(|vma| vma.range).collect();
        let maps_ns = thread_cpu_ns() - begin_ns;
        self.clearer.begin(monotonic_ns(), seen.iter().copied());
        let target = Target::from(self.process);
        let nobody_else = !self.clearer.is_exact() && !self.clearer.clears_unseen();
        let may_leave_out: Vec<bool> = seen
            .iter()
            .map(|vma| nobody_else && vma.kind == VmaKind::Anon)
            .collect();
        let mut sink = Sink {
            clearer: &mut self.clearer,
            hand: &mut self.hand,
            look: self.map.look(),
            vmas: &seen,
            truth: self.truth,
            readings: &mut self.readings,
            read: std::mem::take(&mut self.read),
            in_batch: 0,
            glances: &mut self.glances,
            tally,
            left_out: Vec::new(),
            error: None,
        };
        let terms = Terms {
            ranges: &ranges,
            may: &may_leave_out,
            now_ns: monotonic_ns(),
            resident_pages: Some(stat.rss_pages),
        };
        let report = self.rounds.scan(self.eye, &target, &terms, &mut sink)?;
        let (counts, read) = sink.finish()?;
        let present = counts.present + report.left_out_pages;
        self.glances.end(&ranges);
        let cleared = self.clearer.finish(&mut self.hand)?;
        self.map.advance(monotonic_ns() / 1_000_000);
        let total_ns = thread_cpu_ns() - begin_ns;
        self.read = read;
        self.note_readings();
        Ok(ScanParts {
            maps_ns,
            walk_ns: report.cost.cpu_ns,
            classify_ns: total_ns
                .saturating_sub(maps_ns)
                .saturating_sub(report.cost.cpu_ns)
                .saturating_sub(cleared.cpu_ns),
            clear_ns: cleared.cpu_ns,
            glance_ns: std::mem::take(&mut self.glance_ns),
            present_bytes: present * PAGE_BYTES,
        })
    }
}

fn is_of_workload(truth: &Truth, range: AddressRange) -> bool {
    truth.regions().iter().any(|region| {
        region.address < range.end && region.address + region.pages * PAGE_BYTES > range.start
    })
}

impl Observed<'_> {
    fn forget_readings(&mut self) {
        if std::mem::take(&mut self.has_readings) {
            self.readings
                .iter_mut()
                .for_each(|region| region.fill(None));
        }
    }

    fn note_readings(&mut self) {
        self.has_readings |= !self.read.is_empty();
        for Read {
            va,
            begin_ns,
            end_ns,
        } in self.read.drain(..)
        {
            for (number, region) in self.truth.regions().iter().enumerate() {
                let first_table = region.address & !(TABLE_BYTES - 1);
                let region_end = region.address + region.pages * PAGE_BYTES;
                if va >= first_table && va < region_end {
                    let table = ((va - first_table) / TABLE_BYTES) as usize;
                    self.readings[number][table] = Some((begin_ns, end_ns));
                }
            }
        }
    }
}

/// When the table at `va` was read; a batch is read at once.
#[derive(Clone, Copy, Debug)]
struct Read {
    va: u64,
    begin_ns: u64,
    end_ns: u64,
}

/// Takes the sights of one scan.
struct Sink<'a, 'h> {
    clearer: &'a mut Clearer,
    hand: &'a mut KernelHand<'h>,
    look: Look<'a>,
    vmas: &'a [&'a Vma],
    truth: &'a Truth,
    readings: &'a mut Readings,
    /// What was read, in order; the last of them are of this batch, whose reading has not ended yet.
    read: Vec<Read>,
    in_batch: usize,
    glances: &'a mut Glances,
    tally: Option<&'a mut Tally>,
    /// What was left out and when. Judged at the end: tables of this batch wait for their clear.
    left_out: Vec<(AddressRange, u64)>,
    error: Option<anyhow::Error>,
}

impl SightSink for Sink<'_, '_> {
    fn table(&mut self, sight: &TableSight<'_>) {
        let judged = self.clearer.judge(sight);
        let kind = self.vmas[sight.range].kind;
        let glanced = self.glances.take_in(sight, kind);
        let young: PageSet = PageSet::from_words(|word| judged.young[word] | glanced[word]);
        let bits = TableBits {
            young,
            ..*sight.bits
        };
        let facts = Facts {
            index: sight.va / TABLE_BYTES,
            bits: &bits,
            files: if kind.is_swap_backed() {
                PageSet::default()
            } else {
                PageSet::ALL
            },
            parts: &[],
        };
        if let Err(error) = self.look.table(facts) {
            self.error.get_or_insert(error.into());
        }
        self.note_read(sight.va);
        if self.tally.is_some() {
            self.compare(sight, &young);
        }
    }

    fn leaves(&mut self, run: &LeafRun<'_>) {
        let kind = self.vmas[run.first().range].kind;
        if self.tally.is_some() || kind == VmaKind::FilePrivate {
            return run.sights().for_each(|sight| self.table(&sight));
        }
        let mut from = 0;
        for at in 0..run.tables() {
            if !run.is_young() && self.glances.has_seen(run.va(at)) {
                self.plain_leaves(&run.part(from, at), kind);
                self.table(&run.sight(at));
                from = at + 1;
            }
        }
        self.plain_leaves(&run.part(from, run.tables()), kind);
    }

    fn left_out(&mut self, range: AddressRange, pages: u64) {
        self.look
            .keep(range.start / TABLE_BYTES..range.end / TABLE_BYTES);
        self.clearer.left_out(range, pages);
        if self.tally.is_some() {
            self.left_out.push((range, monotonic_ns()));
        }
    }

    fn batch_end(&mut self, batch: &Batch) -> ControlFlow<()> {
        let before = self.read.len() - std::mem::take(&mut self.in_batch);
        for read in &mut self.read[before..] {
            (read.begin_ns, read.end_ns) = (batch.begin_ns, batch.end_ns);
        }
        match self.clearer.clear(self.hand, batch) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.error.get_or_insert(error.into());
                ControlFlow::Break(())
            }
        }
    }
}

impl Sink<'_, '_> {
    fn plain_leaves(&mut self, run: &LeafRun<'_>, kind: VmaKind) {
        if run.tables() == 0 {
            return;
        }
        self.clearer.judge_leaves(run);
        self.glances.take_in(run.first(), kind);
        let taken = self.look.leaves(Leaves {
            first: run.first().va / TABLE_BYTES,
            tables: run.tables(),
            young: run.is_young(),
            page_type: if kind.is_swap_backed() {
                PageType::Anon
            } else {
                PageType::File
            },
        });
        if let Err(error) = taken {
            self.error.get_or_insert(error.into());
        }
        for at in 0..run.tables() {
            self.note_read(run.va(at));
        }
    }

    /// The times come when the batch has ended.
    fn note_read(&mut self, va: u64) {
        if self.tally.is_none() {
            return;
        }
        self.read.push(Read {
            va,
            begin_ns: 0,
            end_ns: 0,
        });
        self.in_batch += 1;
    }

    /// Ends the look.
    fn finish(mut self) -> anyhow::Result<(LookCounts, Vec<Read>)> {
        for (range, now_ns) in std::mem::take(&mut self.left_out) {
            self.compare_left_out(range, now_ns);
        }
        match self.error {
            Some(error) => Err(error),
            None => Ok((self.look.finish(), self.read)),
        }
    }

    /// Whatever was accessed of what is not read is missed. Its pages are all present: the exerciser
    /// has filled them, and nobody takes them.
    fn compare_left_out(&mut self, range: AddressRange, now_ns: u64) {
        for (number, region) in self.truth.regions().iter().enumerate() {
            let first_table = region.address & !(TABLE_BYTES - 1);
            let region_end = region.address + region.pages * PAGE_BYTES;
            let start = range.start.max(first_table);
            for va in (start..range.end.min(region_end)).step_by(TABLE_BYTES as usize) {
                let reading =
                    &mut self.readings[number][((va - first_table) / TABLE_BYTES) as usize];
                let before = reading.replace((now_ns, now_ns));
                let (Some((before_begin_ns, before_end_ns)), Some(tally)) =
                    (before, &mut self.tally)
                else {
                    continue;
                };
                let span = Span {
                    before_begin_ns,
                    before_end_ns,
                    now_begin_ns: now_ns,
                };
                let pages = va.max(region.address)..(va + TABLE_BYTES).min(region_end);
                for at in pages.step_by(PAGE_BYTES as usize) {
                    let slot = region.first_slot + (at - region.address) / PAGE_BYTES;
                    tally.judge(span, self.truth.last_access_ns(slot), false);
                }
            }
        }
    }

    /// Compares what is taken for young with what was accessed.
    fn compare(&mut self, sight: &TableSight<'_>, young: &PageSet) {
        let end = sight.va + TABLE_BYTES;
        for (number, region) in self.truth.regions().iter().enumerate() {
            let region_end = region.address + region.pages * PAGE_BYTES;
            if end <= region.address || sight.va >= region_end {
                continue;
            }
            let first_table = region.address & !(TABLE_BYTES - 1);
            let table = ((sight.va - first_table) / TABLE_BYTES) as usize;
            let before = self.readings[number][table];
            let (Some((before_begin_ns, before_end_ns)), Some(tally)) = (before, &mut self.tally)
            else {
                continue;
            };
            let span = Span {
                before_begin_ns,
                before_end_ns,
                now_begin_ns: sight.seen_ns,
            };
            let last_access_ns = |page: usize| {
                let at = sight.va + page as u64 * PAGE_BYTES;
                let inside = at >= region.address && at < region_end;
                inside.then(|| {
                    let slot = region.first_slot + (at - region.address) / PAGE_BYTES;
                    self.truth.last_access_ns(slot)
                })
            };
            let bit = |bits: &PageSet, page: usize| bits[page / 64] >> (page % 64) & 1 == 1;
            let there = |page: usize| bit(&sight.bits.present, page) && bit(&sight.covered, page);
            if sight.leaf != Leaf::Page && region.kind == Kind::AnonHuge {
                let last = (0..PAGES_PER_TABLE).filter_map(last_access_ns).max();
                if let (Some(last), true) = (last, there(0)) {
                    tally.judge(span, last, bit(young, 0));
                }
                continue;
            }
            for page in (0..PAGES_PER_TABLE).filter(|&page| there(page)) {
                if let Some(last) = last_access_ns(page) {
                    tally.judge(span, last, bit(young, page));
                }
            }
        }
    }
}
