// SPDX-License-Identifier: Apache-2.0
//! Contents of the exerciser's pages. They compress like a program's data: records with a
//! repetitive and a random part, which lz4 reduces to a half or a third. The exerciser can tell at
//! any time whether a page still has the contents it wrote.
//!
//! Word 0 of a page counts the writes to it, and word 1 is a checksum of that count; the other 510
//! words are derived from the page's number and never change.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use agewise_policy::mix::hash;

/// Words per 4 KiB page.
pub const WORDS: usize = 512;

/// Words per record; the first [`NOISE`] do not compress.
const RECORD: usize = 16;
/// Incompressible words per record.
const NOISE: usize = 6;

/// The repetitive part of every record.
const TEXT: &[u8; (RECORD - NOISE) * 8] =
    br#"{"kind":"order","state":"paid","currency":"EUR","country":"FI","items":[],"x":0}"#;

/// A page whose contents differ from what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Index of the word in the page.
    pub word: usize,
    /// The expected value.
    pub expected: u64,
    /// The actual value.
    pub found: u64,
}

/// Generates and checks the contents of all pages of one exerciser.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    seed: u64,
}

impl Content {
    /// Creates contents that depend on `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed: hash(seed) }
    }

    #[inline]
    fn key(&self, page: u64) -> u64 {
        hash(self.seed ^ page)
    }

    /// The value of word `word` (2 or more) of page `page`.
    #[inline]
    fn body(&self, key: u64, word: usize) -> u64 {
        let column = word % RECORD;
        if column < NOISE {
            return hash(key ^ word as u64);
        }
        let at = (column - NOISE) * 8;
        u64::from_le_bytes(TEXT[at..at + 8].try_into().expect("8 bytes"))
    }

    /// Word 1 of a page that was written `writes` times.
    #[inline]
    fn proof(key: u64, writes: u64) -> u64 {
        hash(key ^ writes)
    }

    /// Writes page `page` for the first time.
    pub fn fill(&self, page: u64, words: &[AtomicU64; WORDS]) {
        let key = self.key(page);
        words[0].store(0, Relaxed);
        words[1].store(Self::proof(key, 0), Relaxed);
        for (index, word) in words.iter().enumerate().skip(2) {
            word.store(self.body(key, index), Relaxed);
        }
    }

    /// Reads the count, its checksum and one more word (`probe` mod 512); returns the number of
    /// writes.
    ///
    /// # Errors
    /// The page has changed.
    #[inline]
    pub fn check(
        &self,
        page: u64,
        words: &[AtomicU64; WORDS],
        probe: usize,
    ) -> Result<u64, Changed> {
        let key = self.key(page);
        let writes = words[0].load(Relaxed);
        compare(1, Self::proof(key, writes), words[1].load(Relaxed))?;
        let probe = (probe % WORDS).max(2);
        compare(probe, self.body(key, probe), words[probe].load(Relaxed))?;
        Ok(writes)
    }

    /// Writes the page once more; it was written `writes_before` times before.
    #[inline]
    pub fn write(&self, page: u64, words: &[AtomicU64; WORDS], writes_before: u64) {
        let writes = writes_before.wrapping_add(1);
        words[0].store(writes, Relaxed);
        words[1].store(Self::proof(self.key(page), writes), Relaxed);
    }

    /// Checks every word of the page.
    ///
    /// # Errors
    /// The page has changed.
    pub fn check_whole(&self, page: u64, words: &[AtomicU64; WORDS]) -> Result<(), Changed> {
        let key = self.key(page);
        compare(
            1,
            Self::proof(key, words[0].load(Relaxed)),
            words[1].load(Relaxed),
        )?;
        for (index, word) in words.iter().enumerate().skip(2) {
            compare(index, self.body(key, index), word.load(Relaxed))?;
        }
        Ok(())
    }
}

#[inline]
fn compare(word: usize, expected: u64, found: u64) -> Result<(), Changed> {
    if expected == found {
        Ok(())
    } else {
        Err(Changed {
            word,
            expected,
            found,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blank() -> [AtomicU64; WORDS] {
        [const { AtomicU64::new(0) }; WORDS]
    }

    #[test]
    fn a_page_is_itself_after_writes() {
        let content = Content::new(1);
        let page = blank();
        content.fill(7, &page);
        for probe in 0..WORDS {
            let writes = content.check(7, &page, probe).expect("unchanged");
            assert_eq!(writes, probe as u64);
            content.write(7, &page, writes);
        }
        content.check_whole(7, &page).expect("unchanged");
    }

    #[test]
    fn any_changed_word_is_found() {
        let content = Content::new(1);
        let page = blank();
        content.fill(7, &page);
        for index in 0..WORDS {
            page[index].fetch_xor(1 << (index % 64), Relaxed);
            assert!(content.check_whole(7, &page).is_err(), "word {index}");
            assert!(content.check(7, &page, index).is_err(), "word {index}");
            page[index].fetch_xor(1 << (index % 64), Relaxed);
        }
    }

    #[test]
    fn zeroes_and_another_page_are_found() {
        let content = Content::new(1);
        let page = blank();
        assert!(
            content.check(0, &page, 2).is_err(),
            "a page that came back empty"
        );
        content.fill(7, &page);
        assert!(
            content.check(8, &page, 2).is_err(),
            "a page in another's place"
        );
        assert!(Content::new(2).check(7, &page, 2).is_err());
    }

    #[test]
    fn pages_compress_as_those_of_programs_do() {
        let content = Content::new(3);
        let page = blank();
        let mut compressed = 0;
        for number in 0..64 {
            content.fill(number, &page);
            let bytes: Vec<u8> = page
                .iter()
                .flat_map(|word| word.load(Relaxed).to_le_bytes())
                .collect();
            compressed += lz4_flex::block::compress(&bytes).len();
        }
        let ratio = 64.0 * 4096.0 / compressed as f64;
        assert!((2.0..=3.0).contains(&ratio), "lz4 ratio {ratio:.2}");
    }
}
