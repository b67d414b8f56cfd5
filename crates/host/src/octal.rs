// SPDX-License-Identifier: Apache-2.0
//! Octal escapes of paths in `/proc` tables (mountinfo, swaps).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Decodes the octal escapes of blanks and backslashes.
pub(crate) fn unescape(text: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = match first {
            b'\\' => after.get(..3).and_then(|d| std::str::from_utf8(d).ok()),
            _ => None,
        };
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn blanks_and_backslashes_come_back() {
        assert_eq!(unescape(br"/a\040b\134c\"), r"/a b\c\");
        assert_eq!(unescape(b"/a\xff\\377").as_bytes(), b"/a\xff\xff");
        assert_eq!(unescape(r"\04é".as_bytes()), r"\04é");
    }
}
