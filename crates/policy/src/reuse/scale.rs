// SPDX-License-Identifier: Apache-2.0
//! Heat in one byte: a logarithm that need not change while time decays the heat.
//!
//! A page's heat is `h = h * d + accessed` at every scan. Stored relative to a reference that grows
//! by `1 / d` per scan, the value of a page that is not accessed stays the same: only accessed
//! pages are updated. 16 levels per octave distinguish heats by 4 %. When the reference nears the
//! top, it is set back, and all bytes with it.

use crate::mix::mix;

/// Levels in a factor of two.
pub(super) const LEVELS_PER_OCTAVE: f64 = 16.0;
/// The level of a page accessed for the first time, before any drift. Levels below it distinguish
/// colder pages (five octaves).
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
    /// By level, the level after an access in this scan.
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

    /// Starts a scan: everything that is not accessed becomes colder by `d`. Returns by how many
    /// levels all bytes must be lowered, usually 0.
    pub fn advance(&mut self) -> u8 {
        self.drift += self.drift_per_scan;
        self.scans += 1;
        let lower = if self.drift >= DRIFT_MAX {
            // With a decay near 0 the reference drifts by more than a byte per scan: then
            // everything falls to the bottom.
            let lower = self.drift.floor().min(255.0);
            self.drift -= self.drift.floor();
            lower as u8
        } else {
            0
        };
        self.tabulate();
        lower
    }

    /// log2 of the current heat of a level. Not for level 0, which means no heat at all.
    #[inline]
    pub fn log2_heat(&self, level: u8) -> f32 {
        (f32::from(level) - FIRST as f32 - self.drift as f32) / LEVELS_PER_OCTAVE as f32
    }

    /// How much colder a page that is not accessed becomes per look, log2.
    #[inline]
    pub fn octaves_a_look(&self) -> f32 {
        (self.drift_per_scan / LEVELS_PER_OCTAVE) as f32
    }

    /// The step of heat of a level, a quarter of an octave.
    #[inline]
    pub fn step(level: u8) -> u8 {
        level / LEVELS_ALIKE
    }

    /// The current heat of a level; 0 below the scale.
    pub fn heat(&self, level: u8) -> f64 {
        match level {
            0 => 0.0,
            level => ((f64::from(level) - FIRST - self.drift) / LEVELS_PER_OCTAVE).exp2(),
        }
    }

    /// The level after an access in this scan.
    #[inline]
    pub fn after_access(&self, level: u8) -> u8 {
        self.accessed[usize::from(level)]
    }

    /// Computes the levels after an access. An access moves a hot page by less than a level, so
    /// levels are rounded at random, in the same way for all pages of a scan: pages with the same
    /// accesses stay exactly alike.
    fn tabulate(&mut self) {
        let chance = f64::from(dither(self.scans)) / 256.0;
        for level in 0..=255u8 {
            let heat = self.heat(level) + 1.0;
            let exact = FIRST + self.drift + LEVELS_PER_OCTAVE * heat.log2();
            let rounded = (exact + chance).floor().clamp(1.0, 255.0);
            // An access never makes a page colder.
            self.accessed[usize::from(level)] = (rounded as u8).max(level);
        }
    }
}

/// A byte per scan, spread evenly and the same in every run.
fn dither(scan: u64) -> u8 {
    (mix(scan.wrapping_mul(0x9E37_79B9_7F4A_7C15)) >> 56) as u8
}
