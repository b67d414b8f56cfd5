// SPDX-License-Identifier: Apache-2.0
//! Compares what agewise saw with what the exerciser knows.

use serde::Serialize;

/// The span in which an access must show up as a young page: from one reading of its page table to
/// the next. An access between a reading and the clearing after it is lost, and counts as missed.
/// Times are CLOCK_MONOTONIC ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Start of the previous reading.
    pub before_begin_ns: u64,
    /// End of the previous reading.
    pub before_end_ns: u64,
    /// Start of this reading.
    pub now_begin_ns: u64,
}

/// Number of pages by what happened and what was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Accessed and seen young.
    pub accessed_seen: u64,
    /// Accessed and not seen young.
    pub accessed_missed: u64,
    /// Not accessed and seen young.
    pub unaccessed_seen: u64,
    /// Not accessed and not seen young.
    pub unaccessed_unseen: u64,
    /// Last accessed while a table was being read, or later: undecidable.
    pub undecided: u64,
}

impl Tally {
    /// Judges one page, or a huge page by its latest access.
    #[inline]
    pub fn judge(&mut self, span: Span, last_access_ns: u64, young: bool) {
        let field = if last_access_ns >= span.now_begin_ns {
            &mut self.undecided
        } else if last_access_ns > span.before_end_ns {
            if young {
                &mut self.accessed_seen
            } else {
                &mut self.accessed_missed
            }
        } else if last_access_ns < span.before_begin_ns {
            if young {
                &mut self.unaccessed_seen
            } else {
                &mut self.unaccessed_unseen
            }
        } else {
            &mut self.undecided
        };
        *field += 1;
    }

    /// Pages that could be judged.
    pub fn judged(&self) -> u64 {
        self.accessed_seen + self.accessed_missed + self.unaccessed_seen + self.unaccessed_unseen
    }

    /// Share of accessed pages that were not seen.
    pub fn missed_ratio(&self) -> f64 {
        ratio(
            self.accessed_missed,
            self.accessed_seen + self.accessed_missed,
        )
    }

    /// Share of pages not accessed that were seen young.
    pub fn false_ratio(&self) -> f64 {
        ratio(
            self.unaccessed_seen,
            self.unaccessed_seen + self.unaccessed_unseen,
        )
    }
}

/// `part` as a share of `whole`; 0 if `whole` is 0.
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_judged_by_the_span_between_two_readings() {
        let span = Span {
            before_begin_ns: 100,
            before_end_ns: 110,
            now_begin_ns: 200,
        };
        let mut tally = Tally::default();
        tally.judge(span, 150, true);
        tally.judge(span, 150, true);
        tally.judge(span, 199, false);
        tally.judge(span, 99, true);
        tally.judge(span, 50, false);
        tally.judge(span, 0, false);
        for undecided in [100, 110, 200, 300] {
            tally.judge(span, undecided, true);
        }
        let expected = Tally {
            accessed_seen: 2,
            accessed_missed: 1,
            unaccessed_seen: 1,
            unaccessed_unseen: 2,
            undecided: 4,
        };
        assert_eq!(tally, expected);
        assert!((tally.missed_ratio() - 1.0 / 3.0).abs() < 1e-12);
        assert!((tally.false_ratio() - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(Tally::default().missed_ratio(), 0.0);
    }
}
