// SPDX-License-Identifier: Apache-2.0
//! Random machines of any shape, under any load, with everything that can happen to them. After
//! each step, all that the machine records about its memory must agree ([`Machine::check`]).
//!
//! [`draw`] makes a [`Case`], [`play`] runs it, and [`shrink`] reduces one that fails. A case is a
//! text that people can read, change and keep.
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
