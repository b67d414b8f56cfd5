// SPDX-License-Identifier: Apache-2.0
//! What the daemon keeps of subjects in addition to their ages, as long as they exist.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use agewise_host::cgroup::Cgroup;

use super::actor::{Actor, Counted};

/// Identifies a subject for its lifetime: its name, and the inode or start time that distinguishes
/// it from a later one with the same name.
pub type Key = (Arc<str>, u64);

/// What is kept of all subjects.
#[derive(Default)]
pub struct Tracked {
    /// Those that a rule applies to.
    pub actors: HashMap<Key, Actor>,
    /// What was counted for those that no rule applies to.
    pub retired: HashMap<Key, Counted>,
    /// What came back to each, also to processes that have ended.
    pub refaulted: HashMap<Key, u64>,
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
