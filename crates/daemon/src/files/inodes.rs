// SPDX-License-Identifier: Apache-2.0
//! Inode numbers: assigned at the first look-up, and dropped when the kernel forgets them.

use std::collections::HashMap;

use super::tree::Entry;

/// The number of the root.
pub const ROOT: u64 = 1;

/// The entries that the kernel knows by number.
#[derive(Debug)]
pub struct Inodes {
    /// Entries, with the number of look-ups of each.
    entries: HashMap<u64, (Entry, u64)>,
    numbers: HashMap<Entry, u64>,
    last: u64,
}

impl Default for Inodes {
    fn default() -> Self {
        Inodes {
            entries: HashMap::from([(ROOT, (Entry::Root, 1))]),
            numbers: HashMap::from([(Entry::Root, ROOT)]),
            last: ROOT,
        }
    }
}

impl Inodes {
    /// The entry with this number.
    pub fn get(&self, number: u64) -> Option<Entry> {
        self.entries.get(&number).map(|(entry, _)| entry.clone())
    }

    pub fn number(&self, entry: &Entry) -> Option<u64> {
        self.numbers.get(entry).copied()
    }

    /// Counts another look-up of an entry; returns its number.
    pub fn look_up(&mut self, entry: &Entry) -> u64 {
        let number = match self.numbers.get(entry) {
            Some(number) => *number,
            None => {
                self.last += 1;
                self.numbers.insert(entry.clone(), self.last);
                self.entries.insert(self.last, (entry.clone(), 0));
                self.last
            }
        };
        if let Some((_, count)) = self.entries.get_mut(&number) {
            *count += 1;
        }
        number
    }

    /// Forgets `count` look-ups of a number, as the kernel does.
    pub fn forget(&mut self, number: u64, count: u64) {
        let Some((_, left)) = self.entries.get_mut(&number) else {
            return;
        };
        *left = left.saturating_sub(count);
        if *left == 0
            && number != ROOT
            && let Some((entry, _)) = self.entries.remove(&number)
        {
            self.numbers.remove(&entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_live_as_long_as_the_kernel_knows_them() {
        let mut inodes = Inodes::default();
        let node = Entry::Node(0);
        let number = inodes.look_up(&node);
        assert_eq!(inodes.look_up(&node), number);
        inodes.forget(number, 1);
        assert_eq!(inodes.get(number), Some(node.clone()));
        inodes.forget(number, 1);
        assert_eq!(inodes.get(number), None);
        assert_ne!(inodes.look_up(&node), number, "numbers are not used again");
        inodes.forget(ROOT, 99);
        assert_eq!(inodes.get(ROOT), Some(Entry::Root));
        assert_eq!(inodes.entries.len(), inodes.numbers.len());
    }
}
