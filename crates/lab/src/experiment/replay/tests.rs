// SPDX-License-Identifier: Apache-2.0

use std::collections::HashSet;
use std::io::Cursor as Bytes;
use std::sync::Arc;

use proptest::prelude::*;

use super::cursor::Step;
use super::layout::{SPARSE_MAX, place};
use super::*;
use crate::experiment::machine_run::{MEASURES, Plan, Run, Subject, run};
use agewise_trace::page_trace::{Header, PageTraceWriter};
use agewise_trace::{Evidence, Input, PageClass, ReadOptions, Request, registry};

fn recorded(order: Order, requests: &[Request]) -> Vec<u8> {
    let header = Header {
        order,
        interval_ns: if order == Order::Interval { 100 } else { 0 },
        ..Header::default()
    };
    let mut writer = PageTraceWriter::new(Path::new("t"), Vec::new(), &header).unwrap();
    for request in requests {
        writer.push(request).unwrap();
    }
    writer.finish().unwrap()
}

fn replay(format: &str, bytes: &[u8], through: Option<Through>) -> Replay {
    let path = Path::new("t");
    let format = registry::by_name(format).unwrap();
    let input = Input::from_reader(path, Bytes::new(bytes.to_vec())).unwrap();
    let reader = (format.open)(input, &ReadOptions::default()).unwrap();
    let mut stream = AccessStream::new(path, format, reader);
    Replay::read("t", path, &mut stream, through).unwrap()
}

/// A run of as many accesses, one per ms, to 100 pages.
fn plan(accesses: u64) -> Plan {
    let requests: Vec<Request> = (0..accesses)
        .map(|n| at(n * 1_000_000, n % 100, 1))
        .collect();
    let trace = replay("page", &recorded(Order::Exact, &requests), None);
    Plan {
        subject: Subject::Trace(Arc::new(trace), Arrangement::Forward),
        memory_pages: Some(4096),
        swap: None,
        settings: Vec::new(),
        damon: None,
        policy: crate::machine::Policy::parse("classic").unwrap(),
        seed: 1,
        proactive: None,
    }
}

#[test]
fn a_trace_is_done_after_its_last_access() {
    let mut run = Run::new(&plan(400)).unwrap();
    for (until_ns, accesses) in [(0, 0), (200_000_000, 201), (398_000_000, 399)] {
        run.run_until(until_ns).unwrap();
        assert_eq!((run.accesses(), run.is_done()), (accesses, false));
    }
    run.run_until(400_000_000).unwrap();
    assert_eq!((run.accesses(), run.is_done()), (400, true));
    run.run_until(u64::MAX).unwrap();
    assert!(run.is_done());
}

#[test]
fn a_trace_has_resident_memory_over_time() {
    let measured = run(&plan(400)).unwrap();
    let of = |name: &str| measured[MEASURES.iter().position(|m| m.0 == name).unwrap()];
    let (mean, peak) = (of("resident_mean_kib"), of("resident_peak_kib"));
    assert!(
        peak >= 400.0 && mean > 300.0 && mean <= peak,
        "{mean} {peak}"
    );
}

fn steps(replay: &Replay, arrangement: Arrangement, seed: u64) -> Vec<Step> {
    let mut cursor = Cursor::new(replay, arrangement, seed);
    std::iter::from_fn(|| cursor.next(replay)).collect()
}

fn at(time_ns: u64, first_page: u64, page_count: u64) -> Request {
    Request {
        first_page,
        page_count,
        time_ns,
        process: 7,
        class: PageClass::Anon,
        ..Request::default()
    }
}

#[test]
fn accesses_stay_in_their_interval_whatever_the_arrangement() {
    let requests = [at(1000, 10, 4), at(1100, 10, 2), at(1300, 5000, 3)];
    let replay = replay("page", &recorded(Order::Interval, &requests), None);
    assert!(replay.order_unknown && replay.through == Through::Mapping);
    let pages = |steps: &[Step]| steps.iter().map(|step| step.page).collect::<Vec<_>>();
    let forward = steps(&replay, Arrangement::Each, 1);
    assert_eq!(pages(&forward), [0, 1, 2, 3, 0, 1, 4, 5, 6]);
    let times: Vec<u64> = forward.iter().map(|step| step.due_ns).collect();
    assert_eq!(times, [0, 25, 50, 75, 100, 150, 200, 266, 333]);
    let writes: Vec<bool> = forward.iter().map(|step| step.write).collect();
    assert_eq!(&writes[..6], [true, true, true, true, false, false]);
    let reverse = steps(&replay, Arrangement::Each, 2);
    assert_eq!(pages(&reverse), [3, 2, 1, 0, 1, 0, 6, 5, 4]);
    let shuffled = steps(&replay, Arrangement::Each, 3);
    assert_eq!(shuffled, steps(&replay, Arrangement::Shuffle, 3));
    for (from, to) in [(0, 4), (4, 6), (6, 9)] {
        let set = |steps: &[Step]| {
            steps[from..to]
                .iter()
                .map(|s| s.page)
                .collect::<HashSet<_>>()
        };
        assert_eq!(set(&shuffled), set(&forward));
    }
}

#[test]
fn faults_keep_their_order_and_time_between_the_looks() {
    let fault = |time_ns, page| Request {
        evidence: Evidence::Fault,
        ..at(time_ns, page, 1)
    };
    let requests = [
        at(1000, 10, 2),
        fault(1030, 50),
        fault(1060, 40),
        at(1100, 10, 2),
    ];
    let header = Header {
        order: Order::Interval,
        evidence: true,
        interval_ns: 100,
        ..Header::default()
    };
    let mut writer = PageTraceWriter::new(Path::new("t"), Vec::new(), &header).unwrap();
    for request in &requests {
        writer.push(request).unwrap();
    }
    let replay = replay("page", &writer.finish().unwrap(), None);
    for seed in 1..9 {
        let steps = steps(&replay, Arrangement::Each, seed);
        // Pages are numbered in the order they appear: 50 is 2 and 40 is 3.
        let faults: Vec<_> = steps[2..4].iter().map(|s| (s.page, s.due_ns)).collect();
        assert_eq!(faults, [(2, 130), (3, 160)], "seed {seed}");
        assert!(
            steps[4..]
                .iter()
                .all(|step| step.page < 2 && step.due_ns >= 160)
        );
    }
}

#[test]
fn a_known_order_is_never_changed_and_gaps_are_bounded() {
    let requests = [
        at(5, 9, 1),
        at(5, 3, 1),
        at(u64::MAX / 2, 9, 1),
        at(7, 3, 1),
    ];
    let replay = replay("page", &recorded(Order::Exact, &requests), None);
    for arrangement in [
        Arrangement::Each,
        Arrangement::Reverse,
        Arrangement::Shuffle,
    ] {
        let steps = steps(&replay, arrangement, 2);
        assert_eq!(
            steps.iter().map(|s| s.page).collect::<Vec<_>>(),
            [0, 1, 0, 1]
        );
        assert_eq!(steps[3].due_ns, GAP_NS_MAX);
    }
}

#[test]
fn blocks_are_of_a_file_unless_told_otherwise() {
    let blocks = replay("lirs", b"5\n6\n5\n", None);
    assert_eq!((blocks.anon_pages(), blocks.footprint_pages()), (0, 2));
    assert_eq!(blocks.home(1), Home::File { page: 6 });
    assert!(blocks.description().contains("by file descriptor"));
    let anon = replay("lirs", b"5\n6\n5\n", Some(Through::Anonymous));
    assert_eq!(
        anon.home(0),
        Home::Anon {
            process: 0,
            page: 5
        }
    );
    assert!(steps(&anon, Arrangement::Forward, 1)[0].write);
}

#[test]
fn shared_anonymous_memory_goes_through_its_first_process() {
    let mut other = at(3, 10, 1);
    other.process = 8;
    let requests = [at(1, 10, 1), other];
    let replay = replay("page", &recorded(Order::Exact, &requests), None);
    assert_eq!(replay.processes(), 2);
    assert_eq!(steps(&replay, Arrangement::Forward, 1)[1].process, 0);
    assert!(replay.notes[0].contains("shared"), "{:?}", replay.notes);
}

proptest! {
    /// Different pages get different places in rising order, neighbours inside a chunk stay
    /// neighbours, and the number of places is bounded.
    #[test]
    fn places_are_in_order(
        numbers in prop::collection::btree_set(
            prop_oneof![0u64..3000, any::<u64>(), (0u64..40).prop_map(|n| n << 33)], 1..200)
    ) {
        let pages: Vec<u64> = numbers.into_iter().collect();
        let members: Vec<u32> = (0..pages.len() as u32).collect();
        let mut placed = vec![0u32; pages.len()];
        let count = place(&members, &pages, |page, at| placed[page as usize] = at);
        prop_assert!(placed.windows(2).all(|two| two[0] < two[1]));
        prop_assert!(u64::from(*placed.last().unwrap()) < count);
        prop_assert!(count <= (pages.len() as u64 * SPARSE_MAX).max(512));
    }
}
