// SPDX-License-Identifier: Apache-2.0
//! Miss-ratio curves: the misses of a policy for every size of the pool.

mod stack_distance;

pub use stack_distance::StackDistances;
