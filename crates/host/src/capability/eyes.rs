// SPDX-License-Identifier: Apache-2.0
//! Ways to learn what is accessed.

use super::facts::Facts;
use super::{Capability, Group, State};
use crate::damon::{Availability, Offer};
use crate::eye::EyeError;

/// Which is used when none is asked for: the first that works.
pub(super) const PREFERENCE: [&str; 2] = ["pagewalk", "pagemap"];

pub(super) fn lines(facts: &Facts) -> Vec<Capability> {
    vec![
        pagewalk(facts),
        pagemap(facts),
        page_faults(facts),
        lru_gen(facts),
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
            "the kernel's own generations, by cgroup and node: report --source lru_gen",
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

fn damon(facts: &Facts) -> Capability {
    let name = "damon";
    let missing = |found: String, advice: &str| line(name, State::Missing, found).advise(advice);
    match &facts.damon {
        Availability::Absent { is_built: false } => missing(
            "no /sys/kernel/mm/damon".to_owned(),
            "use a kernel built with CONFIG_DAMON_SYSFS=y",
        ),
        Availability::Absent { is_built: true } => missing(
            "DAMON is built in, without its interface in /sys/kernel/mm/damon".to_owned(),
            "use a kernel built with CONFIG_DAMON_SYSFS=y",
        ),
        Availability::Unreadable(error) => missing(error.to_string(), "run as root"),
        Availability::InUse { owner, operations } => {
            let offers = match &operations[..] {
                [] => String::new(),
                words => format!("; it offers {}", words.join(", ")),
            };
            missing(
                format!("in use by {owner}, and it has one owner at a time{offers}"),
                "leave it to them, or stop it where it was started",
            )
        }
        Availability::Free(offer) => damon_offers(facts, name, offer),
    }
    .since("5.18")
}

/// What can be done with a DAMON that nobody uses.
fn damon_offers(facts: &Facts, name: &'static str, offer: &Offer) -> Capability {
    let offers = match &offer.operations[..] {
        [] => "nothing that can be watched".to_owned(),
        words => words.join(", "),
    };
    let offers = format!("offers {offers}");
    if !offer.has_regions {
        let found = format!("{offers}, but not to read the regions of a monitor");
        return line(name, State::Missing, found).advise("needs Linux 6.2");
    }
    let by_process = offer.has("vaddr");
    let by_frame = offer.has("paddr") && facts.has_frame_owners;
    let found = format!("{offers}: regions of adaptive size, by sampling");
    let limited = |works: &str| line(name, State::Limited, format!("{found}: {works}"));
    match (by_process, by_frame) {
        (true, true) if offer.has_target_filter => {
            let works = "--pid, --cgroup and --all";
            line(name, State::Available, format!("{found}: {works}"))
        }
        (true, _) if !offer.has_target_filter => limited(match by_frame {
            true => "--pid and --cgroup of one process, and --all",
            false => "--pid and --cgroup of one process, not --all",
        })
        .advise("several processes need Linux 6.6"),
        (true, _) => limited("--pid and --cgroup, not --all").advise(by_frame_advice(offer)),
        (false, true) => limited("--cgroup and --all, by physical memory, not --pid").advise(
            "processes need a kernel built with CONFIG_DAMON_VADDR=y; --source pagewalk sees them",
        ),
        (false, false) if offer.has("paddr") => line(name, State::Missing, offers)
            .advise("use a kernel built with CONFIG_DAMON_VADDR=y, or CONFIG_PROC_PAGE_MONITOR=y"),
        (false, false) => line(name, State::Missing, offers)
            .advise("use a kernel built with CONFIG_DAMON_VADDR=y and CONFIG_DAMON_PADDR=y"),
    }
}

/// What helps where physical memory cannot be watched.
fn by_frame_advice(offer: &Offer) -> &'static str {
    match offer.has("paddr") {
        true => {
            "--all needs a kernel built with CONFIG_PROC_PAGE_MONITOR=y and CONFIG_MEMCG=y: it has \
             no /proc/kpagecgroup"
        }
        false => "--all needs a kernel built with CONFIG_DAMON_PADDR=y",
    }
}
