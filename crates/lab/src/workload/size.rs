// SPDX-License-Identifier: Apache-2.0
//! Sizes as workloads and settings write them.

use thiserror::Error;

/// A text that is no size.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SizeError {
    /// Not a number with a unit.
    #[error("is no size; write bytes, or a number with K, M, G or T (KiB, MiB, ...)")]
    Form,
    /// More than can be counted.
    #[error("is too large")]
    TooLarge,
}

/// Bytes of a size: a whole number and a binary unit, in either case (`32M`, `32MiB`, `4k`, `0`).
///
/// # Errors
/// [`SizeError`] when it is something else.
pub fn parse_size_bytes(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(SizeError::Form),
    };
    if number.is_empty() {
        return Err(SizeError::Form);
    }
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or(SizeError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            (" 32 MiB ", 32 << 20),
            ("3G", 3 << 30),
        ] {
            assert_eq!(parse_size_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "1.5M", "-1", "3 apples", "0x10"] {
            assert_eq!(parse_size_bytes(text), Err(SizeError::Form), "{text}");
        }
        for text in ["99999999999999999999", "99999999T"] {
            assert_eq!(parse_size_bytes(text), Err(SizeError::TooLarge), "{text}");
        }
    }
}
