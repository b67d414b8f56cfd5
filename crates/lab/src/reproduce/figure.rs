// SPDX-License-Identifier: Apache-2.0
//! What is measured, and what a document says about it.

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

/// Something measured, and what the document says about it.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it is. Appended to the benchmark's name where a benchmark has several.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    /// The document's value before, in its own unit.
    pub document_before: Option<f64>,
    /// The document's value after.
    pub document_after: Option<f64>,
    /// What the document leads one to expect.
    pub expectation: Expectation,
    /// The change as the document prints it, where that is not what its figures say.
    pub printed: Option<&'static str>,
    /// Nothing shows that the document's change is more than noise.
    pub within_noise: bool,
    /// Compared by difference, not by ratio.
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

    /// A figure: more is better.
    pub fn higher(metric: &'static str, unit: &'static str, of: Expectation) -> Figure {
        Figure::new(metric, unit, Better::Higher, of)
    }

    /// A figure: less is better.
    pub fn lower(metric: &'static str, unit: &'static str, of: Expectation) -> Figure {
        Figure::new(metric, unit, Better::Lower, of)
    }

    /// With the document's values.
    #[must_use]
    pub fn document(mut self, before: f64, after: f64) -> Figure {
        (self.document_before, self.document_after) = (Some(before), Some(after));
        self
    }

    /// With the change as the document prints it.
    #[must_use]
    pub fn printed(mut self, printed: &'static str) -> Figure {
        self.printed = Some(printed);
        self
    }

    /// The document gives no variance, and a change so small that it may be noise.
    #[must_use]
    pub fn within_noise(mut self) -> Figure {
        self.within_noise = true;
        self
    }

    /// Compared by difference.
    #[must_use]
    pub fn by_difference(mut self) -> Figure {
        self.by_difference = true;
        self
    }

    /// The document's change, from its values: a ratio less 1, or a difference.
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
