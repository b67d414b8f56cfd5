// SPDX-License-Identifier: Apache-2.0
//! Limits what recording costs the program. Pure logic.
//!
//! A program pays about 400 ns for each accessed bit it has to set again. If it accesses so much
//! that clearing all bits in every interval would cost more than allowed, most tables are cleared
//! less often, and the trace says which accesses were not seen.
//!
//! Tables are grouped by 32 (64 MiB). One table of each group, the *sample*, is cleared at every
//! look, so all its accesses are seen. The others are cleared after a second, or later if that is
//! shown to be safe. Between two clears the first access of each page is seen, in its interval.
//! Later accesses of the page are inferred: it follows a page of the sample, so that the share
//! accessed in an interval, in a second, or in any pattern is that of the sample. Before a clear is
//! deferred for longer, every cleared table provides evidence: the share of its pages that came
//! back within a second determines how long pages that are no longer accessed may be taken for
//! accessed (1 % of the pages at most). If fewer come back than expected, the group is cleared
//! every second again.

use std::collections::BTreeMap;

use agewise_policy::table::PageSet;

/// Time for which setting one accessed bit again stalls the program, in a virtual machine
/// (`docs/inside/measurements.md`); less without nested paging.
pub const RESET_NS: u64 = 400;

/// Number of tables in a group.
const GROUP: u64 = 32;
/// Tables with fewer young pages are cleared at every look: they are cheap, and provide little
/// evidence.
const SPARSE: u32 = 16;
/// Minimum number of young pages for a table to become a sample.
const SAMPLE_MIN: u32 = 64;
/// Share of the pages of a table that may wrongly be taken for accessed.
const TOLERANCE: f64 = 0.01;
/// Longest time a clear is deferred, in seconds.
const PATIENCE_MAX: f64 = 20.0;
/// Amount of evidence, in pages, at which old evidence is halved.
const EVIDENCE_MAX: u32 = 8192;
const SECOND_NS: u64 = 1_000_000_000;
/// How long a table serves as the sample, so that no single table bears all the cost.
const SAMPLE_FOR_NS: u64 = 30 * SECOND_NS;
/// How long the next sample is observed before it takes over: two seconds, since it must know one
/// whole second.
const HEIR_FOR_NS: u64 = 2 * SECOND_NS;
/// How far all clears may be stretched beyond what the evidence allows, to keep the limit.
const STRETCH_MAX: f64 = 30.0;

/// The verdict on a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Pages seen to be accessed since the last look.
    pub seen: PageSet,
    /// Pages inferred to be accessed since then, because pages of the sample were.
    pub inferred: PageSet,
    /// Whether to clear its young bits now.
    pub clear: bool,
}

#[derive(Clone, Debug, Default)]
struct Table {
    /// Bits that were found set and not cleared.
    left: PageSet,
    cleared_ns: u64,
    /// A measurement of how much of what was cleared comes back within a second.
    asked: Option<Asked>,
    /// The look at which it was last seen.
    look: u64,
}

/// Pages that were cleared, and those of them that have come back since.
#[derive(Clone, Copy, Debug)]
struct Asked {
    pages: PageSet,
    came: PageSet,
    since_ns: u64,
}

/// The table of a group whose accesses are all seen.
#[derive(Clone, Debug)]
struct Sample {
    table: u64,
    since_ns: u64,
    second_ns: u64,
    /// Pages accessed in the current second, and in the one before.
    this: PageSet,
    before: PageSet,
    /// For each of these pages in order: whether it was accessed in the last interval.
    rhythm: Vec<bool>,
    look: u64,
}

#[derive(Clone, Debug, Default)]
struct Group {
    sample: Option<Sample>,
    /// The next sample, while its pages are being observed.
    heir: Option<Sample>,
    /// Number of pages whose return was expected, and how many came back.
    asked: u32,
    kept: u32,
}

/// The pace of clearing for one process.
#[derive(Clone, Debug)]
pub struct Pace {
    max_slowdown: f64,
    groups: BTreeMap<u64, Group>,
    tables: BTreeMap<u64, Table>,
    look: u64,
    now_ns: u64,
    last_ns: u64,
    /// Pages cleared at this look, and their moving average per second.
    cleared: u64,
    cleared_per_second: f64,
    stretch: f64,
}

impl Pace {
    /// Limits the cost to this share of the program's time, as far as [`STRETCH_MAX`] permits.
    pub fn new(max_slowdown: f64) -> Pace {
        Pace {
            max_slowdown,
            groups: BTreeMap::new(),
            tables: BTreeMap::new(),
            look: 0,
            now_ns: 0,
            last_ns: 0,
            cleared: 0,
            cleared_per_second: 0.0,
            stretch: 1.0,
        }
    }

    /// Begins a look.
    pub fn begin(&mut self, now_ns: u64) {
        let span = now_ns.saturating_sub(self.last_ns) as f64 / 1e9;
        if self.look > 0 && span > 0.0 {
            let weight = span.min(1.0);
            let rate = self.cleared as f64 / span;
            self.cleared_per_second += weight * (rate - self.cleared_per_second);
            let share = self.cleared_per_second * RESET_NS as f64 / 1e9;
            self.stretch = if share > self.max_slowdown {
                (self.stretch * (1.0 + weight)).min(STRETCH_MAX)
            } else {
                (self.stretch * (1.0 - 0.2 * weight)).max(1.0)
            };
        }
        self.cleared = 0;
        self.look += 1;
        (self.last_ns, self.now_ns) = (now_ns, now_ns);
    }

    /// Ends a look: forgets the tables that it did not show.
    pub fn end(&mut self) {
        let look = self.look;
        self.tables.retain(|_, table| table.look == look);
        for group in self.groups.values_mut() {
            group.sample.take_if(|sample| sample.look != look);
            group.heir.take_if(|heir| heir.look != look);
        }
        let tables = &self.tables;
        self.groups.retain(|&key, _| {
            let first = key * GROUP;
            tables.range(first..first + GROUP).next().is_some()
        });
    }

    /// Judges a table of 512 base pages, numbered address / 2 MiB, that belongs to a single
    /// mapping.
    pub fn table(&mut self, number: u64, present: &PageSet, young: &PageSet) -> Verdict {
        let (now_ns, look) = (self.now_ns, self.look);
        let group = self.groups.entry(number / GROUP).or_default();
        let table = self.tables.entry(number).or_insert_with(|| Table {
            // Staggered, so that not all are cleared at once.
            cleared_ns: now_ns.saturating_sub(spread(number) % SECOND_NS),
            ..Table::default()
        });
        table.look = look;
        let seen = young.without(&table.left);
        let since_ns = now_ns.saturating_sub(table.cleared_ns);
        if let Some(asked) = &mut table.asked {
            asked.came |= *young;
            if now_ns.saturating_sub(asked.since_ns) >= SECOND_NS {
                let pages = asked.pages & *present;
                group.measure(&pages, &(pages & asked.came));
                table.asked = None;
            }
        }
        let mut verdict = Verdict {
            seen,
            ..Verdict::default()
        };
        let mut of_second = None;
        let is_sample = match group.sample(number, now_ns, count(young)) {
            Some(sample) => {
                of_second = sample.see(&seen, now_ns, look);
                true
            }
            None => false,
        };
        if let Some((asked, kept)) = of_second {
            group.measure(&asked, &kept);
        }
        if is_sample {
            verdict.clear = true;
        } else {
            verdict.inferred = group.infer(&(*young & table.left), number);
            let patience = (group.patience_s() * self.stretch * 1e9) as u64;
            verdict.clear = count(young) < SPARSE || since_ns >= patience;
        }
        if verdict.clear {
            if count(young) >= SPARSE && !is_sample {
                table.asked = Some(Asked {
                    pages: *young,
                    came: PageSet::default(),
                    since_ns: now_ns,
                });
            }
            table.left = PageSet::default();
            table.cleared_ns = now_ns;
            self.cleared += u64::from(count(young));
        } else {
            table.left = *young;
        }
        verdict
    }
}

impl Sample {
    fn new(table: u64, now_ns: u64) -> Sample {
        Sample {
            table,
            since_ns: now_ns,
            second_ns: now_ns,
            this: PageSet::default(),
            before: PageSet::default(),
            rhythm: Vec::new(),
            look: 0,
        }
    }

    /// Takes the accesses of the last interval. After each second, returns the pages of the second
    /// before it, and those of them that came back.
    fn see(&mut self, seen: &PageSet, now_ns: u64, look: u64) -> Option<(PageSet, PageSet)> {
        self.look = look;
        let mut of_second = None;
        if now_ns.saturating_sub(self.second_ns) >= SECOND_NS {
            self.second_ns = now_ns;
            of_second = Some((self.before, (self.before & self.this)));
            self.before = std::mem::take(&mut self.this);
        }
        self.rhythm.clear();
        for (word, &seen) in seen.words().iter().enumerate() {
            // A first access is not a return: inferred pages have had theirs.
            let known = self.this[word] | self.before[word];
            self.this[word] |= seen;
            for bit in (0..64).filter(|bit| known >> bit & 1 != 0) {
                self.rhythm.push(seen >> bit & 1 != 0);
            }
        }
        of_second
    }
}

impl Group {
    /// Returns the table's sample, which it becomes if the group needs one.
    fn sample(&mut self, number: u64, now_ns: u64, young: u32) -> Option<&mut Sample> {
        let age_ns = |sample: &Sample| now_ns.saturating_sub(sample.since_ns);
        if self
            .heir
            .as_ref()
            .is_some_and(|heir| age_ns(heir) >= HEIR_FOR_NS)
        {
            self.sample = self.heir.take();
        }
        let of = |sample: &Option<Sample>| sample.as_ref().map(|sample| sample.table);
        let wanted = match &self.sample {
            None => true,
            Some(sample) => self.heir.is_none() && age_ns(sample) >= SAMPLE_FOR_NS,
        };
        if wanted && young >= SAMPLE_MIN && of(&self.sample) != Some(number) {
            let place = match self.sample {
                None => &mut self.sample,
                Some(_) => &mut self.heir,
            };
            *place = Some(Sample::new(number, now_ns));
        }
        [&mut self.sample, &mut self.heir]
            .into_iter()
            .flatten()
            .find(|sample| sample.table == number)
    }

    /// The pages whose counterpart in the sample was just accessed.
    fn infer(&self, pages: &PageSet, number: u64) -> PageSet {
        let mut inferred = PageSet::default();
        let Some(sample) = &self.sample else {
            return inferred;
        };
        let rhythm = &sample.rhythm;
        if rhythm.is_empty() {
            return inferred;
        }
        let mut at = (spread(number) % rhythm.len() as u64) as usize;
        for page in pages.pages() {
            if rhythm[at] {
                inferred.insert(page);
            }
            at = if at + 1 == rhythm.len() { 0 } else { at + 1 };
        }
        inferred
    }

    fn measure(&mut self, asked: &PageSet, kept: &PageSet) {
        let (asked, kept) = (count(asked), count(kept));
        let missing = asked.saturating_sub(kept);
        if f64::from(missing) > (8.0 * TOLERANCE * f64::from(asked)).max(8.0) {
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

    /// How long a clear may be deferred, in seconds.
    fn patience_s(&self) -> f64 {
        // Laplace's rule of succession: little evidence gives little confidence.
        let leave = f64::from(self.asked - self.kept + 1) / f64::from(self.asked + 2);
        ((1.0 - TOLERANCE).ln() / (1.0 - leave).ln()).clamp(1.0, PATIENCE_MAX)
    }
}

/// A hash of a table number, unrelated to those of its neighbours.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

fn count(pages: &PageSet) -> u32 {
    pages.len() as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    use super::*;

    const TABLES: u64 = 64;
    const LOOK_NS: u64 = SECOND_NS / 10;
    const ALL: PageSet = PageSet::ALL;

    /// Relative errors of working sets of one second, pages recorded per page accessed in an
    /// interval, and bits set again per page accessed.
    struct Outcome {
        deviations: Vec<f64>,
        recorded_share: f64,
        reset_share: f64,
    }

    /// Runs `touch` (which maps interval and page to whether it is accessed) for some seconds.
    fn play(seconds: u64, mut touch: impl FnMut(u64, u64) -> bool) -> Outcome {
        let mut pace = Pace::new(0.05);
        let mut set = vec![PageSet::default(); TABLES as usize];
        let (mut touched, mut recorded, mut resets) = (0u64, 0u64, 0u64);
        let mut deviations = Vec::new();
        let (mut truth, mut found) = (HashSet::new(), HashSet::new());
        for interval in 0..seconds * 10 {
            let warm = interval >= 50;
            for page in (0..TABLES * 512).filter(|&page| touch(interval, page)) {
                let (table, word, bit) = (page / 512, page / 64 % 8, page % 64);
                let word = &mut set[table as usize][word as usize];
                resets += u64::from(warm && *word >> bit & 1 == 0);
                *word |= 1 << bit;
                truth.insert(page);
                touched += u64::from(warm);
            }
            pace.begin((interval + 1) * LOOK_NS);
            for table in 0..TABLES {
                let young = set[table as usize];
                let verdict = pace.table(1000 + table, &ALL, &young);
                assert_eq!(verdict.seen & verdict.inferred, PageSet::NONE, "seen twice");
                for (word, young) in young.words().iter().enumerate() {
                    let bits = verdict.seen[word] | verdict.inferred[word];
                    assert_eq!(bits & !young, 0, "what is not young was not accessed");
                    recorded += u64::from(bits.count_ones()) * u64::from(warm);
                    for bit in (0..64u64).filter(|bit| bits >> bit & 1 != 0) {
                        found.insert(table * 512 + word as u64 * 64 + bit);
                    }
                }
                if verdict.clear {
                    set[table as usize] = PageSet::NONE;
                }
            }
            pace.end();
            if interval % 10 == 9 {
                if warm && !truth.is_empty() {
                    deviations.push((found.len() as f64 / truth.len() as f64 - 1.0).abs());
                }
                (truth, found) = (HashSet::new(), HashSet::new());
            }
        }
        Outcome {
            deviations,
            recorded_share: recorded as f64 / touched as f64,
            reset_share: resets as f64 / touched as f64,
        }
    }

    fn most(values: &[f64]) -> f64 {
        values.iter().copied().fold(0.0, f64::max)
    }

    #[test]
    fn uniform_accesses_are_recorded_right_at_a_tenth_of_the_price() {
        let mut random = Pcg64::seed_from_u64(1);
        let outcome = play(40, |_, _| random.random_bool(0.58));
        assert!(most(&outcome.deviations) < 0.02, "{:?}", outcome.deviations);
        assert!(
            (0.95..1.05).contains(&outcome.recorded_share),
            "{}",
            outcome.recorded_share
        );
        assert!(outcome.reset_share < 0.1, "{}", outcome.reset_share);
    }

    /// Each page of the hot half once every half second, a rhythm that random inference would lose.
    #[test]
    fn a_rhythm_is_kept() {
        let half = TABLES * 256;
        let outcome = play(40, |interval, page| page < half && page % 5 == interval % 5);
        assert!(most(&outcome.deviations) < 0.02, "{:?}", outcome.deviations);
        assert!(
            (0.95..1.05).contains(&outcome.recorded_share),
            "{}",
            outcome.recorded_share
        );
    }

    /// What is accessed once is recorded about once: a scan is not a working set.
    #[test]
    fn a_scan_is_not_multiplied() {
        let pages = TABLES * 512;
        let outcome = play(40, |interval, page| page / (pages / 100) == interval % 100);
        assert!(
            (0.98..1.1).contains(&outcome.recorded_share),
            "{}",
            outcome.recorded_share
        );
    }

    /// The program stops using half of its memory: within a minute, none of it is recorded.
    #[test]
    fn what_is_left_is_found_out() {
        let mut late = 0;
        let outcome = play(60, |interval, page| interval < 200 || page % 512 < 256);
        for deviation in &outcome.deviations[35..] {
            late += usize::from(*deviation > 0.02);
        }
        assert_eq!(late, 0, "{:?}", outcome.deviations);
    }

    #[test]
    fn few_pages_are_always_seen() {
        let outcome = play(10, |_, page| page % 64 == 7);
        assert_eq!((outcome.recorded_share, outcome.reset_share), (1.0, 1.0));
    }
}
