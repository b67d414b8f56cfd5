// SPDX-License-Identifier: Apache-2.0
//! One process under a budget: the heat of its pages, a queue of the coldest, and moving them out in
//! small steps.
//!
//! A scan reads the page tables, adds to the heat of what was accessed, clears the accessed bits and
//! queues the coldest pages. A step takes some of the queue, looks again whether they were touched,
//! and pages out the rest; it costs the pages it moves, not the memory of the process.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use agewise_policy::heat::{Candidates, HeatMap};
use agewise_policy::table::{PAGES_PER_TABLE, PageSet, WORDS_PER_TABLE};
use rustix::io::Errno;

use crate::clear::hand::{ClearHand, KernelHand, RefsScope};
use crate::clock::thread_cpu_ns;
use crate::eye::{
    AccessSource, AddressRange, Leaf, PAGE_BYTES, SightSink, TABLE_BYTES, TableSight, Target,
};
use crate::pageout::{self, PageoutError, Run, VECTOR_MAX, check_target};
use crate::process::{Process, Worker};
use crate::vma::{MapsReader, VmaKind, VmaTable};

/// Runs looked at again in one go.
const RUNS_MAX: usize = 256;

/// What moving some of the coldest did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Taken from the queue and still there, not touched.
    pub tried_bytes: u64,
    /// Touched since they were queued.
    pub young_again_bytes: u64,
    /// Passed to the kernel and processed by it.
    pub left_bytes: u64,
    /// Calls.
    pub calls: u64,
    /// CPU time, ns.
    pub cpu_ns: u64,
    /// There was less to choose from than asked for.
    pub is_short: bool,
}

impl Moved {
    /// Adds another one.
    pub fn add(&mut self, other: &Moved) {
        self.tried_bytes += other.tried_bytes;
        self.young_again_bytes += other.young_again_bytes;
        self.left_bytes += other.left_bytes;
        self.calls += other.calls;
        self.cpu_ns += other.cpu_ns;
        self.is_short |= other.is_short;
    }
}

/// What a scan found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Present pages looked at.
    pub present_pages: u64,
    /// Of these accessed since the scan before.
    pub young_pages: u64,
    /// CPU time, ns.
    pub cpu_ns: u64,
}

/// A process whose memory is moved out by heat. Anonymous memory only: file pages cost a read from
/// a disk, and are the kernel's to drop.
#[derive(Debug)]
pub struct Heated {
    process: Process,
    heat: HeatMap,
    vmas: VmaTable,
    maps: MapsReader,
    ranges: Vec<AddressRange>,
    /// The coldest pages, ascending.
    queue: VecDeque<Range<u64>>,
    /// Accessed since somebody asked last, by table.
    young: HashMap<u64, PageSet>,
    keeps_young: bool,
    worker: Worker,
}

impl Heated {
    /// Begins with nothing known.
    ///
    /// # Errors
    /// A process that may not be touched: ourselves, init, a kernel thread, one that is gone.
    pub fn new(process: Process, decay: f64) -> Result<Self, PageoutError> {
        check_target(&process, false)?;
        Ok(Heated {
            process,
            heat: HeatMap::new(decay),
            vmas: VmaTable::new(),
            maps: MapsReader::new(),
            ranges: Vec::new(),
            queue: VecDeque::new(),
            young: HashMap::new(),
            keeps_young: false,
            worker: Worker::default(),
        })
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Looks which thread does the work of the process; once a second or so.
    pub fn follow_worker(&mut self) {
        // One that cannot be looked at has no thread to sit beside: that only costs more.
        let _ = self.worker.look(&self.process);
    }

    /// The CPU on which that thread runs now; none if several do the work.
    pub fn cpu(&self) -> Option<usize> {
        self.worker.cpu(&self.process)
    }

    /// Bytes of memory that this takes.
    pub fn memory_bytes(&self) -> usize {
        self.heat.memory_bytes()
            + self.young.capacity() * size_of::<(u64, PageSet)>()
            + self.queue.capacity() * size_of::<Range<u64>>()
    }

    /// What was seen accessed since the last call, by table, for another observer. From the first
    /// call on it is kept.
    pub fn take_young(&mut self) -> HashMap<u64, PageSet> {
        self.keeps_young = true;
        std::mem::take(&mut self.young)
    }

    /// Looks at all of it, and queues the `pages` coldest. With `clear` the look counts: heat is
    /// added, and accessed bits are cleared; without it only the queue is made anew.
    ///
    /// # Errors
    /// The process is gone, or may not be looked at.
    pub fn scan(
        &mut self,
        eye: &mut dyn AccessSource,
        pages: u64,
        clear: bool,
    ) -> Result<Scanned, PageoutError> {
        let began_ns = thread_cpu_ns();
        if clear || self.ranges.is_empty() {
            self.vmas.read_by(&mut self.maps, self.process.pid())?;
            self.ranges.clear();
            let wanted = |kind| matches!(kind, VmaKind::Anon);
            let vmas = self.vmas.vmas().iter().filter(|vma| wanted(vma.kind));
            self.ranges.extend(vmas.map(|vma| vma.range));
        }
        let mut sink = Sink {
            tables: Vec::new(),
            open: None,
        };
        let target = Target::from(&self.process);
        eye.scan(&target, &self.ranges, &mut sink)
            .map_err(|error| failed(self.process.pid(), &error))?;
        sink.close();
        let mut scanned = Scanned::default();
        let mut candidates = Vec::with_capacity(sink.tables.len());
        for table in &sink.tables {
            scanned.present_pages += table.bits.present.len();
            scanned.young_pages += table.bits.young.len();
            candidates.push(Candidates {
                index: table.index,
                pages: (table.small & table.bits.present).without(&table.bits.young),
            });
        }
        if clear {
            let mut scan = self.heat.scan();
            for table in &sink.tables {
                scan.table(table.index, &table.bits);
            }
            scan.finish();
            if self.keeps_young {
                for table in sink.tables.iter().filter(|t| !t.bits.young.is_empty()) {
                    *self.young.entry(table.index).or_default() |= table.bits.young;
                }
            }
            let refs = KernelHand::new(&self.process).refs(RefsScope::Anon);
            refs.map_err(|source| PageoutError::Recheck {
                reason: format!("accessed bits cannot be cleared: {source}"),
            })?;
        }
        self.queue = self.heat.coldest(&candidates, pages).into();
        scanned.cpu_ns = thread_cpu_ns().saturating_sub(began_ns);
        Ok(scanned)
    }

    /// Pages queued.
    pub fn queued_pages(&self) -> u64 {
        self.queue.iter().map(|run| run.end - run.start).sum()
    }

    /// Moves about `bytes` of the queue out. `rehearse`: everything but the move.
    ///
    /// # Errors
    /// The process is gone, or may not be touched.
    pub fn step(
        &mut self,
        eye: &mut dyn AccessSource,
        bytes: u64,
        rehearse: bool,
    ) -> Result<Moved, PageoutError> {
        let began_ns = thread_cpu_ns();
        let mut moved = Moved::default();
        let mut left = bytes.div_ceil(PAGE_BYTES);
        while left > 0 {
            let ranges = self.take(left);
            if ranges.is_empty() {
                moved.is_short = true;
                break;
            }
            let asked: u64 = ranges.iter().map(AddressRange::len).sum();
            let mut idle = Idle::default();
            let target = Target::from(&self.process);
            eye.scan(&target, &ranges, &mut idle)
                .map_err(|error| failed(self.process.pid(), &error))?;
            moved.tried_bytes += idle.bytes;
            moved.young_again_bytes += asked.saturating_sub(idle.bytes);
            left = left.saturating_sub(idle.bytes / PAGE_BYTES);
            if !rehearse && !idle.runs.is_empty() {
                let went = page_out(&self.process, &idle.runs, &mut moved.calls)?;
                moved.left_bytes += went.min(idle.bytes);
            }
        }
        moved.cpu_ns = thread_cpu_ns().saturating_sub(began_ns);
        Ok(moved)
    }

    /// Takes runs of at most `pages` in all from the queue.
    fn take(&mut self, mut pages: u64) -> Vec<AddressRange> {
        let mut ranges = Vec::new();
        while pages > 0
            && ranges.len() < RUNS_MAX
            && let Some(run) = self.queue.front_mut()
        {
            let length = (run.end - run.start).min(pages);
            pages -= length;
            ranges.push(AddressRange {
                start: run.start * PAGE_BYTES,
                end: (run.start + length) * PAGE_BYTES,
            });
            run.start += length;
            if run.start == run.end {
                self.queue.pop_front();
            }
        }
        ranges
    }
}

/// Pages out runs; those the kernel refuses (locked, unmapped meanwhile) are left. Returns bytes
/// processed.
fn page_out(process: &Process, runs: &[Run], calls: &mut u64) -> Result<u64, PageoutError> {
    let pidfd = process.pidfd().ok_or(PageoutError::NotSupported)?;
    let mut rest = runs;
    let mut went = 0;
    while !rest.is_empty() {
        let vector = &rest[..rest.len().min(VECTOR_MAX)];
        *calls += 1;
        let mut bytes = match pageout::page_out(pidfd, vector) {
            Ok(bytes) => bytes,
            Err(Errno::INVAL | Errno::NOMEM) => 0,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(_) => {
                process.check()?;
                return Err(PageoutError::Denied { pid: process.pid() });
            }
        };
        went += bytes;
        let done = vector.iter().take_while(|run| {
            let fits = bytes >= run.bytes();
            bytes = bytes.saturating_sub(run.bytes());
            fits
        });
        let done = done.count();
        // The one it stopped at is refused.
        rest = &rest[(done + usize::from(done < vector.len())).min(rest.len())..];
    }
    Ok(went)
}

fn failed(pid: u32, error: &crate::eye::EyeError) -> PageoutError {
    if error.is_target_gone() {
        crate::process::ProcessError::Gone { pid }.into()
    } else {
        PageoutError::Recheck {
            reason: error.to_string(),
        }
    }
}

/// One table of a scan, of all ranges in it.
struct SeenTable {
    index: u64,
    bits: agewise_policy::table::TableBits,
    /// Pages mapped one by one: parts of huge pages do not go.
    small: PageSet,
}

struct Sink {
    tables: Vec<SeenTable>,
    open: Option<SeenTable>,
}

impl Sink {
    fn close(&mut self) {
        self.tables.extend(self.open.take());
    }
}

impl SightSink for Sink {
    fn table(&mut self, sight: &TableSight<'_>) {
        let index = sight.va / TABLE_BYTES;
        if self.open.as_ref().is_some_and(|open| open.index != index) {
            self.close();
        }
        let open = self.open.get_or_insert_with(|| SeenTable {
            index,
            bits: Default::default(),
            small: PageSet::NONE,
        });
        for word in 0..WORDS_PER_TABLE {
            open.bits.present[word] |= sight.bits.present[word];
            open.bits.young[word] |= sight.bits.young[word];
            open.bits.swapped[word] |= sight.bits.swapped[word];
            if sight.leaf == Leaf::Page {
                open.small[word] |= sight.covered[word];
            }
        }
    }
}

/// Collects what is there and untouched; runs are joined over pages that are not there.
#[derive(Default)]
struct Idle {
    runs: Vec<Run>,
    bytes: u64,
}

impl SightSink for Idle {
    fn table(&mut self, sight: &TableSight<'_>) {
        if sight.leaf != Leaf::Page {
            return;
        }
        for page in 0..PAGES_PER_TABLE {
            let bit = |bits: &PageSet| bits[page / 64] >> (page % 64) & 1 == 1;
            if !bit(&sight.bits.present) || bit(&sight.bits.young) {
                continue;
            }
            let start = sight.va + page as u64 * PAGE_BYTES;
            self.bytes += PAGE_BYTES;
            match self.runs.last_mut() {
                Some(run) if run.end == start => run.end += PAGE_BYTES,
                _ => self.runs.push(Run::new(start, PAGE_BYTES)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use agewise_policy::table::TableBits;

    use super::*;
    use crate::eye::fake::{FakeSource, FakeTable};

    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A process, and where its stack is.
    fn sleeper() -> (Sleeper, AddressRange) {
        let sleeper = Sleeper(Command::new("sleep").arg("60").spawn().unwrap());
        let mut table = VmaTable::new();
        loop {
            table.read(sleeper.0.id()).unwrap();
            let found = table.vmas().iter().find(|vma| table.name(vma) == "[stack]");
            match found {
                Some(vma) => break (sleeper, vma.range),
                None => std::thread::yield_now(),
            }
        }
    }

    /// The stack of a real process through an eye that says what the test wants.
    #[test]
    fn the_coldest_are_queued_and_those_touched_since_stay() {
        let in_table = |stack: AddressRange| {
            let first = stack.start / PAGE_BYTES % PAGES_PER_TABLE as u64;
            let pages = (stack.len() / PAGE_BYTES).min(PAGES_PER_TABLE as u64 - first);
            (first, pages.min(8))
        };
        // Stacks lie anywhere: one in a hundred has its first pages in the end of a table.
        let (sleeper, stack) = (0..20)
            .map(|_| sleeper())
            .find(|(_, stack)| in_table(*stack).1 >= 4)
            .expect("a stack of four pages in one table");
        let pid = sleeper.0.id();
        let (first, pages) = in_table(stack);
        let page = |n: u64| (first + n) as usize;
        let va = stack.start / TABLE_BYTES * TABLE_BYTES;
        let mut bits = TableBits::default();
        let set = |bits: &mut PageSet, n: u64| bits[page(n) / 64] |= 1 << (page(n) % 64);
        for n in 0..pages {
            set(&mut bits.present, n);
        }
        set(&mut bits.young, 1);
        let mut eye = FakeSource::new();
        let show = |eye: &mut FakeSource, bits: TableBits| {
            let leaf = Leaf::Page;
            eye.set(pid, va, FakeTable { bits, leaf });
        };
        show(&mut eye, bits);
        let mut heated = Heated::new(Process::open(pid).unwrap(), 0.95).unwrap();
        assert!(heated.take_young().is_empty());
        let scanned = heated.scan(&mut eye, 2, true).unwrap();
        assert_eq!((scanned.present_pages, scanned.young_pages), (pages, 1));
        // Page 1 is hot; among equals the highest go.
        assert_eq!(heated.queued_pages(), 2);
        assert_eq!(heated.take_young()[&(va / TABLE_BYTES)].len(), 1);
        // One of the two is touched before its turn.
        set(&mut bits.young, pages - 1);
        show(&mut eye, bits);
        let moved = heated.step(&mut eye, 2 * PAGE_BYTES, true).unwrap();
        assert_eq!(moved.tried_bytes, PAGE_BYTES);
        assert_eq!(moved.young_again_bytes, PAGE_BYTES);
        assert_eq!((moved.left_bytes, moved.is_short), (0, true));
    }
}
