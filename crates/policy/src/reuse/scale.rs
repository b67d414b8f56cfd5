// SPDX-License-Identifier: Apache-2.0
//! Heat as one byte: a logarithm that stands still while time decays it.
//!
//! A page's heat is `h = h * d + accessed` at every scan. Written relative to a reference that
//! grows by `1 / d` per scan, a page that is not accessed keeps its value: only accessed pages are
//! updated, and 16 levels per octave distinguish heats by 4 %. The reference is reset, and all
//! bytes with it, when it nears the top.

use crate::mix::mix;

/// Levels in a factor of two.
pub(super) const LEVELS_PER_OCTAVE: f64 = 16.0;
/// The level of a page that has just been accessed for the first time, before any drift: how much
/// colder pages can still be distinguished (five octaves).
const FIRST: f64 = 80.0;
/// Levels by which the reference may drift before it is set back.
const DRIFT_MAX: f64 = 80.0;
/// Levels that count as equally cold: a quarter of an octave.
const LEVELS_ALIKE: u8 = 4;

/// The scale of a model.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    drift_per_scan: f64,
    drift: f64,
    /// What an access in this scan makes of each level.
    accessed: Box<[u8; 256]>,
    scans: u64,
}

impl Scale {
    pub fn new(decay: f64) -> Self {
        let mut scale = Scale {
            drift_per_scan: LEVELS_PER_OCTAVE * -decay.log2(),
            drift: 0.0,
            accessed: Box::new([0; 256]),
            scans: 0,
        };
        scale.tabulate();
        scale
    }

    /// A scan begins: everything that is not accessed is colder by `d`. Returns how many levels all
    /// bytes have to be lowered, mostly 0.
    pub fn advance(&mut self) -> u8 {
        self.drift += self.drift_per_scan;
        self.scans += 1;
        let lower = if self.drift >= DRIFT_MAX {
            // A decay near 0 drifts by more than a byte a scan: then everything falls to the
            // bottom.
            let lower = self.drift.floor().min(255.0);
            self.drift -= self.drift.floor();
            lower as u8
        } else {
            0
        };
        self.tabulate();
        lower
    }

    /// log2 of the heat of a level now. Not for level 0, which means no heat at all.
    #[inline]
    pub fn log2_heat(&self, level: u8) -> f32 {
        (f32::from(level) - FIRST as f32 - self.drift as f32) / LEVELS_PER_OCTAVE as f32
    }

    /// How much colder a page that is not accessed gets per look, log2.
    #[inline]
    pub fn octaves_a_look(&self) -> f32 {
        (self.drift_per_scan / LEVELS_PER_OCTAVE) as f32
    }

    /// A quarter of an octave counts as one step of heat.
    #[inline]
    pub fn step(level: u8) -> u8 {
        level / LEVELS_ALIKE
    }

    /// The heat of a level now; 0 below the scale.
    pub fn heat(&self, level: u8) -> f64 {
        match level {
            0 => 0.0,
            level => ((f64::from(level) - FIRST - self.drift) / LEVELS_PER_OCTAVE).exp2(),
        }
    }

    /// The level of a page that was accessed in this scan.
    #[inline]
    pub fn after_access(&self, level: u8) -> u8 {
        self.accessed[usize::from(level)]
    }

    /// An access moves a hot page by less than a level: it is rounded by chance, the same for all
    /// pages in one scan, so that pages that were accessed alike stay exactly alike.
    fn tabulate(&mut self) {
        let chance = f64::from(dither(self.scans)) / 256.0;
        for level in 0..=255u8 {
            let heat = self.heat(level) + 1.0;
            let exact = FIRST + self.drift + LEVELS_PER_OCTAVE * heat.log2();
            let rounded = (exact + chance).floor().clamp(1.0, 255.0);
            // Never colder for having been accessed.
            self.accessed[usize::from(level)] = (rounded as u8).max(level);
        }
    }
}

/// Spreads evenly over scans, the same in every run.
fn dither(scan: u64) -> u8 {
    (mix(scan.wrapping_mul(0x9E37_79B9_7F4A_7C15)) >> 56) as u8
}
