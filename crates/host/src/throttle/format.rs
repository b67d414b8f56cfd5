// SPDX-License-Identifier: Apache-2.0
//! The format of the ledger: a line with its version, then one line per entry.
//!
//! ```text
//! agewise-ledger 2
//! 5f3a9c01 freeze<TAB>4711<TAB>/cgroup/a<TAB>write<TAB>/cgroup/a/cgroup.freeze<TAB>0
//! ```
//!
//! A line begins with the CRC-32 of the rest of it. Version 1 had neither that nor the first line:
//! it began with an entry, which no damage to the first line of a later version looks like.
//! All bytes except printable ASCII are escaped: users who may name a cgroup must not be able to
//! add lines to the ledger.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::undo::{Kind, Step, Undo};

const HEADER: &[u8] = b"agewise-ledger 2";

/// The contents of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The entries, in the order in which the actions were done.
    pub undos: Vec<Undo>,
    /// Lines that could not be parsed: damaged, or of a later version.
    pub unreadable: Vec<Vec<u8>>,
}

impl Contents {
    pub fn is_empty(&self) -> bool {
        self.undos.is_empty() && self.unreadable.is_empty()
    }

    /// Encodes the file. Unreadable lines are kept unchanged.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = [HEADER, b"\n"].concat();
        for undo in &self.undos {
            let rest = line(undo);
            bytes.extend(format!("{:08x} ", crc32fast::hash(rest.as_bytes())).bytes());
            bytes.extend(rest.bytes());
            bytes.push(b'\n');
        }
        for line in &self.unreadable {
            bytes.extend(line);
            bytes.push(b'\n');
        }
        bytes
    }

    /// Decodes everything intact in a file, whatever the rest is.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        lines.retain(|line| !line.is_empty());
        let is_first_version = lines.first().is_some_and(|line| parse(line).is_some());
        let mut contents = Contents::default();
        for line in lines {
            if line == HEADER {
                continue;
            }
            // A program of the first version keeps the lines of later ones when it writes.
            let with_checksum = checked(line).and_then(parse);
            match with_checksum.or_else(|| parse(line).filter(|_| is_first_version)) {
                Some(undo) => contents.undos.push(undo),
                None => contents.unreadable.push(line.to_owned()),
            }
        }
        contents
    }
}

/// Returns a line without its checksum, if that is correct.
fn checked(line: &[u8]) -> Option<&[u8]> {
    let (sum, rest) = line.split_at_checked(8)?;
    let rest = rest.strip_prefix(b" ")?;
    let is_whole = sum == format!("{:08x}", crc32fast::hash(rest)).as_bytes();
    is_whole.then_some(rest)
}

fn line(undo: &Undo) -> String {
    let kind = match undo.kind {
        Kind::Squeeze => "squeeze",
        Kind::Limit => "limit",
        Kind::Freeze => "freeze",
        Kind::Mount => "mount",
        Kind::Socket => "socket",
    };
    let mut line = format!("{kind}\t{}\t{}", undo.inode, escape_path(&undo.dir));
    for step in &undo.steps {
        let (verb, path, what) = match step {
            Step::Write { file, value } => ("write", file, escape(value.as_bytes())),
            Step::Given { file, value } => ("given", file, escape(value.as_bytes())),
            Step::Leave { from, to } => ("leave", from, escape_path(to)),
            Step::Unmount { dir } => ("unmount", dir, String::new()),
            Step::RemoveSocket { path } => ("unlink", path, String::new()),
        };
        line += &format!("\t{verb}\t{}\t{what}", escape_path(path));
    }
    line
}

fn parse(line: &[u8]) -> Option<Undo> {
    let mut words = line.split(|byte| *byte == b'\t').map(unescape);
    let text = |word: Vec<u8>| String::from_utf8(word).ok();
    let path = |word: Vec<u8>| PathBuf::from(OsString::from_vec(word));
    let kind = match words.next()?.as_slice() {
        b"squeeze" => Kind::Squeeze,
        b"limit" => Kind::Limit,
        b"freeze" => Kind::Freeze,
        b"mount" => Kind::Mount,
        b"socket" => Kind::Socket,
        _ => return None,
    };
    let inode = text(words.next()?)?.parse().ok()?;
    let dir = path(words.next()?);
    let mut steps = Vec::new();
    while let Some(verb) = words.next() {
        let (first, second) = (path(words.next()?), words.next()?);
        let step = match verb.as_slice() {
            b"write" => Step::Write {
                file: first,
                value: text(second)?,
            },
            b"given" => Step::Given {
                file: first,
                value: text(second)?,
            },
            b"leave" => Step::Leave {
                from: first,
                to: path(second),
            },
            b"unmount" if second.is_empty() => Step::Unmount { dir: first },
            b"unlink" if second.is_empty() => Step::RemoveSocket { path: first },
            _ => return None,
        };
        steps.push(step);
    }
    steps.iter().all(Step::is_ours).then_some(Undo {
        dir,
        inode,
        kind,
        steps,
    })
}

fn escape_path(path: &Path) -> String {
    escape(path.as_os_str().as_bytes())
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text += &format!("\\x{byte:02x}"),
        }
    }
    text
}

/// Version 1 used only the first three escapes, so its lines decode to the same.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, length) = match (first, after.first()) {
            (b'\\', Some(b't')) => (b'\t', 2),
            (b'\\', Some(b'n')) => (b'\n', 2),
            (b'\\', Some(b'x')) => hex(after).map_or((b'x', 2), |byte| (byte, 4)),
            (b'\\', Some(&other)) => (other, 2),
            _ => (first, 1),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    bytes
}

fn hex(after: &[u8]) -> Option<u8> {
    let digits = after
        .get(1..3)
        .filter(|d| d.iter().all(u8::is_ascii_hexdigit))?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
