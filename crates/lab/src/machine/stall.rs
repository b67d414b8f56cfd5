// SPDX-License-Identifier: Apache-2.0
//! Memory pressure of cgroups: the share of time in which some, or all, of their tasks stall.
//!
//! Operations report when they stalled: `some` is the union of the intervals; `full` grows, at each
//! new interval, by the part of it that the last intervals of all other tasks cover too. The
//! operations of one task come in order of time, those of several in turns of at most 100 us: an
//! interval before the end of another task's earlier turn adds nothing to `some`.

/// Windows of the averages, in s.
const WINDOWS_S: [f64; 3] = [10.0, 60.0, 300.0];

/// An exponentially decaying sum of stalled time, as a share of its window.
#[derive(Clone, Copy, Debug, Default)]
struct Decayed {
    share: f64,
    since_ns: u64,
}

impl Decayed {
    fn at(&self, now_ns: u64, window_s: f64) -> f64 {
        let elapsed_s = now_ns.saturating_sub(self.since_ns) as f64 / 1e9;
        self.share * (-elapsed_s / window_s).exp()
    }

    fn add(&mut self, now_ns: u64, stalled_ns: u64, window_s: f64) {
        self.share = self.at(now_ns, window_s) + stalled_ns as f64 / 1e9 / window_s;
        self.since_ns = self.since_ns.max(now_ns);
    }
}

/// Pressure of one cgroup (`memory.pressure`); times in ns.
#[derive(Clone, Debug, Default)]
pub struct Pressure {
    /// Time in which at least one task stalled.
    pub some_ns: u64,
    /// Time in which all tasks stalled.
    pub full_ns: u64,
    some_until_ns: u64,
    some_decayed: [Decayed; 3],
    full_decayed: [Decayed; 3],
    /// Last stall of each task: task, start and end.
    last: Vec<(u32, u64, u64)>,
}

impl Pressure {
    /// Adds a stall of `task`, one of the `tasks` tasks in the cgroup.
    pub fn add(&mut self, task: u32, tasks: usize, start_ns: u64, end_ns: u64) {
        if end_ns <= start_ns {
            return;
        }
        let some_ns = end_ns.saturating_sub(start_ns.max(self.some_until_ns));
        self.some_ns += some_ns;
        for (decayed, window_s) in self.some_decayed.iter_mut().zip(WINDOWS_S) {
            decayed.add(start_ns, some_ns, window_s);
        }
        self.some_until_ns = self.some_until_ns.max(end_ns);
        match self.last.iter_mut().find(|(id, ..)| *id == task) {
            Some(entry) => *entry = (task, start_ns, end_ns),
            None => self.last.push((task, start_ns, end_ns)),
        }
        let meets = |&&(_, start, end): &&(u32, u64, u64)| end > start_ns && start < end_ns;
        let covering = self.last.iter().filter(meets);
        if covering.clone().count() >= tasks {
            let from_ns = covering.clone().map(|(_, start, _)| *start).max();
            let until_ns = covering.map(|(_, _, end)| *end).min();
            let full_ns = until_ns.unwrap_or(0).saturating_sub(from_ns.unwrap_or(0));
            self.full_ns += full_ns;
            for (decayed, window_s) in self.full_decayed.iter_mut().zip(WINDOWS_S) {
                decayed.add(start_ns, full_ns, window_s);
            }
        }
    }

    /// Averages of `some` and `full` over 10, 60 and 300 s in percent: decayed sums of stalled
    /// time. A stall in progress counts up to its end.
    ///
    /// The kernel averages samples of 2 s; here each stall decays from its start, which gives the
    /// same result if stalls are short compared with the window.
    pub fn averages(&self, now_ns: u64) -> [[f64; 3]; 2] {
        [&self.some_decayed, &self.full_decayed].map(|kind| {
            std::array::from_fn(|index| {
                let share = kind[index].at(now_ns, WINDOWS_S[index]);
                (share * 100.0).min(100.0)
            })
        })
    }

    /// Forgets a task that ended.
    pub fn forget(&mut self, task: u32) {
        self.last.retain(|(id, ..)| *id != task);
    }
}

/// Pressure of all cgroups, indexed by memcg id.
#[derive(Clone, Debug, Default)]
pub struct Stalls {
    /// Pressure of each cgroup.
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
    fn tasks_that_take_turns_stall_together_only_where_their_times_meet() {
        let mut pressure = Pressure::default();
        pressure.add(1, 2, 90, 95);
        pressure.add(2, 2, 5, 15);
        assert_eq!((pressure.some_ns, pressure.full_ns), (5, 0));
        pressure.add(2, 2, 80, 93);
        assert_eq!((pressure.some_ns, pressure.full_ns), (5, 3));
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
