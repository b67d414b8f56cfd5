// SPDX-License-Identifier: Apache-2.0
//! File memory of a cgroup for policies: its ages, what was read again, and dropping it.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use agewise_policy::generations::{Generations, PageType, Sizes};
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use super::{Agent, Cache};
use crate::access::{AccessError, PAGE_BYTES};
use crate::cgroup::Cgroup;
use crate::error::FileError;
use crate::pagecache::{Cold, DropLimits, DropReport, Dropper, Mounts};

/// A page is dropped only if this many looks did not see it accessed, however far apart they are.
pub(super) const LOOKS: usize = 2;

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
        let (window, now_ms) = (self.ages.generations(), self.ages.last_look_ms());
        let sizes = self.ages.droppable(&owns);
        // In a rehearsal nothing leaves: one pass finds it all, a second would find it again.
        let first = match limits.rehearse {
            true => [None; 2],
            false => oldest_first(window, &sizes, now_ms, older_than_ms, limits.bytes_max),
        };
        let mut dropper = Dropper::new(limits, cancel);
        for age_ms in first.into_iter().chain([Some(older_than_ms)]).flatten() {
            let cold = Cold {
                older_than_ms: age_ms,
                owns: &owns,
            };
            let report = dropper.drop_cold(&mut self.ages, cold, mounts, &mut |_, _, _| ())?;
            // Whatever did not leave is asked again.
            sum = sum.only_left();
            sum.add(&report);
            if age_ms == older_than_ms {
                break;
            }
        }
        Ok(sum)
    }
}

/// Age limits to try before `older_than_ms`, which would take files of all ages alike: the lowest
/// above which all file pages fit into `bytes_max`, and the highest above which they do not.
fn oldest_first(
    window: &Generations,
    sizes: &Sizes,
    now_ms: u64,
    older_than_ms: u64,
    bytes_max: u64,
) -> [Option<u64>; 2] {
    let Some((first, last)) = window.labels_older_than(now_ms, older_than_ms) else {
        return [None; 2];
    };
    let (mut bytes, mut fitting) = (0u64, None);
    for label in first..=last {
        let pages = sizes[usize::from(label)][PageType::File as usize];
        bytes = bytes.saturating_add(pages.saturating_mul(PAGE_BYTES));
        let bounds = window.age_bounds_ms(label, now_ms);
        let least_ms = bounds.map(|(at_least, _)| at_least);
        if bytes > bytes_max {
            return [fitting, least_ms];
        }
        if bytes > 0 {
            fitting = least_ms;
        }
    }
    // All of them fit.
    [Some(older_than_ms), None]
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

#[cfg(test)]
mod tests {
    use super::*;
    use agewise_policy::generations::LABELS;

    #[test]
    fn the_oldest_go_first_as_far_as_all_of_an_age_fits() {
        let mut window = Generations::new(0, 8, 3_600_000);
        for second in 1..=4 {
            let _ = window.advance(second * 1000);
        }
        let labels: Vec<_> = window.iter().map(|(label, _)| label).collect();
        let mut sizes: Box<Sizes> = Box::new([[0; 2]; LABELS]);
        for label in &labels[..3] {
            sizes[usize::from(*label)][PageType::File as usize] = 10;
        }
        let first = |pages: u64| oldest_first(&window, &sizes, 10_000, 500, pages * PAGE_BYTES);
        assert_eq!(first(30), [Some(500), None], "all of it");
        let [two, part] = first(25).map(Option::unwrap);
        let [one, middle] = first(10).map(Option::unwrap);
        assert!(one > two && two > part && part > 500, "{one} {two} {part}");
        // Of what does not fit, the oldest goes in part, not something of every age.
        assert_eq!((middle, first(9)), (two, [None, Some(one)]));
        let none = oldest_first(&window, &sizes, 10_000, 3_600_000, 1 << 30);
        assert_eq!(none, [None; 2]);
    }
}
