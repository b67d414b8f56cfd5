// SPDX-License-Identifier: Apache-2.0
//! oracleGeneral: 24-byte little-endian records of libCacheSim.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | time in seconds, u32 |
//! | 4..12 | object (here: page), u64 |
//! | 12..16 | object size in bytes, u32; ignored |
//! | 16..24 | index of the next request of this object, i64; -1 or i64::MAX when there is none |
//!
//! The next-access index is not used: what follows is known once a trace has been read, and other
//! writers have meant other things by it.

use crate::access::Request;
use crate::error::TraceError;
use crate::format::{Format, ReadOptions, RequestReader};
use crate::input::Input;

/// oracleGeneral.
pub static FORMAT: Format = Format {
    name: "oracleGeneral",
    summary: "binary, 24-byte records of libCacheSim; one access of one page a record",
    name_hints: &["oraclegeneral"],
    description_hints: &[&["oraclegeneral"], &["oracle", "24-byte"]],
    recognise: |_| false,
    open: |mut input, _: &ReadOptions| {
        input.refuse_text(FORMAT.name)?;
        Ok(Box::new(OracleGeneral { input }))
    },
};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 24;

struct OracleGeneral {
    input: Input,
}

impl RequestReader for OracleGeneral {
    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        let Some(record) = self.input.next_record::<RECORD_BYTES>(FORMAT.name)? else {
            return Ok(None);
        };
        let seconds = u32::from_le_bytes(record[0..4].try_into().expect("4 bytes"));
        let page = u64::from_le_bytes(record[4..12].try_into().expect("8 bytes"));
        let next_access = i64::from_le_bytes(record[16..24].try_into().expect("8 bytes"));
        if next_access < -2 {
            let what = format!("a next access of {next_access}; expected an index, or -1 for none");
            return Err(self.input.malformed(FORMAT.name, what));
        }
        let time_ns = u64::from(seconds) * 1_000_000_000;
        Ok(Some(Request {
            time_ns,
            ..Request::page(page)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{error, read};
    use super::*;

    fn record(time: u32, page: u64, next: i64) -> Vec<u8> {
        let mut bytes = time.to_le_bytes().to_vec();
        bytes.extend(page.to_le_bytes());
        bytes.extend(4096u32.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        bytes
    }

    #[test]
    fn only_time_and_page_count() {
        let bytes = [record(3, u64::MAX, 1), record(4, u64::MAX, -1)].concat();
        let (requests, error) = read(&FORMAT, &bytes);
        assert!(error.is_none());
        assert_eq!(requests.len(), 2);
        assert_eq!(
            requests[0],
            Request {
                time_ns: 3_000_000_000,
                ..Request::page(u64::MAX)
            }
        );
    }

    #[test]
    fn bad_records() {
        let cut = [record(3, 1, 1), record(4, 1, -1)].concat();
        assert!(error(&FORMAT, &cut[..40]).contains("byte 24 has 16 of 24"));
        assert!(error(&FORMAT, &record(3, 1, -9)).contains("next access"));
        assert!(error(&FORMAT, b"1\n2\n3\n4\n5\n6\n").contains("it is text"));
    }
}
