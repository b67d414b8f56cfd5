// SPDX-License-Identifier: Apache-2.0
//! One process under a budget: reads its page tables, clears accessed bits, pages out.
//!
//! What is hot, what goes next and how much of it is decided in [`agewise_policy::budget`]; this
//! carries it out. A scan costs the memory of the process, a move only the pages that it moves.

use std::collections::HashMap;
use std::ops::Range;

use agewise_policy::budget::{Gone, HeatQueue, Moved, Scanned, Seen};
use agewise_policy::table::{PageSet, WORDS_PER_TABLE};
use rustix::io::Errno;

use crate::access::{
    AccessSource, AddressRange, Leaf, PAGE_BYTES, SightSink, TABLE_BYTES, TableSight, Target,
};
use crate::clear::hand::{ClearHand, KernelHand, RefsScope};
use crate::clock::thread_cpu_ns;
use crate::mover::{self, PageoutError, Run, VECTOR_MAX, Wanted, check_target, look};
use crate::process::Process;
use crate::vma::{MapsReader, VmaKind, VmaTable};

/// A process whose memory is moved out by heat. Anonymous memory only: file pages cost a read from
/// a disk, and are the kernel's to drop.
#[derive(Debug)]
pub struct Heated {
    process: Process,
    heat: HeatQueue,
    vmas: VmaTable,
    maps: MapsReader,
    ranges: Vec<AddressRange>,
    /// Accessed since somebody asked last, by table.
    young: HashMap<u64, PageSet>,
    keeps_young: bool,
}

impl Heated {
    /// Begins with nothing known.
    ///
    /// # Errors
    /// A process that may not be touched: ourselves, init, a kernel thread, one that is gone.
    pub fn new(process: Process) -> Result<Self, PageoutError> {
        check_target(&process)?;
        Ok(Heated {
            process,
            heat: HeatQueue::new(),
            vmas: VmaTable::new(),
            maps: MapsReader::new(),
            ranges: Vec::new(),
            young: HashMap::new(),
            keeps_young: false,
        })
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Bytes of memory that this takes.
    pub fn memory_bytes(&self) -> usize {
        self.heat.memory_bytes() + self.young.capacity() * size_of::<(u64, PageSet)>()
    }

    /// What was seen accessed since the last call, by table, for another observer. From the first
    /// call on it is kept.
    pub fn take_young(&mut self) -> HashMap<u64, PageSet> {
        self.keeps_young = true;
        std::mem::take(&mut self.young)
    }

    /// Looks at all of it, and queues the `pages` coldest. A scan that `counts` adds heat and clears
    /// accessed bits; without it only the queue is made anew.
    ///
    /// # Errors
    /// The process is gone, or may not be looked at.
    pub fn scan(
        &mut self,
        source: &mut dyn AccessSource,
        pages: u64,
        counts: bool,
    ) -> Result<Scanned, PageoutError> {
        let began_ns = thread_cpu_ns();
        if counts || self.ranges.is_empty() {
            self.vmas.read_by(&mut self.maps, self.process.pid())?;
            self.ranges.clear();
            let wanted = |kind| matches!(kind, VmaKind::Anon);
            let vmas = self.vmas.vmas().iter().filter(|vma| wanted(vma.kind));
            self.ranges.extend(vmas.map(|vma| vma.range));
        }
        let mut sink = Sink::default();
        let target = Target::from(&self.process);
        source
            .scan(&target, &self.ranges, &mut sink)
            .map_err(|error| PageoutError::from_source(self.process.pid(), &error))?;
        if counts {
            self.clear(&sink.tables)?;
        }
        let mut scanned = self.heat.scan(&sink.tables, counts, pages);
        scanned.cpu_ns = thread_cpu_ns().saturating_sub(began_ns);
        Ok(scanned)
    }

    /// Clears accessed bits, and keeps what was seen of them for whoever asks.
    fn clear(&mut self, tables: &[Seen]) -> Result<(), PageoutError> {
        let refs = KernelHand::new(&self.process).refs(RefsScope::Anon);
        refs.map_err(|source| PageoutError::Recheck {
            reason: format!("accessed bits cannot be cleared: {source}"),
        })?;
        if self.keeps_young {
            for table in tables.iter().filter(|table| !table.bits.young.is_empty()) {
                *self.young.entry(table.index).or_default() |= table.bits.young;
            }
        }
        Ok(())
    }

    /// Pages queued.
    pub fn queued_pages(&self) -> u64 {
        self.heat.queued_pages()
    }

    /// Moves `pages` of the queue out. `rehearse`: everything but the move.
    ///
    /// # Errors
    /// The process is gone, or may not be touched.
    pub fn move_out(
        &mut self,
        source: &mut dyn AccessSource,
        pages: u64,
        rehearse: bool,
    ) -> Result<Moved, PageoutError> {
        let began_ns = thread_cpu_ns();
        let (process, target) = (&self.process, Target::from(&self.process));
        let mut moved = self.heat.move_out(pages, |runs| {
            let ranges: Vec<AddressRange> = runs.iter().map(range).collect();
            // Anonymous memory that is mapped page by page: parts of huge pages stay.
            let idle = look(source, &target, &ranges, Wanted::Untouched)
                .map_err(|error| PageoutError::from_source(target.pid, &error))?
                .base;
            let mut gone = Gone {
                idle_pages: idle.bytes() / PAGE_BYTES,
                ..Gone::default()
            };
            if !rehearse && !idle.is_empty() {
                gone.left_pages = page_out(process, idle.runs(), &mut gone.calls)? / PAGE_BYTES;
            }
            Ok::<_, PageoutError>(gone)
        })?;
        moved.cpu_ns = thread_cpu_ns().saturating_sub(began_ns);
        Ok(moved)
    }
}

/// Addresses of a run of pages.
fn range(pages: &Range<u64>) -> AddressRange {
    AddressRange {
        start: pages.start * PAGE_BYTES,
        end: pages.end * PAGE_BYTES,
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
        let mut bytes = match mover::page_out(pidfd, vector) {
            Ok(bytes) => bytes,
            Err(Errno::INVAL | Errno::NOMEM) => 0,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(_) => {
                process.check()?;
                let pid = process.pid();
                return Err(if process.has_lost_leader() {
                    PageoutError::LostLeader { pid }
                } else {
                    PageoutError::Denied { pid }
                });
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

/// Gathers what ranges show of each table. Pages mapped one by one may be moved, parts of huge pages
/// may not.
#[derive(Default)]
struct Sink {
    tables: Vec<Seen>,
}

impl SightSink for Sink {
    fn table(&mut self, sight: &TableSight<'_>) {
        let index = sight.va / TABLE_BYTES;
        if self.tables.last().is_none_or(|last| last.index != index) {
            self.tables.push(Seen {
                index,
                bits: Default::default(),
                movable: PageSet::NONE,
            });
        }
        let Some(seen) = self.tables.last_mut() else {
            return;
        };
        for word in 0..WORDS_PER_TABLE {
            seen.bits.present[word] |= sight.bits.present[word];
            seen.bits.young[word] |= sight.bits.young[word];
            seen.bits.swapped[word] |= sight.bits.swapped[word];
            if sight.leaf == Leaf::Page {
                seen.movable[word] |= sight.covered[word];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use agewise_policy::table::{PAGES_PER_TABLE, TableBits};

    use super::*;
    use crate::access::fake::{FakeSource, FakeTable};

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

    /// The stack of a real process through a source that says what the test wants.
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
        let mut source = FakeSource::new();
        let show = |source: &mut FakeSource, bits: TableBits| {
            let leaf = Leaf::Page;
            source.set(pid, va, FakeTable { bits, leaf });
        };
        show(&mut source, bits);
        let mut heated = Heated::new(Process::open(pid).unwrap()).unwrap();
        assert!(heated.take_young().is_empty());
        let scanned = heated.scan(&mut source, 2, true).unwrap();
        assert_eq!((scanned.present_pages, scanned.young_pages), (pages, 1));
        // Page 1 is hot; among equals the highest go.
        assert_eq!(heated.queued_pages(), 2);
        assert_eq!(heated.take_young()[&(va / TABLE_BYTES)].len(), 1);
        // One of the two is touched before its turn.
        set(&mut bits.young, pages - 1);
        show(&mut source, bits);
        let moved = heated.move_out(&mut source, 2, true).unwrap();
        assert_eq!(moved.tried_bytes, PAGE_BYTES);
        assert_eq!(moved.young_again_bytes, PAGE_BYTES);
        assert_eq!((moved.left_bytes, heated.queued_pages()), (0, 0));
    }
}
