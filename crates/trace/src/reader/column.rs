// SPDX-License-Identifier: Apache-2.0
//! The columns of a table of accesses, and their names.

/// The meaning of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// A page, block or key number.
    Page,
    /// A byte address.
    Address,
    /// Length in bytes, from the address on.
    Bytes,
    /// Number of pages, from the page on.
    Count,
    /// A time, in units of this many nanoseconds; may have decimals.
    Time(u64),
    /// Read or write.
    Kind,
    /// The process.
    Process,
    /// Anonymous or file.
    Class,
    /// Seen, faulted or inferred.
    Evidence,
}

/// The columns and their known names.
const NAMES: [(Column, &[&str]); 12] = [
    (
        Column::Page,
        &["page", "key", "id", "obj_id", "block", "lba", "vpn"],
    ),
    (Column::Address, &["address", "addr", "vaddr", "offset"]),
    (Column::Bytes, &["bytes", "size", "length", "len"]),
    (Column::Count, &["count", "pages", "blocks"]),
    (Column::Time(1), &["time_ns"]),
    (Column::Time(1_000), &["time_us"]),
    (Column::Time(1_000_000), &["time_ms"]),
    (
        Column::Time(1_000_000_000),
        &["time_s", "time", "timestamp"],
    ),
    (Column::Kind, &["kind", "op", "operation", "rw", "type"]),
    (Column::Process, &["process", "pid", "tgid"]),
    (Column::Class, &["class", "page_type", "backing"]),
    (Column::Evidence, &["evidence"]),
];

impl Column {
    /// The main name of the column.
    #[must_use]
    pub fn name(self) -> &'static str {
        let of_column = NAMES.iter().find(|(column, _)| *column == self);
        of_column.map_or("", |(_, names)| names[0])
    }

    /// Looks up a column by name, for `--columns NAME=HEADER`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let is_name = |names: &&[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
        NAMES
            .iter()
            .find(|(_, names)| is_name(names))
            .map(|(column, _)| *column)
    }
}
