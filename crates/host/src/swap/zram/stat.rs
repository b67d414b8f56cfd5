// SPDX-License-Identifier: Apache-2.0
//! The statistics of a zram device.

use crate::error::{self, FileError};
use crate::root::Roots;

/// The statistics of one zram device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZramStat {
    /// Uncompressed capacity; 0 if not set up.
    pub disksize_bytes: u64,
    /// The compressor in use.
    pub algorithm: String,
    /// All compressors the kernel offers for zram.
    pub algorithms: Vec<String>,
    /// Uncompressed size of the stored data, without pages filled with one value.
    pub original_bytes: u64,
    /// Compressed size of the same data.
    pub compressed_bytes: u64,
    /// Memory used, including allocator overhead: the real cost of swapping to it.
    pub memory_bytes: u64,
    /// Pages filled with one value, which take no memory.
    pub same_pages: u64,
    /// Incompressible pages.
    pub huge_pages: u64,
}

impl ZramStat {
    /// Reads the files in `/sys/block/zramN`.
    pub fn read(roots: &Roots, id: u32) -> Result<Self, FileError> {
        let dir = roots.sys.join(format!("block/zram{id}"));
        let algorithms = error::read(&dir.join("comp_algorithm"))?;
        let mut stat = Self {
            disksize_bytes: error::read_u64(&dir.join("disksize"))?,
            ..Self::default()
        };
        for word in algorithms.split_ascii_whitespace() {
            let name = word.trim_matches(['[', ']']).to_owned();
            if word.starts_with('[') {
                stat.algorithm.clone_from(&name);
            }
            stat.algorithms.push(name);
        }
        let path = dir.join("mm_stat");
        let text = error::read(&path)?;
        let numbers: Vec<u64> = text
            .split_ascii_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let [
            original,
            compressed,
            memory,
            _limit,
            _peak,
            same,
            _compacted,
            rest @ ..,
        ] = &numbers[..]
        else {
            return Err(FileError::format(&path, "seven numbers or more", &text));
        };
        stat.original_bytes = *original;
        stat.compressed_bytes = *compressed;
        stat.memory_bytes = *memory;
        stat.same_pages = *same;
        // Since 4.20.
        stat.huge_pages = rest.first().copied().unwrap_or(0);
        Ok(stat)
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
        std::fs::write(dir.join("disksize"), "1048576\n").unwrap();
        std::fs::write(dir.join("mm_stat"), " 8192 100 12288 0 12288 3 0 1 2\n").unwrap();
        let stat = ZramStat::read(&roots, 4).unwrap();
        assert_eq!((stat.algorithm.as_str(), stat.algorithms.len()), ("lz4", 3));
        assert_eq!((stat.original_bytes, stat.compressed_bytes), (8192, 100));
        assert_eq!(
            (stat.memory_bytes, stat.same_pages, stat.huge_pages),
            (12288, 3, 1)
        );
        std::fs::write(dir.join("mm_stat"), "1 2 3\n").unwrap();
        assert!(
            ZramStat::read(&roots, 4)
                .unwrap_err()
                .to_string()
                .contains("zram4/mm_stat")
        );
    }
}
