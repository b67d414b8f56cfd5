// SPDX-License-Identifier: Apache-2.0
//! Page faults of the recorded processes between looks.

use std::str::FromStr;

use crate::access::AccessError;
use crate::faults::{Fault, FaultSource, Faults};

/// Whether page faults are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMode {
    /// If the kernel permits.
    Auto,
    /// Always; fail if that is not possible.
    On,
    /// Never.
    Off,
}

impl FromStr for FaultMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("'{text}' is not auto, on or off")),
        }
    }
}

/// The source of page faults.
pub type Source = Box<dyn FaultSource>;

/// Opens the source for `mode`. If it was wanted but is not available, also returns the reason.
///
/// # Errors
/// Only with [`FaultMode::On`], if there is no source.
pub fn open(mode: FaultMode) -> Result<(Option<Source>, Option<String>), AccessError> {
    choose(mode, || {
        Faults::open().map(|faults| Box::new(faults) as Source)
    })
}

fn choose(
    mode: FaultMode,
    open: impl FnOnce() -> Result<Source, AccessError>,
) -> Result<(Option<Source>, Option<String>), AccessError> {
    match mode {
        FaultMode::Off => Ok((None, None)),
        FaultMode::On => Ok((Some(open()?), None)),
        FaultMode::Auto => Ok(match open() {
            Ok(source) => (Some(source), None),
            Err(error) => {
                let why = error.to_string().replace('\n', "; ");
                (None, Some(format!("page faults are not recorded: {why}")))
            }
        }),
    }
}

/// Faults read but not written yet, in time order.
#[derive(Default)]
pub struct Pending(Vec<Fault>);

impl Pending {
    /// Reads new faults from the source.
    ///
    /// # Errors
    /// The kernel refuses the read.
    pub fn fill(&mut self, source: &mut dyn FaultSource) -> Result<(), AccessError> {
        source.drain(&mut self.0)?;
        // Stable, and nearly sorted: a fault being written may arrive one call late.
        self.0.sort_by_key(|fault| fault.time_ns);
        Ok(())
    }

    /// All of them, including those after the look.
    pub fn all(&self) -> &[Fault] {
        &self.0
    }

    /// Removes and returns those up to this time, in `CLOCK_MONOTONIC` ns.
    pub fn until(&mut self, time_ns: u64) -> Vec<Fault> {
        let count = self.0.partition_point(|fault| fault.time_ns <= time_ns);
        self.0.drain(..count).collect()
    }
}

/// Calls `rest` with the runs of `first..first + pages` that are not in `known`, which must ascend.
pub fn without(known: &[u64], first: u64, pages: u64, mut rest: impl FnMut(u64, u64)) {
    let end = first.saturating_add(pages);
    let mut from = first;
    for &page in &known[known.partition_point(|&page| page < first)..] {
        if page >= end {
            break;
        }
        if page > from {
            rest(from, page - from);
        }
        from = page + 1;
    }
    if from < end {
        rest(from, end - from);
    }
}

#[cfg(test)]
mod tests {
    use crate::faults::fake::FakeFaults;

    use super::*;

    fn fault(time_ns: u64) -> Fault {
        Fault {
            time_ns,
            address: 4096 * time_ns,
            pid: 1,
            tid: 1,
            write: false,
            kind: crate::faults::FaultKind::Unknown,
        }
    }

    #[test]
    fn without_a_source_auto_says_so_in_a_line_and_on_fails() {
        let refused = || {
            let (what, why) = ("page faults by tracepoint", "no BTF\nat all".to_owned());
            Err(AccessError::Unsupported { what, why })
        };
        let (source, said) = choose(FaultMode::Auto, refused).unwrap();
        assert!(source.is_none());
        let said = said.unwrap();
        assert!(said.contains("no BTF") && !said.contains('\n'), "{said}");
        assert!(choose(FaultMode::On, refused).is_err());
        let never = || panic!("not asked for");
        assert!(choose(FaultMode::Off, never).unwrap().0.is_none());
        let there = || Ok(Box::new(FakeFaults::default()) as Source);
        let (source, said) = choose(FaultMode::Auto, there).unwrap();
        assert!(source.is_some() && said.is_none());
    }

    #[test]
    fn faults_are_split_at_the_look_and_keep_their_order() {
        let mut source = FakeFaults {
            faults: [4, 2, 9].map(fault).to_vec(),
            watched: vec![1],
            ..FakeFaults::default()
        };
        let mut pending = Pending::default();
        pending.fill(&mut source).unwrap();
        let times =
            |faults: Vec<Fault>| -> Vec<u64> { faults.iter().map(|fault| fault.time_ns).collect() };
        assert_eq!(times(pending.until(4)), [2, 4]);
        source.faults = vec![fault(7)];
        pending.fill(&mut source).unwrap();
        assert_eq!(pending.all().len(), 2);
        assert_eq!(times(pending.until(u64::MAX)), [7, 9]);
    }

    #[test]
    fn what_faulted_is_left_out_of_a_run() {
        let cut = |known: &[u64], first, pages| {
            let mut runs = Vec::new();
            without(known, first, pages, |first, pages| {
                runs.push((first, pages))
            });
            runs
        };
        assert_eq!(cut(&[], 5, 3), [(5, 3)]);
        assert_eq!(cut(&[1, 5, 7, 9], 5, 4), [(6, 1), (8, 1)]);
        assert_eq!(cut(&[5, 6], 5, 2), []);
        assert_eq!(cut(&[u64::MAX - 1], u64::MAX - 2, 1), [(u64::MAX - 2, 1)]);
    }
}
