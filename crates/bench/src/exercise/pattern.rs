// SPDX-License-Identifier: Apache-2.0
//! Selects the page that an exerciser touches next. No table grows with the size of the memory: a
//! pattern must not have a footprint of its own.

use std::str::FromStr;
use std::time::Duration;

use rand::RngExt;
use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64;

use agewise_cli::units;

/// An access pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// The given fraction is hot and visited cyclically in scattered order, each hot page once per
    /// cycle; the rest is never touched again.
    HotCold(f64),
    /// Independent accesses; a page of rank r has a probability proportional to 1/r^s.
    Zipf(f64),
    /// Independent accesses, all pages equally likely.
    Uniform,
    /// From the first page to the last, over and over.
    Scan,
    /// Uniform within a window that moves to the next pages each time the duration has passed.
    Shift(Duration),
}

impl Pattern {
    /// The default for the fraction of the pages that the pattern covers.
    pub fn default_active(&self) -> f64 {
        match self {
            Self::HotCold(fraction) => *fraction,
            Self::Shift(_) => 0.25,
            Self::Zipf(_) | Self::Uniform | Self::Scan => 1.0,
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once(':') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let number = |default: f64, range: std::ops::RangeInclusive<f64>| match value {
            None => Ok(default),
            Some(value) => match value.parse::<f64>() {
                Ok(number) if range.contains(&number) => Ok(number),
                _ => Err(format!(
                    "'{value}' in '{text}' is not a number from {} to {}",
                    range.start(),
                    range.end()
                )),
            },
        };
        match (name, value) {
            ("hotcold", _) => number(0.5, 0.0..=1.0).map(Self::HotCold),
            ("zipf", _) => number(0.99, 0.0..=10.0).map(Self::Zipf),
            ("uniform", None) => Ok(Self::Uniform),
            ("scan", None) => Ok(Self::Scan),
            ("shift", None) => Ok(Self::Shift(Duration::from_secs(10))),
            ("shift", Some(period)) => units::positive_duration(period).map(Self::Shift),
            _ => Err(format!(
                "'{text}' is not a pattern; know hotcold:FRACTION, zipf:EXPONENT, uniform, scan, \
                 shift:DURATION"
            )),
        }
    }
}

/// A bijection of `0..count` without a table, which places neighbouring ranks far apart in memory.
#[derive(Clone, Copy, Debug)]
struct Scatter {
    count: u64,
    mask: u64,
    shift: u32,
}

impl Scatter {
    fn new(count: u64) -> Self {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        Self {
            count,
            mask: (1u64 << bits) - 1,
            shift: bits.div_ceil(2).max(1),
        }
    }

    /// The place of `rank` (below `count`). Odd multiplications and xor-shifts are bijections of
    /// the next power of two; results of `count` or more are mapped again until they are below it.
    #[inline]
    fn place(self, rank: u64) -> u64 {
        let mut at = rank;
        loop {
            at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) & self.mask;
            at ^= at >> self.shift;
            at = at.wrapping_mul(0xd6e8_feb8_6659_fd93) & self.mask;
            at ^= at >> self.shift;
            if at < self.count {
                return at;
            }
        }
    }
}

/// The state of a pattern on one region.
#[derive(Debug)]
pub struct Walk {
    pattern: Pattern,
    pages: u64,
    /// Pages that the pattern covers; at least 1 unless it covers none.
    active: u64,
    cursor: u64,
    zipf: Option<Zipf<f64>>,
    scatter: Scatter,
}

impl Walk {
    /// A walk over the fraction `active` of `pages` pages: the first ones, or with `scattered`
    /// single pages all over the region.
    pub fn new(pattern: Pattern, pages: u64, active: f64, scattered: bool) -> Self {
        let active = ((pages as f64 * active).round() as u64).min(pages);
        let zipf = match pattern {
            Pattern::Zipf(exponent) if active > 0 => Zipf::new(active as f64, exponent).ok(),
            _ => None,
        };
        let scatter = Scatter::new(if scattered { pages } else { active });
        Self {
            pattern,
            pages,
            active,
            cursor: 0,
            zipf,
            scatter,
        }
    }

    /// The next page, `elapsed` after the start; `None` if the pattern covers no page.
    #[inline]
    pub fn next(&mut self, rng: &mut Pcg64, elapsed: Duration) -> Option<u64> {
        if self.active == 0 {
            return None;
        }
        let scatter = self.scatter;
        let page = match self.pattern {
            Pattern::HotCold(_) => scatter.place(self.step()),
            Pattern::Scan if scatter.count == self.active => self.step(),
            Pattern::Scan => scatter.place(self.step()),
            Pattern::Uniform => scatter.place(rng.random_range(0..self.active)),
            Pattern::Zipf(_) => {
                let rank = self.zipf.as_ref().map_or(1.0, |zipf| zipf.sample(rng)) as u64;
                scatter.place((rank - 1).min(self.active - 1))
            }
            Pattern::Shift(period) => {
                let window = (elapsed.as_nanos() / period.as_nanos()) as u64;
                let start = window.wrapping_mul(self.active) % self.pages;
                (start + rng.random_range(0..self.active)) % self.pages
            }
        };
        Some(page)
    }

    #[inline]
    fn step(&mut self) -> u64 {
        let rank = self.cursor;
        self.cursor = if rank + 1 == self.active { 0 } else { rank + 1 };
        rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;

    fn rng() -> Pcg64 {
        Pcg64::seed_from_u64(1)
    }

    fn counts(walk: &mut Walk, pages: u64, steps: u64) -> Vec<u64> {
        let mut counts = vec![0; pages as usize];
        let mut rng = rng();
        for _ in 0..steps {
            counts[walk.next(&mut rng, Duration::ZERO).expect("active") as usize] += 1;
        }
        counts
    }

    #[test]
    fn names_are_understood() {
        assert_eq!("hotcold:0.25".parse(), Ok(Pattern::HotCold(0.25)));
        assert_eq!("hotcold".parse(), Ok(Pattern::HotCold(0.5)));
        assert_eq!("zipf:0.99".parse(), Ok(Pattern::Zipf(0.99)));
        assert_eq!(
            "shift:10s".parse(),
            Ok(Pattern::Shift(Duration::from_secs(10)))
        );
        for bad in [
            "",
            "hot",
            "hotcold:2",
            "zipf:-1",
            "zipf:x",
            "uniform:1",
            "shift:0s",
            "scan:1",
        ] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn hot_pages_are_each_touched_once_a_round_and_cold_ones_never() {
        let mut walk = Walk::new(Pattern::HotCold(0.5), 1000, 0.5, false);
        let counts = counts(&mut walk, 1000, 1500);
        assert!(counts[..500].iter().all(|&count| count == 3));
        assert!(counts[500..].iter().all(|&count| count == 0));
    }

    #[test]
    fn zipf_is_skewed_as_it_says() {
        let pages = 1000;
        let mut walk = Walk::new(Pattern::Zipf(1.0), pages, 1.0, false);
        let mut counts = counts(&mut walk, pages, 200_000);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let harmonic: f64 = (1..=pages).map(|rank| 1.0 / rank as f64).sum();
        let expected = 200_000.0 / harmonic;
        assert!(
            (counts[0] as f64 / expected - 1.0).abs() < 0.05,
            "{} {expected}",
            counts[0]
        );
        assert!((counts[9] as f64 / (expected / 10.0) - 1.0).abs() < 0.1);
    }

    #[test]
    fn a_shifting_window_moves_on() {
        let mut walk = Walk::new(Pattern::Shift(Duration::from_secs(10)), 100, 0.25, false);
        let mut rng = rng();
        for second in 0..80u64 {
            let page = walk
                .next(&mut rng, Duration::from_secs(second))
                .expect("active");
            assert_eq!(page / 25, second / 10 % 4);
        }
    }

    #[test]
    fn no_active_page_is_no_access() {
        let mut walk = Walk::new(Pattern::HotCold(0.0), 100, 0.0, false);
        assert_eq!(walk.next(&mut rng(), Duration::ZERO), None);
    }

    proptest! {
        #[test]
        fn scatter_is_a_bijection(count in 1u64..3000) {
            let scatter = Scatter::new(count);
            let mut seen: Vec<u64> = (0..count).map(|rank| scatter.place(rank)).collect();
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..count));
        }

        #[test]
        fn no_page_is_outside(
            pages in 1u64..500,
            active in 0.0f64..=1.0,
            scattered: bool,
            which in 0usize..5,
        ) {
            let pattern = [
                Pattern::HotCold(active), Pattern::Zipf(0.99), Pattern::Uniform, Pattern::Scan,
                Pattern::Shift(Duration::from_secs(1)),
            ][which];
            let mut walk = Walk::new(pattern, pages, active, scattered);
            let mut rng = rng();
            for second in 0..50 {
                if let Some(page) = walk.next(&mut rng, Duration::from_secs(second)) {
                    prop_assert!(page < pages);
                }
            }
        }
    }
}
