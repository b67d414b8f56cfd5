// SPDX-License-Identifier: Apache-2.0
//! What the daemon keeps of subjects in addition to their ages, as long as they exist.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use agewise_host::cgroup::Cgroup;

use super::actor::{Actor, Counted};

/// Identifies a subject for its lifetime: its name, and the inode or start time that distinguishes
/// it from a later one with the same name.
pub type Key = (Arc<str>, u64);

/// What came back to a subject since it was first seen.
#[derive(Debug, Default)]
pub struct Refaulted {
    /// What looks found, in which a page that processes share since a fork counts for each.
    pub found_bytes: u64,
    /// What the kernel had counted when it was first seen, if it counts that.
    counted_before_bytes: Option<u64>,
    /// The most that was shown: a counter must not fall.
    shown_bytes: u64,
}

impl Refaulted {
    /// Takes in what the kernel has counted so far, and what the last look found. Returns what came
    /// back in all, by the kernel's count if there is one.
    pub fn add(&mut self, counted_bytes: Option<u64>, found_bytes: u64) -> u64 {
        self.found_bytes += found_bytes;
        if let Some(counted_bytes) = counted_bytes {
            let before_bytes = *self.counted_before_bytes.get_or_insert(counted_bytes);
            let since_bytes = counted_bytes.saturating_sub(before_bytes);
            self.shown_bytes = self.shown_bytes.max(since_bytes);
        } else if self.counted_before_bytes.is_none() {
            self.shown_bytes = self.shown_bytes.max(self.found_bytes);
        }
        self.shown_bytes
    }
}

/// What is kept of all subjects.
#[derive(Default)]
pub struct Tracked {
    /// Those that a rule applies to.
    pub actors: HashMap<Key, Actor>,
    /// What was counted for those that no rule applies to.
    pub retired: HashMap<Key, Counted>,
    /// What came back to each, also to processes that have ended.
    pub refaulted: HashMap<Key, Refaulted>,
    /// How often each cgroup has reached its limit.
    limit_hits: HashMap<Key, u64>,
}

impl Tracked {
    /// Forgets all but these subjects. Returns those of the others that a rule applied to.
    pub fn retain(&mut self, there: &HashSet<&Key>) -> Vec<Key> {
        let is_there = |key: &Key| there.contains(key);
        self.retired.retain(|key, _| is_there(key));
        self.refaulted.retain(|key, _| is_there(key));
        self.limit_hits.retain(|key, _| is_there(key));
        let gone = self.actors.extract_if(|key, _| !is_there(key));
        gone.map(|(key, _)| key).collect()
    }

    /// What was done about a subject, whether a rule applies to it or not.
    pub fn counted(&mut self, key: &Key) -> &mut Counted {
        match self.actors.get_mut(key) {
            Some(actor) => &mut actor.counted,
            None => self.retired.entry(key.clone()).or_default(),
        }
    }

    /// Whether a cgroup reached its limit since the last call.
    pub fn hit_limit(&mut self, key: &Key, cgroup: &Cgroup) -> bool {
        let Ok(Some(hits)) = cgroup.limit_hits() else {
            return false;
        };
        let before = self.limit_hits.insert(key.clone(), hits);
        before.is_some_and(|before| hits > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_back_is_the_kernels_count_if_there_is_one() {
        let mut refaulted = Refaulted::default();
        assert_eq!(refaulted.add(Some(1000), 0), 0);
        // Two processes found one page.
        assert_eq!(refaulted.add(Some(5096), 8192), 4096);
        assert_eq!(refaulted.add(None, 0), 4096, "it could not be read");
        assert_eq!(refaulted.add(Some(9192), 0), 8192);
        assert_eq!(refaulted.found_bytes, 8192);
        let mut uncounted = Refaulted::default();
        assert_eq!(uncounted.add(None, 4096), 4096);
        assert_eq!(uncounted.add(None, 4096), 8192);
    }
}
