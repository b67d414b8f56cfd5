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

use agewise_engine::table::PageBits;

/// Tables of a group.
pub(super) const GROUP: usize = 32;
/// Young pages a table must have to serve as a sample.
const SAMPLE_MIN: u32 = 64;
/// Sampled pages remembered before old ones count half.
const EVIDENCE_MAX: u32 = 8192;
/// Scans whose times are kept: no clear is put off longer.
const SCANS_KEPT: usize = 128;

/// How far a clear may be put off.
#[derive(Clone, Copy, Debug, PartialEq)]
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

#[derive(Clone, Debug)]
struct Group {
    key: Key,
    /// Number of the scan that last cleared each table; 0: none.
    cleared: [u32; GROUP],
    /// The sample cleared by the last scan, and which pages.
    sample: Option<(u8, PageBits)>,
    /// The sample of this scan.
    next: Option<(u8, PageBits)>,
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
}

impl Book {
    /// A new scan, at `now_ns`.
    pub fn begin(&mut self, now_ns: u64) {
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
            let scan = self.scan;
            let group = &mut self.new[index];
            let at = place.at();
            group.measure(at, &[u64::MAX; 8], &[0; 8], 0.0);
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
    pub fn judge(
        &mut self,
        place: Place,
        present: &PageBits,
        young: &PageBits,
        put_off: &PutOff,
    ) -> Verdict {
        let scan = self.scan;
        let at = place.at();
        let index = self.group(place.key());
        let group = &mut self.new[index];
        group.measure(at, present, young, put_off.tolerance);
        let known = group.cleared[at] != 0;
        let lag = if known { scan - group.cleared[at] } else { 1 };
        let since_ns = time_of(&self.times, scan, scan - lag);
        let sample = group.next.is_none() && count(young) >= SAMPLE_MIN;
        let stale = group.broken && lag > 1;
        let mut clear = stale || sample || !known;
        if !clear {
            let now_ns = self.times.back().copied().unwrap_or(0);
            let within_time =
                since_ns.is_some_and(|since| now_ns.saturating_sub(since) < put_off.max_ns);
            let may_wait = lag <= group.patience(put_off.tolerance);
            clear = !(within_time && may_wait);
        }
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
            since_ns,
            stale,
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
        let group = match self.old.get(self.at) {
            Some(group) if group.key == key => group.clone(),
            _ => Group {
                key,
                cleared: [0; GROUP],
                sample: None,
                next: None,
                asked: 0,
                kept: 0,
                broken: false,
            },
        };
        self.new.push(group);
        self.new.len() - 1
    }
}

impl Group {
    /// If this table is the sample: how much of it came back?
    fn measure(&mut self, at: usize, present: &PageBits, young: &PageBits, tolerance: f64) {
        let Some((sample_at, sampled)) = self.sample else {
            return;
        };
        if usize::from(sample_at) != at {
            return;
        }
        self.sample = None;
        let mut asked = 0;
        let mut kept = 0;
        for word in 0..sampled.len() {
            asked += (sampled[word] & present[word]).count_ones();
            kept += (sampled[word] & young[word]).count_ones();
        }
        let missing = asked.saturating_sub(kept);
        if f64::from(missing) > (8.0 * tolerance * f64::from(asked)).max(8.0) {
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
        if self.asked == 0 || tolerance <= 0.0 {
            return 0;
        }
        // Laplace's rule: little evidence is little trust.
        let leave = f64::from(self.asked - self.kept + 1) / f64::from(self.asked + 2);
        let scans = (2.0 * tolerance / leave).min(SCANS_KEPT as f64 - 2.0);
        let scans = scans as u32;
        // In turn: each group its own part of the upper half.
        let spread = self.key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        scans - (spread % u64::from(scans / 2 + 1)) as u32
    }
}

fn count(bits: &PageBits) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
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
mod tests {
    use super::*;

    const HOT: PageBits = [u64::MAX; 8];
    const IDLE: PageBits = [0; 8];
    /// All of one mapping.
    fn place(table: usize) -> Place {
        Place {
            table: table as u64,
            mapping: 0,
        }
    }

    const SECOND: u64 = 1_000_000_000;
    const PUT_OFF: PutOff = PutOff {
        tolerance: 0.005,
        max_ns: 60 * SECOND,
        rotate: 1,
    };

    /// Scan `tables` with the bits a machine would show: pages set theirs again when accessed.
    struct Machine {
        young: Vec<PageBits>,
        book: Book,
        now_ns: u64,
    }

    impl Machine {
        fn new(tables: usize) -> Self {
            Machine {
                young: vec![IDLE; tables],
                book: Book::default(),
                now_ns: SECOND,
            }
        }

        /// One interval with accesses to `hot`, then a scan. Tables cleared, tables called stale,
        /// and tables called accessed.
        fn scan(&mut self, hot: impl Fn(usize) -> PageBits, put_off: &PutOff) -> [usize; 3] {
            self.now_ns += SECOND;
            self.book.begin(self.now_ns);
            let mut tally = [0; 3];
            for table in 0..self.young.len() {
                let young = &mut self.young[table];
                for (word, accessed) in hot(table).iter().enumerate() {
                    young[word] |= accessed;
                }
                if *young == IDLE {
                    self.book.idle(place(table));
                    continue;
                }
                let verdict = self.book.judge(place(table), &HOT, young, put_off);
                tally[1] += usize::from(verdict.stale);
                tally[2] += usize::from(!verdict.stale);
                if verdict.clear {
                    *young = IDLE;
                    tally[0] += 1;
                }
            }
            tally
        }
    }

    #[test]
    fn steady_tables_are_cleared_ever_more_rarely() {
        let mut machine = Machine::new(256);
        assert_eq!(
            machine.scan(|_| HOT, &PUT_OFF)[0],
            256,
            "nothing is known at first"
        );
        let first: usize = (0..5).map(|_| machine.scan(|_| HOT, &PUT_OFF)[0]).sum();
        let settled: usize = (0..60).map(|_| machine.scan(|_| HOT, &PUT_OFF)[0]).sum();
        assert!(first < 5 * 256, "{first}");
        // The samples alone are 8 a scan.
        assert!((8 * 60..60 * 256 / 5).contains(&settled), "{settled}");
        assert_eq!(machine.scan(|_| HOT, &PUT_OFF)[2], 256);
    }

    /// Random accesses: each page with a probability of 98.8 % in an interval. Nothing is steady but
    /// the average, and the average of what is wrong stays within the tolerance.
    #[test]
    fn what_is_wrong_on_average_stays_within_the_tolerance() {
        let put_off = PutOff {
            tolerance: 0.01,
            ..PUT_OFF
        };
        let mut machine = Machine::new(64);
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut accessed = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % 1000 >= 12
        };
        let (mut wrong, mut judged, mut cleared) = (0u32, 0u32, 0usize);
        for scan in 0..60 {
            let loads: Vec<PageBits> = (0..64)
                .map(|_| {
                    std::array::from_fn(|_| {
                        (0..64).fold(0, |word, bit| word | u64::from(accessed()) << bit)
                    })
                })
                .collect();
            let before = machine.young.clone();
            let tally = machine.scan(|table| loads[table], &put_off);
            if scan < 10 {
                continue;
            }
            cleared += tally[0];
            for (old, load) in before.iter().zip(&loads) {
                judged += 512;
                wrong += old
                    .iter()
                    .zip(load)
                    .map(|(old, load)| (old & !load).count_ones())
                    .sum::<u32>();
            }
        }
        let share = f64::from(wrong) / f64::from(judged);
        assert!(share > 0.0 && share <= 0.01, "{share}");
        assert!(cleared < 50 * 64 * 2 / 3, "{cleared}");
    }

    #[test]
    fn what_one_mapping_does_says_nothing_of_its_neighbour() {
        let mut book = Book::default();
        let steady = Place {
            table: 3,
            mapping: 0,
        };
        let other = Place {
            table: 4,
            mapping: 4 << 21,
        };
        for scan in 1..40u64 {
            book.begin(scan * SECOND);
            book.judge(steady, &HOT, &HOT, &PUT_OFF);
            // Other pages each time: whatever is not cleared is wrong.
            let mut young = IDLE;
            young[scan as usize % 8] = 0xffff;
            assert!(book.judge(other, &HOT, &young, &PUT_OFF).clear, "{scan}");
        }
    }

    #[test]
    fn without_tolerance_every_table_is_cleared_every_time() {
        let put_off = PutOff {
            tolerance: 0.0,
            ..PUT_OFF
        };
        let mut machine = Machine::new(64);
        for _ in 0..20 {
            assert_eq!(machine.scan(|_| HOT, &put_off), [64, 0, 64]);
        }
    }

    #[test]
    fn memory_that_turns_cold_is_noticed_in_two_scans() {
        let mut machine = Machine::new(64);
        for _ in 0..40 {
            machine.scan(|_| HOT, &PUT_OFF);
        }
        // Nothing is accessed any more. The samples come back empty at once.
        let [cleared, stale, accessed] = machine.scan(|_| IDLE, &PUT_OFF);
        assert!(stale + accessed <= 64 - 2);
        let [more, _, accessed_then] = machine.scan(|_| IDLE, &PUT_OFF);
        let [_, _, at_last] = machine.scan(|_| IDLE, &PUT_OFF);
        assert!(cleared + more > 0);
        assert!(accessed_then <= accessed);
        assert_eq!(at_last, 0, "after {cleared} and {more} cleared");
    }

    #[test]
    fn trust_returns_after_a_change() {
        let mut machine = Machine::new(64);
        for _ in 0..20 {
            machine.scan(|_| HOT, &PUT_OFF);
        }
        for _ in 0..3 {
            machine.scan(|_| IDLE, &PUT_OFF);
        }
        let cleared: Vec<usize> = (0..6).map(|_| machine.scan(|_| HOT, &PUT_OFF)[0]).collect();
        assert!(
            cleared[1..].iter().sum::<usize>() < 5 * 64 / 2,
            "{cleared:?}"
        );
    }

    #[test]
    fn flickering_memory_is_never_put_off() {
        let mut machine = Machine::new(64);
        for scan in 0..30u64 {
            // Half of the pages, another half each time.
            let pattern = [if scan % 2 == 0 {
                0x5555_5555_5555_5555
            } else {
                !0x5555_5555_5555_5555
            }; 8];
            assert_eq!(
                machine.scan(|_| pattern, &PUT_OFF),
                [64, 0, 64],
                "scan {scan}"
            );
        }
    }

    #[test]
    fn no_clear_is_put_off_beyond_its_time() {
        let put_off = PutOff {
            max_ns: 3 * SECOND,
            ..PUT_OFF
        };
        let mut machine = Machine::new(64);
        for _ in 0..50 {
            machine.scan(|_| HOT, &put_off);
        }
        let cleared: usize = (0..30).map(|_| machine.scan(|_| HOT, &put_off)[0]).sum();
        assert!(cleared >= 30 * 64 / 4, "{cleared}");
    }

    #[test]
    fn a_budget_takes_turns() {
        let put_off = PutOff {
            tolerance: 0.0,
            rotate: 4,
            ..PUT_OFF
        };
        let mut machine = Machine::new(256);
        machine.scan(|_| HOT, &put_off);
        for _ in 0..12 {
            assert_eq!(machine.scan(|_| HOT, &put_off)[0], 64);
        }
    }

    #[test]
    fn bits_carry_the_time_they_tell_of() {
        let put_off = PutOff {
            tolerance: 0.0,
            ..PUT_OFF
        };
        let mut book = Book::default();
        book.begin(10);
        assert_eq!(
            book.judge(place(5), &HOT, &HOT, &put_off).since_ns,
            None,
            "the first scan"
        );
        book.begin(20);
        assert_eq!(
            book.judge(place(5), &HOT, &HOT, &put_off).since_ns,
            Some(10)
        );
        assert_eq!(book.since_ns(place(5)), Some(20), "between scans");
        book.begin(30);
        book.idle(place(5));
        book.begin(40);
        assert_eq!(
            book.judge(place(5), &HOT, &HOT, &put_off).since_ns,
            Some(30),
            "seen idle"
        );
        assert_eq!(
            book.judge(place(500), &HOT, &HOT, &put_off).since_ns,
            Some(30),
            "mapped since"
        );
        book.forget();
        assert_eq!(book.judge(place(501), &HOT, &HOT, &put_off).since_ns, None);
    }

    #[test]
    fn put_off_bits_tell_since_their_own_clear() {
        let mut machine = Machine::new(16);
        for _ in 0..40 {
            machine.scan(|_| HOT, &PUT_OFF);
        }
        machine.book.begin(machine.now_ns + SECOND);
        let since: Vec<_> = (0..16)
            .map(|table| {
                machine
                    .book
                    .judge(place(table), &HOT, &HOT, &PUT_OFF)
                    .since_ns
                    .unwrap()
            })
            .collect();
        assert!(since.iter().any(|&ns| ns < machine.now_ns));
        assert!(
            since
                .iter()
                .all(|&ns| ns + PUT_OFF.max_ns >= machine.now_ns)
        );
    }
}
