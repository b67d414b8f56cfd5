// SPDX-License-Identifier: Apache-2.0
//! The multi-gen LRU in a small world: counts of the kernel, invariants, and a naive model.

mod dirty;
mod generations;
mod global;
mod interfaces;
mod invariants;
mod machine;
mod naive;
mod naive_model;
#[path = "../support/trace.rs"]
#[allow(
    dead_code,
    reason = "the patterns of the other tests are not used here"
)]
mod random;
mod reparent;
mod replay;
mod trace;
