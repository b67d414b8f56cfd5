// SPDX-License-Identifier: Apache-2.0
//! Octal escapes of paths in `/proc` tables (mountinfo, swaps).

/// Decodes the octal escapes of blanks and backslashes.
pub(crate) fn unescape_bytes(text: &[u8]) -> Vec<u8> {
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
    out
}

/// Like [`unescape_bytes`], for text.
pub(crate) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let digits = rest.get(at + 1..at + 4);
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_and_backslashes_come_back() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescape_bytes(br"/a\040b\134c\"), br"/a b\c\");
        assert_eq!(unescape_bytes(b"/a\xff\\377"), b"/a\xff\xff");
        assert_eq!(unescape(r"trailing\"), r"trailing\");
        assert_eq!(unescape(r"\04é"), r"\04é");
    }
}
