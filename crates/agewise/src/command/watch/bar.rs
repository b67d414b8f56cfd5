// SPDX-License-Identifier: Apache-2.0
//! Age bars: how many cells each bin gets, and how bins look.

use ratatui::style::{Color, Style};

/// Number of distinguishable shades; with more bins, neighbours share one.
const SHADES: usize = 6;

/// Patterns, from young to old.
const PATTERNS: [&str; SHADES] = ["█", "▓", "▒", "░", "-", "."];

/// Colours from young to old, of the 256-colour palette that most terminals have.
const COLORS: [u8; SHADES] = [196, 208, 220, 71, 68, 240];

/// The shade of bin `bin` of `bins`.
pub fn shade(bin: usize, bins: usize) -> usize {
    match bins {
        0 | 1 => 0,
        _ if bins <= SHADES => bin.min(SHADES - 1),
        _ => (bin * (SHADES - 1)).div_ceil(bins - 1).min(SHADES - 1),
    }
}

pub fn pattern(shade: usize) -> &'static str {
    PATTERNS[shade.min(SHADES - 1)]
}

pub fn style(shade: usize, has_color: bool) -> Style {
    if has_color {
        Style::new().fg(Color::Indexed(COLORS[shade.min(SHADES - 1)]))
    } else {
        Style::new()
    }
}

/// Distributes `width` cells in proportion to `amounts` (largest remainder method). A bin of half a
/// percent or more that would get no cell takes one from the widest bin, if that has one to spare.
pub fn cells(amounts: &[u64], width: usize) -> Vec<usize> {
    let total: u128 = amounts.iter().map(|amount| u128::from(*amount)).sum();
    if total == 0 || width == 0 {
        return vec![0; amounts.len()];
    }
    let exact = |amount: u64| u128::from(amount) * width as u128;
    let mut cells: Vec<usize> = amounts
        .iter()
        .map(|amount| (exact(*amount) / total) as usize)
        .collect();
    let mut order: Vec<usize> = (0..amounts.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(exact(amounts[*i]) % total));
    let left = width - cells.iter().sum::<usize>();
    for bin in order.into_iter().take(left) {
        cells[bin] += 1;
    }
    for bin in 0..cells.len() {
        let widest = (0..cells.len()).max_by_key(|i| cells[*i]).unwrap_or(0);
        // A smaller bin is not worth distorting the bar.
        let worth = u128::from(amounts[bin]) * 200 >= total;
        if cells[bin] == 0 && worth && cells[widest] > 1 {
            cells[bin] = 1;
            cells[widest] -= 1;
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cells_follow_amounts() {
        assert_eq!(cells(&[50, 50], 10), [5, 5]);
        assert_eq!(cells(&[0, 0], 10), [0, 0]);
        assert_eq!(cells(&[1, 99], 10), [1, 9]);
        assert_eq!(cells(&[1, 999], 10), [0, 10]);
        assert_eq!(cells(&[1, 1, 1], 2), [1, 1, 0]);
    }

    proptest! {
        #[test]
        fn a_bar_is_full(
            amounts in prop::collection::vec(any::<u64>(), 1..32),
            width in 0usize..200,
        ) {
            let total: u128 = amounts.iter().map(|amount| u128::from(*amount)).sum();
            let cells = cells(&amounts, width);
            prop_assert_eq!(cells.iter().sum::<usize>(), if total == 0 { 0 } else { width });
        }

        #[test]
        fn looks_go_from_young_to_old(bins in 1usize..=32) {
            let shades: Vec<usize> = (0..bins).map(|bin| shade(bin, bins)).collect();
            prop_assert!(shades.is_sorted());
            prop_assert_eq!(shades[0], 0);
            prop_assert!(bins <= SHADES || *shades.last().unwrap() == SHADES - 1);
        }
    }
}
