// SPDX-License-Identifier: Apache-2.0
//! The model compared with a plain one, and its guarantees.

use proptest::prelude::*;

use super::*;

/// Shows the model pages `0..touched.len()` once.
fn look(model: &mut ReuseModel, pages: &mut [PageHistory], touched: impl Fn(usize) -> bool) {
    let mut look = model.look();
    look.shift(pages);
    for (number, word) in pages.chunks_mut(64).enumerate() {
        let bit = |at: usize| u64::from(touched(64 * number + at)) << at;
        let bits = (0..word.len()).map(bit).fold(0, |bits, bit| bits | bit);
        look.word(number as u64, word, bits);
    }
    look.finish();
}

fn every_page() -> ReuseParams {
    ReuseParams {
        sample_pages: u64::MAX,
        ..ReuseParams::default()
    }
}

/// Without evidence, pages of the same hotness are in order of recency.
#[test]
fn it_is_lru_while_it_knows_nothing() {
    let mut model = ReuseModel::new(ReuseParams::default());
    let mut pages = vec![PageHistory::default(); 100];
    for now in 0..100 {
        let look = model.look();
        look.shift(&mut pages);
        // The page was touched, but the model did not observe it.
        pages[now].level = look.model.scale.after_access(0);
        pages[now].touched = look.model.now;
        look.finish();
    }
    let values: Vec<Value> = pages
        .iter()
        .map(|page| model.value_untouched(*page))
        .collect();
    assert!(values.is_sorted(), "{values:?}");
    assert!(values[99] > values[50] && values[50] > values[0]);
    assert_eq!(model.value_untouched(PageHistory::default()), VALUE_UNKNOWN);
}

/// In a loop, a page is worth more the longer it has been idle; LRU has it the other way round.
#[test]
fn in_a_loop_the_oldest_is_worth_most() {
    let mut model = ReuseModel::new(every_page());
    let mut pages = vec![PageHistory::default(); 16];
    for now in 0..400 {
        look(&mut model, &mut pages, |page| page == now % 16);
    }
    // Page 15 was touched last, page 0 is next.
    let values: Vec<Value> = pages
        .iter()
        .map(|page| model.value_untouched(*page))
        .collect();
    assert!(values[0] > values[14], "{values:?}");
    assert!(
        values.windows(2).all(|pair| pair[0] >= pair[1] - 4),
        "{values:?}"
    );
}

/// Pages that a scan brings in and that are never touched again are worth less than used pages.
#[test]
fn what_a_scan_brings_in_is_worth_less_than_what_is_used() {
    let mut model = ReuseModel::new(every_page());
    let mut pages = vec![PageHistory::default(); 3100];
    for now in 0..100 {
        look(&mut model, &mut pages, |page| match page {
            0..100 => (page + now) % 3 == 0,
            _ => (page - 100) / 30 == now,
        });
    }
    let new = model.value_touched(PageHistory::default());
    let used: Vec<Value> = pages[..100]
        .iter()
        .map(|page| model.value_untouched(*page))
        .collect();
    assert!(used.iter().all(|value| *value > new), "{new} {used:?}");
}

/// After a million looks, a page that is touched at each of them is as hot as ever, and nothing
/// overflowed. Random rounding moves it up and down by a fraction of an octave.
#[test]
fn nothing_drifts_over_a_million_looks() {
    const LOOKS: u32 = 1_000_000;
    let mut model = ReuseModel::new(every_page());
    let mut pages = [PageHistory::default(); 3];
    let mut hotness: [Vec<f64>; 2] = Default::default();
    for now in 0..LOOKS {
        let mut look = model.look();
        look.shift(&mut pages);
        let touched = 1 | u64::from(now % 50 == 0) << 1 | u64::from(now == 0) << 2;
        look.word(0, &mut pages, touched);
        // The index is updated only now and then; updating it each time would take minutes.
        if now % 997 == 0 {
            look.finish();
        }
        if now >= 1000 && now % 97 == 0 {
            hotness[(now >= LOOKS / 2) as usize].push(f64::from(model.hotness(pages[0])));
        }
        if now >= 1000 && now % 997 == 0 {
            assert!(model.value_untouched(pages[0]) > model.value_untouched(pages[1]));
            assert!(model.value_untouched(pages[1]) > model.value_untouched(pages[2]));
        }
    }
    // 1 / (1 - 0.99) = 100 touches, log2 6.64; rounding to levels reduces it a little.
    let means = hotness.map(|seen| {
        assert!(seen.iter().all(|hotness| (hotness - 6.64).abs() < 1.2));
        seen.iter().sum::<f64>() / seen.len() as f64
    });
    assert!((means[0] - means[1]).abs() < 0.1, "{means:?}");
    assert!((means[1] - 6.64).abs() < 0.35, "{means:?}");
}

/// However many pages there are, about the same number teach the model, and always the same ones.
#[test]
fn the_sample_is_bounded_and_part_of_the_larger_one() {
    let mut model = ReuseModel::new(ReuseParams {
        sample_pages: 1000,
        ..ReuseParams::default()
    });
    let mut pages = vec![PageHistory::default(); 100_000];
    let mut before = vec![u64::MAX; pages.len() / 64];
    for _ in 0..20 {
        look(&mut model, &mut pages, |_| true);
        for (word, before) in before.iter_mut().enumerate() {
            let sampled = model.sampled(word as u64);
            assert_eq!(sampled & !*before, 0);
            *before = sampled;
        }
    }
    let sampled: u32 = before.iter().map(|word| word.count_ones()).sum();
    assert!((250..=1000).contains(&sampled), "{sampled}");
}

/// The exact values that the two bytes represent.
#[derive(Clone, Copy, Default)]
struct Plain {
    hotness_at_touch: f64,
    touched: Option<u32>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Ages are exact up to the looks that are kept, and hotness up to the rounding of its byte.
    #[test]
    fn histories_are_those_of_a_plain_model(
        touches in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 4), 1..600),
        decay in 0.9..0.995f64,
    ) {
        let mut model = ReuseModel::new(ReuseParams { decay, ..every_page() });
        let mut pages = [PageHistory::default(); 4];
        let mut plain = [Plain::default(); 4];
        for (now, touches) in touches.iter().enumerate() {
            look(&mut model, &mut pages, |page| touches[page]);
            for (plain, is_touched) in plain.iter_mut().zip(touches) {
                if *is_touched {
                    let since = plain.touched.map_or(0, |at| now as u32 - at);
                    plain.hotness_at_touch =
                        plain.hotness_at_touch * decay.powi(since as i32) + 1.0;
                    plain.touched = Some(now as u32);
                }
            }
            for (page, plain) in pages.iter().zip(&plain) {
                let Some(touched) = plain.touched else {
                    prop_assert_eq!(*page, PageHistory::default());
                    continue;
                };
                let age = now as u32 - touched;
                if age < u32::from(LOOKS_SHIFT) {
                    prop_assert_eq!(u32::from(model.age(*page)), age);
                    let error = f64::from(model.hotness(*page)) - plain.hotness_at_touch.log2();
                    prop_assert!(error.abs() < 1.0, "age {} error {}", age, error);
                } else {
                    prop_assert!(model.age(*page) >= LOOKS_SHIFT);
                }
            }
        }
    }

    /// A hazard is a probability, and every value is that of a page that was touched.
    #[test]
    fn hazards_are_probabilities(
        seen in proptest::collection::vec((0..CLASSES, 1..AGE_BUCKETS, any::<bool>()), 0..2000),
    ) {
        let mut exposures = Exposures::default();
        for (class, bucket, is_touched) in seen {
            exposures.add(class, bucket, is_touched);
        }
        for hazard in exposures.hazards().iter().flat_map(|of_class| &of_class[1..]) {
            prop_assert!(*hazard > 0.0 && *hazard < 1.0, "{}", hazard);
        }
        let index = Index::of(&exposures);
        for bucket in 1..AGE_BUCKETS {
            prop_assert!(index.value(0.0, bucket) <= 0);
            prop_assert!(index.value(0.0, bucket) > VALUE_UNKNOWN);
        }
    }
}
