// SPDX-License-Identifier: Apache-2.0
//! agewise's own page trace: compact, indexed, and readable up to the point where it was truncated.
//!
//! `docs/inside/page-trace.md` describes the format byte by byte.

mod comments;
mod layout;
mod reader;
mod record;
mod writer;

pub(crate) use layout::PAGE_SHIFT_MAX;
pub use layout::{Header, Order};
pub use reader::{FORMAT, Frame, frames, open_at};
pub use writer::PageTraceWriter;
