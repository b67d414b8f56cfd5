// SPDX-License-Identifier: Apache-2.0
//! The value of pages, by hotness and age: the Gittins index of their hazards.

use super::ages::{AGE_BUCKETS, bucket_looks};
use super::hazard::Exposures;
use super::scale::LEVELS_PER_OCTAVE;
use super::{CLASS_OF_ONE, CLASSES, Value};

/// Horizons that fewer pages than this share reach untouched do not matter.
const REACHED_MIN: f64 = 1e-4;
/// Steps per octave of value.
const STEPS: f64 = 8.0;
/// Steps per octave of hotness.
const HOTNESS_STEPS: f64 = 4.0;

/// Steps of hotness from one octave below the middle of the lowest class to the middle of the
/// highest.
const HOTNESS_VALUES: usize = (CLASSES as f64 * HOTNESS_STEPS) as usize + 1;

/// The value of a page by age and hotness.
#[derive(Clone, Debug)]
pub(super) struct Index {
    values: Box<[[Value; HOTNESS_VALUES]; AGE_BUCKETS]>,
}

/// Where the values of pages of one age are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    step: f32,
    bucket: u8,
}

impl Index {
    pub fn of(exposures: &Exposures) -> Self {
        let hazards = exposures.hazards();
        let mut values = Box::new([[0; HOTNESS_VALUES]; AGE_BUCKETS]);
        let mut worth = [[0.0; AGE_BUCKETS]; CLASSES];
        for (worth, hazards) in worth.iter_mut().zip(hazards.iter()) {
            *worth = gittins(hazards).map(|index| index.max(1e-12).log2());
        }
        for (bucket, values) in values.iter_mut().enumerate() {
            for (step, value) in values.iter_mut().enumerate() {
                // Interpolated between the middles of two classes.
                let at = step as f64 / HOTNESS_STEPS - 1.0;
                let share = at - at.floor();
                let class = |class: f64| class.clamp(0.0, (CLASSES - 1) as f64) as usize;
                let (below, above) = (class(at.floor()), class(at.floor() + 1.0));
                let between = worth[below][bucket] * (1.0 - share) + worth[above][bucket] * share;
                *value = (between * STEPS).floor() as Value;
            }
        }
        Index { values }
    }

    /// The value of a page; `hotness` is log2 of its hotness when it was last touched.
    #[inline]
    pub fn value(&self, hotness: f32, bucket: usize) -> Value {
        let at = (hotness + CLASS_OF_ONE as f32 + 0.5) * HOTNESS_STEPS as f32;
        // Casting a negative number gives 0.
        let step = (at as usize).min(HOTNESS_VALUES - 1);
        self.values[bucket.min(AGE_BUCKETS - 1)][step]
    }

    /// Where the values of pages of one age are; `hotness` is that of the lowest level.
    pub fn place(hotness: f32, bucket: usize) -> Place {
        Place {
            step: (hotness + CLASS_OF_ONE as f32 + 0.5) * HOTNESS_STEPS as f32,
            bucket: bucket.min(AGE_BUCKETS - 1) as u8,
        }
    }

    /// The value of a page whose level is this far above the lowest.
    #[inline]
    pub fn value_at(&self, level: u8, place: Place) -> Value {
        const STEPS_A_LEVEL: f32 = (HOTNESS_STEPS / LEVELS_PER_OCTAVE) as f32;
        let step = (f32::from(level) * STEPS_A_LEVEL + place.step) as usize;
        self.values[usize::from(place.bucket)][step.min(HOTNESS_VALUES - 1)]
    }
}

/// The Gittins index by age: the greatest ratio, over all horizons, of the chance that a page idle
/// for this long is touched within the horizon to the looks for which it is expected to be kept.
fn gittins(hazards: &[f64; AGE_BUCKETS]) -> [f64; AGE_BUCKETS] {
    let kept = |hazard: f64, looks: f64| {
        let stays = (1.0 - hazard).powf(looks);
        let kept = if hazard > 1e-9 {
            (1.0 - stays) / hazard
        } else {
            looks
        };
        (stays, kept)
    };
    let whole: [(f64, f64); AGE_BUCKETS] =
        std::array::from_fn(|bucket| kept(hazards[bucket], bucket_looks(bucket)));
    std::array::from_fn(|from| {
        // The page is somewhere in its first bucket: on average half of the bucket is left.
        let first = from.max(1);
        let half = match from {
            0 => whole[first],
            _ => kept(hazards[first], (bucket_looks(first) / 2.0).max(1.0)),
        };
        let (mut untouched, mut chance, mut looks, mut best) = (1.0f64, 0.0, 0.0, 0.0f64);
        for (stays, kept) in std::iter::once(&half).chain(&whole[first + 1..]) {
            chance += untouched * (1.0 - stays);
            looks += untouched * kept;
            untouched *= stays;
            best = best.max(chance / looks);
            if untouched < REACHED_MIN {
                break;
            }
        }
        best
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a constant hazard every horizon is equally good: the index is the hazard.
    #[test]
    fn the_index_of_a_constant_hazard_is_the_hazard() {
        for hazard in [0.001, 0.1, 0.9] {
            let index = gittins(&[hazard; AGE_BUCKETS])[7];
            assert!((index - hazard).abs() < 1e-9, "{hazard}: {index}");
        }
    }

    /// In a loop all pages return at one age: the closer a page is to it, the more it is worth.
    #[test]
    fn a_page_is_worth_more_the_nearer_its_return() {
        let mut hazards = [0.0; AGE_BUCKETS];
        hazards[12] = 0.9;
        let index = gittins(&hazards);
        assert!(index[1..=12].is_sorted() && index[1] > 0.0, "{index:?}");
        assert!(index[13] == 0.0);
    }
}
