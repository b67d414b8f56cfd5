// SPDX-License-Identifier: Apache-2.0
//! Readers of formats in which a line, or a record, is at most one request.

use crate::access::Request;
use crate::error::TraceError;
use crate::format::{Format, RequestReader};
use crate::input::Input;

/// A reader that calls a function for the next request.
struct Requests<F>(F);

impl<F> RequestReader for Requests<F>
where
    F: FnMut() -> Result<Option<Request>, TraceError> + Send,
{
    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        (self.0)()
    }
}

/// A reader of lines; `parse` returns `None` for a line without a request.
pub(super) fn lines(
    mut input: Input,
    format: &'static Format,
    mut parse: impl FnMut(&[u8]) -> Result<Option<Request>, String> + Send + 'static,
) -> Box<dyn RequestReader> {
    Box::new(Requests(move || input.next_parsed(format.name, &mut parse)))
}

/// A reader of binary keys of `N` bytes, each of which is a page.
///
/// # Errors
/// The input is text.
pub(super) fn keys<const N: usize>(
    mut input: Input,
    format: &'static Format,
    page: fn([u8; N]) -> u64,
) -> Result<Box<dyn RequestReader>, TraceError> {
    input.refuse_text(format.name)?;
    Ok(Box::new(Requests(move || {
        let key = input.next_record::<N>(format.name)?;
        Ok(key.map(|bytes| Request::page(page(bytes))))
    })))
}
