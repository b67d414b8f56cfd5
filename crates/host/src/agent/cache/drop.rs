// SPDX-License-Identifier: Apache-2.0
//! File memory of a cgroup for policies: its ages, what was read again, and dropping it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use agewise_policy::generations::PageType;
use agewise_policy::oldest::OldestFirst;
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use super::{Agent, Cache};
use crate::access::{AccessError, PAGE_BYTES};
use crate::cgroup::Cgroup;
use crate::error::FileError;
use crate::pagecache::{Cold, DropLimits, DropReport, Dropper, Mounts};

/// A page is dropped only if this many looks did not see it accessed, however far apart they are.
pub(super) const LOOKS: usize = 2;
/// Most passes over the files, because each looks at all of them.
const PASSES_MAX: u32 = 3;

/// The file memory a policy may take.
#[derive(Clone, Copy, Debug)]
pub struct FilesOf<'a> {
    /// The pages are charged to this cgroup or those below it.
    pub cgroup: &'a Cgroup,
    /// Cgroups that keep theirs, with those below them.
    pub without: &'a [PathBuf],
}

/// Why file memory can be neither listed nor dropped.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// [`Agent::follow_files`] was not called, or failed.
    #[error("page cache: it is not followed (see `agewise doctor`)")]
    NotFollowed,
    /// Accesses were lost, so an accessed page may look idle.
    #[error(
        "page cache: accesses were lost lately: what was not accessed for as long as asked is not \
         known yet"
    )]
    Lost,
    #[error("page cache: {0}")]
    Source(#[from] AccessError),
    #[error("page cache: {0}")]
    Mounts(#[from] FileError),
}

/// Resident pages by age, pages found accessed by the last look by their idle time until then, and
/// the number of pages dropped and read again since the start.
pub(in crate::agent) struct FilePages {
    pub resident: Histogram,
    pub returned: Histogram,
    pub refaulted: u64,
}

impl Cache {
    fn owns(&self, of: FilesOf<'_>, id: u64) -> bool {
        let spared = |path: &PathBuf| of.without.iter().any(|without| path.starts_with(without));
        self.is_of(of.cgroup, id) && !self.paths.get(&id).is_some_and(spared)
    }

    /// What a policy needs to know about the file memory that can be dropped.
    pub(in crate::agent) fn pages_of(
        &self,
        of: FilesOf<'_>,
        bounds: &Intervals,
        oldest: OldestPages,
    ) -> Option<FilePages> {
        let owns = |id| self.owns(of, id);
        let (returned, refaulted) = self.ages.returned(&owns)?;
        let mut resident = Histogram::new(bounds);
        let (window, now_ms) = (self.ages.generations(), self.ages.last_look_ms());
        resident.add_window(window, &self.ages.droppable(&owns), now_ms, oldest);
        Some(FilePages {
            resident,
            returned,
            refaulted,
        })
    }

    /// The age a page must have reached, as [`LOOKS`] requires; `None` before enough looks.
    fn least_age_ms(&self) -> Option<u64> {
        let before = self.looked_ms.iter().nth_back(LOOKS)?;
        Some(self.ages.last_look_ms().saturating_sub(*before))
    }

    fn drop_cold(
        &mut self,
        of: FilesOf<'_>,
        mounts: &Mounts,
        older_than_ms: u64,
        limits: DropLimits,
        cancel: &AtomicBool,
    ) -> Result<DropReport, CacheError> {
        let mut sum = DropReport::default();
        let Some(least_ms) = self.least_age_ms() else {
            return Ok(sum);
        };
        let older_than_ms = older_than_ms.max(least_ms);
        self.ages.take_in_accesses()?;
        if self.ages.has_lost_within(older_than_ms) {
            return Err(CacheError::Lost);
        }
        let owned: std::collections::HashSet<u64> = {
            let known = self.sizes.keys().map(|owner| owner.cgroup);
            known.filter(|id| self.owns(of, *id)).collect()
        };
        let owns = |id| owned.contains(&id);
        let sizes = self.ages.droppable(&owns);
        let since_ms = self.ages.idle_for(older_than_ms);
        let window = self.ages.generations();
        let idle = window.idle_pages(&sizes, PageType::File, &since_ms);
        let mut oldest_first = OldestFirst::new(idle, PASSES_MAX);
        let mut dropper = Dropper::new(limits, cancel);
        while let room = limits.bytes_max.saturating_sub(sum.went_bytes()) / PAGE_BYTES
            && room > 0
            && !cancel.load(Ordering::Relaxed)
            && let Some(since_ms) = oldest_first.next_pass(room)
        {
            let cold = Cold {
                since_ms,
                owns: &owns,
            };
            let report = dropper.drop_cold(&mut self.ages, &cold, mounts, &mut |_, _, _| ())?;
            sum.add(&report);
        }
        Ok(sum)
    }
}

impl Agent {
    /// Drops clean file memory of a cgroup that was accessed neither for this long nor in the last
    /// looks, the oldest first.
    ///
    /// # Errors
    /// The page cache is not followed, accesses were lost, or they cannot be read any more. Errors
    /// of single files are in the report.
    pub fn drop_cold_files(
        &mut self,
        of: FilesOf<'_>,
        older_than_ms: u64,
        limits: DropLimits,
        cancel: &AtomicBool,
    ) -> Result<DropReport, CacheError> {
        let mounts = Mounts::read(&self.roots.proc)?;
        let cache = self.cache.as_mut().ok_or(CacheError::NotFollowed)?;
        cache.drop_cold(of, &mounts, older_than_ms, limits, cancel)
    }
}
