// SPDX-License-Identifier: Apache-2.0
//! When accessed bits are cleared, and what clearing costs: nearly all of what observing memory does.
//! Whoever clears them, of real page tables or of simulated ones, states what it saw and what that
//! took.

pub mod book;
pub mod cost;
