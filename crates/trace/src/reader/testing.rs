// SPDX-License-Identifier: Apache-2.0
//! Reads bytes in memory, for the tests of the readers.

use std::path::Path;

use crate::access::Request;
use crate::error::TraceError;
use crate::format::{Format, ReadOptions};
use crate::input::Input;

/// Every request until the end or the first error.
pub fn read_with(
    format: &Format,
    bytes: &[u8],
    options: &ReadOptions,
) -> (Vec<Request>, Option<TraceError>) {
    let input = Input::from_reader(Path::new("test"), std::io::Cursor::new(bytes.to_vec()));
    let mut requests = Vec::new();
    let mut reader = match input.and_then(|input| (format.open)(input, options)) {
        Ok(reader) => reader,
        Err(error) => return (requests, Some(error)),
    };
    loop {
        match reader.next_request() {
            Ok(Some(request)) => requests.push(request),
            Ok(None) => return (requests, None),
            Err(error) => return (requests, Some(error)),
        }
    }
}

/// The same with default options.
pub fn read(format: &Format, bytes: &[u8]) -> (Vec<Request>, Option<TraceError>) {
    read_with(format, bytes, &ReadOptions::default())
}

/// The first pages of all requests; panics on an error.
pub fn pages(format: &Format, bytes: &[u8]) -> Vec<u64> {
    let (requests, error) = read(format, bytes);
    assert!(error.is_none(), "{error:?}");
    requests.iter().map(|request| request.first_page).collect()
}

/// The message of the error at which reading stops.
pub fn error(format: &Format, bytes: &[u8]) -> String {
    read(format, bytes).1.expect("an error").to_string()
}
