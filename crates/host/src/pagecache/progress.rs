// SPDX-License-Identifier: Apache-2.0
//! Progress of a walk: a call ends when its output is full, and the place to continue from may be
//! gone by then.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::frames::Folios;
use super::layout::{
    Ctl, FILE_VOID, FILE_WHOLE, File, Leaf, RC_DONE, RC_FULL, RC_LOST, RC_NOT_HERE, SHOWN, Super,
};
use super::shown::{CacheSink, Inode, SuperBlock, WalkReport};
use crate::access::AccessError;

/// Most super blocks listed. With more, nothing is walked: pages on the others would be missing
/// silently.
const SUPERS_MAX: usize = 1 << 16;
/// How often a walk restarts in one super block when inodes go away under it, and how often in the
/// list of super blocks.
const RESTARTS_MAX: u32 = 16;
/// Number of places remembered for restarts.
const CHECKPOINTS: usize = 64;

/// The super blocks shown by calls.
#[derive(Default)]
pub(super) struct SuperList {
    pub found: Vec<Arc<SuperBlock>>,
    /// Their addresses: a restart shows them again.
    shown: HashSet<u64>,
    restarts: u32,
}

/// Where the next call continues.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    Next,
    First,
}

impl SuperList {
    /// Takes the records of one call, and how that call ended.
    pub fn take(&mut self, rc: u32, records: &[Super]) -> Result<ControlFlow<(), Place>, String> {
        for record in records {
            if self.shown.insert(record.address) {
                self.found.extend(SuperBlock::new(record).map(Arc::new));
            }
        }
        match rc {
            RC_DONE => Ok(ControlFlow::Break(())),
            _ if self.shown.len() > SUPERS_MAX => {
                Err(format!("there are more than {SUPERS_MAX} super blocks"))
            }
            RC_FULL => Ok(ControlFlow::Continue(Place::Next)),
            RC_LOST if self.restarts < RESTARTS_MAX => {
                self.restarts += 1;
                Ok(ControlFlow::Continue(Place::First))
            }
            _ => Err("the list of super blocks could not be followed".into()),
        }
    }
}

/// The super blocks of the last listing.
#[derive(Default)]
pub(super) struct KnownSupers(pub Vec<Arc<SuperBlock>>);

impl KnownSupers {
    /// The super block of the inode that a call was asked for; lists them all if it is not known.
    /// One of another file system may have taken the place in memory of one that was unmounted.
    pub fn find(
        &mut self,
        ctl: &Ctl,
        list: impl FnOnce() -> Result<Vec<Arc<SuperBlock>>, AccessError>,
    ) -> Result<Option<Arc<SuperBlock>>, AccessError> {
        // The inode no longer exists, and what was read there as its super block is none.
        if ctl.rc == RC_NOT_HERE {
            return Ok(None);
        }
        let is_it = |on: &&Arc<SuperBlock>| {
            (on.address, on.magic, on.device) == (ctl.super_block, ctl.magic, ctl.device)
        };
        if !self.0.iter().any(|on| is_it(&on)) {
            self.0 = list()?;
        }
        Ok(self.0.iter().find(is_it).cloned())
    }
}

/// Progress of the walk of one super block.
#[derive(Default)]
pub(super) struct Progress {
    /// Inodes shown: a restart shows them again.
    shown: HashSet<(u64, u64)>,
    /// An inode that was read only partly so far.
    open: Option<Inode>,
    /// Inodes at which calls ended, the latest last.
    passed: Vec<(u64, u64)>,
    restarts: u32,
}

impl Progress {
    /// Takes what one call showed of an inode: leaves and their folios.
    pub fn show(
        &mut self,
        on: &Arc<SuperBlock>,
        file: &File,
        (leaves, folios): (&[Leaf], Folios<'_>),
        sink: &mut dyn CacheSink,
        report: &mut WalkReport,
    ) {
        let inode = Inode::new(file);
        let is_open = |open: &Inode| (open.address, open.number) == (inode.address, inode.number);
        if !self.open.is_some_and(|open| is_open(&open)) {
            self.close(on, sink);
            if !self.shown.insert((inode.address, inode.number)) {
                return;
            }
            report.files += 1;
        }
        if file.state != FILE_VOID {
            report.pages += leaves.iter().map(Leaf::pages).sum::<u64>();
            sink.leaves(on, &inode, leaves, &folios);
        }
        self.open = match file.state {
            FILE_WHOLE | FILE_VOID => {
                sink.end(on, &inode, file.state == FILE_WHOLE);
                None
            }
            _ => Some(inode),
        };
    }

    /// Ends a partly read inode whose rest never came.
    pub fn close(&mut self, on: &Arc<SuperBlock>, sink: &mut dyn CacheSink) {
        if let Some(open) = self.open.take() {
            sink.end(on, &open, false);
        }
    }

    /// Remembers where a call ended, which is where the next one continues.
    pub fn passed(&mut self, ctl: &Ctl) {
        if self.passed.len() == CHECKPOINTS {
            self.passed.remove(0);
        }
        self.passed.push((ctl.inode, ctl.number));
    }

    /// Whether another restart is allowed.
    pub fn may_begin_anew(&self) -> bool {
        self.restarts < RESTARTS_MAX
    }

    /// Number of restarts.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Restarts because the place is gone: after the inode passed before it, or from the first. New
    /// inodes are added in front, so all that follow existed already.
    pub fn begin_anew(&mut self, ctl: &mut Ctl) {
        self.restarts += 1;
        (ctl.inode, ctl.number) = self.passed.pop().unwrap_or_default();
        ctl.page = SHOWN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(addresses: std::ops::Range<u64>) -> Vec<Super> {
        let record = |address| Super {
            address,
            ..Super::default()
        };
        addresses.map(record).collect()
    }

    #[test]
    fn super_blocks_are_listed_to_the_last_or_not_at_all() {
        let mut list = SuperList::default();
        let next = Ok(ControlFlow::Continue(Place::Next));
        assert_eq!(list.take(RC_FULL, &records(1..1025)), next);
        // One was unmounted during the listing: all are shown again, but count once.
        let first = Ok(ControlFlow::Continue(Place::First));
        assert_eq!(list.take(RC_LOST, &records(1025..1030)), first);
        assert_eq!(list.take(RC_FULL, &records(1..1020)), next);
        assert_eq!(
            list.take(RC_DONE, &records(1020..1100)),
            Ok(ControlFlow::Break(()))
        );
        assert_eq!(list.found.len(), 1099);
        let refused = list.take(RC_FULL, &records(1..SUPERS_MAX as u64 + 2));
        assert!(refused.unwrap_err().contains("more than 65536"));
        list.restarts = RESTARTS_MAX;
        assert!(list.take(RC_LOST, &[]).is_err());
    }

    #[test]
    fn a_super_block_is_not_taken_for_one_that_was_at_its_place() {
        let told = |rc, device, magic| Ctl {
            rc,
            super_block: 7,
            device,
            magic,
            ..Ctl::default()
        };
        let record = |device, magic| Super {
            address: 7,
            device,
            magic,
            ..Super::default()
        };
        let mut known = KnownSupers::default();
        let mut listings = 0;
        let mut find = |rc, device, magic| {
            let on = SuperBlock::new(&record(device, magic)).map(Arc::new);
            let found = known.find(&told(rc, device, magic), || {
                listings += 1;
                Ok(on.into_iter().collect())
            });
            (found.unwrap().map(|on| (on.device, on.magic)), listings)
        };
        assert_eq!(find(RC_DONE, 1, 5), (Some((1, 5)), 1));
        assert_eq!(find(RC_FULL, 1, 5), (Some((1, 5)), 1), "known");
        assert_eq!(find(RC_DONE, 2, 5), (Some((2, 5)), 2));
        assert_eq!(find(RC_DONE, 2, 6), (Some((2, 6)), 3));
        assert_eq!(find(RC_NOT_HERE, 0, 0), (None, 3), "the inode is gone");
    }
}
