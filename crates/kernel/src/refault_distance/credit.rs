// SPDX-License-Identifier: Apache-2.0
//! What bounds the promotions of the rule under the multi-gen LRU.

/// Evictions, by type, that have not yet paid for a promotion; never more than a generation's
/// worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromotionCredit {
    pub(super) evicted_pages: [u64; 2],
}
