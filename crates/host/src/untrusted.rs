// SPDX-License-Identifier: Apache-2.0
//! Names chosen by others: of processes, cgroups, mappings and files. They may contain any byte,
//! including terminal escapes, line breaks and marks that reverse the text direction, and they end
//! up in root's terminal, tables and metrics. [`Untrusted`] has no `Display`: it is printed as
//! [`Untrusted::terminal`], or serialized.
//!
//! An ASCII control becomes `\x1b`, another invisible character `\u{202e}`, and a
//! byte that is not UTF-8 `\xff`. A backslash is unchanged (systemd's names are full of them)
//! unless it would read as one of these escapes: then it becomes `\x5c`, so that two names never
//! look the same. JSON has its own escapes for characters: serialized names keep them.

use std::ffi::OsStr;
use std::fmt::{self, Display, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// A name chosen by others. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Untrusted(Arc<[u8]>);

/// A name escaped for a terminal.
#[derive(Clone, Copy)]
pub struct Escaped<'a>(&'a [u8]);

impl Untrusted {
    /// The name of a process in reports: `PID (name)`.
    #[must_use]
    pub fn process(pid: u32, comm: &Untrusted) -> Self {
        let mut bytes = format!("{pid} (").into_bytes();
        bytes.extend_from_slice(&comm.0);
        bytes.push(b')');
        Untrusted(bytes.into())
    }

    /// The raw bytes, to compare and look up, never to print.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The raw name, to open, compare and look up, never to print.
    #[must_use]
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// Escaped for a terminal, a log or a message: one line without control characters.
    #[must_use]
    pub fn terminal(&self) -> Escaped<'_> {
        Escaped(&self.0)
    }
}

/// Escapes the control characters in a sentence composed of several parts. Nothing else changes, so
/// a sentence that is already clean stays the same.
#[must_use]
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_hidden(c) {
            true => push_hidden(c, &mut out),
            false => out.push(c),
        }
    }
    out
}

/// The name that was shown like this on a terminal ([`Untrusted::terminal`]).
#[must_use]
pub fn from_shown(shown: &OsStr) -> Untrusted {
    let mut rest = shown.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((first, after)) = rest.split_first() {
        if *first == b'\\' && reads_as_escape(after) {
            if let Some(byte) = escaped_byte(after) {
                bytes.push(byte);
                rest = &after[3..];
                continue;
            }
            if let Some((c, after)) = escaped_char(after) {
                bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                rest = after;
                continue;
            }
        }
        bytes.push(*first);
        rest = after;
    }
    Untrusted(bytes.into())
}

/// The character that `u{202e}` after a backslash stands for, and what follows it.
fn escaped_char(rest: &[u8]) -> Option<(char, &[u8])> {
    let digits = rest.strip_prefix(b"u{")?;
    let end = digits.iter().position(|byte| *byte == b'}')?;
    let code = u32::from_str_radix(std::str::from_utf8(&digits[..end]).ok()?, 16).ok()?;
    Some((char::from_u32(code)?, &digits[end + 1..]))
}

/// Whether a character is invisible or affects the text around it: controls, line separators,
/// direction marks, zero-width characters. Joiners (U+200C, U+200D) are part of words.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Writes a character escaped as in JSON: `\u202e`, or a pair of such escapes beyond U+FFFF.
///
/// # Errors
/// The errors of `out`.
pub fn json_escape(c: char, out: &mut impl Write) -> fmt::Result {
    let mut units = [0; 2];
    c.encode_utf16(&mut units)
        .iter()
        .try_for_each(|unit| write!(out, "\\u{unit:04x}"))
}

fn push_hidden(c: char, out: &mut String) {
    // Writing to a String cannot fail.
    let _ = match c {
        '\0'..='\x7f' => write!(out, "\\x{:02x}", c as u32),
        _ => write!(out, "\\u{{{:x}}}", c as u32),
    };
}

/// Whether a backslash followed by `rest` would read as one of our escapes.
fn reads_as_escape(rest: &[u8]) -> bool {
    rest.starts_with(b"u{") || matches!(escaped_byte(rest), Some(..0x20 | b'\\' | 0x7f..))
}

/// The byte that `xff` after a backslash encodes.
fn escaped_byte(rest: &[u8]) -> Option<u8> {
    let [b'x', high, low, ..] = rest else {
        return None;
    };
    let digit = |byte: &u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    Some(digit(high)? << 4 | digit(low)?)
}

/// Escapes what is not UTF-8, and backslashes that would read as escapes; `hidden` writes the
/// characters that must not be printed raw.
fn text(bytes: &[u8], hidden: fn(char, &mut String)) -> String {
    let mut out = String::with_capacity(bytes.len());
    let mut at = 0;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            at += c.len_utf8();
            match c {
                '\\' if reads_as_escape(&bytes[at..]) => out.push_str("\\x5c"),
                c if is_hidden(c) => hidden(c, &mut out),
                c => out.push(c),
            }
        }
        at += chunk.invalid().len();
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&text(self.0, push_hidden))
    }
}

impl fmt::Debug for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.terminal())
    }
}

/// Serialized as text in which only the bytes that are not UTF-8 are escaped. The writer has to
/// escape control characters, as `agewise`'s JSON writer does.
impl serde::Serialize for Untrusted {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text(&self.0, |c, out| out.push(c)))
    }
}

/// Restores what [`Serialize`](serde::Serialize) wrote, byte for byte.
impl<'de> serde::Deserialize<'de> for Untrusted {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let mut rest = text.as_bytes();
        let mut bytes = Vec::with_capacity(rest.len());
        while let Some((first, after)) = rest.split_first() {
            let escaped = escaped_byte(after).filter(|_| *first == b'\\');
            let escaped = escaped.filter(|byte| matches!(byte, b'\\' | 0x80..));
            bytes.push(escaped.unwrap_or(*first));
            rest = if escaped.is_some() { &rest[4..] } else { after };
        }
        Ok(Untrusted(bytes.into()))
    }
}

impl Default for Untrusted {
    fn default() -> Self {
        Untrusted(Arc::new([]))
    }
}

impl From<&[u8]> for Untrusted {
    fn from(bytes: &[u8]) -> Self {
        Untrusted(bytes.into())
    }
}

impl From<&str> for Untrusted {
    fn from(text: &str) -> Self {
        text.as_bytes().into()
    }
}

impl From<String> for Untrusted {
    fn from(text: String) -> Self {
        text.as_bytes().into()
    }
}

impl From<&OsStr> for Untrusted {
    fn from(name: &OsStr) -> Self {
        name.as_bytes().into()
    }
}

impl From<&Path> for Untrusted {
    fn from(path: &Path) -> Self {
        path.as_os_str().into()
    }
}

impl PartialEq<str> for Untrusted {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

impl PartialEq<&str> for Untrusted {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

#[cfg(test)]
#[path = "untrusted_tests.rs"]
mod tests;
