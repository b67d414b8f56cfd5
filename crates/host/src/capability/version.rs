// SPDX-License-Identifier: Apache-2.0
//! Kernel versions.

use std::fmt;

/// Major and minor number. Distributions backport features, so a version is only a hint for
/// messages; what matters is whether a feature exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelVersion {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

impl KernelVersion {
    /// Parses the output of `uname -r`: `6.18.44-custom`, `5.10-rc1`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some(Self { major, minor })
    }

    /// Whether this version is `major.minor` or later.
    pub fn is_at_least(self, major: u32, minor: u32) -> bool {
        self >= Self { major, minor }
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_parse() {
        let version = |text| KernelVersion::parse(text).map(|v| (v.major, v.minor));
        assert_eq!(version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(version("5.10-rc1\n"), Some((5, 10)));
        assert_eq!(version("4.18.0-553.el8_10.x86_64"), Some((4, 18)));
        for bad in ["", "six", "6", ".1", "99999999999.1"] {
            assert_eq!(version(bad), None, "{bad}");
        }
        assert!(KernelVersion::parse("6.2").unwrap().is_at_least(5, 19));
        assert!(!KernelVersion::parse("5.9").unwrap().is_at_least(5, 10));
    }
}
