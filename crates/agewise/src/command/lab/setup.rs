// SPDX-License-Identifier: Apache-2.0
//! What `agewise lab run` and `inspect` simulate: workloads and traces by name, memory, swap, settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agewise_lab::experiment::machine_run::{MIN_MEMORY_PAGES, Plan, Subject};
use agewise_lab::experiment::replay::{Arrangement, Replay, Through};
use agewise_lab::machine::Policy;
use agewise_lab::machine::device::DeviceKind;
use agewise_lab::workload::library;
use agewise_lab::workload::spec::Workload;
use agewise_policy::units::size_bytes;
use agewise_trace::suggest::nearest;
use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;

use crate::command::trace::input::{InputArgs, short_name};

/// What to simulate on: shared by `run` and `inspect`.
#[derive(Debug, clap::Args)]
pub struct Setup {
    /// memory.max of the cgroup: bytes, or with K, M, G; pages with p (5000p); of a trace also a share
    /// of its footprint (25%). The workload's own, or half of the trace's footprint, unless given. The
    /// cgroup pays for page tables and page-cache nodes from it too.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Swap device: zram, pmem, nvme, ssd, hdd or none; the workload's own, zram for a trace, unless
    /// given.
    #[arg(long, value_name = "DEVICE")]
    pub swap: Option<String>,
    /// A setting of the machine; `agewise lab list` describes them. Can be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// DAMON beside the policy: lru_sort, reclaim, or scheme (one of your own), with parameters under
    /// the kernel's names, defaults and errors; `agewise lab list` describes them. With the defaults
    /// of the kernel it runs while 5 to 20 % (lru_sort) or 20 to 50 % (reclaim) of memory is free:
    /// wmarks_high=1000:wmarks_mid=1001:wmarks_low=0 lets it run always.
    #[arg(long, value_name = "USE[:KEY=VALUE...]")]
    pub damon: Option<String>,
    /// How pages of files, and pages of unknown type, are accessed.
    /// As the trace was made unless given: mapped for recordings of accessed bits, fd for all others.
    #[arg(long, value_enum, value_name = "WAY")]
    pub access: Option<AccessWay>,
    /// The order of accesses inside an interval, where a recorded trace does not tell it.
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
    /// Anonymous memory; pages that the trace says are of files are mapped.
    Anon,
}

/// The order of accesses whose own is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OrderChoice {
    /// Seed 1 rising addresses, seed 2 falling, all others shuffled: the range over the seeds is what
    /// not knowing the order comes to.
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

/// A policy by name, with the nearest name where there is none.
pub fn parse_policy(text: &str) -> anyhow::Result<Policy> {
    Policy::parse(text).map_err(|error| {
        let names = Policy::names();
        match nearest(text, names.iter().map(String::as_str)) {
            Some(near) => anyhow!("{error}; did you mean `{near}`?"),
            None => anyhow!(error),
        }
    })
}

fn parse_swap(text: &str) -> anyhow::Result<Option<DeviceKind>> {
    if text == "none" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| {
        let names = DeviceKind::ALL.map(DeviceKind::name);
        match nearest(text, names.into_iter().chain(["none"])) {
            Some(near) => anyhow!("{error}; did you mean `{near}`?"),
            None => anyhow!("{error}; one of {}, none", names.join(", ")),
        }
    })
}

/// `--memory` in pages.
fn parse_memory_pages(text: &str, subject: &Subject) -> anyhow::Result<u64> {
    let text = text.trim();
    let argument = || format!("--memory `{text}`");
    if let Some(percent) = text.strip_suffix('%') {
        let Subject::Trace(replay, _) = subject else {
            bail!(
                "{} is a share of a trace's footprint; `{}` is a workload: give a size",
                argument(),
                subject.name()
            );
        };
        let percent: f64 = percent.trim().parse().with_context(argument)?;
        if !(percent > 0.0 && percent <= 1000.0) {
            bail!("{} is not between 0 and 1000 percent", argument());
        }
        let pages = (replay.footprint_pages() as f64 * percent / 100.0).round() as u64;
        if pages < MIN_MEMORY_PAGES {
            agewise_cli::note!(
                "{}: {text} of the footprint is {pages} pages; {MIN_MEMORY_PAGES} are used, \
                 the least a cgroup works with",
                subject.name()
            );
        }
        return Ok(pages.max(MIN_MEMORY_PAGES));
    }
    if let Some(pages) = text.strip_suffix(['p', 'P']) {
        return pages.trim().parse().with_context(argument);
    }
    let bytes = size_bytes(text).map_err(|error| anyhow!("{} {error}", argument()))?;
    Ok(bytes / 4096)
}

impl Setup {
    /// The plan for a subject, a policy and a seed.
    pub fn plan(&self, subject: &Subject, policy: Policy, seed: u64) -> anyhow::Result<Plan> {
        let memory_pages = match &self.memory {
            None => None,
            Some(size) => Some(parse_memory_pages(size, subject)?),
        };
        Ok(Plan {
            subject: subject.clone(),
            memory_pages,
            swap: self.swap.as_deref().map(parse_swap).transpose()?,
            settings: self.settings.clone(),
            damon: self.damon.clone(),
            policy,
            seed,
            proactive: None,
        })
    }

    /// All that the names stand for: patterns (`traces/*.pages`) are expanded, in order of name.
    pub fn names(&self, names: &[String]) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        for name in names {
            let is_pattern = name.contains(['*', '?', '[']) && !Path::new(name).exists();
            if !is_pattern {
                found.push(name.clone());
                continue;
            }
            let before = found.len();
            for path in glob::glob(name).with_context(|| format!("`{name}` is no pattern"))? {
                found.push(path?.to_string_lossy().into_owned());
            }
            if found.len() == before {
                bail!("no file matches `{name}`");
            }
        }
        Ok(found)
    }

    /// What a name stands for: a workload of the library, a TOML file, a trace.
    pub fn subject(&self, name: &str) -> anyhow::Result<Subject> {
        let path = Path::new(name);
        let workload = |workload| Ok(Subject::Workload(Arc::new(workload)));
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let stem = path.file_stem().map(PathBuf::from).unwrap_or_default();
            return workload(Workload::parse(&stem.to_string_lossy(), &text)?);
        }
        if self.input.manifest.is_none() && !path.exists() {
            return workload(library::find(name).map_err(|error| {
                anyhow!(
                    "{error}; nor is there a trace file of that name (`agewise lab list` names all \
                     workloads; a file that describes one ends in .toml)"
                )
            })?);
        }
        if self.input.manifest.is_none()
            && !path.is_file()
            && let Ok(found) = library::find(name)
        {
            return workload(found);
        }
        self.trace(name)
    }

    fn trace(&self, name: &str) -> anyhow::Result<Subject> {
        let source = self.input.source(name)?;
        let mut stream = source.open()?;
        let through = self.access.map(|way| match way {
            AccessWay::Fd => Through::Descriptor,
            AccessWay::Mapped => Through::Mapping,
            AccessWay::Anon => Through::Anonymous,
        });
        let replay = Replay::read(short_name(name), &source.path, &mut stream, through)?;
        if !replay.order_unknown && self.order != OrderChoice::Each {
            bail!(
                "{name}: --order is for traces recorded by interval; the order of this one is known"
            );
        }
        Ok(Subject::Trace(Arc::new(replay), self.order.arrangement()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_get_the_nearest() {
        let error = parse_policy("mglru:7.3").unwrap_err().to_string();
        assert!(error.contains("did you mean `mglru:7.2`"), "{error}");
        let error = parse_swap("nmve").unwrap_err().to_string();
        assert!(error.contains("did you mean `nvme`"), "{error}");
        assert_eq!(parse_swap("none").unwrap(), None);
    }

    #[test]
    fn memory_is_bytes_or_pages() {
        let kv = Subject::Workload(Arc::new(library::find("kv").unwrap()));
        assert_eq!(parse_memory_pages("24M", &kv).unwrap(), 6144);
        assert_eq!(parse_memory_pages("5000p", &kv).unwrap(), 5000);
        for (bad, expected) in [("25%", "workload"), ("much", "no size"), ("-1p", "-1p")] {
            let error = format!("{:#}", parse_memory_pages(bad, &kv).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
