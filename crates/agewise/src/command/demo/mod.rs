// SPDX-License-Identifier: Apache-2.0
//! `agewise demo`: the tour that `make run` shows.

pub mod program;
