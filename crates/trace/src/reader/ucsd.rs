// SPDX-License-Identifier: Apache-2.0
//! The address traces of the UCSD architecture course: `s|l 0xADDR n` per line.
//!
//! `s` is a store and `l` a load of the byte address; `n` counts the instructions since the
//! previous line. The page is the address shifted by `page_shift`.

use super::simple;
use crate::access::{AccessKind, Request};
use crate::format::{Format, ReadOptions, lines_all};
use crate::number;

/// UCSD addresses.
pub static FORMAT: Format = Format {
    name: "ucsd",
    name_hints: &["ucsd", ".address"],
    description_hints: &[
        &["s|l"],
        &["ucsd"],
        &["store/load", "address"],
        &["addr>>12"],
    ],
    recognise: |head| lines_all(head, |line| parse(line).is_ok()),
    open: |input, options: &ReadOptions| {
        let page_shift = options.page_shift_or_default(input.path())?;
        Ok(simple::lines(input, &FORMAT, move |line| {
            let (kind, address) = parse(line)?;
            Ok(Some(Request {
                kind,
                ..Request::page(address >> page_shift)
            }))
        }))
    },
};

fn parse(line: &[u8]) -> Result<(AccessKind, u64), String> {
    let mut words = number::words(line.trim_ascii());
    let kind = match words.next() {
        Some(b"s") => AccessKind::Write,
        Some(b"l") => AccessKind::Read,
        other => {
            let found = number::lossy(other.unwrap_or_default());
            return Err(format!("expected \"s\" or \"l\", found \"{found}\""));
        }
    };
    let address = words
        .next()
        .and_then(|word| word.strip_prefix(b"0x"))
        .ok_or("expected an address with 0x")?;
    let address = number::hexadecimal(address)?;
    number::decimal(words.next().ok_or("the instruction count is missing")?)?;
    if words.next().is_some() {
        return Err("more than 3 columns".into());
    }
    Ok((kind, address))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{error, read};
    use super::*;

    #[test]
    fn addresses_become_pages() {
        let (requests, _) = read(&FORMAT, b"s 0x1fffff50 1\nl 0x1fffff58 6\n");
        assert_eq!(
            requests[0],
            Request {
                kind: AccessKind::Write,
                ..Request::page(0x1ffff)
            }
        );
        assert_eq!(
            requests[1],
            Request {
                kind: AccessKind::Read,
                ..Request::page(0x1ffff)
            }
        );
    }

    #[test]
    fn errors() {
        assert!(error(&FORMAT, b"x 0x1 1\n").contains("expected \"s\" or \"l\""));
        assert!(error(&FORMAT, b"s 0x1ffffffffffffffff 1\n").contains("64 bits"));
        assert!(error(&FORMAT, b"s 0xzz 1\n").contains("hexadecimal"));
    }
}
