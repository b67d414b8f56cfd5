// SPDX-License-Identifier: Apache-2.0
//! The freezer of cgroup v1: a hierarchy of its own, whose cgroups need not match those of memory.
//!
//! If the processes of a memory cgroup have a freezer cgroup to themselves, that one is frozen.
//! Otherwise they are gathered in a temporary one below it, which is frozen *before* they enter:
//! from then on a process that has entered cannot fork, so that only those still outside need to be
//! looked for again (`freezer_attach` and `freezer_fork`, Linux 6.18).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::undo::Step;
use super::{FREEZE_STEP, FREEZE_TIMEOUT, ThrottleError};
use crate::cgroup::{Cgroup, Mounts};
use crate::error::{self, FileError};
use crate::process::Process;
use crate::root::ProcRoot;

const SEVERAL: &str = "its processes are in several freezer cgroups";

/// How often in a row no process may be found outside: the list of a v1 cgroup can lack one that is
/// forked while it is read (`pidlist_array_load`, Linux 6.18).
const LOOKS: u32 = 3;

/// The processes that are still to be frozen.
struct Outside {
    /// Their pids and freezer cgroups.
    places: Vec<(u32, PathBuf)>,
    /// False if one has ended since it was listed, which may have forked another before.
    is_all: bool,
}

/// Where the processes of a memory cgroup can be frozen.
pub(super) struct Freezer<'a> {
    proc: &'a ProcRoot,
    cgroup: &'a Cgroup,
    /// The freezer hierarchy.
    root: PathBuf,
    /// The freezer cgroup the processes are in, as in `/proc/<pid>/cgroup`.
    home: PathBuf,
    /// The freezer cgroup in which they are frozen: `home`, or a temporary one below it.
    place: PathBuf,
}

impl<'a> Freezer<'a> {
    /// Finds where to freeze a cgroup. Nothing is changed yet.
    ///
    /// # Errors
    /// There is no freezer, or the processes are in several of its cgroups.
    pub(super) fn find(proc: &'a ProcRoot, cgroup: &'a Cgroup) -> Result<Self, ThrottleError> {
        let root = Mounts::read(proc)?.controller_dir("freezer");
        let root = root
            .ok_or_else(|| no_freezer(cgroup, "no mounted hierarchy has the freezer controller"))?;
        let began = Instant::now();
        let (pids, home) = loop {
            let pids = cgroup.procs(true)?;
            match common_home(proc, cgroup, &pids, &root)? {
                Some(home) => break (pids, home),
                // They have ended since, perhaps after forking others.
                None if !pids.is_empty() && began.elapsed() < FREEZE_TIMEOUT => {}
                None => return Err(no_freezer(cgroup, "no process in it has a freezer cgroup")),
            }
        };
        let mut freezer = Freezer {
            proc,
            cgroup,
            root,
            place: home.clone(),
            home,
        };
        if !freezer.is_home_theirs(&pids)? {
            freezer.place = freezer.home.join(format!("agewise-{}", cgroup.id()));
        }
        Ok(freezer)
    }

    /// Whether the freezer cgroup contains these processes and nothing else.
    fn is_home_theirs(&self, pids: &[u32]) -> Result<bool, ThrottleError> {
        let dir = self.dir(&self.home);
        Ok(self.home != Path::new("/") && pids_in(&dir)? == pids && !has_directories(&dir)?)
    }

    fn is_temporary(&self) -> bool {
        self.place != self.home
    }

    /// Whether another program has frozen it, which will thaw it.
    pub(super) fn is_frozen_already(&self) -> Result<bool, ThrottleError> {
        Ok(!self.is_temporary() && error::read(&self.state())?.trim() != "THAWED")
    }

    /// How to undo it. Processes leave the temporary cgroup while it is frozen, so none of them can
    /// fork into it meanwhile; each goes on as soon as it has left.
    pub(super) fn undo_steps(&self) -> Vec<Step> {
        let leave = self.is_temporary().then(|| Step::Leave {
            from: self.dir(&self.place),
            to: self.dir(&self.home),
        });
        let thaw = Step::Write {
            file: self.state(),
            value: "THAWED".to_owned(),
        };
        leave.into_iter().chain([thaw]).collect()
    }

    /// Freezes all processes, including those forked meanwhile.
    ///
    /// # Errors
    /// [`ThrottleError`]; some processes may be frozen then.
    pub(super) fn freeze(&self) -> Result<(), ThrottleError> {
        if self.is_temporary() {
            let dir = self.dir(&self.place);
            fs::create_dir(&dir).map_err(|source| FileError::Directory {
                path: dir.clone(),
                what: "create",
                source,
            })?;
        }
        error::write(&self.state(), "FROZEN")?;
        self.gather()?;
        super::wait_for(self.cgroup, &self.state(), |text| text.trim() == "FROZEN")
    }

    /// Moves processes into the frozen cgroup until none of them is outside.
    fn gather(&self) -> Result<(), ThrottleError> {
        let began = Instant::now();
        let procs = self.dir(&self.place).join("cgroup.procs");
        let mut looks = 0;
        while looks < LOOKS {
            let Outside { places, is_all } = self.outside()?;
            looks = if places.is_empty() && is_all {
                looks + 1
            } else {
                0
            };
            if looks == 0 && began.elapsed() > FREEZE_TIMEOUT {
                return Err(match places.iter().any(|(_, place)| *place != self.home) {
                    true => no_freezer(self.cgroup, SEVERAL),
                    false => super::slow(self.cgroup),
                });
            }
            for (pid, _) in places.iter().filter(|(_, place)| *place == self.home) {
                match error::write(&procs, &pid.to_string()) {
                    Err(error) if !error.is_not_found() => return Err(error.into()),
                    _ => {}
                }
            }
            if !places.is_empty() && places.iter().all(|(_, place)| *place != self.home) {
                std::thread::sleep(FREEZE_STEP);
            }
        }
        Ok(())
    }

    /// The processes of the memory cgroup that are not in the frozen one.
    fn outside(&self) -> Result<Outside, ThrottleError> {
        let (mut places, mut is_all) = (Vec::new(), true);
        // 0 stands for those of another pid namespace, which cannot be named.
        for pid in self.cgroup.procs(true)?.into_iter().filter(|pid| *pid != 0) {
            match freezer_of(self.proc, pid)? {
                Some(place) if place != self.place => places.push((pid, place)),
                Some(_) => {}
                None => is_all = false,
            }
        }
        Ok(Outside { places, is_all })
    }

    fn state(&self) -> PathBuf {
        self.dir(&self.place).join("freezer.state")
    }

    fn dir(&self, place: &Path) -> PathBuf {
        self.root.join(place.strip_prefix("/").unwrap_or(place))
    }
}

/// The freezer cgroup of all these processes; `None` if all have ended.
fn common_home(
    proc: &ProcRoot,
    cgroup: &Cgroup,
    pids: &[u32],
    root: &Path,
) -> Result<Option<PathBuf>, ThrottleError> {
    let top = Path::new("/");
    let (mut home, mut at_top) = (None, Vec::new());
    for pid in pids {
        match freezer_of(proc, *pid)? {
            None => {}
            Some(place) if place == top => at_top.push(*pid),
            Some(place) if *home.get_or_insert_with(|| place.clone()) == place => {}
            Some(_) => return Err(no_freezer(cgroup, SEVERAL)),
        }
    }
    let Some(home) = home else {
        return Ok((!at_top.is_empty()).then(|| top.to_owned()));
    };
    // The kernel shows a v1 process that exits as one in the root, but does not list it there.
    let listed = match at_top.is_empty() {
        true => Vec::new(),
        false => pids_in(root)?,
    };
    match at_top.iter().any(|pid| listed.contains(pid)) {
        true => Err(no_freezer(cgroup, SEVERAL)),
        false => Ok(Some(home)),
    }
}

/// The freezer cgroup of a process. `None` if it has ended, or is in none.
fn freezer_of(proc: &ProcRoot, pid: u32) -> Result<Option<PathBuf>, ThrottleError> {
    let memberships = match Process::open_in(proc, pid).and_then(|process| process.cgroups()) {
        Ok(memberships) => memberships,
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let freezer = memberships
        .into_iter()
        .find(|membership| membership.controllers.iter().any(|name| name == "freezer"));
    Ok(freezer.map(|membership| membership.path))
}

fn no_freezer(cgroup: &Cgroup, why: &'static str) -> ThrottleError {
    ThrottleError::NoFreezer {
        path: cgroup.name(),
        why,
    }
}

fn pids_in(dir: &Path) -> Result<Vec<u32>, FileError> {
    let text = error::read(&dir.join("cgroup.procs"))?;
    let mut pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

fn has_directories(dir: &Path) -> Result<bool, FileError> {
    let failed = |source| FileError::Read {
        path: dir.to_owned(),
        source,
    };
    for entry in fs::read_dir(dir).map_err(failed)? {
        if entry
            .and_then(|entry| entry.file_type())
            .map_err(failed)?
            .is_dir()
        {
            return Ok(true);
        }
    }
    Ok(false)
}
