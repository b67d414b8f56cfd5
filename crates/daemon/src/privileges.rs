// SPDX-License-Identifier: Apache-2.0
//! Letting go of every privilege that the daemon does not need.

use caps::{CapSet, Capability, CapsHashSet};

/// What it needs, and what for.
pub const NEEDED: [(Capability, &str); 6] = [
    (Capability::CAP_BPF, "load the page-table walker"),
    (Capability::CAP_PERFMON, "let it read the kernel's tables"),
    (
        Capability::CAP_SYS_ADMIN,
        "tell page frames apart, and mount the report files",
    ),
    (Capability::CAP_SYS_PTRACE, "look at processes of others"),
    (Capability::CAP_SYS_NICE, "move their memory"),
    (
        Capability::CAP_DAC_OVERRIDE,
        "write clear_refs and memory.reclaim",
    ),
];

/// What it needs besides where its configuration lets it kill, with cgroup v1.
const TO_KILL: Capability = Capability::CAP_KILL;

/// Whether it may kill processes of others.
pub fn can_kill() -> bool {
    caps::has_cap(None, CapSet::Effective, TO_KILL).unwrap_or(false)
}

/// Keeps of the capabilities this process has only those it needs, for good: they are gone from the
/// bounding set as well, and no program it might start could get them back. Call it before there are
/// other threads. Returns what is kept.
///
/// # Errors
/// The kernel's. Then some may have been dropped, none gained.
pub fn drop_others(may_kill: bool) -> Result<Vec<String>, caps::errors::CapsError> {
    let have = caps::read(None, CapSet::Permitted)?;
    let keep: CapsHashSet = NEEDED
        .iter()
        .map(|(capability, _)| *capability)
        .chain(may_kill.then_some(TO_KILL))
        .filter(|capability| have.contains(capability))
        .collect();
    // The bounding set first, while the right to change it is still there.
    if have.contains(&Capability::CAP_SETPCAP) {
        for capability in caps::read(None, CapSet::Bounding)? {
            if !keep.contains(&capability) {
                caps::drop(None, CapSet::Bounding, capability)?;
            }
        }
    }
    if caps::runtime::ambient_set_supported().is_ok() {
        caps::clear(None, CapSet::Ambient)?;
    }
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &keep)?;
    caps::set(None, CapSet::Permitted, &keep)?;
    let mut names: Vec<String> = keep.iter().map(ToString::to_string).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_needed_is_gone() {
        // Capabilities belong to a thread: this one is only for the test.
        std::thread::spawn(|| {
            let before = caps::read(None, CapSet::Permitted).unwrap();
            let kept = drop_others(true).unwrap();
            assert_eq!(can_kill(), before.contains(&Capability::CAP_KILL));
            drop_others(false).unwrap();
            assert!(!can_kill());
            let kept: Vec<String> = kept.into_iter().filter(|name| name != "CAP_KILL").collect();
            let after = caps::read(None, CapSet::Effective).unwrap();
            assert_eq!(after.len(), kept.len());
            for capability in after {
                assert!(before.contains(&capability));
                assert!(NEEDED.iter().any(|(needed, _)| *needed == capability));
            }
            assert!(caps::raise(None, CapSet::Effective, Capability::CAP_SYS_MODULE).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_unit_asks_for_what_is_needed_and_no_more() {
        let unit = include_str!("../../../packaging/systemd/agewise.service");
        let mut needed: Vec<String> = NEEDED.iter().map(|(c, _)| c.to_string()).collect();
        needed.sort();
        for key in ["AmbientCapabilities=", "CapabilityBoundingSet="] {
            let line = unit
                .lines()
                .find_map(|line| line.strip_prefix(key))
                .unwrap();
            let mut asked: Vec<&str> = line.split(' ').collect();
            asked.sort_unstable();
            assert_eq!(asked, needed, "{key}");
        }
    }
}
