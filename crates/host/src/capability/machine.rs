// SPDX-License-Identifier: Apache-2.0
//! Memory, cgroups, swap, pressure, KVM guests, and other users of accessed bits.

use agewise_policy::units::bytes_text;

use super::facts::Facts;
use super::row::{Capability, Group, State};
use crate::cgroup::{CgroupError, Layout, Version};
use crate::damon::{Availability, Owner};

pub(super) fn lines(facts: &Facts) -> Vec<Capability> {
    let mut lines = vec![
        memory(facts),
        cgroup(facts),
        swap(facts),
        psi(facts),
        thp(facts),
        accessed_bits(facts),
    ];
    lines.extend(guests(facts));
    lines
}

/// `None` if there are no guests.
fn guests(facts: &Facts) -> Option<Capability> {
    let pids: Vec<_> = facts.guest_hosts.iter().map(u32::to_string).collect();
    if pids.is_empty() {
        return None;
    }
    let found = format!(
        "processes {} run KVM guests: what guests access is not seen, and nothing moves their \
         memory unless asked to (--guests, or `guests` of a rule)",
        pids.join(", ")
    );
    Some(line("guests", State::Limited, found))
}

fn line(name: &'static str, state: State, found: impl Into<String>) -> Capability {
    Capability::new(Group::Machine, name, state, found)
}

fn memory(facts: &Facts) -> Capability {
    match &facts.meminfo {
        Ok(info) => {
            let nodes = if facts.nodes == 1 { "node" } else { "nodes" };
            let found = format!(
                "{} total, {} available, {} NUMA {nodes}",
                bytes_text(info.total_bytes),
                bytes_text(info.available_bytes),
                facts.nodes
            );
            line("memory", State::Available, found)
        }
        Err(error) => line("memory", State::Missing, error.to_string()).advise("mount /proc"),
    }
}

fn cgroup(facts: &Facts) -> Capability {
    let layout = facts.layout.name();
    match &facts.memory_hierarchy {
        Ok(hierarchy) => {
            let version = match hierarchy.version {
                Version::V1 => "v1",
                Version::V2 => "v2",
            };
            let found = format!(
                "{layout}: memory is {version} at {}",
                hierarchy.root.display()
            );
            line("cgroup", State::Available, found)
        }
        Err(error) => {
            let found = format!("{layout}: memory is not accounted");
            let advice = match error {
                CgroupError::NoMemoryController {
                    layout: Layout::None,
                } => "mount -t cgroup2 cgroup2 /sys/fs/cgroup; until then, give processes by --pid"
                    .to_owned(),
                CgroupError::NoMemoryController { .. } => {
                    "boot without cgroup_disable=memory; until then, give processes by --pid"
                        .to_owned()
                }
                other => other.to_string(),
            };
            line("cgroup", State::Missing, found).advise(advice)
        }
    }
}

fn swap(facts: &Facts) -> Capability {
    if facts.swaps.is_empty() {
        return line(
            "swap",
            State::Missing,
            "none: only pages of files can leave memory",
        )
        .advise("swapon a device or file; zram needs no disk (agewise demo --zram makes its own)");
    }
    let each = facts.swaps.iter().map(|(area, zram)| {
        let path = area.path.display();
        let free = format!(
            "{} of {} free",
            bytes_text(area.free_bytes()),
            bytes_text(area.size_bytes)
        );
        match zram {
            Some(zram) if zram.original_bytes > 0 => format!(
                "{path} {free}, zram {}, {} kept in {}",
                zram.algorithm,
                bytes_text(zram.original_bytes),
                bytes_text(zram.memory_bytes)
            ),
            Some(zram) => format!("{path} {free}, zram {}", zram.algorithm),
            None => format!("{path} {free}"),
        }
    });
    let found = each.collect::<Vec<_>>().join("; ");
    let state = if facts.swap_free_bytes() == 0 {
        State::Limited
    } else {
        State::Available
    };
    line("swap", state, found).advise("all swap space is in use: add some")
}

fn psi(facts: &Facts) -> Capability {
    if !facts.has_psi {
        return line(
            "psi",
            State::Missing,
            "the kernel does not say how long work waits for memory",
        )
        .since("4.20")
        .advise("boot with psi=1, or use a kernel built with CONFIG_PSI=y");
    }
    let per_cgroup = match (&facts.unified, &facts.memory_hierarchy) {
        (Some(_), Ok(memory)) if memory.version == Version::V2 => "machine and cgroups",
        (Some(_), _) => "machine, and cgroups of the v2 hierarchy",
        (None, _) => "machine only: cgroups have it in v2",
    };
    line("psi", State::Available, per_cgroup).since("4.20")
}

fn thp(facts: &Facts) -> Capability {
    match facts.thp.as_deref() {
        Some(mode) => line(
            "thp",
            State::Available,
            format!("transparent huge pages: {mode}"),
        ),
        None => line(
            "thp",
            State::Missing,
            "no transparent huge pages in this kernel",
        ),
    }
    .since("2.6.38")
}

/// Accessed bits have no owner: a program that clears them hides accesses from all others.
fn accessed_bits(facts: &Facts) -> Capability {
    let name = "accessed_bits";
    let shared = |found: String, advice: &str| line(name, State::Limited, found).advise(advice);
    let owner = match &facts.damon {
        Availability::Unreadable(error) => Err(error),
        Availability::InUse { owner, .. } => Ok(owner),
        Availability::Absent { .. } | Availability::Free(_) => Ok(&Owner::Nobody),
    };
    match owner {
        Err(error) => shared(
            format!("cannot tell what clears them: {error}"),
            "run as root",
        ),
        Ok(Owner::Module { name: module }) => shared(
            format!(
                "the kernel module {module} clears them too: pages may look older than they are"
            ),
            &format!("echo N > /sys/module/{module}/parameters/enabled, if it is yours to stop"),
        ),
        Ok(Owner::Sysfs { running, .. }) if !running.is_empty() => {
            let pids: Vec<String> = running.iter().map(u32::to_string).collect();
            let whose = match &facts.damon_operations[..] {
                [] => String::new(),
                operations => format!(" on {}", operations.join(", ")),
            };
            shared(
                format!(
                    "DAMON runs (kdamond pid {}{whose}) and clears them too, a few regions at a \
                     time; files and huge pages are read between looks as well, but some pages may \
                     still look older than they are",
                    pids.join(", ")
                ),
                "the program that set up /sys/kernel/mm/damon/admin can stop it; agewise does not",
            )
        }
        Ok(_) => line(
            name,
            State::Available,
            "no DAMON runs that would clear them",
        ),
    }
}
