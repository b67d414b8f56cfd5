// SPDX-License-Identifier: Apache-2.0
//! Drops pages of files that a command read and has not accessed for a while, by the means of
//! `agewise reclaim --files`: pages charged to the command's own cgroup, and no others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use agewise_cli::observe::millis;
use agewise_host::access::PAGE_BYTES;
use agewise_host::cgroup::OwnCgroup;
use agewise_host::pagecache::{Cold, DropLimits, DropReport, Dropper, FileAges, Mounts};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use anyhow::{Context, bail};
use signal_hook::consts::SIGCHLD;

use super::keeper::Notes;
use crate::command::files::CORE_SHARE;

/// Follows the page cache of a cgroup and drops what is cold.
pub struct ColdFiles {
    own: Arc<OwnCgroup>,
    ages: FileAges,
    older_than_ms: u64,
    /// Set when a child ends. It may be the command, and nobody should wait for a slow rate then.
    ended: Arc<AtomicBool>,
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
        let ended = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGCHLD, Arc::clone(&ended))?;
        Ok(ColdFiles {
            own,
            ages,
            older_than_ms,
            ended,
            due: Instant::now(),
            done: DropReport::default(),
        })
    }

    /// Looks at the files, unless looks would take too much of a core, and drops what is cold. Ends
    /// early if the command, whose processes these are, ends.
    ///
    /// # Errors
    /// Accesses were lost or cannot be read, or the cgroup cannot. Nothing is dropped then.
    pub fn look(&mut self, family: &[Process], limits: DropLimits) -> anyhow::Result<()> {
        self.ended.store(false, Relaxed);
        if Instant::now() < self.due || !family.iter().any(Process::is_alive) {
            return Ok(());
        }
        let ids = self.own.cgroup().subtree_ids()?;
        let look = self.ages.look(&|id| ids.contains(&id))?;
        self.due = Instant::now() + Duration::from_nanos(look.cpu_ns) * CORE_SHARE;
        if self.ages.has_lost_within(self.older_than_ms) {
            bail!(
                "more files were accessed at a time than can be noted, so it is not known what was \
                 not; none of their pages are dropped for a while"
            );
        }
        let cold = Cold {
            older_than_ms: self.older_than_ms,
            owns: &|id| ids.contains(&id),
        };
        let mounts = Mounts::read(&ProcRoot::default())?;
        let mut dropper = Dropper::new(limits, &self.ended);
        let report = dropper.drop_cold(&mut self.ages, cold, &mounts, &mut |_, _, _| ())?;
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
