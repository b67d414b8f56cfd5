// SPDX-License-Identifier: Apache-2.0
//! Curves by hour and by day, in bounded memory, with an encoding that survives a restart.
//!
//! ```text
//! offset  bytes
//!      0      8  "agewhtif"
//!      8      2  version, 1
//!     10      1  hours kept; the days follow them
//!     11      1  days kept
//!     12      2  bytes of the name
//!     14         the name
//!            856 n  the times kept: begin (Unix ms), full_bytes, observed_ms, unused_bytes,
//!                   beyond_bytes (8 each), and 408 rates
//!    end      8  checksum of all before
//! ```
//!
//! Numbers are little-endian. A rate is two bytes: 0 is none, 65535 unbounded, and others are 2^(n
//! / 1000 - 25) per second: accurate to a thousandth.

use std::collections::VecDeque;

use super::curve::{Curve, Curves, Decider, Estimate, Point, SIZES};
use crate::mix;

/// Hours kept: a whole day of them, and the one that has begun.
pub const HOURS: usize = 25;
/// Days kept: two whole weeks, and the one that has begun.
pub const DAYS: usize = 15;

/// Length of an hour.
pub const HOUR_MS: u64 = 3_600_000;
/// Length of a day.
pub const DAY_MS: u64 = 24 * HOUR_MS;

const MAGIC: &[u8; 8] = b"agewhtif";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 14;
/// Rates of one period: three per decider, size and kind.
const RATES: usize = Decider::ALL.len() * SIZES * 2 * 3;
/// Numbers of one period in front of its rates.
const NUMBERS: usize = 5;
const KEPT_BYTES: usize = NUMBERS * 8 + RATES * 2;

/// Why bytes are not a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// They do not start like a history.
    #[error("it is not a history of curves")]
    Foreign,
    /// A newer program wrote them.
    #[error("it has version {0}, this program knows {VERSION}")]
    Version(u16),
    /// They end too early, are too long, or were changed.
    #[error("it is cut short or damaged")]
    Damaged,
}

/// Curves of one hour or one day.
#[derive(Clone, Debug, PartialEq)]
struct Kept {
    /// Unix time, ms.
    begin_ms: u64,
    full_bytes: u64,
    observed_ms: u64,
    unused_bytes: u64,
    beyond_bytes: u64,
    rates: Box<[u16; RATES]>,
}

/// Curves by hour and by day. Takes about 34 KiB when full.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    hours: VecDeque<Kept>,
    days: VecDeque<Kept>,
}

impl History {
    /// Adds the curves of the period from `begin_ms` (Unix time) until now. If the clock went back
    /// since the last call, it is treated as stopped; if by more than an hour (for days: a day), it
    /// was wrong, and what was kept for times after that is dropped: it would take in all that
    /// follows until the clock gets there.
    pub fn add(&mut self, begin_ms: u64, curves: &Curves) {
        if curves.observed_ms == 0 {
            return;
        }
        add(&mut self.hours, HOURS, HOUR_MS, begin_ms, curves);
        add(&mut self.days, DAYS, DAY_MS, begin_ms, curves);
    }

    /// The hours kept, oldest first: the begin of each (Unix ms), and its curves.
    pub fn hours(&self) -> impl ExactSizeIterator<Item = (u64, Curves)> {
        self.hours.iter().map(|kept| (kept.begin_ms, kept.curves()))
    }

    /// The same by day (UTC).
    pub fn days(&self) -> impl ExactSizeIterator<Item = (u64, Curves)> {
        self.days.iter().map(|kept| (kept.begin_ms, kept.curves()))
    }

    /// Encodes the history with the `name` of its subject, in at most 64 KiB for any name the
    /// kernel allows. Longer names are cut at 65535 bytes.
    pub fn encode(&self, name: &str) -> Vec<u8> {
        let name = &name.as_bytes()[..name.len().min(usize::from(u16::MAX))];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([self.hours.len() as u8, self.days.len() as u8]);
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend(name);
        for kept in self.hours.iter().chain(&self.days) {
            for number in kept.numbers() {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(kept.rates.iter().flat_map(|rate| rate.to_le_bytes()));
        }
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Decodes the name and the history.
    ///
    /// # Errors
    /// [`HistoryError`] if the bytes are not a history.
    pub fn decode(bytes: &[u8]) -> Result<(String, Self), HistoryError> {
        if !bytes.starts_with(MAGIC) {
            return Err(HistoryError::Foreign);
        }
        let version = bytes.get(8..10).and_then(|two| two.try_into().ok());
        match u16::from_le_bytes(version.ok_or(HistoryError::Damaged)?) {
            VERSION => {}
            other => return Err(HistoryError::Version(other)),
        }
        let counts = bytes.get(10..HEAD_BYTES).ok_or(HistoryError::Damaged)?;
        let (hours, days) = (usize::from(counts[0]), usize::from(counts[1]));
        let name_end = HEAD_BYTES + usize::from(u16::from_le_bytes([counts[2], counts[3]]));
        let length = name_end + (hours + days) * KEPT_BYTES;
        let (rest, sum) = bytes
            .split_at_checked(length)
            .ok_or(HistoryError::Damaged)?;
        let is_sound = sum == checksum(rest).to_le_bytes() && hours <= HOURS && days <= DAYS;
        if !is_sound {
            return Err(HistoryError::Damaged);
        }
        let name = String::from_utf8_lossy(&rest[HEAD_BYTES..name_end]).into_owned();
        let mut kept = rest[name_end..].chunks_exact(KEPT_BYTES).map(Kept::decode);
        let history = History {
            hours: kept.by_ref().take(hours).collect(),
            days: kept.collect(),
        };
        Ok((name, history))
    }
}

fn add(all: &mut VecDeque<Kept>, most: usize, span_ms: u64, begin_ms: u64, curves: &Curves) {
    let begin_ms = begin_ms - begin_ms % span_ms;
    // If nothing is older, it is the clock of now that is wrong.
    if all.front().is_some_and(|first| first.begin_ms <= begin_ms) {
        all.retain(|kept| kept.begin_ms <= begin_ms.saturating_add(span_ms));
    }
    match all.back_mut() {
        Some(last) if last.begin_ms >= begin_ms => {
            *last = Kept::new(last.begin_ms, &last.curves().merged(curves));
        }
        _ => all.push_back(Kept::new(begin_ms, curves)),
    }
    while all.len() > most {
        all.pop_front();
    }
}

impl Kept {
    fn new(begin_ms: u64, curves: &Curves) -> Self {
        let points = curves.curves.iter().flat_map(|curve| &curve.points);
        let estimates = points.flat_map(|point| point.faults);
        let rates = estimates.flat_map(|of| [of.low, of.likely, of.high].map(to_rate));
        let mut kept = Kept {
            begin_ms,
            full_bytes: curves.full_bytes,
            observed_ms: curves.observed_ms,
            unused_bytes: curves.unused_bytes,
            beyond_bytes: curves.beyond_bytes,
            rates: Box::new([0; RATES]),
        };
        kept.rates
            .iter_mut()
            .zip(rates)
            .for_each(|(to, rate)| *to = rate);
        kept
    }

    fn curves(&self) -> Curves {
        let estimate = |at: usize| {
            let rate = |of: usize| from_rate(self.rates[at * 3 + of]);
            Estimate {
                low: rate(0),
                likely: rate(1),
                high: rate(2),
            }
        };
        let point = |at: usize| Point {
            faults: [estimate(at * 2), estimate(at * 2 + 1)],
        };
        Curves {
            full_bytes: self.full_bytes,
            observed_ms: self.observed_ms,
            unknown_per_second: 0.0,
            seen_per_second: 0.0,
            uses_per_second: 0.0,
            unused_bytes: self.unused_bytes,
            beyond_bytes: self.beyond_bytes,
            curves: std::array::from_fn(|decider| Curve {
                points: std::array::from_fn(|size| point(decider * SIZES + size)),
            }),
            reuse: None,
        }
    }

    fn numbers(&self) -> [u64; NUMBERS] {
        [
            self.begin_ms,
            self.full_bytes,
            self.observed_ms,
            self.unused_bytes,
            self.beyond_bytes,
        ]
    }

    /// Decodes exactly [`KEPT_BYTES`] bytes.
    fn decode(bytes: &[u8]) -> Self {
        let (numbers, rates) = bytes.split_at(NUMBERS * 8);
        let number = |at: usize| {
            let bytes = numbers[at * 8..].first_chunk();
            u64::from_le_bytes(bytes.copied().unwrap_or_default())
        };
        let mut kept = Kept {
            begin_ms: number(0),
            full_bytes: number(1),
            observed_ms: number(2),
            unused_bytes: number(3),
            beyond_bytes: number(4),
            rates: Box::new([0; RATES]),
        };
        for (to, rate) in kept.rates.iter_mut().zip(rates.chunks_exact(2)) {
            *to = u16::from_le_bytes([rate[0], rate[1]]);
        }
        kept
    }
}

const STEPS: f64 = 1000.0;
const LOWEST: f64 = 25.0;
const UNBOUNDED: u16 = u16::MAX;

fn to_rate(per_second: f64) -> u16 {
    if per_second.is_infinite() {
        return UNBOUNDED;
    }
    let step = (per_second.log2() + LOWEST) * STEPS;
    // Less than one fault per year is none. The cast saturates, and maps NaN to 0.
    step.round().min(f64::from(UNBOUNDED - 1)) as u16
}

fn from_rate(rate: u16) -> f64 {
    match rate {
        0 => 0.0,
        UNBOUNDED => f64::INFINITY,
        step => (f64::from(step) / STEPS - LOWEST).exp2(),
    }
}

/// A number for the file name of a subject, the same in every version.
pub fn name_hash(name: &str) -> u64 {
    checksum(name.as_bytes())
}

fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(mix::hash(bytes.len() as u64), |sum, word| {
        mix::hash(sum ^ word)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn curves(seed: u64, full_bytes: u64) -> Curves {
        let rate = |at: usize| (mix::hash(seed ^ at as u64) % 100_000) as f64 / 10.0;
        let estimate = |at: usize| Estimate {
            low: rate(at) / 2.0,
            likely: rate(at),
            high: if at.is_multiple_of(7) {
                f64::INFINITY
            } else {
                rate(at) * 2.0
            },
        };
        Curves {
            full_bytes,
            observed_ms: 600_000,
            unknown_per_second: 0.0,
            seen_per_second: 0.0,
            uses_per_second: 0.0,
            unused_bytes: 5,
            beyond_bytes: seed,
            curves: std::array::from_fn(|decider| Curve {
                points: std::array::from_fn(|size| Point {
                    faults: [estimate(decider * 99 + size), estimate(500 + size)],
                }),
            }),
            reuse: None,
        }
    }

    fn filled() -> History {
        let mut history = History::default();
        for hour in 0..24 * 20 {
            history.add(1_700_000_000_000 + hour * HOUR_MS, &curves(hour, 1 << 30));
        }
        history
    }

    #[test]
    fn a_full_history_is_small_and_comes_back() {
        let history = filled();
        assert_eq!((history.hours().len(), history.days().len()), (HOURS, DAYS));
        let name = "/n".repeat(128);
        let bytes = history.encode(&name);
        assert!(bytes.len() <= 64 << 10, "{}", bytes.len());
        assert_eq!(History::decode(&bytes), Ok((name, history.clone())));
        let (begin_ms, last) = history.hours().last().unwrap();
        assert_eq!(begin_ms % HOUR_MS, 0);
        let was = curves(24 * 20 - 1, 1 << 30);
        for (kept, was) in last.curves[0].points.iter().zip(&was.curves[0].points) {
            let (kept, was) = (kept.faults[0], was.faults[0]);
            assert!((kept.likely - was.likely).abs() <= was.likely * 1e-3);
            assert_eq!(kept.high.is_infinite(), was.high.is_infinite());
        }
    }

    #[test]
    fn times_that_go_back_stand_still() {
        let mut history = History::default();
        history.add(10 * HOUR_MS, &curves(1, 1 << 30));
        history.add(10 * HOUR_MS - 1, &curves(2, 2 << 30));
        assert_eq!(history.hours().len(), 1);
        let (begin_ms, merged) = history.hours().last().unwrap();
        assert_eq!((begin_ms, merged.observed_ms), (10 * HOUR_MS, 1_200_000));
        assert_eq!(merged.full_bytes, 2 << 30);
        history.add(u64::MAX - 5, &curves(3, 1 << 30));
        assert_eq!((history.hours().len(), history.days().len()), (2, 2));
    }

    #[test]
    fn a_clock_that_was_ahead_spoils_nothing_that_follows() {
        let mut history = History::default();
        let hours = [10, 11, 300_000, 300_001, 12, 13];
        for hour in hours {
            history.add(hour * HOUR_MS, &curves(hour, 1 << 30));
        }
        let kept: Vec<u64> = history.hours().map(|(at_ms, _)| at_ms / HOUR_MS).collect();
        assert_eq!(kept, [10, 11, 12, 13]);
        let observed: Vec<u64> = history.days().map(|(_, day)| day.observed_ms).collect();
        assert_eq!(observed, [4 * 600_000], "one day");
        // One that is behind everything, before the time is set.
        history.add(HOUR_MS, &curves(1, 1 << 30));
        assert_eq!(history.hours().len(), 4);
    }

    #[test]
    fn what_is_damaged_says_so() {
        let bytes = filled().encode("/web");
        assert_eq!(History::decode(b""), Err(HistoryError::Foreign));
        assert_eq!(History::decode(b"agewhtif"), Err(HistoryError::Damaged));
        let mut later = bytes.clone();
        later[8] = 9;
        assert_eq!(History::decode(&later), Err(HistoryError::Version(9)));
        assert_eq!(
            History::decode(&[&bytes[..], &[0]].concat()),
            Err(HistoryError::Damaged)
        );
    }

    proptest! {
        #[test]
        fn damage_anywhere_is_noticed(at in any::<prop::sample::Index>(), flip in 1u8..) {
            let bytes = filled().encode("/web");
            let at = at.index(bytes.len());
            prop_assert!(History::decode(&bytes[..at]).is_err());
            let mut changed = bytes;
            changed[at] ^= flip;
            prop_assert!(History::decode(&changed).is_err());
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(History::decode(&[MAGIC, &bytes[..]].concat()).is_err());
        }

        #[test]
        fn rates_are_right_to_a_thousandth(rate in 1e-6f64..1e9) {
            let back = from_rate(to_rate(rate));
            prop_assert!((back - rate).abs() <= rate * 1e-3, "{rate} {back}");
        }
    }
}
