// SPDX-License-Identifier: Apache-2.0
//! Holding a cgroup back: less memory, a pause, or its end. Only on explicit request; refused for a
//! cgroup that holds init, the session or this program; undone when dropped or, if the program is
//! killed, by the next one.

pub(crate) mod format;
mod kill;
mod ledger;
mod login;
mod place;
pub mod stale;
mod undo;
mod untouchable;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use kill::Killed;
pub use ledger::{Ledger, LedgerError, Undone, state_directory};
pub use undo::{Kind, Step, Undo};
pub use untouchable::{Untouchable, untouchable};

use crate::cgroup::{Cgroup, CgroupError, Mounts, TreeLimits, Version};
use crate::error::{self, FileError};
use crate::process::{Process, ProcessError};
use crate::root::ProcRoot;

/// How long the kernel may take to freeze: a task that waits for a disk freezes when it is served.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two looks whether it has.
const FREEZE_STEP: Duration = Duration::from_millis(2);

/// Why a cgroup cannot be held back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThrottleError {
    /// It must not be.
    #[error("cgroup {path} is left alone: {}", why.reason())]
    Untouchable {
        /// The cgroup.
        path: String,
        /// Why.
        why: Untouchable,
    },
    /// It holds more cgroups than are listed, so that not all of its processes are known.
    #[error("cgroup {path} is left alone: it holds more cgroups than are listed")]
    TooLarge {
        /// The cgroup.
        path: String,
    },
    /// There is no freezer, or its processes are in several freezer cgroups.
    #[error("cgroup {path} cannot be frozen: {why}")]
    NoFreezer {
        /// The cgroup.
        path: String,
        /// Why.
        why: &'static str,
    },
    /// The kernel did not freeze it in time; it runs again.
    #[error("cgroup {path} did not freeze within {} s; it runs again", FREEZE_TIMEOUT.as_secs())]
    Slow {
        /// The cgroup.
        path: String,
    },
    /// Somebody else has limited it meanwhile, or already holds it lower.
    #[error("somebody else has set {} to {value}: it stays so", path.display())]
    Taken {
        /// The file with the limit.
        path: PathBuf,
        /// What it holds.
        value: String,
    },
    /// The cgroup cannot be used.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A process cannot be looked at.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// It cannot be noted what would have to be undone.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// In whole pages: the kernel counts those, and shows what it was given in them.
fn whole(bytes: u64) -> u64 {
    bytes - bytes % rustix::param::page_size() as u64
}

/// Holds cgroups back, and lets all of them go when dropped.
#[derive(Debug)]
pub struct Throttle {
    proc: ProcRoot,
    ledger: Ledger,
    /// What it did to which directory, and is to stay so for now.
    active: HashSet<(PathBuf, Kind)>,
}

impl Throttle {
    /// Hands that note what they do in `ledger`.
    pub fn new(proc: ProcRoot, ledger: Ledger) -> Self {
        Throttle {
            proc,
            ledger,
            active: HashSet::new(),
        }
    }

    /// Holds the memory of a cgroup low: `memory.high`, or in v1 the soft limit, which counts when
    /// the machine is short. Neither makes the kernel kill. A lower limit set by somebody else
    /// stays. Returns the file with the limit.
    ///
    /// # Errors
    /// [`ThrottleError`]; nothing was done then.
    pub fn squeeze(&mut self, cgroup: &Cgroup, limit_bytes: u64) -> Result<PathBuf, ThrottleError> {
        let file = match cgroup.hierarchy().version {
            Version::V2 => "memory.high",
            Version::V1 => "memory.soft_limit_in_bytes",
        };
        let path = cgroup.dir().join(file);
        self.check(cgroup)?;
        if self.is_lower(cgroup, &path, limit_bytes)? {
            return Ok(path);
        }
        self.set(cgroup, Kind::Squeeze, file, limit_bytes)
    }

    /// Whether a file is already this low, and will stay so without a squeeze, or because of one. A
    /// low value due to a limit of our own may be removed before the squeeze.
    fn is_lower(
        &self,
        cgroup: &Cgroup,
        file: &Path,
        limit_bytes: u64,
    ) -> Result<bool, ThrottleError> {
        let is_low = |bytes: u64| bytes <= whole(limit_bytes);
        let now = error::read(file)?.trim().to_owned();
        let noted = self.ledger.writing(&cgroup.dir(), cgroup.id(), file);
        let (squeezes, others): (Vec<&Undo>, Vec<&Undo>) =
            noted.iter().partition(|undo| undo.kind == Kind::Squeeze);
        let may_go = others.iter().any(|undo| undo.has_given(file, &now));
        let squeezed = squeezes.first().and_then(|undo| undo.wanted(file));
        Ok(now.parse().is_ok_and(is_low) && (!may_go || squeezed.is_some_and(is_low)))
    }

    /// Limits the memory of a cgroup: `memory.high`, or in v1 the limit itself, where the kernel
    /// kills when it cannot reclaim. The excess is reclaimed first (`memory.reclaim`, if it
    /// exists), so that allocating tasks do not have to do it. Returns the file that was written.
    ///
    /// # Errors
    /// [`ThrottleError`]; in v1 also that not enough could be reclaimed. The limit stays as it was,
    /// also where somebody else has set it.
    pub fn limit(&mut self, cgroup: &Cgroup, limit_bytes: u64) -> Result<PathBuf, ThrottleError> {
        let file = match cgroup.hierarchy().version {
            Version::V2 => "memory.high",
            Version::V1 => "memory.limit_in_bytes",
        };
        self.check(cgroup)?;
        self.check_others(cgroup, &cgroup.dir().join(file), limit_bytes)?;
        let usage_bytes = cgroup.usage_bytes()?.unwrap_or(0);
        if usage_bytes > limit_bytes && cgroup.can_reclaim() {
            // Reclaiming less than everything is not a failure: the limit continues from there.
            cgroup.reclaim(usage_bytes - limit_bytes, true)?;
        }
        self.set(cgroup, Kind::Limit, file, limit_bytes)
    }

    /// That nobody else has changed a limit of ours, and none of theirs would be raised.
    fn check_others(
        &self,
        cgroup: &Cgroup,
        file: &Path,
        limit_bytes: u64,
    ) -> Result<(), ThrottleError> {
        let value = error::read(file)?.trim().to_owned();
        let noted = self.ledger.writing(&cgroup.dir(), cgroup.id(), file);
        let is_ours = noted.iter().any(|undo| undo.has_given(file, &value));
        let was_limited = noted.iter().any(|undo| undo.kind == Kind::Limit);
        let is_lower = value
            .parse()
            .is_ok_and(|bytes: u64| bytes < whole(limit_bytes));
        if !is_ours && (was_limited || is_lower) {
            return Err(ThrottleError::Taken {
                path: file.to_owned(),
                value,
            });
        }
        Ok(())
    }

    /// Takes a limit back.
    ///
    /// # Errors
    /// The file cannot be written; [`Ledger::undo_throttles`] tries it again.
    pub fn unlimit(&mut self, cgroup: &Cgroup) -> Result<(), FileError> {
        self.take_back(cgroup, Kind::Limit)
    }

    /// Leaves a limit in place for good: it is no longer undone.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn keep_limit(&mut self, cgroup: &Cgroup) -> Result<(), FileError> {
        self.let_go(cgroup.dir(), Kind::Limit);
        self.ledger.forget(&cgroup.dir(), Kind::Limit)
    }

    /// Lowers what a file allows. Where another kind holds the same file the lower one counts.
    fn set(
        &mut self,
        cgroup: &Cgroup,
        kind: Kind,
        file: &str,
        limit_bytes: u64,
    ) -> Result<PathBuf, ThrottleError> {
        self.check(cgroup)?;
        let dir = cgroup.dir();
        let file = dir.join(file);
        let now = error::read(&file)?.trim().to_owned();
        let wanted = whole(limit_bytes);
        let noted = self.ledger.writing(&dir, cgroup.id(), &file);
        let is_ours = noted.iter().any(|undo| undo.has_given(&file, &now));
        let (same, others): (Vec<&Undo>, Vec<&Undo>) =
            noted.iter().partition(|undo| undo.kind == kind);
        let lowest = others.iter().filter_map(|undo| undo.wanted(&file)).min();
        let (first, value) = match same.iter().chain(&others).find_map(|of| of.first(&file)) {
            Some(first) if is_ours => (first.clone(), lowest.map_or(wanted, |of| of.min(wanted))),
            _ => {
                // Somebody else has set it since: that is what it goes back to from now on.
                for undo in &others {
                    self.let_go(dir.clone(), undo.kind);
                    self.ledger.forget(&dir, undo.kind)?;
                }
                (back_to(&file, &now), wanted)
            }
        };
        // Also what it is now: it may stay so if this ends before it is written.
        let given = is_ours
            .then_some(now)
            .into_iter()
            .chain([wanted.to_string()]);
        let given = given.map(|value| Step::Given {
            file: file.clone(),
            value,
        });
        let steps = std::iter::once(first).chain(given).collect();
        self.note(cgroup, kind, steps)?;
        error::write(&file, &value.to_string())?;
        self.hold(dir, kind);
        Ok(file)
    }

    /// Takes a squeeze back.
    ///
    /// # Errors
    /// The file cannot be written; [`Ledger::undo_throttles`] tries it again.
    pub fn release(&mut self, cgroup: &Cgroup) -> Result<(), FileError> {
        self.take_back(cgroup, Kind::Squeeze)
    }

    fn take_back(&mut self, cgroup: &Cgroup, kind: Kind) -> Result<(), FileError> {
        self.let_go(cgroup.dir(), kind);
        self.ledger.undo(&cgroup.dir(), kind)
    }

    fn hold(&mut self, dir: PathBuf, kind: Kind) {
        self.ledger.hold(&dir, kind, true);
        self.active.insert((dir, kind));
    }

    fn let_go(&mut self, dir: PathBuf, kind: Kind) {
        self.ledger.hold(&dir, kind, false);
        self.active.remove(&(dir, kind));
    }

    /// Stops all tasks of a cgroup, until [`thaw`](Self::thaw).
    ///
    /// In v1 the freezer is a hierarchy of its own: if the processes of the memory cgroup have a
    /// freezer cgroup to themselves it is used, else they are moved into one for the time being.
    ///
    /// # Errors
    /// [`ThrottleError`]; everything runs then.
    pub fn freeze(&mut self, cgroup: &Cgroup) -> Result<(), ThrottleError> {
        self.check(cgroup)?;
        if self.ledger.has(&cgroup.dir(), Kind::Freeze) {
            return Ok(());
        }
        let result = match cgroup.hierarchy().version {
            Version::V2 => self.freeze_v2(cgroup),
            Version::V1 => self.freeze_v1(cgroup),
        };
        if result.is_err() {
            // What is half frozen must run; a failure here is tried again.
            let _ = self.thaw(cgroup);
        } else {
            self.hold(cgroup.dir(), Kind::Freeze);
        }
        result
    }

    fn freeze_v2(&mut self, cgroup: &Cgroup) -> Result<(), ThrottleError> {
        let file = cgroup.dir().join("cgroup.freeze");
        if error::read(&file)?.trim() == "1" {
            // By somebody else, who will thaw it.
            return Ok(());
        }
        self.note(
            cgroup,
            Kind::Freeze,
            vec![Step::Write {
                file: file.clone(),
                value: "0".to_owned(),
            }],
        )?;
        error::write(&file, "1")?;
        let events = cgroup.dir().join("cgroup.events");
        let is_frozen = |text: &str| text.lines().any(|line| line == "frozen 1");
        wait_for(cgroup, &events, is_frozen)
    }

    fn freeze_v1(&mut self, cgroup: &Cgroup) -> Result<(), ThrottleError> {
        let no_freezer = |why| ThrottleError::NoFreezer {
            path: cgroup.name(),
            why,
        };
        let mounts = Mounts::read(&self.proc)?;
        let root = mounts
            .controller_dir("freezer")
            .ok_or_else(|| no_freezer("no mounted hierarchy has the freezer controller"))?;
        let pids = cgroup.procs(true)?;
        let place = freezer_of(&self.proc, &pids)?
            .ok_or_else(|| no_freezer("its processes are in several freezer cgroups"))?;
        let home = root.join(place.strip_prefix("/").unwrap_or(&place));
        let is_own = place != Path::new("/") && pids_in(&home)? == pids;
        let mut steps = Vec::new();
        let dir = match is_own {
            true => home.clone(),
            false => home.join(format!("agewise-{}", cgroup.id())),
        };
        let state = dir.join("freezer.state");
        if is_own && error::read(&state)?.trim() != "THAWED" {
            // By somebody else, who will thaw it.
            return Ok(());
        }
        steps.push(Step::Write {
            file: state.clone(),
            value: "THAWED".to_owned(),
        });
        if !is_own {
            steps.push(Step::Leave {
                from: dir.clone(),
                to: home,
            });
        }
        self.note(cgroup, Kind::Freeze, steps)?;
        if !is_own {
            fs::create_dir(&dir).map_err(|source| FileError::Write {
                path: dir.clone(),
                value: "mkdir".to_owned(),
                source,
            })?;
            for pid in pids {
                match error::write(&dir.join("cgroup.procs"), &pid.to_string()) {
                    Err(error) if !error.is_not_found() => return Err(error.into()),
                    _ => {}
                }
            }
        }
        error::write(&state, "FROZEN")?;
        wait_for(cgroup, &state, |text| text.trim() == "FROZEN")
    }

    /// Lets a frozen cgroup go on.
    ///
    /// # Errors
    /// A file cannot be written; [`Ledger::undo_throttles`] tries it again.
    pub fn thaw(&mut self, cgroup: &Cgroup) -> Result<(), FileError> {
        self.take_back(cgroup, Kind::Freeze)
    }

    /// Kills all processes of a cgroup and of those below it, including those forked in the
    /// meantime, for up to two seconds. Returns which processes have ended, and which have not.
    ///
    /// # Errors
    /// [`ThrottleError`]; some may have been killed.
    pub fn kill(&mut self, cgroup: &Cgroup) -> Result<Killed, ThrottleError> {
        self.check(cgroup)?;
        // What is frozen would die only when thawed (v1).
        self.thaw(cgroup)?;
        kill::kill_all(&self.proc, cgroup)
    }

    /// Undoes all that it did. Returns what failed.
    pub fn undo_all(&mut self) -> Vec<FileError> {
        for (dir, kind) in self.active.drain() {
            self.ledger.hold(&dir, kind, false);
        }
        self.ledger.undo_throttles()
    }

    fn check(&self, cgroup: &Cgroup) -> Result<(), ThrottleError> {
        cgroup.check()?;
        if cgroup.descendants(TreeLimits::default())?.truncated {
            return Err(ThrottleError::TooLarge {
                path: cgroup.name(),
            });
        }
        match untouchable(&self.proc, cgroup)? {
            Some(why) => Err(ThrottleError::Untouchable {
                path: cgroup.name(),
                why,
            }),
            None => Ok(()),
        }
    }

    fn note(&mut self, cgroup: &Cgroup, kind: Kind, steps: Vec<Step>) -> Result<(), ThrottleError> {
        Ok(self.ledger.add(Undo {
            dir: cgroup.dir(),
            inode: cgroup.id(),
            kind,
            steps,
        })?)
    }
}

/// Gives a file the value that it has.
fn back_to(file: &Path, now: &str) -> Step {
    // v1 reports "no limit" as a number that it accepts only as -1.
    let is_none = now.parse::<u64>().is_ok_and(|bytes| bytes >= 1 << 62);
    Step::Write {
        file: file.to_owned(),
        value: if is_none { "-1" } else { now }.to_owned(),
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        for error in self.undo_all() {
            let error = crate::untrusted::clean(&error.to_string());
            #[expect(clippy::disallowed_macros, reason = "the name in it is escaped")]
            {
                eprintln!("agewise: what was done to a cgroup could not be undone: {error}");
            }
        }
    }
}

fn wait_for(
    cgroup: &Cgroup,
    file: &Path,
    is_done: impl Fn(&str) -> bool,
) -> Result<(), ThrottleError> {
    let began = Instant::now();
    while !is_done(&error::read(file)?) {
        if began.elapsed() > FREEZE_TIMEOUT {
            return Err(ThrottleError::Slow {
                path: cgroup.name(),
            });
        }
        std::thread::sleep(FREEZE_STEP);
    }
    Ok(())
}

/// The freezer cgroup all these processes are in; `None` if there are several, or no process.
fn freezer_of(proc: &ProcRoot, pids: &[u32]) -> Result<Option<PathBuf>, ThrottleError> {
    let mut place: Option<PathBuf> = None;
    for pid in pids {
        let memberships = match Process::open_in(proc, *pid).and_then(|process| process.cgroups()) {
            Ok(memberships) => memberships,
            Err(error) if error.is_gone() => continue,
            Err(error) => return Err(error.into()),
        };
        let freezer = memberships
            .into_iter()
            .find(|membership| membership.controllers.iter().any(|name| name == "freezer"))
            .map(|membership| membership.path);
        match (&place, freezer) {
            (None, freezer) => place = freezer,
            (Some(known), Some(freezer)) if *known == freezer => {}
            _ => return Ok(None),
        }
    }
    Ok(place)
}

fn pids_in(dir: &Path) -> Result<Vec<u32>, FileError> {
    let text = error::read(&dir.join("cgroup.procs"))?;
    let mut pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

#[cfg(test)]
mod tests;
