// SPDX-License-Identifier: Apache-2.0
//! How far the curve allows to shrink a cgroup, and in which steps.

use super::{Bound, Curves, Decider, Estimate, Prices};

/// How far to shrink.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// To the least memory that does no harm according to this bound of the curve. With the likely
    /// value it goes further as long as measurements allow.
    Auto(Bound),
    /// To this many bytes of all charged memory.
    Bytes(u64),
}

/// What is allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// How far to shrink.
    pub goal: Goal,
    /// Share of the time that waiting may take.
    pub wait_max: f64,
    /// The cost of bringing pages back.
    pub prices: Prices,
    /// Memory charged to the cgroup that the curve does not cover: kernel memory, and page cache
    /// that no process maps. The cgroup keeps it.
    pub beyond_bytes: u64,
    /// Memory charged to it now.
    pub usage_bytes: u64,
    /// A step takes no more than this.
    pub step_bytes_max: u64,
}

/// A step of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planned {
    /// The limit.
    pub limit_bytes: u64,
    /// Predicted faults per second.
    pub faults_per_second: Estimate,
    /// Predicted waiting.
    pub wait_ratio: Estimate,
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The curve predicts harm.
    #[error(
        "{limit_bytes} bytes would cost {:.2} % of the time in waiting, {:.2} % is allowed",
        wait_ratio * 100.0, wait_max * 100.0
    )]
    Hurts {
        /// The requested limit.
        limit_bytes: u64,
        /// The predicted waiting.
        wait_ratio: f64,
        /// What is allowed.
        wait_max: f64,
    },
    /// Nothing can be taken.
    #[error("no size below its current one keeps waiting within {:.2} %", wait_max * 100.0)]
    Nothing {
        /// What is allowed.
        wait_max: f64,
    },
    /// It has no more memory than the requested limit.
    #[error("it has {usage_bytes} bytes, which is not more than {limit_bytes}")]
    Smaller {
        /// The requested limit.
        limit_bytes: u64,
        /// What it has.
        usage_bytes: u64,
    },
}

/// The steps down from the current memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps {
    /// Limits down to the goal, each a [`PARTS`]th of a step below the one before; not empty in the
    /// result of [`plan`].
    pub to_goal: Vec<Planned>,
    /// Limits below the goal, for as long as measurements allow.
    pub further: Vec<Planned>,
}

impl Steps {
    /// The limits on the way to the goal if no step does harm.
    pub fn expected(&self) -> impl Iterator<Item = &Planned> {
        let last = self.to_goal.len().checked_sub(1);
        let numbered = self.to_goal.iter().enumerate();
        numbered
            .filter(move |(at, _)| (at + 1) % PARTS == 0 || Some(*at) == last)
            .map(|(_, planned)| planned)
    }
}

/// One step takes one part in this many of the memory.
pub(super) const STEP_PART: u64 = 32;
/// Below the goal, the predicted waiting may be this many times the allowed waiting: prices are not
/// wrong by more.
pub(super) const FURTHER_FACTOR: f64 = 4.0;
/// A step can be taken in this many parts: where all of it would do harm, a part of it may not.
pub const PARTS: usize = 4;
/// The least memory that a step takes, bytes.
const STEP_BYTES_MIN: u64 = 1 << 20;

/// The steps from the current memory to the goal, and further.
///
/// # Errors
/// [`Refusal`] if there is nothing to do or it would do harm.
pub fn plan(curves: &Curves, terms: &Terms) -> Result<Steps, Refusal> {
    let planned = |limit_bytes: u64| {
        let memory = limit_bytes.saturating_sub(terms.beyond_bytes);
        let point = curves.at(Decider::Kernel, memory);
        Planned {
            limit_bytes,
            faults_per_second: point.faults_per_second(),
            wait_ratio: point.wait_ratio(terms.prices),
        }
    };
    let goal = match terms.goal {
        Goal::Bytes(bytes) => bytes,
        Goal::Auto(bound) => curves
            .least_bytes(Decider::Kernel, terms.prices, terms.wait_max, bound)
            .ok_or(Refusal::Nothing {
                wait_max: terms.wait_max,
            })?
            .saturating_add(terms.beyond_bytes),
    };
    if goal >= terms.usage_bytes {
        return Err(match terms.goal {
            Goal::Auto(_) => Refusal::Nothing {
                wait_max: terms.wait_max,
            },
            Goal::Bytes(_) => Refusal::Smaller {
                limit_bytes: goal,
                usage_bytes: terms.usage_bytes,
            },
        });
    }
    let last = planned(goal);
    if last.wait_ratio.likely > terms.wait_max {
        return Err(Refusal::Hurts {
            limit_bytes: goal,
            wait_ratio: last.wait_ratio.likely,
            wait_max: terms.wait_max,
        });
    }
    let step = (terms.usage_bytes / STEP_PART).min(terms.step_bytes_max);
    let step = step.max(STEP_BYTES_MIN);
    let part = step / PARTS as u64;
    let below = |from: u64| (1..).map(move |number| from.saturating_sub(part * number));
    let between = below(terms.usage_bytes).take_while(|at| *at > goal);
    let mut to_goal: Vec<Planned> = between.map(planned).collect();
    to_goal.push(last);
    let further = match terms.goal {
        Goal::Auto(Bound::Likely) => {
            let most = terms.wait_max * FURTHER_FACTOR;
            let below = below(goal).take_while(|at| *at > terms.beyond_bytes);
            let steps = below.map(planned);
            steps
                .take_while(|of| of.wait_ratio.likely <= most)
                .collect()
        }
        _ => Vec::new(),
    };
    Ok(Steps { to_goal, further })
}
