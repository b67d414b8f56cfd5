// SPDX-License-Identifier: Apache-2.0
//! Pseudo-random numbers that are the same in every run.

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the result depends on
/// every bit of `z`.
#[inline]
#[must_use]
pub fn mix(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// Hashes a number: neighbouring numbers get unrelated hashes.
#[inline]
#[must_use]
pub fn hash(value: u64) -> u64 {
    mix(value.wrapping_add(0x9E37_79B9_7F4A_7C15))
}
