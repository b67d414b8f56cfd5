// SPDX-License-Identifier: Apache-2.0
//! Parsing and formatting sizes in bytes, and parsing durations. Units of sizes are powers of two
//! (1 MiB = 2^20), in either case: `512M`, `1.5GiB`, `64k`.

/// Why a text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with a unit.
    #[error("is not a size; write bytes, or a number with K, M, G or T (KiB, MiB, ...)")]
    Form,
    /// It does not fit in 64 bits.
    #[error("is too large")]
    TooLarge,
}

/// Parses a size: a number, with or without a decimal point, and a unit. Returns bytes.
///
/// ```
/// use agewise_policy::units::size_bytes;
/// assert_eq!(size_bytes("1.5 GiB"), Ok(3 << 29));
/// assert!(size_bytes("-1").is_err());
/// ```
///
/// # Errors
/// [`SizeError`] if it is anything else.
pub fn size_bytes(text: &str) -> Result<u64, SizeError> {
    let (number, unit) = split_number(text);
    let unit = unit.to_ascii_uppercase();
    let unit = unit
        .strip_suffix("IB")
        .or(unit.strip_suffix('B'))
        .unwrap_or(&unit);
    let power = ["", "K", "M", "G", "T"]
        .iter()
        .position(|name| *name == unit)
        .ok_or(SizeError::Form)?;
    let unit_bytes = 1u64 << (10 * power);
    if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
        let whole = number.parse::<u64>().ok();
        let bytes = whole.and_then(|number| number.checked_mul(unit_bytes));
        return bytes.ok_or(SizeError::TooLarge);
    }
    let number: f64 = number.parse().map_err(|_| SizeError::Form)?;
    let bytes = (number * unit_bytes as f64).round();
    if bytes < u64::MAX as f64 {
        Ok(bytes as u64)
    } else {
        Err(SizeError::TooLarge)
    }
}

/// Parses a ratio such as `1%` or `0.01`: from 0, with no upper limit.
///
/// # Errors
/// What was expected, if it is anything else.
pub fn ratio(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (text, 1.0),
    };
    match number.trim().parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value * scale),
        _ => Err("expected a share such as 1% or 0.01".to_owned()),
    }
}

/// Parses a share such as `0.2%` or `0.002`, above 0 and up to 1.
///
/// # Errors
/// What was expected, if it is anything else.
pub fn share(text: &str) -> Result<f64, String> {
    match ratio(text) {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err(format!(
            "'{text}' is not a share above 0 and up to 100%, such as 0.2% or 0.002"
        )),
    }
}

/// Splits `1.5GiB` into `1.5` and `GiB`: leading digits and points, and the rest. Signs, exponents
/// and infinities are not part of a number here.
pub fn split_number(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// Units of durations, in ns.
const DURATION_UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("min", 60e9),
    ("h", 3600e9),
    ("d", 86_400e9),
];

/// Parses a duration: a number, with or without a decimal point, and its unit (`ns`, `us`, `ms`,
/// `s`, `m`, `h` or `d`). Returns ns, which may be more than 64 bits can count; `None` for anything
/// else.
///
/// ```
/// use agewise_policy::units::duration_ns;
/// assert_eq!(duration_ns("1.5 s"), Some(1.5e9));
/// assert_eq!(duration_ns("30"), None);
/// ```
pub fn duration_ns(text: &str) -> Option<f64> {
    let (number, unit) = split_number(text);
    let (_, unit_ns) = DURATION_UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(number.parse::<f64>().ok()? * unit_ns)
}

/// The same in ms; `None` also if that is more than 64 bits can count.
pub fn duration_ms(text: &str) -> Option<u64> {
    let ms = (duration_ns(text)? / 1e6).round();
    (ms < u64::MAX as f64).then_some(ms as u64)
}

/// Formats bytes for people: `0 B`, `4.0 KiB`, `1.5 GiB`.
pub fn bytes_text(bytes: u64) -> String {
    const NAMES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < NAMES.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", NAMES[unit]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_are_of_one() {
        assert_eq!(share("0.2%"), Ok(0.002));
        assert_eq!(share("0.5"), Ok(0.5));
        for bad in ["0", "-1%", "101%", "x", "", "nan"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_powers_of_two() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("4k", 4096),
            (" 32 MiB ", 32 << 20),
            ("1.5G", 3 << 29),
            ("2 GiB", 2 << 30),
            ("1tb", 1 << 40),
            ("17179869183G", 17_179_869_183 << 30),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(size_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "", "M", ".", "-1", "12Q", "1.2.3G", "0x10", "M512", "3 apples", "1e3",
        ] {
            assert_eq!(size_bytes(text), Err(SizeError::Form), "{text}");
        }
        for text in [
            "99999999999999999999",
            "99999999T",
            "18446744073709551616",
            "99999999.5T",
        ] {
            assert_eq!(size_bytes(text), Err(SizeError::TooLarge), "{text}");
        }
    }

    #[test]
    fn text_is_short() {
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(4096), "4.0 KiB");
        assert_eq!(bytes_text((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes_text(u64::MAX), "16.0 EiB");
    }

    proptest! {
        #[test]
        fn whole_sizes_come_back(number in 0u64..1 << 40, power in 0usize..3) {
            let unit = ["", "K", "M"][power];
            let bytes = number << (10 * power);
            prop_assert_eq!(size_bytes(&format!("{number}{unit}")), Ok(bytes));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,12}") {
            let _ = size_bytes(&text);
        }
    }
}
