// SPDX-License-Identifier: Apache-2.0
//! Output formats: text for people, one JSON object per line, or CSV, with the same field names in
//! all of them.

use std::io::{self, Write};

use agewise_host::untrusted::{clean, is_hidden, json_escape};
use clap::ValueEnum;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::ser::{CompactFormatter, Formatter};

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
/// `out` cannot be written.
pub fn json_line(out: &mut impl Write, record: &impl Serialize) -> io::Result<()> {
    json(out, record)?;
    out.write_all(b"\n")
}

/// Writes records as CSV under a header with the names of their fields, or else as lines of JSON.
///
/// # Errors
/// `out` cannot be written, or a record has no flat form.
pub fn rows<R: Serialize>(
    out: &mut impl Write,
    format: Format,
    records: impl IntoIterator<Item = R>,
) -> io::Result<()> {
    let mut records = records.into_iter();
    if format != Format::Csv {
        return records.try_for_each(|record| json_line(out, &record));
    }
    let mut csv = csv::Writer::from_writer(out);
    let written = records.try_for_each(|record| csv.serialize(record));
    written.map_err(|error| match error.into_kind() {
        // As it is, so that `| head` is recognised.
        csv::ErrorKind::Io(error) => error,
        kind => io::Error::other(format!("{kind:?}")),
    })?;
    csv.flush()
}

/// Writes records as CSV with these columns; see [`csv_row`].
///
/// # Errors
/// Those of [`csv_row`].
pub fn csv<R: Serialize>(
    out: &mut impl Write,
    columns: &str,
    records: impl IntoIterator<Item = R>,
) -> io::Result<()> {
    writeln!(out, "{columns}")?;
    let mut records = records.into_iter();
    records.try_for_each(|record| csv_row(out, columns, &record))
}

/// Writes a row of CSV with the fields of `record` that `columns` names. Fields that are null, or
/// that the record does not have, are empty.
///
/// # Errors
/// `out` cannot be written, or `record` cannot be represented in JSON.
pub fn csv_row(out: &mut impl Write, columns: &str, record: &impl Serialize) -> io::Result<()> {
    let fields = serde_json::to_value(record)?;
    let text = |name| match &fields[name] {
        Value::Null => String::new(),
        Value::String(text) => csv_field(text),
        // 2, not 2.0.
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or(0.0).to_string(),
        value => value.to_string(),
    };
    let row: Vec<String> = columns.split(',').map(text).collect();
    writeln!(out, "{}", row.join(","))
}

/// The number, unless it is infinite: where nothing bounds a figure, JSON has null and CSV an empty
/// field.
pub fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

/// Serializes a number as [`finite`] says, for `serialize_with`.
///
/// # Errors
/// Those of the serializer.
pub fn bound<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
    finite(*number).serialize(to)
}

/// Writes `record` as JSON and escapes invisible characters in strings (such as `\u202e`), so that
/// names, and messages that contain names, can be printed safely.
///
/// # Errors
/// `out` cannot be written, or `record` cannot be represented in JSON.
pub fn json(out: &mut impl Write, record: &impl Serialize) -> serde_json::Result<()> {
    let visible = Visible {
        are_floats_short: false,
    };
    record.serialize(&mut serde_json::Serializer::with_formatter(out, visible))
}

/// Like [`json_line`], with six significant digits of each float: for lines that are kept and read,
/// rather than computed with.
///
/// # Errors
/// `out` cannot be written.
pub fn journal_line(out: &mut impl Write, record: &impl Serialize) -> io::Result<()> {
    let short = Visible {
        are_floats_short: true,
    };
    record.serialize(&mut serde_json::Serializer::with_formatter(
        &mut *out, short,
    ))?;
    out.write_all(b"\n")
}

/// A JSON formatter that escapes invisible characters.
struct Visible {
    are_floats_short: bool,
}

impl Formatter for Visible {
    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        let rounded = || format!("{value:.5e}").parse().ok();
        let short = self.are_floats_short.then(rounded).flatten();
        CompactFormatter.write_f64(out, short.unwrap_or(value))
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut plain = 0;
        for (at, c) in fragment.char_indices().filter(|(_, c)| is_hidden(*c)) {
            out.write_all(&fragment.as_bytes()[plain..at])?;
            let mut escape = String::new();
            // Writing to a String cannot fail.
            let _ = json_escape(c, &mut escape);
            out.write_all(escape.as_bytes())?;
            plain = at + c.len_utf8();
        }
        out.write_all(&fragment.as_bytes()[plain..])
    }
}

/// Prints a message on standard error. Use [`note!`](crate::note).
pub fn say(text: std::fmt::Arguments<'_>) {
    // If standard error is gone, nobody can be told.
    let _ = writeln!(io::stderr(), "agewise: {}", message(&text.to_string()));
}

/// Prints a message on standard error; arguments as for `format!`. Control characters are removed.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => {
        $crate::output::say(format_args!($($text)*))
    };
}

/// Removes control characters from a message. Lines after the first are indented, so that a line
/// break in a name cannot fake a message of its own.
pub fn message(text: &str) -> String {
    text.split('\n').map(clean).collect::<Vec<_>>().join("\n  ")
}

/// Formats an error and its causes on one line. Our errors include the text of their cause in their
/// own, so a cause that was already printed is left out.
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

/// Whether `error` only means that the reader of our output has left (`agewise … | head`).
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

/// The exit status of a command whose output was `written`: `status` also where the reader left
/// before the end of it, so that `| head` does not turn a failure into success.
///
/// # Errors
/// Output could not be written for another reason.
pub fn status(
    written: anyhow::Result<()>,
    status: std::process::ExitCode,
) -> anyhow::Result<std::process::ExitCode> {
    match written {
        Err(error) if !is_broken_pipe(&error) => Err(error),
        _ => Ok(status),
    }
}

/// Formats a message as a CSV field.
fn csv_field(text: &str) -> String {
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
    fn floats_of_a_journal_have_six_digits_and_names_stay_visible() {
        let record = (
            "\u{202e}",
            1.0 / 3.0,
            123_456_789.5,
            f64::NAN,
            u64::MAX,
            0.25,
        );
        let mut out = Vec::new();
        journal_line(&mut out, &record).unwrap();
        let line = String::from_utf8(out).unwrap();
        let expected = "[\"\\u202e\",0.333333,123457000.0,null,18446744073709551615,0.25]\n";
        assert_eq!(line, expected);
    }

    #[test]
    fn what_is_unbounded_is_null_or_empty() {
        #[derive(Clone, Copy, Serialize)]
        struct Row {
            #[serde(serialize_with = "bound")]
            low: f64,
            #[serde(serialize_with = "bound")]
            high: f64,
        }
        let row = Row {
            low: 1.5,
            high: f64::INFINITY,
        };
        let written = |format| {
            let mut out = Vec::new();
            rows(&mut out, format, [row]).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(Format::Json), "{\"low\":1.5,\"high\":null}\n");
        assert_eq!(written(Format::Csv), "low,high\n1.5,\n");
    }

    #[test]
    fn names_in_csv_are_escaped_and_quoted_where_needed() {
        let name =
            agewise_host::untrusted::Untrusted::from(&b"a\x1b\r\n\"b\",\\\xff\xe2\x80\xae"[..]);
        let record = serde_json::json!({"name": name, "share": 2.0, "count": 7, "none": null});
        let mut out = Vec::new();
        csv(&mut out, "name,none,count,share,more", [record]).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "name,none,count,share,more\n\"a\\x1b\\x0d\\x0a\"\"b\"\",\\\\xff\\u{202e}\",,7,2,\n"
        );
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
    fn a_reader_that_leaves_changes_no_status() {
        use std::process::ExitCode;
        let fail = |kind: io::ErrorKind| Err(io::Error::from(kind).into());
        let of = |written| status(written, ExitCode::FAILURE).map(|code| format!("{code:?}"));
        let failure = format!("{:?}", ExitCode::FAILURE);
        assert_eq!(of(Ok(())).unwrap(), failure);
        assert_eq!(of(fail(io::ErrorKind::BrokenPipe)).unwrap(), failure);
        assert!(of(fail(io::ErrorKind::StorageFull)).is_err());
    }

    #[test]
    fn fields_of_csv_are_quoted_where_needed() {
        assert_eq!(csv_field("plain"), "plain");
        assert_eq!(csv_field("a,b"), "\"a,b\"");
        assert_eq!(csv_field("say \"x\""), "\"say \"\"x\"\"\"");
    }
}
