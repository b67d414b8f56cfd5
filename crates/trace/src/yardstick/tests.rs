// SPDX-License-Identifier: Apache-2.0
//! Traces worked out by hand, and the policies compared with their simple models.

use proptest::prelude::*;

use super::*;

fn misses(name: &str, pages: &[u64], capacity: usize) -> u64 {
    by_name(name)
        .unwrap()
        .misses(&DenseTrace::from_pages(pages), capacity)
}

#[test]
fn names_are_unique_and_found() {
    for spec in YARDSTICKS {
        for name in [spec.name].iter().chain(spec.aliases) {
            assert_eq!(by_name(name).unwrap().name, spec.name);
        }
    }
    assert!(by_name("nonsense").is_none());
}

/// Belady's anomaly, from his paper with Nelson and Shedler (1969): on this string FIFO misses 9
/// times with 3 frames and 10 times with 4. LRU: 10 and 8. OPT: 7 and 6.
#[test]
fn beladys_anomaly() {
    let pages = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
    assert_eq!(
        [misses("fifo", &pages, 3), misses("fifo", &pages, 4)],
        [9, 10]
    );
    assert_eq!(
        [misses("lru", &pages, 3), misses("lru", &pages, 4)],
        [10, 8]
    );
    assert_eq!([misses("opt", &pages, 3), misses("opt", &pages, 4)], [7, 6]);
}

/// Three frames: 1 is accessed while 1 2 are resident. 3 is brought in (1* 2 3). For 4, the hand
/// clears 1 and evicts 2. 1 is still resident: 4 misses. FIFO has evicted 1 by then: 5 misses.
#[test]
fn clock_spares_what_was_accessed() {
    let pages = [1, 2, 1, 3, 4, 1];
    assert_eq!(misses("clock", &pages, 3), 4);
    assert_eq!(misses("fifo", &pages, 3), 5);
}

/// A loop over one page more than there are frames: LRU, FIFO and CLOCK miss every time. OPT misses
/// the first 5 accesses, then every 4th: 5 + 35 / 4 = 13 of 40. LIRS makes 0 1 2 its LIR pages,
/// which hit from the second round on (21 hits of 40). 3 and 4 pass through Q; the one that was
/// evicted returns as a ghost in S, but is not more recent than any LIR page, so nothing is
/// exchanged.
#[test]
fn loops_defeat_recency() {
    let pages: Vec<u64> = (0..5).cycle().take(5 * 8).collect();
    for name in ["lru", "fifo", "clock"] {
        assert_eq!(misses(name, &pages, 4), 40, "{name}");
    }
    assert_eq!(misses("opt", &pages, 4), 13);
    assert_eq!(misses("lirs", &pages, 4), 19);
}

/// The two variants of LIRS differ on a loop that just fits into 200 frames, 2 of them for HIR
/// pages: the published one never misses a page twice.
#[test]
fn lirs_as_published_holds_what_fits() {
    let pages: Vec<u64> = (0..200).cycle().take(200 * 10).collect();
    assert_eq!(misses("lirs-paper", &pages, 200), 200);
    assert!(misses("lirs", &pages, 200) > 200);
}

/// 2Q with 4 frames: Kin 1, Kout 2. 1 2 3 4 fill A1in. 5: A1in exceeds Kin, so 1 becomes a ghost. 1
/// again: a ghost hit moves it to Am (2 becomes a ghost). A scan of 6 7 8 pushes 3 4 5 through the
/// ghost list; Am is not affected, so 1 hits.
#[test]
fn two_queue_keeps_the_page_seen_twice() {
    let pages = [1, 2, 3, 4, 5, 1, 6, 7, 8, 1];
    assert_eq!(misses("2q", &pages, 4), 9);
    assert_eq!(misses("lru", &pages, 4), 9);
    let longer = [1, 2, 3, 4, 5, 1, 6, 7, 8, 9, 1];
    assert_eq!(
        [misses("2q", &longer, 4), misses("lru", &longer, 4)],
        [10, 11]
    );
}

/// ARC with 2 frames: 1 1 puts 1 into T2. 2 3 4 scan through T1; 1 stays, and hits at the end.
#[test]
fn arc_resists_a_scan() {
    assert_eq!(misses("arc", &[1, 1, 2, 3, 4, 1], 2), 4);
    assert_eq!(misses("lru", &[1, 1, 2, 3, 4, 1], 2), 5);
}

/// SIEVE with 3 frames: 1 2 3, then 1 is accessed. 4: the hand clears 1, evicts 2 and stops at 3. 5
/// evicts 3 (so would CLOCK). The hand is at 4: 6 evicts 4, and 1 is still resident.
#[test]
fn sieve_keeps_survivors_in_place() {
    assert_eq!(misses("sieve", &[1, 2, 3, 1, 4, 5, 6, 1], 3), 6);
}

/// S3-FIFO with 10 frames: page 1 is accessed twice while in the small queue, so the scan of 30
/// pages moves it to the main queue, which only ghost hits would extend. LRU has evicted it.
#[test]
fn s3_fifo_filters_a_scan() {
    let pages: Vec<u64> = [1, 1, 1].into_iter().chain(100..130).chain([1]).collect();
    assert_eq!(
        [misses("s3fifo", &pages, 10), misses("lru", &pages, 10)],
        [31, 32]
    );
}

/// A loop over 20 pages with 10 frames. Filled through the small queue, every page is evicted
/// before its next access, and the 9 ghosts of 20 contain none of them. Filled through the main
/// queue, its first 9 pages stay: in 7 later rounds they hit 63 times.
#[test]
fn s3_fifo_that_fills_the_main_queue_first_keeps_the_first_pages() {
    let pages: Vec<u64> = (0..20).cycle().take(20 * 8).collect();
    assert_eq!(
        [
            misses("s3fifo", &pages, 10),
            misses("s3fifo-main-first", &pages, 10)
        ],
        [160, 160 - 63]
    );
}

/// W-TinyLFU with 10 frames: 0..9 are accessed three times each, followed by a scan of pages
/// accessed once. None of them replaces a page of the main part; they only get the window (1 page).
#[test]
fn w_tiny_lfu_admits_only_the_frequent() {
    let mut pages: Vec<u64> = (0..9).cycle().take(27).collect();
    pages.extend(100..130);
    pages.extend(0..9);
    assert!(misses("wtinylfu", &pages, 10) <= 9 + 30 + 1);
    assert_eq!(misses("lru", &pages, 10), 9 + 30 + 9);
}

#[test]
fn a_pool_of_everything_misses_once_a_page() {
    let pages: Vec<u64> = (0..50).chain(0..50).chain((0..50).rev()).collect();
    for spec in YARDSTICKS {
        // 2Q limits pages it has seen again to 3/4 of the pool.
        let capacity = if spec.name == "2q" { 200 } else { 50 };
        assert_eq!(misses(spec.name, &pages, capacity), 50, "{}", spec.name);
    }
}

fn traces() -> impl Strategy<Value = Vec<u64>> {
    let skewed = (0u64..8, 0u64..60).prop_map(|(hot, cold)| if hot < 5 { hot } else { cold });
    let random = proptest::collection::vec(skewed, 0..600);
    let looped = (1u64..60, 0usize..600).prop_map(|(n, len)| (0..n).cycle().take(len).collect());
    prop_oneof![3 => random, 1 => looped]
}

type Model = fn(&[u64], usize) -> u64;

proptest! {
    #[test]
    fn as_the_plain_models(pages in traces(), capacity in 1usize..40) {
        let models: [(&str, Model); 9] = [
            ("lru", naive::lru), ("fifo", naive::fifo), ("clock", naive::clock),
            ("opt", naive::opt), ("sieve", naive::sieve), ("2q", naive::two_queue),
            ("lfu", naive::lfu), ("s3fifo", naive::s3_fifo),
            ("s3fifo-main-first", naive::s3_fifo_main_first),
        ];
        for (name, model) in models {
            prop_assert_eq!(misses(name, &pages, capacity), model(&pages, capacity), "{}", name);
        }
    }

    #[test]
    fn nothing_beats_opt_and_no_pool_overflows(pages in traces(), capacity in 1usize..40) {
        let trace = DenseTrace::from_pages(&pages);
        let best = misses("opt", &pages, capacity);
        for spec in YARDSTICKS {
            prop_assert!(spec.misses(&trace, capacity) >= best, "{}", spec.name);
            let Simulation::Online(build) = spec.simulation else {
                continue;
            };
            let mut policy = build(capacity);
            policy.reserve(trace.page_count());
            let mut seen = std::collections::HashSet::new();
            for &page in trace.accesses() {
                let hit = policy.access(page);
                prop_assert!(!hit || seen.contains(&page), "{} hit what was never in", spec.name);
                seen.insert(page);
                prop_assert!(policy.resident_pages() <= capacity, "{}", spec.name);
                prop_assert!(policy.access(page), "{} lost the page just accessed", spec.name);
            }
        }
    }
}
