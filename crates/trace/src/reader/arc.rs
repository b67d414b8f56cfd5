// SPDX-License-Identifier: Apache-2.0
//! The text format of the ARC authors: `start count 0 request`, a run of 512-byte blocks per line.
//!
//! Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003. A
//! line is `count` requests, for the blocks `start` to `start + count - 1`. The third column is not
//! used, the fourth counts the lines. Content is recognised by the one, if it is always 0, or by
//! the other: other traces have four columns of numbers too.

use std::cell::Cell;

use super::simple;
use crate::access::Request;
use crate::format::{Format, PAGES_PER_REQUEST_MAX, ReadOptions, lines_all};
use crate::number;

/// ARC text.
pub static FORMAT: Format = Format {
    name: "arc",
    name_hints: &[".lis", "arc_"],
    description_hints: &[
        &["start", "count"],
        &["512-byte blocks"],
        &["arc ", "column"],
    ],
    recognise: |head| {
        let before = Cell::new(None);
        let is_counted = |line: &[u8]| {
            let number = number::words(line)
                .nth(3)
                .and_then(|of| number::decimal(of).ok());
            number > before.replace(number)
        };
        let is_unused = |line: &[u8]| number::words(line).nth(2) == Some(b"0");
        lines_all(head, |line| number::are_decimals(line, 4))
            && (lines_all(head, is_unused) || lines_all(head, is_counted))
    },
    open: |input, _: &ReadOptions| Ok(simple::lines(input, &FORMAT, parse)),
};

fn parse(line: &[u8]) -> Result<Option<Request>, String> {
    let mut words = number::words(line);
    let mut next = |name: &str| {
        words
            .next()
            .ok_or_else(|| format!("the {name} is missing; expected \"start count 0 n\""))
    };
    let first_page = number::decimal(next("start")?)?;
    let page_count = number::decimal(next("count")?)?;
    let (third, fourth) = (next("third column")?, next("request number")?);
    for word in [third, fourth] {
        number::decimal(word)?;
    }
    if words.next().is_some() {
        return Err("more than 4 columns".into());
    }
    if page_count > PAGES_PER_REQUEST_MAX {
        return Err(format!(
            "a count of {page_count} blocks; at most {PAGES_PER_REQUEST_MAX}"
        ));
    }
    if first_page.checked_add(page_count).is_none() {
        return Err(format!(
            "{page_count} blocks from {first_page} do not fit in 64 bits"
        ));
    }
    Ok(Some(Request {
        first_page,
        page_count,
        ..Request::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{error, read};
    use super::*;

    #[test]
    fn a_line_is_a_run() {
        let (requests, error) = read(&FORMAT, b"230027 8 0 0\n1842745\t64 0 1");
        assert!(error.is_none());
        let runs: Vec<_> = requests
            .iter()
            .map(|r| (r.first_page, r.page_count))
            .collect();
        assert_eq!(runs, [(230027, 8), (1842745, 64)]);
    }

    #[test]
    fn counts_that_cannot_be() {
        assert!(error(&FORMAT, b"1 8 0 0\n5 -8 0 1\n").contains("-8 is negative"));
        assert!(error(&FORMAT, b"1 9999999999 0 0\n").contains("at most"));
        assert!(error(&FORMAT, b"18446744073709551615 8 0 0\n").contains("64 bits"));
        assert!(error(&FORMAT, b"17\n").contains("count is missing"));
        assert!(error(&FORMAT, b"1 2 0 0 5\n").contains("more than 4"));
    }
}
