// SPDX-License-Identifier: Apache-2.0
//! Planning: finds the pages of an observed process that were certainly not used for a given time.

use std::ops::{ControlFlow, Range};

use agewise_policy::agemap::AgeMap;
use agewise_policy::generations::{ByType, Label, PageType, idle_for};

use super::look::{Wanted, look};
use super::plan::Plan;
use super::runs::RunSet;
use super::target::PageoutError;
use crate::access::{AddressRange, PAGE_BYTES, Resolution, Target, pages_per_kernel_page};
use crate::agent::Agent;
use crate::vma::VmaTable;

/// Most runs of pages handled at a time in one process: 24 MiB of memory. The rest waits for the
/// next time.
pub const RUNS_MAX: usize = 1 << 20;

/// The age in ms from which pages of each type are cold; `None`: none of this type.
pub type Ages = ByType<Option<u64>>;

/// The times since which pages of each type must have been idle to be cold.
pub type IdleSince = ByType<Range<u64>>;

/// The times since which pages must have been idle to have reached these ages.
pub fn idle_since(now_ms: u64, older_than_ms: Ages) -> IdleSince {
    older_than_ms.map(|age| age.map_or(0..0, |age_ms| idle_for(now_ms, age_ms)))
}

/// The cold pages of one process.
#[derive(Clone, Debug)]
pub struct Cold {
    /// The process.
    pub target: Target,
    /// The pages, by the size in which they are mapped, without locked memory.
    pub plan: Plan,
    /// Bytes found cold, by type, including locked memory.
    pub bytes: ByType<u64>,
    /// Bytes old enough by age, but accessed or gone since the last scan.
    pub young_again_bytes: u64,
}

/// Checks that the agent's access source knows the age of single pages. Otherwise a page in use
/// could be taken for cold.
///
/// # Errors
/// [`PageoutError::NoPageAges`].
pub fn require_page_ages(agent: &mut Agent) -> Result<(), PageoutError> {
    if agent.source().abilities().resolution == Resolution::Page {
        return Ok(());
    }
    let source = agent.source().name().to_owned();
    Err(PageoutError::NoPageAges {
        source_name: source,
    })
}

/// Finds up to `bytes_max` of pages of an observed process that were certainly not used for the
/// given time, according to their ages and a look right now. `None` if the process is not observed,
/// or the last look at it failed.
///
/// # Errors
/// Its page tables or mappings cannot be read, or the process is gone.
pub fn find_cold(
    agent: &mut Agent,
    pid: u32,
    older_than_ms: Ages,
    bytes_max: u64,
) -> Result<Option<Cold>, PageoutError> {
    find_idle(
        agent,
        pid,
        &idle_since(Agent::now_ms(), older_than_ms),
        bytes_max,
    )
}

/// Like [`find_cold`], given times instead of ages.
///
/// # Errors
/// As [`find_cold`].
pub fn find_idle(
    agent: &mut Agent,
    pid: u32,
    since_ms: &IdleSince,
    bytes_max: u64,
) -> Result<Option<Cold>, PageoutError> {
    // Whoever looks at a process that does not answer (see `patient`) waits for ever.
    let space = agent.space(pid).filter(|space| space.trouble().is_none());
    let Some(space) = space else {
        return Ok(None);
    };
    let target = Target::from(space.process());
    let old = idle_runs(space.map(), since_ms, bytes_max);
    let ranges: Vec<AddressRange> = old.iter().map(|(range, _)| *range).collect();
    let found = look(agent.source(), &target, &ranges, Wanted::Untouched)
        .map_err(|error| PageoutError::from_source(pid, &error))?;
    let mut bytes = [0; 2];
    for ((_, page_type), found_bytes) in old.iter().zip(&found.range_bytes) {
        bytes[*page_type as usize] += found_bytes;
    }
    let old_bytes: u64 = ranges.iter().map(AddressRange::len).sum();
    let young_again_bytes = old_bytes.saturating_sub(found.bytes());
    let mut plan = Plan::of(found);
    if plan.asked_bytes() > 0 {
        let mut vmas = VmaTable::new();
        vmas.read(pid)?;
        vmas.mark_locked(pid)?;
        plan.heed(&vmas);
    }
    Ok(Some(Cold {
        target,
        plan,
        bytes,
        young_again_bytes,
    }))
}

/// Pages idle since then, at most `bytes_max` (the last run is cut), as ascending runs of one type.
fn idle_runs(map: &AgeMap, since_ms: &IdleSince, bytes_max: u64) -> Vec<(AddressRange, PageType)> {
    let mut runs = Vec::new();
    // Whole pages of the kernel: a call refuses less.
    let least = pages_per_kernel_page();
    let mut room = bytes_max / PAGE_BYTES / least * least;
    let mut collect = |since_ms, wanted: ByType<bool>| {
        map.runs_idle_since(0..u64::MAX / PAGE_BYTES, since_ms, |run| {
            if !wanted[run.page_type as usize] {
                return ControlFlow::Continue(());
            }
            let pages = (run.pages.end - run.pages.start).min(room);
            room -= pages;
            if pages > 0 {
                let cut = run.pages.start..run.pages.start + pages;
                runs.push((AddressRange::of_pages(&cut), run.page_type));
            }
            if room == 0 || runs.len() >= RUNS_MAX {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
    };
    match since_ms {
        [anon_ms, file_ms] if anon_ms == file_ms => collect(anon_ms, [true, true]),
        [anon_ms, file_ms] => {
            collect(anon_ms, [true, false]);
            collect(file_ms, [false, true]);
        }
    }
    runs.sort_unstable_by_key(|(range, _)| range.start);
    runs
}

/// The present pages with labels `first` to `last`, in at most [`RUNS_MAX`] runs.
pub fn labelled(map: &AgeMap, first: Label, last: Label) -> RunSet {
    let mut set = RunSet::default();
    map.runs_labelled(0..u64::MAX / PAGE_BYTES, first, last, |run| {
        set.push(AddressRange::of_pages(&run.pages));
        if set.runs().len() < RUNS_MAX {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    set
}

#[cfg(test)]
mod tests {
    use agewise_policy::agemap::Leaves;

    use super::*;
    use crate::access::TABLE_BYTES;

    /// Two tables of anonymous memory and one of files, used for a second and idle since, and one
    /// that is in use.
    fn map() -> AgeMap {
        let mut map = AgeMap::new(0, 100_000);
        for now_ms in [1000, 2000, 3000, 4000] {
            let mut look = map.look();
            for (first, tables, page_type, young) in [
                (1, 2, PageType::Anon, now_ms == 1000),
                (3, 1, PageType::File, now_ms == 1000),
                (5, 1, PageType::Anon, true),
            ] {
                let leaves = Leaves {
                    first,
                    tables,
                    young,
                    page_type,
                };
                look.leaves(leaves).unwrap();
            }
            look.finish();
            map.advance(now_ms);
        }
        map
    }

    #[test]
    fn runs_are_old_of_the_types_wanted_and_no_more_than_asked_for() {
        let map = map();
        let older = |ages, bytes_max| {
            let runs = idle_runs(&map, &idle_since(4000, ages), bytes_max);
            let bytes = |range: &AddressRange| (range.start / TABLE_BYTES, range.len());
            runs.iter()
                .map(|(range, page_type)| (bytes(range), *page_type))
                .collect::<Vec<_>>()
        };
        let anon = ((1, 2 * TABLE_BYTES), PageType::Anon);
        let file = ((3, TABLE_BYTES), PageType::File);
        let (ms, never) = (Some(2000), Some(9_999_999));
        assert_eq!(older([ms, ms], u64::MAX), [anon, file]);
        assert_eq!(older([ms, Some(2500)], u64::MAX), [anon, file]);
        assert_eq!(older([ms, None], u64::MAX), [anon]);
        assert_eq!(older([never, ms], u64::MAX), [file]);
        assert_eq!(older([never, None], u64::MAX), []);
        // The last run is cut to whole pages.
        let cut = ((3, PAGE_BYTES), PageType::File);
        let bytes_max = 2 * TABLE_BYTES + 2 * PAGE_BYTES - 1;
        assert_eq!(older([ms, ms], bytes_max), [anon, cut]);
        assert_eq!(older([ms, ms], PAGE_BYTES - 1), []);
    }
}
