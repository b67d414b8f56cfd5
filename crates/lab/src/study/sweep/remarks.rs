// SPDX-License-Identifier: Apache-2.0
//! What is to be said about cells that were run.

use std::collections::BTreeMap;

/// Most remarks that are kept apart.
const REMARKS_MAX: usize = 20;

/// Remarks on cells, each of them once, with the number of its cells.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    cells: BTreeMap<String, usize>,
    /// Remarks beyond the limit.
    left_out: usize,
}

impl Remarks {
    /// Adds those of a cell.
    pub(super) fn add(&mut self, notes: &[String]) {
        for note in notes {
            *self.cells.entry(note.clone()).or_default() += 1;
            // The same ones stay in whatever order the cells end.
            if self.cells.len() > REMARKS_MAX
                && let Some((_, cells)) = self.cells.pop_last()
            {
                self.left_out += cells;
            }
        }
    }

    /// One line for each.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |(note, cells): (&String, &usize)| match cells {
            1 => note.clone(),
            _ => format!("{note} ({cells} cells)"),
        };
        let left_out = (self.left_out > 0).then(|| format!("{} more remarks", self.left_out));
        self.cells.iter().map(line).chain(left_out).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_are_counted_and_limited() {
        let mut remarks = Remarks::default();
        remarks.add(&["b".to_owned()]);
        remarks.add(&["a".to_owned(), "b".to_owned()]);
        assert_eq!(remarks.lines(), ["a", "b (2 cells)"]);
        for number in (0..100).rev() {
            remarks.add(&[format!("c{number:02}")]);
        }
        let lines = remarks.lines();
        assert_eq!(lines.len(), REMARKS_MAX + 1);
        assert_eq!(lines[2..4], ["c00", "c01"]);
        assert_eq!(lines[REMARKS_MAX], "82 more remarks");
    }
}
