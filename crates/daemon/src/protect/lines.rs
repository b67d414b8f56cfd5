// SPDX-License-Identifier: Apache-2.0
//! Journal lines about thrashing, and about cgroups that are held back.

use std::sync::Arc;

use agewise_host::error::FileError;
use agewise_host::throttle::ThrottleError;
use agewise_policy::thrashing::{Act, Decision};
use serde::Serialize;

use crate::record::Message;

fn name(act: &Act) -> &'static str {
    match act {
        Act::Report => "report",
        Act::Squeeze { .. } => "squeeze",
        Act::Freeze { .. } => "freeze",
        Act::Thaw => "thaw",
        Act::Release => "release",
        Act::Kill => "kill",
    }
}

/// A protected cgroup suffers.
#[derive(Debug, Serialize)]
pub struct Thrashing<'a> {
    protected: &'a str,
    act: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    guilty: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guilty_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refaults_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    full_share: Option<f64>,
}

impl<'a> Thrashing<'a> {
    /// The line for a decision.
    pub fn new(decision: &'a Decision<Arc<str>>) -> Self {
        let blame = decision.blame.as_ref();
        Thrashing {
            protected: &decision.protected,
            act: name(&decision.act),
            guilty: blame.map(|blame| &*blame.group),
            guilty_share: blame.map(|blame| blame.share),
            growth_bytes_per_s: blame.map(|blame| blame.growth_bytes_per_s),
            refaults_per_s: decision.suffering.map(|s| s.young_refaults_per_s),
            full_share: decision.suffering.and_then(|s| s.full_share),
        }
    }
}

/// A line before and after a cgroup is held back or released.
#[derive(Debug, Serialize)]
pub struct ActLine<'a> {
    /// `before` or `after`.
    pub phase: &'static str,
    target: &'a str,
    policy: &'static str,
    act: &'static str,
    protected: &'a str,
    dry_run: bool,
    /// The limit of its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    for_ms: Option<u64>,
    /// The file of the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// How many processes were killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed_processes: Option<usize>,
    /// Why it is left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl<'a> ActLine<'a> {
    /// The line before the act.
    pub fn before(act: &Act, target: &'a str, protected: &'a str, dry_run: bool) -> Self {
        ActLine {
            phase: "before",
            target,
            policy: "protect",
            act: name(act),
            protected,
            dry_run,
            limit_bytes: None,
            for_ms: match act {
                Act::Freeze { for_ms } => Some(*for_ms),
                _ => None,
            },
            file: None,
            killed_processes: None,
            refused: None,
            trouble: None,
        }
    }
}

/// A cgroup could not be released.
pub fn left(error: &FileError) -> Message {
    Message {
        message: format!("a cgroup is still throttled: {error}; the ledger keeps it for later"),
    }
}

/// A squeezed cgroup could not be limited further.
pub fn stays(error: &ThrottleError) -> Message {
    Message {
        message: format!("a limit stays above the value announced: {error}"),
    }
}
