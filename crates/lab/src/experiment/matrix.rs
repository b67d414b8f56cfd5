// SPDX-License-Identifier: Apache-2.0
//! One workload under several policies, each with several seeds.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rayon::prelude::*;
use serde::Serialize;

use super::contender::Contender;
use super::machine_run::{Measured, Plan, RunError};
use super::statistics::Summary;
use crate::proactive::ProactivePlan;

/// Limit on the number of seeds.
pub const SEEDS_MAX: u64 = 100_000;

/// Results of one policy, with one run per seed.
#[derive(Clone, Debug)]
pub struct PolicyResult {
    pub policy: String,
    /// Names and meanings of the measures.
    pub measures: Vec<(&'static str, &'static str)>,
    /// Each seed with the values of the measures.
    pub runs: Vec<(u64, Measured)>,
}

/// One measure of one policy, compared with the first policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasureSummary {
    pub workload: String,
    pub policy: String,
    /// Index of the policy.
    #[serde(skip)]
    pub column: usize,
    pub measure: &'static str,
    /// Seeds.
    pub n: usize,
    pub mean: f64,
    /// Half the width of the 95 % confidence interval; None for one seed.
    pub ci95: Option<f64>,
    /// Minimum over the seeds.
    pub min: f64,
    /// Maximum over the seeds.
    pub max: f64,
    /// Ratio of the mean to the first policy's mean; None if that is 0.
    pub ratio: Option<f64>,
    /// p-value of the difference from the first policy (Welch's t-test); None for the first policy
    /// and for one seed.
    pub p: Option<f64>,
}

/// Runs all policies, each with or without an agent, with seeds `1..=seeds`, in parallel; the
/// result does not depend on the order. Calls `done` after each run. Once `stop` is set, runs end
/// early.
///
/// # Errors
/// Returns the error of the first run, in order, that is not possible.
pub fn run_columns(
    plan: &Plan,
    columns: &[(Contender, Option<ProactivePlan>)],
    seeds: u64,
    stop: &Arc<AtomicBool>,
    done: impl Fn() + Sync,
) -> Result<Vec<PolicyResult>, RunError> {
    let jobs: Vec<(usize, u64)> = (0..columns.len())
        .flat_map(|column| (1..=seeds).map(move |seed| (column, seed)))
        .collect();
    let measured: Vec<Result<Measured, RunError>> = jobs
        .par_iter()
        .map(|&(column, seed)| {
            let (policy, agent) = &columns[column];
            let plan = Plan {
                seed,
                ..plan.clone()
            };
            let measured = policy.run(&plan, agent.as_ref(), stop);
            done();
            measured
        })
        .collect();
    let mut results: Vec<PolicyResult> = columns
        .iter()
        .map(|(policy, agent)| {
            let plan = Plan {
                policy: policy.machine_policy(),
                ..plan.clone()
            };
            Ok(PolicyResult {
                policy: match agent {
                    Some(agent) => format!("{}+{}", policy.name(), agent.spec),
                    None => policy.name(),
                },
                measures: plan.measures()?,
                runs: Vec::new(),
            })
        })
        .collect::<Result<_, RunError>>()?;
    for (&(column, seed), measured) in jobs.iter().zip(measured) {
        results[column].runs.push((seed, measured?));
    }
    Ok(results)
}

/// Summarizes all measures of all policies, except measures that are unknown for a policy.
pub fn summarize(workload: &str, results: &[PolicyResult]) -> Vec<MeasureSummary> {
    let sample = |result: &PolicyResult, measure: usize| -> Vec<f64> {
        let values = result.runs.iter().map(|(_, values)| values[measure]);
        values.filter(|value| !value.is_nan()).collect()
    };
    let mut summaries = Vec::new();
    let measures = results.first().map_or(&[][..], |first| &first.measures);
    for (measure, (name, _)) in measures.iter().enumerate() {
        let first = results
            .first()
            .and_then(|result| Summary::of(&sample(result, measure)));
        for (index, result) in results.iter().enumerate() {
            let values = sample(result, measure);
            let Some(summary) = Summary::of(&values) else {
                continue;
            };
            summaries.push(MeasureSummary {
                workload: workload.to_owned(),
                policy: result.policy.clone(),
                column: index,
                measure: name,
                n: summary.n,
                mean: summary.mean,
                ci95: summary.ci95,
                min: values.iter().copied().fold(f64::INFINITY, f64::min),
                max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                ratio: first
                    .filter(|first| first.mean != 0.0)
                    .map(|first| summary.mean / first.mean),
                p: first
                    .filter(|_| index > 0)
                    .and_then(|first| summary.welch(&first)),
            });
        }
    }
    summaries
}
