// SPDX-License-Identifier: Apache-2.0
//! The multi-gen LRU.

/// Multi-gen state of one lruvec (`struct lru_gen_folio` and `struct lru_gen_mm_state`).
#[derive(Clone, Debug, Default)]
pub struct State {}

/// What differs between kernel versions, and run-time settings.
#[derive(Clone, Debug, Default)]
pub struct Settings {}

/// The address spaces of a cgroup, oldest first.
#[derive(Clone, Debug, Default)]
pub struct MmList {}

/// The order in which global reclaim visits cgroups.
#[derive(Clone, Debug, Default)]
pub struct MemcgLru {}
