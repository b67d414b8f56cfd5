// SPDX-License-Identifier: Apache-2.0
//! What is known of accesses between two looks at the cache.
//!
//! A look reads what is cached, which takes long, so looks are rare. What was accessed is cheap to
//! fetch, and is fetched far more often. A page that the last look found becomes young at once. One
//! that it did not find is kept with the time of its access until the next look finds it.

use std::collections::HashMap;

use agewise_policy::generations::ByType;
use agewise_policy::table::PageSet;
use agewise_policy::workingset::Histogram;

use super::accessed::Block;
use super::uses::Uses;

/// Most times that are told apart between two looks; later accesses share the last one.
const TIMES_MAX: usize = 16;

/// What is known about accesses since the last look.
#[derive(Default)]
pub(super) struct Between {
    /// Pages whose ages include their accesses.
    pub aged: Uses,
    /// The other pages accessed, by the time when that was known.
    pub unaged: Vec<(u64, Uses)>,
    /// The pages in `aged`, by cgroup and by their idle time until then.
    pub returned: HashMap<u64, Histogram>,
}

/// Pages that the last look found accessed through mappings.
#[derive(Default)]
pub(super) struct ThroughMappings {
    /// The time of the look before: the accesses came after it.
    pub since_ms: u64,
    /// Pages by cgroup.
    pub pages: HashMap<u64, ByType<u64>>,
}

impl Between {
    pub fn add_unaged(&mut self, now_ms: u64, uses: Uses) {
        let is_full = self.unaged.len() == TIMES_MAX;
        match self.unaged.last_mut() {
            Some((at_ms, last)) if is_full => {
                *at_ms = now_ms;
                for (block, pages) in uses {
                    *last.entry(block).or_default() |= pages;
                }
            }
            _ => self.unaged.push((now_ms, uses)),
        }
    }

    /// Number of pages whose ages include their accesses.
    pub fn aged_pages(&self) -> u64 {
        self.aged.values().map(PageSet::len).sum()
    }

    /// Bytes of memory used.
    pub fn memory_bytes(&self) -> usize {
        let unaged = self.unaged.iter().map(|(_, uses)| uses.capacity());
        let blocks = self.aged.capacity() + unaged.sum::<usize>();
        blocks * (size_of::<(Block, PageSet)>() + 1)
    }
}
