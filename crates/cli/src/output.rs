// SPDX-License-Identifier: Apache-2.0
//! How answers are printed: text for people, one JSON object a line, or CSV, with one set of field
//! names for all.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

/// The form of what a command prints on standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people; bytes in IEC units.
    #[default]
    Text,
    /// One JSON object a line (NDJSON); bytes, counts and times as raw numbers.
    Json,
    /// Comma-separated values under a header; bytes, counts and times as raw numbers.
    Csv,
}

/// Writes `record` as one line of JSON.
///
/// # Errors
/// Those of `out`.
pub fn json_line(out: &mut impl Write, record: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, record)?;
    out.write_all(b"\n")
}

/// Whether `error` is only a reader that left early (`agewise … | head`), which is no failure.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| match cause.downcast_ref::<io::Error>() {
            Some(error) => error.kind() == io::ErrorKind::BrokenPipe,
            None => cause
                .downcast_ref::<serde_json::Error>()
                .is_some_and(|error| error.io_error_kind() == Some(io::ErrorKind::BrokenPipe)),
        })
}

/// `text` as one field of CSV (RFC 4180): quoted where it needs to be.
pub fn csv_field(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\"")).into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_csv_are_quoted_where_needed() {
        assert_eq!(csv_field("plain"), "plain");
        assert_eq!(csv_field("a,b"), "\"a,b\"");
        assert_eq!(csv_field("say \"x\""), "\"say \"\"x\"\"\"");
    }
}
