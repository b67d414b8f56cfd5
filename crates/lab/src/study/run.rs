// SPDX-License-Identifier: Apache-2.0
//! Policies compared on the simulated machine, as in `agewise lab run`.

use agewise_policy::table::PAGE_BYTES;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use agewise_policy::proactive::{Controller, Spec};

use super::description::{Described, ORDER_UNKNOWN, Origin, PROFILE, RunCell};
use super::error::StudyError;
use super::setup::{Named, Setup};
use super::table::{Column, Kind, Table, Value};
use crate::experiment::contender::Contender;
use crate::experiment::machine_run::{Plan, Run, RunError, Subject};
use crate::experiment::matrix::{self, MeasureSummary, PolicyResult, SEEDS_MAX};
use crate::experiment::replay::Through;
use crate::machine::device::DeviceKind;
use crate::machine::tracing::EventTrace;
use crate::proactive::{ProactivePlan, Sight};

/// Default number of seeds for a workload.
const WORKLOAD_SEEDS: u64 = 10;
/// Default number of seeds for a trace: rising, falling and shuffled, if its order is unknown.
const TRACE_SEEDS: u64 = 3;

/// What to run.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// Machine and reading.
    pub setup: Setup,
    /// The workload or trace.
    pub subject: String,
    /// Policies, each with an agent or without; all are compared with the first.
    pub columns: Vec<(Contender, Option<Spec>)>,
    /// Access source of the agents.
    pub sight: Sight,
    /// Number of seeds, 1 to [`SEEDS_MAX`]; None for 10 with a workload and 3 with a trace.
    pub seeds: Option<u64>,
    /// The commit of this build, or `unknown`.
    pub build: String,
}

/// Result of a request.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// What ran.
    pub subject: Subject,
    /// `memory.max`, in pages.
    pub memory_pages: u64,
    /// Number of seeds.
    pub seeds: u64,
    /// All runs, by column.
    pub results: Vec<PolicyResult>,
    /// Description of each column.
    pub cells: Vec<Described<RunCell>>,
    /// Remarks on the machine and the agents.
    pub remarks: Vec<String>,
}

/// Says which agents moved nothing with any seed: their columns only show what looking costs.
fn idle_agents(columns: &[(Contender, Option<Spec>)], results: &[PolicyResult]) -> Vec<String> {
    let is_idle = |result: &PolicyResult| {
        let out = result
            .measures
            .iter()
            .position(|(name, _)| *name == "agent_out");
        out.is_some_and(|out| result.runs.iter().all(|(_, values)| values[out] == 0.0))
    };
    let with_agent = columns
        .iter()
        .zip(results)
        .filter(|((_, agent), _)| agent.is_some());
    let idle = with_agent.filter(|(_, result)| is_idle(result));
    idle.map(|(_, result)| format!("{}: the agent moved nothing out", result.policy))
        .collect()
}

impl RunRequest {
    /// Runs all columns with all seeds, in parallel. Calls `done` after each run with the total
    /// number of runs. Once `stop` is set, runs in progress end soon and no others start.
    ///
    /// # Errors
    /// Fails if something cannot be run; [`StudyError::Stopped`] if it was stopped.
    pub fn run(
        &self,
        stop: &Arc<AtomicBool>,
        done: impl Fn(u64) + Sync,
    ) -> Result<RunOutcome, StudyError> {
        self.run_on(&self.setup.subject(&self.subject)?, stop, done)
    }

    /// Like [`RunRequest::run`], on a subject that was read before.
    ///
    /// # Errors
    /// The same as those of [`RunRequest::run`].
    pub fn run_on(
        &self,
        named: &Named,
        stop: &Arc<AtomicBool>,
        done: impl Fn(u64) + Sync,
    ) -> Result<RunOutcome, StudyError> {
        let (first, _) = self
            .columns
            .first()
            .ok_or_else(|| StudyError::argument("no policy given"))?;
        let (plan, mut remarks) = self.setup.plan(&named.subject, first.machine_policy(), 1)?;
        self.check_agents(&named.subject)?;
        let seeds = self.seeds.unwrap_or(match named.subject {
            Subject::Workload(_) => WORKLOAD_SEEDS,
            Subject::Trace(..) => TRACE_SEEDS,
        });
        if !(1..=SEEDS_MAX).contains(&seeds) {
            return Err(StudyError::Argument(format!(
                "seeds: from 1 to {SEEDS_MAX}"
            )));
        }
        let memory_pages = match plan.memory_pages {
            Some(pages) => pages,
            None => named.subject.memory_pages()?,
        };
        let columns: Vec<(Contender, Option<ProactivePlan>)> = self
            .columns
            .iter()
            .map(|(policy, spec)| (policy.clone(), spec.as_ref().map(|spec| self.agent(spec))))
            .collect();
        let total = seeds * columns.len() as u64;
        let results = matrix::run_columns(&plan, &columns, seeds, stop, || done(total));
        let results = results.map_err(|error| self.error(error))?;
        remarks.extend(self.unused(&plan));
        remarks.extend(idle_agents(&self.columns, &results));
        let cells = self.describe(named, &plan, memory_pages, seeds, &results);
        Ok(RunOutcome {
            subject: named.subject.clone(),
            memory_pages,
            seeds,
            results,
            cells,
            remarks,
        })
    }

    /// What reclaim does, event by event, in the run of the first policy with seed 1, which is
    /// repeated for this.
    ///
    /// # Errors
    /// Fails if something cannot be run; [`StudyError::Stopped`] if it was stopped.
    pub fn event_trace(
        &self,
        subject: &Subject,
        stop: &Arc<AtomicBool>,
    ) -> Result<EventTrace, StudyError> {
        let Some((Contender::Kernel(policy), agent)) = self.columns.first() else {
            return Err(StudyError::argument(
                "yardsticks have no tracepoints: name a policy of the machine first",
            ));
        };
        let (mut plan, _) = self.setup.plan(subject, *policy, 1)?;
        plan.proactive = agent.as_ref().map(|spec| self.agent(spec));
        let trace = || {
            let mut run = Run::new(&plan)?;
            run.machine.trace_events();
            run.run_to_end(stop)?;
            Ok(run.machine.take_event_trace())
        };
        trace().map_err(|error| self.error(error))
    }

    fn agent(&self, spec: &Spec) -> ProactivePlan {
        ProactivePlan {
            spec: spec.clone(),
            sight: self.sight,
            truth: self.sight != Sight::Generations,
        }
    }

    fn error(&self, error: RunError) -> StudyError {
        match error {
            RunError::Stopped => StudyError::Stopped,
            source => StudyError::Run {
                name: self.subject.clone(),
                source: Box::new(source),
            },
        }
    }

    /// Checks that agents can act here, and that one that reads page tables has mapped memory to
    /// find there.
    fn check_agents(&self, subject: &Subject) -> Result<(), StudyError> {
        let mut agents = self.columns.iter().filter_map(|(_, agent)| agent.as_ref());
        agents.try_for_each(require_agent)?;
        let has_agent = self.columns.iter().any(|(_, agent)| agent.is_some());
        match subject {
            Subject::Trace(replay, _)
                if has_agent
                    && self.sight == Sight::PageTables
                    && replay.anon_pages() == 0
                    && replay.through == Through::Descriptor =>
            {
                Err(StudyError::argument(format!(
                    "{}: nothing of it is mapped, so an agent that reads page tables sees nothing; \
                     --sight page-cache sees it, --access mapped replays it as mapped memory",
                    self.subject
                )))
            }
            _ => Ok(()),
        }
    }

    fn describe(
        &self,
        named: &Named,
        plan: &Plan,
        memory_pages: u64,
        seeds: u64,
        results: &[PolicyResult],
    ) -> Vec<Described<RunCell>> {
        let origin = self
            .setup
            .origin(&self.subject, named, self.sight, &self.build);
        let settings = self.setup.settings_text();
        let swap = plan.swap.unwrap_or_else(|| named.subject.swap());
        let cell =
            |(result, (policy, agent)): (&PolicyResult, &(Contender, Option<Spec>))| RunCell {
                workload: named.subject.name().to_owned(),
                policy: result.policy.clone(),
                policy_sha256: policy.sha256().map(str::to_owned),
                policy_profile: policy.text().map(str::to_owned),
                agent: agent.as_ref().map(Spec::to_string),
                memory_bytes: memory_pages * PAGE_BYTES,
                swap: swap.map_or("none", DeviceKind::name).to_owned(),
                settings: settings.clone(),
                damon: self.setup.damon.clone(),
                seeds: format!("1-{seeds}"),
            };
        let cells = results.iter().zip(&self.columns).map(cell);
        let described = |cell| Described {
            cell,
            origin: origin.clone(),
        };
        cells.map(described).collect()
    }
}

/// Refuses an agent that can do nothing in the lab.
pub(super) fn require_agent(agent: &Spec) -> Result<(), StudyError> {
    if Controller::new(agent).shrinks().is_none() {
        return Ok(());
    }
    Err(StudyError::argument(format!(
        "{agent} can do nothing in the lab, which keeps no curves while it runs: `agewise daemon` \
         and `agewise shrink` hold cgroups small"
    )))
}

impl RunOutcome {
    /// What is to be said about the runs, the machine and the trace.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let of_trace = self.subject.notes();
        let notes = self.remarks.iter().chain(of_trace).cloned();
        self.killed().into_iter().chain(notes).collect()
    }

    /// In how many runs programs were killed for lack of memory, if in any: figures of such runs
    /// lack what these programs would have done.
    #[must_use]
    pub fn killed(&self) -> Option<String> {
        let is_kill = |(of, value): (&(&str, &str), &f64)| of.0 == "oom_kills" && *value > 0.0;
        let has_kill = |result: &PolicyResult, measured: &[f64]| {
            result.measures.iter().zip(measured).any(is_kill)
        };
        let count = |result: &PolicyResult| {
            let runs = result.runs.iter();
            runs.filter(|(_, measured)| has_kill(result, &measured[..]))
                .count()
        };
        let killed: usize = self.results.iter().map(count).sum();
        let all: usize = self.results.iter().map(|result| result.runs.len()).sum();
        (killed > 0).then(|| {
            format!(
                "{}: programs were killed for lack of memory in {killed} of {all} runs",
                self.subject.name()
            )
        })
    }

    /// All measures of all policies, compared with the first policy. Where the seeds are orders in
    /// which a trace may have been made, they are no sample of anything: there is a range, but
    /// neither an interval nor a test.
    #[must_use]
    pub fn summaries(&self) -> Vec<MeasureSummary> {
        let mut summaries = matrix::summarize(self.subject.name(), &self.results);
        if self.subject.has_unknown_order() {
            for summary in &mut summaries {
                (summary.ci95, summary.p) = (None, None);
            }
        }
        summaries
    }

    /// A table with one row per policy and measure.
    #[must_use]
    pub fn summary_table(&self) -> Table {
        let mut columns = vec![
            Column::new("workload", Kind::Text),
            Column::new("policy", Kind::Text),
            Column::new("measure", Kind::Text),
            Column::new("n", Kind::Count),
            Column::new("mean", Kind::Number),
            Column::optional("ci95", Kind::Number),
            Column::new("min", Kind::Number),
            Column::new("max", Kind::Number),
            Column::optional("ratio", Kind::Number),
            Column::optional("p", Kind::Number),
        ];
        columns.extend(RunCell::COLUMNS);
        columns.extend(Origin::COLUMNS);
        columns.push(PROFILE);
        let tails = self.tails();
        let row = |summary: &MeasureSummary| {
            let mut row: Vec<Value> = vec![
                (&summary.workload).into(),
                (&summary.policy).into(),
                summary.measure.into(),
                (summary.n as u64).into(),
                summary.mean.into(),
                summary.ci95.into(),
                summary.min.into(),
                summary.max.into(),
                summary.ratio.into(),
                summary.p.into(),
            ];
            row.extend(tails[summary.column].iter().cloned());
            row
        };
        let summaries = self.summaries();
        let rows = summaries.iter().map(row);
        Table {
            columns,
            rows: rows.collect(),
        }
    }

    /// A table with one row per run and one column per measure.
    #[must_use]
    pub fn run_table(&self) -> Table {
        let mut columns = vec![
            Column::new("workload", Kind::Text),
            Column::new("policy", Kind::Text),
            Column::new("seed", Kind::Count),
        ];
        let measures = self
            .results
            .first()
            .map_or(&[][..], |first| &first.measures);
        let runs = || self.results.iter().flat_map(|result| &result.runs);
        columns.extend(measures.iter().enumerate().map(|(at, (name, _))| Column {
            name,
            kind: Kind::Number,
            optional: runs().any(|(_, measured)| measured[at].is_nan()),
            sparse: false,
        }));
        columns.extend(RunCell::COLUMNS);
        columns.extend(Origin::COLUMNS);
        columns.push(PROFILE);
        columns.push(Column::new(ORDER_UNKNOWN, Kind::Count));
        let workload = Value::from(self.subject.name());
        let order_unknown = Value::Count(self.subject.has_unknown_order().into());
        let mut rows = Vec::new();
        for (result, tail) in self.results.iter().zip(self.tails()) {
            let policy = Value::from(&result.policy);
            for (seed, measured) in &result.runs {
                let mut row = vec![workload.clone(), policy.clone(), (*seed).into()];
                row.extend(measured.iter().map(|value| Value::from(*value)));
                row.extend(tail.iter().cloned());
                row.push(order_unknown.clone());
                rows.push(row);
            }
        }
        Table { columns, rows }
    }

    /// The description of each policy, which ends its rows.
    fn tails(&self) -> Vec<Vec<Value>> {
        let tail = |of: &Described<RunCell>| {
            let cell = of.cell.values().into_iter();
            let profile = [of.cell.policy_profile.as_ref().into()];
            cell.chain(of.origin.values()).chain(profile).collect()
        };
        self.cells.iter().map(tail).collect()
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
