// SPDX-License-Identifier: Apache-2.0
//! One process under observation: its mappings, its ages, and how its accessed bits are cleared.

use std::collections::HashMap;
use std::sync::Arc;

use agewise_policy::agemap::{AgeMap, LookCounts, RangeSizes};
use agewise_policy::generations::{ByType, Sizes};
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use super::classify::{Classifier, Extra, Mapping, Shared};
use super::followed::{Estimate, Followed, FollowedSizes, Origin};
use super::share::{self, Keepers};
use crate::access::{
    AccessSource, AddressRange, PAGE_BYTES, TableSight, Target, pages_per_kernel_page,
};
use crate::clear::hand::MapCounts;
use crate::clear::{ClearPolicy, ClearReport, Clearer};
use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::frame_set::FrameSet;
use crate::guest;
use crate::interim::InterimScans;
use crate::look::{Clearing, LookError, Looked};
use crate::process::Process;
use crate::untrusted::Untrusted;
use crate::vma::{MapsReader, Vma, VmaKind, VmaTable};

/// The current time on the clock of ages, in ms.
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
    pub(super) clearer: Clearer,
    /// Indexes of the mappings that are looked at, and whether their pages may be shared.
    looked_at: Vec<u32>,
    pub(super) shareable: Vec<bool>,
    /// What is read of them.
    pub(super) followed: Followed,
    interim: InterimScans,
    maps_read: MapsRead,
    runs_guests: bool,
    /// As the kernel counted them before the look.
    pub(super) resident_pages: u64,
    virtual_bytes: u64,
    /// Indexes of the subjects it counts for.
    pub(super) subjects: Vec<usize>,
    /// Pages that came back from swap, in all looks.
    pub(super) refaulted_pages: u64,
    /// Those that the last look found.
    pub(super) last_refaulted_pages: u64,
    /// Pages the last look found accessed, by their idle time until then.
    pub(super) returned: Option<Histogram>,
    pub(super) looks: u64,
    pub(super) last_look_ms: u64,
    /// The tick that last found it.
    pub(super) tick: u64,
    /// Why the last look or clear failed.
    pub(super) trouble: Option<String>,
    /// Whether its ages can no longer be trusted.
    pub(super) begins_anew: bool,
    /// Whether the last tick looked at it: its frames are among those counted.
    pub(super) is_current: bool,
}

/// The CPU time in ns of one look at one process, by step, and its counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookCost {
    pub walk_ns: u64,
    pub classify_ns: u64,
    pub clear_ns: u64,
    pub counts: LookCounts,
    pub clear: ClearReport,
}

/// When the mappings were last read, and the cost: they are expensive to read.
#[derive(Clone, Copy, Debug, Default)]
struct MapsRead {
    cpu_ns: u64,
    /// Size of the address space at that time.
    virtual_bytes: u64,
    /// Looks since then.
    looks: u32,
}

/// If reading the mappings takes longer than this, the list is reused.
const MAPS_DEAR_NS: u64 = 1_000_000;
/// Looks for which it is reused at most: memory may be remapped without the address space growing.
const MAPS_KNOWN_LOOKS: u32 = 8;

impl MapsRead {
    fn is_good_for(&self, virtual_bytes: u64) -> bool {
        self.cpu_ns > MAPS_DEAR_NS
            && self.virtual_bytes == virtual_bytes
            && self.looks < MAPS_KNOWN_LOOKS
    }
}

impl Space {
    /// Starts observing. `born_ms` is the start time, if its target was already being observed
    /// then.
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
            interim: InterimScans::default(),
            maps_read: MapsRead::default(),
            runs_guests: false,
            resident_pages: 0,
            virtual_bytes: 0,
            subjects: Vec::new(),
            refaulted_pages: 0,
            last_refaulted_pages: 0,
            returned: None,
            looks: 0,
            last_look_ms: clock_ms(),
            tick: 0,
            trouble: None,
            begins_anew: false,
            is_current: false,
            process,
        }
    }

    /// Whether it is still the same process. Also updates its name and its resident and virtual
    /// sizes.
    pub(super) fn is_alive(&mut self) -> bool {
        let stat = self.process.check().ok();
        if let Some(stat) = &stat {
            self.comm.clone_from(&stat.comm);
            self.resident_pages = stat.rss_pages.saturating_mul(pages_per_kernel_page());
            self.virtual_bytes = stat.virtual_bytes;
        }
        stat.is_some()
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its name as of the last look.
    pub fn comm(&self) -> &Untrusted {
        &self.comm
    }

    /// The ages of its pages.
    pub fn map(&self) -> &AgeMap {
        &self.map
    }

    /// Its mappings as of the last look.
    pub fn vmas(&self) -> &VmaTable {
        &self.vmas
    }

    /// Whether it runs KVM guests, whose accesses are not seen.
    pub fn runs_guests(&self) -> bool {
        self.runs_guests
    }

    /// Why the last look or clear failed, if it did.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether the last look failed but an earlier one did not: what that saw may still be there.
    pub fn is_missed(&self) -> bool {
        self.trouble.is_some() && self.looks > 0
    }

    /// Bytes of memory used to observe it.
    pub fn memory_bytes(&self) -> usize {
        self.map.memory_bytes()
            + self.clearer.memory_bytes()
            + self.interim.memory_bytes()
            + self.followed.memory_bytes()
            + self.vmas.memory_bytes()
    }

    /// Reads its mappings. If the list is expensive to read and seems unchanged, skips some
    /// readings.
    pub(super) fn read_mappings(
        &mut self,
        reader: &mut MapsReader,
        within: Option<&[AddressRange]>,
    ) -> Result<(), LookError> {
        if self.maps_read.is_good_for(self.virtual_bytes) && self.followed.level() > 0 {
            self.maps_read.looks += 1;
            return Ok(());
        }
        let began_ns = thread_cpu_ns();
        self.vmas.read_by(reader, self.process.pid())?;
        self.runs_guests = guest::maps_cpu(&self.vmas);
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

    /// The mappings looked at.
    pub(super) fn looked_at(&self) -> impl ExactSizeIterator<Item = &Vma> {
        let vmas = self.vmas.vmas();
        self.looked_at
            .iter()
            .map(move |number| &vmas[*number as usize])
    }

    /// A mapping that is looked at, by its number among those.
    fn mapping(&self, number: usize) -> Option<&Vma> {
        let at = *self.looked_at.get(number)?;
        self.vmas.vmas().get(at as usize)
    }

    /// Passes the mappings just read on to the sample.
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

    /// The origins of memory that others may have too and that is followed by sample, as far as it
    /// has more than `much` pages of one origin.
    pub(super) fn shares_sample(
        &self,
        whole_limit: u64,
        files_whole: bool,
        much: u64,
    ) -> Vec<Origin> {
        // Forked processes have the first mapping of a file in common: that of their program.
        let program = self.looked_at().find_map(Vma::file).unwrap_or_default();
        let mut pages: HashMap<Origin, u64> = HashMap::new();
        let sampled = self.followed.sampled(whole_limit, files_whole);
        for number in sampled.filter(|number| self.shareable.get(*number) == Some(&true)) {
            if let Some(vma) = self.mapping(number) {
                let of = pages.entry(vma.file().unwrap_or(program)).or_default();
                *of += vma.range.len() / PAGE_BYTES;
            }
        }
        pages.retain(|_, pages| *pages > much);
        pages.into_keys().collect()
    }

    /// The estimate for the whole process from its sample; `None` if everything is followed.
    pub(super) fn estimate(&self, now_ms: u64, bounds: Option<&Intervals>) -> Option<Estimate> {
        let is_sample = self.followed.is_sample();
        is_sample.then(|| self.followed.estimate(&self.map, now_ms, bounds))
    }

    /// Resident pages by label and type: counted, or estimated from a sample.
    pub fn sizes(&self) -> Sizes {
        match self.estimate(self.last_look_ms, None) {
            Some(estimate) => estimate.scaled,
            None => *self.map.generations().sizes(),
        }
    }

    /// Like [`sizes`](Self::sizes), for a range of pages such as a mapping. Approximate for a
    /// sample.
    pub fn sizes_within(&self, pages: std::ops::Range<u64>) -> RangeSizes {
        self.followed.sizes_within(&self.map, pages)
    }

    /// Followed pages of files that other processes keep. With `with_shmem`, all shared memory is
    /// among them.
    pub(super) fn sizes_kept(&self, keepers: &Keepers, with_shmem: bool) -> FollowedSizes {
        let is_kept = |vma: &Vma| {
            let keeper = vma.file().and_then(|file| keepers.get(&file));
            keeper.is_some_and(|pid| *pid != self.process.pid())
                || with_shmem && vma.kind == VmaKind::Shmem
        };
        self.followed.sizes_of(&self.map, |mapping| {
            self.mapping(mapping).is_some_and(is_kept)
        })
    }

    /// Resident pages by type: as the kernel counts them if only a part is followed.
    pub(crate) fn counted_pages(&self) -> ByType<u64> {
        match self.is_sample() {
            true => self.followed.known(),
            false => {
                let sizes = self.map.generations().sizes();
                [0, 1].map(|of| sizes.iter().map(|by_type| by_type[of]).sum())
            }
        }
    }

    /// Whether only a part is followed.
    pub(crate) fn is_sample(&self) -> bool {
        self.followed.is_sample()
    }

    /// Pages in swap.
    pub fn swapped_pages(&self) -> u64 {
        match self.followed.is_sample() {
            true => self.followed.swapped_pages(),
            false => self.map.swapped().iter().sum(),
        }
    }

    /// The resident pages that are followed.
    pub fn followed_pages(&self) -> u64 {
        self.map.generations().pages().iter().sum()
    }

    /// Collects the frames that are young in mappings that may be shared. Clears nothing.
    pub(super) fn peek(
        &self,
        source: &mut dyn AccessSource,
        young: &mut FrameSet,
    ) -> Result<u64, LookError> {
        let followed = self.followed.ranges.iter().zip(&self.followed.of);
        let ranges: Vec<AddressRange> = followed
            .filter(|(_, of)| self.is_shareable(of.mapping))
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
        Ok(source.scan(&Target::from(&self.process), &ranges, &mut sink)?)
    }

    /// Records what was accessed so far, in case another program clears it before the next look.
    pub(super) fn interim_scan(&mut self, source: &mut dyn AccessSource) -> Result<u64, LookError> {
        let target = Target::from(&self.process);
        Ok(self.interim.scan(source, &target)?)
    }

    /// Looks at the whole process once, and clears.
    pub(super) fn look(
        &mut self,
        source: &mut dyn AccessSource,
        shared: &mut Shared<'_>,
        extra: Extra<'_>,
    ) -> Result<LookCost, LookError> {
        let began_ns = thread_cpu_ns();
        if self.followed.is_sample() {
            self.followed.set_known(&self.process.status()?);
        }
        let bounds = extra.returned_bounds;
        let looked = self.scan(source, shared, extra);
        self.interim.end(&self.followed.ranges);
        let (Looked { read_ns, cleared }, mut counts, back) = looked?;
        if self.followed.is_sample() {
            scale_up(&mut counts, self.followed.known_pages());
        }
        self.end_generation(&counts, &back, bounds);
        let clear = cleared?;
        let total_ns = thread_cpu_ns() - began_ns;
        Ok(LookCost {
            walk_ns: read_ns,
            classify_ns: total_ns.saturating_sub(read_ns + clear.cpu_ns),
            clear_ns: clear.cpu_ns,
            counts,
            clear,
        })
    }

    /// Reads what is followed into the ages, and clears. Returns the cost, the counts, and how many
    /// pages were found accessed, by their previous labels.
    fn scan(
        &mut self,
        source: &mut dyn AccessSource,
        shared: &mut Shared<'_>,
        extra: Extra<'_>,
    ) -> Result<(Looked, LookCounts, Sizes), LookError> {
        let is_sample = self.followed.is_sample();
        let (vmas, looked_at) = (self.vmas.vmas(), &self.looked_at);
        let followed = self.followed.mappings.iter().map(|at| *at as usize);
        let mappings: Vec<Mapping<'_>> = followed
            .map(|at| Mapping {
                vma: &vmas[looked_at[at] as usize],
                is_shareable: self.shareable.get(at) == Some(&true),
            })
            .collect();
        self.clearer
            .set_resident_pages(is_sample.then_some(self.resident_pages));
        self.clearer
            .begin(monotonic_ns(), mappings.iter().map(|mapping| mapping.vma));
        let mut classifier = Classifier {
            look: self.map.look(),
            clearing: Clearing::new(&self.process, &mut self.clearer, true),
            mappings: &mappings,
            of: &self.followed.of,
            is_sample,
            shared,
            also_young: extra.also_young.as_ref(),
            tap: extra.tap,
            target: Target::from(&self.process),
            interim: &mut self.interim,
            parts: Vec::new(),
        };
        let target = classifier.target;
        let scanned = source.scan(&target, &self.followed.ranges, &mut classifier);
        // Dropping an incomplete look keeps the ages of what it did not reach.
        let looked = classifier.clearing.end(scanned)?;
        let (counts, back) = classifier.look.finish_with_returned();
        Ok((looked, counts, back))
    }

    /// Ends the generation of a look, now that reading has ended, however long that took: pages
    /// read late may have been accessed late.
    fn end_generation(&mut self, counts: &LookCounts, back: &Sizes, bounds: Option<&Intervals>) {
        let now_ms = clock_ms();
        self.returned = bounds.map(|bounds| {
            let mut returned = Histogram::new(bounds);
            returned.add_window(self.map.generations(), back, now_ms, OldestPages::AtLeast);
            returned
        });
        self.map.advance(now_ms);
        self.is_current = true;
        self.looks += 1;
        self.last_look_ms = now_ms;
        self.refaulted_pages += counts.refaulted;
        self.last_refaulted_pages = counts.refaulted;
    }
}

impl Space {
    /// Whether pages of a mapping, given its index among the followed ones, may be shared.
    fn is_shareable(&self, mapping: u32) -> bool {
        let number = self.followed.mappings.get(mapping as usize);
        number.is_some_and(|number| self.shareable.get(*number as usize).is_some_and(|is| *is))
    }
}

/// Extrapolates counts from the sample to the whole process.
fn scale_up(counts: &mut LookCounts, known_pages: u64) {
    let seen = u128::from(counts.present.max(1));
    let known = u128::from(known_pages.max(counts.present));
    let scaled = |pages: u64| (u128::from(pages) * known / seen) as u64;
    *counts = LookCounts {
        tables: counts.tables,
        present: known_pages.max(counts.present),
        young: scaled(counts.young),
        appeared: scaled(counts.appeared),
        gone: scaled(counts.gone),
        swapped_out: scaled(counts.swapped_out),
        refaulted: scaled(counts.refaulted),
    };
}

/// Whether a mapping has ages and counts as resident memory of the process.
fn is_looked_at(vma: &Vma) -> bool {
    !matches!(vma.kind, VmaKind::Special | VmaKind::Hugetlb)
}

/// Whether a mapping overlaps the addresses to look at.
fn is_within(range: AddressRange, within: Option<&[AddressRange]>) -> bool {
    within.is_none_or(|within| {
        let at = within.partition_point(|wanted| wanted.end <= range.start);
        within
            .get(at)
            .is_some_and(|wanted| wanted.start < range.end)
    })
}
