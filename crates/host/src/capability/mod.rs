// SPDX-License-Identifier: Apache-2.0
//! What this kernel, this cgroup layout and these privileges allow: one table.
//!
//! Everything that differs between machines is found out here, by looking and by trying, and each
//! line says what was found, since which kernel it exists, and what to do when it is missing.

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
    /// loaded (some 0.1 s), and if nobody uses DAMON, a monitor is set up that is never started.
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
