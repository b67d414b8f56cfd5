// SPDX-License-Identifier: Apache-2.0
//! cache2k: big-endian 32-bit keys, nothing else.

use super::simple;
use crate::format::{Format, ReadOptions};

/// cache2k.
pub static FORMAT: Format = Format {
    name: "cache2k",
    name_hints: &["cache2k", "c2k_"],
    description_hints: &[
        &["cache2k"],
        &["big-endian", "uint32"],
        &["big-endian", "u32"],
        &["big-endian", "32-bit"],
        &["big-endian", "int32"],
    ],
    recognise: |_| false,
    open: |input, _: &ReadOptions| {
        simple::keys(input, &FORMAT, |key| u32::from_be_bytes(key).into())
    },
};

#[cfg(test)]
mod tests {
    use super::super::testing::{error, pages};
    use super::*;

    #[test]
    fn keys_are_big_endian() {
        assert_eq!(
            pages(&FORMAT, &[0, 0, 0, 1, 0xff, 0, 0, 2]),
            [1, 0xff00_0002]
        );
        assert!(error(&FORMAT, &[0, 0, 0, 1, 2]).contains("byte 4 has 1 of 4"));
    }
}
