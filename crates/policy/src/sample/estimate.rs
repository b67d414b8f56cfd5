// SPDX-License-Identifier: Apache-2.0
//! From what the blocks show to what there is, and how sure that is.

use crate::generations::{ByType, LABEL_UNSEEN, LABELS, Sizes};

/// Standard deviations of a normal distribution within which 95 % lie.
const Z_95: f64 = 1.96;

/// "Rule of three": what none of n blocks shows is, with 95 % probability, less than 3/n of all.
const UNSEEN_BLOCKS: f64 = 3.0;

/// Pages by label of memory of which `whole` was followed whole and `sampled` stands for the rest of
/// `known`, all resident pages by type. The sum is exactly `known`, or what was seen if that is more
/// (the kernel's counters lag a little).
pub fn scale(whole: &Sizes, sampled: &Sizes, known: ByType<u64>) -> Sizes {
    let mut scaled: Sizes = [[0; 2]; LABELS];
    for page_type in 0..2 {
        let of = |sizes: &Sizes| -> Vec<u64> { sizes.iter().map(|by| by[page_type]).collect() };
        let (whole, sampled) = (of(whole), of(sampled));
        let seen: u64 = sampled.iter().sum();
        let rest = known[page_type]
            .saturating_sub(whole.iter().sum())
            .max(seen);
        // Nothing stands for the rest: it is like what was followed whole, or of unknown age.
        let pattern = if seen > 0 { &sampled } else { &whole };
        let mut shares = share_out(rest, pattern);
        shares[usize::from(LABEL_UNSEEN)] += rest - shares.iter().sum::<u64>();
        for (label, pages) in shares.into_iter().enumerate() {
            scaled[label][page_type] = whole[label] + pages;
        }
    }
    scaled
}

/// `total` in the proportions of `pattern`, in whole numbers of that sum: the largest remainders are
/// rounded up. All 0 where the pattern is.
fn share_out(total: u64, pattern: &[u64]) -> Vec<u64> {
    let sum: u128 = pattern.iter().map(|part| u128::from(*part)).sum();
    if sum == 0 {
        return vec![0; pattern.len()];
    }
    let parts = pattern
        .iter()
        .map(|part| u128::from(*part) * u128::from(total));
    let mut shares: Vec<u64> = parts.clone().map(|part| (part / sum) as u64).collect();
    let mut remainders: Vec<(u128, usize)> = parts.map(|part| part % sum).zip(0..).collect();
    remainders.sort_unstable_by_key(|(remainder, at)| (std::cmp::Reverse(*remainder), *at));
    let missing = total - shares.iter().sum::<u64>();
    for (_, at) in remainders.into_iter().take(missing as usize) {
        shares[at] += 1;
    }
    shares
}

/// How far a figure may be off, in the same unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// The truth is at least this, ...
    pub low: u64,
    /// ... and at most this, with 95 % probability.
    pub high: u64,
}

/// How much blocks differ: the variance of the ratio estimator (Cochran, *Sampling Techniques*, 6.4)
/// of each bin, for pages of one type, with the finite-population correction.
///
/// Blocks without a page of the type are left out: they say nothing of its ages.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    blocks: u64,
    /// Sums over blocks of present pages x, their squares, and for each bin y, y * x and y * y.
    x: f64,
    xx: f64,
    bins: Vec<[f64; 3]>,
}

impl Spread {
    /// For so many bins.
    pub fn new(bins: usize) -> Self {
        Spread {
            bins: vec![[0.0; 3]; bins],
            ..Spread::default()
        }
    }

    /// Takes in one block: its pages of the type in each bin.
    pub fn add(&mut self, bins: &[u64]) {
        let x = bins.iter().sum::<u64>() as f64;
        if x == 0.0 {
            return;
        }
        self.blocks += 1;
        self.x += x;
        self.xx += x * x;
        for (sums, y) in self.bins.iter_mut().zip(bins) {
            let y = *y as f64;
            sums[0] += y;
            sums[1] += y * x;
            sums[2] += y * y;
        }
    }

    /// The squares of half the width of each bin's interval, where these blocks stand for
    /// `represented` pages. Squares add up over processes.
    pub fn half_widths_squared(&self, represented: u64) -> Vec<f64> {
        let n = self.blocks as f64;
        let represented = represented as f64;
        if represented <= self.x {
            // Nothing is left to be guessed.
            return vec![0.0; self.bins.len()];
        }
        if self.blocks < 2 {
            return vec![represented * represented; self.bins.len()];
        }
        let raise = represented / self.x;
        let unseen = (UNSEEN_BLOCKS / n * represented).min(represented);
        let of = |[y, yx, yy]: &[f64; 3]| {
            let ratio = y / self.x;
            let residual = (yy - 2.0 * ratio * yx + ratio * ratio * self.xx).max(0.0);
            let variance = raise * raise * residual * n / (n - 1.0) * (1.0 - 1.0 / raise);
            (Z_95 * Z_95 * variance).max(unseen * unseen)
        };
        self.bins.iter().map(of).collect()
    }
}
