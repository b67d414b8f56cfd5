// SPDX-License-Identifier: Apache-2.0
//! What was run, as recorded in every row of a result: enough to run it again.

use serde::{Deserialize, Serialize};

use super::table::{Column, Kind, Value};
use crate::machine::profile_file;

/// The texts of profiles: the last column.
pub const PROFILE: Column = Column::sparse("policy_profile", Kind::Text);

/// The program and the input of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Options that differ from their defaults, as `key=value` separated by blanks
    /// ([`super::options`]).
    #[serde(default)]
    pub options: String,
    /// The workload or trace as given: a name, or the path of a file.
    pub source: String,
    /// SHA-256 of the file, as printed by `sha256sum`; for a workload of the lab, of its text.
    pub source_sha256: String,
    /// Version of agewise.
    pub version: String,
    /// Commit of the build, or `unknown`.
    pub build: String,
}

impl Origin {
    pub(super) const COLUMNS: [Column; 5] = [
        Column::new("options", Kind::Text),
        Column::new("source", Kind::Text),
        Column::new("source_sha256", Kind::Text),
        Column::new("version", Kind::Text),
        Column::new("build", Kind::Text),
    ];

    pub(super) fn values(&self) -> [Value; 5] {
        [
            &self.options,
            &self.source,
            &self.source_sha256,
            &self.version,
            &self.build,
        ]
        .map(Value::from)
    }
}

/// A policy on the simulated machine: a column of `agewise lab run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCell {
    /// Name of the workload or trace.
    pub workload: String,
    /// The policy; with an agent, `LRU+AGENT`.
    pub policy: String,
    /// SHA-256 of the file that describes the policy, if there is one.
    pub policy_sha256: Option<String>,
    /// The text of that file, if the policy can be made from it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_profile: Option<String>,
    /// The agent beside the LRU, with its parameters.
    pub agent: Option<String>,
    /// `memory.max` of the cgroup.
    pub memory_bytes: u64,
    /// The swap device, or `none`.
    pub swap: String,
    /// Settings of the machine that were given, as `key=value` separated by blanks.
    #[serde(default)]
    pub settings: String,
    /// DAMON beside the policy.
    pub damon: Option<String>,
    /// Seeds, as `1-10`.
    pub seeds: String,
}

impl RunCell {
    /// The columns after `workload` and `policy`, which come first in every row.
    pub(super) const COLUMNS: [Column; 7] = [
        Column::optional("policy_sha256", Kind::Text),
        Column::optional("agent", Kind::Text),
        Column::new("memory_bytes", Kind::Count),
        Column::new("swap", Kind::Text),
        Column::new("settings", Kind::Text),
        Column::optional("damon", Kind::Text),
        Column::new("seeds", Kind::Text),
    ];

    pub(super) fn values(&self) -> [Value; 7] {
        [
            self.policy_sha256.as_ref().into(),
            self.agent.as_ref().into(),
            self.memory_bytes.into(),
            (&self.swap).into(),
            (&self.settings).into(),
            self.damon.as_ref().into(),
            (&self.seeds).into(),
        ]
    }

    /// The policy without the agent, and the file that describes it.
    pub(super) fn described(&self) -> DescribedPolicy<'_> {
        DescribedPolicy {
            name: self.lru(),
            sha256: self.policy_sha256.as_deref(),
            profile: self.policy_profile.as_deref(),
        }
    }

    /// Name of the policy without the agent.
    #[must_use]
    pub fn lru(&self) -> &str {
        let agent = self.agent.as_deref().unwrap_or_default();
        let lru = self.policy.strip_suffix(agent);
        match lru.and_then(|lru| lru.strip_suffix('+')) {
            Some(lru) if !agent.is_empty() => lru,
            _ => &self.policy,
        }
    }
}

/// A policy on a trace alone: a curve of `agewise lab curve`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurveCell {
    /// Name of the trace.
    pub trace: String,
    pub policy: String,
    /// SHA-256 of the file that describes the policy, if there is one.
    pub policy_sha256: Option<String>,
    /// The text of that file, if the policy can be made from it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_profile: Option<String>,
    /// Sizes in pages. Each row has one of them, as `size_pages`.
    pub sizes_pages: Vec<u64>,
    /// Share of the pages in each sample; null if counted exactly.
    pub sampling_rate: Option<f64>,
    /// Number of samples; null if counted exactly.
    pub samples: Option<u64>,
}

impl CurveCell {
    /// The policy and the file that describes it.
    pub(super) fn described(&self) -> DescribedPolicy<'_> {
        DescribedPolicy {
            name: &self.policy,
            sha256: self.policy_sha256.as_deref(),
            profile: self.policy_profile.as_deref(),
        }
    }
}

/// A cell with the program and input that produced it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Described<C> {
    #[serde(flatten)]
    pub cell: C,
    /// The program and the input.
    #[serde(flatten)]
    pub origin: Origin,
}

/// A column of results with a row per run: 1 if the seeds are orders in which a trace may have been
/// made, which are no sample, and 0 otherwise. Results of earlier versions do not have it.
pub(super) const ORDER_UNKNOWN: &str = "order_unknown";

/// Everything that determines a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "experiment", rename_all = "lowercase")]
pub enum Description {
    /// `agewise lab run`.
    Run {
        /// Its cells, in the order of the result.
        cells: Vec<Described<RunCell>>,
    },
    /// `agewise lab curve`.
    Curve {
        /// Its cells, in the order of the result.
        cells: Vec<Described<CurveCell>>,
    },
}

impl Description {
    /// The description as JSON, for the metadata of a file.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The origin of each cell; they differ at most in the workload or trace.
    #[must_use]
    pub fn origins(&self) -> Vec<&Origin> {
        match self {
            Description::Run { cells } => cells.iter().map(|of| &of.origin).collect(),
            Description::Curve { cells } => cells.iter().map(|of| &of.origin).collect(),
        }
    }

    /// The policies, without agents, and the files that describe them.
    pub(super) fn policies(&self) -> Vec<DescribedPolicy<'_>> {
        match self {
            Description::Run { cells } => cells.iter().map(|of| of.cell.described()).collect(),
            Description::Curve { cells } => cells.iter().map(|of| of.cell.described()).collect(),
        }
    }
}

/// A policy of a result, without an agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescribedPolicy<'a> {
    pub name: &'a str,
    /// SHA-256 of the file that describes it, if there is one.
    pub sha256: Option<&'a str>,
    /// The recorded text of that file.
    pub profile: Option<&'a str>,
}

impl<'a> DescribedPolicy<'a> {
    /// The recorded text of the file, if it is what the hash is of: in CSV it is escaped, and
    /// results of earlier versions have none.
    pub(super) fn recorded(&self) -> Option<&'a str> {
        let is_it = |text: &&str| self.sha256 == Some(profile_file::sha256_of(text).as_str());
        self.profile.filter(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_no_part_of_the_lru() {
        let cell = |policy: &str, agent: Option<&str>| RunCell {
            workload: "kv".to_owned(),
            policy: policy.to_owned(),
            policy_sha256: None,
            policy_profile: None,
            agent: agent.map(str::to_owned),
            memory_bytes: 1 << 20,
            swap: "none".to_owned(),
            settings: String::new(),
            damon: None,
            seeds: "1-2".to_owned(),
        };
        assert_eq!(cell("classic+zone", None).lru(), "classic+zone");
        let both = cell("classic+zone+age:1s", Some("age:1s"));
        assert_eq!(both.lru(), "classic+zone");
    }
}
