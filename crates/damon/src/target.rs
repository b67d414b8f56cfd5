// SPDX-License-Identifier: Apache-2.0
//! Monitored address spaces and how their regions follow the ranges that exist.

use super::region::Region;

/// One monitored address space: a process's virtual addresses, or physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub u32);

/// A monitored address space and its regions, ascending.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its id.
    pub id: TargetId,
    /// Its regions.
    pub regions: Vec<Region>,
}

/// Fits regions to new ranges (`damon_set_regions`): regions outside are removed, those at the ends
/// of a range are stretched or trimmed to it, and a range without any gets a new one.
pub(super) fn fit_ranges(old: Vec<Region>, ranges: &[(u64, u64)]) -> Vec<Region> {
    let mut regions = Vec::with_capacity(old.len() + ranges.len());
    let mut old = old.into_iter().peekable();
    for &(start, end) in ranges.iter().filter(|(start, end)| start < end) {
        while old.next_if(|region| region.end <= start).is_some() {}
        let first = regions.len();
        while let Some(region) = old.next_if(|region| region.start < end) {
            regions.push(region);
        }
        if let Some(reached_over) = regions[first..].last().filter(|last| last.end > end) {
            // It may extend into the next range: keep the rest for that one.
            let rest = Region {
                start: end,
                sampling_addr: end,
                ..reached_over.clone()
            };
            let mut again = vec![rest];
            again.extend(old);
            old = again.into_iter().peekable();
        }
        match regions[first..].last_mut() {
            Some(last) => {
                last.end = end;
                regions[first].start = start;
            }
            None => regions.push(Region::new(start, end)),
        }
    }
    regions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_move_keep_what_is_known() {
        let known = |start: u64, end: u64, age| Region {
            age,
            ..Region::new(start, end)
        };
        let old = vec![
            known(0, 8192, 1),
            known(8192, 16384, 2),
            known(40960, 45056, 3),
        ];
        let fitted = fit_ranges(old, &[(4096, 20480), (81920, 86016)]);
        assert_eq!(fitted, {
            let first = Region {
                start: 4096,
                ..known(0, 8192, 1)
            };
            let second = Region {
                end: 20480,
                ..known(8192, 16384, 2)
            };
            vec![first, second, Region::new(81920, 86016)]
        });
    }
}
