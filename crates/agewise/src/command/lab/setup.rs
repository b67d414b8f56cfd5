// SPDX-License-Identifier: Apache-2.0
//! Arguments that describe the simulated machine, and one run on it.

use agewise_lab::experiment::machine_run::Plan;
use agewise_lab::experiment::replay::{Arrangement, Through};
use agewise_lab::study::options::{self, Choice};
use agewise_lab::study::setup::{Named, parse_policy};
use agewise_lab::study::{self, StudyError};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::set::{self, Given};
use crate::command::trace::input::{InputArgs, ReadingBar};

/// The parser of an option with one of these values.
pub(super) fn one_of<T>(choices: &'static [Choice<T>]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let value = |(name, _, help): &Choice<T>| PossibleValue::new(*name).help(*help);
    let values = PossibleValuesParser::new(choices.iter().map(value));
    values.try_map(move |name| options::choose("value", &name, choices))
}

/// What to simulate on: shared by `run`, `inspect` and `damon`.
#[derive(Debug, clap::Args)]
pub struct Setup {
    /// memory.max of the cgroup: bytes, or with K, M, G; pages with p (5000p); for a trace also a
    /// share of its footprint (25%). Default: the workload's own, or half of the trace's footprint.
    /// The cgroup also pays for page tables and page-cache nodes from it.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Swap device: zram, pmem, nvme, ssd, hdd or none. Default: the workload's own; zram for a
    /// trace.
    #[arg(long, value_name = "DEVICE")]
    pub swap: Option<String>,
    /// A setting of the machine; `agewise lab list` describes them. @FILE: one from each line of a
    /// file, such as that of `agewise bench calibrate`. Can be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = set::parse)]
    pub settings: Vec<Given>,
    /// DAMON beside the policy: lru_sort, reclaim, or scheme (one of your own), with the kernel's
    /// parameter names, defaults and errors; `agewise lab list` describes them. With the kernel's
    /// defaults it runs while 5 to 20 % (lru_sort) or 20 to 50 % (reclaim) of memory is free; with
    /// wmarks_high=1000:wmarks_mid=1001:wmarks_low=0 it always runs.
    #[arg(long, value_name = "USE[:KEY=VALUE...]")]
    pub damon: Option<String>,
    /// How pages of files, and pages of unknown type, are accessed. Default: as recorded, which is
    /// mapped for recordings of accessed bits, fd for all others.
    #[arg(long, value_name = "WAY", value_parser = one_of(&options::WAYS))]
    pub access: Option<Through>,
    /// The order of accesses inside an interval, where a recorded trace does not record it.
    #[arg(long, value_name = "ORDER", default_value = "each",
          value_parser = one_of(&options::ORDERS))]
    pub order: Arrangement,
    /// How traces are read.
    #[command(flatten)]
    pub input: InputArgs,
}

impl Setup {
    /// Converts the arguments for the study.
    pub fn study(&self) -> study::setup::Setup {
        study::setup::Setup {
            memory: self.memory.clone(),
            swap: self.swap.clone(),
            settings: Given::all(&self.settings),
            damon: self.damon.clone(),
            through: self.access,
            arrangement: self.order,
            reading: self.input.reading(),
        }
    }
}

/// One run of a policy: shared by `inspect` and `damon`.
#[derive(Debug, clap::Args)]
pub struct OneRun {
    /// A workload of `agewise lab list`, a TOML file that describes one, or a trace.
    #[arg(value_name = "WORKLOAD|TRACE")]
    pub subject: String,
    /// What to simulate on.
    #[command(flatten)]
    pub setup: Setup,
    /// The policy.
    #[arg(long, value_name = "POLICY", default_value = "mglru:7.2")]
    pub policy: String,
    /// The seed.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
}

impl OneRun {
    /// The plan of the run, and the subject.
    pub fn plan(&self) -> Result<(Plan, Named), StudyError> {
        let policy = parse_policy(&self.policy)?;
        let (bar, progress) = ReadingBar::show();
        let mut study = self.setup.study();
        study.reading.progress = progress;
        let named = study.subject(&self.subject)?;
        bar.finish();
        let (plan, note) = study.plan(&named.subject, policy, self.seed)?;
        for note in note.iter().chain(named.subject.notes()) {
            agewise_cli::note!("{note}");
        }
        Ok((plan, named))
    }
}
