// SPDX-License-Identifier: Apache-2.0
//! The text of the report's files.
//!
//! Source: "mm: workingset reporting" v4, patches 1, 2 and 4.

use super::super::{INTERVALS_MAX, Intervals};
use super::ReportError;
use super::number::{Tick, c_string, parse_u32, shown, trim};

/// Parses what was written to `page_age_intervals`: numbers of milliseconds, separated by commas,
/// that are strictly increasing after rounding up to ticks. An empty list or only white space
/// clears.
///
/// # Errors
/// `EINVAL` for anything else, `ERANGE` beyond 32 bits and for the 32nd bound.
pub fn parse_intervals(text: &[u8], tick: Tick) -> Result<Intervals, ReportError> {
    let list = trim(c_string(text));
    let mut bounds_ms: Vec<u64> = Vec::new();
    if list.is_empty() {
        return Ok(Intervals::default());
    }
    for part in list.split(|&byte| byte == b',') {
        let next_ms = tick.round_ms(parse_u32(part)?);
        if let Some(&before_ms) = bounds_ms.last()
            && next_ms <= before_ms
        {
            return Err(ReportError::NotIncreasing { before_ms, next_ms });
        }
        if bounds_ms.len() == INTERVALS_MAX {
            return Err(ReportError::TooMany);
        }
        bounds_ms.push(next_ms);
    }
    Ok(Intervals::with_zero(bounds_ms))
}

/// The contents of `page_age_intervals`: only a newline if there are none.
pub fn format_intervals(intervals: &Intervals) -> String {
    let bounds: Vec<String> = intervals.bounds_ms().iter().map(u64::to_string).collect();
    bounds.join(",") + "\n"
}

/// Parses what was written to a node's `refresh_interval` or `report_threshold`; rounds up to
/// ticks.
///
/// # Errors
/// `EINVAL` for anything that is not an unsigned number, `ERANGE` beyond 32 bits.
pub fn parse_ms(text: &[u8], tick: Tick) -> Result<u64, ReportError> {
    parse_u32(c_string(text)).map(|ms| tick.round_ms(ms))
}

/// The contents of such a file.
pub fn format_ms(ms: u64) -> String {
    format!("{ms}\n")
}

/// Parses what was written to a cgroup's `memory.workingset.refresh_interval` or
/// `.report_threshold`: `N<node>=<ms>`, one node per write. The caller must check that the node has
/// memory.
///
/// # Errors
/// `EINVAL` without the leading `N` or the `=` and for anything that is not a number; `ERANGE`
/// beyond 32 bits.
pub fn parse_node_ms(text: &[u8], tick: Tick) -> Result<(u32, u64), ReportError> {
    let text = trim(c_string(text));
    let form = || ReportError::NotANodeSetting { text: shown(text) };
    let named = text.strip_prefix(b"N").ok_or_else(form)?;
    let equals = named
        .iter()
        .position(|&byte| byte == b'=')
        .ok_or_else(form)?;
    let node = parse_u32(&named[..equals])?;
    let ms = parse_u32(&named[equals + 1..])?;
    Ok((node, tick.round_ms(ms)))
}

/// The contents of such a file: `N0=1000 N1=0 ` and a newline, nodes ascending.
pub fn format_node_ms(nodes: impl Iterator<Item = (u32, u64)>) -> String {
    let mut text: String = nodes.map(|(node, ms)| format!("N{node}={ms} ")).collect();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn intervals(text: &str) -> Result<Vec<u64>, i32> {
        parse_intervals(text.as_bytes(), Tick::default())
            .map(|intervals| intervals.bounds_ms().to_vec())
            .map_err(|error| error.errno())
    }

    fn count(count: u32) -> String {
        let bounds: Vec<String> = (1..=count).map(|i| (i * 1000).to_string()).collect();
        bounds.join(",")
    }

    #[test]
    fn bounds_increase_after_rounding() {
        assert_eq!(
            intervals("6000,10000,15000\n"),
            Ok(vec![6000, 10_000, 15_000])
        );
        assert_eq!(intervals(" 1000,2000 \n"), Ok(vec![1000, 2000]));
        assert_eq!(intervals("0x3e8,2001"), Ok(vec![1000, 2004]));
        assert_eq!(intervals("0,1000"), Ok(vec![0, 1000]));
        // 1 and 2 ms are both one tick of 4 ms.
        assert_eq!(intervals("1,2"), Err(22));
        assert_eq!(intervals("4,5"), Ok(vec![4, 8]));
        assert_eq!(intervals("1000,1000"), Err(22));
        assert_eq!(intervals("2000,1000"), Err(22));
        let single = parse_intervals(b"1,2", Tick::new(1)).unwrap();
        assert_eq!(single.bounds_ms(), [1, 2]);
    }

    #[test]
    fn thirty_one_fit_and_the_thirty_second_is_out_of_range() {
        assert_eq!(intervals(&count(31)).unwrap().len(), 31);
        assert_eq!(intervals(&count(32)), Err(34));
        assert_eq!(intervals("4294967296"), Err(34));
        // The order is checked before the count, as in the kernel.
        assert_eq!(intervals(&(count(31) + ",5")), Err(22));
    }

    #[test]
    fn what_is_no_number_is_refused_and_nothing_clears() {
        for bad in [
            "1000, 2000",
            "1000,,2000",
            ",",
            "1000,",
            "10s",
            "a",
            "-1",
            "1 2",
        ] {
            assert_eq!(intervals(bad), Err(22), "{bad:?}");
        }
        for clears in ["", "\n", "  ", "\x00junk"] {
            assert_eq!(intervals(clears), Ok(vec![]), "{clears:?}");
        }
        assert_eq!(format_intervals(&Intervals::default()), "\n");
    }

    #[test]
    fn a_node_setting_without_its_parts_is_invalid() {
        let parse = |text: &str| {
            parse_node_ms(text.as_bytes(), Tick::default()).map_err(|error| error.errno())
        };
        assert_eq!(parse("N0=5000\n"), Ok((0, 5000)));
        assert_eq!(parse(" N1=0 "), Ok((1, 0)));
        assert_eq!(parse("N0x1=0x10"), Ok((1, 16)));
        // The posted code dereferences a null pointer for the first of these.
        for bad in [
            "N0",
            "N",
            "",
            "0=5000",
            "n0=1",
            "N=1",
            "N0=",
            "N0=x",
            "N0= 1",
            "N0=1 N1=2",
        ] {
            assert_eq!(parse(bad), Err(22), "{bad:?}");
        }
        assert_eq!(parse("N0=4294967296"), Err(34));
    }

    #[test]
    fn a_nodes_list_ends_with_a_blank() {
        let text = format_node_ms([(0, 1000), (1, 0)].into_iter());
        assert_eq!(text, "N0=1000 N1=0 \n");
        assert_eq!(format_ms(parse_ms(b"7\n", Tick::default()).unwrap()), "8\n");
        assert_eq!(parse_ms(b"", Tick::default()).unwrap_err().errno(), 22);
    }

    proptest! {
        /// The parsers read back what is printed, and no bytes make them panic.
        #[test]
        fn lists_come_back(bounds in prop::collection::btree_set(0u32..1_000_000, 0..31)) {
            let text: Vec<String> = bounds.iter().map(|ms| (ms * 4).to_string()).collect();
            let read = parse_intervals(text.join(",").as_bytes(), Tick::default()).unwrap();
            let again = parse_intervals(format_intervals(&read).as_bytes(), Tick::default());
            prop_assert_eq!(read.bounds_ms().len(), bounds.len());
            prop_assert_eq!(again.unwrap(), read);
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let errnos = [
                parse_intervals(&bytes, Tick::default()).err(),
                parse_ms(&bytes, Tick::default()).err(),
                parse_node_ms(&bytes, Tick::default()).err(),
            ];
            for error in errnos.into_iter().flatten() {
                prop_assert!([22, 34].contains(&error.errno()));
            }
        }
    }
}
