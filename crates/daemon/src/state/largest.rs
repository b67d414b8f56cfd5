// SPDX-License-Identifier: Apache-2.0
//! The files with the most memory.

use agewise_host::untrusted::Untrusted;
use agewise_policy::workingset::Histogram;
use serde::{Deserialize, Serialize};

use super::wire::as_text;

/// A file with much memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LargeFile {
    /// Its path, or what is known instead; of a long one, the end.
    pub name: Untrusted,
    /// The cgroup that most of its pages are charged to; `None` if there is none, or it was
    /// removed.
    pub cgroup: Option<Untrusted>,
    pub resident_bytes: u64,
    /// Dirty or under writeback.
    pub dirty_bytes: u64,
    /// Lower bound of the age of its oldest page.
    pub oldest_ms: u64,
    /// Ages in bytes, with the bounds of the snapshot.
    #[serde(with = "as_text")]
    pub ages: Histogram,
    /// Whether its ages are those of a sample of its pages.
    pub is_sampled: bool,
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
