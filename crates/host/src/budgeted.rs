// SPDX-License-Identifier: Apache-2.0
//! One process under a budget: looks at it as every observer does ([`crate::look`]), and has the
//! mover page out the chosen pages.
//!
//! [`agewise_policy::budget`] decides which pages go next, and how many; this module carries it
//! out. A process is limited by its anonymous memory, a cgroup by its file pages as well
//! ([`BudgetedFiles`]).

mod files;
mod guests;
mod held;
mod known;
mod stuck;

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use agewise_policy::budget::{Counted, Gone, Seen};
use agewise_policy::table::PageSet;

use crate::access::{
    AccessSource, AddressRange, Batch, Leaf, PAGE_BYTES, SightSink, TABLE_BYTES, TableSight, Target,
};
use crate::clear::{ClearError, ClearPolicy, Clearer, Means};
use crate::clock;
use crate::guest::Guests;
use crate::look::Clearing;
use crate::mover::{
    self, Pagemap, PageoutError, PageoutLimits, Plan, ProcessMover, RunSet, check_target,
};
use crate::process::{Process, ProcessError};
use crate::root::ProcRoot;
use crate::vma::{MapsReader, Vma, VmaKind, VmaTable};

use guests::GuestsOf;
use stuck::Stuck;

pub use files::{BudgetedFiles, FilesError};
pub use held::{HeldFiles, HeldMemory, OpenFiles};

/// Chooses the pages to move out, given a look at them right before the move.
pub type Choose<'a> = dyn FnMut(&[Seen]) -> Vec<Range<u64>> + 'a;

/// A process whose anonymous memory is kept under a budget.
#[derive(Debug)]
pub struct Budgeted {
    process: Process,
    guests: GuestsOf,
    /// Bound to the address space of the last look: after an exec it reads as empty.
    pagemap: Option<Pagemap>,
    vmas: VmaTable,
    maps: MapsReader,
    clearer: Clearer,
    ranges: Vec<AddressRange>,
    stuck: Stuck,
    moves: u64,
    /// Share of the pages passed to the kernel that had left memory at the last verification.
    left_share: f64,
}

/// One in this many moves is verified.
const VERIFIED_PART: u64 = 16;

impl Budgeted {
    /// Starts without any knowledge of the process.
    ///
    /// # Errors
    /// The process must not be touched ([`check_target`]) or is gone.
    pub fn new(process: Process, guests: Guests) -> Result<Self, PageoutError> {
        check_target(&process, guests)?;
        // Only `clear_refs`: MADV_COLD would make the kernel reclaim what was just accessed.
        let policy = ClearPolicy {
            means: Means::Refs,
            ..ClearPolicy::exact()
        };
        Ok(Budgeted {
            clearer: Clearer::new(process.pid(), policy),
            process,
            guests: GuestsOf::new(guests),
            pagemap: None,
            vmas: VmaTable::new(),
            maps: MapsReader::new(),
            ranges: Vec::new(),
            stuck: Stuck::default(),
            moves: 0,
            left_share: 1.0,
        })
    }
}

impl HeldMemory for Budgeted {
    fn open(pid: u32, start_ticks: u64, guests: Guests) -> Result<Self, PageoutError> {
        let process = Process::open_user(&ProcRoot::default(), pid)?;
        if process.start_ticks() != start_ticks {
            return Err(ProcessError::Gone { pid }.into());
        }
        Budgeted::new(process, guests)
    }

    fn start_ticks(&self) -> u64 {
        self.process.start_ticks()
    }

    fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    fn resident_bytes(&self) -> Option<u64> {
        self.process.rss_bytes().ok()
    }

    fn counted(&self, with_reads: bool) -> Option<Counted> {
        let stat = self.process.stat().ok()?;
        let faults = match with_reads {
            true => self.process.read_from_device_bytes().ok()? / PAGE_BYTES,
            false => stat.major_faults,
        };
        let us =
            |ticks: u64| ticks.saturating_mul(1_000_000) / rustix::param::clock_ticks_per_second();
        Some(Counted {
            work_us: us(stat.user_ticks),
            kernel_us: us(stat.system_ticks),
            faults,
            ..Counted::default()
        })
    }

    fn look(
        &mut self,
        source: &mut dyn AccessSource,
        clears: bool,
    ) -> Result<Vec<Seen>, PageoutError> {
        let reads_maps = clears || self.ranges.is_empty();
        match reads_maps {
            true => self.guests.check(self.process.pid())?,
            false => self.guests.known(self.process.pid())?,
        }
        if reads_maps {
            self.pagemap = Some(Pagemap::open(&self.process)?);
            self.vmas.read_by(&mut self.maps, self.process.pid())?;
            let is_held = |vma: &&Vma| matches!(vma.kind, VmaKind::Anon);
            let held = || self.vmas.vmas().iter().filter(is_held);
            self.ranges.clear();
            self.ranges.extend(held().map(|vma| vma.range));
            self.clearer.begin(clock::monotonic_ns(), held());
        }
        let clearer = &mut self.clearer;
        let mut tables = gather(&self.process, source, &self.ranges, clearer, clears)?;
        self.stuck.look(&mut tables);
        Ok(tables)
    }

    /// How many pages actually left is verified in one move of sixteen; the other moves assume the
    /// same share.
    fn move_out(
        &mut self,
        source: &mut dyn AccessSource,
        runs: &[Range<u64>],
        choose: &mut Choose<'_>,
        rehearse: bool,
    ) -> Result<Gone, PageoutError> {
        self.guests.known(self.process.pid())?;
        let (process, clearer, stuck) = (&self.process, &mut self.clearer, &mut self.stuck);
        let pagemap = match self.pagemap.take() {
            Some(pagemap) => pagemap,
            None => Pagemap::open(process)?,
        };
        let mut mover = ProcessMover::with(process, pagemap);
        let limits = PageoutLimits {
            rehearse,
            unverified: !self.moves.is_multiple_of(VERIFIED_PART),
            ..PageoutLimits::default()
        };
        self.moves += 1;
        let mut recheck = |there: &RunSet| {
            let chosen = choose(&gather(process, source, there.runs(), clearer, false)?);
            if !rehearse {
                stuck.pass(&chosen);
            }
            Ok(chosen.iter().map(AddressRange::of_pages).collect())
        };
        let moved = mover::move_out(
            &mut mover,
            &Plan::of_base(runs.iter().map(AddressRange::of_pages)),
            limits,
            &mut recheck,
            &AtomicBool::new(false),
            |_| {},
        );
        self.pagemap = Some(mover.into_pagemap());
        let (report, left_bytes) = (&moved.report, moved.report.left_bytes);
        let passed_bytes = left_bytes + report.kept_bytes;
        if !limits.unverified && passed_bytes > 0 {
            self.left_share = left_bytes as f64 / passed_bytes as f64;
        }
        match moved.error {
            Some(error) => Err(error),
            None => Ok(Gone {
                left_pages: (passed_bytes as f64 * self.left_share) as u64 / PAGE_BYTES,
                calls: report.calls,
            }),
        }
    }
}

/// Returns what some ranges show, ascending, table by table. With `clears`, clears them afterwards.
fn gather(
    process: &Process,
    source: &mut dyn AccessSource,
    ranges: &[AddressRange],
    clearer: &mut Clearer,
    clears: bool,
) -> Result<Vec<Seen>, PageoutError> {
    let mut gatherer = Gatherer {
        tables: Vec::new(),
        clearing: Clearing::new(process, clearer, clears),
        clears,
    };
    let scanned = source.scan(&Target::from(process), ranges, &mut gatherer);
    let looked = gatherer
        .clearing
        .end(scanned)
        .map_err(|error| PageoutError::from_source(process.pid(), &error))?;
    looked.cleared.map_err(|error| match error {
        ClearError::Gone { pid } => PageoutError::from(ProcessError::Gone { pid }),
        error => PageoutError::Recheck {
            reason: error.to_string(),
        },
    })?;
    Ok(gatherer.tables)
}

/// Gathers the state of each table. Pages mapped one by one may be moved, parts of huge pages may
/// not.
struct Gatherer<'a> {
    tables: Vec<Seen>,
    clearing: Clearing<'a>,
    clears: bool,
}

impl SightSink for Gatherer<'_> {
    fn batch_end(&mut self, batch: &Batch) {
        self.clearing.batch_end(batch);
    }

    fn table(&mut self, sight: &TableSight<'_>) {
        if self.clears {
            self.clearing.clearer.judge(sight);
        }
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
        seen.bits.present |= sight.bits.present;
        seen.bits.young |= sight.bits.young;
        seen.bits.swapped |= sight.bits.swapped;
        if sight.leaf == Leaf::Page {
            seen.movable |= sight.covered;
        }
    }
}

#[cfg(test)]
mod tests {
    use agewise_policy::table::{PAGES_PER_TABLE, TableBits};

    use super::*;
    use crate::access::fake::{FakeSource, FakeTable};
    use crate::agent::tests::Sleeper;

    /// A process, and the addresses of its stack.
    fn sleeper() -> (Sleeper, AddressRange) {
        let sleeper = Sleeper::new();
        let mut table = VmaTable::new();
        loop {
            table.read(sleeper.pid()).unwrap();
            let found = table.vmas().iter().find(|vma| table.name(vma) == "[stack]");
            match found {
                Some(vma) => break (sleeper, vma.range),
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn a_process_that_begins_to_run_guests_is_left_alone() {
        let (sleeper, stack) = sleeper();
        let pid = sleeper.pid();
        let mut source = FakeSource::new();
        let (bits, leaf) = (TableBits::default(), Leaf::Page);
        let va = stack.start / TABLE_BYTES * TABLE_BYTES;
        source.set(pid, va, FakeTable { bits, leaf });
        let mut budgeted = Budgeted::new(Process::open(pid).unwrap(), Guests::Spared).unwrap();
        budgeted.look(&mut source, true).unwrap();

        let top = tempfile::tempdir().unwrap();
        let fds = top.path().join(format!("{pid}/fd"));
        std::fs::create_dir_all(&fds).unwrap();
        std::os::unix::fs::symlink("anon_inode:kvm-vm", fds.join("11")).unwrap();
        budgeted.guests.root = ProcRoot::new(top.path());
        budgeted.guests.due_ns = 0;
        let looked = budgeted.look(&mut source, true);
        assert!(matches!(looked, Err(PageoutError::Guests { .. })));
        let page = stack.start / PAGE_BYTES;
        let mut choose = |_: &[Seen]| panic!("nothing goes");
        let run = page..page + 1;
        let gone = budgeted.move_out(&mut source, std::slice::from_ref(&run), &mut choose, true);
        assert!(matches!(gone, Err(PageoutError::Guests { .. })));

        std::fs::remove_file(fds.join("11")).unwrap();
        budgeted.guests.due_ns = 0;
        budgeted.look(&mut source, true).unwrap();
    }

    /// The stack of a real process, seen through a source that reports what the test sets.
    #[test]
    fn what_is_chosen_goes_by_what_is_seen_right_before() {
        // The last pages, eight at most. The very last one holds the environment, so it is present.
        let in_table = |stack: AddressRange| {
            let end = (stack.end / PAGE_BYTES - 1) % PAGES_PER_TABLE as u64 + 1;
            let pages = (stack.len() / PAGE_BYTES).min(end).min(8);
            (end - pages, pages)
        };
        // Stacks lie anywhere: one in a hundred has its last pages at the beginning of a table.
        let (sleeper, stack) = (0..20)
            .map(|_| sleeper())
            .find(|(_, stack)| in_table(*stack).1 >= 4)
            .expect("a stack of four pages in one table");
        let pid = sleeper.pid();
        let (first, pages) = in_table(stack);
        let page = |n: u64| (first + n) as usize;
        let va = (stack.end - PAGE_BYTES) / TABLE_BYTES * TABLE_BYTES;
        let mut bits = TableBits::default();
        let set = |bits: &mut PageSet, n: u64| bits[page(n) / 64] |= 1 << (page(n) % 64);
        for n in 0..pages {
            set(&mut bits.present, n);
        }
        set(&mut bits.young, pages - 1);
        let mut source = FakeSource::new();
        let show = |source: &mut FakeSource, bits: TableBits| {
            let leaf = Leaf::Page;
            source.set(pid, va, FakeTable { bits, leaf });
        };
        show(&mut source, bits);
        let mut budgeted = Budgeted::new(Process::open(pid).unwrap(), Guests::Spared).unwrap();
        let seen = budgeted.look(&mut source, true).unwrap();
        let bits = seen[0].bits;
        assert_eq!((bits.present.len(), bits.young.len()), (pages, 1));
        assert_eq!(seen[0].movable & bits.present, bits.present);
        if rustix::system::sysinfo().freeswap == 0 {
            println!(
                "SKIPPED the second half of a budget's look: nothing leaves without free swap"
            );
            return;
        }
        // One of three pages is touched before its turn, and `choose` sees that.
        let from = va / PAGE_BYTES + first + pages - 3;
        let mut shown = Vec::new();
        let mut choose = |seen: &[Seen]| {
            shown.extend_from_slice(seen);
            std::iter::once(from..from + 1).collect()
        };
        let three = from..from + 3;
        let gone = budgeted.move_out(&mut source, std::slice::from_ref(&three), &mut choose, true);
        assert_eq!(gone.unwrap(), Gone::default());
        let of_three = PageSet::range(page(pages - 3)..page(pages));
        assert!(
            shown
                .iter()
                .all(|seen| (seen.bits.present.without(&of_three)).is_empty())
        );
        assert!(shown.iter().any(|seen| seen.bits.young.len() == 1));
    }
}
