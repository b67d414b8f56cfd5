// SPDX-License-Identifier: Apache-2.0
//! `agewise reclaim`: what is cold leaves, once.

pub mod record;
pub mod timing;
