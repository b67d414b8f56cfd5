// SPDX-License-Identifier: Apache-2.0
//! How answers are printed: text for people, one JSON object a line, or CSV, with one set of field
//! names for all.

use std::io::{self, Write};

use agewise_host::untrusted::{clean, is_hidden, json_escape};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

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
    json(out, record)?;
    out.write_all(b"\n")
}

/// Writes `record` as JSON, every character of a string that is not to be seen as `\u202e`: names
/// and messages that hold names may be printed as they come.
///
/// # Errors
/// Those of `out`, and of a record that JSON cannot hold.
pub fn json(out: &mut impl Write, record: &impl Serialize) -> serde_json::Result<()> {
    record.serialize(&mut Serializer::with_formatter(out, Visible))
}

/// JSON on one line with nothing hidden in it.
struct Visible;

impl Formatter for Visible {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut plain = 0;
        for (at, c) in fragment.char_indices().filter(|(_, c)| is_hidden(*c)) {
            out.write_all(&fragment.as_bytes()[plain..at])?;
            let mut escape = String::new();
            // Writing to a String does not fail.
            let _ = json_escape(c, &mut escape);
            out.write_all(escape.as_bytes())?;
            plain = at + c.len_utf8();
        }
        out.write_all(&fragment.as_bytes()[plain..])
    }
}

/// Says something on standard error, as `format!` would have it. Use [`note!`](crate::note).
pub fn say(text: std::fmt::Arguments<'_>) {
    // There is nobody to tell that standard error is gone.
    let _ = writeln!(io::stderr(), "agewise: {}", message(&text.to_string()));
}

/// Says something on standard error, without the controls of names in it.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => {
        $crate::output::say(format_args!($($text)*))
    };
}

/// A message without controls. Lines after the first are indented: none of them, put there by a
/// name, looks like a message of its own.
pub fn message(text: &str) -> String {
    text.split('\n').map(clean).collect::<Vec<_>>().join("\n  ")
}

/// An error and what is behind it on one line. Errors of ours say what the system said and hand it
/// out as their source as well: what was said already is not said again.
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
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

/// A message as one field of CSV. Names say it themselves: `Untrusted::csv`.
pub fn csv_field(text: &str) -> String {
    let text = clean(text);
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_messages_have_nothing_hidden_in_them() {
        let text = "no cgroup /a\x1b[2J\u{202e}\u{7f}\u{e0041}";
        let mut out = Vec::new();
        json_line(&mut out, &text).unwrap();
        let line = String::from_utf8(out).unwrap();
        assert_eq!(
            line,
            "\"no cgroup /a\\u001b[2J\\u202e\\u007f\\udb40\\udc41\"\n"
        );
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
        assert_eq!(
            message("a\x07\nagewise: all is well"),
            "a\\x07\n  agewise: all is well"
        );
        assert_eq!(csv_field("a\n,\u{2066}"), "\"a\\x0a,\\u{2066}\"");
    }

    #[test]
    fn a_chain_says_everything_once() {
        use anyhow::Context;
        let read = agewise_host::error::read("/nowhere/at/all".as_ref());
        let error = read.context("no trace").unwrap_err();
        assert_eq!(
            chain(&error),
            "no trace: cannot read /nowhere/at/all: No such file or directory (os error 2)"
        );
        assert_eq!(chain(&anyhow::anyhow!("b").context("a")), "a: b");
    }

    #[test]
    fn fields_of_csv_are_quoted_where_needed() {
        assert_eq!(csv_field("plain"), "plain");
        assert_eq!(csv_field("a,b"), "\"a,b\"");
        assert_eq!(csv_field("say \"x\""), "\"say \"\"x\"\"\"");
    }
}
