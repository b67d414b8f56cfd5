// SPDX-License-Identifier: Apache-2.0
//! Threads through which to reach an address space.

use std::fs;

use super::layout::{RC_CHANGED, RC_NO_MM, RC_NO_TASK, RC_OTHER_TASK};

/// The threads of a process, tried in turn if its leader has exited but others live on.
pub(super) struct Threads {
    pid: u32,
    pub tid: u32,
}

impl Threads {
    pub fn leader(pid: u32) -> Self {
        Threads { pid, tid: pid }
    }

    /// Whether another thread may lead there, after a call with this one ended like this.
    pub fn may_go_on(&self, rc: u32) -> bool {
        match rc {
            RC_NO_MM => true,
            // Of the leader this says that the process ended, of another that this thread did.
            RC_NO_TASK | RC_CHANGED | RC_OTHER_TASK => self.tid != self.pid,
            _ => false,
        }
    }

    /// Moves on to a thread not tried yet; false if there is none left.
    pub fn next(&mut self) -> bool {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.pid)) else {
            return false;
        };
        let tid = |name: std::ffi::OsString| name.to_str()?.parse().ok();
        self.next_of(tasks.flatten().filter_map(|task| tid(task.file_name())))
    }

    /// The lowest first: mostly the oldest, which lives longest. They are listed anew each time,
    /// because those listed before may have ended.
    fn next_of(&mut self, tids: impl Iterator<Item = u32>) -> bool {
        let is_new = |tid: &u32| *tid != self.pid && (self.tid == self.pid || *tid > self.tid);
        match tids.filter(is_new).min() {
            Some(tid) => {
                self.tid = tid;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{RC_DONE, RC_KTHREAD};
    use super::*;

    #[test]
    fn the_end_of_a_thread_is_not_the_end_of_its_process() {
        let mut threads = Threads::leader(50);
        let results = [
            RC_NO_MM,
            RC_NO_TASK,
            RC_CHANGED,
            RC_OTHER_TASK,
            RC_KTHREAD,
            RC_DONE,
        ];
        let go_on = |threads: &Threads| results.map(|rc| threads.may_go_on(rc));
        assert_eq!(go_on(&threads), [true, false, false, false, false, false]);
        assert!(threads.next_of([60, 50, 7, 61].into_iter()));
        assert_eq!(
            (threads.tid, go_on(&threads)),
            (7, [true, true, true, true, false, false])
        );
        // It ended, and another began.
        assert!(threads.next_of([50, 62, 61].into_iter()));
        assert_eq!(threads.tid, 61);
        assert!(threads.next_of([50, 62, 61].into_iter()));
        assert!(!threads.next_of([50, 62, 61].into_iter()));
    }
}
