// SPDX-License-Identifier: Apache-2.0
//! Tests the C walk itself, compiled for user space, on synthetic page tables against a naive
//! model: three to five levels, each architecture, leaves of all sizes, garbage, races, and maps of
//! any size.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use proptest::prelude::*;

use super::entry::{Bits, PRESENT, aarch64, x86_64};
use super::layout::*;
use crate::access::TABLE_BYTES;

const GIB: u64 = 1 << 30;

/// `struct machine` of walk_test.c.
#[repr(C)]
struct Machine {
    memory: *mut u8,
    bytes: u64,
    ctl: *mut Ctl,
    ranges: *const Range,
    entries: *mut Entry,
    n_entries: u32,
    tables: *mut Table,
    n_tables: u32,
    race_at: u32,
    race_times: u32,
    race_address: u64,
    race_value: u64,
    table_reads: u32,
}

struct Library {
    walk: extern "C" fn(*mut Machine, u64),
    layout: extern "C" fn(u32) -> u64,
}

/// One walk at a time: the C code has globals.
static TURN: Mutex<()> = Mutex::new(());

/// Compiles and loads the test build of the walk. A C compiler is available, since libbpf was
/// built.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf/walk_test.c");
        let dir = tempfile::tempdir().unwrap();
        let built = dir.path().join("walk.so");
        let compiler = std::env::var_os("CC").unwrap_or("cc".into());
        let status = Command::new(compiler)
            .args([
                "-shared",
                "-fPIC",
                "-O1",
                "-Wall",
                "-Werror",
                "-Wno-unused-parameter",
                "-o",
            ])
            .args([&built, &source])
            .status()
            .expect("a C compiler, as for libbpf");
        assert!(status.success());
        let path = CString::new(built.to_str().unwrap()).unwrap();
        // SAFETY: our own library, which stays loaded; the symbols have these types.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let symbol = |name: &str| {
                let at = libc::dlsym(handle, CString::new(name).unwrap().as_ptr());
                assert!(!at.is_null(), "{name}");
                at
            };
            Library {
                walk: std::mem::transmute::<*mut c_void, extern "C" fn(*mut Machine, u64)>(symbol(
                    "synthetic_walk",
                )),
                layout: std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> u64>(symbol(
                    "synthetic_layout",
                )),
            }
        }
    })
}

/// Page tables in a vector: table 0 is unused, table 1 is the root.
struct Tables {
    bits: &'static Bits,
    words: Vec<u64>,
    levels: u32,
}

/// Kinds of page tables.
const KINDS: [(&Bits, u32); 5] = [
    (&x86_64::BITS, 4),
    (&x86_64::BITS, 5),
    (&aarch64::BITS, 3),
    (&aarch64::BITS, 4),
    (&aarch64::BITS, 5),
];

/// An entry that points to a lower table, without the address.
fn pointer(bits: &Bits) -> u64 {
    bits.table.1 | bits.pointer
}

/// An entry that maps memory itself, without the address.
fn leaf(bits: &Bits) -> u64 {
    PRESENT | (bits.table.0 & !bits.table.1) | bits.pointer | bits.accessed
}

/// Number of address bits covered by one level below the root.
fn root_shift(levels: u32) -> u32 {
    12 + 9 * (levels - 1)
}

impl Tables {
    fn new((bits, levels): (&'static Bits, u32)) -> Self {
        Tables {
            bits,
            words: vec![0; 512 * 2],
            levels,
        }
    }

    fn slot(&self, table: u64, va: u64, shift: u32) -> usize {
        (table * 512 + (va >> shift & 511)) as usize
    }

    /// The index of the entry for `va` with a span of `1 << shift`; creates tables on the way.
    fn entry_at(&mut self, va: u64, shift: u32) -> usize {
        let mut table = 1;
        let mut at = root_shift(self.levels);
        while at > shift {
            let slot = self.slot(table, va, at);
            if self.words[slot] == 0 {
                let new = self.words.len() as u64 / 512;
                self.words.extend([0; 512]);
                self.words[slot] = new << 12 | pointer(self.bits) | self.bits.pointer_mmu;
            }
            table = self.words[slot] >> 12 & 0xff_ffff_ffff;
            at -= 9;
        }
        self.slot(table, va, shift)
    }

    fn set(&mut self, va: u64, shift: u32, entry: u64) {
        let at = self.entry_at(va, shift);
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
                addr_mask: 0x000f_ffff_ffff_f000 & ((1 << 46) - 1),
                va,
                levels: self.levels,
                first_range: first,
                n_ranges: ranges.len() as u32,
                ..self.bits.ctl()
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
            (library().walk)(&mut machine, 4096);
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

/// What is mapped at a slot of 2 MiB (or of 1 GiB, by its first slot).
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

/// One past the last address of a process.
fn top(levels: u32) -> u64 {
    1 << (root_shift(levels) + 8)
}

/// Slots close together in a few places all over the address space.
fn slots((bits, levels): (&'static Bits, u32)) -> impl Strategy<Value = Vec<(u64, Thing)>> {
    let last = (top(levels) >> 21) - 1;
    let place = prop_oneof![0u64..3000, (last - 3000)..last, 0..last];
    let cluster = (
        place,
        prop::collection::vec((0u64..1500, thing(bits)), 1..12),
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
        let mut tables = Tables::new(kind);
        let mut model: BTreeMap<u64, (u64, u32, u64)> = BTreeMap::new();
        for &(slot, thing) in &things {
            let va = slot * TABLE_BYTES;
            let giant = va & !(GIB - 1);
            // Skip what would be under a 1 GiB leaf, and leaves that would cover something.
            let taken = model.range(..=va).next_back().is_some_and(|(&at, &(bytes, ..))| va < at + bytes);
            let crowded = model.range(giant..giant + GIB).next().is_some();
            match thing {
                _ if taken => {}
                Thing::Giant(_) if crowded => {}
                Thing::Giant(entry) => {
                    tables.set(giant, 30, entry);
                    model.insert(giant, (GIB, KIND_PUD, entry));
                }
                Thing::Huge(entry) => {
                    tables.set(va, 21, entry);
                    model.insert(va, (TABLE_BYTES, KIND_PMD, entry));
                }
                Thing::Garbage(entry) => {
                    tables.set(va, 21, entry);
                    model.insert(va, (TABLE_BYTES, KIND_BAD_TABLE, entry));
                }
                Thing::Table(first) => {
                    tables.set(va, 12, first);
                    model.insert(va, (TABLE_BYTES, KIND_TABLE, first));
                }
            }
        }
        // Ranges that begin near things, ascending and disjoint.
        let mut starts: Vec<(u64, u64)> = cuts
            .iter()
            .map(|&(pick, page, pages)| (things[pick % things.len()].0 * TABLE_BYTES + page * 4096, pages * 4096))
            .collect();
        starts.sort_unstable();
        let mut ranges: Vec<Range> = Vec::new();
        let top = top(kind.1);
        for (start, bytes) in starts {
            let start = start.max(ranges.last().map_or(0, |last| last.end.next_multiple_of(TABLE_BYTES)));
            let end = (start + bytes).min(top);
            if start < end {
                ranges.push(Range { start, end });
            }
        }
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
        tables.set(8 * TABLE_BYTES, 12, 0x9000 | PAGE_ENTRY);
        let at = tables.entry_at(8 * TABLE_BYTES, 21);
        tables.words[at]
    };
    tables.set(2 * TABLE_BYTES, 12, 0x5000 | PAGE_ENTRY);
    let pmd = tables.entry_at(2 * TABLE_BYTES, 21) as u64 * 8;
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
        tables.set(0, 12, 0x5000 | PAGE_ENTRY);
        let pmd = tables.entry_at(0, 21);
        tables.words[pmd] &= !kind.0.accessed;
        let value = tables.words[pmd] | kind.0.accessed;
        let ranges = [Range {
            start: 0,
            end: TABLE_BYTES,
        }];
        let got = tables.walk_racing(&ranges, (4, 4), (1, 1, pmd as u64 * 8, value));
        assert_eq!((got.found.len(), got.retries), (1, 0), "{kind:?}");
    }
}

#[test]
fn upper_tables_that_make_no_sense_are_reported_not_followed() {
    for kind in KINDS.into_iter().filter(|(_, levels)| *levels > 3) {
        for shift in [30, 39] {
            let mut tables = Tables::new(kind);
            // A pointer to an address without memory.
            tables.set(0, shift, 1 << 40 | pointer(kind.0));
            tables.set(600 * GIB, 12, 0x5000 | PAGE_ENTRY);
            let ranges = [Range {
                start: 0,
                end: 601 * GIB,
            }];
            let got = tables.walk(&ranges, (4, 4));
            assert!(got.unreadable > 0, "{kind:?} {shift}");
            assert_eq!(got.found[0].1, KIND_BAD_PMDS);
            assert_eq!(
                got.found.last(),
                Some(&(600 * GIB, KIND_TABLE, 0x5000 | PAGE_ENTRY))
            );
        }
    }
}

#[test]
fn the_next_gigabyte_has_a_table_of_its_own() {
    let mut tables = Tables::new(KINDS[1]);
    tables.set(5 * GIB, 12, 0x1000 | PAGE_ENTRY);
    tables.set(6 * GIB, 12, 0x2000 | PAGE_ENTRY);
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
