// SPDX-License-Identifier: Apache-2.0
//! The limit on promotions by the rule under the multi-gen LRU.

/// Evictions, by type, not yet used up by a promotion; at most a generation's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromotionCredit {
    pub(super) evicted_pages: [u64; 2],
}
