// SPDX-License-Identifier: Apache-2.0
//! Processes that run KVM guests. A guest accesses memory through its own page tables and sets no
//! accessed bit in those of the process, whose memory then looks idle while it is in use.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::root::{ProcRoot, numbers_in};
use crate::vma::{VmaKind, VmaTable};

/// Link target of a virtual machine's file descriptor (virt/kvm/kvm_main.c).
const MACHINE: &[u8] = b"anon_inode:kvm-vm";

/// Whether memory of processes that run guests may be moved or marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guests {
    /// It may not.
    #[default]
    Spared,
    /// It may: somebody asked for it, and has been warned.
    Included,
}

impl Guests {
    /// Included only if asked for.
    pub fn included_if(asked: bool) -> Self {
        match asked {
            true => Guests::Included,
            false => Guests::Spared,
        }
    }
}

/// Whether a process has a KVM virtual machine. False if its descriptors may not be read.
pub fn runs_guests(root: &ProcRoot, pid: u32) -> bool {
    let entries = fs::read_dir(root.join(format!("{pid}/fd")));
    entries.into_iter().flatten().flatten().any(|entry| {
        fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str().as_bytes() == MACHINE)
    })
}

/// All processes that run KVM guests, ascending. Empty if the kernel has no KVM.
pub fn hosts(root: &ProcRoot) -> Vec<u32> {
    let mut pids = numbers_in(root.path()).unwrap_or_default();
    pids.retain(|pid| runs_guests(root, *pid));
    pids.sort_unstable();
    pids
}

/// Whether these mappings include a virtual CPU, as those of every program that runs guests do.
/// Costs an observer, who reads mappings anyway, less than reading descriptors.
pub(crate) fn maps_cpu(vmas: &VmaTable) -> bool {
    let mut special = vmas
        .vmas()
        .iter()
        .filter(|vma| vma.kind == VmaKind::Special);
    special.any(|vma| vmas.name(vma).starts_with("anon_inode:kvm-vcpu"))
}

/// The note about such a process.
pub fn note(pid: u32) -> String {
    format!(
        "process {pid} runs KVM guests: what they access is not in its page tables, so memory that \
         looks idle may be in use"
    )
}

/// The warning about such a process that is included all the same; `None` if it runs no guests.
pub fn warning(root: &ProcRoot, pid: u32) -> Option<String> {
    runs_guests(root, pid).then(|| format!("{}; included all the same, as asked", note(pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_by_its_mappings() {
        let maps = "55c0dc982000-55c0dc983000 r--p 00000000 fe:00 10092924 /opt/kvm-vcpu\n";
        assert!(!maps_cpu(&VmaTable::from_text(maps)));
        let cpu = "7f4edd41a000-7f4edd41d000 rw-s 00000000 00:10 1038 anon_inode:kvm-vcpu:0\n";
        assert!(maps_cpu(&VmaTable::from_text(&[maps, cpu].concat())));
    }

    #[test]
    fn a_host_is_known_by_its_descriptors() {
        let top = tempfile::tempdir().unwrap();
        for (pid, target) in [
            (7, "anon_inode:kvm-vm"),
            (8, "anon_inode:[eventpoll]"),
            (9, "/x"),
        ] {
            let fds = top.path().join(format!("{pid}/fd"));
            fs::create_dir_all(&fds).unwrap();
            std::os::unix::fs::symlink("/dev/null", fds.join("0")).unwrap();
            std::os::unix::fs::symlink(target, fds.join("11")).unwrap();
        }
        let root = ProcRoot::new(top.path());
        assert_eq!(hosts(&root), [7]);
        assert!(!runs_guests(&root, 10));
        assert_eq!(warning(&root, 8), None);
        let warning = warning(&root, 7).unwrap();
        assert!(warning.contains("process 7 runs KVM guests"), "{warning}");
    }
}
