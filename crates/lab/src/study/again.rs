// SPDX-License-Identifier: Apache-2.0
//! Running a result again from its own description.

use agewise_policy::proactive::Spec;
use agewise_policy::table::PAGE_BYTES;
use agewise_trace::curve::{SamplingPlan, SizeSpec};

use super::base::Base;
use super::curve::CurveRequest;
use super::description::{CurveCell, Described, Origin, RunCell};
use super::error::StudyError;
use super::options;
use super::run::RunRequest;
use super::setup::{Setup, parse_contender_at};
use crate::proactive::Sight;
use crate::yardstick;

/// Groups consecutive cells that one request runs: the same workload or trace and conditions.
pub fn groups<C>(cells: &[Described<C>], is_same: impl Fn(&C, &C) -> bool) -> Vec<&[Described<C>]> {
    let same =
        |a: &Described<C>, b: &Described<C>| a.origin == b.origin && is_same(&a.cell, &b.cell);
    cells.chunk_by(same).collect()
}

/// Whether two policies belong to the same comparison.
#[must_use]
pub fn is_same_run(a: &RunCell, b: &RunCell) -> bool {
    let without_policy = |cell: &RunCell| RunCell {
        policy: String::new(),
        policy_sha256: None,
        policy_profile: None,
        agent: None,
        ..cell.clone()
    };
    without_policy(a) == without_policy(b)
}

/// Whether two curves were computed together.
#[must_use]
pub fn is_same_curve(a: &CurveCell, b: &CurveCell) -> bool {
    (&a.trace, &a.sizes_pages, a.sampling_rate, a.samples)
        == (&b.trace, &b.sizes_pages, b.sampling_rate, b.samples)
}

/// The request that produced these cells.
///
/// # Errors
/// Fails if something they name does not exist here.
pub fn run_request(cells: &[Described<RunCell>], base: &Base) -> Result<RunRequest, StudyError> {
    let first = cells
        .first()
        .ok_or_else(|| StudyError::argument("the result has no cell"))?;
    let (setup, sight) = setup_of(&first.origin, base)?;
    let setup = Setup {
        memory: Some(format!("{}p", first.cell.memory_bytes / PAGE_BYTES)),
        swap: Some(first.cell.swap.clone()),
        settings: first
            .cell
            .settings
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        damon: first.cell.damon.clone(),
        ..setup
    };
    let mut columns = Vec::new();
    for of in cells {
        let agent = of.cell.agent.as_deref().map(str::parse::<Spec>).transpose();
        let agent = agent.map_err(|error| StudyError::Argument(error.to_string()))?;
        let policy = of.cell.described();
        let contender =
            base.with_profile(policy, |profile| parse_contender_at(policy.name, profile))??;
        columns.push((contender, agent));
    }
    let seeds = first.cell.seeds.strip_prefix("1-");
    let seeds = seeds.and_then(|last| last.parse().ok()).ok_or_else(|| {
        StudyError::Argument(format!("seeds are 1-N, not `{}`", first.cell.seeds))
    })?;
    Ok(RunRequest {
        setup,
        subject: base.source(&first.origin)?,
        columns,
        sight,
        seeds: Some(seeds),
        build: base.build.clone(),
    })
}

/// The request that produced these curves.
///
/// # Errors
/// Fails if something they name does not exist here.
pub fn curve_request(
    cells: &[Described<CurveCell>],
    base: &Base,
) -> Result<CurveRequest, StudyError> {
    let first = cells
        .first()
        .ok_or_else(|| StudyError::argument("the result has no curve"))?;
    let (setup, _) = setup_of(&first.origin, base)?;
    let cell = &first.cell;
    let sampling = match (cell.sampling_rate, cell.samples) {
        (Some(rate), Some(samples)) => {
            let plan = SamplingPlan::new(rate, samples as usize);
            Some(plan.map_err(StudyError::Argument)?)
        }
        _ => None,
    };
    let policy = |cell: &CurveCell| {
        let policy = cell.described();
        base.with_profile(policy, |profile| yardstick::parse_at(policy.name, profile))?
            .map_err(StudyError::Argument)
    };
    let policies = cells.iter().map(|of| policy(&of.cell));
    let pages = |pages: &u64| SizeSpec::Pages(*pages as usize);
    Ok(CurveRequest {
        trace: base.source(&first.origin)?,
        reading: setup.reading,
        policies: policies.collect::<Result<_, _>>()?,
        sizes: cell.sizes_pages.iter().map(pages).collect(),
        points: 1,
        sampling,
        build: base.build.clone(),
    })
}

fn setup_of(origin: &Origin, base: &Base) -> Result<(Setup, Sight), StudyError> {
    let mut setup = Setup::default();
    let mut sight = Sight::default();
    options::from_text(&origin.options, &mut setup, &mut sight)?;
    setup.reading.limits = base.limits;
    if let Some(manifest) = &mut setup.reading.manifest {
        *manifest = base.manifest(manifest);
    }
    Ok((setup, sight))
}
