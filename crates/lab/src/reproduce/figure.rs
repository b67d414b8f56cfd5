// SPDX-License-Identifier: Apache-2.0
//! Measured figures, and the document's values for them.

use serde::Serialize;

use super::Expectation;

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// A measured figure, and the document's statement about it.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Name of the measure, appended to the benchmark's name if that has several figures.
    pub metric: &'static str,
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    /// The document's value before, in the document's unit.
    pub document_before: Option<f64>,
    /// The document's value after.
    pub document_after: Option<f64>,
    /// The change to expect from the document.
    pub expectation: Expectation,
    /// The change as printed in the document, if it does not follow from the document's values.
    pub printed: Option<&'static str>,
    /// Whether the document's change may be noise.
    pub within_noise: bool,
    /// Whether changes are differences instead of ratios.
    pub by_difference: bool,
}

impl Figure {
    fn new(metric: &'static str, unit: &'static str, better: Better, of: Expectation) -> Figure {
        Figure {
            metric,
            unit,
            better,
            document_before: None,
            document_after: None,
            expectation: of,
            printed: None,
            within_noise: false,
            by_difference: false,
        }
    }

    /// A figure for which more is better.
    pub fn higher(metric: &'static str, unit: &'static str, of: Expectation) -> Figure {
        Figure::new(metric, unit, Better::Higher, of)
    }

    /// A figure for which less is better.
    pub fn lower(metric: &'static str, unit: &'static str, of: Expectation) -> Figure {
        Figure::new(metric, unit, Better::Lower, of)
    }

    /// Sets the document's values.
    #[must_use]
    pub fn document(mut self, before: f64, after: f64) -> Figure {
        (self.document_before, self.document_after) = (Some(before), Some(after));
        self
    }

    /// Sets the change as printed in the document.
    #[must_use]
    pub fn printed(mut self, printed: &'static str) -> Figure {
        self.printed = Some(printed);
        self
    }

    /// Marks a change that may be noise: it is small, and the document gives no variance.
    #[must_use]
    pub fn within_noise(mut self) -> Figure {
        self.within_noise = true;
        self
    }

    /// Compares by difference.
    #[must_use]
    pub fn by_difference(mut self) -> Figure {
        self.by_difference = true;
        self
    }

    /// The document's change: a ratio less 1, or a difference.
    pub fn document_change(&self) -> Option<f64> {
        if let Expectation::Change(change) = self.expectation {
            return Some(change);
        }
        if let Expectation::Within(low, high) = self.expectation {
            return Some(f64::midpoint(low, high));
        }
        let (before, after) = (self.document_before?, self.document_after?);
        if self.by_difference {
            Some(after - before)
        } else {
            (before != 0.0).then(|| after / before - 1.0)
        }
    }
}
