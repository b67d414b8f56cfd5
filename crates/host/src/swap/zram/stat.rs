// SPDX-License-Identifier: Apache-2.0
//! The statistics of a zram device.

use crate::error::{self, FileError};
use crate::root::Roots;

/// The statistics of one zram device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZramStat {
    /// The compressor in use.
    pub algorithm: String,
    /// Uncompressed size of the stored data, without pages filled with one value.
    pub original_bytes: u64,
    /// Memory used, including allocator overhead: the real cost of swapping to it.
    pub memory_bytes: u64,
}

impl ZramStat {
    /// Reads the files in `/sys/block/zramN`.
    pub fn read(roots: &Roots, id: u32) -> Result<Self, FileError> {
        let dir = roots.sys.join(format!("block/zram{id}"));
        let algorithms = error::read(&dir.join("comp_algorithm"))?;
        // The one in use is in brackets.
        let mut words = algorithms.split_ascii_whitespace();
        let used = words.find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
        let path = dir.join("mm_stat");
        let text = error::read(&path)?;
        let words = text.split_ascii_whitespace();
        let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let [original, _compressed, memory, ..] = numbers[..] else {
            return Err(FileError::format(&path, "three numbers or more", &text));
        };
        Ok(ZramStat {
            algorithm: used.unwrap_or_default().to_owned(),
            original_bytes: original,
            memory_bytes: memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_parse() {
        let top = tempfile::tempdir().unwrap();
        let roots = Roots::below(top.path());
        let dir = top.path().join("sys/block/zram4");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("comp_algorithm"), "lzo-rle lzo [lz4]\n").unwrap();
        std::fs::write(dir.join("mm_stat"), " 8192 100 12288 0 12288 3 0 1 2\n").unwrap();
        let stat = ZramStat::read(&roots, 4).unwrap();
        assert_eq!(stat.algorithm, "lz4");
        assert_eq!((stat.original_bytes, stat.memory_bytes), (8192, 12288));
        std::fs::write(dir.join("mm_stat"), "1 2\n").unwrap();
        assert!(
            ZramStat::read(&roots, 4)
                .unwrap_err()
                .to_string()
                .contains("zram4/mm_stat")
        );
    }
}
