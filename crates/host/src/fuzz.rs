// SPDX-License-Identifier: Apache-2.0
//! Entry points for fuzzing the code that parses bytes written by others.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use agewise_policy::table::{PAGES_PER_TABLE, TableBits};

use crate::cgroup::{MemoryStat, Mounts, Version, name};
use crate::memory::{MemInfo, Zone};
use crate::pagewalk::entry::{EntryFormat, x86_64};
use crate::pagewalk::extract::Extractor;
use crate::pagewalk::shape::Shape;
use crate::pressure::Psi;
use crate::process::{Stat, Status, parse_memberships};
use crate::swap::SwapArea;
use crate::throttle::format::Contents;
use crate::untrusted::{Untrusted, clean};
use crate::vma::{Filesystems, VmaTable};

/// A ledger: its intact entries survive encoding and decoding.
pub fn ledger(bytes: &[u8]) {
    let first = Contents::decode(bytes);
    let again = Contents::decode(&first.encode());
    assert_eq!(
        (&first.undos, &first.unreadable),
        (&again.undos, &again.unreadable)
    );
}

/// Names: no hidden character gets through, and an escaped cgroup name finds its cgroup again.
pub fn names(bytes: &[u8]) {
    let untrusted = Untrusted::from(bytes);
    for text in [
        untrusted.terminal().to_string(),
        clean(&String::from_utf8_lossy(bytes)),
    ] {
        assert!(!text.chars().any(crate::untrusted::is_hidden), "{text:?}");
    }
    let path = Path::new(OsStr::from_bytes(bytes));
    let text = name::text(path);
    assert_eq!(name::from_text(OsStr::new(&text)), path);
}

/// A page table: the vector and the scalar code agree.
pub fn pages(bytes: &[u8]) {
    let mut table = [0u64; PAGES_PER_TABLE];
    // A short input is repeated, since most tables hold similar entries.
    let mut words = bytes.chunks_exact(8).cycle();
    for entry in &mut table {
        let Some(word) = words.next() else { return };
        *entry = word
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    }
    let format = EntryFormat {
        bits: &x86_64::BITS,
        address_mask: 0x000f_ffff_ffff_f000,
        address_end: 1 << 40,
        shape: Shape::PAGES_4K,
    };
    let (mut wide, mut plain) = (TableBits::default(), TableBits::default());
    let is_table = Extractor::new(format, 0).extract(&table, &mut wide);
    assert_eq!(
        is_table,
        Extractor::portable(format, 0).extract(&table, &mut plain)
    );
    assert!(!is_table || wide == plain);
}

/// A parser of a file, given its path for messages.
type Parser = fn(&Path, &[u8], &str);

/// Those of files of `/proc` and of cgroups. New ones come last: the corpus selects by number.
const PARSERS: [Parser; 12] = [
    |path, bytes, _| drop(Stat::parse(path, bytes)),
    |path, _, text| drop(Status::parse(path, text)),
    |path, bytes, _| drop(parse_memberships(path, bytes)),
    |_, bytes, _| drop(Mounts::parse(bytes)),
    |path, bytes, _| drop(VmaTable::new().parse(bytes, &mut Filesystems::default(), path)),
    |path, _, text| drop(MemoryStat::parse(Version::V1, path, text)),
    |path, _, text| drop(MemoryStat::parse(Version::V2, path, text)),
    |path, _, text| drop(Psi::parse(path, text)),
    |path, _, text| drop(SwapArea::parse(path, text)),
    |path, _, text| drop(MemInfo::parse(path, text)),
    |path, _, text| drop(Zone::parse(path, text)),
    |path, _, text| drop(crate::lru_gen::table::parse(path, text)),
];

/// Files of `/proc` and of cgroups; the first byte selects the parser.
pub fn proc(bytes: &[u8]) {
    let Some((&which, rest)) = bytes.split_first() else {
        return;
    };
    let parser = PARSERS[usize::from(which) % PARSERS.len()];
    parser(Path::new("some file"), rest, &String::from_utf8_lossy(rest));
}
