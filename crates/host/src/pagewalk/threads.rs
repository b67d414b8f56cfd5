// SPDX-License-Identifier: Apache-2.0
//! Threads through which to reach an address space.

use std::fs;

/// The threads of a process, tried in turn if its leader has exited but others live on.
pub(super) struct Threads {
    pid: u32,
    pub tid: u32,
    rest: Option<Vec<u32>>,
}

impl Threads {
    pub fn leader(pid: u32) -> Self {
        Threads {
            pid,
            tid: pid,
            rest: None,
        }
    }

    /// Moves on to a thread not tried yet; false if there is none left.
    pub fn next(&mut self) -> bool {
        let pid = self.pid;
        let rest = self.rest.get_or_insert_with(|| {
            let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
                return Vec::new();
            };
            let tid = |name: std::ffi::OsString| name.to_str()?.parse().ok();
            tasks
                .flatten()
                .filter_map(|task| tid(task.file_name()))
                .filter(|&t| t != pid)
                .collect()
        });
        match rest.pop() {
            Some(tid) => {
                self.tid = tid;
                true
            }
            None => false,
        }
    }
}
