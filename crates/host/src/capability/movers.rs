// SPDX-License-Identifier: Apache-2.0
//! Rows for the ways to move memory.

use super::facts::{Facts, Syscall};
use super::row::{Capability, Group, State};
use crate::cgroup::Version;

/// Movers by preference: the first usable one is the default.
pub(super) const PREFERENCE: [&str; 1] = ["pageout"];

pub(super) fn lines(facts: &Facts) -> Vec<Capability> {
    vec![
        pageout(facts),
        cold(facts),
        memory_reclaim(facts),
        page_cache(facts),
    ]
}

fn line(name: &'static str, state: State, found: impl Into<String>) -> Capability {
    Capability::new(Group::Mover, name, state, found)
}

/// Why process_madvise cannot be used on other processes; `None` if it can.
fn madvise_obstacle(facts: &Facts, name: &'static str) -> Option<Capability> {
    if !facts.has(Syscall::ProcessMadvise) || !facts.has(Syscall::PidfdOpen) {
        let found = "the kernel cannot advise on memory of other processes";
        return Some(line(name, State::Missing, found).advise("needs Linux 5.10"));
    }
    let missing = facts
        .privileges
        .missing(&["CAP_SYS_NICE", "CAP_SYS_PTRACE"]);
    if missing.contains(&"CAP_SYS_NICE") {
        let found = format!("not permitted without {}", missing.join(" "));
        return Some(line(name, State::Missing, found).advise("run as root"));
    }
    None
}

fn pageout(facts: &Facts) -> Capability {
    let name = "pageout";
    if let Some(obstacle) = madvise_obstacle(facts, name) {
        return obstacle.since("5.10");
    }
    let missing = facts.privileges.missing(&["CAP_SYS_PTRACE"]);
    if facts.swap_free_bytes() == 0 {
        let found = "pages of files only: anonymous memory needs swap space, and none is free";
        return line(name, State::Limited, found)
            .since("5.10")
            .advise("see swap above");
    }
    if missing.is_empty() {
        let found = "exact ranges of any process, to swap or back to their files";
        return line(name, State::Available, found).since("5.10");
    }
    line(name, State::Limited, "exact ranges of your own processes")
        .since("5.10")
        .advise("CAP_SYS_PTRACE reaches those of others")
}

fn cold(facts: &Facts) -> Capability {
    let name = "cold";
    if let Some(obstacle) = madvise_obstacle(facts, name) {
        return obstacle.since("5.10");
    }
    line(
        name,
        State::Available,
        "moves exact ranges to the end of the kernel's LRU, without I/O",
    )
    .since("5.10")
}

fn memory_reclaim(facts: &Facts) -> Capability {
    let name = "memory_reclaim";
    let since = "5.19";
    match &facts.memory_hierarchy {
        Ok(hierarchy) if hierarchy.version == Version::V1 => {
            line(name, State::Missing, "cgroup v1 has no memory.reclaim")
                .since(since)
                .advise("boot with cgroup_no_v1=memory, or systemd.unified_cgroup_hierarchy=1")
        }
        Ok(_) if facts.has_memory_reclaim => line(
            name,
            State::Available,
            "bytes of a cgroup, chosen by the kernel",
        )
        .since(since),
        Ok(_) => line(name, State::Missing, "no cgroup has memory.reclaim")
            .since(since)
            .advise("needs Linux 5.19"),
        Err(_) => line(name, State::Missing, "no cgroup accounts memory")
            .since(since)
            .advise("see cgroup above"),
    }
}

fn page_cache(facts: &Facts) -> Capability {
    let name = "page_cache";
    match &facts.page_cache {
        Ok(_) if !facts.has(Syscall::Cachestat) => line(
            name,
            State::Missing,
            "the kernel does not show which pages of a file are clean (cachestat)",
        )
        .advise("needs Linux 6.5; in a container, also a seccomp profile that allows cachestat"),
        Ok(_) => line(
            name,
            State::Available,
            "drops clean pages of files that can be opened (fadvise): reclaim --files",
        ),
        Err(_) => line(
            name,
            State::Missing,
            "cold pages of files are not known here",
        )
        .advise("see the access source of this name"),
    }
    .since("6.5")
}
