// SPDX-License-Identifier: Apache-2.0
//! The work of a cell: running a policy on the simulated machine, or counting its misses on a
//! trace.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use agewise_policy::proactive::Spec;
use agewise_policy::units;
use agewise_trace::ReadLimits;
use agewise_trace::curve::{SamplingPlan, SizeSpec};
use agewise_trace::yardstick::Yardstick;
use sha2::{Digest, Sha256};

use super::dataset::{self, TRACE, WORKLOAD};
use super::spec::{OF_CURVES, Values};
use super::{Done, Own};
use crate::experiment::contender::Contender;
use crate::experiment::matrix::SEEDS_MAX;
use crate::experiment::settings;
use crate::proactive::Sight;
use crate::study::curve::{CurveRequest, CurveTrace};
use crate::study::description::Description;
use crate::study::error::StudyError;
use crate::study::run::{RunRequest, require_agent};
use crate::study::setup::{
    Named, Setup, hashable, hex, is_description, parse_contender, parse_swap, sha256_of,
};
use crate::study::{options, parquet};
use crate::yardstick;

/// One policy of one request.
#[derive(Debug)]
pub(super) enum Task {
    Run(RunRequest),
    Curve(CurveRequest),
}

/// A workload or trace that was read.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    Run(Named),
    Curve(Arc<CurveTrace>),
}

impl Subject {
    /// SHA-256 of its file or text, in hexadecimal.
    pub(super) fn sha256(&self) -> &str {
        match self {
            Subject::Run(named) => &named.sha256,
            Subject::Curve(trace) => &trace.sha256,
        }
    }
}

impl Task {
    /// The task for the values of a cell.
    ///
    /// # Errors
    /// Fails if a value is invalid.
    pub(super) fn of(
        values: &Values,
        limits: ReadLimits,
        build: &str,
        own: Own<'_>,
    ) -> Result<Task, StudyError> {
        let own = own(values.get("policy").map_or("", String::as_str));
        match values.contains_key(TRACE) {
            true => curve(values, limits, build, own).map(Task::Curve),
            false => run(values, limits, build, own).map(Task::Run),
        }
    }

    pub(super) fn is_curve(&self) -> bool {
        matches!(self, Task::Curve(_))
    }

    /// Whether its subject is a trace; a workload otherwise.
    pub(super) fn reads_trace(&self) -> bool {
        match self {
            Task::Run(request) => request.setup.is_trace(&request.subject),
            Task::Curve(_) => true,
        }
    }

    /// The limits on reading its trace.
    pub(super) fn limits_mut(&mut self) -> &mut ReadLimits {
        match self {
            Task::Run(request) => &mut request.setup.reading.limits,
            Task::Curve(request) => &mut request.reading.limits,
        }
    }

    /// Name of the workload or trace.
    pub(super) fn subject(&self) -> &str {
        match self {
            Task::Run(request) => &request.subject,
            Task::Curve(request) => &request.trace,
        }
    }

    /// A key that is equal for cells that can share a subject.
    pub(super) fn shared(&self) -> String {
        match self {
            Task::Run(request) => {
                let options = options::to_text(&request.setup, request.sight);
                format!("{} {options}", request.subject)
            }
            Task::Curve(request) => {
                let options = options::to_text(&reading(request), Sight::default());
                format!("{} {options} {:?}", request.trace, request.sampling)
            }
        }
    }

    /// The hash of the subject, without reading it as a subject.
    ///
    /// # Errors
    /// Fails if there is no subject of that name, or it cannot be read.
    pub(super) fn sha256(&self) -> Result<String, StudyError> {
        match self {
            Task::Run(request) => request.setup.subject_sha256(&request.subject),
            Task::Curve(request) => sha256_of(&hashable(&request.reading, &request.trace)?.path),
        }
    }

    /// How its manifest says that the trace is read; nothing without a manifest.
    ///
    /// # Errors
    /// Fails if the manifest cannot be read or does not name the trace.
    pub(super) fn listed(&self) -> Result<String, StudyError> {
        let (reading, name) = match self {
            Task::Run(request) => (&request.setup.reading, &request.subject),
            Task::Curve(request) => (&request.reading, &request.trace),
        };
        if reading.manifest.is_none() || matches!(self, Task::Run(_)) && is_description(name) {
            return Ok(String::new());
        }
        let source = reading.source(name)?;
        let format = source.format.map_or("", |format| format.name);
        Ok(format!("{format} {}\n", source.collapse_repeats))
    }

    /// The file of the subject, if it is named by its path.
    pub(super) fn file(&self) -> Option<PathBuf> {
        match self {
            Task::Run(request) => request.setup.file(&request.subject),
            Task::Curve(request) => reading(request).file(&request.trace),
        }
    }

    /// A hash of everything that determines the contents of its file; `listed` is that of
    /// [`Task::listed`].
    pub(super) fn id(&self, values: &Values, sha256: &str, listed: &str) -> String {
        let mut hash = Sha256::new();
        for (key, value) in values {
            hash.update(format!("{key}={value}\n"));
        }
        let build = match self {
            Task::Run(request) => {
                for (policy, _) in &request.columns {
                    hash.update(policy.sha256().unwrap_or_default());
                }
                &request.build
            }
            Task::Curve(request) => {
                for policy in &request.policies {
                    hash.update(policy.source_sha256().unwrap_or_default());
                }
                &request.build
            }
        };
        hash.update(listed);
        let version = env!("CARGO_PKG_VERSION");
        hash.update(format!("{sha256}\n{version}\n{build}\n"));
        let mut id = hex(hash);
        id.truncate(dataset::ID_DIGITS);
        id
    }

    /// Reads the subject, from `place` if given.
    ///
    /// # Errors
    /// Fails if it cannot be read.
    pub(super) fn read(&self, place: Option<&str>) -> Result<Subject, StudyError> {
        let place = place.unwrap_or(self.subject());
        match self {
            Task::Run(request) => request.setup.subject(place).map(Subject::Run),
            Task::Curve(request) => request.read(place).map(Arc::new).map(Subject::Curve),
        }
    }

    /// Runs the task on its subject.
    ///
    /// # Errors
    /// Fails if it cannot be run or was stopped.
    pub(super) fn run(&self, on: &Subject, stop: &Arc<AtomicBool>) -> Result<Done, StudyError> {
        let (table, partition, notes, description) = match (self, on) {
            (Task::Run(request), Subject::Run(named)) => {
                let outcome = request.run_on(named, stop, |_| ())?;
                let first = outcome.cells.first().map(|of| &of.cell);
                let place = first.map(|of| dataset::partition(WORKLOAD, &of.workload, &of.policy));
                let (table, notes) = (outcome.run_table(), outcome.notes());
                let cells = outcome.cells;
                (table, place, notes, Description::Run { cells })
            }
            (Task::Curve(request), Subject::Curve(trace)) => {
                let outcome = request.run_on(trace, stop)?;
                let first = outcome.cells.first().map(|of| &of.cell);
                let place = first.map(|of| dataset::partition(TRACE, &of.trace, &of.policy));
                let (table, notes, cells) = (outcome.table(), outcome.notes, outcome.cells);
                (table, place, notes, Description::Curve { cells })
            }
            _ => {
                return Err(StudyError::argument(
                    "a curve takes a trace, a run a workload",
                ));
            }
        };
        let bytes = parquet::bytes(&table, &description)?;
        Ok(Done {
            partition: partition.unwrap_or_default(),
            bytes,
            notes,
        })
    }
}

/// A setup that reads the trace of a curve.
fn reading(request: &CurveRequest) -> Setup {
    Setup {
        reading: request.reading.clone(),
        ..Setup::default()
    }
}

/// The values below a prefix, as `NAME=VALUE`.
fn below<'v>(values: &'v Values, prefix: &'static str) -> impl Iterator<Item = String> + 'v {
    let named = values.iter().filter_map(move |(key, value)| {
        let name = key.strip_prefix(prefix)?.strip_prefix('.')?;
        Some((name, value))
    });
    named.map(|(name, value)| format!("{name}={value}"))
}

/// A value that is a number from 1 to `most`.
fn number(values: &Values, key: &str, most: u64) -> Result<Option<u64>, StudyError> {
    let number = values.get(key).map(|text| match text.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(StudyError::Argument(format!(
            "{key} is a number from 1 to {most}"
        ))),
    });
    number.transpose()
}

fn set_up(values: &Values, limits: ReadLimits) -> Result<(Setup, Sight), StudyError> {
    let (mut setup, mut sight) = (Setup::default(), Sight::default());
    for option in below(values, "options") {
        options::from_text(&options::escape(&option), &mut setup, &mut sight)?;
    }
    setup.reading.limits = limits;
    Ok((setup, sight))
}

fn run(
    values: &Values,
    limits: ReadLimits,
    build: &str,
    own: Option<Arc<dyn Yardstick>>,
) -> Result<RunRequest, StudyError> {
    if let Some(key) = OF_CURVES.iter().find(|key| values.contains_key(**key)) {
        let what = format!("{key} is for curves, which have a `trace` in place of a `workload`");
        return Err(StudyError::Argument(what));
    }
    let get = |key: &str| values.get(key).cloned();
    let (setup, sight) = set_up(values, limits)?;
    let settings: Vec<String> = below(values, "set").collect();
    settings::check(&settings).map_err(|error| StudyError::Argument(error.to_string()))?;
    get("swap").as_deref().map(parse_swap).transpose()?;
    let agent = get("proactive").map(|agent| agent.parse::<Spec>());
    let agent = agent
        .transpose()
        .map_err(|error| StudyError::Argument(error.to_string()))?;
    agent.as_ref().map_or(Ok(()), require_agent)?;
    let policy = match own {
        Some(own) => Contender::Yardstick(own),
        None => parse_contender(&get("policy").unwrap_or_default())?,
    };
    Ok(RunRequest {
        setup: Setup {
            memory: get("memory"),
            swap: get("swap"),
            settings,
            damon: get("damon"),
            ..setup
        },
        subject: get(WORKLOAD).unwrap_or_default(),
        columns: vec![(policy, agent)],
        sight,
        seeds: number(values, "seeds", SEEDS_MAX)?,
        build: build.to_owned(),
    })
}

fn curve(
    values: &Values,
    limits: ReadLimits,
    build: &str,
    own: Option<Arc<dyn Yardstick>>,
) -> Result<CurveRequest, StudyError> {
    let is_of_curve = |key: &str| {
        let of_both = [TRACE, "policy"].contains(&key) || key.starts_with("options.");
        of_both || OF_CURVES.contains(&key)
    };
    if let Some(key) = values.keys().find(|key| !is_of_curve(key)) {
        let what = format!("{key} is for runs, which have a `workload` in place of a `trace`");
        return Err(StudyError::Argument(what));
    }
    let (setup, sight) = set_up(values, limits)?;
    options::require_reading(&setup, sight)?;
    let get = |key: &str| values.get(key).map(String::as_str);
    let sizes = get("sizes").into_iter().flat_map(|sizes| sizes.split(','));
    let sizes = sizes.map(|size| size.trim().parse::<SizeSpec>());
    let sizes = sizes.collect::<Result<Vec<_>, String>>();
    if get("sizes").is_some() && get("points").is_some() {
        return Err(StudyError::argument(
            "sizes are given, or points to spread: not both",
        ));
    }
    let samples = number(values, "samples", SamplingPlan::SAMPLES_MAX as u64)?;
    let samples = samples.map_or(CurveRequest::SAMPLES, |samples| samples as usize);
    let sampling = match get("rate").map(units::share) {
        None if values.contains_key("samples") => {
            return Err(StudyError::argument("samples need a rate"));
        }
        None => None,
        Some(Ok(rate)) => Some(SamplingPlan::new(rate, samples).map_err(StudyError::Argument)?),
        Some(Err(error)) => return Err(StudyError::Argument(format!("rate: {error}"))),
    };
    let policy = match own {
        Some(own) => own,
        None => {
            yardstick::parse(get("policy").unwrap_or_default()).map_err(StudyError::Argument)?
        }
    };
    Ok(CurveRequest {
        trace: get(TRACE).unwrap_or_default().to_owned(),
        reading: setup.reading,
        policies: vec![policy],
        sizes: sizes.map_err(StudyError::Argument)?,
        points: number(values, "points", 4096)?
            .map_or(CurveRequest::POINTS, |points| points as u16),
        sampling,
        build: build.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use agewise_trace::DenseTrace;
    use agewise_trace::yardstick::Counts;

    use super::*;
    use crate::study::sweep::Sweep;

    /// A policy of the caller: misses everything, or fails.
    #[derive(Debug)]
    struct Mine(Option<&'static str>);

    impl Yardstick for Mine {
        fn name(&self) -> &str {
            "mine"
        }

        fn misses_among(&self, trace: &DenseTrace, _: usize, _: Counts<'_>) -> u64 {
            trace.accesses().len() as u64
        }

        fn source_sha256(&self) -> Option<&str> {
            Some("1f")
        }

        fn failure(&self) -> Option<String> {
            self.0.map(str::to_owned)
        }
    }

    #[test]
    fn a_policy_of_the_caller_fails_its_cells_only() {
        let directory = tempfile::tempdir().unwrap();
        let trace = directory.path().join("t.trace");
        std::fs::write(&trace, "1\n2\n1\n").unwrap();
        for key in [TRACE, WORKLOAD] {
            let text = format!(
                "[[grid]]\n{key} = '{}'\npolicy = ['lru', 'mine']",
                trace.display()
            );
            for failure in [None, Some("as expected")] {
                let own = |name: &str| -> Option<Arc<dyn Yardstick>> {
                    (name == "mine").then(|| Arc::new(Mine(failure)) as _)
                };
                let limits = ReadLimits::default();
                let mut sweep = Sweep::parse(&text, limits, "", &own).unwrap();
                let out = tempfile::tempdir().unwrap();
                let outcome = sweep.run(out.path(), false, &Arc::default(), |_| ());
                let outcome = outcome.unwrap();
                let [ran, failed] = [outcome.ran, outcome.failed.len()];
                assert_eq!([ran, failed], [2 - failed, usize::from(failure.is_some())]);
                for (cell, why) in outcome.failed {
                    assert!(cell.contains("policy=mine"), "{cell}");
                    assert!(why.to_string().contains("as expected"), "{why}");
                }
            }
            assert!(Sweep::parse(&text, ReadLimits::default(), "", &|_| None).is_err());
        }
    }
}
