// SPDX-License-Identifier: Apache-2.0
//! The setup of a monitor, and how to write it into sysfs. It only watches: its schemes take no
//! action, and exist because the kernel lists regions by scheme.

use std::path::{Path, PathBuf};

use agewise_damon::attrs::Attrs;

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
    /// Sampling intervals and numbers of regions. The kernel does not tune them.
    pub attrs: Attrs,
}

impl Setup {
    /// One scheme for each target, because regions of several are told apart by scheme only.
    pub(super) fn nr_schemes(&self) -> usize {
        match &self.watched {
            Watched::Processes(pids) => pids.len(),
            Watched::Physical(_) => 1,
        }
    }
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
    let nr_schemes = setup.nr_schemes();
    schemes.set("nr_schemes", nr_schemes)?;
    for target in 0..nr_schemes {
        let scheme = schemes.below(target.to_string());
        write_scheme(&scheme)?;
        // A single scheme needs no filter, and so no kernel with target filters (6.6).
        if nr_schemes > 1 {
            write_filter(&scheme, target)?;
        }
    }
    Ok(())
}

/// Whether the directory of a kdamond still has what was written to watch this.
pub(super) fn is_there(kdamond: &Path, watched: &Watched) -> bool {
    let context = kdamond.join("contexts/0");
    let has = |name: &str, value: &dyn ToString| {
        let text = file::read(&context.join(name));
        text.is_ok_and(|text| text.trim() == value.to_string())
    };
    let has_targets = match watched {
        Watched::Processes(pids) => {
            has("targets/nr_targets", &pids.len())
                && pids
                    .iter()
                    .enumerate()
                    .all(|(index, pid)| has(&format!("targets/{index}/pid_target"), pid))
        }
        Watched::Physical(ranges) => {
            has("targets/nr_targets", &1) && has("targets/0/regions/nr_regions", &ranges.len())
        }
    };
    has("operations", &watched.operations()) && has_targets
}

fn write_attrs(dir: &Dir, attrs: &Attrs) -> Result<(), FileError> {
    let intervals = dir.below("intervals");
    intervals.set("sample_us", attrs.sample_us)?;
    intervals.set("aggr_us", attrs.aggr_us)?;
    intervals.set("update_us", attrs.ops_update_us)?;
    let regions = dir.below("nr_regions");
    // The maximum first, because the minimum may exceed the old maximum.
    regions.set("max", attrs.max_nr_regions)?;
    regions.set("min", attrs.min_nr_regions)?;
    Ok(())
}

fn write_targets(dir: &Dir, watched: &Watched) -> Result<(), FileError> {
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

/// A scheme that takes no action and matches every region. The kernel creates it without a quota,
/// watermarks or filters.
fn write_scheme(dir: &Dir) -> Result<(), FileError> {
    dir.set("action", "stat")?;
    let pattern = dir.below("access_pattern");
    for (name, max) in [
        ("sz", u64::MAX),
        ("nr_accesses", u32::MAX.into()),
        ("age", u32::MAX.into()),
    ] {
        let range = pattern.below(name);
        range.set("min", 0)?;
        range.set("max", max)?;
    }
    Ok(())
}

/// Excludes everything that does not belong to the target. Since 6.14 filters by target have a
/// directory of their own.
fn write_filter(scheme: &Dir, target: usize) -> Result<(), DamonError> {
    let filters = match scheme.has("core_filters") {
        true => scheme.below("core_filters"),
        false => scheme.below("filters"),
    };
    let too_old = |file: &str, since| DamonError::TooOld {
        what: "telling processes apart by a filter",
        since,
        file: file.to_owned(),
    };
    if !filters.has("nr_filters") {
        return Err(too_old("filters/nr_filters", "6.3"));
    }
    filters.set("nr_filters", 1)?;
    let filter = filters.below("0");
    if !filter.has("damon_target_idx") {
        return Err(too_old("damon_target_idx", "6.6"));
    }
    filter.set("damon_target_idx", target)?;
    filter.set("type", "target")?;
    filter.set("matching", "N")?;
    Ok(())
}
