// SPDX-License-Identifier: Apache-2.0
//! Memory pressure of cgroups: the share of time in which some, or all, of their tasks stall.
//!
//! Operations start in order of time and say how long they stalled, so both totals can be kept
//! exactly: `some` is the union of the intervals; `full` grows, at each new interval, by the part
//! of it that the current intervals of all other tasks cover too.

/// Pressure of one cgroup (`memory.pressure`), times in ns.
#[derive(Clone, Debug, Default)]
pub struct Pressure {
    /// Time in which at least one task stalled.
    pub some_ns: u64,
    /// Time in which all tasks stalled.
    pub full_ns: u64,
    some_until_ns: u64,
    /// The last stall of each task: start and end.
    last: Vec<(u32, u64, u64)>,
}

impl Pressure {
    /// Adds a stall of `task`, one of `tasks` in the cgroup.
    pub fn add(&mut self, task: u32, tasks: usize, start_ns: u64, end_ns: u64) {
        if end_ns <= start_ns {
            return;
        }
        self.some_ns += end_ns.saturating_sub(start_ns.max(self.some_until_ns));
        self.some_until_ns = self.some_until_ns.max(end_ns);
        match self.last.iter_mut().find(|(id, ..)| *id == task) {
            Some(entry) => *entry = (task, start_ns, end_ns),
            None => self.last.push((task, start_ns, end_ns)),
        }
        let covering = self.last.iter().filter(|(_, _, end)| *end > start_ns);
        if covering.clone().count() >= tasks {
            let until_ns = covering.map(|(_, _, end)| *end).min().unwrap_or(start_ns);
            self.full_ns += until_ns - start_ns;
        }
    }

    /// Forgets a task that ended.
    pub fn forget(&mut self, task: u32) {
        self.last.retain(|(id, ..)| *id != task);
    }
}

/// Pressure of all cgroups, indexed as they are.
#[derive(Clone, Debug, Default)]
pub struct Stalls {
    /// One a cgroup.
    pub groups: Vec<Pressure>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_is_the_union_and_full_the_intersection() {
        let mut pressure = Pressure::default();
        pressure.add(1, 2, 0, 100);
        pressure.add(2, 2, 60, 200);
        pressure.add(1, 2, 150, 160);
        assert_eq!((pressure.some_ns, pressure.full_ns), (200, 50));
    }

    #[test]
    fn one_task_alone_stalls_fully() {
        let mut pressure = Pressure::default();
        pressure.add(1, 1, 10, 20);
        pressure.add(1, 1, 30, 35);
        pressure.add(1, 1, 40, 40);
        assert_eq!((pressure.some_ns, pressure.full_ns), (15, 15));
    }
}
