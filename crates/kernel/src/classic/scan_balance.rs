// SPDX-License-Identifier: Apache-2.0
//! The balance between anon and file in one reclaim call.

/// Scan balance of one reclaim call, evaluated for every node and priority
/// (`prepare_scan_control`), except for the flags that retries set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanBalance {
    /// Costs of the target when the pass began, by type.
    pub cost: [u64; 2],
    /// Whether active pages of the type may be deactivated.
    pub may_deactivate: [bool; 2],
    /// Retry: both types may be deactivated whatever the lists say.
    pub force_deactivate: bool,
    /// An active chunk was skipped because its type may not be deactivated.
    pub skipped_deactivate: bool,
    /// There is plenty of inactive cache: scan files only.
    pub cache_trim_mode: bool,
    /// Retry: `cache_trim_mode` stays off.
    pub no_cache_trim_mode: bool,
    /// A pass with `cache_trim_mode` reclaimed nothing.
    pub cache_trim_mode_failed: bool,
    /// File pages are so few that only scanning anon helps.
    pub file_is_tiny: bool,
}
