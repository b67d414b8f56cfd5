// SPDX-License-Identifier: Apache-2.0
//! What something costs an exerciser: spans with and without it, in pairs of random order.

use std::time::Instant;

use anyhow::Context;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::statistics::{Change, median};
use crate::exercise::spawned::Spawned;

/// Operations per second in one span: of time, and of the exerciser's CPU time, which excludes time
/// taken by other programs.
pub(super) type Rates = (f64, f64);

/// The rates in both spans of each pair: without, and with.
#[derive(Default)]
pub(super) struct Pairs {
    by_time: Vec<(f64, f64)>,
    by_cpu: Vec<(f64, f64)>,
}

impl Pairs {
    /// Measures so many pairs; `span` is called with whether it is a span with.
    pub fn measure(
        count: usize,
        mut span: impl FnMut(bool) -> anyhow::Result<Rates>,
    ) -> anyhow::Result<Self> {
        let mut rng = Pcg64::seed_from_u64(1);
        let mut pairs = Pairs::default();
        for _ in 0..count {
            let with_first: bool = rng.random();
            let mut rates = [(0.0, 0.0); 2];
            for is_with in [with_first, !with_first] {
                rates[usize::from(is_with)] = span(is_with)?;
            }
            pairs.by_time.push((rates[0].0, rates[1].0));
            pairs.by_cpu.push((rates[0].1, rates[1].1));
        }
        Ok(pairs)
    }

    /// Median operations per second without and with.
    pub fn medians(&self) -> [f64; 2] {
        let (without, with): (Vec<f64>, Vec<f64>) = self.by_time.iter().copied().unzip();
        [median(&without), median(&with)]
    }

    /// The change of operations per second, and that of operations per second of CPU time.
    pub fn changes(&self) -> anyhow::Result<[Change; 2]> {
        let change = Change::of_pairs(&self.by_time).context("at least three pairs are needed")?;
        let cpu =
            Change::of_pairs(&self.by_cpu).context("the exerciser's CPU time is not known")?;
        Ok([change, cpu])
    }
}

/// The exerciser's rates during a span, and what that returns.
pub(super) fn rates<T>(
    exerciser: &Spawned,
    span: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Rates, T)> {
    let (begin, ops) = (Instant::now(), exerciser.truth().ops());
    let cpu_ns = exerciser.cpu_ns().unwrap_or(0);
    let made = span()?;
    let (length, done) = (begin.elapsed(), (exerciser.truth().ops() - ops) as f64);
    let cpu_ns = exerciser.cpu_ns().unwrap_or(0).saturating_sub(cpu_ns);
    let by_cpu = match cpu_ns {
        0 => 0.0,
        ns => done * 1e9 / ns as f64,
    };
    Ok(((done / length.as_secs_f64(), by_cpu), made))
}
