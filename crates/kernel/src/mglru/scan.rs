// SPDX-License-Identifier: Apache-2.0
//! Parses numbers and words as the kernel does (`lib/vsprintf.c` `sscanf`, `lib/kstrtox.c`).

/// `isspace` of the kernel: ASCII white space and the Latin-1 no-break space.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r' | 0xa0)
}

/// A position in a string, advanced as by `sscanf`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scanner<'a> {
    rest: &'a [u8],
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Scanner { rest: text }
    }

    pub(super) fn skip_spaces(&mut self) {
        while let [first, rest @ ..] = self.rest
            && is_space(*first)
        {
            self.rest = rest;
        }
    }

    /// The rest of the string.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether nothing is left.
    pub(super) fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    /// `%c`.
    pub(super) fn character(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// `%lu`: decimal digits after white space; overflow wraps around.
    pub(super) fn unsigned(&mut self) -> Option<u64> {
        self.skip_spaces();
        let digits = self
            .rest
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if digits == 0 {
            return None;
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        Some(number.iter().fold(0u64, |value, digit| {
            value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
        }))
    }

    /// `%Ns`: up to `width` bytes that are not white space, after white space.
    pub(super) fn word(&mut self, width: usize) -> Option<&'a [u8]> {
        self.skip_spaces();
        let length = self
            .rest
            .iter()
            .take(width)
            .take_while(|&&byte| !is_space(byte))
            .count();
        if self.rest.is_empty() {
            return None;
        }
        let (word, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(word)
    }
}

/// `kstrtouint` with automatic base: optional `+`, `0x` for hexadecimal, leading `0` for octal,
/// otherwise decimal, and one optional newline. `None` for anything else, and beyond 32 bits.
pub(super) fn parse_u32(text: &[u8], base: Option<u32>) -> Option<u32> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let (digits, radix) = match (base, text) {
        (Some(base), _) => (text, base),
        (None, [b'0', b'x' | b'X', digit, ..]) if digit.is_ascii_hexdigit() => (&text[2..], 16),
        (None, [b'0', ..]) => (text, 8),
        (None, _) => (text, 10),
    };
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u32, |value, &byte| {
        let digit = char::from(byte).to_digit(radix)?;
        value.checked_mul(radix)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_kernels_bases() {
        assert_eq!(parse_u32(b"16\n", None), Some(16));
        assert_eq!(parse_u32(b"0x10", None), Some(16));
        assert_eq!(parse_u32(b"020", None), Some(16));
        assert_eq!(parse_u32(b"+7", None), Some(7));
        assert_eq!(parse_u32(b"0", None), Some(0));
        assert_eq!(parse_u32(b"4294967295", None), Some(u32::MAX));
        for bad in [
            &b"4294967296"[..],
            b"",
            b"\n",
            b"-1",
            b"1 ",
            b"08",
            b"0x",
            b"7\n\n",
        ] {
            assert_eq!(parse_u32(bad, None), None, "{bad:?}");
        }
    }

    #[test]
    fn the_scanner_follows_sscanf() {
        let mut scanner = Scanner::new(b"+12\t\x0b 34 56789");
        assert_eq!(scanner.character(), Some(b'+'));
        assert_eq!(scanner.unsigned(), Some(12));
        assert_eq!(scanner.unsigned(), Some(34));
        assert_eq!(scanner.word(4), Some(&b"5678"[..]));
        assert_eq!(scanner.unsigned(), Some(9));
        assert!(scanner.is_done());
        assert_eq!(scanner.unsigned(), None);
        let wrapped = Scanner::new(b"18446744073709551617").unsigned();
        assert_eq!(wrapped, Some(1));
    }
}
