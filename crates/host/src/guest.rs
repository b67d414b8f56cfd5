// SPDX-License-Identifier: Apache-2.0
//! Processes that run KVM guests. A guest accesses memory through page tables of its own: it sets
//! no accessed bit in the page tables of the process, whose memory then looks idle while it is
//! used.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::root::{ProcRoot, numbers_in};

/// What a descriptor of a virtual machine links to (virt/kvm/kvm_main.c).
const MACHINE: &[u8] = b"anon_inode:kvm-vm";

/// Whether a process holds a KVM virtual machine. Not where its descriptors may not be seen.
pub fn runs_guests(root: &ProcRoot, pid: u32) -> bool {
    let entries = fs::read_dir(root.join(format!("{pid}/fd")));
    entries.into_iter().flatten().flatten().any(|entry| {
        fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str().as_bytes() == MACHINE)
    })
}

/// All processes that do, ascending. None where the kernel has no KVM.
pub fn hosts(root: &ProcRoot) -> Vec<u32> {
    let mut pids = numbers_in(root.path()).unwrap_or_default();
    pids.retain(|pid| runs_guests(root, *pid));
    pids.sort_unstable();
    pids
}

/// The message about such a process.
pub fn note(pid: u32) -> String {
    format!(
        "process {pid} runs KVM guests: what they access is not in its page tables, so memory that \
         looks idle may be in use"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
