// SPDX-License-Identifier: Apache-2.0
//! Rows about the kernel and what it permits.

use super::facts::{Facts, Syscall};
use super::row::{Capability, Group, State};
use crate::access::PAGE_BYTES;

pub(super) fn lines(facts: &Facts) -> Vec<Capability> {
    vec![
        version(facts),
        arch(facts),
        privileges(facts),
        lockdown(facts),
        btf(facts),
        bpf(facts),
        syscall(
            facts,
            Syscall::PidfdOpen,
            "pidfd",
            "5.3",
            "a reused pid cannot be acted upon",
        ),
        syscall(
            facts,
            Syscall::ProcessMadvise,
            "process_madvise",
            "5.10",
            "memory of other processes can be moved, with CAP_SYS_NICE and CAP_SYS_PTRACE",
        ),
        syscall(
            facts,
            Syscall::PagemapScan,
            "pagemap_scan",
            "6.7",
            "what is present or swapped is read in ranges",
        ),
    ]
}

fn line(name: &'static str, state: State, found: impl Into<String>) -> Capability {
    Capability::new(Group::Kernel, name, state, found)
}

fn version(facts: &Facts) -> Capability {
    let Some(version) = facts.version else {
        let found = format!("cannot make sense of the release '{}'", facts.release);
        return line("version", State::Limited, found);
    };
    let (state, advice) = if version.is_at_least(5, 17) {
        (State::Available, "")
    } else if version.is_at_least(5, 10) {
        (State::Limited, "page tables can be read from Linux 5.17 on")
    } else {
        (
            State::Limited,
            "page tables can be read from Linux 5.17 on, memory moved from 5.10 on",
        )
    };
    line("version", state, format!("Linux {}", facts.release)).advise(advice)
}

fn arch(facts: &Facts) -> Capability {
    let arch = facts.arch;
    match arch {
        "x86_64" | "aarch64" if facts.page_bytes == PAGE_BYTES => {
            line("arch", State::Available, arch)
        }
        "x86_64" | "aarch64" => {
            let size_kib = facts.page_bytes >> 10;
            let found = format!(
                "{arch}, pages of {size_kib} KiB: no page cache, no curves of other sizes, no \
                 budgets, no recording"
            );
            line("arch", State::Limited, found).advise("run a kernel with pages of 4 KiB for those")
        }
        other => {
            let found = format!("{other}: page tables are not read here");
            line("arch", State::Limited, found)
        }
    }
}

fn privileges(facts: &Facts) -> Capability {
    let privileges = facts.privileges;
    let needed = ["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_SYS_NICE"];
    let missing = privileges.missing(&needed);
    let who = match privileges.euid {
        0 => "root".to_owned(),
        u32::MAX => "unknown user".to_owned(),
        uid => format!("uid {uid}"),
    };
    if missing.is_empty() {
        return line(
            "privileges",
            State::Available,
            format!("{who}, everything needed"),
        );
    }
    let state = if missing.len() == needed.len() {
        State::Missing
    } else {
        State::Limited
    };
    line(
        "privileges",
        state,
        format!("{who}, without {}", missing.join(" ")),
    )
    .advise("run as root, or give these capabilities (setpriv, systemd AmbientCapabilities=)")
}

fn lockdown(facts: &Facts) -> Capability {
    let name = "lockdown";
    match facts.lockdown.as_deref() {
        None => line(
            name,
            State::Available,
            "none (or securityfs is not mounted)",
        ),
        Some("none") => line(name, State::Available, "none"),
        Some("confidentiality") => {
            let found = "confidentiality: BPF may not read kernel memory";
            line(name, State::Missing, found).advise("boot with lockdown=integrity or none")
        }
        Some(other) => line(
            name,
            State::Available,
            format!("{other}: reading is allowed"),
        ),
    }
    .since("5.4")
}

fn btf(facts: &Facts) -> Capability {
    if facts.has_btf {
        let found = "/sys/kernel/btf/vmlinux: BPF programs adapt themselves to this kernel";
        return line("btf", State::Available, found).since("5.4");
    }
    line(
        "btf",
        State::Missing,
        "the kernel does not describe its types",
    )
    .since("5.4")
    .advise("use a kernel built with CONFIG_DEBUG_INFO_BTF=y")
}

fn bpf(facts: &Facts) -> Capability {
    if !facts.has(Syscall::Bpf) {
        return line("bpf", State::Missing, "the kernel has no bpf system call")
            .advise("use a kernel built with CONFIG_BPF_SYSCALL=y");
    }
    let unprivileged = match facts.unprivileged_bpf.as_deref() {
        Some("0") => "; allowed to everyone, but not reading kernel memory",
        _ => "",
    };
    let missing = facts.privileges.missing(&["CAP_BPF", "CAP_PERFMON"]);
    if missing.is_empty() {
        return line(
            "bpf",
            State::Available,
            "programs that read kernel memory can be loaded",
        );
    }
    line(
        "bpf",
        State::Missing,
        format!("not permitted without {}{unprivileged}", missing.join(" ")),
    )
    .advise("run as root, or with CAP_BPF and CAP_PERFMON")
}

fn syscall(
    facts: &Facts,
    call: Syscall,
    name: &'static str,
    since: &'static str,
    purpose: &'static str,
) -> Capability {
    if facts.has(call) {
        line(name, State::Available, purpose).since(since)
    } else {
        line(
            name,
            State::Missing,
            format!("not in this kernel; with it {purpose}"),
        )
        .since(since)
        .advise(format!("needs Linux {since}"))
    }
}
