// SPDX-License-Identifier: Apache-2.0
//! Parts of the multi-gen LRU left out, for experiments: of no kernel version, so beside profiles.

/// Features switched off one at a time, for experiments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ablation {
    /// Walks do not consult the Bloom filter or the accessed bits of tables.
    pub no_bloom: bool,
    /// No tier is protected.
    pub no_protection: bool,
    /// Rmap looks at one entry only.
    pub no_look_around: bool,
    /// Refaults do not restore usage marks.
    pub no_restore: bool,
    /// A fault leaves no mark.
    pub no_fault_mark: bool,
    /// A refault is recent only if the shadow's generation is still the oldest one.
    pub exact_refault_window: bool,
    /// Age only when no generation is spare.
    pub no_early_aging: bool,
}

impl Ablation {
    /// Without what either does without.
    #[must_use]
    pub fn and(self, other: Ablation) -> Ablation {
        Ablation {
            no_bloom: self.no_bloom || other.no_bloom,
            no_protection: self.no_protection || other.no_protection,
            no_look_around: self.no_look_around || other.no_look_around,
            no_restore: self.no_restore || other.no_restore,
            no_fault_mark: self.no_fault_mark || other.no_fault_mark,
            exact_refault_window: self.exact_refault_window || other.exact_refault_window,
            no_early_aging: self.no_early_aging || other.no_early_aging,
        }
    }
}
