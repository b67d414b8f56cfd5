// SPDX-License-Identifier: Apache-2.0
//! Studies: policies compared on workloads and traces, with results that record what was run. The
//! command and the Python package share this code, so the same study gives the same rows in both.

pub mod again;
pub mod base;
pub mod check;
pub mod columns;
pub mod curve;
pub mod description;
mod error;
mod measured;
pub mod options;
pub mod parquet;
pub mod result;
pub mod run;
pub mod setup;
pub mod sweep;
pub mod table;
mod unused;

pub use error::StudyError;
