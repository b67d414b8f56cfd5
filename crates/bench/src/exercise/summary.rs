// SPDX-License-Identifier: Apache-2.0
//! Summaries that an exerciser prints, at intervals and at the end.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The columns of CSV: the fields of a summary.
pub const COLUMNS: &str = "record,pid,elapsed_ms,ops,ops_per_second,p50_ns,p90_ns,p99_ns,p999_ns,\
    max_ns,resident_bytes,changed_pages";

/// Statistics of one span of time. The time of an operation includes choosing the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// `interval` for a part, `total` for the last line.
    pub record: &'static str,
    /// Pid of the exerciser.
    pub pid: u32,
    /// Milliseconds from the start of the work to the end of this span.
    pub elapsed_ms: u64,
    /// Operations in this span.
    pub ops: u64,
    /// Operations per second in this span.
    pub ops_per_second: f64,
    /// Median time of an operation.
    pub p50_ns: u64,
    /// 90th percentile of the time of an operation.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// The longest operation.
    pub max_ns: u64,
    /// Resident memory of the exerciser, in bytes.
    pub resident_bytes: u64,
    /// Changed pages found since the start.
    pub changed_pages: u64,
}

impl Summary {
    /// Computes the percentiles of `latencies` (ns).
    pub fn new(record: &'static str, span_ns: u64, latencies: &Histogram<u64>) -> Self {
        let seconds = span_ns as f64 / 1e9;
        Self {
            record,
            pid: std::process::id(),
            elapsed_ms: 0,
            ops: latencies.len(),
            ops_per_second: if seconds > 0.0 {
                latencies.len() as f64 / seconds
            } else {
                0.0
            },
            p50_ns: latencies.value_at_quantile(0.5),
            p90_ns: latencies.value_at_quantile(0.9),
            p99_ns: latencies.value_at_quantile(0.99),
            p999_ns: latencies.value_at_quantile(0.999),
            max_ns: latencies.max(),
            resident_bytes: resident_bytes(),
            changed_pages: 0,
        }
    }

    pub fn line_text(&self) -> String {
        format!(
            "{:<8} {:>7.1} s  {:>9.0} ops/s  p50 {}  p90 {}  p99 {}  p99.9 {}  max {}  resident \
             {}{}",
            self.record,
            self.elapsed_ms as f64 / 1e3,
            self.ops_per_second,
            time_text(self.p50_ns),
            time_text(self.p90_ns),
            time_text(self.p99_ns),
            time_text(self.p999_ns),
            time_text(self.max_ns),
            agewise_cli::units::bytes_text(self.resident_bytes),
            match self.changed_pages {
                0 => String::new(),
                pages => format!("  CHANGED PAGES {pages}"),
            }
        )
    }
}

/// Formats nanoseconds in the unit that needs the fewest digits.
fn time_text(nanoseconds: u64) -> String {
    match nanoseconds {
        0..10_000 => format!("{nanoseconds} ns"),
        10_000..10_000_000 => format!("{:.0} us", nanoseconds as f64 / 1e3),
        _ => format!("{:.0} ms", nanoseconds as f64 / 1e6),
    }
}

/// Resident memory of this process; 0 if /proc cannot be read.
fn resident_bytes() -> u64 {
    std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok())
        .map_or(0, |pages| pages.saturating_mul(super::memory::PAGE_SIZE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_operations() {
        let mut latencies = Histogram::new_with_bounds(1, 1_000_000_000, 3).expect("bounds");
        for value in 1..=1000 {
            latencies.record(value).expect("in bounds");
        }
        let summary = Summary::new("total", 2_000_000_000, &latencies);
        assert_eq!((summary.ops, summary.ops_per_second), (1000, 500.0));
        assert_eq!(
            (summary.p50_ns, summary.p99_ns, summary.max_ns),
            (500, 990, 1000)
        );
        assert!(summary.resident_bytes > 0);
    }

    #[test]
    fn times_are_short() {
        assert_eq!(time_text(999), "999 ns");
        assert_eq!(time_text(12_345), "12 us");
        assert_eq!(time_text(12_345_678), "12 ms");
    }
}
