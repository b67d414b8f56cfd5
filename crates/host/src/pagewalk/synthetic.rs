// SPDX-License-Identifier: Apache-2.0
//! Tests the C walk itself, compiled for user space, on synthetic page tables against a naive
//! model: two to five levels, each architecture and size of pages, leaves of all sizes, garbage,
//! races, and maps of any size.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::entry::{Bits, PRESENT, aarch64, x86_64};
use super::layout::*;
use super::shape::Shape;
use crate::access::TABLE_BYTES;

mod library;
use library::{Machine, TURN, library};

const GIB: u64 = 1 << 30;

/// Page tables in a vector: table 0 is unused, table 1 is the root.
struct Tables {
    kind: Kind,
    words: Vec<u64>,
}

/// A kind of page tables.
#[derive(Clone, Copy, Debug)]
struct Kind {
    bits: &'static Bits,
    levels: u32,
    shape: Shape,
}

const KINDS: [Kind; 9] = {
    const fn kind(bits: &'static Bits, levels: u32, page_shift: u32) -> Kind {
        let shape = Shape::with_page_shift(page_shift);
        Kind {
            bits,
            levels,
            shape,
        }
    }
    [
        kind(&x86_64::BITS, 4, 12),
        kind(&x86_64::BITS, 5, 12),
        kind(&aarch64::BITS, 3, 12),
        kind(&aarch64::BITS, 4, 12),
        kind(&aarch64::BITS, 5, 12),
        kind(&aarch64::BITS, 3, 14),
        kind(&aarch64::BITS, 4, 14),
        kind(&aarch64::BITS, 2, 16),
        kind(&aarch64::BITS, 3, 16),
    ]
};

impl Kind {
    /// Entries of a table.
    fn entries(self) -> u64 {
        self.shape.page_bytes() / 8
    }

    /// One past the last address of a process.
    fn top(self) -> u64 {
        self.shape.entry_bytes(self.levels - 1) * (self.entries() / 2)
    }
}

/// An entry that points to a lower table, without the address.
fn pointer(bits: &Bits) -> u64 {
    bits.table.1 | bits.pointer
}

/// An entry that maps memory itself, without the address.
fn leaf(bits: &Bits) -> u64 {
    PRESENT | (bits.table.0 & !bits.table.1) | bits.pointer | bits.accessed
}

impl Tables {
    fn new(kind: Kind) -> Self {
        Tables {
            kind,
            words: vec![0; kind.entries() as usize * 2],
        }
    }

    fn slot(&self, table: u64, va: u64, level: u32) -> usize {
        let entries = self.kind.entries();
        (table * entries + va / self.kind.shape.entry_bytes(level) % entries) as usize
    }

    /// The index of the entry for `va`, `level` levels above the last; creates tables on the way.
    fn entry_at(&mut self, va: u64, level: u32) -> usize {
        let (entries, page_shift) = (self.kind.entries(), self.kind.shape.page_shift());
        let mut table = 1;
        for above in (level + 1..self.kind.levels).rev() {
            let slot = self.slot(table, va, above);
            if self.words[slot] == 0 {
                let new = self.words.len() as u64 / entries;
                self.words.extend(vec![0; entries as usize]);
                let bits = self.kind.bits;
                self.words[slot] = new << page_shift | pointer(bits) | bits.pointer_mmu;
            }
            table = (self.words[slot] & 0x000f_ffff_ffff_f000) >> page_shift;
        }
        self.slot(table, va, level)
    }

    fn set(&mut self, va: u64, level: u32, entry: u64) {
        let at = self.entry_at(va, level);
        self.words[at] = entry;
    }

    /// Walks `ranges` with maps of the given sizes, call after call.
    fn walk(&mut self, ranges: &[Range], capacity: (u32, u32)) -> Walked {
        self.walk_racing(ranges, capacity, (0, 0, 0, 0))
    }

    fn walk_racing(
        &mut self,
        ranges: &[Range],
        (n_tables, n_entries): (u32, u32),
        (race_at, race_times, race_address, race_value): (u32, u32, u64, u64),
    ) -> Walked {
        let _turn = TURN.lock().unwrap_or_else(|poison| poison.into_inner());
        let mut out = Walked::default();
        let mut entries = vec![Entry::default(); n_entries as usize];
        let mut tables = vec![Table { e: [0; 512] }; n_tables as usize];
        let (mut first, mut va) = (0, 0);
        loop {
            let mut ctl = Ctl {
                direct_map: self.words.as_ptr() as u64,
                addr_mask: ((1 << 46) - 1) & !(self.kind.shape.page_bytes() - 1),
                va,
                levels: self.kind.levels,
                page_shift: self.kind.shape.page_shift(),
                first_range: first,
                n_ranges: ranges.len() as u32,
                ..self.kind.bits.ctl()
            };
            let mut machine = Machine {
                memory: self.words.as_mut_ptr().cast(),
                bytes: self.words.len() as u64 * 8,
                ctl: &mut ctl,
                ranges: ranges.as_ptr(),
                entries: entries.as_mut_ptr(),
                n_entries,
                tables: tables.as_mut_ptr(),
                n_tables,
                race_at,
                race_times,
                race_address,
                race_value,
                table_reads: 0,
            };
            (library().walk)(&mut machine, self.kind.shape.page_bytes());
            assert!(ctl.n_entries <= n_entries && ctl.n_tables <= n_tables);
            for entry in &entries[..ctl.n_entries as usize] {
                let table = (entry.kind == KIND_TABLE).then(|| tables[entry.slot as usize].e);
                out.found
                    .push((entry.va, entry.kind, table.map_or(entry.entry, |t| t[0])));
            }
            out.calls += 1;
            out.retries += ctl.retries;
            out.unreadable += ctl.unreadable;
            assert!(out.calls < 100_000, "the walk does not end");
            if ctl.rc == RC_DONE {
                return out;
            }
            assert_eq!(ctl.rc, RC_FULL);
            assert!(
                (ctl.next_range, ctl.next_va) > (first, va) || ctl.n_entries > 0,
                "stands still"
            );
            (first, va) = (ctl.next_range, ctl.next_va);
        }
    }
}

/// Address, kind, and the entry (for a table: its first word).
#[derive(Debug, Default, PartialEq, Eq)]
struct Walked {
    found: Vec<(u64, u32, u64)>,
    calls: u32,
    retries: u32,
    unreadable: u32,
}

#[test]
fn both_sides_mean_the_same_layout() {
    use std::mem::offset_of;
    let here = [
        size_of::<Range>(),
        size_of::<Entry>(),
        size_of::<Table>(),
        size_of::<Ctl>(),
        offset_of!(Entry, slot),
        offset_of!(Ctl, type_table),
        offset_of!(Ctl, mmu_bits),
        offset_of!(Ctl, start_ticks),
        offset_of!(Ctl, va),
        offset_of!(Ctl, tid),
        offset_of!(Ctl, levels),
        offset_of!(Ctl, search_shift),
        offset_of!(Ctl, rc),
        offset_of!(Ctl, next_va),
        offset_of!(Ctl, next_range),
        offset_of!(Ctl, n_tables),
        offset_of!(Ctl, retries),
        offset_of!(Ctl, seen_start_boottime),
        offset_of!(Ctl, search_phys),
        offset_of!(Ctl, search_from),
        MAX_RANGES,
    ];
    for (index, &fact) in here.iter().enumerate() {
        assert_eq!(
            (library().layout)(index as u32),
            fact as u64,
            "fact {index}"
        );
    }
    assert_eq!((library().layout)(here.len() as u32), u64::MAX);
}

/// What is mapped at a slot one level above the last (or two, by its first slot).
#[derive(Clone, Copy, Debug)]
enum Thing {
    Table(u64),
    Huge(u64),
    Giant(u64),
    Garbage(u64),
}

/// Any value: the walk does not look at the last level.
const PAGE_ENTRY: u64 = 0x67;

fn thing(bits: &'static Bits) -> impl Strategy<Value = Thing> {
    let (leaf, pointer) = (leaf(bits), pointer(bits));
    // A pointer for the kernel only, if pointers distinguish that.
    let for_kernel = match bits.pointer {
        0 => pointer | 1 << 45,
        _ => 0x2000 | PRESENT,
    };
    prop_oneof![
        5 => (1u64..1 << 30).prop_map(|n| Thing::Table(n << 12 | PAGE_ENTRY)),
        3 => (1u64..1 << 20).prop_map(move |n| Thing::Huge(n << 21 | leaf)),
        1 => (1u64..1 << 10).prop_map(move |n| Thing::Giant(n << 30 | leaf)),
        // Migration (not present), a pointer outside memory, reserved bits.
        1 => prop_oneof![
            Just(Thing::Huge(0xf800_0000_0000_0200)),
            Just(Thing::Giant(0xf800_0000_0000_0200)),
            Just(Thing::Garbage(1 << 45 | pointer)),
            Just(Thing::Garbage(for_kernel)),
            Just(Thing::Garbage(1 << 50 | 0x2000 | pointer)),
        ],
    ]
}

/// Slots close together in a few places all over the address space.
fn slots(kind: Kind) -> impl Strategy<Value = Vec<(u64, Thing)>> {
    let last = kind.top() / kind.shape.entry_bytes(1) - 1;
    let place = prop_oneof![0u64..3000, (last - 3000)..last, 0..last];
    let cluster = (
        place,
        prop::collection::vec((0u64..1500, thing(kind.bits)), 1..12),
    );
    prop::collection::vec(cluster, 1..4).prop_map(move |clusters| {
        let near = |(base, things): (u64, Vec<(u64, Thing)>)| {
            things
                .into_iter()
                .map(move |(at, thing)| ((base + at).min(last), thing))
        };
        clusters.into_iter().flat_map(near).collect()
    })
}

/// By address: the bytes it maps, the kind of the finding, and the entry.
type Model = BTreeMap<u64, (u64, u32, u64)>;

/// Tables that hold these things, by slot, and what the walk has to show of them.
fn tables_of(kind: Kind, things: &[(u64, Thing)]) -> (Tables, Model) {
    let mut tables = Tables::new(kind);
    let mut model = Model::new();
    let (shape, part) = (kind.shape, kind.shape.part_bytes());
    let [leaf, giant] = [1, 2].map(|level| shape.entry_bytes(level));
    for &(slot, thing) in things {
        let va = slot * leaf;
        let above = va & !(giant - 1);
        // Skip what would be under a leaf two levels up, and such leaves that would cover
        // something.
        let taken = model
            .range(..=va)
            .next_back()
            .is_some_and(|(&at, &(bytes, ..))| va < at + bytes);
        let crowded = kind.levels == 2 || model.range(above..above + giant).next().is_some();
        match thing {
            _ if taken => {}
            Thing::Giant(_) if crowded => {}
            Thing::Giant(entry) => {
                tables.set(above, 2, entry);
                model.insert(above, (giant, KIND_PUD, entry));
            }
            Thing::Huge(entry) => {
                tables.set(va, 1, entry);
                model.insert(va, (leaf, KIND_PMD, entry));
            }
            Thing::Garbage(entry) => {
                tables.set(va, 1, entry);
                model.insert(va, (leaf, KIND_BAD_TABLE, entry));
            }
            Thing::Table(first) => {
                // All parts of it differ.
                for at in (va..va + leaf).step_by(part as usize) {
                    let entry = first + (at - va);
                    tables.set(at, 0, entry);
                    model.insert(at, (part, KIND_TABLE, entry));
                }
            }
        }
    }
    (tables, model)
}

/// Ranges that begin near things (number of the thing, pages after it, length in pages), ascending
/// and disjoint.
fn ranges_near(kind: Kind, things: &[(u64, Thing)], cuts: &[(usize, u64, u64)]) -> Vec<Range> {
    let (leaf, part) = (kind.shape.entry_bytes(1), kind.shape.part_bytes());
    let page_bytes = kind.shape.page_bytes();
    let mut starts: Vec<(u64, u64)> = cuts
        .iter()
        .map(|&(pick, page, pages)| {
            let near = things[pick % things.len()].0 * leaf;
            (near + page * page_bytes, pages * page_bytes)
        })
        .collect();
    starts.sort_unstable();
    let mut ranges: Vec<Range> = Vec::new();
    for (start, bytes) in starts {
        let start = start.max(
            ranges
                .last()
                .map_or(0, |last| last.end.next_multiple_of(part)),
        );
        let end = (start + bytes).min(kind.top());
        if start < end {
            ranges.push(Range { start, end });
        }
    }
    ranges
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    /// The walk shows what a naive model predicts, for every kind and however small the maps are.
    #[test]
    fn shows_what_the_tables_hold(
        (kind, things, cuts) in prop::sample::select(&KINDS[..]).prop_flat_map(|kind| {
            let cuts = prop::collection::vec((0usize..64, 0u64..1024, 1u64..400_000), 1..6);
            (Just(kind), slots(kind), cuts)
        }),
        capacity in (1u32..9, 1u32..9),
    ) {
        let (mut tables, model) = tables_of(kind, &things);
        let ranges = ranges_near(kind, &things, &cuts);
        let mut want = Vec::new();
        for range in &ranges {
            for (&at, &(bytes, kind, entry)) in &model {
                if at < range.end && range.start < at + bytes {
                    want.push((at.max(range.start), kind, entry));
                }
            }
        }
        let got = tables.walk(&ranges, capacity);
        let bad = want.iter().filter(|(_, kind, _)| *kind == KIND_BAD_TABLE).count();
        prop_assert_eq!(got.found, want);
        prop_assert_eq!(got.unreadable as usize, bad);
        prop_assert_eq!(got.retries, 0);
    }
}

#[test]
fn a_table_that_changes_is_read_again() {
    let mut tables = Tables::new(KINDS[1]);
    let other = {
        tables.set(8 * TABLE_BYTES, 0, 0x9000 | PAGE_ENTRY);
        let at = tables.entry_at(8 * TABLE_BYTES, 1);
        tables.words[at]
    };
    tables.set(2 * TABLE_BYTES, 0, 0x5000 | PAGE_ENTRY);
    let pmd = tables.entry_at(2 * TABLE_BYTES, 1) as u64 * 8;
    let ranges = [Range {
        start: 0,
        end: 4 * TABLE_BYTES,
    }];
    // During the copy, the entry changes to point to another table: that one is shown.
    let got = tables.walk_racing(&ranges, (4, 4), (1, 1, pmd, other));
    assert_eq!(
        got.found,
        [(2 * TABLE_BYTES, KIND_TABLE, 0x9000 | PAGE_ENTRY)]
    );
    assert_eq!((got.retries, got.unreadable), (1, 0));
    // The entry is cleared (the table was freed): nothing is shown.
    let got = tables.walk_racing(&ranges, (4, 4), (1, 1, pmd, 0));
    assert_eq!((got.found.len(), got.retries), (0, 1));
    // The entry keeps changing: the walk gives up and reports it.
    tables.words[pmd as usize / 8] = other;
    let got = tables.walk_racing(&ranges, (4, 4), (1, 1000, pmd, other ^ 1 << 12));
    assert_eq!(got.found.len(), 1);
    assert_eq!(got.found[0].1, KIND_BAD_TABLE);
    assert_eq!(got.unreadable, 1);
}

#[test]
fn an_accessed_bit_that_appears_is_no_change() {
    for kind in KINDS {
        let mut tables = Tables::new(kind);
        tables.set(0, 0, 0x5000 | PAGE_ENTRY);
        let pmd = tables.entry_at(0, 1);
        tables.words[pmd] &= !kind.bits.accessed;
        let value = tables.words[pmd] | kind.bits.accessed;
        let ranges = [Range {
            start: 0,
            end: kind.shape.part_bytes(),
        }];
        let got = tables.walk_racing(&ranges, (4, 4), (1, 1, pmd as u64 * 8, value));
        assert_eq!((got.found.len(), got.retries), (1, 0), "{kind:?}");
    }
}

#[test]
fn upper_tables_that_make_no_sense_are_reported_not_followed() {
    // Addresses without memory, and beyond what an entry may contain.
    let cases = [(1 << 40, false), (1 << 47, true)];
    let kinds = KINDS.into_iter().filter(|kind| kind.levels > 3);
    for (kind, (address, is_refused)) in kinds.flat_map(|kind| cases.map(|case| (kind, case))) {
        for level in 2..kind.levels {
            let mut tables = Tables::new(kind);
            let bad = address | pointer(kind.bits);
            tables.set(0, level, bad);
            let far = kind.shape.entry_bytes(level) + 5 * kind.shape.entry_bytes(2);
            tables.set(far, 0, 0x5000 | PAGE_ENTRY);
            let ranges = [Range {
                start: 0,
                end: far + kind.shape.part_bytes(),
            }];
            let got = tables.walk(&ranges, (4, 4));
            assert!(got.unreadable > 0, "{kind:?} {level}");
            // Pointers are refused one by one, each with all that it covers.
            let refused = (0, KIND_BAD_TABLE + level - 1, bad);
            assert!(!is_refused || got.unreadable == 1 && got.found[0] == refused);
            assert_eq!(
                got.found.last(),
                Some(&(far, KIND_TABLE, 0x5000 | PAGE_ENTRY))
            );
        }
    }
}

/// In a time namespace, start times are rounded down to ticks after the offset was added.
#[test]
fn a_start_time_may_be_off_by_one_tick() {
    let is_wanted = |ms: u64, ticks| (library().is_wanted)(ms * 1_000_000, ticks) != 0;
    let found = [6_989, 6_990, 7_005, 7_019, 7_020].map(|ms| is_wanted(ms, 700));
    assert_eq!(found, [false, true, true, true, false]);
    assert!(is_wanted(5, 0), "any");
}

#[test]
fn the_next_gigabyte_has_a_table_of_its_own() {
    let mut tables = Tables::new(KINDS[1]);
    tables.set(5 * GIB, 0, 0x1000 | PAGE_ENTRY);
    tables.set(6 * GIB, 0, 0x2000 | PAGE_ENTRY);
    let got = tables.walk(
        &[Range {
            start: 5 * GIB,
            end: 7 * GIB,
        }],
        (8, 8),
    );
    let want = [(5 * GIB, KIND_TABLE, 0x1067), (6 * GIB, KIND_TABLE, 0x2067)];
    assert_eq!(
        got.found,
        want.map(|(va, kind, entry)| (va, kind, entry | PAGE_ENTRY))
    );
    assert_eq!(got.calls, 1);
}
