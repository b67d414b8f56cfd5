// SPDX-License-Identifier: Apache-2.0
//! Pressure stall information: the share of time during which tasks waited for a resource
//! (Documentation/accounting/psi.rst, since 4.20; cgroup v2 only).

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, Version};
use crate::error::{self, FileError};
use crate::root::ProcRoot;

/// The resource waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// CPU time.
    Cpu,
    /// Memory: reclaim, refaults, swap-ins.
    Memory,
    /// I/O.
    Io,
}

impl Resource {
    /// The name of its file in `/proc/pressure`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Io => "io",
        }
    }
}

/// One line of a pressure file: averages in percent of time, and the total time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// Percent of the last 10 s.
    pub avg10_percent: f64,
    /// Percent of the last minute.
    pub avg60_percent: f64,
    /// Stalled time since boot (or since the cgroup was created). Differences give the stall over
    /// any window, without the lag of averages.
    pub total_us: u64,
}

/// The pressure on one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Psi {
    /// At least one task was waiting.
    pub some: Stall,
    /// All tasks were waiting at once. Kernels before 5.13 do not report this for the CPU: zero.
    pub full: Stall,
}

impl Psi {
    /// Reads the pressure of the whole machine; `None` if the kernel has no PSI (`CONFIG_PSI`, or
    /// booted with `psi=0`).
    pub fn of_machine(root: &ProcRoot, resource: Resource) -> Result<Option<Self>, FileError> {
        Self::read(&root.join("pressure").join(resource.name()))
    }

    /// Reads the pressure of a cgroup in the v2 hierarchy; `None` without PSI, for v1, or if PSI is
    /// switched off for the cgroup (`cgroup.pressure`). A cgroup that is gone also gives `None`:
    /// check that separately.
    pub fn of_cgroup(cgroup: &Cgroup, resource: Resource) -> Result<Option<Self>, FileError> {
        if cgroup.hierarchy().version == Version::V1 {
            return Ok(None);
        }
        Self::read(&cgroup.dir().join(format!("{}.pressure", resource.name())))
    }

    fn read(path: &Path) -> Result<Option<Self>, FileError> {
        match error::read(path) {
            Ok(text) => Self::parse(path, &text).map(Some),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let (mut some, mut full) = (None, None);
        for line in text.lines() {
            let stall = || {
                Stall::parse(line).ok_or_else(|| FileError::format(path, "avg10 avg60 total", line))
            };
            match line.split(' ').next() {
                Some("some") => some = Some(stall()?),
                Some("full") => full = Some(stall()?),
                _ => {}
            }
        }
        let some = some.ok_or_else(|| FileError::format(path, "a line 'some'", text))?;
        let full = full.unwrap_or_default();
        Ok(Self { some, full })
    }
}

impl Stall {
    fn parse(line: &str) -> Option<Self> {
        let mut stall = Self::default();
        let mut seen = 0;
        for word in line.split_ascii_whitespace().skip(1) {
            let (key, value) = word.split_once('=')?;
            match key {
                "avg10" => stall.avg10_percent = value.parse().ok()?,
                "avg60" => stall.avg60_percent = value.parse().ok()?,
                "total" => stall.total_us = value.parse().ok()?,
                _ => continue,
            }
            seen += 1;
        }
        (seen == 3).then_some(stall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{Hierarchy, Version};

    const TEXT: &str = "some avg10=1.65 avg60=1.23 avg300=5.77 total=52775838\n\
                        full avg10=0.50 avg60=0.00 avg300=0.00 total=7\n";

    #[test]
    fn the_machine_and_a_cgroup_read_alike() {
        let dir = tempfile::tempdir().unwrap();
        let root = ProcRoot::new(dir.path());
        assert_eq!(Psi::of_machine(&root, Resource::Memory).unwrap(), None);
        std::fs::create_dir(dir.path().join("pressure")).unwrap();
        std::fs::write(dir.path().join("pressure/memory"), TEXT).unwrap();
        let pressure = Psi::of_machine(&root, Resource::Memory).unwrap().unwrap();
        assert_eq!(
            (pressure.some.avg10_percent, pressure.some.total_us),
            (1.65, 52_775_838)
        );
        assert_eq!(pressure.full.total_us, 7);

        std::fs::write(dir.path().join("memory.pressure"), TEXT).unwrap();
        let cgroup = Cgroup::open(&Hierarchy::at(Version::V2, dir.path()), "/").unwrap();
        let same = Psi::of_cgroup(&cgroup, Resource::Memory).unwrap().unwrap();
        assert_eq!(same, pressure);
        assert_eq!(Psi::of_cgroup(&cgroup, Resource::Io).unwrap(), None);
    }

    #[test]
    fn old_kernels_have_no_full_line_and_new_fields_do_no_harm() {
        let path = Path::new("cpu");
        let old = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(Psi::parse(path, old).unwrap().full, Stall::default());
        let new = "some avg10=0.00 avg60=0.00 avg300=0.00 avg900=1.00 total=1\n";
        assert_eq!(Psi::parse(path, new).unwrap().some.total_us, 1);
        assert!(Psi::parse(path, "some avg10=0.00 total=1\n").is_err());
        assert!(Psi::parse(path, "").is_err());
    }
}
