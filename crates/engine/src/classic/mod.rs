// SPDX-License-Identifier: Apache-2.0
//! The classic LRU: active and inactive lists.

/// Classic state of one lruvec.
#[derive(Clone, Debug, Default)]
pub struct State {}

/// Settings of the classic LRU.
#[derive(Clone, Debug, Default)]
pub struct Settings {}

/// Scan balance of one reclaim pass.
#[derive(Clone, Debug, Default)]
pub struct ScanBalance {}
