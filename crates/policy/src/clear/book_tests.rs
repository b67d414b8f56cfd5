// SPDX-License-Identifier: Apache-2.0
//! Tables that are steady, that flicker, that end, and what is told of them.

use super::*;

const HOT: PageSet = PageSet::ALL;
const IDLE: PageSet = PageSet::NONE;
/// All of one mapping.
fn place(table: usize) -> Place {
    Place {
        table: table as u64,
        mapping: 0,
    }
}

const SECOND: u64 = 1_000_000_000;
const PUT_OFF: PutOff = PutOff {
    tolerance: 0.005,
    max_ns: 60 * SECOND,
    rotate: 1,
};

/// Scan `tables` with the bits a machine would show: pages set theirs again when accessed.
struct Machine {
    young: Vec<PageSet>,
    book: Book,
    now_ns: u64,
}

impl Machine {
    fn new(tables: usize) -> Self {
        Machine {
            young: vec![IDLE; tables],
            book: Book::default(),
            now_ns: SECOND,
        }
    }

    /// One interval with accesses to `hot`, then a scan. Tables cleared, tables called stale,
    /// and tables called accessed.
    fn scan(&mut self, hot: impl Fn(usize) -> PageSet, put_off: &PutOff) -> [usize; 3] {
        self.now_ns += SECOND;
        self.book.begin(self.now_ns, put_off);
        let mut tally = [0; 3];
        for table in 0..self.young.len() {
            let young = &mut self.young[table];
            *young |= hot(table);
            if *young == IDLE {
                self.book.idle(place(table));
                continue;
            }
            let verdict = self.book.judge(place(table), &HOT, young);
            tally[1] += usize::from(verdict.stale);
            tally[2] += usize::from(!verdict.stale);
            if verdict.clear {
                *young = IDLE;
                tally[0] += 1;
            }
        }
        tally
    }
}

#[test]
fn steady_tables_are_cleared_ever_more_rarely() {
    let mut machine = Machine::new(256);
    assert_eq!(
        machine.scan(|_| HOT, &PUT_OFF)[0],
        256,
        "nothing is known at first"
    );
    let first: usize = (0..5).map(|_| machine.scan(|_| HOT, &PUT_OFF)[0]).sum();
    let settled: usize = (0..60).map(|_| machine.scan(|_| HOT, &PUT_OFF)[0]).sum();
    assert!(first < 5 * 256, "{first}");
    // The samples alone are 8 a scan.
    assert!((8 * 60..60 * 256 / 5).contains(&settled), "{settled}");
    assert_eq!(machine.scan(|_| HOT, &PUT_OFF)[2], 256);
}

/// Random accesses: each page with a probability of 98.8 % in an interval. Nothing is steady but
/// the average, and the average of what is wrong stays within the tolerance.
#[test]
fn what_is_wrong_on_average_stays_within_the_tolerance() {
    let put_off = PutOff {
        tolerance: 0.01,
        ..PUT_OFF
    };
    let mut machine = Machine::new(64);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut accessed = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % 1000 >= 12
    };
    let (mut wrong, mut judged, mut cleared) = (0u32, 0u32, 0usize);
    for scan in 0..60 {
        let loads: Vec<PageSet> = (0..64)
            .map(|_| {
                PageSet::from_words(|_| {
                    (0..64).fold(0, |word, bit| word | u64::from(accessed()) << bit)
                })
            })
            .collect();
        let before = machine.young.clone();
        let tally = machine.scan(|table| loads[table], &put_off);
        if scan < 10 {
            continue;
        }
        cleared += tally[0];
        for (old, load) in before.iter().zip(&loads) {
            judged += 512;
            wrong += old.without(load).len() as u32;
        }
    }
    let share = f64::from(wrong) / f64::from(judged);
    assert!(share > 0.0 && share <= 0.01, "{share}");
    assert!(cleared < 50 * 64 * 2 / 3, "{cleared}");
}

#[test]
fn what_one_mapping_does_says_nothing_of_its_neighbour() {
    let mut book = Book::default();
    let steady = Place {
        table: 3,
        mapping: 0,
    };
    let other = Place {
        table: 4,
        mapping: 4 << 21,
    };
    for scan in 1..40u64 {
        book.begin(scan * SECOND, &PUT_OFF);
        book.judge(steady, &HOT, &HOT);
        // Other pages each time: whatever is not cleared is wrong.
        let mut young = IDLE;
        young[scan as usize % 8] = 0xffff;
        assert!(book.judge(other, &HOT, &young).clear, "{scan}");
    }
}

#[test]
fn without_tolerance_every_table_is_cleared_every_time() {
    let put_off = PutOff {
        tolerance: 0.0,
        ..PUT_OFF
    };
    let mut machine = Machine::new(64);
    for _ in 0..20 {
        assert_eq!(machine.scan(|_| HOT, &put_off), [64, 0, 64]);
    }
}

#[test]
fn memory_that_turns_cold_is_noticed_in_two_scans() {
    let mut machine = Machine::new(64);
    for _ in 0..40 {
        machine.scan(|_| HOT, &PUT_OFF);
    }
    // Nothing is accessed any more. The samples come back empty at once.
    let [cleared, stale, accessed] = machine.scan(|_| IDLE, &PUT_OFF);
    assert!(stale + accessed <= 64 - 2);
    let [more, _, accessed_then] = machine.scan(|_| IDLE, &PUT_OFF);
    let [_, _, at_last] = machine.scan(|_| IDLE, &PUT_OFF);
    assert!(cleared + more > 0);
    assert!(accessed_then <= accessed);
    assert_eq!(at_last, 0, "after {cleared} and {more} cleared");
}

#[test]
fn trust_returns_after_a_change() {
    let mut machine = Machine::new(64);
    for _ in 0..20 {
        machine.scan(|_| HOT, &PUT_OFF);
    }
    for _ in 0..3 {
        machine.scan(|_| IDLE, &PUT_OFF);
    }
    let cleared: Vec<usize> = (0..6).map(|_| machine.scan(|_| HOT, &PUT_OFF)[0]).collect();
    assert!(
        cleared[1..].iter().sum::<usize>() < 5 * 64 / 2,
        "{cleared:?}"
    );
}

#[test]
fn flickering_memory_is_never_put_off() {
    let mut machine = Machine::new(64);
    for scan in 0..30u64 {
        // Half of the pages, another half each time.
        let pattern = PageSet::from_words(|_| match scan % 2 {
            0 => 0x5555_5555_5555_5555,
            _ => !0x5555_5555_5555_5555,
        });
        assert_eq!(
            machine.scan(|_| pattern, &PUT_OFF),
            [64, 0, 64],
            "scan {scan}"
        );
    }
}

#[test]
fn no_clear_is_put_off_beyond_its_time() {
    let put_off = PutOff {
        max_ns: 3 * SECOND,
        ..PUT_OFF
    };
    let mut machine = Machine::new(64);
    for _ in 0..50 {
        machine.scan(|_| HOT, &put_off);
    }
    let cleared: usize = (0..30).map(|_| machine.scan(|_| HOT, &put_off)[0]).sum();
    assert!(cleared >= 30 * 64 / 4, "{cleared}");
}

#[test]
fn a_budget_takes_turns() {
    let put_off = PutOff {
        tolerance: 0.0,
        rotate: 4,
        ..PUT_OFF
    };
    let mut machine = Machine::new(256);
    machine.scan(|_| HOT, &put_off);
    for _ in 0..12 {
        assert_eq!(machine.scan(|_| HOT, &put_off)[0], 64);
    }
}

#[test]
fn bits_carry_the_time_they_tell_of() {
    let put_off = PutOff {
        tolerance: 0.0,
        ..PUT_OFF
    };
    let mut book = Book::default();
    book.begin(10, &put_off);
    assert_eq!(
        book.judge(place(5), &HOT, &HOT).since_ns,
        None,
        "the first scan"
    );
    book.begin(20, &put_off);
    assert_eq!(book.judge(place(5), &HOT, &HOT).since_ns, Some(10));
    assert_eq!(book.since_ns(place(5)), Some(20), "between scans");
    book.begin(30, &put_off);
    book.idle(place(5));
    book.begin(40, &put_off);
    assert_eq!(
        book.judge(place(5), &HOT, &HOT).since_ns,
        Some(30),
        "seen idle"
    );
    assert_eq!(
        book.judge(place(500), &HOT, &HOT).since_ns,
        Some(30),
        "mapped since"
    );
    book.forget();
    assert_eq!(book.judge(place(501), &HOT, &HOT).since_ns, None);
}

#[test]
fn put_off_bits_tell_since_their_own_clear() {
    let mut machine = Machine::new(16);
    for _ in 0..40 {
        machine.scan(|_| HOT, &PUT_OFF);
    }
    machine.book.begin(machine.now_ns + SECOND, &PUT_OFF);
    let since: Vec<_> = (0..16)
        .map(|table| {
            machine
                .book
                .judge(place(table), &HOT, &HOT)
                .since_ns
                .unwrap()
        })
        .collect();
    assert!(since.iter().any(|&ns| ns < machine.now_ns));
    assert!(
        since
            .iter()
            .all(|&ns| ns + PUT_OFF.max_ns >= machine.now_ns)
    );
}
