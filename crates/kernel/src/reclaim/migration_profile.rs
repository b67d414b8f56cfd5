// SPDX-License-Identifier: Apache-2.0
//! How kernel versions differ in moving folios to another node.

/// What a kernel version moves, and what it keeps of a folio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Reclaim of cgroups demotes too, although the pages stay charged (since May 2022).
    pub cgroups_demote: bool,
    /// The refs field of a folio moves with it (since October 2024).
    pub keeps_refs: bool,
}
