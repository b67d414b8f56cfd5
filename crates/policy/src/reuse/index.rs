// SPDX-License-Identifier: Apache-2.0
//! What pages are worth, by hotness and age: the Gittins index of their hazards.

use super::ages::{AGE_BUCKETS, bucket_looks};
use super::hazard::Exposures;
use super::{CLASS_OF_ONE, CLASSES, Value};

/// A horizon that so few pages reach untouched changes nothing.
const REACHED_MIN: f64 = 1e-4;
/// Steps of a value in a factor of two.
const STEPS: f64 = 8.0;
/// Hotness is told apart by a quarter of a factor of two.
const HOTNESS_STEPS: f64 = 4.0;

/// log2 of the index by class and age.
#[derive(Clone, Debug)]
pub(super) struct Index {
    worth: Box<[[f32; AGE_BUCKETS]; CLASSES]>,
}

impl Index {
    pub fn of(exposures: &Exposures) -> Self {
        let hazards = exposures.hazards();
        let mut worth = Box::new([[0.0; AGE_BUCKETS]; CLASSES]);
        for (worth, hazards) in worth.iter_mut().zip(hazards.iter()) {
            for (bucket, worth) in worth.iter_mut().enumerate() {
                *worth = gittins(hazards, bucket).max(1e-12).log2() as f32;
            }
        }
        Index { worth }
    }

    /// The value of a page: `hotness` is log2 of what it had when it was last touched. Between the
    /// middles of two classes, in proportion.
    pub fn value(&self, hotness: f64, bucket: usize) -> Value {
        let at = hotness + CLASS_OF_ONE as f64 - 0.5;
        let at = (at * HOTNESS_STEPS).floor() / HOTNESS_STEPS;
        let below = at.floor();
        let share = (at - below) as f32;
        let worth = |class: f64| {
            let class = class.clamp(0.0, (CLASSES - 1) as f64) as usize;
            self.worth[class][bucket.min(AGE_BUCKETS - 1)]
        };
        let worth = worth(below) * (1.0 - share) + worth(below + 1.0) * share;
        (f64::from(worth) * STEPS).floor() as Value
    }

    /// Bytes taken from the allocator.
    pub fn memory_bytes(&self) -> usize {
        size_of::<[[f32; AGE_BUCKETS]; CLASSES]>()
    }
}

/// The greatest ratio, over all horizons, of the chance that a page idle for as long as `from` is
/// touched by then to the looks for which it is expected to be kept.
fn gittins(hazards: &[f64; AGE_BUCKETS], from: usize) -> f64 {
    let (mut untouched, mut chance, mut looks) = (1.0f64, 0.0, 0.0);
    let mut best: f64 = 0.0;
    for (bucket, &hazard) in hazards.iter().enumerate().skip(from.max(1)) {
        // It is somewhere in its first bucket: on average half of it is left.
        let span = if bucket == from {
            (bucket_looks(bucket) / 2.0).max(1.0)
        } else {
            bucket_looks(bucket)
        };
        let stays = (1.0 - hazard).powf(span);
        let kept = if hazard > 1e-9 {
            (1.0 - stays) / hazard
        } else {
            span
        };
        chance += untouched * (1.0 - stays);
        looks += untouched * kept;
        untouched *= stays;
        best = best.max(chance / looks);
        if untouched < REACHED_MIN {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a constant hazard every horizon is as good as another: the index is the hazard.
    #[test]
    fn the_index_of_a_constant_hazard_is_the_hazard() {
        for hazard in [0.001, 0.1, 0.9] {
            let index = gittins(&[hazard; AGE_BUCKETS], 7);
            assert!((index - hazard).abs() < 1e-9, "{hazard}: {index}");
        }
    }

    /// Of a loop pages return at one age: the nearer it is, the more a page is worth.
    #[test]
    fn a_page_is_worth_more_the_nearer_its_return() {
        let mut hazards = [0.0; AGE_BUCKETS];
        hazards[12] = 0.9;
        let index: Vec<f64> = (1..=12).map(|from| gittins(&hazards, from)).collect();
        assert!(index.is_sorted() && index[0] > 0.0, "{index:?}");
        assert!(gittins(&hazards, 13) == 0.0);
    }
}
