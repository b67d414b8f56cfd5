// SPDX-License-Identifier: Apache-2.0
//! The memory sizes for which a curve is computed.

use std::str::FromStr;

/// A size as requested.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SizeSpec {
    /// Pages.
    Pages(usize),
    /// A share of the footprint.
    Share(f64),
}

impl FromStr for SizeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not a size; write pages (4096) or a share (10%)");
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| bad())?;
            if !(percent > 0.0 && percent.is_finite()) {
                return Err(bad());
            }
            return Ok(Self::Share(percent / 100.0));
        }
        match text.trim().parse() {
            Ok(0) | Err(_) => Err(bad()),
            Ok(pages) => Ok(Self::Pages(pages)),
        }
    }
}

impl SizeSpec {
    /// The size in pages, at least 1.
    #[must_use]
    pub fn pages(self, footprint_pages: u64) -> usize {
        match self {
            Self::Pages(pages) => pages.max(1),
            Self::Share(share) => ((footprint_pages as f64 * share).round() as usize).max(1),
        }
    }
}

/// At most `points` different sizes, evenly spread on a logarithmic axis from a thousandth of the
/// footprint to all of it.
#[must_use]
pub fn spread_sizes(footprint_pages: u64, points: usize) -> Vec<usize> {
    let largest = (footprint_pages as f64).max(1.0);
    let smallest = (largest / 1000.0).max(1.0);
    let steps = points.saturating_sub(1).max(1) as f64;
    let mut sizes: Vec<usize> = (0..points)
        .map(|at| {
            let share = if points == 1 { 1.0 } else { at as f64 / steps };
            (smallest * (largest / smallest).powf(share)).round() as usize
        })
        .collect();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_spread_and_different() {
        let sizes = spread_sizes(100_000, 3);
        assert_eq!(sizes, [100, 3162, 100_000]);
        assert_eq!(spread_sizes(4, 32), [1, 2, 3, 4]);
        assert_eq!(spread_sizes(10, 1), [10]);
        assert_eq!(spread_sizes(0, 4), [1]);
    }

    #[test]
    fn sizes_as_written() {
        assert_eq!("10%".parse::<SizeSpec>().unwrap().pages(3153310), 315331);
        assert_eq!("4096".parse::<SizeSpec>().unwrap().pages(1), 4096);
        assert_eq!("29%".parse::<SizeSpec>().unwrap().pages(100), 29);
        assert_eq!("50%".parse::<SizeSpec>().unwrap().pages(505), 253);
        assert_eq!("0.001%".parse::<SizeSpec>().unwrap().pages(10), 1);
        for text in ["0", "-1", "x", "0%", "-5%", "inf%", ""] {
            assert!(text.parse::<SizeSpec>().is_err(), "{text}");
        }
    }
}
