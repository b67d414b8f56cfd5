// SPDX-License-Identifier: Apache-2.0
#![doc = include_str!("../README.md")]
//!
//! # Where to begin
//!
//! [`TraceSource::open`] gives a stream of accesses, [`DenseTrace`] holds a trace for many runs
//! over it, [`curve::exact()`] and [`sizing`] say what it means.

#![warn(missing_docs)]

mod access;
mod aside;
mod compression;
pub mod curve;
mod dense;
mod error;
pub mod format;
mod input;
mod intervals;
mod manifest;
mod number;
mod page_index;
pub mod page_trace;
#[cfg(feature = "parquet")]
mod parquet;
mod progress;
pub mod reader;
mod reading;
pub mod registry;
mod sample;
mod sink;
pub mod sizing;
mod stream;
pub mod suggest;
mod summary;
mod writer;
pub mod yardstick;

pub use access::{Access, AccessKind, Evidence, PageClass, Request};
pub use aside::Aside;
pub use dense::{ACCESSES_MAX, DenseTrace, NEVER};
pub use error::TraceError;
pub use format::{Format, ReadLimits, ReadOptions, RequestReader};
pub use input::{EXPANSION_MAX, Input};
pub use intervals::Intervals;
pub use manifest::Manifest;
pub use page_index::{PageIndex, hash};
pub use progress::ReadProgress;
pub use reading::{Reading, short_name};
pub use registry::FORMATS;
pub use sample::PageSample;
pub use stream::{AccessStream, BATCH_ACCESSES, TraceSource};
pub use summary::{QUANTILES, Summary};
pub use writer::{OutputFormat, TraceWriter};
