// SPDX-License-Identifier: Apache-2.0
//! Processes that run KVM guests. A guest accesses memory through its own page tables and sets no
//! accessed bit in those of the process, whose memory then looks idle while it is in use.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::root::{ProcRoot, numbers_in};

/// Link target of a virtual machine's file descriptor (virt/kvm/kvm_main.c).
const MACHINE: &[u8] = b"anon_inode:kvm-vm";

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

/// The warning about such a process.
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
