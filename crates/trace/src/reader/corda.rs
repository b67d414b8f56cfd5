// SPDX-License-Identifier: Apache-2.0
//! corda: big-endian 64-bit hashes, nothing else. Neighbouring keys are unrelated.

use super::simple;
use crate::format::{Format, ReadOptions};

/// corda.
pub static FORMAT: Format = Format {
    name: "corda",
    name_hints: &["corda"],
    description_hints: &[
        &["corda"],
        &["big-endian", "int64"],
        &["big-endian", "i64"],
        &["big-endian", "64-bit"],
        &["big-endian", "u64"],
    ],
    recognise: |_| false,
    // The keys are signed; the same bits mean the same page.
    open: |input, _: &ReadOptions| simple::keys(input, &FORMAT, u64::from_be_bytes),
};

#[cfg(test)]
mod tests {
    use super::super::testing::{error, pages};
    use super::*;

    #[test]
    fn negative_keys_are_keys() {
        assert_eq!(pages(&FORMAT, &[0xff; 8]), [u64::MAX]);
        assert!(error(&FORMAT, &[0; 7]).contains("has 7 of 8"));
    }
}
