// SPDX-License-Identifier: Apache-2.0
//! Which tables need to be cleared now, and what uncleared young bits still mean. Pure.
//!
//! Clearing is nearly all of what watching costs: to us some 45 ns a young page, to the target some
//! 400 ns when it sets the bit again. But clearing the bit of a page that is accessed in every
//! interval tells nothing: it comes back young. So the clear is put off where it would tell nothing.
//!
//! Tables are taken in groups of 32 (64 MiB), each of one mapping. In each group one hot table, the
//! *sample*, is cleared in every scan, and what share of its pages comes back young says how steady
//! the group is. The other tables of a steady group keep their bits, for as many scans as the
//! expected share of pages wrongly taken for young stays within a tolerance on average, and for a
//! limited time. They are cleared in turn, group by group: neighbours together, for a range to clear
//! costs by itself. When a sample fails to come back the group is no longer believed: its old bits
//! are not taken for accesses any more (the verdict is [`Verdict::stale`]) and it is cleared at once;
//! the next scan is exact again.
//!
//! A page whose bit is clear is always exact: only what was seen young can be wrong, and only by
//! being taken for young too long.

use std::collections::VecDeque;

use crate::table::PageSet;

/// Tables of a group.
const GROUP: usize = 32;
/// Young pages a table must have to serve as a sample.
const SAMPLE_MIN: u64 = 64;
/// Sampled pages remembered before old ones count half.
const EVIDENCE_MAX: u32 = 8192;
/// Scans whose times are kept: no clear is put off longer.
const SCANS_KEPT: usize = 128;

/// How far a clear may be put off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PutOff {
    /// Share of the pages of a table that may wrongly be taken for young, averaged over scans. 0: put
    /// off nothing.
    pub tolerance: f64,
    /// Longest time.
    pub max_ns: u64,
    /// Clear a table in one of this many scans only, tolerance or not (a CPU budget). 1: off.
    pub rotate: u32,
}

/// What to make of a table that was just read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Clear its young pages now.
    pub clear: bool,
    /// The young bits tell of accesses since then, `CLOCK_MONOTONIC` ns. `None`: nobody knows, this
    /// is the first scan.
    pub since_ns: Option<u64>,
    /// The young bits are old and no longer believed: do not take them for accesses.
    pub stale: bool,
    /// The pages to take for accessed since `since_ns`.
    pub accessed: PageSet,
}

/// A table of a mapping. What one mapping does says nothing of its neighbour, so tables of two are
/// never in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the table: address / 2 MiB.
    pub table: u64,
    /// First address of the mapping.
    pub mapping: u64,
}

impl Place {
    fn key(&self) -> Key {
        (self.table / GROUP as u64, self.mapping)
    }

    /// Position in its group.
    fn at(&self) -> usize {
        (self.table % GROUP as u64) as usize
    }
}

/// Number of the group in the address space, and the mapping: rising as tables rise.
type Key = (u64, u64);

#[derive(Debug)]
struct Group {
    key: Key,
    /// Number of the scan that last cleared each table; 0: none.
    cleared: [u32; GROUP],
    /// The sample cleared by the last scan, and which pages.
    sample: Option<(u8, PageSet)>,
    /// The sample of this scan.
    next: Option<(u8, PageSet)>,
    /// Sampled pages, and how many of them came back young.
    asked: u32,
    kept: u32,
    /// The sample failed in this scan.
    broken: bool,
}

/// The state of one address space.
#[derive(Debug, Default)]
pub struct Book {
    /// Groups of the last scan, and of this one; both in rising order.
    old: Vec<Group>,
    new: Vec<Group>,
    at: usize,
    scan: u32,
    /// Times of the last scans that cleared; the last one is this scan's.
    times: VecDeque<u64>,
    put_off: PutOff,
}

impl Book {
    /// A new scan, at `now_ns`.
    pub fn begin(&mut self, now_ns: u64, put_off: &PutOff) {
        self.put_off = *put_off;
        // Groups not reached in the last scan are gone, with the memory they stood for.
        std::mem::swap(&mut self.old, &mut self.new);
        self.new.clear();
        self.at = 0;
        self.scan += 1;
        self.times.push_back(now_ns);
        if self.times.len() > SCANS_KEPT {
            self.times.pop_front();
        }
        for group in &mut self.old {
            group.sample = group.next.take();
            group.broken = false;
        }
    }

    /// All tables were cleared in this scan, whatever was decided for each.
    pub fn all_cleared(&mut self) {
        for group in &mut self.new {
            group.cleared = [self.scan; GROUP];
            group.next = None;
        }
    }

    /// The table at `place` was judged to be cleared in this scan, and was not after all: its bits tell
    /// since the scan before.
    pub fn left(&mut self, place: Place) {
        let key = place.key();
        let Ok(index) = self.new.binary_search_by_key(&key, |group| group.key) else {
            return;
        };
        let group = &mut self.new[index];
        group.cleared[place.at()] = self.scan - 1;
        if group
            .next
            .is_some_and(|(at, _)| usize::from(at) == place.at())
        {
            group.next = None;
        }
    }

    /// Nothing is known any more: the address space is another one, or clearing failed.
    pub fn forget(&mut self) {
        let now_ns = self.times.back().copied();
        *self = Book {
            scan: self.scan,
            put_off: self.put_off,
            ..Book::default()
        };
        self.times.extend(now_ns);
    }

    /// When the scan before this one was. What is not in the book was clear then, or not mapped.
    pub fn last_ns(&self) -> Option<u64> {
        self.times.iter().rev().nth(1).copied()
    }

    /// Since when the young bits of the table at `place` tell, without judging it: between two clearing scans.
    pub fn since_ns(&self, place: Place) -> Option<u64> {
        let at = self
            .new
            .binary_search_by_key(&place.key(), |group| group.key);
        let of = at.map_or(self.scan, |at| match self.new[at].cleared[place.at()] {
            0 => self.scan,
            scan => scan,
        });
        time_of(&self.times, self.scan, of)
    }

    /// The table was seen without a young page: from now on its bits tell since now.
    pub fn idle(&mut self, place: Place) {
        let key = place.key();
        while self.old.get(self.at).is_some_and(|group| group.key < key) {
            self.at += 1;
        }
        let is_known = self.new.last().is_some_and(|group| group.key == key)
            || self.old.get(self.at).is_some_and(|group| group.key == key);
        if is_known {
            let index = self.group(key);
            let (scan, put_off) = (self.scan, self.put_off);
            let group = &mut self.new[index];
            let at = place.at();
            group.measure(at, &PageSet::ALL, &PageSet::NONE, &put_off);
            group.cleared[at] = scan;
        }
    }

    /// The scan has ended: give back what only a scan under way needs.
    pub fn end(&mut self) {
        self.old = Vec::new();
        self.new.shrink_to_fit();
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        (self.old.capacity() + self.new.capacity()) * size_of::<Group>()
    }

    /// Judge the table at `place`, which has young pages and belongs to one mapping alone. Tables come
    /// in rising order.
    pub fn judge(&mut self, place: Place, present: &PageSet, young: &PageSet) -> Verdict {
        let (scan, put_off) = (self.scan, self.put_off);
        let at = place.at();
        let index = self.group(place.key());
        let group = &mut self.new[index];
        group.measure(at, present, young, &put_off);
        let known = group.cleared[at] != 0;
        let lag = if known { scan - group.cleared[at] } else { 1 };
        let cleared_ns = time_of(&self.times, scan, scan - lag);
        let sample = group.next.is_none() && young.len() >= SAMPLE_MIN;
        let stale = group.broken && lag > 1;
        let now_ns = self.times.back().copied().unwrap_or(0);
        let within_time =
            cleared_ns.is_some_and(|then| now_ns.saturating_sub(then) < put_off.max_ns);
        let may_wait = lag <= group.patience(put_off.tolerance);
        let mut clear = stale || sample || !known || !within_time || !may_wait;
        // A budget overrules everything but the age of what the bits tell.
        if clear && put_off.rotate > 1 && known {
            let turn = (place.key().0 + u64::from(scan)).is_multiple_of(u64::from(put_off.rotate));
            clear = turn || lag > put_off.rotate;
        }
        if clear {
            group.cleared[at] = scan;
            if sample {
                group.next = Some((at as u8, *young));
            }
        }
        Verdict {
            clear,
            since_ns: cleared_ns,
            stale,
            accessed: match stale {
                true => PageSet::NONE,
                false => *young,
            },
        }
    }

    /// Index in `new` of the group `key`: from the last scan, or a fresh one.
    fn group(&mut self, key: Key) -> usize {
        if self.new.last().is_some_and(|group| group.key == key) {
            return self.new.len() - 1;
        }
        while self.old.get(self.at).is_some_and(|group| group.key < key) {
            self.at += 1;
        }
        let group = match self.old.get_mut(self.at) {
            Some(group) if group.key == key => std::mem::replace(group, Group::new(key)),
            _ => Group::new(key),
        };
        self.new.push(group);
        self.new.len() - 1
    }
}

impl Group {
    fn new(key: Key) -> Self {
        Group {
            key,
            cleared: [0; GROUP],
            sample: None,
            next: None,
            asked: 0,
            kept: 0,
            broken: false,
        }
    }

    /// The share of sampled young pages that is not accessed in the next interval. By Laplace's rule:
    /// little evidence is little trust.
    fn leave(&self) -> Option<f64> {
        let missing = f64::from(self.asked - self.kept + 1);
        (self.asked > 0).then(|| missing / f64::from(self.asked + 2))
    }

    /// If this table is the sample: how much of it came back?
    fn measure(&mut self, at: usize, present: &PageSet, young: &PageSet, put_off: &PutOff) {
        let Some((sample_at, sampled)) = self.sample else {
            return;
        };
        if usize::from(sample_at) != at {
            return;
        }
        self.sample = None;
        let asked = (sampled & *present).len() as u32;
        let kept = (sampled & *young).len() as u32;
        let missing = asked.saturating_sub(kept);
        if f64::from(missing) > (8.0 * put_off.tolerance * f64::from(asked)).max(8.0) {
            // Another workload than before: begin anew, without this miss counting against it.
            self.broken = true;
            (self.asked, self.kept) = (0, 0);
            return;
        }
        self.asked += asked;
        self.kept += kept;
        if self.asked > EVIDENCE_MAX {
            self.asked /= 2;
            self.kept /= 2;
        }
    }

    /// Scans for which a table may go uncleared: while the share of its pages that are wrongly
    /// taken for young is expected to stay within the tolerance on average. A share `leave` of the
    /// young pages is not accessed in the next interval; from one clear to the next, `scans + 1`
    /// looks later, the error grows from 0 to `scans` times that.
    fn patience(&self, tolerance: f64) -> u32 {
        let Some(leave) = self.leave().filter(|_| tolerance > 0.0) else {
            return 0;
        };
        let scans = (2.0 * tolerance / leave).min(SCANS_KEPT as f64 - 2.0);
        let scans = scans as u32;
        // In turn: each group its own part of the upper half.
        let spread = self.key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        scans - (spread % u64::from(scans / 2 + 1)) as u32
    }
}

/// The time of scan number `of`, or of the oldest remembered after it.
fn time_of(times: &VecDeque<u64>, scan: u32, of: u32) -> Option<u64> {
    if of == 0 {
        return None;
    }
    let back = (scan - of) as usize;
    match times.len().checked_sub(back + 1) {
        Some(index) => times.get(index).copied(),
        None if times.len() == SCANS_KEPT => times.front().copied(),
        None => None,
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
