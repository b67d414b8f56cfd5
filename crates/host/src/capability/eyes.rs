// SPDX-License-Identifier: Apache-2.0
//! Ways to learn what is accessed.

use super::facts::Facts;
use super::{Capability, Group, State};
use crate::damon::Owner;
use crate::eye::EyeError;

/// Which is used when none is asked for: the first that works.
pub(super) const PREFERENCE: [&str; 2] = ["pagewalk", "pagemap"];

pub(super) fn lines(facts: &Facts) -> Vec<Capability> {
    vec![
        pagewalk(facts),
        pagemap(facts),
        page_faults(facts),
        lru_gen(facts),
        idle_page(facts),
        damon(facts),
    ]
}

fn line(name: &'static str, state: State, found: impl Into<String>) -> Capability {
    Capability::new(Group::Eye, name, state, found)
}

fn pagewalk(facts: &Facts) -> Capability {
    let name = "pagewalk";
    match &facts.walker {
        Ok(walker) => {
            let base = if walker.direct_map_by_symbol {
                "by symbol"
            } else {
                "by search"
            };
            let found = format!(
                "every page of every process; BPF {} program, {}-level tables, direct map {base}",
                walker.flavour, walker.levels
            );
            line(name, State::Available, found)
        }
        Err(error) => refused(facts, name, error, "Linux 5.17 on x86-64"),
    }
    .since("5.17")
}

fn page_faults(facts: &Facts) -> Capability {
    let name = "page_faults";
    match &facts.faults {
        Ok(()) => line(
            name,
            State::Available,
            "first touches and refaults with time and order, by BPF tracepoint",
        ),
        Err(error) => refused(facts, name, error, "Linux 5.8 on x86-64"),
    }
    .since("5.8")
}

/// A BPF program that was not taken.
fn refused(facts: &Facts, name: &'static str, error: &EyeError, needs: &str) -> Capability {
    let advice = match error {
        EyeError::NoPrivilege { hint, .. } => (*hint).to_owned(),
        _ if !facts.has_btf => "use a kernel built with CONFIG_DEBUG_INFO_BTF=y".to_owned(),
        _ if facts.lockdown.as_deref() == Some("confidentiality") => {
            "boot with lockdown=integrity or none".to_owned()
        }
        _ => format!("see the kernel lines above; needs {needs}"),
    };
    let found = match error {
        // The hint is the advice.
        EyeError::NoPrivilege { what, .. } => format!("{what}: not permitted"),
        other => other.to_string(),
    };
    line(name, State::Missing, found).advise(advice)
}

fn pagemap(facts: &Facts) -> Capability {
    let name = "pagemap";
    if !facts.has_clear_refs {
        return line(name, State::Missing, "no /proc/PID/pagemap and clear_refs")
            .since("2.6.25")
            .advise("use a kernel built with CONFIG_PROC_PAGE_MONITOR=y");
    }
    let whose = match facts.privileges.missing(&["CAP_SYS_PTRACE"])[..] {
        [] => "all processes",
        _ => "your own processes",
    };
    let found = format!("{whose}, a mapping at a time: coarser, and slower, than page tables");
    line(name, State::Limited, found).since("2.6.25")
}

fn lru_gen(facts: &Facts) -> Capability {
    let name = "lru_gen";
    match &facts.lru_gen {
        Ok(None) => line(name, State::Missing, "the kernel has no multi-gen LRU")
            .advise("use a kernel built with CONFIG_LRU_GEN=y"),
        Ok(Some(features)) if !features.core => line(
            name,
            State::Missing,
            "the multi-gen LRU is built in and switched off",
        )
        .advise("echo y > /sys/kernel/mm/lru_gen/enabled"),
        Ok(Some(_)) if facts.lru_gen_debugfs => line(
            name,
            State::Available,
            "the kernel's own generations, by cgroup and node: report --eye lru_gen",
        ),
        Ok(Some(_)) if facts.debugfs_mounted => line(
            name,
            State::Missing,
            "/sys/kernel/debug/lru_gen cannot be seen",
        )
        .advise("run as root"),
        Ok(Some(_)) => line(name, State::Missing, "debugfs is not mounted")
            .advise("mount -t debugfs debugfs /sys/kernel/debug"),
        Err(error) => line(name, State::Missing, error.to_string()).advise("run as root"),
    }
    .since("6.1")
}

fn idle_page(facts: &Facts) -> Capability {
    let found = "a bit for every page frame; clears accessed bits as it looks";
    if facts.has_page_idle {
        return line("idle_page", State::Available, found).since("4.3");
    }
    line(
        "idle_page",
        State::Missing,
        "no /sys/kernel/mm/page_idle/bitmap",
    )
    .since("4.3")
    .advise("use a kernel built with CONFIG_IDLE_PAGE_TRACKING=y")
}

fn damon(facts: &Facts) -> Capability {
    let name = "damon";
    if !facts.damon_exists {
        return line(name, State::Missing, "no /sys/kernel/mm/damon")
            .since("5.18")
            .advise("use a kernel built with CONFIG_DAMON_SYSFS=y, and run as root");
    }
    match &facts.damon_owner {
        Ok(Owner::Nobody) => line(
            name,
            State::Available,
            "regions of adaptive size, by sampling: report --eye damon",
        ),
        Ok(owner) => line(
            name,
            State::Missing,
            format!("in use by {owner}; it has one owner at a time"),
        )
        .advise("leave it to them, or stop it where it was started"),
        Err(error) => line(name, State::Missing, error.to_string()).advise("run as root"),
    }
    .since("5.18")
}
