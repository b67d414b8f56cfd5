// SPDX-License-Identifier: Apache-2.0
//! Byte layouts, errors, and a guest's answers.

use proptest::prelude::*;

use super::*;
use crate::workingset::OldestPages;
use crate::workingset::report::{Notice, Tick};

/// A guest with one cgroup: 3 pages just used, 5 older than a second.
struct Guest {
    now_ms: u64,
    birth_ms: u64,
}

impl Lruvecs for Guest {
    type Group = ();

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn subtree(&self, _root: Option<&()>) -> Vec<()> {
        vec![()]
    }

    fn youngest_birth_ms(&self, (): &(), _node: u32) -> Option<u64> {
        Some(self.birth_ms)
    }

    fn age(&mut self, (): &(), _node: u32) {
        self.birth_ms = self.now_ms;
    }

    fn add_ages(&self, (): &(), _node: u32, oldest: OldestPages, into: &mut Histogram) {
        use crate::generations::PageType::{Anon, File};
        into.add_at_least(Anon, 3, 0, oldest);
        into.add_at_least(File, 5, 1001, oldest);
    }

    fn unit_bytes(&self) -> u64 {
        4096
    }
}

fn guest() -> (Guest, Reports<()>, Balloon) {
    let reports = Reports::new([0, 1], Some(()), Tick::default(), OldestPages::AtLeast);
    let guest = Guest {
        now_ms: 50_000,
        birth_ms: 49_000,
    };
    (guest, reports, Balloon::new(1))
}

fn config(node: u16, refresh_interval_ms: u32, bounds: &str) -> [u8; NOTIFY_BYTES] {
    let config = Notify::Config {
        node,
        report_threshold_ms: 2000,
        refresh_interval_ms,
        intervals: bounds.parse().unwrap(),
    };
    config.encode().unwrap()
}

#[test]
fn a_config_byte_by_byte() {
    let message = config(0x0201, 0x0403_0201, "1s,65s");
    assert_eq!(message.len(), 140);
    let mut wanted = vec![
        2, 0, 1, 2, 0xd0, 0x07, 0, 0, 1, 2, 3, 4, 0xe8, 3, 0, 0, 0xe8, 0xfd, 0, 0,
    ];
    wanted.extend([0xff; 4]);
    wanted.resize(140, 0);
    assert_eq!(message.as_slice(), wanted);
    assert_eq!(Notify::decode(&message).unwrap().encode(), Some(message));
    let request = Notify::Request { node: 7 }.encode().unwrap();
    assert_eq!(request[..4], [1, 0, 7, 0]);
    assert!(request[4..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_report_byte_by_byte() {
    let bin = |upper_ms, anon, file| Bin {
        upper_ms,
        amounts: [anon, file],
    };
    let report = Report {
        error: 0,
        node: 3,
        bins: vec![bin(1000, 0x1_0000_0000, 2), bin(NO_UPPER_BOUND_MS, 0, 9)],
    };
    let message = report.encode();
    assert_eq!(message.len(), 776);
    assert_eq!(message[..8], [0, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(message[8..16], [0xe8, 3, 0, 0, 0, 0, 0, 0]);
    // More than 32 bits: the document's own selftest would cut it.
    assert_eq!(message[16..24], [0, 0, 0, 0, 1, 0, 0, 0]);
    // The terminator, all ones in any byte order, stands where the bin is.
    assert_eq!(message[32..40], [0xff; 8]);
    assert_eq!(Report::decode(&message).unwrap(), report);
    let failure = Report::failure(22, 1).encode();
    assert_eq!(
        failure[..8],
        [22, 0, 0, 0, 1, 0, 0, 0],
        "positive, in 32 bits"
    );
    assert_eq!(Report::decode(&failure).unwrap(), Report::failure(22, 1));
}

#[test]
fn messages_that_are_wrong_say_why() {
    let errno = |message: &[u8]| Notify::decode(message).unwrap_err().errno();
    let with_bounds = |bounds: &[u32]| {
        let mut message = vec![2, 0, 0, 0];
        message.resize(12, 0);
        message.extend(bounds.iter().flat_map(|bound| bound.to_le_bytes()));
        message.resize(NOTIFY_BYTES, 0);
        message
    };
    const END: u32 = u32::MAX;
    assert_eq!(errno(&[]), 90);
    assert_eq!(errno(&[0; 141]), 90);
    assert_eq!(errno(&[0; 140]), 22, "operation 0");
    assert_eq!(errno(&with_bounds(&[END])), 34, "no finite bound");
    assert_eq!(errno(&with_bounds(&[5, 5, END])), 22);
    assert_eq!(errno(&with_bounds(&[5, 4, END])), 22);
    assert_eq!(errno(&with_bounds(&[5])), 22, "then zeros");
    let rising: Vec<u32> = (1..=32).collect();
    assert_eq!(errno(&with_bounds(&rising)), 34, "no terminator");
    let mut fits: Vec<u32> = (1..=31).collect();
    fits.push(END);
    assert!(Notify::decode(&with_bounds(&fits)).is_ok());
    // Nothing that cannot be read is written.
    let unbounded = Notify::Config {
        node: 0,
        report_threshold_ms: 0,
        refresh_interval_ms: 0,
        intervals: Intervals::default(),
    };
    assert_eq!(unbounded.encode(), None);
}

#[test]
fn a_guest_answers_requests_by_its_own_bins() {
    let (mut guest, mut reports, mut balloon) = guest();
    reports.set_intervals(0, "9s".parse().unwrap()).unwrap();
    let request = Notify::Request { node: 1 }.encode().unwrap();
    assert_eq!(
        balloon.receive(&request, &mut reports, &mut guest),
        None,
        "not configured"
    );
    assert_eq!(
        balloon.receive(&config(0, 5000, "1s,2s"), &mut reports, &mut guest),
        None
    );
    let report = balloon.receive(&request, &mut reports, &mut guest).unwrap();
    assert_eq!((report.error, report.node), (0, 0), "the configured node");
    let bytes: Vec<[u64; 2]> = report.bins.iter().map(|bin| bin.amounts).collect();
    assert_eq!(bytes, [[3 * 4096, 0], [0, 5 * 4096], [0, 0]]);
    assert_eq!(
        reports.intervals(0).unwrap().bounds_ms(),
        [9000],
        "the node's are untouched"
    );
    balloon.set_busy(true);
    assert_eq!(
        balloon
            .receive(&request, &mut reports, &mut guest)
            .unwrap()
            .error,
        11
    );
    balloon.set_busy(false);
    // Pressure sends a report too, but not more often than the threshold allows.
    guest.now_ms += 3000;
    assert_eq!(
        reports.pressure(None, 0, 3, &mut guest),
        [Notice::Receiver(1)]
    );
    assert_eq!(balloon.report(&mut reports, &mut guest).unwrap().error, 0);
    assert!(reports.pressure(None, 0, 3, &mut guest).is_empty());
}

#[test]
fn a_config_that_fails_is_answered_and_changes_nothing() {
    let (mut guest, mut reports, mut balloon) = guest();
    let answer = balloon
        .receive(&config(9, 5000, "1s"), &mut reports, &mut guest)
        .unwrap();
    assert_eq!(answer, Report::failure(22, 9), "offline");
    let request = Notify::Request { node: 0 }.encode().unwrap();
    assert_eq!(balloon.receive(&request, &mut reports, &mut guest), None);
    assert_eq!(
        balloon.receive(&config(1, 5000, "1s"), &mut reports, &mut guest),
        None
    );
    let mut bad = config(0, 5000, "1s,2s");
    bad[16..20].copy_from_slice(&7u32.to_le_bytes());
    let answer = balloon.receive(&bad, &mut reports, &mut guest).unwrap();
    assert_eq!(answer, Report::failure(22, 0));
    let report = balloon.receive(&request, &mut reports, &mut guest).unwrap();
    assert_eq!((report.node, report.bins.len()), (1, 2), "as before");
}

#[test]
fn without_an_interval_a_request_still_brings_a_report() {
    let (mut guest, mut reports, mut balloon) = guest();
    balloon.receive(&config(0, 0, "1s"), &mut reports, &mut guest);
    let request = Notify::Request { node: 0 }.encode().unwrap();
    let report = balloon.receive(&request, &mut reports, &mut guest).unwrap();
    assert_eq!((report.error, report.bins.len()), (0, 2));
}

proptest! {
    /// What is written is read back.
    #[test]
    fn configs_come_back(
        node: u16,
        report_threshold_ms: u32,
        refresh_interval_ms: u32,
        bounds in prop::collection::btree_set(1u64..u64::from(u32::MAX), 1..=31),
    ) {
        let config = Notify::Config {
            node,
            report_threshold_ms,
            refresh_interval_ms,
            intervals: Intervals::new(bounds.into_iter().collect()).unwrap(),
        };
        prop_assert_eq!(Notify::decode(&config.encode().unwrap()).unwrap(), config);
    }

    #[test]
    fn reports_come_back(
        node: u32,
        bounds in prop::collection::btree_set(0u64..u64::MAX, 0..=31),
        amounts in prop::collection::vec((any::<u64>(), any::<u64>()), 32),
    ) {
        let bounds = bounds.into_iter().chain([NO_UPPER_BOUND_MS]);
        let bins = bounds.zip(&amounts).map(|(upper_ms, (anon, file))| Bin {
            upper_ms,
            amounts: [*anon, *file],
        });
        let report = Report { error: 0, node, bins: bins.collect() };
        prop_assert_eq!(Report::decode(&report.encode()).unwrap(), report);
    }

    /// Any bytes are taken or refused, and a guest survives them all.
    #[test]
    fn arbitrary_bytes_are_bounded(
        length in prop_oneof![Just(NOTIFY_BYTES), Just(REPORT_BYTES), 0usize..1000],
        op in prop_oneof![Just(1u8), Just(2u8), any::<u8>()],
        bytes in prop::collection::vec(any::<u8>(), 1000),
    ) {
        let mut message = bytes[..length].to_vec();
        if let Some(first) = message.first_mut() {
            *first = op;
        }
        if length == NOTIFY_BYTES {
            message[1] = 0;
        }
        if let Ok(report) = Report::decode(&message) {
            prop_assert!(report.bins.len() <= BINS_MAX);
        }
        let (mut guest, mut reports, mut balloon) = guest();
        let answer = balloon.receive(&message, &mut reports, &mut guest);
        if let Some(answer) = answer {
            prop_assert!([22, 34, 90].contains(&answer.error));
        }
    }
}
