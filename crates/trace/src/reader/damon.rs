// SPDX-License-Identifier: Apache-2.0
//! The kernel's `damon:damon_aggregated` tracepoint, as `perf script` or `trace_pipe` print it.
//!
//! `kdamond.0-99 [001] 12.500000: damon_aggregated: target_id=0 nr_regions=2 4096-8192: 5 0` is one
//! region in one aggregation: `nr_accesses`, 5 here, is the number of samples that found it
//! accessed. If it is at least 1, each page of the region counts as accessed at that time. This is
//! an estimate: DAMON samples one page per region. The pages of a region are output in ascending
//! order of address, regardless of the program's order, which is not known: the header says so. The
//! regions of an aggregation are printed one after the other, some microseconds apart: all have the
//! time of the first.
//!
//! `perf script` prints the name of the event as `damon:damon_aggregated:`. Before Linux 5.18
//! `target_id` may be an address in the kernel: these are numbered in the order they appear.

use crate::access::Request;
use crate::error::TraceError;
use crate::format::{Format, PAGES_PER_REQUEST_MAX, ReadOptions, RequestReader, lines_all};
use crate::input::Input;
use crate::number;
use crate::page_trace::{Header, Order};

/// damon_aggregated text.
pub static FORMAT: Format = Format {
    name: "damon",
    name_hints: &["damon"],
    description_hints: &[&["damon"]],
    recognise: |head| {
        let mut found = false;
        let known = lines_all(head, |line| line.starts_with(b"#") || is_event(line));
        if known {
            found = memchr::memmem::find(head, EVENT).is_some();
        }
        found
    },
    open: |input, options: &ReadOptions| {
        let header = Header {
            page_shift: options.page_shift_or_default(input.path())? as u8,
            order: Order::Interval,
            metadata: "converted_from=damon\n".into(),
            ..Header::default()
        };
        Ok(Box::new(Damon {
            input,
            regions: Regions {
                page_shift: header.page_shift.into(),
                targets: Vec::new(),
                begin_ns: 0,
                last_ns: u64::MAX,
            },
            header,
        }))
    },
};

const EVENT: &[u8] = b"damon_aggregated:";

/// What `perf script` prints before the name of the event.
const SYSTEM: &[u8] = b"damon:";

/// Number of targets with ids of more than 32 bits that are distinguished.
const TARGETS_MAX: usize = 4096;

/// A line this long after the one before belongs to the next aggregation. These are 100 ms apart
/// unless somebody changed it, and never less than a sampling interval.
const PAUSE_NS: u64 = 1_000_000;

struct Damon {
    input: Input,
    header: Header,
    regions: Regions,
}

/// What is known of the lines read.
struct Regions {
    page_shift: u32,
    /// The targets whose ids do not fit in 32 bits, at their numbers.
    targets: Vec<u64>,
    /// Time of the first line of the aggregation.
    begin_ns: u64,
    /// Time of the last line.
    last_ns: u64,
}

impl RequestReader for Damon {
    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        let regions = &mut self.regions;
        self.input.next_parsed(FORMAT.name, |line| match line {
            [b'#', ..] => Ok(None),
            line => regions.parse(line),
        })
    }

    fn page_trace_header(&self) -> Option<&Header> {
        Some(&self.header)
    }
}

fn is_event(line: &[u8]) -> bool {
    memchr::memmem::find(line, EVENT).is_some()
}

impl Regions {
    /// The region of a line, or `None` if it was not accessed.
    fn parse(&mut self, line: &[u8]) -> Result<Option<Request>, String> {
        let at = memchr::memmem::find(line, EVENT).ok_or("expected a damon_aggregated event")?;
        let (before, fields) = (&line[..at], &line[at + EVENT.len()..]);
        let before = before.strip_suffix(SYSTEM).unwrap_or(before);
        let time_ns = self.moment(time_ns(before)?);
        let mut words = number::words(fields);
        let mut process = 0;
        let range = loop {
            let word = words.next().ok_or("the region is missing")?;
            if let Some(target) = word.strip_prefix(b"target_id=") {
                process = self.process_of(number::decimal(target)?)?;
            } else if let Some(range) = word.strip_suffix(b":") {
                break range;
            }
        };
        let dash = range
            .iter()
            .position(|&byte| byte == b'-')
            .ok_or("expected START-END:")?;
        let start = number::decimal(&range[..dash])?;
        let end = number::decimal(&range[dash + 1..])?;
        let accesses = number::decimal(words.next().ok_or("nr_accesses is missing")?)?;
        if end <= start {
            return Err(format!("the region {start}-{end} is empty"));
        }
        if accesses == 0 {
            return Ok(None);
        }
        let first_page = start >> self.page_shift;
        let page_count = ((end - 1) >> self.page_shift) - first_page + 1;
        if page_count > PAGES_PER_REQUEST_MAX {
            return Err(format!(
                "a region of {page_count} pages; at most {PAGES_PER_REQUEST_MAX}"
            ));
        }
        Ok(Some(Request {
            first_page,
            page_count,
            time_ns,
            process,
            ..Request::default()
        }))
    }

    /// The number of a target: its id, or else its place among those that are too large for one.
    fn process_of(&mut self, id: u64) -> Result<u32, String> {
        if let Ok(id) = u32::try_from(id) {
            return Ok(id);
        }
        let known = self.targets.iter().position(|&target| target == id);
        let number = known.unwrap_or(self.targets.len());
        if number == TARGETS_MAX {
            return Err(format!("more than {TARGETS_MAX} values of target_id"));
        }
        if known.is_none() {
            self.targets.push(id);
        }
        Ok(number as u32)
    }

    /// The time of the aggregation that a line of this time belongs to.
    fn moment(&mut self, line_ns: u64) -> u64 {
        if line_ns.abs_diff(self.last_ns) >= PAUSE_NS {
            self.begin_ns = line_ns;
        }
        self.last_ns = line_ns;
        self.begin_ns
    }
}

/// The time stamp, which is the last word before the event: `seconds.fraction:`.
fn time_ns(before: &[u8]) -> Result<u64, String> {
    let Some(stamp) = number::words(before)
        .last()
        .and_then(|word| word.strip_suffix(b":"))
    else {
        return Ok(0);
    };
    let dot = stamp
        .iter()
        .position(|&byte| byte == b'.')
        .ok_or("expected a time SECONDS.PART:")?;
    let (seconds, fraction) = (number::decimal(&stamp[..dot])?, &stamp[dot + 1..]);
    let scale = match fraction.len() {
        digits @ 1..=9 => 10u64.pow(9 - digits as u32),
        _ => return Err("a time with 1 to 9 decimals was expected".into()),
    };
    let fraction_ns = number::decimal(fraction)? * scale;
    seconds
        .checked_mul(1_000_000_000)
        .and_then(|ns| ns.checked_add(fraction_ns))
        .ok_or_else(|| "the time does not fit in 64 bits of nanoseconds".to_string())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{error, read};
    use super::*;

    #[test]
    fn regions_that_were_accessed() {
        let text = b"# tracer: nop\n\
            kdamond.0-99 [001] ..... 12.500000: damon_aggregated: target_id=3 nr_regions=2 \
            4096-12288: 5 0\n\
            kdamond.0-99 [001] ..... 12.600000: damon_aggregated: target_id=3 nr_regions=2 \
            12288-20480: 0 4\n";
        let (requests, error) = read(&FORMAT, text);
        assert!(error.is_none(), "{error:?}");
        let expected = Request {
            first_page: 1,
            page_count: 2,
            time_ns: 12_500_000_000,
            process: 3,
            ..Request::default()
        };
        assert_eq!(requests, [expected]);
    }

    #[test]
    fn lines_of_perf_script() {
        let text = b"kdamond.0 46568 [027] 79357.842179: damon:damon_aggregated: target_id=0 \
            nr_regions=11 122509119488-135708762112: 0 864\n\
            kdamond.0 46568 [027] 79357.842180: damon:damon_aggregated: target_id=0 \
            nr_regions=11 135708762112-135708770304: 3 2\n";
        let format = crate::registry::detect(
            &mut Input::from_reader("t".as_ref(), std::io::Cursor::new(text.to_vec())).unwrap(),
        );
        assert_eq!(format.unwrap().name, FORMAT.name);
        let (requests, error) = read(&FORMAT, text);
        assert!(error.is_none(), "{error:?}");
        let expected = Request {
            first_page: 135_708_762_112 >> 12,
            page_count: 2,
            time_ns: 79_357_842_179_000,
            ..Request::default()
        };
        assert_eq!(requests, [expected]);
    }

    #[test]
    fn the_regions_of_an_aggregation_have_one_time() {
        let line = |time: &str| {
            format!("k {time}: damon_aggregated: target_id=0 nr_regions=2 0-4096: 1 0\n")
        };
        let text = ["1.100000", "1.100900", "1.101800", "1.200000", "1.199999"].map(line);
        let (requests, error) = read(&FORMAT, text.concat().as_bytes());
        assert!(error.is_none(), "{error:?}");
        let times: Vec<u64> = requests.iter().map(|of| of.time_ns / 1_000_000).collect();
        assert_eq!(times, [1100, 1100, 1100, 1200, 1200]);
    }

    #[test]
    fn targets_that_are_addresses_are_numbered() {
        let line = |target: u64| {
            format!("k 1.0: damon_aggregated: target_id={target} nr_regions=1 0-4096: 1 0\n")
        };
        let text = [u64::MAX - 7, 1 << 40, u64::MAX - 7].map(line).concat();
        let (requests, error) = read(&FORMAT, text.as_bytes());
        assert!(error.is_none(), "{error:?}");
        let processes: Vec<u32> = requests.iter().map(|request| request.process).collect();
        assert_eq!(processes, [0, 1, 0]);
        let text: String = (1 << 40..).take(TARGETS_MAX + 1).map(line).collect();
        let (requests, error) = read(&FORMAT, text.as_bytes());
        assert_eq!(requests.len(), TARGETS_MAX);
        assert!(error.unwrap().to_string().contains("target_id"));
    }

    #[test]
    fn errors() {
        assert!(error(&FORMAT, b"hello\n").contains("damon_aggregated event"));
        let line = b"k 1.0: damon_aggregated: target_id=0 nr_regions=1 9-9: 1 0\n";
        assert!(error(&FORMAT, line).contains("empty"));
        let line = b"k 1.0: damon_aggregated: target_id=0 nr_regions=1 0-18446744073709551615: 1\n";
        assert!(error(&FORMAT, line).contains("at most"));
    }
}
