// SPDX-License-Identifier: Apache-2.0
//! The text format of the LIRS authors: one decimal block number per line.
//!
//! Lines of `*` are break points of the original experiments and have no request; empty lines and
//! comments (`#`) are ignored. Lines may end in CR LF, and the last one may lack a line ending.

use super::simple;
use crate::access::Request;
use crate::format::{Format, ReadOptions, lines_all};
use crate::number;

/// LIRS text.
pub static FORMAT: Format = Format {
    name: "lirs",
    name_hints: &["lirs_", ".lirs", ".trc"],
    description_hints: &[
        &["block number per line"],
        &["lirs"],
        &["one number per line"],
    ],
    recognise: |head| {
        lines_all(head, |line| {
            is_left_out(line) || line.iter().all(u8::is_ascii_digit)
        })
    },
    open: |input, _: &ReadOptions| Ok(simple::lines(input, &FORMAT, parse)),
};

fn is_left_out(line: &[u8]) -> bool {
    line.starts_with(b"#") || line.iter().all(|&byte| byte == b'*')
}

fn parse(line: &[u8]) -> Result<Option<Request>, String> {
    match is_left_out(line) {
        true => Ok(None),
        false => number::decimal(line).map(|page| Some(Request::page(page))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{error, pages};
    use super::*;

    #[test]
    fn stars_comments_empty_lines_and_line_ends() {
        assert_eq!(
            pages(&FORMAT, b"# disk 3\n20\r\n*\r\n\r\n2877\n***\n34"),
            [20, 2877, 34]
        );
    }

    #[test]
    fn errors_name_the_line() {
        assert!(error(&FORMAT, b"1\n2 3\n").contains("byte 2 (line 2)"));
        assert!(error(&FORMAT, b"-4\n").contains("negative"));
        assert!(error(&FORMAT, b"99999999999999999999\n").contains("64 bits"));
    }
}
