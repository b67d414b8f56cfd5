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
//! The next-access index is not used: next accesses are known once a trace has been read, and other
//! writers use the field differently.

use crate::access::Request;
use crate::error::TraceError;
use crate::format::{Format, ReadOptions, RequestReader};
use crate::input::Input;

/// oracleGeneral.
pub static FORMAT: Format = Format {
    name: "oracleGeneral",
    name_hints: &["oraclegeneral", ".og."],
    description_hints: &[&["oraclegeneral"], &["oracle", "24-byte"]],
    recognise,
    open: |mut input, _: &ReadOptions| {
        input.refuse_text(FORMAT.name)?;
        Ok(Box::new(OracleGeneral { input }))
    },
};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 24;

/// Whether all complete records look like those of our writer and libCacheSim: times are not
/// decreasing, and the next access is a later one, or none.
fn recognise(head: &[u8]) -> bool {
    const ACCESSES_MAX: i64 = 1 << 40;
    let mut before = 0;
    let (records, _) = head.as_chunks::<RECORD_BYTES>();
    let all = records.iter().zip(0..).all(|(record, index)| {
        let (seconds, next_access) = (seconds(record), next_access(record));
        let is_later = seconds >= std::mem::replace(&mut before, seconds);
        let comes = next_access > index && next_access < ACCESSES_MAX;
        is_later && (comes || matches!(next_access, -2 | -1 | i64::MAX))
    });
    all && records.len() >= 2
}

fn seconds(record: &[u8; RECORD_BYTES]) -> u32 {
    u32::from_le_bytes(record[0..4].try_into().expect("4 bytes"))
}

fn next_access(record: &[u8; RECORD_BYTES]) -> i64 {
    i64::from_le_bytes(record[16..24].try_into().expect("8 bytes"))
}

struct OracleGeneral {
    input: Input,
}

impl RequestReader for OracleGeneral {
    // For RequestReader::next_requests, which makes requests in their place.
    #[inline(always)]
    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        let Some(record) = self.input.next_record::<RECORD_BYTES>(FORMAT.name)? else {
            return Ok(None);
        };
        let page = u64::from_le_bytes(record[4..12].try_into().expect("8 bytes"));
        let next_access = next_access(&record);
        if next_access < -2 {
            let what = format!("a next access of {next_access}; expected an index, or -1 for none");
            return Err(self.input.malformed(FORMAT.name, what));
        }
        let time_ns = u64::from(seconds(&record)) * 1_000_000_000;
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
    fn content_tells_it_from_other_binary_formats() {
        let ours = [record(3, 9, 2), record(3, 8, -1), record(4, 9, -1)].concat();
        assert!(recognise(&ours) && recognise(&ours[..60]));
        let backwards = [record(4, 9, -1), record(3, 8, -1)].concat();
        let past = [record(3, 9, -1), record(3, 8, 1)].concat();
        let of_corda: Vec<u8> = (0..90u64).flat_map(u64::to_be_bytes).collect();
        let of_cache2k: Vec<u8> = (0..90u32).flat_map(u32::to_be_bytes).collect();
        for other in [
            &backwards,
            &past,
            &of_corda,
            &of_cache2k,
            &vec![0; 240],
            &vec![],
        ] {
            assert!(!recognise(other));
        }
    }

    #[test]
    fn bad_records() {
        let cut = [record(3, 1, 1), record(4, 1, -1)].concat();
        assert!(error(&FORMAT, &cut[..40]).contains("byte 24 has 16 of 24"));
        assert!(error(&FORMAT, &record(3, 1, -9)).contains("next access"));
        assert!(error(&FORMAT, b"1\n2\n3\n4\n5\n6\n").contains("it is text"));
    }
}
