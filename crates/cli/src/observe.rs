// SPDX-License-Identifier: Apache-2.0
//! What `report` and `watch` share: how targets are named, and how an agent is opened for them.

use std::time::Duration;

use agewise_host::agent::{Agent, AgentConfig, SCAN_INTERVAL_MIN_MS, Subject, Targets};
use agewise_host::cgroup::{Cgroup, Hierarchy, TreeLimits};
use agewise_host::clear::{ClearPolicy, Means};
use agewise_host::eye::pagemap::Pagemap;
use agewise_host::eye::{AccessSource, EyeError, Resolution};
use agewise_host::pagewalk::PageWalk;
use agewise_host::root::Roots;
use agewise_policy::sample::Bounds;
use agewise_policy::workingset::{Intervals, OldestPages};
use anyhow::Context;

use crate::units;

/// Most targets given by name.
pub const TARGETS_MAX: usize = 64;

/// How ages are told apart, and how truly.
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
    /// `auto` takes the narrowest bin: more looks would cost CPU time and tell nothing.
    #[arg(long, value_name = "DURATION", default_value = "auto", value_parser = scan_interval)]
    pub scan_interval: ScanInterval,

    /// Where to count pages that were never seen accessed while observed.
    #[arg(long, value_enum, default_value_t = Unseen::AtLeast)]
    pub unseen: Unseen,

    /// Follow every page instead of a sample.
    ///
    /// Beyond 256 MiB of resident memory a fixed sample is followed: small mappings, and up to 6144
    /// blocks of 64 KiB of the others. Resident memory stays exact; each age bin is then right to within the interval
    /// that is printed, 95 times of 100. A sample costs the same whatever the size of the program.
    #[arg(long)]
    pub exact: bool,

    /// Spend at most this much of one core on clearing accessed bits, in percent.
    ///
    /// Where that is too little, memory takes turns that come more rarely. Ages stay right for what is
    /// idle; memory whose use changes may seem younger or older than it is until its turn comes.
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "exact")]
    pub cpu_limit: Option<f64>,
}

/// A share of one core in percent.
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
    /// As said.
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
    /// The agent's configuration; scans come at least every `at_least`.
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

/// Whole milliseconds of a duration, at least one.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}

/// Processes and cgroups by name.
///
/// # Errors
/// One of them is not there, or has no memory (a kernel thread, a zombie).
pub fn listed(pids: &[u32], cgroups: &[String]) -> anyhow::Result<Targets> {
    let roots = Roots::default();
    let count = pids.len() + cgroups.len();
    anyhow::ensure!(
        count <= TARGETS_MAX,
        "{count} targets given, at most {TARGETS_MAX} at a time"
    );
    let mut subjects = Vec::new();
    for pid in pids {
        anyhow::ensure!(
            *pid != std::process::id(),
            "agewise does not observe itself (pid {pid})"
        );
        subjects.push(Subject::process(&roots.proc, *pid)?);
    }
    if !cgroups.is_empty() {
        let hierarchy = Hierarchy::discover(&roots.proc)?;
        for cgroup in cgroups {
            subjects.push(Subject::Cgroup(Cgroup::open(&hierarchy, cgroup)?));
        }
    }
    Ok(Targets::Listed(subjects))
}

/// Every cgroup of the machine, down to a depth.
///
/// # Errors
/// No hierarchy accounts memory.
pub fn all_cgroups(depth_max: usize) -> anyhow::Result<Targets> {
    let hierarchy = Hierarchy::discover(&Roots::default().proc)?;
    let limits = TreeLimits {
        depth_max,
        ..TreeLimits::default()
    };
    Ok(Targets::AllCgroups { hierarchy, limits })
}

/// How an agent learns what was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentEye {
    /// The best that this machine and these privileges allow: without the right to read page tables
    /// only whole mappings of one's own processes can be told apart.
    Best,
    /// Page tables, or nothing.
    PageWalk,
    /// Whole mappings.
    Pagemap,
}

/// An agent for targets with the best eye, and what there is to say about it.
///
/// # Errors
/// As [`open_agent_with`].
pub fn open_agent(
    targets: Targets,
    config: AgentConfig,
) -> anyhow::Result<(Agent, Option<String>)> {
    open_agent_with(targets, config, AgentEye::Best)
}

/// An agent for targets, and what there is to say about its eye.
///
/// # Errors
/// Those of [`Agent::new`], and of an eye that fails, unless another may be used instead.
pub fn open_agent_with(
    targets: Targets,
    mut config: AgentConfig,
    which: AgentEye,
) -> anyhow::Result<(Agent, Option<String>)> {
    const COARSE: &str = "ages of whole mappings only, and of your own processes: a mapping is as young as its last \
         access";
    let walk = (which != AgentEye::Pagemap).then(PageWalk::open);
    let (eye, note): (Box<dyn AccessSource>, _) = match walk {
        Some(Ok(walk)) => (Box::new(walk), None),
        Some(Err(error @ (EyeError::NoPrivilege { .. } | EyeError::Unsupported { .. })))
            if which == AgentEye::Best =>
        {
            (
                Box::new(Pagemap::new()),
                Some(format!("{COARSE} ({error})")),
            )
        }
        Some(Err(error)) => {
            return Err(error).context("page tables cannot be read (see `agewise doctor`)");
        }
        None => (Box::new(Pagemap::new()), Some(COARSE.to_owned())),
    };
    if eye.abilities().resolution == Resolution::Mapping {
        // MADV_COLD clears page by page what this eye cannot tell apart.
        config.clear.means = Means::Refs;
    }
    Ok((Agent::new(eye, Roots::default(), targets, config)?, note))
}

#[cfg(test)]
mod tests {
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
    fn what_cannot_be_observed_says_why() {
        let own = listed(&[std::process::id()], &[]).unwrap_err().to_string();
        assert!(own.contains("itself"), "{own}");
        let many = listed(&[1; 65], &[]).unwrap_err().to_string();
        assert!(many.contains("at most 64"), "{many}");
        assert!(listed(&[u32::MAX], &[]).is_err());
    }
}
