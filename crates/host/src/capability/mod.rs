// SPDX-License-Identifier: Apache-2.0
//! What this kernel, this cgroup layout and these privileges allow: one table.
//!
//! Everything that differs between machines is found out here, by looking and by trying, and each
//! line says what was found, since which kernel it exists, and what to do when it is missing.

mod facts;
mod kernel;
mod machine;
mod movers;
mod version;

use serde::Serialize;

use crate::source;

pub(crate) use facts::Facts;
pub use facts::{Calls, LiveCalls, Privileges, Syscall, System, WalkerFacts};
pub use version::KernelVersion;

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

/// The whole table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    lines: Vec<Capability>,
}

impl Capabilities {
    /// Finds out what this machine can do. Tries what has to be tried: the page-table walker is
    /// loaded (some 0.1 s), and where nobody uses DAMON, a monitor is set up that is never started.
    /// Both are gone again when this returns.
    pub fn of_this_machine() -> Self {
        Self::probe(&System::default())
    }

    /// Finds out what `system` can do.
    pub fn probe(system: &System) -> Self {
        let facts = facts::Facts::gather(system);
        let mut lines = kernel::lines(&facts);
        lines.extend(machine::lines(&facts));
        lines.extend(source::capabilities(&facts));
        lines.extend(movers::lines(&facts));
        choose(&mut lines, Group::Source, &source::preference());
        choose(&mut lines, Group::Mover, &movers::PREFERENCE);
        Self { lines }
    }

    /// All lines, by group.
    pub fn lines(&self) -> &[Capability] {
        &self.lines
    }

    /// One line.
    pub fn get(&self, group: Group, name: &str) -> Option<&Capability> {
        self.lines
            .iter()
            .find(|line| line.group == group && line.name == name)
    }

    /// The access source used unless another is asked for; `None` when nothing can be observed.
    pub fn source(&self) -> Option<&Capability> {
        self.chosen(Group::Source)
    }

    /// The mover used unless another is asked for; `None` when nothing can be moved.
    pub fn mover(&self) -> Option<&Capability> {
        self.chosen(Group::Mover)
    }

    fn chosen(&self, group: Group) -> Option<&Capability> {
        self.lines
            .iter()
            .find(|line| line.group == group && line.chosen)
    }
}

/// Marks the first of `preference` that can be used.
fn choose(lines: &mut [Capability], group: Group, preference: &[&str]) {
    for name in preference {
        let line = lines
            .iter_mut()
            .find(|line| line.group == group && line.name == *name);
        if let Some(line) = line.filter(|line| line.is_usable()) {
            line.chosen = true;
            return;
        }
    }
}

#[cfg(test)]
mod tests;
