// SPDX-License-Identifier: Apache-2.0
//! Shared by `whatif`, `shrink` and their benchmark: watching for a while, and the cost of waiting.

use std::time::{Duration, Instant};

use agewise_host::access::{PAGE_BYTES, check_page_size};
use agewise_host::agent::{Agent, AgentConfig, Targets};
use agewise_host::clear::Means;
use agewise_host::root::Roots;
use agewise_host::whatif::{Around, Files, Sights, is_charged_for_files, kernel_in_use};
use agewise_policy::sample::Bounds;
use agewise_policy::table::PageSet;
use agewise_policy::whatif::{Curves, Params, WhatIf};
use agewise_policy::workingset::Intervals;
use anyhow::bail;

use crate::observe;
use crate::prices::{Costs, Meter};
use crate::refuse;
use crate::signal::Stop;
use crate::units::{self, duration_text};
use crate::usage::{Interrupted, TargetsGone, WrongArgument};

/// Shortest time between two looks.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The first interval of `auto`.
const INTERVAL_AUTO: Duration = Duration::from_secs(1);
/// `auto` looks more often while more than one part in this many of memory is used between two
/// looks: that bounds the uncertainty due to the unknown order of uses within an interval.
const USED_PART: u64 = 16;
/// In this part of the time nothing is counted: it only finds out which pages exist.
const LEARN_PART: u32 = 4;
/// Minimum number of looks in that part.
const LEARN_LOOKS: u32 = 3;
/// Minimum number of intervals between looks: one of them counts.
const INTERVALS_MIN: u32 = LEARN_LOOKS + 1;

/// How long commands watch by default.
const DURATION_DEFAULT: &str = "60s";

/// How long commands watch.
#[derive(Clone, Debug, clap::Args)]
pub struct Watching {
    /// How long to watch, at least 400ms. The first quarter only learns which pages are where.
    #[arg(long, value_name = "DURATION", default_value = DURATION_DEFAULT)]
    #[arg(value_parser = units::positive_duration)]
    pub duration: Duration,

    /// For a cgroup: count all file memory charged to it, mapped or not. Follows all reads of
    /// the machine while it watches, at 0.05 to 0.15 us per cached read of 4 KiB, and looks at the
    /// page cache.
    #[arg(long)]
    pub files: bool,
}

impl Watching {
    /// Whether something else than the default is asked for.
    pub fn is_changed(&self) -> bool {
        self.files || Ok(self.duration) != units::positive_duration(DURATION_DEFAULT)
    }

    /// The plan for a target, which is a cgroup or a process, with this time between two looks or
    /// one that is adapted.
    ///
    /// # Errors
    /// There would be too few looks to know anything, or a process would have to have a cache.
    pub fn plan(&self, interval: Option<Duration>, is_cgroup: bool) -> Result<Plan, WrongArgument> {
        let least = INTERVAL_MIN * INTERVALS_MIN;
        if self.duration < least {
            refuse!(
                "--duration {}: give at least {}, for {INTERVALS_MIN} intervals of {}",
                duration_text(self.duration),
                duration_text(least),
                duration_text(INTERVAL_MIN),
            );
        }
        let longest = self.duration / INTERVALS_MIN;
        if let Some(interval) = interval.filter(|interval| *interval > longest) {
            refuse!(
                "--interval {} is longer than a quarter of --duration {}: the first {LEARN_LOOKS} \
                 intervals only learn which pages are where; make --interval shorter or --duration \
                 longer",
                duration_text(interval),
                duration_text(self.duration),
            );
        }
        if self.files && !is_cgroup {
            refuse!("--files: file memory is charged to cgroups: give --cgroup PATH");
        }
        Ok(Plan {
            duration: self.duration,
            interval,
            spares_lists: false,
            files: self.files,
        })
    }
}

/// Reads the time between two looks.
///
/// # Errors
/// It is no duration, or shorter than [`INTERVAL_MIN`].
pub fn interval(text: &str) -> Result<Duration, String> {
    match units::positive_duration(text)? {
        interval if interval < INTERVAL_MIN => {
            Err("looking more often than every 100ms measures itself".to_owned())
        }
        interval => Ok(interval),
    }
}

/// How to watch.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Total duration. Longer only if looks take so long that nothing is known by then.
    pub duration: Duration,
    /// Time between two looks; `None` adapts it to the use of memory.
    pub interval: Option<Duration>,
    /// Leave the kernel's LRU lists undisturbed, since it is about to reclaim by them. Costs more.
    pub spares_lists: bool,
    /// For a cgroup: count all file memory charged to it, mapped or not. Costs programs that read
    /// files.
    pub files: bool,
}

impl Plan {
    /// The time to the second look. If it adapts, there are twice as many looks as are needed,
    /// which leaves time for slow ones.
    fn first_interval(&self) -> Duration {
        let auto = (self.duration / (2 * INTERVALS_MIN)).clamp(INTERVAL_MIN, INTERVAL_AUTO);
        self.interval.unwrap_or(auto)
    }

    /// When the look is made that is due at `next`: no later than the end, unless that had come
    /// after `elapsed`.
    fn wake(&self, began: Instant, elapsed: Duration, next: Instant) -> Instant {
        match elapsed < self.duration {
            true => next.min(began + self.duration),
            false => next,
        }
    }
}

/// The result of watching.
#[derive(Clone, Debug)]
pub struct Found {
    pub curves: Curves,
    /// The last time between two looks.
    pub interval: Duration,
    /// Number of resident pages that were simulated.
    pub sampled_pages: usize,
    /// Whether the curves include file pages charged to the target.
    pub has_files: bool,
    /// With [`Plan::files`]: page cache charged to the target, and the unused part of it, in bytes.
    pub cache_bytes: Option<[u64; 2]>,
    /// What bringing a page back cost meanwhile.
    pub costs: Costs,
    /// A note on how accesses are detected.
    pub note: Option<String>,
    /// Processes of the target that could not be looked at at the end: the curves are of the rest.
    pub unseen_processes: usize,
    /// Why watching ended early: the targets are gone. The curves cover the time until then.
    pub gone: Option<String>,
    /// CPU time of looking.
    pub look_cpu_ms: f64,
    /// CPU time of simulating.
    pub simulate_cpu_ms: f64,
}

impl Found {
    /// What of the target the curves leave out or see only roughly, in sentences.
    pub fn caveats(&self) -> Vec<String> {
        let unseen = (self.unseen_processes > 0).then(|| {
            format!(
                "processes that could not be looked at: {}; their memory is not included",
                self.unseen_processes
            )
        });
        let files = (!self.has_files).then(|| {
            "most files it maps are charged to other cgroups; none are included".to_owned()
        });
        unseen
            .into_iter()
            .chain(files)
            .chain(self.note.clone())
            .collect()
    }

    /// The same in one line, if there are any.
    pub fn caveat(&self) -> Option<String> {
        let caveats = self.caveats();
        (!caveats.is_empty()).then(|| caveats.join("; "))
    }
}

/// Watches the targets as one until the time is over or an exit is requested.
///
/// # Errors
/// The targets cannot be observed, all are gone ([`TargetsGone`]) or a signal arrived
/// ([`Interrupted`]) before anything is known.
pub fn watch(targets: Targets, plan: Plan, stop: &Stop) -> anyhow::Result<Found> {
    watch_until(targets, plan, stop).map_err(|error| match stop.requested() {
        Some(signal) => error.context(Interrupted(signal)),
        None => error,
    })
}

fn watch_until(targets: Targets, plan: Plan, stop: &Stop) -> anyhow::Result<Found> {
    let mut interval = plan.first_interval();
    let (mut agent, note) = open(targets, plan)?;
    let params = Params {
        kernel: kernel_in_use(&Roots::default()),
        ..Params::default()
    };
    let mut what_if = WhatIf::new(params);
    let (mut sights, mut meter) = (Sights::default(), Meter::new());
    let began = Instant::now();
    let (mut next, mut is_counting) = (began, false);
    let (mut look_ns, mut simulate_ns, mut has_files, mut shown_ms) = (0, 0, None, None);
    loop {
        sights.clear();
        let looking = Instant::now();
        let report = agent.tick_tapped(Some(&mut sights))?;
        let blind_ms = looking.elapsed().as_secs_f64() * 1e3;
        look_ns += report.cpu_ns;
        let pids: Vec<u32> = agent.spaces().map(|space| space.process().pid()).collect();
        if is_gone(&agent, plan) {
            break;
        }
        let before_ns = agewise_host::clock::thread_cpu_ns();
        let cgroup = agent
            .subjects()
            .find_map(|(subject, _)| subject.cgroup.clone());
        let has_files =
            *has_files.get_or_insert_with(|| is_charged_for_files(cgroup.as_ref(), &agent, &pids));
        let uses = agent.take_cache_uses();
        let cached = agent.cached(&uses, &mut shown_ms);
        let around = Around {
            files: Files::of(plan.files, has_files),
            cgroup: cgroup.as_ref(),
            cached: cached.as_ref(),
            blind_ms,
        };
        sights.show(&agent, &pids, &mut what_if, around);
        simulate_ns += agewise_host::clock::thread_cpu_ns() - before_ns;
        let (looks, elapsed) = (what_if.looks(), began.elapsed());
        meter.measure_if_due(elapsed, plan.duration);
        if looks > 1 && !is_counting && plan.interval.is_none() {
            let is_much = report.young_pages > report.present_pages / USED_PART
                || uses.values().map(PageSet::len).sum::<u64>()
                    > what_if.file_pages().resident / USED_PART;
            if is_much {
                interval = (interval / 2).max(INTERVAL_MIN);
            }
        }
        if !is_counting && looks > LEARN_LOOKS && elapsed >= plan.duration / LEARN_PART {
            what_if.count_anew();
            is_counting = true;
        }
        next = (next + interval).max(Instant::now());
        // At least one look is counted, however long looks take.
        let is_over = elapsed >= plan.duration && is_counting && what_if.observed_ms() > 0;
        if is_over || observe::pause_until(Some(&mut agent), stop, plan.wake(began, elapsed, next))
        {
            break;
        }
    }
    let seen = (interval, &meter);
    let mut found = found(&agent, &what_if, seen, note, [look_ns, simulate_ns])?;
    found.gone = is_gone(&agent, plan).then(|| why_gone(&agent));
    found.has_files = plan.files || has_files.unwrap_or(true);
    let pages = what_if.file_pages();
    let bytes = [pages.resident, pages.unused].map(|pages| pages.saturating_mul(PAGE_BYTES));
    found.cache_bytes = plan.files.then_some(bytes);
    Ok(found)
}

/// Whether nothing is left to watch. A cgroup may have a page cache without processes.
fn is_gone(agent: &Agent, plan: Plan) -> bool {
    agent.spaces().next().is_none() && (!plan.files || agent.is_finished())
}

/// Why there is no process to watch.
fn why_gone(agent: &Agent) -> String {
    let gone = agent
        .subjects()
        .find_map(|(subject, _)| subject.gone.clone());
    gone.unwrap_or_else(|| "there is no process in it".to_owned())
}

/// Opens an agent that looks as planned; also returns a note about its source.
fn open(targets: Targets, plan: Plan) -> anyhow::Result<(Agent, Option<String>)> {
    check_page_size("the curve of a memory")?;
    let intervals = Intervals::new(vec![1000, 60_000])?;
    let mut config = AgentConfig::new(intervals).sampled(Bounds::default());
    // Looks may become more frequent later, and each of them clears accessed bits.
    let finest = plan.interval.unwrap_or(INTERVAL_MIN);
    config.scan_interval_ms = Some(observe::millis(finest));
    if plan.spares_lists {
        config.clear.means = Means::Refs;
    }
    let (mut agent, note) = observe::open_agent(targets, config)?;
    if plan.files {
        observe::follow_files(&mut agent)?;
    }
    Ok((agent, note))
}

fn found(
    agent: &Agent,
    what_if: &WhatIf,
    (interval, meter): (Duration, &Meter),
    note: Option<String>,
    cpu_ns: [u64; 2],
) -> anyhow::Result<Found> {
    let curves = what_if.curves();
    if curves.observed_ms == 0 || curves.full_bytes == 0 {
        let short = "it was not watched for long enough; give a longer --duration";
        let why = match agent.spaces().next() {
            Some(_) => {
                let trouble = agent.spaces().find_map(|space| space.trouble());
                trouble.unwrap_or(short).to_owned()
            }
            None => {
                let why = format!("nothing is known yet: {}", why_gone(agent));
                return Err(TargetsGone(why).into());
            }
        };
        bail!("nothing is known yet: {why}");
    }
    Ok(Found {
        curves,
        interval,
        sampled_pages: what_if.sampled_pages(),
        has_files: true,
        cache_bytes: None,
        costs: meter.costs(),
        note,
        unseen_processes: agent.cost().unseen_processes,
        gone: None,
        look_cpu_ms: cpu_ns[0] as f64 / 1e6,
        simulate_cpu_ms: cpu_ns[1] as f64 / 1e6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_looks_are_refused() {
        let plan = |duration_ms, interval_ms: Option<u64>| {
            let watching = Watching {
                duration: Duration::from_millis(duration_ms),
                files: false,
            };
            let plan = watching.plan(interval_ms.map(Duration::from_millis), false);
            plan.map(|plan| plan.interval).map_err(|error| error.0)
        };
        assert_eq!(plan(400, None), Ok(None));
        assert_eq!(plan(4000, Some(1000)), Ok(Some(Duration::from_secs(1))));
        let short = plan(399, None).unwrap_err();
        assert!(short.contains("at least 400 ms"), "{short}");
        let long = plan(4000, Some(1001)).unwrap_err();
        assert!(
            long.contains("longer than a quarter of --duration 4 s"),
            "{long}"
        );
        assert!(interval("99ms").is_err() && interval("100ms").is_ok());
    }

    #[test]
    fn only_a_cgroup_has_a_cache() {
        let watching = Watching {
            duration: Duration::from_secs(60),
            files: true,
        };
        assert!(watching.plan(None, true).is_ok_and(|plan| plan.files));
        let error = watching.plan(None, false).unwrap_err();
        assert!(error.0.contains("give --cgroup"), "{error}");
    }
}
