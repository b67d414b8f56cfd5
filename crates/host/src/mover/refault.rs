// SPDX-License-Identifier: Apache-2.0
//! Counts refaults of paged-out memory, by looking at the same pages later.

use serde::Serialize;

use super::evict::Evicted;
use super::space::Mover;
use super::target::PageoutError;

/// What became of the pages that had left. A page counts as refaulted once, however often it comes
/// and goes afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RefaultCount {
    /// Came back from swap: evicting these bytes was a mistake.
    pub refaulted_anon_bytes: u64,
    /// Came back from files. A fault on a file also maps up to 15 neighbours in the page cache
    /// (fault-around), which count here although they were not requested.
    pub refaulted_file_bytes: u64,
    /// Still not present; without what the process has unmapped or freed.
    pub out_bytes: u64,
}

impl RefaultCount {
    /// All bytes that came back.
    pub fn refaulted_bytes(&self) -> u64 {
        self.refaulted_anon_bytes + self.refaulted_file_bytes
    }
}

/// Watches pages that have left. It only sees presence: a page that came back and left again
/// between two looks is missed, so look regularly.
#[derive(Clone, Debug)]
pub struct RefaultWatch {
    out: Evicted,
    count: RefaultCount,
    is_over: bool,
}

impl RefaultWatch {
    /// Watches the pages an eviction moved out ([`super::Eviction::evicted`]).
    pub fn new(evicted: Evicted) -> Self {
        let mut watch = Self {
            out: evicted,
            count: RefaultCount::default(),
            is_over: false,
        };
        watch.count.out_bytes = watch.out.bytes();
        watch
    }

    /// Looks, and returns the counts since the beginning. Once the process has ended, the last
    /// counts remain, and the watch [is over](Self::is_over).
    pub fn look(&mut self, mover: &mut dyn Mover) -> Result<RefaultCount, PageoutError> {
        match mover.check().and_then(|()| self.try_look(mover)) {
            Ok(()) => Ok(self.count),
            Err(error) if error.is_gone() => {
                self.is_over = true;
                Ok(self.count)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the last look found that the process has ended, or executes another program.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    fn try_look(&mut self, mover: &mut dyn Mover) -> Result<(), PageoutError> {
        // In this order: a page that comes back in between shows in both, not in neither.
        let anon_swapped = mover.swapped(&self.out.anon)?;
        let anon_back = mover.present(&self.out.anon)?.all();
        let anon_out = anon_swapped.subtract(&anon_back);
        let file_back = mover.present(&self.out.file)?.all();
        self.count.refaulted_anon_bytes += anon_back.bytes();
        self.count.refaulted_file_bytes += file_back.bytes();
        self.out.file = self.out.file.subtract(&file_back);
        self.out.anon = anon_out;
        self.count.out_bytes = self.out.bytes();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::AddressRange;
    use crate::mover::fake::{FakeMover, PAGE, Page, Place};
    use crate::mover::runs::RunSet;

    #[test]
    fn each_page_is_back_once_out_or_freed() {
        let page = |file, place| Page {
            mapping: 1,
            locked: false,
            file,
            place,
            young: false,
            sticky: false,
            unmaps: false,
            processed: 1,
        };
        let mut pages = vec![page(false, Place::Swap); 10];
        pages.extend(vec![page(true, Place::Nowhere); 5]);
        let mut mover = FakeMover::new(0, pages);
        let mut watch = RefaultWatch::new(Evicted {
            anon: RunSet::from_runs([AddressRange::new(0, 10 * PAGE)]),
            file: RunSet::from_runs([AddressRange::new(10 * PAGE, 5 * PAGE)]),
            untracked_bytes: 0,
        });
        let look = |watch: &mut RefaultWatch, mover: &mut FakeMover| {
            let count = watch.look(mover).unwrap();
            let pages = [
                count.refaulted_anon_bytes,
                count.refaulted_file_bytes,
                count.out_bytes,
            ];
            pages.map(|bytes| bytes / PAGE)
        };
        assert_eq!(look(&mut watch, &mut mover), [0, 0, 15]);
        mover.pages[2].place = Place::Memory;
        mover.pages[3].place = Place::Nowhere;
        mover.pages[12].place = Place::Memory;
        assert_eq!(look(&mut watch, &mut mover), [1, 1, 12]);
        // Out again and back again: counted only once.
        mover.pages[2].place = Place::Swap;
        assert_eq!(look(&mut watch, &mut mover), [1, 1, 12]);
        mover.pages[4].place = Place::Memory;
        assert_eq!(look(&mut watch, &mut mover), [2, 1, 11]);
        // Back while it is looked for.
        mover.comes_back = Some(5);
        assert_eq!(look(&mut watch, &mut mover), [3, 1, 10]);
        assert!(!watch.is_over());
        mover.exited_before_call = Some(0);
        assert_eq!(look(&mut watch, &mut mover), [3, 1, 10]);
        assert!(watch.is_over());
    }
}
