// SPDX-License-Identifier: Apache-2.0
//! Curves from samples of the pages.
//!
//! Source: Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015, and their
//! "Cache modeling and optimization using miniature simulations", ATC 2017. A sample has all
//! accesses to the pages whose hash falls into its range; a memory of `rate * size` pages
//! represents one of `size`. Misses are scaled by the expected number of accesses in a sample, not
//! the actual one (SHARDS-adj), and no estimate exceeds the accesses of the trace.
//!
//! Several samples of different pages are simulated; the error bar is the 95 % confidence interval
//! of their mean (Student's t). It only reflects the selection of pages, and does not cover sizes
//! for which `rate * size` is a handful of pages.

use rayon::prelude::*;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::{Curve, Point, StackDistances, possible};
use crate::yardstick::Yardstick;
use crate::{AccessStream, DenseTrace, PageIndex, TraceError, hash};

/// How pages are sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingPlan {
    /// Share of the pages in each sample, above 0; `rate * samples` is at most 1.
    pub rate: f64,
    /// Number of samples, 2 to [`SamplingPlan::SAMPLES_MAX`].
    pub samples: usize,
}

impl SamplingPlan {
    /// Limit on the number of samples: each has an index of its pages.
    pub const SAMPLES_MAX: usize = 1000;

    /// A valid plan.
    ///
    /// # Errors
    /// The reason why the plan is invalid.
    pub fn new(rate: f64, samples: usize) -> Result<Self, String> {
        if !(2..=Self::SAMPLES_MAX).contains(&samples) {
            let most = Self::SAMPLES_MAX;
            return Err(format!(
                "error bars need at least 2 samples, and at most {most}"
            ));
        }
        if !(rate > 0.0 && rate * samples as f64 <= 1.0) {
            return Err(format!(
                "{samples} samples of {rate} of the pages each: the rate has to be above 0, and \
                 all samples together at most 1"
            ));
        }
        Ok(Self { rate, samples })
    }

    /// The sample that a page belongs to, if any.
    fn sample_of(&self, page: u64) -> Option<usize> {
        // An f64 represents 53 bits exactly.
        let place = (hash(page) >> 11) as f64 / (1u64 << 53) as f64;
        let sample = (place / self.rate) as usize;
        (sample < self.samples).then_some(sample)
    }
}

/// The samples of a trace.
#[derive(Debug)]
pub struct Samples {
    plan: SamplingPlan,
    traces: Vec<DenseTrace>,
    accesses: u64,
}

impl Samples {
    /// Number of accesses in the whole trace.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Number of different pages in the whole trace, estimated from all samples.
    #[must_use]
    pub fn footprint_pages(&self) -> u64 {
        let sampled: usize = self.traces.iter().map(DenseTrace::page_count).sum();
        (sampled as f64 / (self.plan.rate * self.plan.samples as f64)).round() as u64
    }

    /// Number of pages in the smallest sample.
    #[must_use]
    pub fn smallest_sample_pages(&self) -> usize {
        self.traces
            .iter()
            .map(DenseTrace::page_count)
            .min()
            .unwrap_or(0)
    }
}

/// Reads a stream once and keeps the accesses of the sampled pages, 4 bytes each.
///
/// # Errors
/// Those of reading.
pub fn read_samples(stream: &mut AccessStream, plan: SamplingPlan) -> Result<Samples, TraceError> {
    let mut indices: Vec<PageIndex> = (0..plan.samples).map(|_| PageIndex::new()).collect();
    let mut numbers: Vec<Vec<u32>> = vec![Vec::new(); plan.samples];
    let (mut batch, mut accesses) = (Vec::new(), 0);
    while stream.next_batch(&mut batch)? {
        accesses += batch.len() as u64;
        for access in &batch {
            if let Some(sample) = plan.sample_of(access.page)
                && let Some(number) = indices[sample].number(access.page)
            {
                numbers[sample].push(number);
            }
        }
        let kept = indices.iter().map(PageIndex::memory_bytes).sum::<usize>()
            + numbers.iter().map(|n| size_of_val(&**n)).sum::<usize>();
        stream.check_memory(kept)?;
    }
    let traces = indices
        .into_iter()
        .zip(numbers)
        .map(|(index, accesses)| DenseTrace::from_parts(accesses, index.into_pages()))
        .collect();
    Ok(Samples {
        plan,
        traces,
        accesses,
    })
}

/// Estimates the misses of policies at these sizes.
#[must_use]
pub fn sampled(
    name: &str,
    samples: &Samples,
    policies: &[impl Yardstick],
    sizes: &[usize],
) -> Vec<Curve> {
    let rate = samples.plan.rate;
    let scaled = |size: usize| ((size as f64 * rate).round() as usize).max(1);
    let sizes_of = |spec| possible(spec, sizes, scaled);
    let jobs: Vec<(usize, usize)> = (0..policies.len())
        .flat_map(|policy| (0..samples.traces.len()).map(move |sample| (policy, sample)))
        .collect();
    let misses: Vec<Vec<u64>> = jobs
        .par_iter()
        .with_max_len(1)
        .map(|&(policy, sample)| {
            let (spec, trace) = (&policies[policy], &samples.traces[sample]);
            let scaled: Vec<usize> = sizes_of(spec).into_iter().map(scaled).collect();
            if spec.is_stack() {
                StackDistances::of(trace).misses(&scaled)
            } else {
                let misses = |&size: &usize| spec.misses(trace, size);
                scaled.iter().map(misses).collect()
            }
        })
        .collect();
    let of_policy = misses.chunks(samples.traces.len());
    policies
        .iter()
        .zip(of_policy)
        .map(|(spec, by_sample)| Curve {
            trace: name.to_string(),
            policy: spec.name().to_string(),
            accesses: samples.accesses,
            footprint_pages: samples.footprint_pages(),
            sampling_rate: Some(rate),
            points: points(&sizes_of(spec), by_sample, samples),
        })
        .collect()
}

/// One point per size, from the misses in each sample.
fn points(sizes: &[usize], by_sample: &[Vec<u64>], samples: &Samples) -> Vec<Point> {
    let rate = samples.plan.rate;
    let point = |(at, &size_pages): (usize, &usize)| {
        let estimates = by_sample.iter().map(|misses| misses[at] as f64 / rate);
        let (misses, misses_error) = mean_and_error(&estimates.collect::<Vec<f64>>());
        Point {
            size_pages,
            // Samples with hot pages have more accesses than expected. Only their mean is cut off:
            // with each of them cut off, it would be too low.
            misses: misses.min(samples.accesses as f64),
            misses_error,
        }
    };
    sizes.iter().enumerate().map(point).collect()
}

/// The mean and half the width of its 95 % confidence interval.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (count - 1.0);
    let quantile = StudentsT::new(0.0, 1.0, count - 1.0)
        .map_or(f64::INFINITY, |student| student.inverse_cdf(0.975));
    (mean, quantile * (variance / count).sqrt())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::curve::exact;
    use crate::yardstick;
    use crate::{Input, ReadOptions, registry};

    /// A skewed trace over 60,000 pages, where the probability of page `p` decreases with p.
    fn pages() -> Vec<u64> {
        (0..400_000u64)
            .map(|at| {
                let random = hash(at) >> 11;
                let uniform = random as f64 / (1u64 << 53) as f64;
                (uniform * uniform * 60_000.0) as u64
            })
            .collect()
    }

    fn samples(pages: &[u64], plan: SamplingPlan) -> Samples {
        let text: String = pages.iter().map(|page| format!("{page}\n")).collect();
        let format = registry::by_name("lirs").unwrap();
        let path = Path::new("test");
        let input = Input::from_reader(path, std::io::Cursor::new(text.into_bytes())).unwrap();
        let reader = (format.open)(input, &ReadOptions::default()).unwrap();
        read_samples(&mut AccessStream::new(path, format, reader), plan).unwrap()
    }

    #[test]
    fn estimates_are_near_the_counts() {
        let pages = pages();
        let policies = [
            yardstick::by_name("lru").unwrap(),
            yardstick::by_name("clock").unwrap(),
        ];
        let sizes = [3000, 12_000, 30_000];
        let trace = DenseTrace::from_pages(&pages);
        let counted = exact("t", &trace, &policies, &sizes);
        let samples = samples(&pages, SamplingPlan::new(0.05, 8).unwrap());
        assert_eq!(samples.accesses(), 400_000);
        let footprint = trace.page_count() as f64;
        assert!((samples.footprint_pages() as f64 - footprint).abs() < 0.03 * footprint);
        for (counted, estimated) in counted
            .iter()
            .zip(sampled("t", &samples, &policies, &sizes))
        {
            for (count, estimate) in counted.points.iter().zip(&estimated.points) {
                let (count, _) = counted.ratio(count).unwrap();
                let (estimate, error) = estimated.ratio(estimate).unwrap();
                assert!(error > 0.0 && error < 0.05, "{error}");
                let off = (count - estimate).abs();
                assert!(
                    off < (2.0 * error).max(0.01),
                    "{} {off} {error}",
                    counted.policy
                );
            }
        }
    }

    /// Two hot pages in one of the samples, which therefore has ten times the expected accesses.
    #[test]
    fn no_more_than_all_accesses_miss() {
        let plan = SamplingPlan::new(0.05, 2).unwrap();
        let mut hot = (0..).filter(|&page| plan.sample_of(page) == Some(0));
        let hot = [hot.next().unwrap(), hot.next().unwrap()];
        let pages: Vec<u64> = hot.into_iter().cycle().take(1000).collect();
        let policies = [
            yardstick::by_name("lru").unwrap(),
            yardstick::by_name("fifo").unwrap(),
        ];
        for curve in sampled("t", &samples(&pages, plan), &policies, &[1, 20]) {
            let (ratio, error) = curve.ratio(&curve.points[0]).unwrap();
            assert_eq!(ratio, 1.0, "{}", curve.policy);
            assert!(error > 1.0, "{error}");
        }
    }

    #[test]
    fn plans_that_cannot_be() {
        assert!(SamplingPlan::new(0.2, 8).is_err());
        assert!(SamplingPlan::new(0.0, 8).is_err());
        assert!(SamplingPlan::new(0.1, 1).is_err());
        assert!(SamplingPlan::new(1e-12, 1_000_000_000_000).is_err());
        assert!(SamplingPlan::new(f64::NAN, 4).is_err());
    }

    /// Three values 1, 2, 3: mean 2, standard error 1 / sqrt(3), t(0.975, 2) = 4.3027.
    #[test]
    fn the_interval_is_students() {
        let (mean, error) = mean_and_error(&[1.0, 2.0, 3.0]);
        assert_eq!(mean, 2.0);
        assert!((error - 4.3027 / 3f64.sqrt()).abs() < 1e-3);
    }
}
