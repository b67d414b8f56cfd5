// SPDX-License-Identifier: Apache-2.0
//! Parses numbers and durations as the kernel's files do.

use super::ReportError;

/// The largest number of milliseconds that `msecs_to_jiffies` does not take as "for ever".
const LAST_FINITE_MS: u32 = i32::MAX as u32;
/// What `jiffies_to_msecs` returns for "for ever" (`MAX_JIFFY_OFFSET`) in 32 bits.
const FOREVER_MS: u64 = 0xffff_fff8;

/// The clock tick to which durations are rounded up, since the kernel keeps them in jiffies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    length_ms: u32,
}

impl Default for Tick {
    /// The tick of `CONFIG_HZ=250`.
    fn default() -> Self {
        Tick::new(4)
    }
}

impl Tick {
    /// A tick of 1, 2, 4 or 10 ms (`CONFIG_HZ` 1000, 500, 250, 100); 0 counts as 1.
    pub fn new(length_ms: u32) -> Self {
        Tick {
            length_ms: length_ms.max(1),
        }
    }

    /// A duration after it was kept in ticks: rounded up. Durations beyond 31 bits mean for ever,
    /// and read as 4294967288.
    pub fn round_ms(self, ms: u32) -> u64 {
        if ms > LAST_FINITE_MS {
            return FOREVER_MS;
        }
        let length_ms = u64::from(self.length_ms);
        u64::from(ms).div_ceil(length_ms) * length_ms
    }
}

/// Parses like `kstrtouint(text, 0)`: an optional `+`; hexadecimal after `0x`, octal after a
/// leading `0`, else decimal; one newline at the end.
///
/// # Errors
/// [`ReportError::NotANumber`], and [`ReportError::TooLarge`] beyond 32 bits.
pub(super) fn parse_u32(text: &[u8]) -> Result<u32, ReportError> {
    let not_a_number = || ReportError::NotANumber { text: shown(text) };
    let too_large = || ReportError::TooLarge { text: shown(text) };
    let unsigned = text.strip_prefix(b"+").unwrap_or(text);
    let (digits, radix) = match unsigned {
        [b'0', b'x' | b'X', digit, ..] if digit.is_ascii_hexdigit() => (&unsigned[2..], 16),
        [b'0', ..] => (unsigned, 8),
        _ => (unsigned, 10),
    };
    let value_of = |byte: &u8| char::from(*byte).to_digit(radix);
    let length = digits
        .iter()
        .take_while(|byte| value_of(byte).is_some())
        .count();
    let (number, rest) = digits.split_at(length);
    let value = number.iter().filter_map(value_of).try_fold(0u64, |v, d| {
        v.checked_mul(u64::from(radix))?.checked_add(u64::from(d))
    });
    // As in the kernel: a number that overflows 64 bits is out of range, whatever follows it.
    let value = value.ok_or_else(too_large)?;
    if number.is_empty() || !matches!(rest, b"" | b"\n") {
        return Err(not_a_number());
    }
    u32::try_from(value).map_err(|_| too_large())
}

/// The part of a write that the kernel sees: up to the first NUL.
pub(super) fn c_string(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|&byte| byte == 0);
    &text[..end.unwrap_or(text.len())]
}

/// Like `strim`: removes white space at both ends.
pub(super) fn trim(text: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r' | 0xa0);
    let start = text.iter().position(|byte| !is_space(byte));
    let end = text.iter().rposition(|byte| !is_space(byte));
    match (start, end) {
        (Some(start), Some(end)) => &text[start..=end],
        _ => &[],
    }
}

/// The text that was written, cut to a length that fits in a message.
pub(super) fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_kstrtouint() {
        for (text, value) in [
            ("10000", 10_000),
            ("10000\n", 10_000),
            ("+5", 5),
            ("0x10", 16),
            ("010", 8),
            ("0", 0),
            ("4294967295", u32::MAX),
        ] {
            assert_eq!(parse_u32(text.as_bytes()), Ok(value), "{text:?}");
        }
        for bad in ["", "\n", " 1", "1 ", "-1", "08", "0x", "1s", "1\n\n", "++1"] {
            let error = parse_u32(bad.as_bytes()).unwrap_err();
            assert_eq!(error.errno(), 22, "{bad:?}");
        }
        for large in [
            "4294967296",
            "99999999999999999999999",
            "99999999999999999999999x",
        ] {
            let error = parse_u32(large.as_bytes()).unwrap_err();
            assert_eq!(error.errno(), 34, "{large:?}");
        }
        assert_eq!(parse_u32(b"4294967296x").unwrap_err().errno(), 22);
    }

    #[test]
    fn durations_round_up_to_ticks_and_saturate() {
        let tick = Tick::default();
        for (ms, rounded) in [(0, 0), (1, 4), (4, 4), (5, 8), (6000, 6000)] {
            assert_eq!(tick.round_ms(ms), rounded);
        }
        assert_eq!(tick.round_ms(u32::MAX), 4_294_967_288);
        // It accepts its own output.
        assert_eq!(tick.round_ms(4_294_967_288), 4_294_967_288);
        assert_eq!(Tick::new(0).round_ms(7), 7);
    }

    #[test]
    fn white_space_goes_from_both_ends_only() {
        assert_eq!(trim(b" \t1, 2\n"), b"1, 2");
        assert_eq!(trim(b" \n"), b"");
        assert_eq!(c_string(b"12\x0034"), b"12");
    }
}
