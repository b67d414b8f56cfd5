// SPDX-License-Identifier: Apache-2.0
//! Drops every privilege that the daemon does not need.

use caps::{CapSet, Capability, CapsHashSet};

/// The needed capabilities, and what for.
pub const NEEDED: [(Capability, &str); 6] = [
    (Capability::CAP_BPF, "load the page-table walker"),
    (Capability::CAP_PERFMON, "let it read the kernel's tables"),
    (Capability::CAP_SYS_ADMIN, "mount the report files"),
    (Capability::CAP_SYS_PTRACE, "look at processes of others"),
    (Capability::CAP_SYS_NICE, "move their memory"),
    (
        Capability::CAP_DAC_OVERRIDE,
        "write clear_refs and memory.reclaim",
    ),
];

/// Additional capabilities needed if the configuration allows killing, where the kernel has
/// no `cgroup.kill`.
pub const TO_KILL: &[Capability] = &[Capability::CAP_KILL];
/// With these, which a daemon run by root has, serving processes get a user of their own, and end
/// with the daemon even if they do not want to: the kernel sends that signal in its name.
pub const TO_SERVE: &[Capability] = &[
    Capability::CAP_SETUID,
    Capability::CAP_SETGID,
    Capability::CAP_KILL,
];

/// Whether the daemon may kill processes of others.
pub fn can_kill() -> bool {
    caps::has_cap(None, CapSet::Effective, TO_KILL[0]).unwrap_or(false)
}

/// Whether the daemon may mount file systems.
#[cfg(feature = "fuse")]
pub fn can_mount() -> bool {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false)
}

/// Drops all capabilities of this process except those it needs and `extra`, for good: they are
/// also removed from the bounding set, so no program it might start can get them back. Call it
/// before there are other threads. Returns what is kept.
///
/// # Errors
/// The kernel's error. Some capabilities may have been dropped then, none gained.
pub fn drop_others(extra: &[Capability]) -> Result<Vec<String>, caps::errors::CapsError> {
    let have = caps::read(None, CapSet::Permitted)?;
    let keep: CapsHashSet = NEEDED
        .iter()
        .map(|(capability, _)| *capability)
        .chain(extra.iter().copied())
        .filter(|capability| have.contains(capability))
        .collect();
    // The bounding set first, while there is still the right to change it.
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
        // Capabilities belong to threads: this one only exists for the test.
        std::thread::spawn(|| {
            let before = caps::read(None, CapSet::Permitted).unwrap();
            let kept = drop_others(TO_KILL).unwrap();
            assert_eq!(can_kill(), before.contains(&Capability::CAP_KILL));
            drop_others(&[]).unwrap();
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

    const UNIT: &str = include_str!("../../../packaging/systemd/agewise.service");

    fn asked(key: &str) -> Vec<&str> {
        let values = UNIT.lines().filter_map(|line| line.strip_prefix(key));
        let mut asked: Vec<&str> = values.flat_map(|value| value.split(' ')).collect();
        asked.sort_unstable();
        asked
    }

    #[test]
    fn the_unit_asks_for_what_is_needed_and_no_more() {
        let mut needed: Vec<String> = NEEDED.iter().map(|(c, _)| c.to_string()).collect();
        needed.sort();
        // Only old kernels need it, and report files served as a file system, which nobody would
        // see: the service has a mount namespace of its own.
        needed.retain(|capability| capability != "CAP_SYS_ADMIN");
        assert!(UNIT.contains("\nPrivateMounts=yes\n"));
        for key in ["AmbientCapabilities=", "CapabilityBoundingSet="] {
            assert_eq!(asked(key), needed, "{key}");
        }
    }

    /// No group of calls has it, and without it rules for files drop nothing.
    #[test]
    fn the_unit_allows_what_dropping_pages_of_files_takes() {
        assert!(asked("SystemCallFilter=").contains(&"cachestat"));
    }

    #[test]
    fn the_unit_is_closed_as_far_as_systemd_can_tell() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../packaging/systemd/agewise.service"
        );
        let analysed = std::process::Command::new("systemd-analyze")
            .args(["security", "--offline=yes", "--no-pager", path])
            .output();
        let said = match analysed {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(_) => String::new(),
        };
        let overall = said
            .lines()
            .find(|line| line.contains("Overall exposure level"));
        let exposure = overall.and_then(|line| {
            let words = line.split([' ', ':']);
            words.filter_map(|word| word.parse::<f64>().ok()).next()
        });
        match exposure {
            Some(exposure) => assert!(exposure <= 2.0, "{said}"),
            None => {
                println!("SKIPPED the_unit_is_closed: no systemd-analyze of files (systemd 250)")
            }
        }
    }
}
