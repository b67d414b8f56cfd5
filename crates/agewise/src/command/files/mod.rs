// SPDX-License-Identifier: Apache-2.0
//! `agewise files`: which files fill memory.

mod print;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agewise_host::cgroup::{Cgroup, CgroupError, Hierarchy, TreeLimits};
use agewise_host::pagecache::{CachedFile, FileAges, FilesLook, Mounts, Openers};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::untrusted::Untrusted;
use agewise_policy::workingset::{Histogram, Intervals};
use anyhow::Context;

use agewise_cli::observe::{self, EXIT_TARGETS_GONE, millis};
use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
use agewise_cli::units::{self, duration_text};
use print::{Opener, Shown, Totals};

/// Show which files fill memory, and how long ago their pages were last read or written
///
/// Reads the whole page cache using BPF (inodes, and the pages of each), follows accesses through
/// the kernel's tracepoints, and prints the files with the most memory: how much is resident, how
/// much of it is dirty, how old its pages are, which cgroup they are charged to, and which
/// processes have the file open or mapped now. No file is changed in any way.
///
/// This sees reads (read, pread, sendfile, splice, io_uring), faults on pages that are not mapped,
/// and the first write to a clean page. It does not see accesses through page tables, which
/// `report` sees, nor further writes to a page that is already dirty. tmpfs and shared memory are
/// listed as what they are, memory with a name that can only go to swap; their accesses are not
/// seen either, so their ages are not known.
///
/// A page never seen accessed is at least as old as the observation and counts as that old: to see
/// ages of minutes, observe for minutes. A file that has no name in memory is shown by device and
/// inode. Needs root, and Linux 6.1 or later; `agewise doctor` says what is missing.
///
/// Exit status: 0 done; 1 an error; 2 a wrong argument; 3 the cgroup was gone before the end; 128 +
/// the signal when interrupted (the results so far are printed).
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    targets: TargetArgs,

    /// List at most this many files, those with the most memory; 0 for all of them.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    top: usize,

    /// List only files under this directory.
    #[arg(long, value_name = "DIR")]
    under: Option<PathBuf>,

    /// List only files that were not accessed for this long, which is at most --duration; never
    /// tmpfs and shared memory.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    older_than: Option<Duration>,

    /// Observe for this long before reporting; 0s shows what is cached, with ages unknown, and
    /// follows no accesses (which some kernels do not allow).
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = units::duration)]
    duration: Duration,

    /// Upper bounds of the age bins, increasing, at most 31.
    #[arg(long, value_name = "LIST", default_value = "1s,5s,30s,2m,10m")]
    intervals: Intervals,

    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// The cgroup or machine to observe.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct TargetArgs {
    /// Pages charged to a memory cgroup or one below it: its path below the hierarchy, or its
    /// directory.
    #[arg(long, value_name = "PATH")]
    #[arg(value_parser = observe::cgroup_path())]
    cgroup: Option<String>,

    /// All pages of the machine.
    #[arg(long)]
    all: bool,
}

/// Looks may take at most one part in this many of a core.
pub(crate) const CORE_SHARE: u32 = 20;
/// The most processes listed per file.
const OPENERS_SHOWN: usize = 8;

/// Runs the command.
///
/// # Errors
/// The cgroup or directory does not exist, privileges are missing, or output cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(older_than) = args.older_than.filter(|age| *age > args.duration) {
        let (age, seen) = (duration_text(older_than), duration_text(args.duration));
        agewise_cli::refuse!(
            "--older-than {age} is longer than --duration {seen}: a file is known to be as old as \
             it was observed without an access, and no older; give a --duration of at least {age}"
        );
    }
    let cgroups = Cgroups::find(args.targets.cgroup.as_deref())?;
    let under = match &args.under {
        Some(dir) => {
            let found = dir.canonicalize();
            Some(found.with_context(|| format!("--under {}", Untrusted::from(&**dir).terminal()))?)
        }
        None => None,
    };
    let horizon_ms = args
        .intervals
        .horizon_ms()
        .max(args.older_than.map_or(0, millis));
    let mut ages = match args.duration {
        Duration::ZERO => FileAges::resident(horizon_ms)?,
        _ => FileAges::open(horizon_ms)?,
    };
    ages.allow_sample();
    let stop = Stop::install()?;
    let look = observe(args, &cgroups, &mut ages, &stop)?;
    if let Some(gone) = cgroups.gone() {
        agewise_cli::note!("{gone}");
        return Ok(ExitCode::from(EXIT_TARGETS_GONE));
    }
    let (shown, totals) = list(args, under.as_deref(), &cgroups, &mut ages)?;
    let chosen = print::Chosen {
        under: under.as_deref(),
        older_than: args.older_than,
    };
    let written = print::print(
        args.format,
        &shown,
        &totals,
        &chosen,
        (&look, ages.observed_ms()),
    );
    let status = match stop.requested() {
        Some(signal) => ExitCode::from(Stop::exit_code(signal)),
        None => ExitCode::SUCCESS,
    };
    output::status(written.map_err(Into::into), status)
}

/// Looks until the time is over: as often as the bins need, but less often if looks are expensive.
fn observe(
    args: &Args,
    cgroups: &Cgroups,
    ages: &mut FileAges,
    stop: &Stop,
) -> anyhow::Result<FilesLook> {
    let finest = Duration::from_millis(args.intervals.finest_ms().unwrap_or(1000));
    let owned = |id: u64| cgroups.owns(id);
    let mut look_began = Instant::now();
    let mut look = ages.look(&owned)?;
    // What was cached then has been observed for all of the time, and is known to be as old.
    let end = Instant::now() + args.duration;
    let is_over =
        |began: Instant| args.duration.is_zero() || began >= end || stop.requested().is_some();
    while !is_over(look_began) && cgroups.gone().is_none() {
        let pause = finest.max(Duration::from_nanos(look.cpu_ns) * CORE_SHARE);
        if stop.wait_until((look_began + pause).min(end)) && !looks_again(&look, ages.observed_ms())
        {
            break;
        }
        look_began = Instant::now();
        look = ages.look(&owned)?;
    }
    Ok(look)
}

/// The longest look that an interrupted command still makes. Where more is cached, whoever
/// interrupted it would have to wait.
const LAST_LOOK_MAX: Duration = Duration::from_millis(50);

/// Whether an interrupted command looks once more: if that is quick, or nothing is known without
/// it.
fn looks_again(last: &FilesLook, observed_ms: u64) -> bool {
    Duration::from_nanos(last.cpu_ns) <= LAST_LOOK_MAX || observed_ms == 0
}

/// Returns the matching files, largest first, and the totals of all files.
fn list(
    args: &Args,
    under: Option<&std::path::Path>,
    cgroups: &Cgroups,
    ages: &mut FileAges,
) -> anyhow::Result<(Vec<Shown>, Totals)> {
    let proc = ProcRoot::default();
    let mounts = Mounts::read(&proc)?;
    if let Some((dir, layers)) = under.and_then(|dir| Some((dir, mounts.layers(dir)?))) {
        agewise_cli::note!(
            "{} is on an overlay, whose files are listed under the directories of its layers ({})",
            Untrusted::from(dir).terminal(),
            layers.terminal()
        );
    }
    let mut totals = Totals::new(&args.intervals);
    let mut all: Vec<CachedFile> = ages.files().cloned().collect();
    all.sort_by_key(|file| (std::cmp::Reverse(file.pages), file.inode.address));
    let limit = if args.top == 0 { usize::MAX } else { args.top };
    let mut shown = Vec::new();
    for file in all {
        let (histogram, oldest_ms, youngest_ms) = ages.ages(&file, &args.intervals, &|_| true);
        totals.all.add(&file, &histogram);
        let is_old = args
            .older_than
            .is_none_or(|age| file.on.kind.has_ages() && youngest_ms >= millis(age));
        let is_elsewhere = under.is_some_and(|dir| !mounts.reaches(file.on.device, dir));
        if !is_old || is_elsewhere {
            continue;
        }
        if shown.len() >= limit && under.is_none() {
            totals.matching.add(&file, &histogram);
            continue;
        }
        let path = ages.path(&file)?;
        let is_under = |dir| {
            let path = path.as_deref();
            path.is_some_and(|path| mounts.is_under(file.on.device, path, dir))
        };
        if !under.is_none_or(is_under) {
            continue;
        }
        totals.matching.add(&file, &histogram);
        if shown.len() < limit {
            let mut file = show(&file, path, &mounts, cgroups, histogram, oldest_ms);
            file.is_sampled = ages.is_sampled(&file.file);
            shown.push(file);
        }
    }
    name_openers(&proc, &mut shown)?;
    Ok((shown, totals))
}

fn show(
    file: &CachedFile,
    path: Option<PathBuf>,
    mounts: &Mounts,
    cgroups: &Cgroups,
    ages: Histogram,
    oldest_ms: u64,
) -> Shown {
    let (device, number) = (file.on.device, file.inode.number);
    // A file system that is reached over a network, or served by a process, may not answer.
    let at = path.as_deref().filter(|_| !file.on.is_far());
    let place = at.and_then(|path| mounts.find(device, path, number));
    Shown {
        stat: place
            .as_ref()
            .map_or(file.stat(), |place| (place.device, number)),
        path: place.map(|place| Untrusted::from(&*place.path)),
        name: path.map(|path| Untrusted::from(&*path)),
        file: file.clone(),
        cgroup: cgroups.name(file.cgroup),
        oldest_ms,
        ages,
        is_sampled: false,
        open_by: Vec::new(),
        openers: 0,
    }
}

fn name_openers(proc: &ProcRoot, shown: &mut [Shown]) -> anyhow::Result<()> {
    let files: HashSet<(u64, u64)> = shown.iter().map(|shown| shown.stat).collect();
    if files.is_empty() {
        return Ok(());
    }
    let openers = Openers::find(proc, &files)?;
    let mut names: HashMap<u32, Untrusted> = HashMap::new();
    for shown in shown {
        if shown.path.is_none() && shown.name.is_none() {
            let memfd = openers.memfd(shown.stat.0, shown.stat.1);
            shown.name = memfd.map(Untrusted::from);
        }
        let pids: Vec<u32> = openers.of(shown.stat.0, shown.stat.1).collect();
        shown.openers = pids.len();
        for pid in pids.into_iter().take(OPENERS_SHOWN) {
            let name = names.entry(pid).or_insert_with(|| {
                let process = Process::open(pid);
                process
                    .and_then(|process| process.comm())
                    .unwrap_or_default()
            });
            shown.open_by.push(Opener {
                pid,
                name: name.clone(),
            });
        }
    }
    Ok(())
}

/// The selected cgroups, and the names of all cgroups.
pub(crate) struct Cgroups {
    names: HashMap<u64, String>,
    /// The selected one, and the ids of it and its descendants.
    wanted: Option<(Cgroup, HashSet<u64>)>,
}

impl Cgroups {
    /// Reads all cgroups and selects `wanted` with its descendants, or every page if it is `None`.
    ///
    /// # Errors
    /// The cgroup does not exist.
    pub(crate) fn find(wanted: Option<&str>) -> anyhow::Result<Self> {
        let hierarchy = match Hierarchy::discover(&ProcRoot::default()) {
            Ok(hierarchy) => hierarchy,
            Err(CgroupError::NoMemoryController { .. }) if wanted.is_none() => {
                let names = HashMap::new();
                return Ok(Cgroups {
                    names,
                    wanted: None,
                });
            }
            Err(error) => return Err(error.into()),
        };
        let top = Cgroup::open(&hierarchy, "/")?;
        let below = top.descendants(TreeLimits::default())?.cgroups;
        let all = below.iter().chain([&top]);
        let names = all.map(|cgroup| (cgroup.id(), cgroup.name()));
        let names = names.collect();
        let wanted = match wanted {
            Some(given) => {
                let cgroup = observe::open_cgroup(&hierarchy, given)?;
                let ids = cgroup.subtree_ids()?;
                Some((cgroup, ids))
            }
            None => None,
        };
        Ok(Cgroups { names, wanted })
    }

    /// Whether pages charged to this cgroup are selected.
    pub(crate) fn owns(&self, id: u64) -> bool {
        self.wanted
            .as_ref()
            .is_none_or(|(_, ids)| ids.contains(&id))
    }

    /// Why the selected cgroup is no longer there, if it is not. What was charged to it is charged
    /// to the one above then.
    pub(crate) fn gone(&self) -> Option<CgroupError> {
        let (cgroup, _) = self.wanted.as_ref()?;
        cgroup.check().err().filter(CgroupError::is_gone)
    }

    /// The path of a cgroup, or its number if it was removed.
    fn name(&self, id: u64) -> Option<Untrusted> {
        let name = || match self.names.get(&id) {
            Some(name) => name.as_str().into(),
            None => format!("removed cgroup {id}").into(),
        };
        (id != 0).then(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_command_does_not_start_a_long_look() {
        let look = |ms: u64| FilesLook {
            cpu_ns: ms * 1_000_000,
            ..FilesLook::default()
        };
        assert!(looks_again(&look(40), 5000));
        assert!(!looks_again(&look(300), 5000));
        assert!(looks_again(&look(300), 0));
    }
}
