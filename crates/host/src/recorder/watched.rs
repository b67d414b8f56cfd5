// SPDX-License-Identifier: Apache-2.0
//! One recorded process: in each interval reads its page tables, passes on what is young, and
//! clears the accessed bits for the next interval.

use std::io;

use crate::access::{
    AccessSource, AddressRange, Batch, Leaf, PAGE_BYTES, SightSink, TABLE_BYTES, TableSight, Target,
};
use crate::clear::hand::{ClearHand, MAX_RANGES};
use crate::clear::{ClearPolicy, ClearReport, Clearer};
use crate::clock;
use crate::faults::Fault;
use crate::look::{Clearing, LookError};
use crate::process::Process;
use crate::vma::{MapsReader, VmaKind, VmaTable};
use agewise_policy::table::PageSet;

use agewise_trace::Evidence;

use super::pace::{Pace, RESET_NS};
use super::pages::{Numbering, PageNames};

/// A run of adjacent pages accessed in one interval, numbered for the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Number of the first page.
    pub first_page: u64,
    /// Number of pages.
    pub pages: u64,
    /// What backs them.
    pub numbering: Numbering,
    /// Whether the accesses were seen or inferred.
    pub evidence: Evidence,
}

/// After this many looks in a row that cost the program too much, it is spared.
const DEAR_LOOKS: u32 = 5;
/// The share of the allowed slowdown for setting accessed bits again; the rest is for the flushes
/// and locks of clearing.
const RESET_SHARE: f64 = 0.5;
/// Longest range passed to the kernel at once, which bounds how long a call holds the program's
/// mmap lock.
const RANGE_BYTES_MAX: u64 = 16 << 20;

/// A process, and the state needed to look at it again.
#[derive(Debug)]
pub struct Watched {
    pub process: Process,
    slot: u64,
    clearer: Clearer,
    vmas: VmaTable,
    maps: MapsReader,
    /// Whether accesses before the first clear count, because the process started during the
    /// recording.
    born_here: bool,
    /// What recording may cost the process, as a share of its time.
    max_slowdown: f64,
    /// The pace of clearing, once the process is spared.
    pace: Option<Pace>,
    dear_looks: u32,
    last_look_ns: Option<u64>,
    /// The mappings at the last look, ascending.
    mapped: Vec<(AddressRange, Numberings)>,
}

impl Watched {
    /// Starts recording a process. `born_here`: it was started during the recording, so what it
    /// accessed before its first look belongs to the trace. `max_slowdown`: the share of its time
    /// that recording may cost it; infinite for no limit.
    #[must_use]
    pub fn new(process: Process, slot: u64, born_here: bool, max_slowdown: f64) -> Watched {
        // Nothing is deferred: a trace must not contain accesses that did not happen.
        let clearer = Clearer::new(process.pid(), ClearPolicy::exact());
        Watched {
            process,
            slot,
            clearer,
            vmas: VmaTable::new(),
            maps: MapsReader::new(),
            born_here,
            max_slowdown,
            pace: None,
            dear_looks: 0,
            last_look_ns: None,
            mapped: Vec::new(),
        }
    }

    /// Whether the process is spared, so that not every access is seen.
    #[must_use]
    pub fn is_spared(&self) -> bool {
        self.pace.is_some()
    }

    /// Looks once. Passes what was accessed since the last look to `found`, in ascending address
    /// order.
    ///
    /// # Errors
    /// [`LookError`].
    pub fn look(
        &mut self,
        source: &mut dyn AccessSource,
        names: &mut PageNames,
        found: &mut dyn FnMut(Touched),
    ) -> Result<ClearReport, LookError> {
        let pid = self.process.pid();
        self.vmas.read_by(&mut self.maps, pid)?;
        let mapped: Vec<_> = self
            .vmas
            .vmas()
            .iter()
            .filter(|vma| !matches!(vma.kind, VmaKind::Special) && !vma.range.is_empty())
            .collect();
        let ranges: Vec<AddressRange> = mapped.iter().map(|vma| vma.range).collect();
        let own = PageNames::own(self.slot);
        let numberings: Vec<Numberings> = mapped
            .iter()
            .map(|vma| Numberings {
                own,
                file: names.of_file(vma, self.vmas.name(vma)),
                copies: vma.kind == VmaKind::FilePrivate,
            })
            .collect();
        self.mapped.clear();
        self.mapped
            .extend(ranges.iter().copied().zip(numberings.iter().copied()));
        let spareable: Vec<bool> = mapped
            .iter()
            .map(|vma| {
                vma.kind == VmaKind::Anon
                    && !vma.locked
                    && self.clearer.is_cleared_by_advice(vma.range.start)
            })
            .collect();
        let now_ns = clock::monotonic_ns();
        self.clearer.begin(now_ns, mapped.iter().copied());
        if let Some(pace) = &mut self.pace {
            pace.begin(now_ns);
        }
        let mut numberer = Numberer {
            clearing: Clearing::new(&self.process, &mut self.clearer, true),
            numberings: &numberings,
            count_first: self.born_here,
            found,
            spareable: &spareable,
            pace: self.pace.as_mut(),
            cold: Vec::new(),
            reset_pages: 0,
            denied: false,
        };
        let scanned = source.scan(&Target::from(&self.process), &ranges, &mut numberer);
        let (reset_pages, denied) = (numberer.reset_pages, numberer.denied);
        let cleared = numberer.clearing.end(scanned)?.cleared?;
        if let Some(pace) = &mut self.pace {
            pace.end();
        }
        if denied {
            // Clearing single ranges is not permitted, so stop sparing the process.
            (self.pace, self.max_slowdown) = (None, f64::INFINITY);
        }
        self.decide_to_spare(now_ns, reset_pages);
        Ok(cleared)
    }
}

impl Watched {
    /// The numbering of a faulting page, according to the mappings of the last look.
    #[must_use]
    pub fn numbering_of(&self, fault: &Fault) -> Numbering {
        let behind = self
            .mapped
            .partition_point(|(range, _)| range.start <= fault.address);
        let mapping = behind.checked_sub(1).and_then(|at| self.mapped.get(at));
        match mapping.filter(|(range, _)| fault.address < range.end) {
            None => PageNames::unmapped(self.slot),
            Some((_, numberings)) => match numberings.file {
                Some(file) if !(numberings.copies && fault.write) => file,
                _ => numberings.own,
            },
        }
    }

    /// Starts sparing the process if setting bits again costs it too much.
    fn decide_to_spare(&mut self, now_ns: u64, reset_pages: u64) {
        let Some(last_ns) = self.last_look_ns.replace(now_ns) else {
            // The first look finds everything that was ever accessed.
            return;
        };
        if self.pace.is_some() {
            return;
        }
        let span_ns = now_ns.saturating_sub(last_ns).max(1);
        let share = reset_pages as f64 * RESET_NS as f64 / span_ns as f64;
        self.dear_looks = if share > self.max_slowdown {
            self.dear_looks + 1
        } else {
            0
        };
        if self.dear_looks >= DEAR_LOOKS {
            self.pace = Some(Pace::new(self.max_slowdown * RESET_SHARE));
        }
    }
}

/// The numbering of the pages of a mapping.
#[derive(Clone, Copy, Debug)]
struct Numberings {
    own: Numbering,
    file: Option<Numbering>,
    /// Whether it is a private file mapping, whose written pages belong to the process itself.
    copies: bool,
}

/// Numbers the pages that a look finds accessed.
struct Numberer<'a> {
    clearing: Clearing<'a>,
    numberings: &'a [Numberings],
    count_first: bool,
    found: &'a mut dyn FnMut(Touched),
    /// Whether a range contains only pages of the process itself, which may be spared.
    spareable: &'a [bool],
    pace: Option<&'a mut Pace>,
    /// Ranges to clear as the pace decided.
    cold: Vec<AddressRange>,
    /// Number of young pages in tables that may be spared.
    reset_pages: u64,
    /// Whether the kernel does not permit clearing single ranges.
    denied: bool,
}

impl Numberer<'_> {
    /// Handles a table that may be spared. Returns false if it has to be handled the usual way.
    fn spared(&mut self, sight: &TableSight<'_>) -> bool {
        let is_whole = sight.leaf == Leaf::Page && sight.covered.is_full();
        if !is_whole || !self.spareable.get(sight.range).is_some_and(|&may| may) {
            return false;
        }
        let young = &sight.bits.young;
        let count = young.len();
        self.reset_pages += count;
        let Some(pace) = &mut self.pace else {
            return false;
        };
        let verdict = pace.table(sight.va / TABLE_BYTES, &sight.bits.present, young);
        let Some(numberings) = self.numberings.get(sight.range) else {
            return true;
        };
        let numbering = numberings.own;
        for (bits, evidence) in [
            (&verdict.seen, Evidence::Seen),
            (&verdict.inferred, Evidence::Inferred),
        ] {
            for run in bits.runs() {
                let (page, pages) = (run.start as u64, run.len() as u64);
                (self.found)(Touched {
                    first_page: numbering.page(sight.va + page * PAGE_BYTES),
                    pages,
                    numbering,
                    evidence,
                });
            }
        }
        if verdict.clear && count > 0 {
            self.clear_soon(sight.va, young);
        }
        true
    }

    /// Notes the young part of a table for clearing, joined with the range before it if they touch.
    fn clear_soon(&mut self, va: u64, young: &PageSet) {
        let (mut first, mut end) = (None, 0);
        for run in young.runs() {
            let (page, pages) = (run.start as u64, run.len() as u64);
            first.get_or_insert(page);
            end = page + pages;
        }
        let range = AddressRange {
            start: va + first.unwrap_or(0) * PAGE_BYTES,
            end: va + end * PAGE_BYTES,
        };
        match self.cold.last_mut() {
            Some(last) if last.end == range.start && range.end - last.start <= RANGE_BYTES_MAX => {
                last.end = range.end;
            }
            _ => self.cold.push(range),
        }
    }

    fn clear_noted(&mut self) {
        let ranges = std::mem::take(&mut self.cold);
        let mut rest = ranges.as_slice();
        while !rest.is_empty() {
            let batch = &rest[..rest.len().min(MAX_RANGES)];
            let done = match self.clearing.hand.cold(batch) {
                Ok(done) => done,
                Err(error) => {
                    self.denied |= is_denied(&error);
                    0
                }
            };
            // A refused range (locked, or unmapped in the meantime) is skipped.
            rest = &rest[(done + usize::from(done < batch.len())).min(rest.len())..];
        }
    }
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
}

impl SightSink for Numberer<'_> {
    fn table(&mut self, sight: &TableSight<'_>) {
        if self.spared(sight) {
            return;
        }
        let since_ns = self.clearing.clearer.judge(sight);
        let known_since = since_ns.is_some() || self.count_first;
        let Some(numberings) = self.numberings.get(sight.range).filter(|_| known_since) else {
            return;
        };
        let mut emit = |bits: &PageSet, numbering: Numbering| {
            for run in bits.runs() {
                let (page, pages) = (run.start as u64, run.len() as u64);
                let first_page = numbering.page(sight.va + page * PAGE_BYTES);
                (self.found)(Touched {
                    first_page,
                    pages,
                    numbering,
                    evidence: Evidence::Seen,
                });
            }
        };
        match numberings.file {
            None => emit(&sight.bits.young, numberings.own),
            Some(file) if !numberings.copies => emit(&sight.bits.young, file),
            Some(file) => {
                emit(&sight.bits.young.without(&sight.bits.dirty), file);
                emit(&(sight.bits.young & sight.bits.dirty), numberings.own);
            }
        }
    }

    fn batch_end(&mut self, batch: &Batch) {
        self.clear_noted();
        self.clearing.batch_end(batch);
    }
}
