// SPDX-License-Identifier: Apache-2.0
//! Workloads as described in TOML files.
//!
//! A workload is a set of processes in memory cgroups. A process has areas (anonymous memory, a
//! file read through a descriptor, a mapped file) and phases; a phase populates areas and then
//! touches them by weighted streams. A workload can also be one trace of the kernel reference.
//! `docs/use/workloads.md` describes every key.

use agewise_policy::table::PAGE_BYTES;
use agewise_policy::units::size_bytes;
use serde::Deserialize;
use thiserror::Error;

pub use super::stream::{StreamOrder, StreamSpec};

use super::kernel_trace::{TraceError, TraceGenerator, TraceSpec};
use crate::machine::device::DeviceKind;

/// An invalid workload.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// It is not TOML, a key is unknown or missing, or a value has the wrong type.
    #[error("workload {name}: {source}")]
    Toml {
        name: String,
        /// The parser's error, with line and column.
        source: Box<toml::de::Error>,
    },
    #[error("workload {name}: {reason}")]
    Invalid { name: String, reason: String },
    #[error("workload {name}: {source}")]
    Trace { name: String, source: TraceError },
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name; the file's name by default.
    #[serde(default)]
    pub name: String,
    /// What the workload represents, in one sentence.
    pub description: String,
    /// `memory.max` of the cgroup of the whole workload, unless the experiment sets another.
    pub memory: String,
    /// Swap device, unless the experiment sets another: zram, pmem, nvme, ssd, hdd or none.
    #[serde(default = "default_swap")]
    pub swap: String,
    /// Memory of the machine, by default four times `memory`. If it is less than the workload
    /// needs, reclaim is global.
    pub machine_memory: Option<String>,
    /// Zones of the machine; by default they follow from its memory size.
    pub zones: Option<ZonesSpec>,
    /// Settings of the machine as in `--set key=value`; those on the command line come later.
    #[serde(default)]
    pub settings: Vec<String>,
    /// CPUs of the machine.
    #[serde(default = "one")]
    pub cpus: u32,
    /// Cgroups below the cgroup of the workload.
    #[serde(default)]
    pub cgroup: Vec<CgroupSpec>,
    #[serde(default)]
    pub file: Vec<FileSpec>,
    #[serde(default)]
    pub process: Vec<ProcessSpec>,
    /// A trace of the kernel reference, instead of processes.
    pub trace: Option<TraceTable>,
}

fn default_swap() -> String {
    "zram".to_owned()
}

fn one() -> u32 {
    1
}

/// Sizes of the machine's zones, as in `memory`; a zone left out is empty.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZonesSpec {
    /// Memory the oldest devices can address.
    pub dma: Option<String>,
    /// Memory that devices with 32 address bits can address.
    pub dma32: Option<String>,
    /// Ordinary memory.
    pub normal: Option<String>,
    /// Memory for movable pages: those of processes and files.
    pub movable: Option<String>,
}

impl ZonesSpec {
    /// Sizes of the zones, in pages.
    ///
    /// # Errors
    /// Fails if a size is invalid.
    pub fn pages(&self, workload: &Workload) -> Result<[u32; 4], WorkloadError> {
        let mut zones = [0; 4];
        let sizes = [&self.dma, &self.dma32, &self.normal, &self.movable];
        for (pages, size) in zones.iter_mut().zip(sizes) {
            if let Some(size) = size {
                *pages = workload.pages("zone", size)? as u32;
            }
        }
        Ok(zones)
    }
}

pub(crate) fn zone_index(name: &str) -> Option<usize> {
    ["dma", "dma32", "normal", "movable"]
        .iter()
        .position(|known| *known == name)
}

/// A cgroup below the cgroup of the workload; sizes as in `memory`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupSpec {
    pub name: String,
    /// `memory.min`.
    pub min: Option<String>,
    /// `memory.low`.
    pub low: Option<String>,
    /// `memory.high`.
    pub high: Option<String>,
    /// `memory.max`.
    pub max: Option<String>,
    /// `memory.swap.max`.
    pub swap_max: Option<String>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    pub name: String,
    pub size: String,
    /// Whether read-ahead is used.
    #[serde(default)]
    pub readahead: bool,
}

/// A kind of process.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSpec {
    pub name: String,
    /// How many of them run in parallel.
    #[serde(default = "one")]
    pub count: u32,
    /// Threads of each: all go through its phases in its memory. The first to end ends the process.
    #[serde(default = "one")]
    pub threads: u32,
    /// How often each goes through its phases; it exits after each time.
    #[serde(default = "one")]
    pub repeat: u32,
    /// Children it forks after its first phase; they also run the phases that follow.
    #[serde(default)]
    pub forks: u32,
    /// When it starts.
    #[serde(default)]
    pub start_ms: u64,
    /// Cgroup it runs in; by default the workload's.
    pub cgroup: Option<String>,
    /// Highest zone of its memory: dma, dma32, normal or movable; by default any.
    pub highest_zone: Option<String>,
    /// What it touches.
    pub area: Vec<AreaSpec>,
    /// What it does, in order.
    pub phase: Vec<PhaseSpec>,
}

/// A part of memory or of a file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AreaSpec {
    pub name: String,
    /// Size of anonymous memory; for a file, by default the whole file.
    pub size: Option<String>,
    /// The file; anonymous memory if left out.
    pub file: Option<String>,
    /// Whether each process has a copy of the file.
    #[serde(default)]
    pub own: bool,
    /// Whether the file is mapped instead of read.
    #[serde(default)]
    pub mmap: bool,
    /// Whether 2 MiB pages are used where they fit.
    #[serde(default)]
    pub huge: bool,
    /// Whether the memory is locked.
    #[serde(default)]
    pub locked: bool,
    /// Advice about a mapping: normal, random or sequential.
    #[serde(default)]
    pub advice: AdviceSpec,
}

/// Advice about a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdviceSpec {
    /// No advice.
    #[default]
    Normal,
    /// `MADV_RANDOM`.
    Random,
    /// `MADV_SEQUENTIAL`.
    Sequential,
}

/// A phase of a process.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseSpec {
    /// Areas touched once from first to last page; anonymous areas are written.
    #[serde(default)]
    pub populate: Vec<String>,
    /// Touches by the streams after that.
    #[serde(default)]
    pub touches: u64,
    /// Think time between two touches, in ns.
    #[serde(default)]
    pub think_ns: u64,
    /// Streams of touches.
    #[serde(default)]
    pub stream: Vec<StreamSpec>,
    /// Whether it begins only when all processes of this kind have ended the phase before.
    #[serde(default)]
    pub together: bool,
    /// Whether it waits at the end until no file page is dirty (`sync`).
    #[serde(default)]
    pub sync: bool,
    /// Areas whose pages are freed at the end; anonymous contents are lost (`MADV_DONTNEED`).
    #[serde(default)]
    pub release: Vec<String>,
    /// How often the phase runs.
    #[serde(default = "one")]
    pub repeat: u32,
    /// Start of each repetition, counted from the start of the one before; at once if it is late.
    #[serde(default)]
    pub every_ms: u64,
}

/// A trace of the kernel reference.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceTable {
    /// Name of the pattern.
    pub pattern: String,
    /// Number of pages.
    pub pages: u32,
    /// Number of hot pages.
    #[serde(default)]
    pub hot: u32,
    /// Exponent of its distribution.
    #[serde(default)]
    pub theta: f64,
    /// Touches of the main phase.
    pub touches: u64,
    /// Hash of the trace with the reference's seed 12345, as computed in its guests.
    pub hash: Option<String>,
}

impl TraceTable {
    /// The parameters of the trace with a seed.
    pub fn spec(&self, seed: u64) -> TraceSpec {
        TraceSpec {
            pattern: self.pattern.clone(),
            pages: self.pages,
            hot: self.hot,
            theta: self.theta,
            seed,
            touches: self.touches,
        }
    }
}

/// Largest area or file, in pages: 64 GiB.
const MAX_PAGES: u64 = 1 << 24;

impl Workload {
    /// Parses a workload from TOML.
    ///
    /// # Errors
    /// [`WorkloadError`] says what is wrong and where.
    pub fn parse(name: &str, text: &str) -> Result<Workload, WorkloadError> {
        let mut workload: Workload =
            toml::from_str(text).map_err(|source| WorkloadError::Toml {
                name: name.to_owned(),
                source: Box::new(source),
            })?;
        if workload.name.is_empty() {
            name.clone_into(&mut workload.name);
        }
        workload.check()?;
        Ok(workload)
    }

    pub(super) fn invalid(&self, reason: String) -> WorkloadError {
        WorkloadError::Invalid {
            name: self.name.clone(),
            reason,
        }
    }

    /// Converts a size to pages.
    ///
    /// # Errors
    /// Fails if the text is not a size between 4 KiB and 64 GiB.
    pub fn pages(&self, what: &str, size: &str) -> Result<u64, WorkloadError> {
        let bytes =
            size_bytes(size).map_err(|error| self.invalid(format!("{what} `{size}`: {error}")))?;
        let pages = bytes / PAGE_BYTES;
        if pages == 0 || pages > MAX_PAGES {
            return Err(self.invalid(format!("{what} `{size}` is not between 4 KiB and 64 GiB")));
        }
        Ok(pages)
    }

    fn check(&self) -> Result<(), WorkloadError> {
        self.pages("memory", &self.memory)?;
        if self.swap != "none" && self.swap.parse::<DeviceKind>().is_err() {
            let names = DeviceKind::ALL.map(DeviceKind::name).join(", ");
            let swap = &self.swap;
            return Err(self.invalid(format!("swap `{swap}` is none of {names} and none")));
        }
        if let Some(zones) = &self.zones {
            zones.pages(self)?;
        }
        if !(1..=1024).contains(&self.cpus) {
            return Err(self.invalid("cpus is not between 1 and 1024".to_owned()));
        }
        self.check_names()?;
        if let Some(trace) = &self.trace {
            if !self.process.is_empty() {
                return Err(self.invalid("has both a trace and processes".to_owned()));
            }
            let spec = trace.spec(1);
            return TraceGenerator::new(&spec)
                .map(|_| ())
                .map_err(|source| WorkloadError::Trace {
                    name: self.name.clone(),
                    source,
                });
        }
        if self.process.is_empty() {
            return Err(self.invalid("has neither a process nor a trace".to_owned()));
        }
        let processes: u64 = self
            .process
            .iter()
            .map(|p| {
                let at_once = u64::from(p.count) * u64::from(p.threads);
                at_once.saturating_mul((1 + u64::from(p.forks)) * u64::from(p.repeat))
            })
            .sum();
        if processes > 1_000_000 {
            return Err(self.invalid(format!("starts {processes} processes, over 1000000")));
        }
        self.process.iter().try_for_each(|p| self.check_process(p))
    }

    fn check_process(&self, process: &ProcessSpec) -> Result<(), WorkloadError> {
        let of = &process.name;
        self.check_effects(process)?;
        if let Some(cgroup) = &process.cgroup
            && !self.cgroup.iter().any(|known| known.name == *cgroup)
        {
            return Err(self.invalid(format!("process {of}: no cgroup `{cgroup}`")));
        }
        if process.threads == 0 || process.threads > 1 && (process.forks > 0 || process.repeat > 1)
        {
            let reason = "needs threads, and with several neither forks nor repeats";
            return Err(self.invalid(format!("process {of}: {reason}")));
        }
        for area in &process.area {
            self.area_pages(area)?;
        }
        if let Some(zone) = &process.highest_zone
            && zone_index(zone).is_none()
        {
            let reason = format!("process {of}: `{zone}` is none of dma, dma32, normal, movable");
            return Err(self.invalid(reason));
        }
        for phase in &process.phase {
            for area in phase.populate.iter().chain(&phase.release) {
                self.area_index(process, area)?;
            }
            if phase.touches > 0 && phase.stream.is_empty() {
                return Err(self.invalid(format!("process {of}: touches without a stream")));
            }
            for stream in &phase.stream {
                self.area_index(process, &stream.area)?;
                self.check_stream(of, stream)?;
            }
        }
        Ok(())
    }

    fn check_stream(&self, of: &str, stream: &StreamSpec) -> Result<(), WorkloadError> {
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let reason = if !share(stream.from) || !share(stream.to) || stream.from >= stream.to {
            "from and to must be 0 to 1, from the smaller"
        } else if !share(stream.write) {
            "write must be 0 to 1"
        } else if !(stream.weight > 0.0 && stream.weight <= 1e9) {
            "weight must be positive"
        } else if !(0.0..=10.0).contains(&stream.theta) {
            "theta must be 0 to 10"
        } else if !(0.001..=10.0).contains(&stream.deviation) {
            "deviation must be 0.001 to 10"
        } else {
            return Ok(());
        };
        let area = &stream.area;
        Err(self.invalid(format!("process {of}, stream over {area}: {reason}")))
    }

    /// The index of an area of a process.
    ///
    /// # Errors
    /// Fails if the process has no area of that name.
    pub fn area_index(&self, process: &ProcessSpec, area: &str) -> Result<usize, WorkloadError> {
        process
            .area
            .iter()
            .position(|known| known.name == area)
            .ok_or_else(|| self.invalid(format!("process {}: no area `{area}`", process.name)))
    }

    /// Number of pages of an area.
    ///
    /// # Errors
    /// Fails if the size is missing or invalid, or the file is unknown.
    pub fn area_pages(&self, area: &AreaSpec) -> Result<u64, WorkloadError> {
        let size = match (&area.size, &area.file) {
            (Some(size), _) => size,
            (None, Some(file)) => &self.find_file(file)?.1.size,
            (None, None) => {
                return Err(self.invalid(format!("area {} needs a size", area.name)));
            }
        };
        let pages = self.pages("size", size)?;
        if let Some(file) = &area.file {
            let of_file = self.pages("size", &self.find_file(file)?.1.size)?;
            if pages > of_file {
                return Err(self.invalid(format!("area {} is larger than its file", area.name)));
            }
        }
        Ok(pages)
    }

    /// Finds a file and its index by name.
    ///
    /// # Errors
    /// Fails if there is no file of that name.
    pub fn find_file(&self, name: &str) -> Result<(usize, &FileSpec), WorkloadError> {
        self.file
            .iter()
            .enumerate()
            .find(|(_, file)| file.name == name)
            .ok_or_else(|| self.invalid(format!("no file `{name}`")))
    }
}

#[cfg(test)]
#[path = "spec_tests.rs"]
pub(crate) mod tests;
