// SPDX-License-Identifier: Apache-2.0
//! Shared by all that observes: naming targets, opening an agent for them, and waiting between two
//! of its looks.

use std::path::Path;
use std::time::{Duration, Instant};

use agewise_host::access::{AccessError, AccessSource, Resolution};
use agewise_host::agent::{Agent, AgentConfig, SCAN_INTERVAL_MIN_MS, Subject, Targets};
use agewise_host::cgroup::{Cgroup, CgroupError, Hierarchy, TreeLimits, name};
use agewise_host::clear::{ClearPolicy, Means};
use agewise_host::guest::Guests;
use agewise_host::mover::own_lineage;
use agewise_host::pagecache::FileAges;
use agewise_host::root::Roots;
use agewise_host::source::{self, Open, Source};
use agewise_policy::sample::Bounds;
use agewise_policy::workingset::{Intervals, OldestPages};
use agewise_trace::suggest::nearest;
use anyhow::Context;
use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::refuse;
use crate::signal::Stop;
use crate::units;

/// The most targets that can be given by name.
pub const TARGETS_MAX: usize = 64;

/// Exit status if every target was gone before the end.
pub const EXIT_TARGETS_GONE: u8 = 3;

/// Age bins and accuracy.
#[derive(Debug, clap::Args)]
pub struct AgeArgs {
    /// Upper bounds of the age bins, increasing, at most 31.
    ///
    /// Units are ms, s, m, h and d; a number alone is in milliseconds. One more bin takes
    /// everything older. Bins are not cumulative.
    #[arg(long, value_name = "LIST", default_value = "1s,5s,30s,2m,10m")]
    pub intervals: Intervals,

    /// Time between two looks at all memory: `auto`, or a duration of at least 100ms.
    ///
    /// `auto` uses the narrowest bin: more looks would cost CPU time without adding information.
    #[arg(long, value_name = "DURATION", default_value = "auto", value_parser = scan_interval)]
    pub scan_interval: ScanInterval,

    /// Where to count pages that were never seen accessed while observed.
    #[arg(long, value_enum, default_value_t = Unseen::AtLeast)]
    pub unseen: Unseen,

    /// Follow every page instead of a sample.
    ///
    /// Beyond 384 MiB of resident memory a fixed sample is followed: small mappings, and up to 6144
    /// blocks of 64 KiB of the others. Resident memory stays exact (where the processes of a cgroup
    /// share anonymous memory, it is what the kernel charges for); each age bin then has a 95 %
    /// interval, which is printed. A sample costs the same whatever the size of the program.
    #[arg(long)]
    pub exact: bool,

    /// Spend at most this much of one core on clearing accessed bits, in percent.
    ///
    /// If that is too little, parts of memory take turns, at longer intervals. Ages stay right for
    /// idle memory; memory whose use changes may seem younger or older than it is until its turn.
    /// Each look clears at least one part, so that less than about 0.05 is not kept.
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "exact")]
    pub cpu_limit: Option<f64>,
}

/// Parses a share of one core in percent.
pub fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err(format!(
            "'{text}' is not a percentage of one core above 0 and up to 100"
        )),
    }
}

/// The argument of `--scan-interval`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanInterval {
    /// As the bins need.
    Auto,
    /// As given.
    Every(Duration),
}

/// Where pages of unknown age go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Unseen {
    /// Into the bin of the age they certainly have: for how long they have been observed.
    AtLeast,
    /// Into the last bin, as memory older than any bound.
    Oldest,
}

fn scan_interval(text: &str) -> Result<ScanInterval, String> {
    if text == "auto" {
        return Ok(ScanInterval::Auto);
    }
    let interval = units::positive_duration(text)?;
    if interval < Duration::from_millis(SCAN_INTERVAL_MIN_MS) {
        return Err(format!(
            "looking more often than every {SCAN_INTERVAL_MIN_MS}ms measures itself"
        ));
    }
    Ok(ScanInterval::Every(interval))
}

impl AgeArgs {
    /// The agent's configuration, with a scan at least every `at_least`.
    pub fn config(&self, at_least: Duration) -> AgentConfig {
        let mut config = AgentConfig::new(self.intervals.clone());
        let interval_ms = match self.scan_interval {
            ScanInterval::Auto => config.scan_interval_ms(),
            ScanInterval::Every(interval) => millis(interval),
        };
        config.scan_interval_ms = Some(interval_ms.min(millis(at_least)));
        config.oldest = match self.unseen {
            Unseen::AtLeast => OldestPages::AtLeast,
            Unseen::Oldest => OldestPages::Unbounded,
        };
        config.clear = ClearPolicy::exact();
        config.sample = (!self.exact).then(Bounds::default);
        config.clear_percent = self.cpu_limit;
        config
    }
}

/// The configuration for finding memory older than `older_than`.
///
/// # Errors
/// The times do not form valid bins.
pub fn cold_config(older_than: Duration, interval: Duration) -> anyhow::Result<AgentConfig> {
    let mut bounds_ms = vec![millis(interval), millis(older_than)];
    bounds_ms.dedup();
    let mut config = AgentConfig::new(Intervals::new(bounds_ms)?);
    config.scan_interval_ms = Some(millis(interval));
    Ok(config)
}

/// A duration in whole milliseconds, at least one.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}

/// The process or cgroup that a command is about.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct OneTarget {
    /// A process.
    #[arg(long)]
    pub pid: Option<u32>,

    /// A memory cgroup with all cgroups below it: its path below the hierarchy, or its directory.
    #[arg(long, value_name = "PATH")]
    #[arg(value_parser = cgroup_path())]
    pub cgroup: Option<String>,
}

impl OneTarget {
    /// The target, to be looked at.
    ///
    /// # Errors
    /// Those of [`listed`].
    pub fn find(&self) -> anyhow::Result<Targets> {
        listed(self.pid.as_slice(), self.cgroup.as_slice())
    }

    /// The target, to be acted on.
    ///
    /// # Errors
    /// Those of [`listed`]; it is this process or one of its ancestors.
    pub fn find_to_act_on(&self) -> anyhow::Result<Targets> {
        if let Some(pid) = self.pid
            && own_lineage().contains(&pid)
        {
            anyhow::bail!(
                "process {pid} is agewise itself or one of its ancestors: it would wait for itself"
            );
        }
        self.find()
    }
}

/// Whether to act on processes that run KVM guests.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct GuestsArg {
    /// Also act on memory of processes that run KVM guests. What guests access is not seen: memory
    /// that looks idle may be in use, and comes back at the guest's expense.
    #[arg(long)]
    guests: bool,
}

impl From<GuestsArg> for Guests {
    fn from(arg: GuestsArg) -> Self {
        Guests::included_if(arg.guests)
    }
}

/// Targets from pids and cgroup names; one that is given twice, whatever its spelling, counts once.
///
/// # Errors
/// A target does not exist or has no memory (a kernel thread, a zombie). More than [`TARGETS_MAX`]
/// are a [`WrongArgument`](crate::usage::WrongArgument).
pub fn listed(pids: &[u32], cgroups: &[String]) -> anyhow::Result<Targets> {
    let roots = Roots::default();
    let count = pids.len() + cgroups.len();
    if count > TARGETS_MAX {
        refuse!("{count} targets given, at most {TARGETS_MAX} at a time");
    }
    let mut subjects = Vec::new();
    for (at, pid) in pids.iter().enumerate() {
        if pids[..at].contains(pid) {
            continue;
        }
        anyhow::ensure!(
            *pid != std::process::id(),
            "agewise does not observe itself (pid {pid})"
        );
        subjects.push(Subject::process(&roots.proc, *pid)?);
    }
    if !cgroups.is_empty() {
        let opened = open_each(&Hierarchy::discover(&roots.proc)?, cgroups)?;
        subjects.extend(opened.into_iter().map(Subject::Cgroup));
    }
    Ok(Targets::Listed(subjects))
}

/// Opens cgroups in the order given, each once.
fn open_each(hierarchy: &Hierarchy, given: &[String]) -> anyhow::Result<Vec<Cgroup>> {
    let mut opened = Vec::new();
    for given in given {
        let cgroup = open_cgroup(hierarchy, given)?;
        if !opened.contains(&cgroup) {
            opened.push(cgroup);
        }
    }
    Ok(opened)
}

/// Reads the path of a cgroup, which may hold bytes that are not UTF-8. An empty one is refused: in
/// a script it is a variable that was never set, and would name the root, with all of the machine.
pub fn cgroup_path() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().try_map(|given| match given.into_string() {
        Ok(text) if text.is_empty() => Err("an empty path names no cgroup; the root is /"),
        Ok(text) => Ok(text),
        Err(given) => Ok(name::text(Path::new(&given))),
    })
}

/// Opens a cgroup by the name that a user gave.
///
/// # Errors
/// Those of [`Cgroup::open`], with a cgroup of a similar name, if there is one, and of
/// [`Cgroup::check_memory`].
pub fn open_cgroup(hierarchy: &Hierarchy, given: &str) -> anyhow::Result<Cgroup> {
    let error = match Cgroup::open(hierarchy, given) {
        Ok(cgroup) => {
            cgroup.check_memory()?;
            return Ok(cgroup);
        }
        Err(error) => error,
    };
    let CgroupError::NotFound { path, .. } = &error else {
        return Err(error.into());
    };
    let listed = Cgroup::open(hierarchy, "/").and_then(|top| top.descendants(Default::default()));
    let listed = listed.unwrap_or_default().cgroups;
    let names: Vec<String> = listed.iter().map(Cgroup::name).collect();
    let names = || names.iter().map(String::as_str);
    let last = |path: &str| path.rsplit('/').next().map(str::to_owned);
    let near = nearest(path, names()).or_else(|| names().find(|other| last(other) == last(path)));
    match near {
        Some(near) => {
            anyhow::bail!("{error}; did you mean {}?", name::shown(near).terminal())
        }
        None => Err(error.into()),
    }
}

/// All cgroups of the machine, down to a depth.
///
/// # Errors
/// No hierarchy has the memory controller.
pub fn all_cgroups(depth_max: usize) -> anyhow::Result<Targets> {
    let hierarchy = Hierarchy::discover(&Roots::default().proc)?;
    let limits = TreeLimits {
        depth_max,
        ..TreeLimits::default()
    };
    Ok(Targets::AllCgroups { hierarchy, limits })
}

/// Opens an agent with the best access source; also returns a note about the source, if any.
///
/// # Errors
/// As [`open_agent_with`].
pub fn open_agent(
    targets: Targets,
    config: AgentConfig,
) -> anyhow::Result<(Agent, Option<String>)> {
    open_agent_with(targets, config, None)
}

/// Opens an agent with the given access source, or with the best one that this machine and these
/// privileges allow; also returns a note about the source, if any. Without the right to read page
/// tables, only whole mappings of the user's own processes have ages.
///
/// # Errors
/// Those of [`Agent::new`], and of a failing source if no other may be used instead.
pub fn open_agent_with(
    targets: Targets,
    mut config: AgentConfig,
    source: Option<&Source>,
) -> anyhow::Result<(Agent, Option<String>)> {
    let (source, passed_over) = match source {
        Some(source) => (open_source(source)?, None),
        None => best_source()?,
    };
    let mut note = None;
    if source.abilities().resolution == Resolution::Mapping {
        const COARSE: &str = "ages of whole mappings only, and of your own processes: a mapping is \
                              as young as its last access";
        note = Some(match passed_over {
            Some(error) => format!("{COARSE} ({error})"),
            None => COARSE.to_owned(),
        });
        // MADV_COLD clears single pages, which this source cannot distinguish.
        config.clear.means = Means::Refs;
    }
    Ok((Agent::new(source, Roots::default(), targets, config)?, note))
}

/// Makes the agent count file memory, mapped or not, for the cgroup it is charged to.
///
/// # Errors
/// The page cache cannot be followed here.
pub fn follow_files(agent: &mut Agent) -> anyhow::Result<()> {
    const WHAT: &str = "the page cache cannot be followed (see `agewise doctor`)";
    let horizon_ms = agent.config().intervals.horizon_ms();
    let ages = FileAges::with_frames(horizon_ms).context(WHAT)?;
    agent.follow_files(ages).context(WHAT)
}

/// Sleeps until `deadline` or until an exit is requested; returns true in the latter case. If
/// another program clears accessed bits, the agent reads them meanwhile.
pub fn pause_until(agent: Option<&mut Agent>, stop: &Stop, deadline: Instant) -> bool {
    if let Some(agent) = agent
        && let Some(period) = agent.interim_period()
    {
        loop {
            let next = Instant::now() + period;
            if next >= deadline {
                break;
            }
            if stop.wait_until(next) {
                return true;
            }
            agent.interim_scan();
        }
    }
    stop.wait_until(deadline)
}

fn open_source(source: &Source) -> anyhow::Result<Box<dyn AccessSource>> {
    let Open::Pages(open) = source.open else {
        anyhow::bail!("{} does not look at pages", source.name);
    };
    open().with_context(|| format!("{} cannot be used (see `agewise doctor`)", source.name))
}

/// The first source of single pages that works, and the error of the one before it. Only failures
/// due to the kernel or to privileges make it fall back to the next source.
fn best_source() -> anyhow::Result<(Box<dyn AccessSource>, Option<AccessError>)> {
    let mut passed_over = None;
    for source in source::ALL {
        let Open::Pages(open) = source.open else {
            continue;
        };
        match open() {
            Ok(opened) => return Ok((opened, passed_over)),
            Err(error @ (AccessError::NoPrivilege { .. } | AccessError::Unsupported { .. })) => {
                passed_over = Some(error);
            }
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("{} cannot be used (see `agewise doctor`)", source.name)
                });
            }
        }
    }
    anyhow::bail!("no access source works here: see `agewise doctor`")
}

#[cfg(test)]
mod tests {
    use agewise_host::cgroup::Version;

    use super::*;

    fn args(list: &str, interval: &str) -> AgeArgs {
        AgeArgs {
            intervals: list.parse().unwrap(),
            scan_interval: scan_interval(interval).unwrap(),
            unseen: Unseen::AtLeast,
            exact: false,
            cpu_limit: None,
        }
    }

    #[test]
    fn scans_follow_the_bins_and_the_time_there_is() {
        let every = |list, interval, at_least| {
            args(list, interval)
                .config(Duration::from_secs(at_least))
                .scan_interval_ms()
        };
        assert_eq!(every("1s,5s,30s,2m,10m", "auto", 30), 1000);
        assert_eq!(every("1h,2h", "auto", 30), 30_000);
        assert_eq!(every("1s,5s", "10s", 30), 10_000);
        assert_eq!(every("20ms", "auto", 30), SCAN_INTERVAL_MIN_MS);
        assert!(scan_interval("50ms").is_err() && scan_interval("0s").is_err());
    }

    #[test]
    fn a_slip_in_a_cgroup_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["system.slice/nginx.service", "batch/jobs"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        let error = |given| open_cgroup(&hierarchy, given).unwrap_err().to_string();
        let near = "did you mean /system.slice/nginx.service?";
        assert!(error("/system.slice/ngnix.service").ends_with(near));
        assert!(error("/nginx.service").ends_with(near));
        assert!(!error("/something/else").contains("did you mean"));
        assert!(open_cgroup(&hierarchy, "/batch/jobs").is_ok());
    }

    #[test]
    fn a_target_given_twice_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("batch/jobs")).unwrap();
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        let directory = dir.path().join("batch").display().to_string();
        let given = ["batch", "/batch/jobs", "/batch/", &directory].map(str::to_owned);
        let opened = open_each(&hierarchy, &given).unwrap();
        let names: Vec<String> = opened.iter().map(Cgroup::name).collect();
        assert_eq!(names, ["/batch", "/batch/jobs"]);

        let child = std::process::Command::new("sleep").arg("60").spawn();
        let mut child = child.expect("sleep");
        let targets = listed(&[child.id(), child.id()], &[]);
        child.kill().expect("a child");
        child.wait().expect("a child");
        let Targets::Listed(subjects) = targets.unwrap() else {
            panic!("a list becomes a list");
        };
        assert_eq!(subjects.len(), 1);
    }

    #[test]
    fn what_cannot_be_observed_says_why() {
        let own = listed(&[std::process::id()], &[]).unwrap_err().to_string();
        assert!(own.contains("itself"), "{own}");
        let many = listed(&[1; 65], &[]).unwrap_err().to_string();
        assert!(many.contains("at most 64"), "{many}");
        let many = listed(&[1; 65], &[]).unwrap_err();
        assert_eq!(crate::usage::exit_status(&many, 1), 2);
        for pid in [0, u32::MAX] {
            let error = listed(&[pid], &[]).unwrap_err();
            assert_eq!(crate::usage::exit_status(&error, 1), 2, "{error}");
        }
        let unborn = listed(&[1 << 22], &[]).unwrap_err();
        assert_eq!(crate::usage::exit_status(&unborn, 1), 1);
        assert!(unborn.to_string().contains("does not exist"), "{unborn}");
    }
}
