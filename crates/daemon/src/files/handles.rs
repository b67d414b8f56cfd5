// SPDX-License-Identifier: Apache-2.0
//! Open files, with what `sysfs` keeps of them: the text as of the last read from the beginning,
//! and whether something happened since.

use std::collections::HashMap;

use super::source::ReportFile;

/// Most files open at a time, so that a client cannot use up the daemon's memory.
const HANDLES_MAX: usize = 4096;

/// One open file.
#[derive(Debug)]
pub struct Handle<P> {
    /// Which.
    pub file: ReportFile,
    /// What it reads as, since it was read from the beginning.
    #[cfg_attr(not(feature = "fuse"), expect(dead_code))]
    pub text: Option<Vec<u8>>,
    /// It was notified, or never read, since. `poll` reports it.
    pub is_notified: bool,
    /// Whom to wake.
    pub waiter: Option<P>,
}

/// All open files; `P` is what wakes one that polls.
#[derive(Debug)]
pub struct Handles<P> {
    open: HashMap<u64, Handle<P>>,
    last: u64,
}

impl<P> Default for Handles<P> {
    fn default() -> Self {
        Handles {
            open: HashMap::new(),
            last: 0,
        }
    }
}

impl<P> Handles<P> {
    /// Opens a file; `None` when too many are open.
    pub fn open(&mut self, file: ReportFile) -> Option<u64> {
        if self.open.len() >= HANDLES_MAX {
            return None;
        }
        self.last += 1;
        let handle = Handle {
            file,
            text: None,
            // As in the kernel: a poll before the first read asks for a read.
            is_notified: true,
            waiter: None,
        };
        self.open.insert(self.last, handle);
        Some(self.last)
    }

    /// An open file.
    pub fn get(&mut self, number: u64) -> Option<&mut Handle<P>> {
        self.open.get_mut(&number)
    }

    /// Closes a file.
    pub fn close(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Files including this one changed: returns the pollers to wake.
    pub fn notify(&mut self, file: &ReportFile) -> Vec<P> {
        let of_file = self.open.values_mut().filter(|handle| handle.file == *file);
        let mut waiters = Vec::new();
        for handle in of_file {
            handle.is_notified = true;
            waiters.extend(handle.waiter.take());
        }
        waiters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agewise_policy::workingset::report::{File, NodeFile};

    #[test]
    fn notifications_reach_the_files_they_are_for() {
        let mut handles: Handles<&str> = Handles::default();
        let page_age = |node| File::Node(node, NodeFile::PageAge);
        let (a, b) = (
            handles.open(page_age(0)).unwrap(),
            handles.open(page_age(1)).unwrap(),
        );
        for number in [a, b] {
            let handle = handles.get(number).unwrap();
            assert!(handle.is_notified, "never read");
            handle.is_notified = false;
            handle.waiter = Some("waiter");
        }
        assert_eq!(handles.notify(&page_age(0)), ["waiter"]);
        assert!(handles.notify(&page_age(0)).is_empty(), "woken once");
        assert!(handles.get(a).unwrap().is_notified);
        assert!(!handles.get(b).unwrap().is_notified);
        handles.close(a);
        assert!(handles.get(a).is_none());
    }

    #[test]
    fn no_more_than_a_bound_can_be_open() {
        let mut handles: Handles<()> = Handles::default();
        let opened =
            (0..HANDLES_MAX + 3).filter_map(|_| handles.open(File::Node(0, NodeFile::PageAge)));
        assert_eq!(opened.count(), HANDLES_MAX);
    }
}
