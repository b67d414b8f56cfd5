// SPDX-License-Identifier: Apache-2.0
//! DAMON: region-based access monitoring, schemes that act on it, and two ready-made uses of them,
//! proactive LRU sorting and proactive reclaim. As in Linux 6.12 and 7.2 (`Profile`).

pub mod action;
mod apply;
pub mod attrs;
pub mod filter;
pub mod goal;
mod intervals;
pub mod lru_sort;
pub mod module;
pub mod monitor;
pub mod params;
pub mod profile;
pub mod quota;
pub mod reclaim;
pub mod region;
pub mod scheme;
pub mod score;
pub mod space;
pub mod target;
#[cfg(test)]
mod testing;
