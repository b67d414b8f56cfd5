// SPDX-License-Identifier: Apache-2.0
//! What a line of the journal says, besides its time and name.

use agewise_engine::proactive::Decision;
use serde::Serialize;

use super::ahead::Report;
use super::hand::Done;

/// The daemon runs.
#[derive(Serialize)]
pub(super) struct Started<'a> {
    pub(super) version: &'a str,
    pub(super) pid: u32,
    pub(super) eye: &'a str,
    pub(super) dry_run: bool,
    pub(super) rules: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

/// Before and after an action of a policy.
#[derive(Serialize)]
pub(super) struct Acted<'a> {
    pub(super) phase: &'a str,
    pub(super) subject: &'a str,
    pub(super) policy: &'a str,
    pub(super) dry_run: bool,
    pub(super) resident_bytes: u64,
    pub(super) swapped_bytes: u64,
    #[serde(flatten)]
    pub(super) decision: &'a Decision,
    #[serde(flatten)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) done: Option<&'a Done>,
}

/// What was done ahead of a budget since the tick before: in steps of milliseconds, of which a line
/// each would be more writing than moving.
#[derive(Serialize)]
pub(super) struct AheadLine<'a> {
    pub(super) phase: &'a str,
    pub(super) subject: &'a str,
    pub(super) policy: &'a str,
    pub(super) dry_run: bool,
    #[serde(flatten)]
    pub(super) report: &'a Report,
}

/// A cgroup that made a protected one thrash was squeezed.
#[derive(Serialize)]
pub(super) struct Squeezed<'a> {
    pub(super) subject: &'a str,
    pub(super) excess_bytes: u64,
    #[serde(flatten)]
    pub(super) done: &'a Done,
}

/// What is left of our privileges.
#[derive(Serialize)]
pub(super) struct Privileges<'a> {
    pub(super) kept: &'a [String],
}

/// Something for people.
#[derive(Serialize)]
pub(super) struct Message {
    pub(super) message: String,
}

/// A subject came or went.
#[derive(Serialize)]
pub(super) struct Change<'a> {
    pub(super) subject: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<&'a str>,
}
