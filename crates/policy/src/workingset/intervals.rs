// SPDX-License-Identifier: Apache-2.0
//! Bins of age, and their bounds.

use std::str::FromStr;

use crate::generations::ByType;
use crate::units;

/// The most bounds a list can have.
pub const INTERVALS_MAX: usize = 31;
/// The most bins: one for each bound, and one for everything older.
pub const BINS_MAX: usize = INTERVALS_MAX + 1;

/// The upper bound of the last bin, as in the report files. Text parsed into a
/// [`Histogram`](super::Histogram) may have 2^63 - 1 instead.
pub const NO_UPPER_BOUND_MS: u64 = u64::MAX;

/// One bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// Ages up to this one, and above the bound of the bin before.
    pub upper_ms: u64,
    /// Anon and file: pages, or bytes in a histogram that was parsed.
    pub amounts: ByType<u64>,
}

impl Bin {
    /// Its upper bound in milliseconds; the last bin has none.
    #[must_use]
    pub fn bound_ms(&self) -> Option<u64> {
        (self.upper_ms != NO_UPPER_BOUND_MS).then_some(self.upper_ms)
    }

    /// The bound as text: `+Inf` if there is none, which parsers of numbers accept.
    #[must_use]
    pub fn bound_text(&self) -> String {
        self.bound_ms()
            .map_or_else(|| "+Inf".to_owned(), |ms| ms.to_string())
    }
}

/// Upper bounds of age bins in milliseconds, strictly increasing, at most [`INTERVALS_MAX`].
/// Empty means one bin for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals(Vec<u64>);

/// Why a list of bounds was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IntervalError {
    /// There are more than [`INTERVALS_MAX`].
    #[error("{count} age bounds given, at most {INTERVALS_MAX} are possible")]
    TooMany {
        /// How many were given.
        count: usize,
    },
    /// A bound is not above the one before.
    #[error("age bounds must increase: {next_ms} ms follows {before_ms} ms")]
    NotIncreasing {
        /// The bound before.
        before_ms: u64,
        /// The bound that is not above it.
        next_ms: u64,
    },
    /// A bound is zero: its bin could contain nothing.
    #[error("an age bound of 0 holds nothing: start above it")]
    Zero,
    /// There is nothing between two commas.
    #[error("an age bound is missing in {list:?}")]
    Blank {
        /// The list as written.
        list: String,
    },
    /// A text is not a number, has an unknown unit, or is too large.
    #[error("{text:?} is not an age: write a number and ms, s, m, h or d, like 30s or 1.5m")]
    NotAnAge {
        /// The text.
        text: String,
    },
}

impl Intervals {
    /// Bounds in milliseconds.
    ///
    /// # Errors
    /// If there are too many, or they are zero or not strictly increasing.
    pub fn new(bounds_ms: Vec<u64>) -> Result<Self, IntervalError> {
        if bounds_ms.len() > INTERVALS_MAX {
            return Err(IntervalError::TooMany {
                count: bounds_ms.len(),
            });
        }
        if bounds_ms.first() == Some(&0) {
            return Err(IntervalError::Zero);
        }
        if let Some(pair) = bounds_ms.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(IntervalError::NotIncreasing {
                before_ms: pair[0],
                next_ms: pair[1],
            });
        }
        Ok(Intervals(bounds_ms))
    }

    /// Bounds that are strictly increasing and not too many. The first may be zero: the kernel's
    /// file accepts that, for a bin that is always empty.
    pub(super) fn with_zero(bounds_ms: Vec<u64>) -> Self {
        debug_assert!(bounds_ms.len() <= INTERVALS_MAX && bounds_ms.is_sorted());
        Intervals(bounds_ms)
    }

    /// The bounds.
    pub fn bounds_ms(&self) -> &[u64] {
        &self.0
    }

    /// The width of the narrowest bin: more frequent looks would not distinguish more bins. `None`
    /// without bounds.
    pub fn finest_ms(&self) -> Option<u64> {
        let widths = self.0.windows(2).map(|pair| pair[1] - pair[0]);
        let first = self.0.first().copied().filter(|ms| *ms > 0);
        first.into_iter().chain(widths).min()
    }

    /// The last bound: ages beyond it need not be distinguished.
    pub fn horizon_ms(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }
}

impl FromStr for Intervals {
    type Err = IntervalError;

    /// Parses bounds with units, as people write them: `1s,5s,30s,2m,10m`. Blanks around a bound
    /// are allowed; a number without a unit is in milliseconds.
    fn from_str(list: &str) -> Result<Self, IntervalError> {
        if list.trim().is_empty() {
            return Err(IntervalError::Blank {
                list: list.to_owned(),
            });
        }
        let bound = |text: &str| {
            let text = text.trim();
            let bound_ms = match units::split_number(text) {
                ("", "") => {
                    return Err(IntervalError::Blank {
                        list: list.to_owned(),
                    });
                }
                (number, "") => units::duration_ms(&format!("{number}ms")),
                _ => units::duration_ms(text),
            };
            bound_ms.ok_or_else(|| IntervalError::NotAnAge {
                text: text.to_owned(),
            })
        };
        Self::new(list.split(',').map(bound).collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bin_has_no_bound() {
        let bin = |upper_ms| Bin {
            upper_ms,
            amounts: [0; 2],
        };
        let said = |bin: Bin| (bin.bound_ms(), bin.bound_text());
        assert_eq!(said(bin(1000)), (Some(1000), "1000".to_owned()));
        assert_eq!(said(bin(NO_UPPER_BOUND_MS)), (None, "+Inf".to_owned()));
    }

    fn list(count: u64) -> String {
        (1..=count)
            .map(|i| (i * 1000).to_string())
            .collect::<Vec<_>>()
            .join(",")
    }

    #[test]
    fn units_fractions_and_blanks() {
        let parse = |text: &str| text.parse::<Intervals>().map(|i| i.0);
        assert_eq!(
            parse("1s,5s,30s,2m,10m").unwrap(),
            [1000, 5000, 30_000, 120_000, 600_000]
        );
        assert_eq!(
            parse(" 250 , 1.5s, 1 h ,2d").unwrap(),
            [250, 1500, 3_600_000, 172_800_000]
        );
        for bad in [
            "1x",
            "s",
            "-1s",
            "1..5s",
            "1e3",
            "99999999999999999999d",
            "1s 2s",
        ] {
            assert!(
                matches!(parse(bad), Err(IntervalError::NotAnAge { .. })),
                "{bad}: {:?}",
                parse(bad)
            );
        }
        for bad in ["", " ", "1s,,2s", "1s,", ",1s"] {
            assert!(
                matches!(parse(bad), Err(IntervalError::Blank { .. })),
                "{bad}"
            );
        }
        assert_eq!(parse("0,1s"), Err(IntervalError::Zero));
        assert_eq!(parse("0.4ms"), Err(IntervalError::Zero));
    }

    #[test]
    fn order_is_strict() {
        let error = IntervalError::NotIncreasing {
            before_ms: 5000,
            next_ms: 5000,
        };
        assert_eq!("1s,5s,5s".parse::<Intervals>(), Err(error));
        let error = IntervalError::NotIncreasing {
            before_ms: 5000,
            next_ms: 1000,
        };
        assert_eq!("5s,1000".parse::<Intervals>(), Err(error));
    }

    #[test]
    fn thirty_one_but_not_more() {
        assert_eq!(list(31).parse::<Intervals>().unwrap().bounds_ms().len(), 31);
        for count in [32, 40] {
            let error = IntervalError::TooMany {
                count: count as usize,
            };
            assert_eq!(list(count).parse::<Intervals>(), Err(error));
        }
    }

    #[test]
    fn the_finest_bin_sets_the_pace() {
        let finest = |text: &str| text.parse::<Intervals>().unwrap().finest_ms();
        assert_eq!(finest("1s,5s,30s"), Some(1000));
        assert_eq!(finest("10s,12s,60s"), Some(2000));
        assert_eq!(Intervals::default().finest_ms(), None);
        assert_eq!(Intervals::default().horizon_ms(), 0);
    }
}
