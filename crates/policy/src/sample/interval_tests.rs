// SPDX-License-Identifier: Apache-2.0
//! Intervals compared with the truth: simulated memory of many layouts, sampled many times.

use super::*;
use crate::mix::hash;

const BLOCK_PAGES: u64 = 16;
const LEVEL: Level = 4;
/// Samples per layout and size of bin.
const SAMPLES: u64 = 250;

/// A pseudo-random number between 0 and 1 that depends on `of` and `salt`.
fn drawn(of: u64, salt: u64) -> f64 {
    hash(hash(of) ^ salt << 48) as f64 / u64::MAX as f64
}

/// How accesses are distributed in memory.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Stretches of this many blocks, each all young or all old.
    Stretches(u64),
    /// Each page independently.
    Pages,
    /// Half of the stretches are absent; of the others only some pages are present.
    Sparse(u64),
    /// All young blocks are in one part of memory, and make up half of it.
    Region,
    /// Half of the young pages are scattered, half in whole blocks.
    Mixed,
}

impl Layout {
    /// Young and present pages of block number `at` of `blocks`, if a share `young` of all pages is
    /// young.
    fn block(self, at: u64, blocks: u64, young: f64, run: u64) -> (u64, u64) {
        let base = run << 32;
        let of = |number: u64| base + number;
        let pages = |share: f64| {
            let page = |page: &u64| drawn(of(at * BLOCK_PAGES + page), 1) < share;
            (0..BLOCK_PAGES).filter(page).count() as u64
        };
        match self {
            Layout::Stretches(length) => {
                let is_young = drawn(of(at / length), 2) < young;
                (BLOCK_PAGES * u64::from(is_young), BLOCK_PAGES)
            }
            Layout::Pages => (pages(young), BLOCK_PAGES),
            Layout::Sparse(length) => {
                let is_there = drawn(of(at / length), 3) < 0.5;
                let present = u64::from(is_there) * (hash(of(at)) % (BLOCK_PAGES + 1));
                let is_young = drawn(of(at / length), 2) < young;
                (present * u64::from(is_young), present)
            }
            Layout::Region => {
                let is_young = (at as f64) < 2.0 * young * blocks as f64 && drawn(of(at), 2) < 0.5;
                (BLOCK_PAGES * u64::from(is_young), BLOCK_PAGES)
            }
            Layout::Mixed if drawn(of(at), 2) < young / 2.0 => (BLOCK_PAGES, BLOCK_PAGES),
            Layout::Mixed => (pages(young / 2.0), BLOCK_PAGES),
        }
    }
}

/// Results of the samples of one layout.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    samples: u64,
    held: u64,
    /// Sums of the widths of the intervals, and of the squares of the errors, as shares of memory.
    widths: f64,
    errors_squared: f64,
}

fn sample(layout: Layout, blocks: u64, young: f64, run: u64, tally: &mut Tally) {
    let total = blocks << LEVEL;
    let base = run << 36;
    let area = Area {
        pages: base * BLOCK_PAGES..(base + total) * BLOCK_PAGES,
        identity: Identity::Address,
        kind: 0,
    };
    let (mut is_young, mut present) = (0, 0);
    let memory: Vec<(u64, u64)> = (0..total)
        .map(|at| layout.block(at, total, young, run))
        .inspect(|(young, all)| (is_young, present) = (is_young + young, present + all))
        .collect();
    let mut spread = Spread::new(2);
    let (mut seen_young, mut seen) = (0, 0);
    for piece in choose(&[area], LEVEL, BLOCK_PAGES, 0) {
        let (young, all) = memory[(piece.pages.start / BLOCK_PAGES - base) as usize];
        spread.add(&[young, all - young]);
        seen_young += young;
        seen += all;
    }
    let estimate = seen_young as f64 / seen as f64 * present as f64;
    let margin = spread.margins(present)[0];
    let interval = margin.around(estimate.round() as u64);
    tally.samples += 1;
    tally.held += u64::from((interval.low..=interval.high).contains(&is_young));
    tally.widths += (margin.below + margin.above) / present as f64;
    tally.errors_squared += ((estimate - is_young as f64) / present as f64).powi(2);
}

/// Bins of 0.3 to 40 % of memory in seven layouts: 95 of 100 intervals contain the truth, 92 in the
/// worst layout; and if a bin is not small, they are no wider than necessary.
#[test]
fn intervals_hold_the_truth() {
    let layouts = [
        Layout::Stretches(1),
        Layout::Stretches(4),
        Layout::Stretches(64),
        Layout::Pages,
        Layout::Sparse(4),
        Layout::Region,
        Layout::Mixed,
    ];
    let (mut held, mut samples) = (0, 0);
    for (number, layout) in (0..).zip(layouts) {
        for (size, young) in (0..).zip([0.003, 0.01, 0.03, 0.1, 0.4]) {
            let mut tally = Tally::default();
            for run in 0..SAMPLES {
                let run = (number * 8 + size) << 10 | run;
                sample(layout, 300, young, run, &mut tally);
            }
            let share = tally.held as f64 / tally.samples as f64;
            println!("{layout:?} {young}: {share:.3} {tally:?}");
            assert!(share >= 0.92, "{layout:?}, {young} young: {share}");
            held += tally.held;
            samples += tally.samples;
            if young >= 0.1 && !matches!(layout, Layout::Stretches(64)) {
                let deviation = (tally.errors_squared / tally.samples as f64).sqrt();
                let width = tally.widths / tally.samples as f64;
                assert!(
                    width < 2.0 * 1.96 * deviation * 1.5,
                    "{layout:?}, {young}: {tally:?}"
                );
            }
        }
    }
    assert!(held * 100 >= samples * 95, "{held} of {samples}");
}

#[test]
fn everything_followed_leaves_nothing_to_be_guessed() {
    let mut spread = Spread::new(2);
    spread.add(&[3, 13]);
    spread.add(&[16, 0]);
    assert_eq!(spread.margins(32), [Margin::default(); 2]);
    let open = spread.margins(3200);
    assert!(
        open.iter()
            .all(|margin| margin.below > 0.0 && margin.above > 0.0)
    );
    // One block says nothing about the others.
    let mut one = Spread::new(1);
    one.add(&[16]);
    assert_eq!(one.margins(3200)[0].below, 3200.0);
}

#[test]
fn a_bin_that_no_block_shows_may_be_small_but_not_negative() {
    let mut spread = Spread::new(2);
    (0..1000).for_each(|_| spread.add(&[0, 16]));
    let [empty, full] = spread.margins(1_600_000)[..] else {
        panic!("two bins");
    };
    assert_eq!(empty.below, 0.0);
    // About the rule of three, not much more.
    assert!((0.003..0.006).contains(&(empty.above / 1.6e6)), "{empty:?}");
    assert_eq!(full.above, 0.0);
    assert!((full.below - empty.above).abs() < 1.0, "{empty:?} {full:?}");
    assert_eq!(empty.around(0).low, 0);
}

#[test]
fn margins_of_independent_samples_add_up_as_variances_do() {
    let margin = |below, above| Margin { below, above };
    assert_eq!(margin(3.0, 5.0).plus(margin(4.0, 12.0)), margin(5.0, 13.0));
    assert_eq!(margin(3.0, 5.0).widest(), 5.0);
    assert_eq!(margin(1.0, 2.0).scaled(4096.0), margin(4096.0, 8192.0));
    let interval = margin(2.5, 7.1).around(2);
    assert_eq!((interval.low, interval.high), (0, 10));
}
