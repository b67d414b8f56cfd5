// SPDX-License-Identifier: Apache-2.0
//! How often to look, and how long to observe before memory can be called cold.

use std::time::Duration;

use agewise_cli::units::duration_text;
use agewise_cli::usage::WrongArgument;

/// Shortest time between two looks; below it, looking itself takes most of the time.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longest default time between two looks.
const INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Time between two looks such that "not touched for `older_than`" is meaningful: by default a
/// quarter of `older_than`, from 100 ms to 10 s.
///
/// # Errors
/// Ages are no finer than the time between two looks. An `older_than` shorter than that is refused
/// rather than silently rounded up.
pub fn interval(older_than: Duration, asked: Option<Duration>) -> Result<Duration, WrongArgument> {
    let interval = asked.unwrap_or((older_than / 4).clamp(INTERVAL_MIN, INTERVAL_MAX));
    if interval < INTERVAL_MIN {
        agewise_cli::refuse!(
            "an interval of {} is shorter than {}: looking would be most of what happens",
            duration_text(interval),
            duration_text(INTERVAL_MIN)
        );
    }
    if older_than < interval {
        agewise_cli::refuse!(
            "--older-than {} is shorter than the scan interval of {}: ages finer than a scan are \
             not known; make --older-than longer{}",
            duration_text(older_than),
            duration_text(interval),
            if interval > INTERVAL_MIN {
                " or --interval shorter"
            } else {
                ""
            }
        );
    }
    Ok(interval)
}

/// How long to observe before deciding: long enough for one look beyond `older_than`.
///
/// # Errors
/// The observation is shorter than `older_than`: nothing could be known to be that old.
pub fn observation(
    older_than: Duration,
    interval: Duration,
    asked: Option<Duration>,
) -> Result<Duration, WrongArgument> {
    let needed = older_than + interval;
    match asked {
        None => Ok(needed),
        Some(asked) if asked >= needed => Ok(asked),
        Some(asked) => agewise_cli::refuse!(
            "--observe {} is too short: to know what was not touched for {}, looking every {}, \
             takes {}",
            duration_text(asked),
            duration_text(older_than),
            duration_text(interval),
            duration_text(needed)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_quarter_within_bounds() {
        assert_eq!(interval(s(30), None), Ok(Duration::from_millis(7500)));
        assert_eq!(interval(s(600), None), Ok(s(10)));
        assert_eq!(interval(Duration::from_millis(200), None), Ok(INTERVAL_MIN));
        assert_eq!(interval(s(30), Some(s(1))), Ok(s(1)));
        assert_eq!(interval(s(5), Some(s(5))), Ok(s(5)));
    }

    #[test]
    fn what_cannot_be_known_is_refused() {
        let error = interval(s(1), Some(s(5))).expect_err("coarser than asked");
        assert!(
            error
                .0
                .contains("--older-than 1 s is shorter than the scan interval of 5 s")
        );
        assert!(interval(Duration::from_millis(50), None).is_err());
        assert!(interval(s(1), Some(Duration::from_millis(1))).is_err());
        assert!(observation(s(30), s(5), Some(s(30))).is_err());
        assert_eq!(observation(s(30), s(5), None), Ok(s(35)));
        assert_eq!(observation(s(30), s(5), Some(s(60))), Ok(s(60)));
    }
}
