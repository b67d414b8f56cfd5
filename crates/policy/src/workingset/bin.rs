// SPDX-License-Identifier: Apache-2.0
//! A bin of age.

use crate::generations::ByType;

/// The upper bound of the last bin, as in the report files. Text parsed into a
/// [`Histogram`](super::Histogram) may have 2^63 - 1 instead.
pub const NO_UPPER_BOUND_MS: u64 = u64::MAX;

/// One bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// Ages up to this one, and above the bound of the bin before.
    pub upper_ms: u64,
    /// Anon and file: pages, or bytes in a histogram that was parsed.
    pub amounts: ByType<u64>,
}

impl Bin {
    /// Its upper bound in milliseconds; the last bin has none.
    #[must_use]
    pub fn bound_ms(&self) -> Option<u64> {
        (self.upper_ms != NO_UPPER_BOUND_MS).then_some(self.upper_ms)
    }

    /// The bound as text: `+Inf` if there is none, which parsers of numbers accept.
    #[must_use]
    pub fn bound_text(&self) -> String {
        self.bound_ms()
            .map_or_else(|| "+Inf".to_owned(), |ms| ms.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bin_has_no_bound() {
        let bin = |upper_ms| Bin {
            upper_ms,
            amounts: [0; 2],
        };
        let said = |bin: Bin| (bin.bound_ms(), bin.bound_text());
        assert_eq!(said(bin(1000)), (Some(1000), "1000".to_owned()));
        assert_eq!(said(bin(NO_UPPER_BOUND_MS)), (None, "+Inf".to_owned()));
    }
}
