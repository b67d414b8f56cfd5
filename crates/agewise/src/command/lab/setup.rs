// SPDX-License-Identifier: Apache-2.0
//! Arguments that describe the simulated machine of `agewise lab run` and `inspect`.

use agewise_lab::experiment::machine_run::Plan;
use agewise_lab::experiment::replay::{Arrangement, Through};
use agewise_lab::machine::Policy;
use agewise_lab::study::setup::Named;
use agewise_lab::study::{self, StudyError};
use clap::ValueEnum;

use super::set::{self, Given};
use crate::command::trace::input::{InputArgs, ReadingBar};

/// What to simulate on: shared by `run` and `inspect`.
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
    #[arg(long, value_enum, value_name = "WAY")]
    pub access: Option<AccessWay>,
    /// The order of accesses inside an interval, where a recorded trace does not record it.
    #[arg(long, value_enum, value_name = "ORDER", default_value_t)]
    pub order: OrderChoice,
    /// How traces are read.
    #[command(flatten)]
    pub input: InputArgs,
}

/// How pages of a trace are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccessWay {
    /// Read and written through a file descriptor: policies see each access.
    Fd,
    /// Mapped: policies find accessed bits.
    Mapped,
    /// Anonymous memory; pages that the trace marks as file pages are mapped.
    Anon,
}

/// The order of accesses whose real order is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OrderChoice {
    /// Seed 1 rising addresses, seed 2 falling, all others shuffled: the range over the seeds
    /// reflects the unknown order.
    #[default]
    Each,
    /// Rising addresses.
    Forward,
    /// Falling addresses.
    Reverse,
    /// Shuffled by the seed.
    Shuffle,
}

impl OrderChoice {
    fn arrangement(self) -> Arrangement {
        match self {
            OrderChoice::Each => Arrangement::Each,
            OrderChoice::Forward => Arrangement::Forward,
            OrderChoice::Reverse => Arrangement::Reverse,
            OrderChoice::Shuffle => Arrangement::Shuffle,
        }
    }
}

impl AccessWay {
    fn through(self) -> Through {
        match self {
            AccessWay::Fd => Through::Descriptor,
            AccessWay::Mapped => Through::Mapping,
            AccessWay::Anon => Through::Anonymous,
        }
    }
}

impl Setup {
    /// Converts the arguments for the study.
    pub fn study(&self) -> study::setup::Setup {
        study::setup::Setup {
            memory: self.memory.clone(),
            swap: self.swap.clone(),
            settings: Given::all(&self.settings),
            damon: self.damon.clone(),
            through: self.access.map(AccessWay::through),
            arrangement: self.order.arrangement(),
            reading: self.input.reading(),
        }
    }

    /// The plan for a subject, a policy and a seed, and the subject.
    pub fn plan(
        &self,
        subject: &str,
        policy: Policy,
        seed: u64,
    ) -> Result<(Plan, Named), StudyError> {
        let (bar, progress) = ReadingBar::show();
        let mut study = self.study();
        study.reading.progress = progress;
        let named = study.subject(subject)?;
        bar.finish();
        let (plan, note) = study.plan(&named.subject, policy, seed)?;
        for note in note.iter().chain(named.subject.notes()) {
            agewise_cli::note!("{note}");
        }
        Ok((plan, named))
    }
}
