// SPDX-License-Identifier: Apache-2.0
//! Which cgroups and processes the patterns of a configuration match.

use std::collections::BTreeSet;
use std::path::Path;

use globset::{GlobSet, GlobSetBuilder};

use super::{Config, PathGlob};

/// The patterns of a configuration, compiled.
#[derive(Clone, Debug)]
pub struct Matcher {
    observe: GlobSet,
    protect: GlobSet,
    spare: GlobSet,
    at_limit: GlobSet,
    rules: Vec<(GlobSet, BTreeSet<u32>)>,
    pids: BTreeSet<u32>,
}

impl Matcher {
    /// Compiles the patterns of a checked configuration.
    ///
    /// # Errors
    /// If the patterns are too large together.
    pub fn new(config: &Config) -> Result<Self, globset::Error> {
        let set = |globs: &[PathGlob]| {
            let mut builder = GlobSetBuilder::new();
            for glob in globs {
                builder.add(glob.0.clone());
            }
            builder.build()
        };
        let rules = config
            .act
            .iter()
            .map(|act| Ok((set(&act.cgroups)?, act.pids.clone())))
            .collect::<Result<_, globset::Error>>()?;
        let mut pids = config.observe.pids.clone();
        pids.extend(config.act.iter().flat_map(|act| &act.pids));
        Ok(Matcher {
            observe: set(&config.observe.cgroups)?,
            protect: set(&config.protect.cgroups)?,
            spare: set(&config.protect.spare)?,
            at_limit: set(&config.protect.at_limit)?,
            rules,
            pids,
        })
    }

    /// Whether a cgroup is observed: because of `observe` or `protect`, or because a rule applies
    /// to it.
    pub fn is_observed(&self, path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        let is_in_protect = self.is_protected(path) || self.is_at_limit(path);
        self.observe.is_match(path) || is_in_protect || self.rule(path).is_some()
    }

    /// Whether the kernel is kept from killing it at its hard limit while swap has room.
    pub fn is_at_limit(&self, path: impl AsRef<Path>) -> bool {
        self.at_limit.is_match(path)
    }

    /// Whether the working set of a cgroup is protected.
    pub fn is_protected(&self, path: impl AsRef<Path>) -> bool {
        self.protect.is_match(path)
    }

    /// Whether a cgroup is never acted upon on behalf of a protected one.
    pub fn is_spared(&self, path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        self.is_protected(path) || self.spare.is_match(path)
    }

    /// The number of the rule that applies to a cgroup.
    pub fn rule(&self, path: impl AsRef<Path>) -> Option<usize> {
        let path = path.as_ref();
        self.rules.iter().position(|(set, _)| set.is_match(path))
    }

    /// The number of the rule that applies to a process given by pid.
    pub fn rule_of_pid(&self, pid: u32) -> Option<usize> {
        self.rules.iter().position(|(_, pids)| pids.contains(&pid))
    }

    /// All processes given by pid.
    pub fn pids(&self) -> Vec<u32> {
        self.pids.iter().copied().collect()
    }
}
