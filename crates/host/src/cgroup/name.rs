// SPDX-License-Identifier: Apache-2.0
//! Cgroup paths as text. A name may contain any bytes except `/`, NUL and newline. The text must be
//! unique for every path, and identical to the path where that is valid UTF-8.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::untrusted::Untrusted;

/// Converts a path to text: bytes that are not UTF-8 become `\xff`. A backslash stays unless it
/// would read as such an escape: then it becomes `\x5c`. So [`from_text`] restores the path, and
/// two paths never have the same text.
pub fn text(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let mut out = String::with_capacity(bytes.len());
    let mut rest = bytes;
    while !rest.is_empty() {
        let (valid, bad) = match std::str::from_utf8(rest) {
            Ok(_) => (rest.len(), 0),
            Err(error) => {
                let valid = error.valid_up_to();
                let bad = error.error_len().unwrap_or(rest.len() - valid);
                (valid, bad)
            }
        };
        let plain = String::from_utf8_lossy(&rest[..valid]);
        for (at, char) in plain.char_indices() {
            match char {
                '\\' if escape(&plain.as_bytes()[at..]).is_some() => out.push_str("\\x5c"),
                char => out.push(char),
            }
        }
        for byte in &rest[valid..valid + bad] {
            out.push_str(&format!("\\x{byte:02x}"));
        }
        rest = &rest[valid + bad..];
    }
    out
}

/// Restores the path from the output of [`text`].
pub fn from_text(text: &OsStr) -> PathBuf {
    let mut rest = text.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((first, after)) = rest.split_first() {
        match escape(rest) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// Prepares the output of [`text`] for display, without escaping bytes twice.
pub fn shown(text: &str) -> Untrusted {
    Untrusted::from(from_text(OsStr::new(text)).as_path())
}

/// Decodes an escape at the start of `text`: a byte outside ASCII, or a backslash. Other sequences
/// that start like this (`\x2d` in systemd's names) are not our escapes.
fn escape(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"\\x")?.get(..2)?;
    let is_ours = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if !digits.iter().all(is_ours) {
        return None;
    }
    let byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (byte >= 0x80 || byte == b'\\').then_some(byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(bytes: &[u8]) -> PathBuf {
        OsStr::from_bytes(bytes).into()
    }

    #[test]
    fn what_is_utf8_stays_and_the_rest_is_escaped() {
        for same in [
            "/web/a",
            "/größe",
            r"/dev-disk-by\x2dlabel",
            r"/a\",
            r"/a\xFF",
        ] {
            assert_eq!(text(Path::new(same)), same);
        }
        assert_eq!(text(&path(b"/hog\xff")), r"/hog\xff");
        assert_eq!(text(&path(b"/hog\xc3")), r"/hog\xc3");
        // Escaped only once when shown.
        for name in [&b"/hog\xff"[..], br"/hog\xff", b"/hog\x1b", br"/hog\x1b"] {
            let once = Untrusted::from(name).terminal().to_string();
            assert_eq!(shown(&text(&path(name))).terminal().to_string(), once);
        }
        // A name that looks the same gets a different text.
        assert_eq!(text(Path::new(r"/hog\xff")), r"/hog\x5cxff");
        assert_eq!(text(Path::new(r"/hog\x5cxff")), r"/hog\x5cx5cxff");
    }

    proptest! {
        #[test]
        fn text_gives_the_path_back(
            parts in prop::collection::vec(
                prop_oneof![
                    Just(b"\\x5c".to_vec()), Just(b"\\".to_vec()), Just(b"\\xf".to_vec()),
                    Just(b"xff".to_vec()), Just(b"5c".to_vec()),
                    prop::collection::vec(any::<u8>(), 0..4),
                ],
                0..8,
            )
        ) {
            let path = path(&parts.concat());
            let text = text(&path);
            prop_assert_eq!(from_text(OsStr::new(&text)), path);
        }
    }
}
