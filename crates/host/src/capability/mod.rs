// SPDX-License-Identifier: Apache-2.0
//! What the kernel, the cgroup layout and the privileges of this process allow, in one table.
//!
//! Everything that differs between machines is found out here, by looking and by trying. Each row
//! states what was found, since which kernel version it exists, and what to do if it is missing.

pub(crate) mod facts;
mod kernel;
mod machine;
mod movers;
pub(crate) mod row;
mod version;

use crate::source;

pub use facts::{Calls, LiveCalls, Privileges, Syscall, System, WalkerFacts};
pub use row::{Capability, Group, State};
pub use version::KernelVersion;

/// The whole table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    lines: Vec<Capability>,
}

impl Capabilities {
    /// Finds out what this machine can do. Some things have to be tried: the page-table walker is
    /// loaded (about 0.1 s), and if nobody uses DAMON, a monitor is set up but never started. Both
    /// are removed before this returns.
    pub fn of_this_machine() -> Self {
        Self::probe(&System::default())
    }

    /// Finds out what `system` supports.
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

    /// All rows, by group.
    pub fn lines(&self) -> &[Capability] {
        &self.lines
    }

    /// The row with this name.
    pub fn get(&self, group: Group, name: &str) -> Option<&Capability> {
        self.lines
            .iter()
            .find(|line| line.group == group && line.name == name)
    }

    /// The access source used by default; `None` if nothing can be observed.
    pub fn source(&self) -> Option<&Capability> {
        self.chosen(Group::Source)
    }

    /// The mover used by default; `None` if nothing can be moved.
    pub fn mover(&self) -> Option<&Capability> {
        self.chosen(Group::Mover)
    }

    fn chosen(&self, group: Group) -> Option<&Capability> {
        self.lines
            .iter()
            .find(|line| line.group == group && line.chosen)
    }
}

/// Marks the first usable row of `preference` as chosen.
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
