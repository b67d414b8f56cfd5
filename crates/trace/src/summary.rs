// SPDX-License-Identifier: Apache-2.0
//! A summary of a trace after one pass.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer};

use super::access::{Access, AccessKind, Evidence, PageClass};
use super::dense::DenseTrace;
use super::error::TraceError;
use super::stream::{AccessStream, TraceSource};
use crate::curve::StackDistances;

/// Shares of the repeated accesses for which the reuse distance is reported.
pub const QUANTILES: [f64; 5] = [0.10, 0.50, 0.75, 0.90, 0.99];

/// A summary of a trace.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Its format.
    #[serde(rename = "trace_format")]
    pub format: &'static str,
    /// How the file is compressed.
    pub compression: &'static str,
    /// A page is `1 << page_shift` bytes.
    #[serde(rename = "page_bytes", serialize_with = "page_bytes")]
    pub page_shift: u32,
    /// Number of records; a record may be several accesses.
    pub requests: u64,
    /// Accesses of single pages.
    pub accesses: u64,
    /// Number of different pages.
    pub footprint_pages: u64,
    /// Pages accessed exactly once.
    pub pages_accessed_once: u64,
    /// Accesses to the page just accessed.
    pub repeats: u64,
    /// Accesses to the page after the one just accessed.
    pub sequential: u64,
    /// Reads, if recorded.
    pub reads: u64,
    /// Writes, if recorded.
    pub writes: u64,
    /// Accesses to anonymous memory, if recorded.
    pub anon: u64,
    /// Accesses to files, if recorded.
    pub file: u64,
    /// Page faults, which have exact times even in a trace recorded by interval.
    pub faults: u64,
    /// Faults known to be major: something was read.
    pub major_faults: u64,
    /// Faults known to be minor.
    pub minor_faults: u64,
    /// Accesses that were inferred from others instead of seen.
    pub inferred: u64,
    /// Number of different processes; 0 if the format has none.
    pub processes: u64,
    /// Time of the first access in nanoseconds; equal to the last one if the format has no times.
    pub first_time_ns: u64,
    /// Time of the last access in nanoseconds.
    pub last_time_ns: u64,
    /// Reuse distances, i.e. different pages accessed between two accesses of a page: the values
    /// that the shares [`QUANTILES`] of the repeated accesses do not exceed. `None` if no page is
    /// accessed twice.
    #[serde(skip)]
    pub reuse_distances: Option<[u64; QUANTILES.len()]>,
    /// A remark of the reader, such as that the file was truncated.
    #[serde(skip)]
    pub note: Option<String>,
}

fn page_bytes<S: Serializer>(shift: &u32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(1 << shift)
}

impl Summary {
    /// Reads a trace once and keeps it in memory, with 4 bytes per access.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read(source: &TraceSource) -> Result<Self, TraceError> {
        let mut stream = source.open()?;
        let mut tally = Tally::default();
        let trace =
            DenseTrace::from_stream_with(&source.path, &mut stream, |access| tally.add(access))?;
        Ok(tally.finish(&stream, &trace))
    }
}

#[derive(Default)]
struct Tally {
    /// What can be counted access by access.
    counts: Summary,
    processes: BTreeSet<u32>,
    times_ns: Option<(u64, u64)>,
    last_page: Option<u64>,
}

impl Tally {
    fn add(&mut self, access: &Access) {
        let counts = &mut self.counts;
        let last = self.last_page.replace(access.page);
        counts.repeats += u64::from(last == Some(access.page));
        let follows = last.and_then(|page| page.checked_add(1)) == Some(access.page);
        counts.sequential += u64::from(follows);
        counts.reads += u64::from(access.kind == AccessKind::Read);
        counts.writes += u64::from(access.kind == AccessKind::Write);
        counts.anon += u64::from(access.class == PageClass::Anon);
        counts.file += u64::from(access.class == PageClass::File);
        counts.faults += u64::from(access.evidence.is_fault());
        counts.major_faults += u64::from(access.evidence == Evidence::MajorFault);
        counts.minor_faults += u64::from(access.evidence == Evidence::MinorFault);
        counts.inferred += u64::from(access.evidence == Evidence::Inferred);
        if access.process != 0 {
            self.processes.insert(access.process);
        }
        let (first, last) = self
            .times_ns
            .get_or_insert((access.time_ns, access.time_ns));
        *first = (*first).min(access.time_ns);
        *last = (*last).max(access.time_ns);
    }

    fn finish(self, stream: &AccessStream, trace: &DenseTrace) -> Summary {
        let distances = StackDistances::of(trace);
        let mut times_accessed = vec![0u8; trace.page_count()];
        for &page in trace.accesses() {
            let times = &mut times_accessed[page as usize];
            *times = times.saturating_add(1);
        }
        let once = times_accessed.iter().filter(|&&times| times == 1).count();
        let quantiles = QUANTILES.map(|share| distances.quantile(share));
        let (first_time_ns, last_time_ns) = self.times_ns.unwrap_or_default();
        Summary {
            format: stream.format().name,
            compression: stream.compression(),
            page_shift: stream.page_shift(),
            requests: stream.requests(),
            accesses: trace.accesses().len() as u64,
            footprint_pages: trace.page_count() as u64,
            pages_accessed_once: once as u64,
            processes: self.processes.len() as u64,
            first_time_ns,
            last_time_ns,
            reuse_distances: quantiles[0]
                .is_some()
                .then(|| quantiles.map(|distance| distance.unwrap_or(0) as u64)),
            note: stream.note().map(str::to_string),
            ..self.counts
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages 1 1 2 3 1: one repeat, two sequential accesses, pages 2 and 3 accessed once; the
    /// distances are 0 (1 after 1) and 2 (2 and 3 in between).
    #[test]
    fn a_trace_by_hand() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.csv");
        let text = "page,op,pid,class,time_ns\n1,r,7,anon,5\n1,w,7,anon,6\n2,r,8,file,7\n\
                    3,r,8,file,9\n1,r,7,anon,8\n";
        std::fs::write(&path, text).unwrap();
        let summary = Summary::read(&TraceSource::new(&path)).unwrap();
        assert_eq!((summary.accesses, summary.footprint_pages), (5, 3));
        assert_eq!((summary.repeats, summary.sequential), (1, 2));
        assert_eq!((summary.reads, summary.writes), (4, 1));
        assert_eq!((summary.anon, summary.file, summary.processes), (3, 2, 2));
        assert_eq!((summary.first_time_ns, summary.last_time_ns), (5, 9));
        assert_eq!(summary.pages_accessed_once, 2);
        assert_eq!(summary.reuse_distances, Some([0, 0, 2, 2, 2]));
        assert_eq!(summary.format, "csv");
    }
}
