// SPDX-License-Identifier: Apache-2.0
//! The content of journal lines, in addition to time and name.

use agewise_host::container::Container;
use agewise_policy::budget::KernelFirst;
use agewise_policy::proactive::{Action, Limit, Reason};
use serde::Serialize;

use super::hand::Done;

/// The daemon has started.
#[derive(Serialize)]
pub(super) struct Started<'a> {
    pub(super) version: &'a str,
    pub(super) pid: u32,
    pub(super) source: &'a str,
    pub(super) dry_run: bool,
    pub(super) rules: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

/// Before and after an action of a policy, or that it does nothing.
#[derive(Serialize)]
pub(super) struct Acted<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) phase: Option<&'a str>,
    pub(super) target: &'a str,
    #[serde(flatten)]
    pub(super) container: Option<&'a Container>,
    pub(super) policy: &'a str,
    pub(super) dry_run: bool,
    pub(super) resident_bytes: u64,
    pub(super) swapped_bytes: u64,
    #[serde(flatten)]
    pub(super) action: &'a Action,
    #[serde(flatten)]
    pub(super) why: &'a Reason,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<Limit>,
    /// When its policy is asked again at the latest.
    pub(super) next_unix_ms: u64,
    #[serde(flatten)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) done: Option<&'a Done>,
}

/// What will be done, and what was done, to hold a budget between two ticks: in steps of
/// milliseconds, which are too many to log one by one.
#[derive(Serialize)]
pub(super) struct AheadLine<'a, T> {
    pub(super) phase: &'a str,
    pub(super) target: &'a str,
    pub(super) policy: &'a str,
    pub(super) dry_run: bool,
    #[serde(flatten)]
    pub(super) fields: &'a T,
}

/// A budget is not held.
#[derive(Serialize)]
pub(super) struct NotHeld<'a> {
    pub(super) target: &'a str,
    pub(super) policy: &'a str,
    pub(super) dry_run: bool,
    pub(super) why: &'a KernelFirst,
}

/// Before and after memory of a culprit that makes a protected cgroup thrash is moved out.
#[derive(Serialize)]
pub(super) struct Squeezed<'a> {
    pub(super) phase: &'a str,
    pub(super) target: &'a str,
    pub(super) policy: &'a str,
    pub(super) act: &'a str,
    pub(super) dry_run: bool,
    pub(super) excess_bytes: u64,
    pub(super) limit_bytes: u64,
    #[serde(flatten)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) done: Option<&'a Done>,
}

/// Before and after the limit of a cgroup changes that is held as small as possible without harm.
#[derive(Serialize)]
pub(super) struct Shrunk<'a> {
    pub(super) phase: &'a str,
    pub(super) target: &'a str,
    pub(super) policy: &'a str,
    pub(super) act: &'a str,
    pub(super) dry_run: bool,
    pub(super) reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) predicted_wait_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trouble: Option<String>,
}

impl<'a> Shrunk<'a> {
    /// The line before; `limit_bytes` is `None` to remove the limit.
    pub(super) fn new(
        target: &'a str,
        dry_run: bool,
        limit_bytes: Option<u64>,
        reason: &'a str,
    ) -> Self {
        Shrunk {
            phase: "before",
            target,
            policy: "shrink",
            act: if limit_bytes.is_some() {
                "limit"
            } else {
                "unlimit"
            },
            dry_run,
            reason,
            limit_bytes,
            usage_bytes: None,
            predicted_wait_ratio: None,
            trouble: None,
        }
    }
}

/// A cgroup is not held smaller, and why.
#[derive(Serialize)]
pub(super) struct NotShrunk<'a> {
    pub(super) target: &'a str,
    pub(super) policy: &'a str,
    pub(super) dry_run: bool,
    pub(super) reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_bytes: Option<u64>,
}

/// The remaining privileges of the daemon.
#[derive(Serialize)]
pub(super) struct Privileges<'a> {
    pub(super) kept: &'a [String],
}

/// A message for people.
#[derive(Serialize)]
pub(super) struct Message {
    pub(super) message: String,
}

/// A target came or went.
#[derive(Serialize)]
pub(super) struct Change<'a> {
    pub(super) target: &'a str,
    #[serde(flatten)]
    pub(super) container: Option<&'a Container>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use agewise_policy::proactive::Cause;

    use super::*;

    #[test]
    fn times_are_those_of_the_wall_clock_or_durations() {
        let (for_ms, cause) = (30_000, Cause::Refaults);
        let line = Acted {
            phase: Some("before"),
            target: "/web",
            container: None,
            policy: "age",
            dry_run: false,
            resident_bytes: 8192,
            swapped_bytes: 4096,
            action: &Action::Nothing,
            why: &Reason::CoolingDown { for_ms, cause },
            limit: None,
            next_unix_ms: 1_700_000_010_000,
            done: None,
        };
        let line = serde_json::to_value(&line).unwrap();
        let expected = serde_json::json!({
            "phase": "before", "target": "/web", "policy": "age", "dry_run": false,
            "resident_bytes": 8192, "swapped_bytes": 4096, "action": "nothing",
            "reason": "cooling_down", "for_ms": 30_000, "cause": "refaults",
            "next_unix_ms": 1_700_000_010_000_u64,
        });
        assert_eq!(line, expected);
    }
}
