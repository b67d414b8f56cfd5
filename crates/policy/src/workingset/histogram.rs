// SPDX-License-Identifier: Apache-2.0
//! From generations to bins of age.
//!
//! Source: "mm: workingset reporting" v4, patch 1 (`collect_page_age`, `collect_page_age_type`
//! there). The pages of a generation are assumed to be spread evenly over its interval. Here the
//! share of a bin is multiplied before it is divided, in 128 bits, so that no page is lost and none
//! moves because its generation is small.

use std::fmt;
use std::str::FromStr;

use super::intervals::{Bin, NO_UPPER_BOUND_MS};
use super::{BINS_MAX, Intervals};
use crate::generations::{ByType, Generations, LABEL_UNSEEN, PageType, Sizes};

/// Where to count pages of which only a minimum age is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OldestPages {
    /// In the bin of the age they certainly have, as the kernel does.
    #[default]
    AtLeast,
    /// In the last bin (`oldest_unbounded`).
    Unbounded,
}

/// The pages of one generation, to be added to a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// When its interval starts.
    pub birth_ms: u64,
    /// Pages, of one type.
    pub pages: u64,
    /// Those of them that are older than the interval, because they were drained into it from older
    /// generations. Only [`OldestPages::Unbounded`] distinguishes them.
    pub drained_pages: u64,
}

/// How much memory is how old. Bins are not cumulative: bin `i` counts ages above bound `i - 1`
/// up to bound `i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    bins: Vec<Bin>,
}

impl Histogram {
    /// An empty histogram with a bin for each bound and one for everything older.
    pub fn new(intervals: &Intervals) -> Self {
        let bounds = intervals
            .bounds_ms()
            .iter()
            .copied()
            .chain([NO_UPPER_BOUND_MS]);
        Histogram {
            bins: bounds
                .map(|upper_ms| Bin {
                    upper_ms,
                    amounts: [0; 2],
                })
                .collect(),
        }
    }

    /// The bins, youngest first.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// The sum of all bins, saturated.
    pub fn total(&self) -> ByType<u64> {
        self.bins.iter().fold([0; 2], |sum, bin| {
            [0, 1].map(|of| sum[of].saturating_add(bin.amounts[of]))
        })
    }

    /// The same, without the amounts of one type.
    #[must_use]
    pub fn without(mut self, page_type: PageType) -> Self {
        let bins = self.bins.iter_mut();
        bins.for_each(|bin| bin.amounts[page_type as usize] = 0);
        self
    }

    /// Adds the pages of a window with the given sizes (its own, or those of a range or part).
    pub fn add_window(
        &mut self,
        window: &Generations,
        sizes: &Sizes,
        now_ms: u64,
        oldest: OldestPages,
    ) {
        for page_type in PageType::ALL {
            let slices = window.iter().rev().map(|(label, generation)| Slice {
                birth_ms: generation.birth_ms,
                pages: sizes[usize::from(label)][page_type as usize],
                drained_pages: 0,
            });
            self.add_generations(page_type, slices, now_ms, oldest);
            let unseen = sizes[usize::from(LABEL_UNSEEN)][page_type as usize];
            let since_ms = window.unseen_since_ms().unwrap_or(now_ms);
            self.add_at_least(page_type, unseen, now_ms.saturating_sub(since_ms), oldest);
        }
    }

    /// Adds the pages of one type of one lruvec: its generations from the youngest to the oldest.
    ///
    /// The interval of the youngest ends now, that of any other where the next younger one begins.
    /// A generation that spans several bins is divided in proportion; whatever rounding leaves goes
    /// to the older bin, so the total is conserved exactly.
    pub fn add_generations(
        &mut self,
        page_type: PageType,
        slices: impl Iterator<Item = Slice>,
        now_ms: u64,
        oldest: OldestPages,
    ) {
        let page_type = page_type as usize;
        let mut bin = 0;
        let mut start_ms = now_ms;
        for slice in slices {
            let next_ms = slice.birth_ms;
            let end_ms = slice.birth_ms.min(start_ms);
            let mut left = slice.pages;
            if oldest == OldestPages::Unbounded {
                let drained = slice.drained_pages.min(left);
                let last = self.bins.len() - 1;
                self.bins[last].amounts[page_type] += drained;
                left -= drained;
            }
            while bin + 1 < self.bins.len() {
                // The bound as a time. If that is before the clock began, nothing is that old.
                let Some(edge_ms) = now_ms.checked_sub(self.bins[bin].upper_ms) else {
                    break;
                };
                if end_ms >= edge_ms {
                    break;
                }
                let width_ms = start_ms - end_ms;
                if width_ms == 0 {
                    break;
                }
                let younger_ms = start_ms.saturating_sub(edge_ms);
                let share = u128::from(left) * u128::from(younger_ms) / u128::from(width_ms);
                let share = share as u64;
                self.bins[bin].amounts[page_type] += share;
                left -= share;
                start_ms = start_ms.min(edge_ms);
                bin += 1;
            }
            self.bins[bin].amounts[page_type] += left;
            start_ms = next_ms.min(start_ms);
        }
    }

    /// Adds pages that are at least this old.
    pub fn add_at_least(
        &mut self,
        page_type: PageType,
        pages: u64,
        age_ms: u64,
        oldest: OldestPages,
    ) {
        let last = self.bins.len() - 1;
        let bin = match oldest {
            OldestPages::Unbounded => last,
            OldestPages::AtLeast => self.bins.partition_point(|bin| bin.upper_ms < age_ms),
        };
        self.bins[bin.min(last)].amounts[page_type as usize] += pages;
    }

    /// Adds another histogram with the same bounds, for a target of several processes; saturates.
    ///
    /// # Panics
    /// If the bounds differ: callers must use one list of intervals.
    pub fn add(&mut self, other: &Histogram) {
        let bounds = self.bins.iter().map(|bin| bin.upper_ms);
        let is_same = bounds.eq(other.bins.iter().map(|bin| bin.upper_ms));
        assert!(is_same, "histograms of different bounds");
        for (bin, other) in self.bins.iter_mut().zip(&other.bins) {
            for (amount, more) in bin.amounts.iter_mut().zip(other.amounts) {
                *amount = amount.saturating_add(more);
            }
        }
    }

    /// Adds a histogram with other bounds. The contents of each of its bins are assumed to be
    /// spread evenly over the ages of the bin, and those beyond its last bound to be just that old.
    /// If the bounds are equal, this is the same as [`add`](Self::add).
    pub fn add_spread(&mut self, other: &Histogram) {
        // A clock far enough from zero for every bound.
        const NOW_MS: u64 = u64::MAX;
        let Some((last, finite)) = other.bins.split_last() else {
            return;
        };
        for page_type in PageType::ALL {
            let slices = finite.iter().map(|bin| Slice {
                birth_ms: NOW_MS - bin.upper_ms,
                pages: bin.amounts[page_type as usize],
                drained_pages: 0,
            });
            self.add_generations(page_type, slices, NOW_MS, OldestPages::AtLeast);
            let beyond_ms = finite
                .last()
                .map_or(0, |bin| bin.upper_ms.saturating_add(1));
            let pages = last.amounts[page_type as usize];
            self.add_at_least(page_type, pages, beyond_ms, OldestPages::AtLeast);
        }
    }

    /// The same in bytes, if the amounts are pages of this size.
    pub fn scaled(&self, page_size_bytes: u64) -> Histogram {
        self.map(|amount| amount.saturating_mul(page_size_bytes))
    }

    /// The same if only `part` of `whole` is there, at the same ages.
    pub fn part_of(&self, part: u64, whole: u64) -> Histogram {
        let of = |amount: u64| u128::from(amount) * u128::from(part) / u128::from(whole.max(1));
        self.map(|amount| u64::try_from(of(amount)).unwrap_or(u64::MAX))
    }

    fn map(&self, f: impl Fn(u64) -> u64) -> Histogram {
        let mut mapped = self.clone();
        for amount in mapped.bins.iter_mut().flat_map(|bin| &mut bin.amounts) {
            *amount = f(*amount);
        }
        mapped
    }
}

impl fmt::Display for Histogram {
    /// One line per bin: `1000 anon=137368 file=24530`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for bin in &self.bins {
            writeln!(
                f,
                "{} anon={} file={}",
                bin.upper_ms, bin.amounts[0], bin.amounts[1]
            )?;
        }
        Ok(())
    }
}

/// Why text is not a histogram.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A line has another form.
    #[error("line {line} is not `<upper ms> anon=<bytes> file=<bytes>`: {text:?}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// Bounds do not increase, or there are too many.
    #[error("line {line}: bounds must increase, {BINS_MAX} at most")]
    Bounds {
        /// Its number, from 1.
        line: usize,
    },
    /// The last bin has an upper bound.
    #[error("the last line must have the bound {NO_UPPER_BOUND_MS}")]
    NoLastBin,
}

impl FromStr for Histogram {
    type Err = ParseError;

    /// Parses the output of [`Display`](fmt::Display). The last bound may be 9223372036854775807,
    /// as in the cover letter of the series; it means the same bin.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut bins: Vec<Bin> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let bin = parse_line(line).ok_or_else(|| ParseError::Line {
                line: number + 1,
                text: line.to_owned(),
            })?;
            if bins.len() == BINS_MAX || bins.last().is_some_and(|b| b.upper_ms >= bin.upper_ms) {
                return Err(ParseError::Bounds { line: number + 1 });
            }
            bins.push(bin);
        }
        match bins.last_mut() {
            Some(last) if last.upper_ms == NO_UPPER_BOUND_MS => {}
            Some(last) if last.upper_ms == i64::MAX as u64 => last.upper_ms = NO_UPPER_BOUND_MS,
            _ => return Err(ParseError::NoLastBin),
        }
        Ok(Histogram { bins })
    }
}

fn parse_line(line: &str) -> Option<Bin> {
    let mut fields = line.split_ascii_whitespace();
    let upper_ms = fields.next()?.parse().ok()?;
    let anon = fields.next()?.strip_prefix("anon=")?.parse().ok()?;
    let file = fields.next()?.strip_prefix("file=")?.parse().ok()?;
    fields.next().is_none().then_some(Bin {
        upper_ms,
        amounts: [anon, file],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bins_of(intervals: &str, slices: &[(u64, u64)], now_ms: u64) -> Vec<u64> {
        let mut histogram = Histogram::new(&intervals.parse().unwrap());
        let slices = slices.iter().map(|(birth_ms, pages)| Slice {
            birth_ms: *birth_ms,
            pages: *pages,
            drained_pages: 0,
        });
        histogram.add_generations(PageType::Anon, slices, now_ms, OldestPages::AtLeast);
        histogram.bins().iter().map(|bin| bin.amounts[0]).collect()
    }

    /// Generations born 0.1, 5, 20 and 60 s ago; bins of 1, 2 and 10 s. By hand: the second is 0.1
    /// to 5 s old: 0.9/4.9 of it is below 1 s, then 1/4 of the remaining 4 s is below 2 s. The
    /// third is 5 to 20 s old: a third of it is below 10 s.
    #[test]
    fn shares_by_hand() {
        let now_ms = 100_000;
        let slices = [(99_900, 100), (95_000, 4900), (80_000, 3000), (40_000, 777)];
        assert_eq!(
            bins_of("1s,2s,10s", &slices, now_ms),
            [100 + 900, 1000, 3000 + 1000, 2000 + 777]
        );
    }

    #[test]
    fn a_small_generation_is_not_truncated_away() {
        // One page over 10 s: dividing before multiplying would lose the share of every bin.
        assert_eq!(bins_of("5s,8s", &[(90_000, 10)], 100_000), [5, 3, 2]);
        assert_eq!(bins_of("5s,8s", &[(90_000, 1)], 100_000), [0, 0, 1]);
    }

    #[test]
    fn generations_that_were_never_walked_share_a_birth() {
        let slices = [(50_000, 8), (50_000, 7), (50_000, 6), (50_000, 5)];
        assert_eq!(bins_of("10s,100s", &slices, 90_000), [2, 24, 0]);
        assert_eq!(bins_of("10s,20s", &slices, 50_000), [26, 0, 0]);
    }

    #[test]
    fn a_generation_that_ends_on_a_bound_is_within_it() {
        let slices = [(100_000, 0), (99_000, 10), (95_000, 20), (70_000, 30)];
        assert_eq!(bins_of("1s,5s,30s", &slices, 100_000), [10, 20, 30, 0]);
    }

    #[test]
    fn bounds_beyond_the_clock_hold_everything() {
        assert_eq!(bins_of("1s,1h", &[(400, 5), (0, 6)], 500), [11, 0, 0]);
    }

    #[test]
    fn unbounded_sends_what_was_drained_to_the_last_bin() {
        for (oldest, wanted) in [
            (OldestPages::AtLeast, [4, 10, 0]),
            (OldestPages::Unbounded, [4, 4, 6]),
        ] {
            let mut histogram = Histogram::new(&"1s,5s".parse().unwrap());
            let slices = [
                Slice {
                    birth_ms: 99_500,
                    pages: 4,
                    drained_pages: 0,
                },
                Slice {
                    birth_ms: 99_000,
                    pages: 0,
                    drained_pages: 0,
                },
                Slice {
                    birth_ms: 96_000,
                    pages: 10,
                    drained_pages: 6,
                },
            ];
            histogram.add_generations(PageType::File, slices.into_iter(), 100_000, oldest);
            let file: Vec<u64> = histogram.bins().iter().map(|bin| bin.amounts[1]).collect();
            assert_eq!(file, wanted);
        }
    }

    #[test]
    fn at_least_goes_to_the_bin_that_holds_the_age() {
        let mut histogram = Histogram::new(&"1s,5s".parse().unwrap());
        for (age_ms, pages) in [(0, 1), (1000, 2), (1001, 4), (5000, 8), (5001, 16)] {
            histogram.add_at_least(PageType::Anon, pages, age_ms, OldestPages::AtLeast);
        }
        histogram.add_at_least(PageType::Anon, 32, 0, OldestPages::Unbounded);
        let anon: Vec<u64> = histogram.bins().iter().map(|bin| bin.amounts[0]).collect();
        assert_eq!(anon, [3, 12, 48]);
    }

    #[test]
    fn a_window_counts_what_was_never_seen_by_how_long_it_was_watched() {
        let mut window = Generations::new(0, 8, u64::MAX);
        let _ = window.advance(10_000);
        let _ = window.advance(11_000);
        window.sizes_mut()[usize::from(LABEL_UNSEEN)] = [7, 9];
        window.sizes_mut()[3] = [5, 0];
        let mut histogram = Histogram::new(&"1s,5s,30s".parse().unwrap());
        histogram.add_window(&window, window.sizes(), 20_000, OldestPages::AtLeast);
        let amounts: Vec<_> = histogram.bins().iter().map(|bin| bin.amounts).collect();
        assert_eq!(amounts, [[0, 0], [0, 0], [12, 9], [0, 0]]);
    }

    #[test]
    fn text_is_that_of_the_source_document() {
        let mut histogram = Histogram::new(&"1s,20s".parse().unwrap());
        histogram.add_at_least(PageType::Anon, 137_368, 1, OldestPages::AtLeast);
        histogram.add_at_least(PageType::File, 24_530, 1, OldestPages::AtLeast);
        let text = "1000 anon=137368 file=24530\n20000 anon=0 file=0\n\
                    18446744073709551615 anon=0 file=0\n";
        assert_eq!(histogram.to_string(), text);
        assert_eq!(text.parse::<Histogram>().unwrap(), histogram);
        let cover = text.replace("18446744073709551615", "9223372036854775807");
        assert_eq!(cover.parse::<Histogram>().unwrap(), histogram);
    }

    #[test]
    fn text_of_another_shape_is_refused() {
        let parse = |text: &str| text.parse::<Histogram>();
        assert_eq!(parse(""), Err(ParseError::NoLastBin));
        assert_eq!(parse("1000 anon=1 file=2\n"), Err(ParseError::NoLastBin));
        for bad in [
            "1000",
            "x anon=1 file=1",
            "1 file=1 anon=1",
            "1 anon=1 file=1 x",
            "1 anon=-1 file=1",
        ] {
            assert!(
                matches!(parse(bad), Err(ParseError::Line { line: 1, .. })),
                "{bad}"
            );
        }
        let unordered = "2 anon=0 file=0\n1 anon=0 file=0\n";
        assert_eq!(parse(unordered), Err(ParseError::Bounds { line: 2 }));
    }

    proptest! {
        /// Spreading over other bounds loses nothing; over the same bounds it changes nothing.
        #[test]
        fn spreading_conserves(
            from in prop::collection::btree_set(1u64..9000, 0..31),
            to in prop::collection::btree_set(1u64..9000, 0..31),
            amounts in prop::collection::vec((0u64..1 << 40, 0u64..1 << 40), 32),
        ) {
            let of = |bounds: std::collections::BTreeSet<u64>| {
                Histogram::new(&Intervals::new(bounds.into_iter().collect()).unwrap())
            };
            let (mut other, mut into) = (of(from), of(to));
            let mut same = other.clone();
            for (bin, amounts) in other.bins.iter_mut().zip(&amounts) {
                bin.amounts = [amounts.0, amounts.1];
            }
            into.add_spread(&other);
            same.add_spread(&other);
            prop_assert_eq!(into.total(), other.total());
            prop_assert_eq!(same, other);
        }

        /// No page is lost or invented, whatever the births, bounds and sizes.
        #[test]
        fn the_total_is_conserved(
            mut births in prop::collection::vec(0u64..10_000, 1..40),
            pages in prop::collection::vec(prop_oneof![0u64..5, any::<u32>().prop_map_into()], 40),
            bounds in prop::collection::btree_set(1u64..12_000, 0..31),
            later_ms in 0u64..1000,
        ) {
            births.sort_unstable_by(|a, b| b.cmp(a));
            let now_ms = births[0] + later_ms;
            let slices = births.iter().zip(&pages).map(|(birth_ms, pages)| Slice {
                birth_ms: *birth_ms,
                pages: *pages,
                drained_pages: 0,
            });
            let total: u64 = slices.clone().map(|slice| slice.pages).sum();
            let intervals = Intervals::new(bounds.into_iter().collect()).unwrap();
            let mut histogram = Histogram::new(&intervals);
            histogram.add_generations(PageType::Anon, slices.clone(), now_ms, OldestPages::AtLeast);
            prop_assert_eq!(histogram.total(), [total, 0]);

            // Cumulative counts are within the limits of the intervals, up to one page per
            // generation.
            for (i, bin) in histogram.bins().iter().enumerate() {
                let Some(edge_ms) = now_ms.checked_sub(bin.upper_ms) else { continue };
                let up_to: u64 = histogram.bins()[..=i].iter().map(|bin| bin.amounts[0]).sum();
                let certainly: u64 = slices.clone()
                    .filter(|s| s.birth_ms >= edge_ms).map(|s| s.pages).sum();
                prop_assert!(up_to + births.len() as u64 >= certainly);
            }
            prop_assert_eq!(histogram.to_string().parse::<Histogram>().unwrap(), histogram);
        }
    }
}
