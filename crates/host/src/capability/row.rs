// SPDX-License-Identifier: Apache-2.0
//! One row of the table of capabilities.

use serde::Serialize;

/// What a capability belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// What kernel this is, and what it lets us do.
    Kernel,
    /// Memory, cgroups, swap, pressure.
    Machine,
    /// Ways to learn what is accessed.
    Source,
    /// Ways to move memory.
    Mover,
}

impl Group {
    /// All groups in the order of reports.
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Machine, Self::Source, Self::Mover];

    /// The name in JSON and CSV.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Machine => "machine",
            Self::Source => "source",
            Self::Mover => "mover",
        }
    }
}

/// How far something is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It works.
    Available,
    /// It works in part; `found` says which.
    Limited,
    /// It does not work here.
    Missing,
}

impl State {
    /// The name in JSON and CSV.
    pub fn name(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// What it belongs to.
    pub group: Group,
    /// Its name, unique within the group.
    pub name: &'static str,
    /// Whether it can be used.
    pub state: State,
    /// Whether agewise uses it when nothing else is asked for.
    pub chosen: bool,
    /// The first kernel version that has it, for what depends on one.
    pub since: Option<&'static str>,
    /// What was found, or why it is not available.
    pub found: String,
    /// What to do about it, when something can be done.
    pub advice: Option<String>,
}

impl Capability {
    pub(crate) fn new(
        group: Group,
        name: &'static str,
        state: State,
        found: impl Into<String>,
    ) -> Self {
        let found = found.into();
        Self {
            group,
            name,
            state,
            chosen: false,
            since: None,
            found,
            advice: None,
        }
    }

    pub(crate) fn since(mut self, version: &'static str) -> Self {
        self.since = Some(version);
        self
    }

    /// Advice is given where something is not fully there.
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        if self.state != State::Available {
            self.advice = Some(advice.into());
        }
        self
    }

    /// Whether it can be used at all.
    pub fn is_usable(&self) -> bool {
        self.state != State::Missing
    }
}
