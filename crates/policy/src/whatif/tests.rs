// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;

use super::*;

/// Shows a series of looks, one second apart, in which all pages are present.
fn observe(looks: &[Vec<u64>], pages: u64, params: Params) -> WhatIf {
    let mut what_if = WhatIf::new(params);
    for (second, used) in looks.iter().enumerate() {
        let mut look = what_if.look(second as u64 * 1000);
        let used: std::collections::BTreeSet<u64> = used.iter().copied().collect();
        for page in 0..pages {
            let fact = if used.contains(&page) {
                Fact::Used
            } else {
                Fact::Idle
            };
            look.page(page_hash(0, page), 0, PageType::Anon, fact);
        }
        look.finish(pages, true);
    }
    what_if
}

/// Misses of an LRU memory, with a plain list: the page used last is in front.
fn lru_misses(uses: &[u64], initial: &[u64], capacity: usize) -> u64 {
    let mut stack: Vec<u64> = initial.to_vec();
    let mut misses = 0;
    for page in uses {
        let at = stack.iter().position(|of| of == page);
        misses += u64::from(at.is_none_or(|at| at >= capacity));
        at.map(|at| stack.remove(at));
        stack.insert(0, *page);
    }
    misses
}

fn capacity(pages: u64, size: usize) -> usize {
    (pages as f64 * f64::from(PERCENTS[size]) / 100.0)
        .round()
        .max(1.0) as usize
}

proptest! {
    /// With one page per look and every page simulated, the result is exactly LRU once each page
    /// has been used; the bounds are for the time to come.
    #[test]
    fn one_page_a_look_is_exact(uses in prop::collection::vec(0u64..20, 1..200)) {
        let all: Vec<u64> = (0..20).collect();
        let mut what_if = WhatIf::new(Params::default());
        let mut looks: Vec<Vec<u64>> = vec![vec![]];
        looks.extend(all.iter().map(|page| vec![*page]));
        looks.extend(uses.iter().map(|page| vec![*page]));
        for (second, used) in looks.iter().enumerate() {
            if second == all.len() + 1 {
                what_if.count_anew();
            }
            let mut look = what_if.look(second as u64 * 1000);
            for page in &all {
                let fact = if used.contains(page) { Fact::Used } else { Fact::Idle };
                look.page(page_hash(0, *page), 0, PageType::Anon, fact);
            }
            look.finish(20, true);
        }
        let curves = what_if.curves();
        let initial: Vec<u64> = all.iter().rev().copied().collect();
        for size in 0..SIZES {
            let misses = lru_misses(&uses, &initial, capacity(20, size)) as f64;
            let faults = curves.of(Decider::Lru).points[size].faults[0];
            let seconds = uses.len() as f64;
            let told = faults.likely * seconds;
            prop_assert!((told - misses).abs() < 1e-6, "{size} {faults:?} {misses}");
            prop_assert_eq!(curves.of(Decider::Lru).points[size].faults[1], Estimate::default());
        }
        prop_assert_eq!(curves.unknown_per_second, 0.0);
    }

    /// Whatever the order within the looks was, the misses of LRU are within the bounds.
    #[test]
    fn every_order_lies_within(
        looks in prop::collection::vec(
            prop::collection::btree_set(0u64..30, 0..12)
                .prop_map(|pages| pages.into_iter().collect::<Vec<_>>()),
            2..30,
        ),
        seed in any::<u64>(),
    ) {
        let what_if = observe(&looks, 30, Params::default());
        let mut initial: Vec<u64> = (0..30).collect();
        initial.sort_by_key(|page| crate::mix::hash(seed ^ *page));
        let mut uses = Vec::new();
        for (number, look) in looks.iter().enumerate().skip(1) {
            let mut look = look.clone();
            look.sort_by_key(|page| crate::mix::hash(seed ^ *page ^ (number as u64) << 32));
            uses.extend(look);
        }
        let curves = what_if.curves();
        let seconds = (looks.len() - 1) as f64;
        for size in 0..SIZES {
            let misses = lru_misses(&uses, &initial, capacity(30, size)) as f64;
            let faults = curves.of(Decider::Lru).points[size].faults[0];
            prop_assert!(faults.low * seconds <= misses + 1e-6, "{size}: {faults:?} {misses}");
            prop_assert!(faults.high * seconds >= misses - 1e-6, "{size}: {faults:?} {misses}");
        }
    }

    /// Points are ordered, finite or unbounded above, and more memory has no more faults under LRU.
    #[test]
    fn curves_are_curves(
        looks in prop::collection::vec(prop::collection::vec((0u64..300, 0u8..4), 0..60), 1..20),
        kernel in prop::sample::select(vec![Kernel::Classic, Kernel::MultiGen]),
        pages in 1usize..200,
        every in 1usize..8,
    ) {
        let mut what_if = WhatIf::new(Params { pages, every, kernel, reuse: true });
        for (second, shown) in looks.iter().enumerate() {
            let mut look = what_if.look(second as u64 * 1000);
            for (page, what) in shown {
                let fact = [Fact::Used, Fact::Used, Fact::Idle, Fact::Out][usize::from(*what)];
                let page_type = PageType::ALL[(*page % 2) as usize];
                look.page(page_hash(7, *page), 0, page_type, fact);
            }
            look.finish(shown.len() as u64, second % 3 > 0);
        }
        prop_assert!(what_if.sampled_pages() <= pages);
        let curves = what_if.curves();
        for policy in POLICIES {
            for point in &curves.named(policy).expect("simulated").points {
                for faults in point.faults {
                    let Estimate { low, likely, high } = faults;
                    prop_assert!(0.0 <= low && low <= likely && likely <= high, "{faults:?}");
                    prop_assert!(likely.is_finite());
                }
            }
        }
        let lru = &curves.of(Decider::Lru).points;
        let likely = |point: &Point| point.faults_per_second().likely;
        prop_assert!(lru.windows(2).all(|pair| likely(&pair[0]) >= likely(&pair[1]) - 1e-9));
    }
}

/// Looks at the page cache are rare; those between show only its pages that are used.
#[test]
fn files_are_all_that_a_whole_look_found() {
    let mut what_if = WhatIf::new(Params::default());
    let mut look = |shown: &[(u64, Fact)]| {
        let mut look = what_if.look(0);
        for (page, fact) in shown {
            look.page(page_hash(0, *page), 0, PageType::File, *fact);
        }
        look.finish(0, true);
        let pages = what_if.file_pages();
        (pages.resident, pages.unused)
    };
    let (idle, used) = (Fact::Idle, Fact::Used);
    assert_eq!(look(&[(1, idle), (2, idle), (3, idle)]), (3, 3));
    assert_eq!(look(&[(1, used)]), (3, 2));
    assert_eq!(look(&[(1, used), (4, used)]), (4, 2));
    assert_eq!(look(&[(1, idle), (2, used)]), (2, 0), "3 and 4 have left");
}

/// Pseudo-random, skewed uses of 4000 pages, 400 per look.
fn skewed(looks: u64) -> Vec<Vec<u64>> {
    let uniform = |at: u64| (crate::mix::hash(at) >> 11) as f64 / (1u64 << 53) as f64;
    (0..looks)
        .map(|look| {
            let uses = (0..400).map(|use_| uniform(look * 400 + use_));
            uses.map(|u| (u * u * u * 4000.0) as u64).collect()
        })
        .collect()
}

#[test]
fn a_sample_says_what_all_pages_say() {
    let looks = skewed(200);
    let of = |pages| {
        let mut what_if = observe(
            &looks[..50],
            4000,
            Params {
                pages,
                ..Params::default()
            },
        );
        what_if.count_anew();
        for (second, used) in looks.iter().enumerate().skip(50) {
            let used: std::collections::BTreeSet<u64> = used.iter().copied().collect();
            let mut look = what_if.look(second as u64 * 1000);
            for page in 0..4000 {
                let fact = if used.contains(&page) {
                    Fact::Used
                } else {
                    Fact::Idle
                };
                look.page(page_hash(0, page), 0, PageType::Anon, fact);
            }
            look.finish(4000, true);
        }
        what_if.curves()
    };
    let (all, some) = (of(4000), of(500));
    let mut within = 0;
    for policy in POLICIES {
        let of = |curves| Curves::named(curves, policy).expect("simulated").points;
        for (exact, told) in of(&all).iter().zip(&of(&some)) {
            let (exact, told) = (exact.faults_per_second(), told.faults_per_second());
            let off = (exact.likely - told.likely).abs();
            assert!(off < 20.0, "of some 300 a second: {exact:?} {told:?}");
            within += usize::from(told.low <= exact.likely && exact.likely <= told.high);
        }
    }
    assert!(within * 100 >= POLICIES.len() * SIZES * 95, "{within}");
}

#[test]
fn sizes_below_what_one_look_uses_have_no_upper_bound() {
    let looks = vec![(0..500).collect::<Vec<u64>>(); 20];
    let curves = observe(&looks, 1000, Params::default()).curves();
    let lru = curves.of(Decider::Lru);
    assert_eq!(lru.at(40.0).faults_per_second().high, f64::INFINITY);
    assert!(lru.at(60.0).faults_per_second().high.is_finite());
}

#[test]
fn pages_in_swap_are_beyond_what_is_resident() {
    let mut what_if = WhatIf::new(Params::default());
    for second in 0..100u64 {
        let mut look = what_if.look(second * 1000);
        for page in 0..1000u64 {
            // Of the 200 pages that are out, one comes back in each look, and another one leaves.
            let is_out = page >= 800 && page % 200 != second % 200;
            let fact = match page {
                _ if is_out => Fact::Out,
                800.. => Fact::Used,
                _ if page < 600 => Fact::Used,
                _ => Fact::Idle,
            };
            look.page(page_hash(0, page), 0, PageType::Anon, fact);
        }
        look.finish(801, true);
    }
    let curves = what_if.curves();
    assert!(
        (curves.seen_per_second - 1.0).abs() < 0.1,
        "{}",
        curves.seen_per_second
    );
    let at = |percent| curves.of(Decider::Lru).at(percent).faults_per_second();
    assert!((at(90.0).likely - 1.0).abs() < 0.2, "{:?}", at(90.0));
    assert_eq!(at(150.0).likely, 0.0);
    assert!(at(150.0).high < 0.1, "{:?}", at(150.0));
}

#[test]
fn a_daemons_fits_its_bounds() {
    let looks = skewed(40);
    let what_if = observe(&looks, 4000, Params::small(Kernel::Classic));
    assert_eq!(what_if.sampled_pages(), 512);
    let share = what_if.sample.filter().share();
    assert!((0.11..0.145).contains(&share), "{share}");
}

#[test]
fn a_sample_is_sparse_once_most_of_its_memory_is_gone() {
    let mut what_if = WhatIf::new(Params::small(Kernel::Classic));
    let mut is_sparse_with = |pages: u64| {
        let mut look = what_if.look(0);
        for page in 0..pages {
            look.page(page_hash(0, page), 0, PageType::Anon, Fact::Used);
        }
        look.finish(pages, true);
        what_if.is_sparse()
    };
    assert!(!is_sparse_with(20), "all of little memory");
    assert!(!is_sparse_with(100_000));
    assert!(!is_sparse_with(50_000), "a page in 200");
    assert!(is_sparse_with(10_000));
}

/// The pages of forked processes are followed in part because of their sum, and then most turn out
/// to be shared: few are left, and the sample has room for all of them.
#[test]
fn few_pages_of_memory_that_is_followed_in_part_represent_all_of_it() {
    let mut what_if = WhatIf::new(Params::default());
    let mut look = what_if.look(0);
    for page in 0..4000 {
        look.page(page_hash(1, page), 0, PageType::Anon, Fact::Used);
    }
    for page in (0..8000).step_by(16) {
        look.page(page_hash(2, page), 4, PageType::Anon, Fact::Used);
    }
    look.finish(0, true);
    let full_pages = what_if.curves().full_bytes / PAGE_BYTES;
    assert!((11_000..13_000).contains(&full_pages), "{full_pages}");
    assert!((740..760).contains(&what_if.sampled_pages()));
    assert!(!what_if.is_sparse(), "a new sample would be no denser");
    // Those that were followed in part have ended.
    let mut look = what_if.look(1000);
    for page in 0..4000 {
        look.page(page_hash(1, page), 0, PageType::Anon, Fact::Used);
    }
    look.finish(0, true);
    assert!(what_if.sampled_pages() < 300, "it never becomes finer");
    assert!(what_if.is_sparse(), "a new one would have all 4000");
}

#[test]
fn what_is_followed_in_part_counts_as_much_as_the_rest() {
    // Half of the memory is followed whole, of the other half one page in four.
    let mut what_if = WhatIf::new(Params {
        pages: 1000,
        ..Params::default()
    });
    let mut look = what_if.look(0);
    for page in 0..20_000u64 {
        look.page(page_hash(0, page), 0, PageType::Anon, Fact::Used);
        if page % 4 == 0 {
            look.page(page_hash(1, page), 2, PageType::File, Fact::Used);
        }
    }
    look.finish(40_000, true);
    let of = |of: PageType| {
        let pages = what_if
            .sample
            .iter()
            .filter(|(_, page)| page.page_type == of);
        pages.count() as f64
    };
    let ratio = of(PageType::File) / of(PageType::Anon);
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
}

/// The curves of a loop over 100 pages, if 100 more pages come after 40 of 60 seconds.
fn loop_that_grows(every: usize) -> Curves {
    let mut what_if = WhatIf::new(Params {
        every,
        ..Params::default()
    });
    for second in 0..60u64 {
        let pages = if second < 40 { 100 } else { 200 };
        let mut look = what_if.look(second * 1000);
        for page in 0..pages {
            let is_used = page < 100 && page % 20 == second % 20;
            let fact = if is_used { Fact::Used } else { Fact::Idle };
            look.page(page_hash(0, page), 0, PageType::Anon, fact);
        }
        look.finish(pages, true);
    }
    what_if.curves()
}

#[test]
fn memory_that_grows_moves_what_was_counted() {
    let curves = loop_that_grows(1);
    assert_eq!(curves.full_bytes, 200 * 4096);
    // A loop of 100 pages: 5 faults per second below that size; above it only once, when the new
    // pages came in between.
    let below = curves.at(Decider::Lru, 80 * 4096).faults_per_second();
    assert!((below.likely - 5.0).abs() < 1.0, "{below:?}");
    let above = curves.at(Decider::Lru, 120 * 4096).faults_per_second();
    assert!((above.likely - 100.0 / 60.0).abs() < 0.3, "{above:?}");
}

#[test]
fn memory_that_grows_moves_what_was_counted_at_few_sizes() {
    let of = |curves: &Curves, policy| {
        let curve = curves.named(policy).expect("simulated");
        curve.at(28.0).faults_per_second().likely
    };
    let (all, few) = (loop_that_grows(1), loop_that_grows(6));
    for policy in POLICIES {
        let (all, few) = (of(&all, policy), of(&few, policy));
        assert!((all - few).abs() < 0.5, "{policy}: {all} {few}");
    }
}

#[test]
fn a_look_at_a_part_is_not_taken_for_less_memory() {
    let mut what_if = WhatIf::new(Params::default());
    for second in 0..60u64 {
        let is_whole = second % 10 != 5;
        let mut look = what_if.look(second * 1000);
        for page in 0..if is_whole { 1000 } else { 100 } {
            look.page(page_hash(0, page), 0, PageType::Anon, Fact::Used);
        }
        look.finish(1000, is_whole);
    }
    let curves = what_if.curves();
    for policy in POLICIES {
        let full = curves.named(policy).expect("simulated").at(100.0);
        assert_eq!(full.faults_per_second().likely, 0.0, "{policy}");
    }
}

#[test]
fn the_upper_bound_of_files_is_twice_that_of_other_memory() {
    let high = |of: PageType| {
        let mut what_if = WhatIf::new(Params::default());
        for second in 0..200 {
            let mut look = what_if.look(second * 1000);
            for page in 0..20 {
                let is_used = page == second % 20;
                let fact = if is_used { Fact::Used } else { Fact::Idle };
                look.page(page_hash(0, page), 0, of, fact);
            }
            look.finish(20, true);
        }
        what_if.curves().of(Decider::Kernel).at(52.0).faults[of as usize].high
    };
    assert!(high(PageType::Anon) > 0.9, "a loop");
    assert_eq!(high(PageType::File), 2.0 * high(PageType::Anon));
}

/// Ten pages a second that were never used before, and are not used again.
fn stream(learn_s: u64) -> Curves {
    let mut what_if = WhatIf::new(Params::default());
    what_if.look(0).finish(0, true);
    for second in 1..=learn_s + 10 {
        if second == learn_s + 1 {
            what_if.count_anew();
            what_if.expect(300);
        }
        let mut look = what_if.look(second * 1000);
        for page in 0..second * 10 {
            let is_used = page >= (second - 1) * 10;
            let fact = if is_used { Fact::Used } else { Fact::Idle };
            look.page(page_hash(0, page), 0, PageType::File, fact);
        }
        look.finish(second * 10, true);
    }
    what_if.curves()
}

#[test]
fn what_is_used_for_the_first_time_may_be_used_again() {
    let file = |curves: &Curves, percent| curves.of(Decider::Kernel).at(percent).faults[1];
    let unknown = stream(0);
    assert_eq!(file(&unknown, 52.0).likely, 0.0);
    assert_eq!(file(&unknown, 52.0).high, 10.0);
    assert_eq!(file(&unknown, 100.0).high, 0.0, "all of it is held");
    // Of 200 earlier ones none was used again: fewer than three in 200 are.
    let known = stream(20);
    assert!((file(&known, 52.0).high - 10.0 * 3.0 / 200.0).abs() < 1e-9);
}

#[test]
fn nothing_seen_is_nothing_known() {
    let what_if = WhatIf::new(Params::default());
    let point = what_if
        .curves()
        .of(Decider::Kernel)
        .at(50.0)
        .faults_per_second();
    assert_eq!((point.low, point.high), (0.0, f64::INFINITY));
}
