// SPDX-License-Identifier: Apache-2.0
//! The setup of a monitor, and how to write it into sysfs. Its parts are the engine's own types, so
//! that a scheme tried in the lab runs here unchanged.

use std::path::{Path, PathBuf};

use agewise_damon::attrs::Attrs;
use agewise_damon::filter::{Filter, FilterKind};
use agewise_damon::goal::{Goal, GoalMetric};
use agewise_damon::scheme::Scheme;

use super::DamonError;
use super::probe::operations;
use crate::error::{self as file, FileError};

/// The address space to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The virtual memory of processes.
    Processes(Vec<u32>),
    /// Physical memory; no ranges means all System RAM, as chosen by the kernel.
    Physical(Vec<(u64, u64)>),
}

impl Watched {
    pub(super) fn operations(&self) -> &'static str {
        match self {
            Watched::Processes(_) => "vaddr",
            Watched::Physical(_) => "paddr",
        }
    }
}

/// A monitor to start.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What to watch.
    pub watched: Watched,
    /// Sampling intervals and numbers of regions.
    pub attrs: Attrs,
    /// The schemes to apply.
    pub schemes: Vec<Scheme>,
}

/// A directory of the sysfs interface.
struct Dir(PathBuf);

impl Dir {
    fn below(&self, name: impl AsRef<Path>) -> Dir {
        Dir(self.0.join(name))
    }

    fn set(&self, name: &str, value: impl ToString) -> Result<(), FileError> {
        file::write(&self.0.join(name), &value.to_string())
    }

    /// Writes a file that older kernels lack.
    fn set_since(
        &self,
        name: &str,
        value: impl ToString,
        what: &'static str,
        since: &'static str,
    ) -> Result<(), DamonError> {
        if !self.0.join(name).exists() {
            return Err(DamonError::TooOld {
                what,
                since,
                file: name.to_owned(),
            });
        }
        Ok(self.set(name, value)?)
    }

    fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }
}

/// Writes a setup into the directory of a kdamond.
pub(super) fn write(kdamond: &Path, setup: &Setup) -> Result<(), DamonError> {
    let contexts = Dir(kdamond.join("contexts"));
    contexts.set("nr_contexts", 1)?;
    let context = contexts.below("0");
    let wanted = setup.watched.operations();
    // Older kernels have no list; they reject an unknown word when it is written.
    if let Some(offered) = operations(&context.0)?
        && !offered.iter().any(|name| name == wanted)
    {
        let offered = offered.join(", ");
        return Err(DamonError::NoOperations { wanted, offered });
    }
    context.set("operations", wanted)?;
    write_attrs(&context.below("monitoring_attrs"), &setup.attrs)?;
    write_targets(&context.below("targets"), &setup.watched)?;
    let schemes = context.below("schemes");
    schemes.set("nr_schemes", setup.schemes.len())?;
    for (index, scheme) in setup.schemes.iter().enumerate() {
        write_scheme(&schemes.below(index.to_string()), scheme)?;
    }
    Ok(())
}

fn write_attrs(dir: &Dir, attrs: &Attrs) -> Result<(), DamonError> {
    let intervals = dir.below("intervals");
    intervals.set("sample_us", attrs.sample_us)?;
    intervals.set("aggr_us", attrs.aggr_us)?;
    intervals.set("update_us", attrs.ops_update_us)?;
    if let Some(goal) = attrs.tune {
        const WHAT: &str = "automatic tuning of the intervals";
        let dir = intervals.below("intervals_goal");
        dir.set_since("access_bp", goal.access_bp, WHAT, "6.15")?;
        dir.set("aggrs", goal.aggrs)?;
        dir.set("min_sample_us", goal.min_sample_us)?;
        dir.set("max_sample_us", goal.max_sample_us)?;
    }
    let regions = dir.below("nr_regions");
    // The maximum first, because the minimum may exceed the old maximum.
    regions.set("max", attrs.max_nr_regions)?;
    regions.set("min", attrs.min_nr_regions)?;
    Ok(())
}

fn write_targets(dir: &Dir, watched: &Watched) -> Result<(), DamonError> {
    match watched {
        Watched::Processes(pids) => {
            dir.set("nr_targets", pids.len())?;
            for (index, pid) in pids.iter().enumerate() {
                dir.below(index.to_string()).set("pid_target", pid)?;
            }
        }
        Watched::Physical(ranges) => {
            dir.set("nr_targets", 1)?;
            let regions = dir.below("0/regions");
            regions.set("nr_regions", ranges.len())?;
            for (index, (start, end)) in ranges.iter().enumerate() {
                let region = regions.below(index.to_string());
                region.set("start", start)?;
                region.set("end", end)?;
            }
        }
    }
    Ok(())
}

fn write_scheme(dir: &Dir, scheme: &Scheme) -> Result<(), DamonError> {
    dir.set("action", scheme.action.name())?;
    if scheme.apply_interval_us != 0 {
        let interval_us = scheme.apply_interval_us;
        dir.set_since("apply_interval_us", interval_us, "an apply interval", "6.7")?;
    }
    let pattern = dir.below("access_pattern");
    write_range(&pattern.below("sz"), scheme.pattern.size_bytes.clone())?;
    write_range(
        &pattern.below("nr_accesses"),
        scheme.pattern.nr_accesses.clone(),
    )?;
    write_range(&pattern.below("age"), scheme.pattern.age.clone())?;
    write_quota(&dir.below("quotas"), scheme)?;
    write_watermarks(&dir.below("watermarks"), scheme)?;
    write_filters(dir, &scheme.filters)
}

fn write_range<T: ToString>(
    dir: &Dir,
    range: std::ops::RangeInclusive<T>,
) -> Result<(), FileError> {
    dir.set("min", range.start().to_string())?;
    dir.set("max", range.end().to_string())
}

fn write_quota(dir: &Dir, scheme: &Scheme) -> Result<(), DamonError> {
    let limits = &scheme.quota.limits;
    dir.set("ms", limits.ms)?;
    dir.set("bytes", limits.bytes)?;
    dir.set("reset_interval_ms", limits.reset_interval_ms)?;
    let weights = dir.below("weights");
    weights.set("sz_permil", limits.weights.size)?;
    weights.set("nr_accesses_permil", limits.weights.nr_accesses)?;
    weights.set("age_permil", limits.weights.age)?;
    let goals = dir.below("goals");
    if limits.goals.is_empty() && !goals.has("nr_goals") {
        return Ok(());
    }
    goals.set_since("nr_goals", limits.goals.len(), "a quota goal", "6.8")?;
    for (index, goal) in limits.goals.iter().enumerate() {
        write_goal(&goals.below(index.to_string()), goal)?;
    }
    Ok(())
}

fn write_goal(dir: &Dir, goal: &Goal) -> Result<(), DamonError> {
    let (word, since) = match goal.metric {
        GoalMetric::UserInput => ("user_input", "6.9"),
        GoalMetric::SomeMemPsi => ("some_mem_psi_us", "6.9"),
        GoalMetric::ActiveMem => ("active_mem_bp", "7.0"),
        GoalMetric::InactiveMem => ("inactive_mem_bp", "7.0"),
    };
    dir.set_since("target_metric", word, "a metric of a quota goal", since)?;
    dir.set("target_value", goal.target)?;
    dir.set("current_value", goal.current)?;
    Ok(())
}

fn write_watermarks(dir: &Dir, scheme: &Scheme) -> Result<(), FileError> {
    let Some(marks) = scheme.watermarks else {
        return dir.set("metric", "none");
    };
    dir.set("metric", "free_mem_rate")?;
    dir.set("interval_us", marks.interval_us)?;
    dir.set("high", marks.high)?;
    dir.set("mid", marks.mid)?;
    dir.set("low", marks.low)
}

/// Since 6.14 core filters and page filters have separate directories. Before, one directory has
/// both, and its filters can only exclude.
fn write_filters(dir: &Dir, filters: &[Filter]) -> Result<(), DamonError> {
    if dir.has("core_filters") {
        let is_core = |filter: &&Filter| filter.kind.is_core();
        let core: Vec<_> = filters.iter().filter(is_core).collect();
        let page: Vec<_> = filters.iter().filter(|filter| !is_core(filter)).collect();
        write_filter_dir(&dir.below("core_filters"), &core)?;
        return write_filter_dir(&dir.below("ops_filters"), &page);
    }
    let all = dir.below("filters");
    if filters.is_empty() && !all.has("nr_filters") {
        return Ok(());
    }
    if !all.has("nr_filters") {
        let file = "filters/nr_filters".to_owned();
        return Err(DamonError::TooOld {
            what: "a filter",
            since: "6.3",
            file,
        });
    }
    write_filter_dir(&all, &filters.iter().collect::<Vec<_>>())
}

fn write_filter_dir(dir: &Dir, filters: &[&Filter]) -> Result<(), DamonError> {
    dir.set("nr_filters", filters.len())?;
    for (index, filter) in filters.iter().enumerate() {
        let dir = dir.below(index.to_string());
        match filter.kind {
            FilterKind::Anon => dir.set("type", "anon")?,
            FilterKind::Young => dir.set("type", "young")?,
            FilterKind::Active => dir.set("type", "active")?,
            FilterKind::Unmapped => dir.set("type", "unmapped")?,
            FilterKind::HugepageSize(min, max) => {
                dir.set("type", "hugepage_size")?;
                dir.set("min", min)?;
                dir.set("max", max)?;
            }
            // The kernel identifies cgroups by path, but the filter has a number that is valid only
            // in the lab.
            FilterKind::Memcg(_) => return Err(DamonError::MemcgFilter),
            FilterKind::Address(start, end) => {
                const WHAT: &str = "a filter by address";
                dir.set_since("addr_start", start, WHAT, "6.6")?;
                dir.set("type", "addr")?;
                dir.set("addr_end", end)?;
            }
            FilterKind::Target(target) => {
                const WHAT: &str = "telling processes apart by a filter";
                dir.set_since("damon_target_idx", target.0, WHAT, "6.6")?;
                dir.set("type", "target")?;
            }
        }
        dir.set("matching", if filter.matching { "Y" } else { "N" })?;
        if filter.allow {
            dir.set_since("allow", "Y", "a filter that lets through", "6.14")?;
        }
    }
    Ok(())
}
