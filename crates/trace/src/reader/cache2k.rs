// SPDX-License-Identifier: Apache-2.0
//! cache2k: big-endian 32-bit keys, nothing else.

use crate::access::Request;
use crate::error::TraceError;
use crate::format::{Format, ReadOptions, RequestReader};
use crate::input::Input;

/// cache2k.
pub static FORMAT: Format = Format {
    name: "cache2k",
    summary: "binary, big-endian 32-bit keys",
    name_hints: &["cache2k", "c2k_"],
    description_hints: &[
        &["cache2k"],
        &["big-endian", "uint32"],
        &["big-endian", "u32"],
        &["big-endian", "32-bit"],
        &["big-endian", "int32"],
    ],
    recognise: |_| false,
    open: |mut input, _: &ReadOptions| {
        input.refuse_text(FORMAT.name)?;
        Ok(Box::new(Cache2k { input }))
    },
};

struct Cache2k {
    input: Input,
}

impl RequestReader for Cache2k {
    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        let record = self.input.next_record::<4>(FORMAT.name)?;
        Ok(record.map(|bytes| Request::page(u64::from(u32::from_be_bytes(bytes)))))
    }
}

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
