// SPDX-License-Identifier: Apache-2.0
//! Machines at random: of any shape, under any load, with all that can happen to them. After each
//! step everything that the machine keeps about its memory has to agree ([`Machine::check`]).
//!
//! [`draw`] makes a [`Case`], [`play`] carries it out, [`shrink`] makes one that fails small. A
//! case is a text that people can read, change and keep.
//!
//! [`Machine::check`]: crate::machine::Machine::check

mod case;
mod draw;
mod play;
mod shrink;

pub use case::{Bounds, Case, CaseError, Shape, Step, Swap};
pub use draw::draw;
pub use play::{Failure, play};
pub use shrink::shrink;

#[cfg(test)]
mod tests;
