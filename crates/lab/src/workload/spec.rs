// SPDX-License-Identifier: Apache-2.0
//! Workloads as TOML files describe them.
//!
//! A workload is a set of processes in memory cgroups. A process has areas (anonymous memory, a file
//! read through a descriptor, a mapped file) and phases; a phase populates areas, and touches them
//! along weighted streams. Or it is one trace of the kernel reference. `docs/use/workloads.md` describes
//! every key.

use agewise_policy::units::size_bytes;
use serde::Deserialize;
use thiserror::Error;

pub use super::stream::{StreamOrder, StreamSpec};

use super::kernel_trace::{TraceError, TraceGenerator, TraceSpec};

/// A workload that cannot be used.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// Not TOML, a key is unknown or missing, a value has the wrong type.
    #[error("workload {name}: {source}")]
    Toml {
        /// The workload.
        name: String,
        /// What the parser says, with line and column.
        source: Box<toml::de::Error>,
    },
    /// The values make no workload.
    #[error("workload {name}: {reason}")]
    Invalid {
        /// The workload.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// Its trace is impossible.
    #[error("workload {name}: {source}")]
    Trace {
        /// The workload.
        name: String,
        /// Why.
        source: TraceError,
    },
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its name; the file's unless given.
    #[serde(default)]
    pub name: String,
    /// What it stands for, in a sentence.
    pub description: String,
    /// `memory.max` of the cgroup all of it runs in, unless the experiment sets another.
    pub memory: String,
    /// Swap device unless the experiment sets another: zram, pmem, nvme, ssd, hdd or none.
    #[serde(default = "default_swap")]
    pub swap: String,
    /// Memory of the machine; four times `memory` unless given. Less than the workload needs makes
    /// reclaim global.
    pub machine_memory: Option<String>,
    /// Zones of the machine; by the size of its memory unless given.
    pub zones: Option<ZonesSpec>,
    /// Settings of the machine, as `--set key=value` gives them; those given there come after.
    #[serde(default)]
    pub settings: Vec<String>,
    /// CPUs of the machine.
    #[serde(default = "one")]
    pub cpus: u32,
    /// Cgroups below the one of the workload.
    #[serde(default)]
    pub cgroup: Vec<CgroupSpec>,
    /// Files.
    #[serde(default)]
    pub file: Vec<FileSpec>,
    /// Processes.
    #[serde(default)]
    pub process: Vec<ProcessSpec>,
    /// A trace of the kernel reference, in place of processes.
    pub trace: Option<TraceTable>,
}

fn default_swap() -> String {
    "zram".to_owned()
}

fn one() -> u32 {
    1
}

/// Sizes of the zones of the machine, as in `memory`; those left out are empty.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZonesSpec {
    /// Memory that the oldest devices reach.
    pub dma: Option<String>,
    /// Memory that devices with 32 address bits reach.
    pub dma32: Option<String>,
    /// Ordinary memory.
    pub normal: Option<String>,
    /// Memory for what can be moved: all of processes and files.
    pub movable: Option<String>,
}

impl ZonesSpec {
    /// Their pages.
    ///
    /// # Errors
    /// When a size is none.
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

/// The index of a zone of a name.
pub(crate) fn zone_index(name: &str) -> Option<usize> {
    ["dma", "dma32", "normal", "movable"]
        .iter()
        .position(|known| *known == name)
}

/// A cgroup below the one of the workload; sizes as in `memory`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CgroupSpec {
    /// Its name.
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
    /// Its name.
    pub name: String,
    /// Its size.
    pub size: String,
    /// Read-ahead is used.
    #[serde(default)]
    pub readahead: bool,
}

/// A kind of process.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSpec {
    /// Its name.
    pub name: String,
    /// How many of them run at the same time.
    #[serde(default = "one")]
    pub count: u32,
    /// Threads of each: all run through its phases in its memory. The first to end ends it.
    #[serde(default = "one")]
    pub threads: u32,
    /// How often each runs through its phases; it exits after each time.
    #[serde(default = "one")]
    pub repeat: u32,
    /// Children it forks after its first phase; they run the phases that follow, too.
    #[serde(default)]
    pub forks: u32,
    /// When it starts.
    #[serde(default)]
    pub start_ms: u64,
    /// Cgroup it runs in; that of the workload unless given.
    pub cgroup: Option<String>,
    /// Highest zone its memory comes from: dma, dma32, normal or movable; any unless given.
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
    /// Its name.
    pub name: String,
    /// Size of anonymous memory; of a file, all of it unless given.
    pub size: Option<String>,
    /// The file; anonymous memory without one.
    pub file: Option<String>,
    /// Each process has a copy of the file for itself.
    #[serde(default)]
    pub own: bool,
    /// The file is mapped, not read.
    #[serde(default)]
    pub mmap: bool,
    /// 2 MiB pages are used where they fit.
    #[serde(default)]
    pub huge: bool,
    /// The memory is locked.
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
    /// None.
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
    /// Areas touched once from first to last page, anonymous ones written.
    #[serde(default)]
    pub populate: Vec<String>,
    /// Touches along the streams after that.
    #[serde(default)]
    pub touches: u64,
    /// Time the process thinks between two touches, in ns.
    #[serde(default)]
    pub think_ns: u64,
    /// Where touches go.
    #[serde(default)]
    pub stream: Vec<StreamSpec>,
    /// Begins when all processes of this kind have ended the phase before.
    #[serde(default)]
    pub together: bool,
    /// Waits at the end until no file page is dirty any more (`sync`).
    #[serde(default)]
    pub sync: bool,
    /// Areas whose pages are given back at the end, anonymous memory lost (`MADV_DONTNEED`).
    #[serde(default)]
    pub release: Vec<String>,
    /// How often the phase is gone through.
    #[serde(default = "one")]
    pub repeat: u32,
    /// When each repetition starts, counted from the start of the one before; at once if it is late.
    #[serde(default)]
    pub every_ms: u64,
}

/// A trace of the kernel reference.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceTable {
    /// Its pattern.
    pub pattern: String,
    /// Its pages.
    pub pages: u32,
    /// Its hot pages.
    #[serde(default)]
    pub hot: u32,
    /// Exponent of its distribution.
    #[serde(default)]
    pub theta: f64,
    /// Touches of the main phase.
    pub touches: u64,
    /// Hash of the trace with the reference's seed 12345, as its guests computed it.
    pub hash: Option<String>,
}

impl TraceTable {
    /// The trace with a seed.
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
    /// Reads a workload from TOML.
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

    fn invalid(&self, reason: String) -> WorkloadError {
        WorkloadError::Invalid {
            name: self.name.clone(),
            reason,
        }
    }

    /// Pages of a size.
    ///
    /// # Errors
    /// When the text is no size or more than 64 GiB.
    pub fn pages(&self, what: &str, size: &str) -> Result<u64, WorkloadError> {
        let bytes =
            size_bytes(size).map_err(|error| self.invalid(format!("{what} `{size}`: {error}")))?;
        let pages = bytes / 4096;
        if pages == 0 || pages > MAX_PAGES {
            return Err(self.invalid(format!("{what} `{size}` is not between 4 KiB and 64 GiB")));
        }
        Ok(pages)
    }

    fn check(&self) -> Result<(), WorkloadError> {
        self.pages("memory", &self.memory)?;
        if let Some(zones) = &self.zones {
            zones.pages(self)?;
        }
        if !(1..=1024).contains(&self.cpus) {
            return Err(self.invalid("cpus is not between 1 and 1024".to_owned()));
        }
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
    /// When it has none of that name.
    pub fn area_index(&self, process: &ProcessSpec, area: &str) -> Result<usize, WorkloadError> {
        process
            .area
            .iter()
            .position(|known| known.name == area)
            .ok_or_else(|| self.invalid(format!("process {}: no area `{area}`", process.name)))
    }

    /// Pages of an area.
    ///
    /// # Errors
    /// When its size is missing or impossible, or its file unknown.
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

    /// A file and its index.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn find_file(&self, name: &str) -> Result<(usize, &FileSpec), WorkloadError> {
        self.file
            .iter()
            .enumerate()
            .find(|(_, file)| file.name == name)
            .ok_or_else(|| self.invalid(format!("no file `{name}`")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMALL: &str = r#"
        description = "a test"
        memory = "1MiB"
        [[process]]
        name = "one"
        [[process.area]]
        name = "heap"
        size = "2MiB"
        [[process.phase]]
        populate = ["heap"]
        touches = 10
        [[process.phase.stream]]
        area = "heap"
        order = "zipf"
    "#;

    #[test]
    fn a_small_workload_is_read() {
        let workload = Workload::parse("small", SMALL).unwrap();
        assert_eq!((workload.name.as_str(), workload.cpus), ("small", 1));
        assert_eq!(
            workload.area_pages(&workload.process[0].area[0]).unwrap(),
            512
        );
    }

    #[test]
    fn faults_say_what_and_where() {
        for (from, to, expected) in [
            ("memory = \"1MiB\"", "memory = \"lots\"", "lots"),
            ("size = \"2MiB\"", "", "needs a size"),
            (
                "populate = [\"heap\"]",
                "populate = [\"stack\"]",
                "no area `stack`",
            ),
            ("order = \"zipf\"", "order = \"random\"", "random"),
            ("order = \"zipf\"", "order = \"zipf\"\ncolour = 1", "colour"),
            (
                "order = \"zipf\"",
                "order = \"zipf\"\nfrom = 0.5\nto = 0.5",
                "from and to",
            ),
            ("touches = 10", "touches = -1", "touches"),
            (
                "touches = 10",
                "touches = 10\nrelease = [\"stack\"]",
                "no area `stack`",
            ),
            (
                "name = \"one\"",
                "name = \"one\"\nhighest_zone = \"high\"",
                "none of dma",
            ),
            (
                "memory = \"1MiB\"",
                "memory = \"1MiB\"\nzones = { normal = \"1MiB\", high = \"1MiB\" }",
                "high",
            ),
            (
                "memory = \"1MiB\"",
                "memory = \"1MiB\"\nzones = { normal = \"many\" }",
                "many",
            ),
        ] {
            let error = Workload::parse("bad", &SMALL.replace(from, to)).unwrap_err();
            let text = format!("{error}");
            assert!(text.contains(expected) && text.contains("bad"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[ -~\n]{0,200}") {
            let _ = Workload::parse("fuzz", &text);
        }

        #[test]
        fn no_damage_panics(at in 0usize..400, text in "[ -~\n]{0,12}") {
            let mut damaged = SMALL.to_owned();
            let at = at % damaged.len();
            damaged.replace_range(at..at, &text);
            let _ = Workload::parse("fuzz", &damaged);
        }
    }
}
