// SPDX-License-Identifier: Apache-2.0
//! The files with the most memory, as the page and its server receive them: with the names of
//! `agewise files`.

use agewise_host::untrusted::Untrusted;
use agewise_policy::workingset::{Bin, Histogram};
use serde::{Deserialize, Serialize};

/// A file with much memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LargeFile {
    /// Its path, or what is known instead; of a long one, the end.
    #[serde(rename = "file")]
    pub name: Untrusted,
    /// The cgroup that most of its pages are charged to; `None` if there is none, or it was
    /// removed.
    pub cgroup: Option<Untrusted>,
    pub resident_bytes: u64,
    /// Dirty or under writeback.
    pub dirty_bytes: u64,
    /// Lower bound of the age of its oldest page; `None`, as are the ages, of shared memory.
    pub oldest_ms: Option<u64>,
    /// Whether its ages are those of a sample of its pages.
    #[serde(rename = "sampled")]
    pub is_sampled: bool,
    pub ages: Option<Vec<AgeBin>>,
}

/// Bytes of a file by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgeBin {
    /// `None` in the last bin.
    pub upper_ms: Option<u64>,
    pub bytes: u64,
}

impl AgeBin {
    /// The bins of a histogram in bytes.
    pub fn all(ages: &Histogram) -> Vec<AgeBin> {
        let bin = |bin: &Bin| AgeBin {
            upper_ms: bin.bound_ms(),
            bytes: bin.amounts.iter().sum(),
        };
        ages.bins().iter().map(bin).collect()
    }
}

/// The largest files of all that are observed. Listed less often than snapshots are taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LargestFiles {
    /// When they were listed: time since 1970, ms.
    pub unix_ms: u64,
    /// How long files had been observed then, ms.
    pub observed_ms: u64,
    /// All files in memory, and their resident memory.
    pub count: u64,
    pub resident_bytes: u64,
    /// The largest first.
    pub largest: Vec<LargeFile>,
}
