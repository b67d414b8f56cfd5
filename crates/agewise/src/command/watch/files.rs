// SPDX-License-Identifier: Apache-2.0
//! The files of a target. If the agent does not follow the page cache, it is followed here, from
//! the moment files are first asked for: if the agent began then, other lists would suddenly count
//! something else.

use std::time::{Duration, Instant};

use agewise_host::agent::{Agent, CacheError, FilesIn};
use agewise_host::cgroup::Cgroup;
use agewise_host::clock::thread_cpu_ns;
use agewise_host::pagecache::{CachedFile, FileAges, Largest, Mounts, files_of};
use agewise_host::root::ProcRoot;
use agewise_host::untrusted::Untrusted;
use agewise_policy::workingset::Intervals;

use super::followed::Of;
use crate::command::files::CORE_SHARE;

/// The most files listed.
pub const FILES_MAX: usize = 100;

/// The files of one target.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    pub largest: Largest,
    /// Whether accesses through mappings make them younger.
    pub sees_mappings: bool,
}

/// Why no files are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoFiles {
    /// The target no longer exists.
    Gone,
    /// The page cache cannot be followed; the reason.
    Trouble(String),
}

/// Lists files.
#[derive(Default)]
pub struct Files {
    /// What follows the page cache in place of the agent, or why that does not work; `None` until
    /// it is needed.
    own: Option<Result<Own, String>>,
    /// The CPU time of lists, and when the first one was made.
    listing: Option<(Duration, Instant)>,
}

impl Files {
    /// Looks at the page cache if files were asked for, the agent does not look at it, and a look
    /// can be afforded.
    pub fn tick(&mut self) {
        if let Some(Ok(own)) = &mut self.own
            && Instant::now() >= own.due
            && let Err(error) = own.look()
        {
            // No further try: it would load programs at every look.
            self.own = Some(Err(error));
        }
    }

    /// The CPU time of the looks and lists made here, in percent of a core.
    pub fn core_percent(&self) -> f64 {
        let own = self.own.as_ref().and_then(|own| own.as_ref().ok());
        let looks = own.map(|own| (own.cpu, own.began));
        let percent =
            |(cpu, began): (Duration, Instant)| cpu.as_secs_f64() / began.elapsed().as_secs_f64();
        looks
            .into_iter()
            .chain(self.listing)
            .map(percent)
            .sum::<f64>()
            * 100.0
    }

    /// The largest files of a target.
    ///
    /// # Errors
    /// See [`NoFiles`].
    pub fn list(&mut self, agent: &mut Agent, of: &Of) -> Result<Listed, NoFiles> {
        let began_ns = thread_cpu_ns();
        let listed = self.listed(agent, of);
        match &mut self.listing {
            Some((cpu, _)) => *cpu += Duration::from_nanos(thread_cpu_ns() - began_ns),
            // It may include the first look, which is no measure of later ones.
            first => *first = Some((Duration::ZERO, Instant::now())),
        }
        listed
    }

    fn listed(&mut self, agent: &mut Agent, of: &Of) -> Result<Listed, NoFiles> {
        let cgroup;
        let files = match of {
            Of::Process(pid) => {
                agent.space(*pid).ok_or(NoFiles::Gone)?;
                FilesIn::Process(*pid)
            }
            Of::Subject(name) => {
                cgroup = cgroup_of(agent, name).ok_or(NoFiles::Gone)?;
                FilesIn::Cgroup(&cgroup)
            }
        };
        // Of files that a process uses, the agent knows only what is charged to the cgroups that it
        // observes.
        let is_known = matches!(files, FilesIn::Cgroup(_)) || observes_all(agent);
        let known = match is_known {
            true => agent.largest_files(files, FILES_MAX),
            false => Err(CacheError::NotFollowed),
        };
        match known {
            Ok(largest) => Ok(Listed {
                largest,
                sees_mappings: true,
            }),
            Err(CacheError::NotFollowed) => {
                let largest = self.list_own(&agent.config().intervals, files);
                largest
                    .map(|largest| Listed {
                        largest,
                        sees_mappings: false,
                    })
                    .map_err(NoFiles::Trouble)
            }
            Err(error) => Err(NoFiles::Trouble(error.to_string())),
        }
    }

    fn list_own(&mut self, bounds: &Intervals, of: FilesIn<'_>) -> Result<Largest, String> {
        let own = self.own.get_or_insert_with(|| Own::open(bounds));
        let own = own.as_mut().map_err(|error| error.clone())?;
        own.list(bounds, of).map_err(|error| format!("{error:#}"))
    }
}

/// Follows the page cache of the whole machine, without mappings.
struct Own {
    ages: FileAges,
    began: Instant,
    /// CPU time of all looks after the first.
    cpu: Duration,
    /// The earliest time of the next look.
    due: Instant,
}

impl Own {
    /// Starts, and looks once.
    fn open(bounds: &Intervals) -> Result<Self, String> {
        let mut ages = FileAges::open(bounds.horizon_ms()).map_err(|error| error.to_string())?;
        ages.allow_sample();
        let began = Instant::now();
        let mut own = Own {
            ages,
            began,
            cpu: Duration::ZERO,
            due: began,
        };
        own.look()?;
        // The first look, which loads programs too, is no measure of the later ones.
        own.cpu = Duration::ZERO;
        Ok(own)
    }

    fn look(&mut self) -> Result<(), String> {
        let look = self.ages.look(&|_| true);
        let cpu = Duration::from_nanos(look.map_err(|error| error.to_string())?.cpu_ns);
        self.cpu += cpu;
        self.due = Instant::now() + cpu * CORE_SHARE;
        Ok(())
    }

    fn list(&mut self, bounds: &Intervals, of: FilesIn<'_>) -> anyhow::Result<Largest> {
        let proc = ProcRoot::default();
        let open = match of {
            FilesIn::Process(pid) => Some(files_of(&proc, pid)),
            _ => None,
        };
        let owned = match of {
            // Also what no cgroup is charged for, or one that was removed.
            FilesIn::Cgroup(cgroup) if !cgroup.is_root() => Some(cgroup.subtree_ids()?),
            _ => None,
        };
        let is_wanted =
            |file: &CachedFile| open.as_ref().is_none_or(|open| open.contains(&file.stat()));
        let owns = |id| owned.as_ref().is_none_or(|owned| owned.contains(&id));
        let mounts = Mounts::read(&proc)?;
        let ages = &mut self.ages;
        Ok(ages.largest(FILES_MAX, &is_wanted, &owns, bounds, &mounts)?)
    }
}

fn observes_all(agent: &Agent) -> bool {
    let mut cgroups = agent
        .subjects()
        .filter_map(|(subject, _)| subject.cgroup.as_ref());
    cgroups.any(Cgroup::is_root)
}

/// The cgroup that a subject is, unless it is gone.
fn cgroup_of(agent: &Agent, name: &Untrusted) -> Option<Cgroup> {
    let mut subjects = agent.subjects();
    let (subject, _) = subjects.find(|(subject, _)| subject.name == *name)?;
    subject.cgroup.clone().filter(|_| subject.gone.is_none())
}
