// SPDX-License-Identifier: Apache-2.0
//! Curves for a terminal, with one letter per curve.

use super::{label, short, size_range, size_ticks};
use agewise_trace::curve::Curve;

/// Draws curves in this many columns and rows, with the size on a logarithmic axis. Each curve has
/// a letter; where curves meet, the first is shown.
#[must_use]
pub fn text(curves: &[Curve], columns: usize, rows: usize) -> String {
    let (columns, rows) = (columns.max(20), rows.max(5));
    let (smallest, largest) = size_range(curves);
    let span = (largest / smallest).ln().max(f64::MIN_POSITIVE);
    let column_of =
        |size: f64| (((size / smallest).ln() / span) * (columns - 1) as f64).round() as usize;
    let highest = curves
        .iter()
        .flat_map(|curve| curve.ratios().map(|(_, ratio, _)| ratio))
        .fold(0.0, f64::max);
    let top = (highest * 10.0).ceil().max(1.0) / 10.0;
    let mut grid = vec![vec![' '; columns]; rows];
    for (at, curve) in curves.iter().enumerate().rev() {
        let letter = char::from(b'a' + (at % 26) as u8);
        let mut put = |column: usize, ratio: f64| {
            let height = (ratio / top).clamp(0.0, 1.0) * (rows - 1) as f64;
            grid[rows - 1 - height.round() as usize][column] = letter;
        };
        let spots: Vec<(usize, f64)> = curve
            .ratios()
            .map(|(size, ratio, _)| (column_of(size as f64), ratio))
            .collect();
        for pair in spots.windows(2) {
            let ((from, start), (to, end)) = (pair[0], pair[1]);
            for column in from..=to {
                let share = (column - from) as f64 / (to - from).max(1) as f64;
                put(column, start + (end - start) * share);
            }
        }
        if let [(column, ratio)] = spots[..] {
            put(column, ratio);
        }
    }
    let mut out = String::from("miss ratio\n");
    for (at, row) in grid.iter().enumerate() {
        let ratio = top * (rows - 1 - at) as f64 / (rows - 1) as f64;
        let mark = if at % 4 == 0 || at + 1 == rows {
            format!("{ratio:>6.3}")
        } else {
            " ".repeat(6)
        };
        let line: String = row.iter().collect();
        out += &format!("{mark} |{}\n", line.trim_end());
    }
    let mut axis = vec!['-'; columns];
    let mut names = vec![' '; columns + 8];
    let mut free_from = 0;
    for tick in size_ticks((smallest, largest)) {
        let column = column_of(tick);
        axis[column] = '+';
        if column >= free_from {
            for (offset, letter) in short(tick).chars().enumerate() {
                names[column + offset] = letter;
            }
            free_from = column + short(tick).len() + 1;
        }
    }
    out += &format!("       +{}\n", axis.iter().collect::<String>());
    out += &format!("        {}\n", names.iter().collect::<String>().trim_end());
    out += "        pages\n";
    for (at, curve) in curves.iter().enumerate() {
        let letter = char::from(b'a' + (at % 26) as u8);
        out += &format!("  {letter}  {}\n", label(curve, curves));
    }
    out
}
