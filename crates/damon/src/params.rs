// SPDX-License-Identifier: Apache-2.0
//! Parameters with the names and errors of `/sys/module/damon_*/parameters/`.

use std::fmt;

use thiserror::Error;

use super::attrs::AttrsError;
use super::profile::Profile;

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// There is no such parameter.
    Enoent,
    /// The parameter is read-only.
    Eacces,
    /// The value, alone or in combination with the others, is invalid.
    Einval,
    /// The number is too large.
    Erange,
}

impl Errno {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Errno::Enoent => "ENOENT",
            Errno::Eacces => "EACCES",
            Errno::Einval => "EINVAL",
            Errno::Erange => "ERANGE",
        }
    }
}

/// Parameters that the kernel refuses.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub struct ParamsError {
    /// The kernel's errno.
    pub errno: Errno,
    /// The offending parameters and their values.
    pub given: Vec<(String, String)>,
    /// What is wrong with them.
    pub reason: String,
}

impl fmt::Display for ParamsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in &self.given {
            write!(f, "{key}={value} ")?;
        }
        write!(f, "is refused with {}: {}", self.errno.name(), self.reason)
    }
}

impl ParamsError {
    /// Invalid values (`EINVAL`).
    pub fn invalid(given: &[(&str, u64)], reason: impl Into<String>) -> ParamsError {
        ParamsError {
            errno: Errno::Einval,
            given: given
                .iter()
                .map(|(key, value)| ((*key).to_owned(), value.to_string()))
                .collect(),
            reason: reason.into(),
        }
    }

    /// A parameter that the profile's kernel does not have (`ENOENT`).
    pub fn too_new(key: &str, value: impl fmt::Display) -> ParamsError {
        ParamsError {
            errno: Errno::Enoent,
            given: vec![(key.to_owned(), value.to_string())],
            reason: "it does not exist before Linux 7.2; use the 7.2 profile".to_owned(),
        }
    }

    /// A value that cannot be parsed as what a parameter takes (see [`Param::takes`]).
    pub fn unreadable(key: &str, value: &str, errno: Errno, takes: &str) -> ParamsError {
        ParamsError {
            errno,
            given: vec![(key.to_owned(), value.to_owned())],
            reason: format!("it takes {takes}"),
        }
    }
}

impl From<AttrsError> for ParamsError {
    fn from(error: AttrsError) -> ParamsError {
        let given: Vec<(&str, u64)> = match error {
            AttrsError::TooFewRegions(min) => vec![("min_nr_regions", min)],
            AttrsError::RegionBounds { min, max } => {
                vec![("min_nr_regions", min), ("max_nr_regions", max)]
            }
            AttrsError::SampleOverAggr { sample_us, aggr_us } => {
                vec![("sample_interval", sample_us), ("aggr_interval", aggr_us)]
            }
            AttrsError::OutsideGoal { sample_us, .. } => vec![("sample_interval", sample_us)],
            AttrsError::EmptyRegion => vec![("addr_unit", 0)],
        };
        ParamsError::invalid(&given, error.to_string())
    }
}

/// A parameter of `P`.
pub struct Param<P> {
    /// Its name in the kernel.
    pub name: &'static str,
    /// Its meaning, with the unit.
    pub meaning: &'static str,
    /// The values it takes, with their range and unit, as error messages say it after "it takes":
    /// "a whole number of bytes from 0 to 2^64-1".
    pub takes: &'static str,
    /// Whether it was introduced with self-tuning ([`Profile::has_tuning_params`]).
    pub is_tuning: bool,
    /// Parses and sets the value.
    pub set: fn(&mut P, &str) -> Result<(), Errno>,
    /// Formats the value.
    pub get: fn(&P) -> String,
}

impl<P> Param<P> {
    /// A parameter that every kernel has; `takes` completes the sentence "it takes".
    #[must_use]
    pub const fn new(
        name: &'static str,
        meaning: &'static str,
        takes: &'static str,
        set: fn(&mut P, &str) -> Result<(), Errno>,
        get: fn(&P) -> String,
    ) -> Self {
        Param {
            name,
            meaning,
            takes,
            is_tuning: false,
            set,
            get,
        }
    }

    /// The same, if only kernels with tuning have it.
    #[must_use]
    pub const fn of_tuning(self) -> Self {
        Param {
            is_tuning: true,
            ..self
        }
    }

    /// Whether the profile's kernel has it.
    #[must_use]
    pub fn exists_in(&self, profile: Profile) -> bool {
        !self.is_tuning || profile.has_tuning_params
    }
}

/// Parses a number as the kernel does (`kstrtoull` with base 0): decimal, hexadecimal after `0x`,
/// or octal after `0`.
///
/// # Errors
/// `EINVAL` if it is not a number, `ERANGE` if it does not fit.
pub fn number(text: &str) -> Result<u64, Errno> {
    use std::num::IntErrorKind;
    let text = text.trim();
    let (digits, base) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    u64::from_str_radix(digits, base).map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow => Errno::Erange,
        _ => Errno::Einval,
    })
}

/// The same for 32-bit parameters.
///
/// # Errors
/// As [`number`].
pub fn number32(text: &str) -> Result<u32, Errno> {
    u32::try_from(number(text)?).map_err(|_| Errno::Erange)
}

/// Parses a switch as the kernel does (`kstrtobool`): by the first letter, or the second after `o`.
///
/// # Errors
/// `EINVAL` if it is neither on nor off.
pub fn switch(text: &str) -> Result<bool, Errno> {
    let text = text.trim().to_ascii_lowercase();
    match text.as_bytes() {
        [b'y' | b't' | b'1', ..] | [b'o', b'n', ..] => Ok(true),
        [b'n' | b'f' | b'0', ..] | [b'o', b'f', ..] => Ok(false),
        _ => Err(Errno::Einval),
    }
}

/// Formats a switch as the kernel does.
#[must_use]
pub fn yes_no(on: bool) -> String {
    if on { "Y" } else { "N" }.to_owned()
}

/// What a switch takes, for [`Param::takes`].
pub const SWITCH: &str = "Y or N";

/// Stores a parsed value.
///
/// # Errors
/// That of parsing.
pub fn put<T>(place: &mut T, value: Result<T, Errno>) -> Result<(), Errno> {
    *place = value?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_switches_are_read_as_in_the_kernel() {
        assert_eq!(number("0x10"), Ok(16));
        assert_eq!(number("010"), Ok(8));
        assert_eq!(number(" 7\n"), Ok(7));
        assert_eq!(number("0"), Ok(0));
        for bad in ["", "x", "-1", "0x", "1.5", "8K"] {
            assert_eq!(number(bad), Err(Errno::Einval), "{bad}");
        }
        assert_eq!(number("99999999999999999999"), Err(Errno::Erange));
        assert_eq!(number32("4294967296"), Err(Errno::Erange));
        for (text, on) in [
            ("Y", true),
            ("on", true),
            ("1", true),
            ("off", false),
            ("N", false),
        ] {
            assert_eq!(switch(text), Ok(on));
        }
        assert_eq!(switch("o"), Err(Errno::Einval));
        assert_eq!(switch(""), Err(Errno::Einval));
    }
}
