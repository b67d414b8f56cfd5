// SPDX-License-Identifier: Apache-2.0
//! The text format of the AdaptSize authors: `time key size` per line. The key is the page, the
//! size is ignored. Content whose first column goes back in more than a tenth of the lines is not
//! recognised: those are no times.

use std::cell::Cell;

use super::simple;
use crate::access::Request;
use crate::format::{Format, ReadOptions, lines_all};
use crate::number;

/// AdaptSize text.
pub static FORMAT: Format = Format {
    name: "adaptsize",
    name_hints: &["adaptsize", "adapt_size"],
    description_hints: &[&["time id size"], &["time key size"], &["adaptsize"]],
    recognise: |head| {
        let (before, lines, back) = (Cell::new(0), Cell::new(0), Cell::new(0));
        lines_all(head, |line| {
            let time = number::words(line).next().map(number::decimal);
            let Some(Ok(time)) = time else {
                return false;
            };
            lines.update(|count| count + 1);
            back.update(|count| count + u32::from(time < before.replace(time)));
            number::are_decimals(line, 3)
        }) && back.get() <= lines.get() / 10
    },
    open: |input, _: &ReadOptions| Ok(simple::lines(input, &FORMAT, parse)),
};

/// Parses the page of a line. The time counts requests in some traces and milliseconds in others,
/// so it is checked but not kept.
fn parse(line: &[u8]) -> Result<Option<Request>, String> {
    let mut words = number::words(line);
    let mut next = |name: &str| {
        words
            .next()
            .ok_or_else(|| format!("the {name} is missing; expected \"time key size\""))
    };
    number::decimal(next("time")?)?;
    let page = number::decimal(next("key")?)?;
    number::decimal(next("size")?)?;
    if words.next().is_some() {
        return Err("more than 3 columns".into());
    }
    Ok(Some(Request::page(page)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{error, pages};
    use super::*;

    #[test]
    fn the_key_is_the_second_column() {
        assert_eq!(pages(&FORMAT, b"1 7 68\n2 9 7454"), [7, 9]);
        assert!(error(&FORMAT, b"1 7\n").contains("size is missing"));
        assert!(error(&FORMAT, b"1 7 8 9\n").contains("more than 3"));
    }
}
