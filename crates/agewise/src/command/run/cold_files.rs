// SPDX-License-Identifier: Apache-2.0
//! Drops pages of files that a command read and has not accessed for a while, by the means of
//! `agewise reclaim --files`: pages charged to the command's own cgroup, and no others.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use agewise_cli::observe::millis;
use agewise_host::access::PAGE_BYTES;
use agewise_host::cgroup::OwnCgroup;
use agewise_host::pagecache::{Cold, DropLimits, DropReport, Dropper, FileAges, Mounts};
use agewise_host::root::ProcRoot;
use anyhow::{Context, bail};

use super::keeper::Notes;
use crate::command::files::CORE_SHARE;

/// Files tried at a look, the largest first: finding and opening each takes some 20 us.
const FILES_MAX: usize = 1 << 12;
/// Of what was allowed and not used, this much is saved for the next look: a large folio leaves as
/// a whole or not at all, however low the rate is.
const SAVED_MAX_BYTES: u64 = 8 << 20;

/// Follows the page cache of a cgroup and drops what is cold.
pub struct ColdFiles {
    own: Arc<OwnCgroup>,
    ages: FileAges,
    older_than_ms: u64,
    /// What the rate allows to drop at the next look.
    allowed_bytes: u64,
    /// The earliest time of the next look.
    due: Instant,
    done: DropReport,
}

impl ColdFiles {
    /// Starts to follow. Nothing in the cgroup is known to be cold until `older_than` is over.
    ///
    /// # Errors
    /// The page cache cannot be followed here.
    pub fn open(own: Arc<OwnCgroup>, older_than: Duration) -> anyhow::Result<Self> {
        let older_than_ms = millis(older_than);
        let ages = FileAges::open(older_than_ms);
        let ages = ages.context("--files has to follow the page cache (see `agewise doctor`)")?;
        Ok(ColdFiles {
            own,
            ages,
            older_than_ms,
            allowed_bytes: 0,
            due: Instant::now(),
            done: DropReport::default(),
        })
    }

    /// Looks at the files, unless looks would take too much of a core, and drops what is cold: at
    /// most `more_bytes`, and what was allowed since the look before. That keeps to a rate without
    /// waiting, which would hold up everything else.
    ///
    /// # Errors
    /// Accesses were lost or cannot be read, or the cgroup cannot. Nothing is dropped then.
    pub fn look(&mut self, more_bytes: u64, rehearse: bool) -> anyhow::Result<()> {
        self.allowed_bytes = self.allowed_bytes.saturating_add(more_bytes);
        if Instant::now() < self.due {
            return Ok(());
        }
        let limits = DropLimits {
            bytes_max: self.allowed_bytes,
            rate_bytes_per_s: u64::MAX,
            rehearse,
            far: false,
            files_max: FILES_MAX,
        };
        self.allowed_bytes = self.allowed_bytes.min(SAVED_MAX_BYTES);
        let ids = self.own.cgroup().subtree_ids()?;
        let look = self.ages.look(&|id| ids.contains(&id))?;
        self.due = Instant::now() + Duration::from_nanos(look.cpu_ns) * CORE_SHARE;
        if self.ages.has_lost_within(self.older_than_ms) {
            bail!(
                "too many accesses to files were not noted, so it is not known which pages are \
                 cold; none are dropped for a while"
            );
        }
        let cold = Cold {
            since_ms: self.ages.idle_for(self.older_than_ms),
            owns: &|id| ids.contains(&id),
        };
        let mounts = Mounts::read(&ProcRoot::default())?;
        let never = AtomicBool::new(false);
        let mut dropper = Dropper::new(limits, &never);
        let report = dropper.drop_cold(&mut self.ages, &cold, &mounts, &mut |_, _, _| ())?;
        let left_bytes = limits.bytes_max.saturating_sub(report.went_bytes());
        self.allowed_bytes = left_bytes.min(SAVED_MAX_BYTES);
        self.done = sum(&self.done, &report);
        Ok(())
    }

    /// What was done so far.
    pub fn done(&self) -> DropReport {
        self.done
    }

    /// How much of what was dropped was read again.
    pub fn refaulted_bytes(&self) -> u64 {
        self.ages.refaulted_pages() * PAGE_BYTES
    }

    /// Removes the cgroup.
    pub fn finish(self, notes: &mut Notes) {
        if let Err(error) = self.own.remove() {
            notes.add(format!("{error}; remove it by hand"));
        }
    }
}

/// Adds a look's report. What did not leave is asked for again at the next look, and what a
/// rehearsal would drop is found again: it counts once, when it was most.
fn sum(done: &DropReport, look: &DropReport) -> DropReport {
    if look.rehearsed_bytes < done.rehearsed_bytes {
        return *done;
    }
    let mut sum = done.only_left();
    sum.add(look);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_counts_once_and_what_leaves_each_time() {
        let look = |left_bytes, dirty_bytes, rehearsed_bytes| DropReport {
            asked_bytes: left_bytes + dirty_bytes + rehearsed_bytes,
            left_bytes,
            dirty_bytes,
            rehearsed_bytes,
            ..DropReport::default()
        };
        let all =
            |looks: [DropReport; 3]| looks.iter().fold(DropReport::default(), |a, b| sum(&a, b));
        let left = all([look(8, 3, 0), look(2, 3, 0), look(0, 1, 0)]);
        assert_eq!(left, look(10, 1, 0));
        let rehearsed = all([look(0, 0, 5), look(0, 1, 9), look(0, 0, 2)]);
        assert_eq!(rehearsed, look(0, 1, 9));
    }
}
