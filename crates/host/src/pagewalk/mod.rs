// SPDX-License-Identifier: Apache-2.0
//! The access source that reads page tables: page granular, exact, read only, on unmodified
//! kernels.
//!
//! A BPF program copies whole last-level tables out of the kernel, and this module turns them into
//! bitmaps. It takes no lock of the target, which runs, maps, unmaps and exits freely. So
//! everything read is checked: the entry that pointed to a table must be unchanged after the copy
//! (the kernel clears it before it frees the table), every entry must be one that a table of a
//! process can contain, and the process must still have the same address space at the end of the
//! call. What fails is read again, and if it fails repeatedly reported as unreadable.
//!
//! It sees what is mapped. Page cache that no process maps has no accessed bit and does not appear;
//! swapped-out shared memory leaves no trace in page tables either.
//!
//! Supports x86-64, and AArch64 with pages of 4, 16 and 64 KiB. Needs BTF, BPF syscall programs or
//! task iterators (Linux 5.17), CAP_BPF and CAP_PERFMON.

use agewise_policy::table::{PageSet, TableBits};

use crate::access::{
    Abilities, AccessError, AccessSource, AddressRange, Batch, Entries, Leaf, LeafRun, Resolution,
    SightSink, TABLE_BYTES, TableSight, Target, check_ranges, covered,
};
use crate::clock::{monotonic_ns, thread_cpu_ns};
use digest::Digester;
use layout::{Ctl, Entry, Range};
use leaf::leaf_bits;
use machine::Machine;
use program::Program;
use ranges::{Cursor, join, leaves_alike, slot_end};
use shape::Shape;
use threads::Threads;

mod digest;
pub mod entry;
pub mod extract;
pub(crate) mod layout;
mod leaf;
mod machine;
mod program;
mod ranges;
pub mod shape;
#[cfg(test)]
mod synthetic;
mod threads;

pub use program::{Capacity, Flavour};

/// The page-table walker, loaded and verified on this machine.
pub struct PageWalk {
    program: Program,
    machine: Machine,
    /// By so much are start times in `/proc` ahead of the kernel's own.
    ticks_ahead: u64,
    digester: Digester,
    /// The given ranges, joined where they share tables, as passed to the program.
    joined: Vec<Range>,
    /// The tables copied by the last call, as bitmaps by slot. May have more slots than tables.
    digested: Vec<Digest>,
}

impl PageWalk {
    /// Loads the walker and verifies it on a page of our own.
    ///
    /// # Errors
    /// [`AccessError::NoPrivilege`], [`AccessError::Unsupported`] with the reason.
    pub fn open() -> Result<Self, AccessError> {
        Self::open_with(None, Capacity::default())
    }

    /// Like [`open`](Self::open), with a given flavour of the program (`None`: the first that this
    /// kernel accepts) and given map sizes.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(flavour: Option<Flavour>, capacity: Capacity) -> Result<Self, AccessError> {
        let shape = machine::shape()?;
        let mut program = Program::load(flavour, capacity)?;
        let mut machine = machine::discover(&mut program, shape)?;
        machine.huge_zero = machine::huge_zero(&mut program, &machine)?;
        let ticks_ahead = machine::ticks_ahead(&mut program, &machine)?;
        let digester = Digester::new(&machine);
        Ok(PageWalk {
            program,
            machine,
            ticks_ahead,
            digester,
            joined: Vec::new(),
            digested: Vec::new(),
        })
    }

    /// The flavour of the program in use.
    pub fn flavour(&self) -> Flavour {
        self.program.flavour()
    }

    /// Levels of this machine's page tables: 2 to 5.
    pub fn levels(&self) -> u32 {
        self.machine.levels
    }

    /// The frame of a page of our own, which `/proc/self/pagemap` has only with `CAP_SYS_ADMIN`;
    /// `None` if no page is mapped there.
    pub(crate) fn own_frame(&mut self, va: u64) -> Result<Option<u64>, AccessError> {
        machine::walk_to(&mut self.program, &self.machine, va)
    }

    /// One call: walks from `va` in `joined[first]` on. `tid` is the thread to use, since the
    /// target's leader may have exited while other threads live.
    fn call(
        &mut self,
        target: &Target,
        tid: u32,
        first: usize,
        va: u64,
    ) -> Result<Ctl, AccessError> {
        let last = (first + layout::MAX_RANGES).min(self.joined.len());
        self.program.set_ranges(&self.joined[first..last]);
        self.program.walk(Ctl {
            start_ticks: target
                .start_ticks
                .map_or(0, |ticks| ticks.wrapping_sub(self.ticks_ahead)),
            va,
            tid,
            tgid: target.pid,
            n_ranges: (last - first) as u32,
            ..self.machine.ctl()
        })
    }

    /// Turns the tables of the last call into bitmaps. Separate from [`show`](Self::show), to keep
    /// this time apart from the sink's.
    fn digest(&mut self, found: &Ctl) {
        let tables = found.n_tables as usize;
        if self.digested.len() < tables {
            self.digested.resize(tables, Digest::default());
        }
        for (slot, digest) in (0..).zip(&mut self.digested[..tables]) {
            let raw = &self.program.table(slot).e;
            let shape = self.machine.format.shape;
            let memory_end = || machine::memory_end(shape).ok();
            let (machine, bits) = (&mut self.machine, &mut digest.bits);
            digest.makes_sense = self.digester.extract(machine, raw, bits, memory_end);
        }
    }

    /// Shows the findings of the last call to the sink.
    fn show(&self, found: &Ctl, cursor: &mut Cursor<'_>, sink: &mut Shown<'_>) {
        let mut joined = self.joined.iter().peekable();
        let mut entries = self.program.entries(found.n_entries);
        while let Some((entry, rest)) = entries.split_first() {
            if let Some((range, alike)) = leaves_alike(&self.machine, entries, cursor) {
                self.show_leaves(range, &entries[..alike], sink);
                entries = &entries[alike..];
                continue;
            }
            entries = rest;
            // An entry applies only within its own range, even if its slot reaches further.
            while joined.next_if(|range| range.end <= entry.va).is_some() {}
            let end = joined.peek().map_or(entry.va, |range| range.end);
            let shape = self.machine.format.shape;
            match entry.kind {
                layout::KIND_TABLE => {
                    let end = slot_end(entry.va, shape.part_bytes()).min(end);
                    self.show_part(cursor, entry, end, sink);
                }
                layout::KIND_PMD | layout::KIND_PUD => {
                    let level = if entry.kind == layout::KIND_PMD { 1 } else { 2 };
                    self.show_leaf(cursor, entry, shape.entry_bytes(level), end, sink);
                }
                kind => {
                    debug_assert!(
                        (layout::KIND_BAD_TABLE..=layout::KIND_BAD_TABLE + 3).contains(&kind)
                    );
                    let level = kind - layout::KIND_BAD_TABLE + 1;
                    let end = slot_end(entry.va, shape.entry_bytes(level)).min(end);
                    hide(cursor, entry.va, end, sink);
                }
            }
        }
    }

    /// Shows several leaves that look alike and lie in range number `range`.
    fn show_leaves(&self, range: usize, leaves: &[Entry], sink: &mut Shown<'_>) {
        let tables = leaves.len() as u64;
        let bits = leaf_bits(&self.machine, leaves[0].entry);
        let format = self.machine.format;
        let first = TableSight {
            va: leaves[0].va,
            range,
            leaf: Leaf::Huge,
            covered: PageSet::ALL,
            bits,
            seen_ns: sink.seen_ns,
            entries: Entries::Leaf(format.pfn_in_leaf(leaves[0].entry, TABLE_BYTES, 0)),
        };
        let run = LeafRun::new(first, tables, Some((leaves, format)));
        sink.sink.leaves(&run);
    }

    /// Shows what 512 entries of a table map, from the address of `entry` to `end`.
    fn show_part(&self, cursor: &mut Cursor<'_>, entry: &Entry, end: u64, sink: &mut Shown<'_>) {
        let digest = &self.digested[entry.slot as usize];
        if !digest.makes_sense {
            hide(cursor, entry.va, end, sink);
            return;
        }
        let format = self.machine.format;
        let entries = Entries::Table(&self.program.table(entry.slot).e, format);
        if format.shape == Shape::PAGES_4K {
            let bits = &digest.bits;
            emit(cursor, entry.va, Leaf::Page, bits, entries, sink);
            return;
        }
        let mut va = entry.va;
        while va < end {
            let bits = format.shape.pages_of(&digest.bits, va & !(TABLE_BYTES - 1));
            if bits != TableBits::default() {
                emit(cursor, va, Leaf::Page, &bits, entries, sink);
            }
            va = slot_end(va, TABLE_BYTES);
        }
    }

    /// Shows a leaf that maps `bytes`, up to `end`, 2 MiB at a time.
    fn show_leaf(
        &self,
        cursor: &mut Cursor<'_>,
        entry: &Entry,
        bytes: u64,
        end: u64,
        sink: &mut Shown<'_>,
    ) {
        let format = self.machine.format;
        let bits = leaf_bits(&self.machine, entry.entry);
        let leaf = match bytes {
            TABLE_BYTES => Leaf::Huge,
            _ => Leaf::Giant,
        };
        let end = slot_end(entry.va, bytes).min(end);
        let mut va = entry.va;
        while va < end {
            let first = va & !(TABLE_BYTES - 1);
            let entries = Entries::Leaf(format.pfn_in_leaf(entry.entry, bytes, first));
            emit(cursor, va, leaf, bits, entries, sink);
            va = slot_end(va, TABLE_BYTES);
        }
    }
}

impl AccessSource for PageWalk {
    fn name(&self) -> &'static str {
        "pagewalk"
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            resolution: Resolution::Page,
            pfn: true,
        }
    }

    fn scan(
        &mut self,
        target: &Target,
        ranges: &[AddressRange],
        sink: &mut dyn SightSink,
    ) -> Result<u64, AccessError> {
        check_ranges(ranges)?;
        self.digester.begin();
        join(
            ranges,
            self.machine.format.shape.part_bytes(),
            &mut self.joined,
        );
        let mut cpu_ns = 0;
        let mut sink = Shown { sink, seen_ns: 0 };
        let mut cursor = Cursor { ranges, at: 0 };
        let mut threads = Threads::leader(target.pid);
        let (mut first, mut va) = (0, 0);
        while first < self.joined.len() {
            sink.seen_ns = monotonic_ns();
            let began = thread_cpu_ns();
            let found = self.call(target, threads.tid, first, va)?;
            let end_ns = monotonic_ns();
            match found.rc {
                layout::RC_DONE | layout::RC_FULL => {}
                rc if threads.may_go_on(rc) && threads.next() => continue,
                rc => return Err(refusal(rc, target.pid)),
            }
            self.digest(&found);
            cpu_ns += thread_cpu_ns() - began;
            self.show(&found, &mut cursor, &mut sink);
            let batch = Batch {
                begin_ns: sink.seen_ns,
                end_ns,
            };
            sink.sink.batch_end(&batch);
            first += found.next_range as usize;
            va = if found.rc == layout::RC_FULL {
                found.next_va
            } else {
                0
            };
        }
        Ok(cpu_ns)
    }
}

/// A table of the last call, decoded.
#[derive(Clone, Debug, Default)]
struct Digest {
    bits: TableBits,
    /// Whether it can be a page table of a process.
    makes_sense: bool,
}

/// A sink, and when what is shown was read.
struct Shown<'a> {
    sink: &'a mut dyn SightSink,
    seen_ns: u64,
}

fn refusal(rc: u32, pid: u32) -> AccessError {
    match rc {
        layout::RC_NO_TASK => AccessError::NoSuchProcess { pid },
        layout::RC_KTHREAD => AccessError::KernelThread { pid },
        layout::RC_CHANGED => AccessError::Changed { pid },
        layout::RC_OTHER_TASK => AccessError::Reused { pid },
        _ => AccessError::NoAddressSpace { pid },
    }
}

fn hide(cursor: &mut Cursor<'_>, va: u64, end: u64, sink: &mut Shown<'_>) {
    cursor.each(va, end, |_, range| {
        sink.sink.unreadable(AddressRange {
            start: va.max(range.start),
            end: end.min(range.end),
        });
    });
}

fn emit(
    cursor: &mut Cursor<'_>,
    va: u64,
    leaf: Leaf,
    bits: &TableBits,
    entries: Entries<'_>,
    sink: &mut Shown<'_>,
) {
    let base = va & !(TABLE_BYTES - 1);
    let seen_ns = sink.seen_ns;
    cursor.each(va, base + TABLE_BYTES, |index, range| {
        let covered = covered(base, range);
        let clipped: TableBits;
        let bits = if covered.is_full() {
            bits
        } else {
            clipped = bits.within(&covered);
            &clipped
        };
        let sight = TableSight {
            va: base,
            range: index,
            leaf,
            covered,
            bits,
            seen_ns,
            entries,
        };
        sink.sink.table(&sight);
    });
}
