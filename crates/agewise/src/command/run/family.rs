// SPDX-License-Identifier: Apache-2.0
//! All descendants of a process. agewise is a subreaper, so a process whose parent has exited stays
//! among its descendants.

use std::collections::HashMap;

use agewise_host::process::{ProcessKind, Stat};
use agewise_host::root::ProcRoot;

/// The descendants of a process at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Family {
    /// Descendants that have memory, in ascending order of pid.
    pub members: Vec<u32>,
    /// Direct children that have exited and were not yet waited for.
    pub zombies: Vec<u32>,
}

impl Family {
    /// Finds the descendants of `ancestor`. Processes that exit meanwhile are left out.
    pub fn of(root: &ProcRoot, ancestor: u32) -> Self {
        let stats: Vec<(u32, Stat)> = root
            .pids()
            .unwrap_or_default()
            .into_iter()
            .filter_map(|pid| {
                let path = root.of(pid).join("stat");
                let line = std::fs::read(&path).ok()?;
                Some((pid, Stat::parse(&path, line).ok()?))
            })
            .collect();
        Self::among(&stats, ancestor)
    }

    fn among(stats: &[(u32, Stat)], ancestor: u32) -> Self {
        let mut children: HashMap<u32, Vec<&(u32, Stat)>> = HashMap::new();
        for entry in stats {
            children.entry(entry.1.ppid).or_default().push(entry);
        }
        let mut family = Self::default();
        let mut parents = vec![ancestor];
        // Each parent is removed when visited, so the loop ends whatever /proc contains.
        while let Some(parent) = parents.pop() {
            for (pid, stat) in children.remove(&parent).unwrap_or_default() {
                match stat.kind {
                    _ if stat.outlives_leader() => family.members.push(*pid),
                    ProcessKind::User => family.members.push(*pid),
                    ProcessKind::Zombie if parent == ancestor => family.zombies.push(*pid),
                    ProcessKind::Zombie | ProcessKind::Exiting | ProcessKind::KernelThread => {}
                }
                parents.push(*pid);
            }
        }
        family.members.sort_unstable();
        family.zombies.sort_unstable();
        family
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn stat(pid: u32, ppid: u32, state: char) -> (u32, Stat) {
        let text = format!(
            "{pid} (x) {state} {ppid} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0 0 0 0 \
             0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"
        );
        (pid, Stat::parse(Path::new("stat"), &text).expect("stat"))
    }

    #[test]
    fn descendants_and_nobody_else() {
        let stats = [
            stat(1, 0, 'S'),
            stat(10, 1, 'S'),
            stat(11, 10, 'S'),
            stat(12, 11, 'R'),
            stat(20, 1, 'S'),
        ];
        let family = Family::among(&stats, 10);
        assert_eq!(
            family,
            Family {
                members: vec![11, 12],
                zombies: vec![]
            }
        );
    }

    #[test]
    fn only_our_own_zombies_are_ours_to_reap() {
        let stats = [
            stat(10, 1, 'S'),
            stat(11, 10, 'Z'),
            stat(12, 10, 'S'),
            stat(13, 12, 'Z'),
        ];
        let family = Family::among(&stats, 10);
        assert_eq!(
            family,
            Family {
                members: vec![12],
                zombies: vec![11]
            }
        );
    }

    #[test]
    fn a_circle_ends() {
        let stats = [stat(10, 12, 'S'), stat(11, 10, 'S'), stat(12, 11, 'S')];
        assert_eq!(Family::among(&stats, 10).members, vec![10, 11, 12]);
    }
}
