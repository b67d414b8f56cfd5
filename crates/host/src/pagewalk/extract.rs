// SPDX-License-Identifier: Apache-2.0
//! Turns a raw last-level table into bitmaps: 512 entries at a time, with the widest vectors the
//! CPU supports. The portable version is the definition; the others must agree with it (checked by
//! a test).

use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits, WORDS_PER_TABLE};

use super::entry::{Bits, EntryFormat};
#[cfg(target_arch = "x86_64")]
use super::entry::{
    PRESENT,
    x86_64::{
        ACCESSED, BITS as X86_64, DIRTY, FIRST_SPECIAL_SWAP, PROTNONE, SAVED_DIRTY, SPECIAL, USER,
    },
};
use super::shape::Shape;

type Raw = [u64; PAGES_PER_TABLE];

/// Turns raw tables into bitmaps.
#[derive(Clone, Copy, Debug)]
pub struct Extractor {
    bits: &'static Bits,
    shape: Shape,
    reserved: u64,
    width: Width,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Extractor {
    /// For tables of this machine. `encryption_mask` is the bit that AMD SME or SEV sets in
    /// addresses.
    pub fn new(format: EntryFormat, encryption_mask: u64) -> Self {
        Extractor {
            bits: format.bits,
            shape: format.shape,
            reserved: format.reserved(encryption_mask),
            width: Width::best(format.bits),
        }
    }

    /// Like [`new`](Self::new), without vector instructions.
    pub fn portable(format: EntryFormat, encryption_mask: u64) -> Self {
        Extractor {
            width: Width::Portable,
            ..Self::new(format, encryption_mask)
        }
    }

    /// Writes the bitmaps of `table` to `out`. Returns false, with undefined `out`, if the table
    /// contains an entry that no page table of a process can have: one that is present to the MMU
    /// but not accessible to user space, or has reserved bits set, including a frame far past the
    /// end of memory (except for special entries, which may be anything). Such a table was freed
    /// and reused while it was read.
    pub fn extract(&self, table: &Raw, out: &mut TableBits) -> bool {
        match self.width {
            Width::Portable => self.extract_portable(table, out),
            // SAFETY: `Width::best` chooses this only if the CPU supports it.
            #[cfg(target_arch = "x86_64")]
            Width::Avx2 => unsafe { self.extract_avx2(table, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Width::Avx512 => unsafe { self.extract_avx512(table, out) },
        }
    }

    fn extract_portable(&self, table: &Raw, out: &mut TableBits) -> bool {
        *out = TableBits::default();
        let (format, mut bad) = (self.bits, false);
        let mut contiguous = PageSet::NONE;
        for word in 0..WORDS_PER_TABLE {
            for bit in 0..64 {
                let entry = table[word * 64 + bit];
                let said = format.said(entry, format.mapped);
                let set = |yes: bool| u64::from(yes) << bit;
                out.present[word] |= set(said.present);
                out.young[word] |= set(said.young);
                out.dirty[word] |= set(said.dirty);
                out.swapped[word] |= set(said.swapped);
                contiguous[word] |= set(said.present && entry & format.contiguous != 0);
                bad |= format.is_bad(entry, self.reserved);
            }
        }
        if !contiguous.is_empty() {
            let entries = self.shape.contiguous_entries();
            share(&mut out.young, &contiguous, entries);
            share(&mut out.dirty, &contiguous, entries);
        }
        !bad
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn extract_avx512(&self, table: &Raw, out: &mut TableBits) -> bool {
        use std::arch::x86_64::*;
        let word = |value: u64| _mm512_set1_epi64(value as i64);
        let (present_bit, special) = (word(PRESENT), word(SPECIAL));
        let (accessed, dirty) = (word(ACCESSED), word(DIRTY | SAVED_DIRTY));
        let (mapped_bits, swap_end) = (word(PRESENT | PROTNONE), word(FIRST_SPECIAL_SWAP));
        let mut seen_or = _mm512_setzero_si512();
        let mut seen_and = word(u64::MAX);
        for (index, word_entries) in table.chunks_exact(64).enumerate() {
            // SAFETY: each slice has eight readable u64s; the loads need no alignment.
            let load = |entries: &[u64]| unsafe { _mm512_loadu_si512(entries.as_ptr().cast()) };
            let mut bits = [0u64; 4];
            let (mut any, mut all) = (_mm512_setzero_si512(), word(u64::MAX));
            for (lane, entries) in word_entries.chunks_exact(8).enumerate() {
                let e = load(entries);
                any = _mm512_or_si512(any, e);
                all = _mm512_and_si512(all, e);
                bits[1] |= u64::from(_mm512_test_epi64_mask(e, accessed)) << (lane * 8);
                bits[2] |= u64::from(_mm512_test_epi64_mask(e, dirty)) << (lane * 8);
            }
            let every_present = _mm512_test_epi64_mask(all, present_bit) == 0xff;
            if every_present && _mm512_test_epi64_mask(any, special) == 0 {
                // The usual case: 64 present pages.
                bits[0] = u64::MAX;
                seen_or = _mm512_or_si512(seen_or, any);
                seen_and = _mm512_and_si512(seen_and, all);
                put(out, index, bits);
                continue;
            }
            let (young, dirt) = (bits[1], bits[2]);
            bits = [0; 4];
            if _mm512_test_epi64_mask(any, any) == 0 {
                put(out, index, bits);
                continue;
            }
            for (lane, entries) in word_entries.chunks_exact(8).enumerate() {
                let e = load(entries);
                let shift = lane * 8;
                let plain = _mm512_testn_epi64_mask(e, special);
                let checked = _mm512_test_epi64_mask(e, present_bit) & plain;
                seen_or = _mm512_mask_or_epi64(seen_or, checked, seen_or, e);
                seen_and = _mm512_mask_and_epi64(seen_and, checked, seen_and, e);
                let mapped = _mm512_test_epi64_mask(e, mapped_bits);
                let gone = _mm512_test_epi64_mask(e, e) & !mapped;
                let swapped = _mm512_mask_cmplt_epu64_mask(gone, e, swap_end);
                bits[0] |= u64::from(mapped & plain) << shift;
                bits[3] |= u64::from(swapped) << shift;
            }
            bits[1] = young & bits[0];
            bits[2] = dirt & bits[0];
            put(out, index, bits);
        }
        let bad = _mm512_reduce_or_epi64(seen_or) as u64 & self.reserved != 0
            || _mm512_reduce_and_epi64(seen_and) as u64 & USER == 0;
        !bad
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn extract_avx2(&self, table: &Raw, out: &mut TableBits) -> bool {
        use std::arch::x86_64::*;
        let word = |value: u64| _mm256_set1_epi64x(value as i64);
        // A bit becomes a mask by shifting it to the sign bit.
        let sign = |v: __m256i| _mm256_movemask_pd(_mm256_castsi256_pd(v)) as u64;
        let zero = _mm256_setzero_si256();
        let checked_bits = word(PRESENT | SPECIAL);
        let (present_bit, mapped_bits) = (word(PRESENT), word(PRESENT | PROTNONE));
        let mut seen_or = zero;
        let mut seen_and = word(u64::MAX);
        for (index, word_entries) in table.chunks_exact(64).enumerate() {
            let mut bits = [0u64; 4];
            for (lane, entries) in word_entries.chunks_exact(4).enumerate() {
                // SAFETY: `entries` has four readable u64s; the load needs no alignment.
                let e = unsafe { _mm256_loadu_si256(entries.as_ptr().cast()) };
                if _mm256_testz_si256(e, e) == 1 {
                    continue;
                }
                let shift = lane * 4;
                let unmapped = _mm256_cmpeq_epi64(_mm256_and_si256(e, mapped_bits), zero);
                let mapped = !sign(unmapped) & 0xf;
                let present = mapped & !sign(_mm256_slli_epi64::<54>(e));
                let checked = _mm256_cmpeq_epi64(_mm256_and_si256(e, checked_bits), present_bit);
                seen_or = _mm256_or_si256(seen_or, _mm256_and_si256(checked, e));
                let unchecked = _mm256_xor_si256(checked, word(u64::MAX));
                seen_and = _mm256_and_si256(seen_and, _mm256_or_si256(e, unchecked));
                let young = sign(_mm256_slli_epi64::<58>(e));
                let dirt = sign(_mm256_slli_epi64::<57>(e)) | sign(_mm256_slli_epi64::<5>(e));
                bits[0] |= present << shift;
                bits[1] |= (present & young) << shift;
                bits[2] |= (present & dirt) << shift;
                if mapped != 0xf {
                    for (at, &entry) in entries.iter().enumerate() {
                        let is_gone = entry != 0 && entry & (PRESENT | PROTNONE) == 0;
                        let is_swapped = is_gone && entry < FIRST_SPECIAL_SWAP;
                        bits[3] |= u64::from(is_swapped) << (shift + at);
                    }
                }
            }
            put(out, index, bits);
        }
        let mut lanes = [0u64; 8];
        // SAFETY: `lanes` has room for twice four u64s.
        unsafe {
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), seen_or);
            _mm256_storeu_si256(lanes.as_mut_ptr().add(4).cast(), seen_and);
        }
        let any = lanes[..4].iter().fold(0, |all, lane| all | lane);
        let every = lanes[4..].iter().fold(u64::MAX, |all, lane| all & lane);
        any & self.reserved == 0 && every & USER != 0
    }
}

/// In each group of `entries` adjacent ones, sets those that are `contiguous` if any of them is.
fn share(set: &mut PageSet, contiguous: &PageSet, entries: usize) {
    for first in (0..PAGES_PER_TABLE).step_by(entries) {
        let group = PageSet::range(first..first + entries) & *contiguous;
        if !(*set & group).is_empty() {
            *set |= group;
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn put(out: &mut TableBits, word: usize, bits: [u64; 4]) {
    out.present[word] = bits[0];
    out.young[word] = bits[1];
    out.dirty[word] = bits[2];
    out.swapped[word] = bits[3];
}

impl Width {
    /// The vector code supports only one meaning of the bits.
    fn best(bits: &'static Bits) -> Self {
        #[cfg(target_arch = "x86_64")]
        if *bits == X86_64 {
            if is_x86_feature_detected!("avx512f") {
                return Width::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Width::Avx2;
            }
        }
        let _ = bits;
        Width::Portable
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::x86_64::{ACCESSED, DIRTY, PROTNONE, SAVED_DIRTY, SPECIAL, USER};
    use super::super::entry::{PRESENT, aarch64, x86_64};
    use super::*;
    use proptest::prelude::*;

    const FORMAT: EntryFormat = EntryFormat {
        bits: &x86_64::BITS,
        address_mask: 0x0000_3fff_ffff_f000,
        address_end: 1 << 36,
        shape: Shape::PAGES_4K,
    };

    fn widths() -> Vec<Extractor> {
        let mut all = vec![Extractor::portable(FORMAT, 0)];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                all.push(Extractor {
                    width: Width::Avx2,
                    ..all[0]
                });
            }
            if is_x86_feature_detected!("avx512f") {
                all.push(Extractor {
                    width: Width::Avx512,
                    ..all[0]
                });
            }
        }
        all
    }

    fn extract(extractor: &Extractor, table: &Raw) -> Option<TableBits> {
        // Previous content of `out` must not remain.
        let full = PageSet::ALL;
        let mut out = TableBits {
            present: full,
            young: full,
            dirty: full,
            swapped: full,
        };
        extractor.extract(table, &mut out).then_some(out)
    }

    fn good_entry() -> impl Strategy<Value = u64> {
        let flags = ACCESSED | DIRTY | SPECIAL | SAVED_DIRTY | 1 << 63;
        prop_oneof![
            3 => Just(0u64),
            6 => (0u64..1 << 24, any::<u64>())
                .prop_map(move |(pfn, f)| (pfn << 12) | (f & flags) | PRESENT | USER),
            1 => (0u64..1 << 24, any::<u64>())
                .prop_map(move |(pfn, f)| {
                    let frame = !(pfn << 12) & 0x000f_ffff_ffff_f000;
                    frame | (f & flags & !SPECIAL) | PROTNONE
                }),
            2 => any::<u64>().prop_map(|e| e & !(PRESENT | PROTNONE)),
        ]
    }

    proptest! {
        #[test]
        fn every_width_agrees(
            entries in prop::collection::vec(good_entry(), PAGES_PER_TABLE),
            wild in prop::option::of((0..PAGES_PER_TABLE, any::<u64>())),
        ) {
            let mut table: Raw = entries.try_into().unwrap();
            if let Some((at, entry)) = wild {
                table[at] = entry;
            }
            let all = widths();
            let meaning = extract(&all[0], &table);
            if wild.is_none() {
                prop_assert!(meaning.is_some());
            }
            for other in &all[1..] {
                prop_assert_eq!(extract(other, &table), meaning, "{:?}", other.width);
            }
        }
    }

    #[test]
    fn contiguous_pages_share_what_is_set_in_any() {
        let format = EntryFormat {
            bits: &aarch64::BITS,
            address_mask: aarch64::ADDRESS,
            address_end: 1 << 40,
            shape: Shape::PAGES_4K,
        };
        let page = 0x5000 | aarch64::BITS.required | aarch64::READ_ONLY;
        let mut table = [page; PAGES_PER_TABLE];
        table[16..32].fill(page | aarch64::CONTIGUOUS);
        table[20] |= aarch64::ACCESSED;
        table[31] |= aarch64::DIRTY;
        table[77] |= aarch64::ACCESSED | aarch64::DIRTY;
        let said = extract(&Extractor::new(format, 0), &table).unwrap();
        assert!(said.present.is_full());
        for bits in [said.young, said.dirty] {
            assert_eq!(bits[0], 0xffff_0000);
            assert_eq!(bits[1], 1 << (77 - 64));
        }
        // Of pages of 16 KiB, 128 belong together.
        let shape = Shape::with_page_shift(14);
        table[128..384].fill(page | aarch64::CONTIGUOUS);
        table[200] |= aarch64::ACCESSED;
        let format = EntryFormat { shape, ..format };
        let said = extract(&Extractor::new(format, 0), &table).unwrap();
        assert_eq!(said.young.words()[2..5], [u64::MAX, u64::MAX, 0]);
    }

    #[test]
    fn what_cannot_be_a_user_table_is_refused() {
        let frame = 0x1000u64;
        for bad in [
            frame | PRESENT,                  // not for user space
            frame | PRESENT | USER | 1 << 53, // unused bit
            1 << 47 | PRESENT | USER,         // wider than the machine's addresses
            1 << 36 | PRESENT | USER,         // past the end of memory
        ] {
            for place in [0, 77, 511] {
                let mut table = [0u64; PAGES_PER_TABLE];
                table[place] = bad;
                for extractor in widths() {
                    assert_eq!(
                        extract(&extractor, &table),
                        None,
                        "{bad:#x} {:?}",
                        extractor.width
                    );
                }
            }
        }
        // The same frame is valid for device memory, which the kernel marks special.
        let mut table = [0u64; PAGES_PER_TABLE];
        table[3] = 1 << 36 | PRESENT | USER | SPECIAL;
        for extractor in widths() {
            assert_eq!(extract(&extractor, &table), Some(TableBits::default()));
        }
    }
}
