// SPDX-License-Identifier: Apache-2.0
//! Traces as Apache Parquet: the columns of [CSV](crate::reader::csv), and the header of a page
//! trace in the metadata, written as in CSV.
//!
//! | column | type | |
//! |---|---|---|
//! | time_ns | 64 bits, unsigned | since the origin of the trace |
//! | page | 64 bits, unsigned | the first page |
//! | count | 64 bits, unsigned | pages from there on |
//! | kind | text | r or w; null if not known |
//! | process | 32 bits, unsigned | 0 if not known |
//! | class | text | anon or file; null if not known |
//! | evidence | text | fault, minor_fault, major_fault or inferred; null: seen |

mod contain;
mod reader;
mod writer;

pub use contain::contained;
pub use reader::FORMAT;
pub(crate) use writer::ParquetWriter;

/// Key of the header in the metadata: the lines that precede the columns of a CSV file.
const HEADER_KEY: &str = "agewise_trace";
