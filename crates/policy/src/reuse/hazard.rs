// SPDX-License-Identifier: Apache-2.0
//! The chance that a page is touched before the next look, by its hotness and age.

use super::ages::{AGE_BUCKETS, bucket_start};
use super::{CLASSES, Table};

/// The prior weighs as much as this many observed pages.
const PRIOR_PAGES: f64 = 30.0;
/// Upper limit of the hazard, however certain a touch looks so far.
const HAZARD_MAX: f64 = 0.98;
/// The limit for hazards that are only inferred from other ages.
const HAZARD_INFERRED_MAX: f64 = 0.95;

/// Pages of the sample seen at looks, and how many of them had been touched.
#[derive(Clone, Debug)]
pub(super) struct Exposures {
    seen: Box<Table>,
    touched: Box<Table>,
}

impl Default for Exposures {
    fn default() -> Self {
        Exposures {
            seen: Box::new([[0.0; AGE_BUCKETS]; CLASSES]),
            touched: Box::new([[0.0; AGE_BUCKETS]; CLASSES]),
        }
    }
}

impl Exposures {
    /// Adds a page.
    pub fn add(&mut self, class: usize, bucket: usize, is_touched: bool) {
        self.seen[class][bucket] += 1.0;
        self.touched[class][bucket] += f64::from(u8::from(is_touched));
    }

    /// Reduces the weight of old observations: they say less about the future.
    pub fn fade(&mut self, factor: f64) {
        for table in [&mut self.seen, &mut self.touched] {
            table
                .iter_mut()
                .flatten()
                .for_each(|count| *count *= factor);
        }
    }

    /// The hazards of each class: those of all pages by age, changed as far as the class is known
    /// to differ. Without evidence, the hazard is inversely proportional to age, which is LRU.
    pub fn hazards(&self) -> Box<Table> {
        let of_all = self.of_all();
        let mut hazards = Box::new([[0.0; AGE_BUCKETS]; CLASSES]);
        for (class, hazards) in hazards.iter_mut().enumerate() {
            // In two steps: the class is pulled towards all pages, then towards its own ratio to
            // them.
            let first = self.of_class(class, &of_all, 1.0);
            *hazards = self.of_class(class, &first, 3.0);
        }
        hazards
    }

    fn of_all(&self) -> [f64; AGE_BUCKETS] {
        let sum = |table: &Table, bucket: usize| -> f64 {
            table.iter().map(|of_class| of_class[bucket]).sum()
        };
        let seen: [f64; AGE_BUCKETS] = std::array::from_fn(|bucket| sum(&self.seen, bucket));
        let touched: [f64; AGE_BUCKETS] = std::array::from_fn(|bucket| sum(&self.touched, bucket));
        let mut before = (touched.iter().sum::<f64>() + 0.5) / (seen.iter().sum::<f64>() + 10.0);
        let mut of_all = [0.0; AGE_BUCKETS];
        for bucket in 1..AGE_BUCKETS {
            if bucket > 1 {
                let (younger, this) = (bucket_start(bucket - 1), bucket_start(bucket));
                before *= f64::from(younger) / f64::from(this);
            }
            before = (touched[bucket] + PRIOR_PAGES * before) / (seen[bucket] + PRIOR_PAGES);
            of_all[bucket] = before;
        }
        of_all[0] = of_all[1];
        of_all
    }

    /// The hazards of a class for which `expected` is right up to a factor; `evidence` is the
    /// weight of the prior that this factor is 1.
    fn of_class(
        &self,
        class: usize,
        expected: &[f64; AGE_BUCKETS],
        evidence: f64,
    ) -> [f64; AGE_BUCKETS] {
        let (seen, touched) = (&self.seen[class], &self.touched[class]);
        let would_be: f64 = seen
            .iter()
            .zip(expected)
            .map(|(seen, hazard)| seen * hazard)
            .sum();
        let ratio = (touched.iter().sum::<f64>() + evidence) / (would_be + evidence);
        std::array::from_fn(|bucket| {
            let inferred = (ratio * expected[bucket]).min(HAZARD_INFERRED_MAX);
            let hazard = (touched[bucket] + PRIOR_PAGES * inferred) / (seen[bucket] + PRIOR_PAGES);
            hazard.min(HAZARD_MAX)
        })
    }
}
