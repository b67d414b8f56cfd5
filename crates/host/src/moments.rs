// SPDX-License-Identifier: Apache-2.0
//! A time measured at several moments.
//!
//! A device that others use is slow for moments, up to a hundred times, and so is a CPU. Measuring
//! once therefore tells little: what counts is the median of several moments, and how far they
//! differ.

/// Most moments that count, the last ones.
const MOMENTS_MAX: usize = 9;

/// Times of up to nine moments, in ns.
#[derive(Clone, Debug, Default)]
pub struct Moments {
    times_ns: Vec<u64>,
}

impl Moments {
    /// Adds a moment; the oldest one goes if there are too many.
    pub fn add(&mut self, time_ns: u64) {
        if self.times_ns.len() == MOMENTS_MAX {
            self.times_ns.remove(0);
        }
        self.times_ns.push(time_ns);
    }

    /// The median; `None` before the first moment.
    pub fn median_ns(&self) -> Option<u64> {
        median(self.times_ns.clone())
    }

    /// Bounds of the median: of nine moments, the second and the second last contain it 96 times of
    /// 100; of fewer, all lie between the bounds.
    pub fn bounds_ns(&self) -> Option<[u64; 2]> {
        let mut times_ns = self.times_ns.clone();
        times_ns.sort_unstable();
        let spare = usize::from(times_ns.len() == MOMENTS_MAX);
        let low_ns = *times_ns.get(spare)?;
        Some([low_ns, *times_ns.iter().rev().nth(spare)?])
    }
}

/// The median; the lower one of the two in the middle, if there are two.
pub(crate) fn median(mut times_ns: Vec<u64>) -> Option<u64> {
    times_ns.sort_unstable();
    let middle = times_ns.len().saturating_sub(1) / 2;
    times_ns.get(middle).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_moment_is_neither_the_median_nor_a_bound_of_nine() {
        let mut moments = Moments::default();
        assert_eq!((moments.median_ns(), moments.bounds_ns()), (None, None));
        for ns in [50, 3506, 60, 2000] {
            moments.add(ns);
        }
        assert_eq!(moments.median_ns(), Some(60));
        assert_eq!(moments.bounds_ns(), Some([50, 3506]));
        for ns in [61, 62, 63, 64, 65] {
            moments.add(ns);
        }
        assert_eq!(moments.median_ns(), Some(63));
        assert_eq!(moments.bounds_ns(), Some([60, 2000]));
        moments.add(66);
        assert_eq!(moments.bounds_ns(), Some([61, 2000]), "the oldest is gone");
    }
}
