// SPDX-License-Identifier: Apache-2.0
//! `agewise run`: a program kept lean while it runs.

pub mod child;
pub mod family;
pub mod meter;
pub mod summary;
