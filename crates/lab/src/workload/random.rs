// SPDX-License-Identifier: Apache-2.0
//! Random draws of the workloads: a small generator and a Zipf distribution, both identical bit for
//! bit to those of the kernel reference's trace generator; and distributions over pages in order.

use thiserror::Error;

/// `xorshift64*`.
#[derive(Clone, Debug)]
pub struct XorShift64Star(u64);

impl XorShift64Star {
    /// A generator with `seed` as its state. A state of 0 stays 0, as in the reference.
    pub fn new(seed: u64) -> XorShift64Star {
        XorShift64Star(seed)
    }

    /// The next draw.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(2_685_821_657_736_338_717)
    }

    /// A draw below `n`, taken as a remainder. `n` must not be 0.
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        (self.draw() % u64::from(n)) as u32
    }

    /// A draw in 0..1 with 53 bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Invalid parameters of a distribution.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ZipfError {
    #[error("a zipf distribution needs at least one item")]
    Empty,
    /// The exponent is not a number, or so large that weights vanish.
    #[error("zipf exponent {0} is not between -10 and 10")]
    Exponent(f64),
    #[error("deviation {0} is not between 0.001 and 10")]
    Deviation(f64),
}

/// Bits of a uniform draw.
const DRAW_BITS: u32 = 53;

/// Weighted pages: Zipf's law over pages shuffled by a permutation of its own, other distributions
/// over pages in order.
///
/// A draw is inverted with a guide table. It has the first candidate for each of `2^k` equal parts
/// of the unit interval, `2^k >= n`; the right rank is on average less than two steps away.
#[derive(Clone, Debug)]
pub struct Zipf {
    cdf: Vec<u64>,
    pages: Vec<u32>,
    guide: Vec<u32>,
    shift: u32,
}

impl Zipf {
    /// Zipf's distribution over `n` pages; `seed` decides which pages are popular.
    ///
    /// # Errors
    /// [`ZipfError`] if the parameters are invalid.
    pub fn new(n: u32, theta: f64, seed: u64) -> Result<Zipf, ZipfError> {
        if n == 0 {
            return Err(ZipfError::Empty);
        }
        if !(-10.0..=10.0).contains(&theta) {
            return Err(ZipfError::Exponent(theta));
        }
        let weight = |rank: u32| (f64::from(rank) + 1.0).powf(-theta);
        let pages = shuffled(n, seed ^ 0x9E37_79B9_7F4A_7C15);
        Ok(Zipf::weighted(n, weight, pages))
    }

    /// The Gaussian distribution around the middle of `n` pages, cut off at the ends. `deviation`
    /// is relative to `n`.
    ///
    /// # Errors
    /// [`ZipfError`] if the parameters are invalid.
    pub fn gaussian(n: u32, deviation: f64) -> Result<Zipf, ZipfError> {
        if n == 0 {
            return Err(ZipfError::Empty);
        }
        if !(0.001..=10.0).contains(&deviation) {
            return Err(ZipfError::Deviation(deviation));
        }
        let (middle, sigma) = (f64::from(n) / 2.0, f64::from(n) * deviation);
        let weight = |page: u32| (-((f64::from(page) + 0.5 - middle) / sigma).powi(2) / 2.0).exp();
        Ok(Zipf::weighted(n, weight, (0..n).collect()))
    }

    /// The exponential distribution of YCSB: 95 % of all draws are among the first 6/7 of `n`
    /// pages.
    ///
    /// # Errors
    /// [`ZipfError`] if `n` is 0.
    pub fn exponential(n: u32) -> Result<Zipf, ZipfError> {
        if n == 0 {
            return Err(ZipfError::Empty);
        }
        let rate = 0.05f64.ln() / (0.857_142_857_1 * f64::from(n));
        let weight = |page: u32| (rate * f64::from(page)).exp();
        Ok(Zipf::weighted(n, weight, (0..n).collect()))
    }

    /// Gives `pages[rank]` the weight of `rank`, for `n` ranks.
    fn weighted(n: u32, weight: impl Fn(u32) -> f64, pages: Vec<u32>) -> Zipf {
        let one = 1u64 << DRAW_BITS;
        // Adds from rank 0 up, so that rounding is the same everywhere.
        let total: f64 = (0..n).map(&weight).sum();
        let mut cdf = Vec::with_capacity(n as usize);
        let mut sum = 0.0;
        for rank in 0..n {
            sum += weight(rank);
            cdf.push((sum / total * one as f64) as u64);
        }
        if let Some(last) = cdf.last_mut() {
            *last = one;
        }
        let bits = 32 - (n - 1).leading_zeros();
        let shift = DRAW_BITS - bits;
        let mut guide = Vec::with_capacity(1 << bits);
        let mut rank = 0;
        for part in 0..1u64 << bits {
            while cdf[rank] <= part << shift {
                rank += 1;
            }
            guide.push(rank as u32);
        }
        Zipf {
            cdf,
            pages,
            guide,
            shift,
        }
    }

    /// The page of a draw.
    #[inline]
    pub fn draw(&self, random: &mut XorShift64Star) -> u32 {
        self.pages[self.rank(random.draw() >> 11)]
    }

    #[inline]
    fn rank(&self, draw: u64) -> usize {
        let mut rank = self.guide[(draw >> self.shift) as usize] as usize;
        while draw >= self.cdf[rank] {
            rank += 1;
        }
        rank
    }
}

/// The numbers `0..n` in a random order (Fisher-Yates from the end).
fn shuffled(n: u32, seed: u64) -> Vec<u32> {
    let mut random = XorShift64Star::new(seed);
    let mut pages: Vec<u32> = (0..n).collect();
    for at in (1..n).rev() {
        let other = random.below(at + 1);
        pages.swap(at as usize, other as usize);
    }
    pages
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The guide table finds the same rank as a binary search of the distribution.
        #[test]
        fn the_guide_table_finds_the_rank(
            n in 1u32..3000,
            theta in 0.0f64..3.0,
            draws in prop::collection::vec(0u64..1 << 53, 50)
        ) {
            let zipf = Zipf::new(n, theta, 7).unwrap();
            for draw in draws.into_iter().chain([0, (1 << 53) - 1]) {
                let expected = zipf.cdf.partition_point(|&bound| bound <= draw);
                prop_assert_eq!(zipf.rank(draw), expected);
            }
        }
    }

    #[test]
    fn permutation_keeps_every_page() {
        let mut pages = shuffled(1000, 3);
        assert_ne!(pages, (0..1000).collect::<Vec<_>>());
        pages.sort_unstable();
        assert_eq!(pages, (0..1000).collect::<Vec<_>>());
    }

    /// Compares shares of a million draws with the distributions' own tables.
    #[test]
    fn gauss_and_exponential_have_their_shape() {
        let share = |of: &Zipf, pages: std::ops::Range<u32>| {
            let mut random = XorShift64Star::new(1);
            let hits = (0..1_000_000).filter(|_| pages.contains(&of.draw(&mut random)));
            hits.count() as f64 / 1e6
        };
        let gauss = Zipf::gaussian(1000, 0.1).unwrap();
        assert!((share(&gauss, 400..600) - 0.6827).abs() < 0.002);
        assert!((share(&gauss, 0..500) - 0.5).abs() < 0.002);
        let exponential = Zipf::exponential(7000).unwrap();
        // Draws beyond the last page are repeated: 3 % of all.
        assert!((share(&exponential, 0..6000) - 0.95 / 0.9697).abs() < 0.002);
        assert!(Zipf::gaussian(10, 0.0).is_err() && Zipf::exponential(0).is_err());
    }

    #[test]
    fn impossible_distributions_are_refused() {
        assert_eq!(Zipf::new(0, 1.0, 1).unwrap_err(), ZipfError::Empty);
        assert!(Zipf::new(5, f64::NAN, 1).is_err());
        assert!(Zipf::new(5, 1e9, 1).is_err());
    }
}
