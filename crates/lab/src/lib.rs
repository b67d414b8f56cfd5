// SPDX-License-Identifier: Apache-2.0
//! The lab: a simulated machine, its workloads, the field's traces and the experiments on them.
//! Same build and same seed give the same bytes out.

pub mod curve;
pub mod experiment;
pub mod heat;
pub mod machine;
pub mod policy;
pub mod proactive;
pub mod reference;
pub mod reproduce;
pub mod sizing;
pub mod trace;
pub mod workload;
