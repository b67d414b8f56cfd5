// SPDX-License-Identifier: Apache-2.0
//! One row of the capability table.

use serde::Serialize;

/// The group a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// The kernel and what it permits.
    Kernel,
    /// Memory, cgroups, swap, pressure.
    Machine,
    /// Ways to observe accesses.
    Source,
    /// Ways to move memory.
    Mover,
}

impl Group {
    /// All groups in report order.
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Machine, Self::Source, Self::Mover];
}

/// How far a capability is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It works.
    Available,
    /// It works partly; `found` explains.
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

/// One row of the capability table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// The group it belongs to.
    pub group: Group,
    /// Its name, unique within the group.
    pub name: &'static str,
    /// Whether it can be used.
    pub state: State,
    /// Whether agewise uses it by default.
    pub chosen: bool,
    /// The first kernel version that has it, if it depends on the version.
    pub since: Option<&'static str>,
    /// What was found, or why it is not available.
    pub found: String,
    /// What can be done about it, if anything.
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

    /// Sets the advice, unless the capability is fully available.
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        if self.state != State::Available {
            self.advice = Some(advice.into());
        }
        self
    }

    /// Whether it can be used at least partly.
    pub fn is_usable(&self) -> bool {
        self.state != State::Missing
    }
}
