// SPDX-License-Identifier: Apache-2.0
//! Parses numbers in text traces, with errors that explain the problem.

/// Parses a decimal number of at most 64 bits.
///
/// # Errors
/// A description of the problem.
pub fn decimal(text: &[u8]) -> Result<u64, String> {
    if text.is_empty() {
        return Err("a number is missing".into());
    }
    let mut value = 0u64;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(describe(text));
        }
        value = value
            .checked_mul(10)
            .and_then(|tens| tens.checked_add(u64::from(digit)))
            .ok_or_else(|| format!("{} does not fit in 64 bits", lossy(text)))?;
    }
    Ok(value)
}

/// Whether a line consists of exactly this many decimal numbers.
#[must_use]
pub fn are_decimals(line: &[u8], count: usize) -> bool {
    let mut words = words(line);
    let numeric = words.by_ref().take(count);
    numeric.filter(|word| decimal(word).is_ok()).count() == count && words.next().is_none()
}

/// Parses a hexadecimal number of at most 64 bits, without prefix.
///
/// # Errors
/// A description of the problem.
pub fn hexadecimal(text: &[u8]) -> Result<u64, String> {
    if text.is_empty() {
        return Err("a hexadecimal number is missing".into());
    }
    let mut value = 0u64;
    for &byte in text {
        let digit = (byte as char)
            .to_digit(16)
            .ok_or_else(|| format!("'{}' is not a hexadecimal number", lossy(text)))?;
        if value >> 60 != 0 {
            return Err(format!("{} does not fit in 64 bits", lossy(text)));
        }
        value = value << 4 | u64::from(digit);
    }
    Ok(value)
}

/// Parses a hexadecimal number with `0x`, or a decimal one.
///
/// # Errors
/// A description of the problem.
pub fn either(text: &[u8]) -> Result<u64, String> {
    match text
        .strip_prefix(b"0x")
        .or_else(|| text.strip_prefix(b"0X"))
    {
        Some(digits) => hexadecimal(digits),
        None => decimal(text),
    }
}

/// The words of a line, separated by spaces or tabs.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty())
}

/// A short, printable form of the input, for messages.
pub fn lossy(text: &[u8]) -> String {
    let shown = &text[..text.len().min(40)];
    let dots = if shown.len() < text.len() { "..." } else { "" };
    format!("{}{dots}", String::from_utf8_lossy(shown).escape_debug())
}

fn describe(text: &[u8]) -> String {
    if text.len() > 1 && text[0] == b'-' && text[1..].iter().all(u8::is_ascii_digit) {
        format!("{} is negative", lossy(text))
    } else {
        format!("\"{}\" is not a decimal number", lossy(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_exact() {
        assert_eq!(decimal(b"18446744073709551615"), Ok(u64::MAX));
        assert!(
            decimal(b"18446744073709551616")
                .unwrap_err()
                .contains("64 bits")
        );
        assert!(decimal(b"-1").unwrap_err().contains("negative"));
        assert!(decimal(b"1x").unwrap_err().contains("not a decimal"));
        assert_eq!(hexadecimal(b"fFffffffffffffff"), Ok(u64::MAX));
        assert!(
            hexadecimal(b"10000000000000000")
                .unwrap_err()
                .contains("64 bits")
        );
        assert_eq!(either(b"0x10"), Ok(16));
        assert_eq!(either(b"10"), Ok(10));
    }
}
