// SPDX-License-Identifier: Apache-2.0
//! Sizes, durations and rates as people write and read them. Bytes use IEC units (1 MiB = 2^20).
//! JSON and CSV contain raw integers and do not use this module.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agewise_policy::units::{self, SizeError};
pub use agewise_policy::units::{bytes_text, ratio, share};

/// The most whole days that a duration can have.
const DURATION_MAX_DAYS: u64 = u64::MAX / 86_400_000_000_000;

/// Parses a size in bytes: `4096`, `512M`, `1.5G`, `64KiB`. Units are powers of two.
pub fn size(text: &str) -> Result<u64, String> {
    units::size_bytes(text).map_err(|error| match error {
        SizeError::Form => {
            format!("'{text}' is not a size; write it like 512M or 1.5G (powers of two)")
        }
        SizeError::TooLarge => format!("'{text}' is more bytes than 64 bits can count"),
    })
}

/// Parses a size greater than zero.
pub fn positive_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("a size of zero leaves nothing to do; give at least 1 byte".into()),
        bytes => Ok(bytes),
    }
}

/// Parses a rate in bytes per second: `256M/s` or `256M`. Zero is refused: it would never end.
pub fn byte_rate(text: &str) -> Result<u64, String> {
    match size(text.trim().strip_suffix("/s").unwrap_or(text))? {
        0 => Err("a rate of zero would never end; give at least 1 byte a second".into()),
        rate => Ok(rate),
    }
}

/// Parses a duration: `500ms`, `30s`, `2m`, `1.5h`, `1d`. The unit is required: `30` would be
/// ambiguous.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is not a duration; write it with its unit: 500ms, 30s, 2m, 1h");
    match units::duration_ns(text).ok_or_else(bad)?.round() {
        ns if ns < u64::MAX as f64 => Ok(Duration::from_nanos(ns as u64)),
        _ => Err(format!(
            "'{text}' is too long; the longest is {DURATION_MAX_DAYS}d"
        )),
    }
}

/// Parses a duration greater than zero.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a duration of zero; give at least 1ms".into()),
        duration => Ok(duration),
    }
}

/// Formats a duration in its largest unit as a whole number or with one decimal: `250 ms`, `1.5 s`,
/// `30 s`, `2 m 5 s`, `36 h`, `300 d`.
pub fn duration_text(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let two = |whole: u64, unit: &str, part: u64, part_unit: &str| match part {
        0 => format!("{whole} {unit}"),
        _ => format!("{whole} {unit} {part} {part_unit}"),
    };
    if duration.is_zero() {
        "0 s".to_owned()
    } else if duration < Duration::from_millis(1) {
        format!("{} us", duration.as_micros())
    } else if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else if duration < Duration::from_secs(60) {
        let text = format!("{seconds:.1}");
        format!("{} s", text.strip_suffix(".0").unwrap_or(&text))
    } else {
        match duration.as_secs() {
            all @ ..3600 => two(all / 60, "m", all % 60, "s"),
            // Only where nothing is lost: two durations that differ must not look alike.
            all if all >= 172_800 && all % 3600 == 0 => {
                two(all / 86_400, "d", all % 86_400 / 3600, "h")
            }
            all => two(all / 3600, "h", all % 3600 / 60, "m"),
        }
    }
}

/// A share as percent, to a thousandth: waiting is noticed from there on.
pub fn percent_text(share: f64) -> String {
    format!("{:.3} %", share * 100.0)
}

/// Formats an upper bound, or says that there is none.
pub fn bound_text(high: f64, text: impl Fn(f64) -> String) -> String {
    match high.is_finite() {
        true => text(high),
        false => "?".to_owned(),
    }
}

/// A number with its noun: `1 file`, `2 files`.
pub fn count_text(count: u64, one: &str, many: &str) -> String {
    let noun = if count == 1 { one } else { many };
    format!("{count} {noun}")
}

/// The wall clock of this machine, in ms since 1970.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Parses a share, or `none`, which is infinite.
pub fn slowdown(text: &str) -> Result<f64, String> {
    match text {
        "none" => Ok(f64::INFINITY),
        _ => share(text).map_err(|error| format!("{error}, nor `none`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_say_what_is_wrong_with_them() {
        assert_eq!(size("1.5G"), Ok(3 << 29));
        assert!(size("M512").unwrap_err().contains("write it like 512M"));
        assert!(size("99999999T").unwrap_err().contains("64 bits"));
        assert!(positive_size("0").is_err());
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("1.5h"), Ok(Duration::from_secs(5400)));
        for text in ["30", "", "s", "-1s", "1w", "1e3s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        let error = duration("99999999d").unwrap_err();
        assert_eq!(error, "'99999999d' is too long; the longest is 213503d");
        assert!(duration("213503d").is_ok() && duration("213504d").is_err());
        assert!(positive_duration("0s").is_err());
    }

    #[test]
    fn a_slowdown_is_a_share_or_without_limit() {
        assert_eq!(slowdown("0.2%"), Ok(0.002));
        assert_eq!(slowdown("none"), Ok(f64::INFINITY));
        assert!(slowdown("0").is_err());
    }

    #[test]
    fn rates_may_name_the_second() {
        assert_eq!(byte_rate("256M/s"), Ok(256 << 20));
        assert_eq!(byte_rate("1G"), Ok(1 << 30));
        assert!(byte_rate("0/s").is_err());
        assert!(byte_rate("1M/m").is_err());
    }

    #[test]
    fn text_is_short() {
        assert_eq!(duration_text(Duration::from_micros(12)), "12 us");
        assert_eq!(duration_text(Duration::from_millis(250)), "250 ms");
        assert_eq!(duration_text(Duration::from_secs(30)), "30 s");
        assert_eq!(duration_text(Duration::from_secs(125)), "2 m 5 s");
        assert_eq!(duration_text(Duration::ZERO), "0 s");
        for (hours, text) in [(24, "24 h"), (7200, "300 d"), (50, "2 d 2 h")] {
            assert_eq!(duration_text(Duration::from_secs(hours * 3600)), text);
        }
        assert_eq!(count_text(1, "file", "files"), "1 file");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,12}") {
            let _ = (size(&text), duration(&text), byte_rate(&text));
        }
    }
}
