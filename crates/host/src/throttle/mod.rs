// SPDX-License-Identifier: Apache-2.0
//! Throttling a cgroup: less memory, a pause, or killing it. Only on explicit request; refused for
//! a cgroup that contains init, the session or this program; undone on drop or, if the program is
//! killed, by its next run.

pub(crate) mod format;
mod freezer;
mod kill;
mod ledger;
mod login;
mod place;
mod squeeze;
pub mod stale;
mod undo;
mod untouchable;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use freezer::Freezer;
pub use kill::Killed;
pub use ledger::{Ledger, LedgerError, Undone, state_directory};
pub use undo::{Kind, Step, Undo};
pub use untouchable::{Untouchable, touchable, untouchable};

use crate::cgroup::{Cgroup, CgroupError, FreshStatistics, Version};
use crate::error::{self, FileError};
use crate::process::ProcessError;
use crate::root::ProcRoot;

/// How long to wait for the kernel to freeze: a task that waits for a disk freezes after its I/O.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two checks whether it has frozen.
const FREEZE_STEP: Duration = Duration::from_millis(2);

/// Why a cgroup cannot be throttled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThrottleError {
    #[error("cgroup {path} is left alone: {}", why.reason())]
    Untouchable { path: String, why: Untouchable },
    /// There is no freezer, or its processes are in several freezer cgroups.
    #[error("cgroup {path} cannot be frozen: {why}")]
    NoFreezer { path: String, why: &'static str },
    /// The kernel did not freeze it in time, so it was thawed again.
    #[error("cgroup {path} did not freeze within {} s; it runs again", FREEZE_TIMEOUT.as_secs())]
    Slow { path: String },
    /// Somebody else has limited it meanwhile, or already holds it lower.
    #[error("somebody else has set {} to {value}: it stays so", path.display())]
    Taken {
        /// The file with the limit.
        path: PathBuf,
        value: String,
    },
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    File(#[from] FileError),
    /// The action cannot be recorded, and so is not done.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl ThrottleError {
    /// Whether trying again leads nowhere: it was tried as long as it may take, or this program can
    /// never do it to this cgroup, because the kernel has no means for it here or denies them. What
    /// could only not be recorded may succeed the next time.
    pub fn counts_as_tried(&self) -> bool {
        match self {
            Self::Slow { .. } | Self::NoFreezer { .. } => true,
            Self::File(error) => {
                let errno = error.raw_os_error();
                let is_no_use =
                    matches!(errno, Some(libc::EROFS | libc::EOPNOTSUPP | libc::EINVAL));
                is_no_use || error.is_not_found() || error.is_denied()
            }
            _ => false,
        }
    }
}

/// Rounds down to whole pages, as the kernel does with limits.
fn whole(bytes: u64) -> u64 {
    bytes - bytes % rustix::param::page_size() as u64
}

/// Throttles cgroups, and releases all of them on drop.
#[derive(Debug)]
pub struct Throttle {
    proc: ProcRoot,
    ledger: Ledger,
    /// Directories and kinds of actions that are to stay for now.
    active: HashSet<(PathBuf, Kind)>,
    /// How long a call may go on lowering the limit of a squeeze.
    pub steps_for: Duration,
    /// For the hard limits of v1.
    fresh: FreshStatistics,
}

impl Throttle {
    /// Creates a throttle that records its actions in `ledger`.
    pub fn new(proc: ProcRoot, ledger: Ledger) -> Self {
        Throttle {
            proc,
            ledger,
            active: HashSet::new(),
            steps_for: squeeze::STEPS_FOR,
            fresh: FreshStatistics::default(),
        }
    }

    /// Reclaims up to `bytes_max` of what a cgroup has beyond a limit (`memory.reclaim`, if it
    /// exists), for [`limit`](Self::limit) to be called after it: otherwise allocating tasks have
    /// to do it. Returns whether more can be reclaimed.
    ///
    /// # Errors
    /// [`ThrottleError`], as `limit`.
    pub fn make_room(
        &self,
        cgroup: &Cgroup,
        limit_bytes: u64,
        bytes_max: u64,
    ) -> Result<bool, ThrottleError> {
        self.check(cgroup)?;
        self.check_others(cgroup, limit_bytes)?;
        let usage_bytes = cgroup.usage_bytes()?.unwrap_or(0);
        let excess_bytes = usage_bytes.saturating_sub(limit_bytes);
        if excess_bytes == 0 || !cgroup.can_reclaim() {
            return Ok(false);
        }
        // Reclaiming less than requested is not a failure: the limit does the rest.
        let is_all = cgroup.reclaim(excess_bytes.min(bytes_max), true)?;
        Ok(is_all && excess_bytes > bytes_max)
    }

    /// Limits the memory of a cgroup: `memory.high`, or in v1 the hard limit, at which the kernel
    /// kills when it cannot reclaim. Returns the file that was written.
    ///
    /// # Errors
    /// [`ThrottleError`]; in v1 also if not enough could be reclaimed. The limit is unchanged then,
    /// and if somebody else has set it.
    pub fn limit(&mut self, cgroup: &Cgroup, limit_bytes: u64) -> Result<PathBuf, ThrottleError> {
        self.check(cgroup)?;
        self.check_others(cgroup, limit_bytes)?;
        self.set(cgroup, Kind::Limit, limit_file(cgroup), limit_bytes)
    }

    /// Checks that nobody else has changed a limit of ours since. systemd does, to all its units,
    /// when it applies the settings of any of them after a `daemon-reload`.
    ///
    /// # Errors
    /// [`ThrottleError::Taken`], or the limit cannot be read.
    pub fn check_limit(&self, cgroup: &Cgroup) -> Result<(), ThrottleError> {
        self.check_others(cgroup, 0)
    }

    /// Checks that nobody else has changed a limit of ours, and none of theirs would be raised.
    fn check_others(&self, cgroup: &Cgroup, bytes: u64) -> Result<(), ThrottleError> {
        let file = &cgroup.dir().join(limit_file(cgroup));
        let value = error::read(file)?.trim().to_owned();
        let noted = self.ledger.writing(&cgroup.dir(), cgroup.id(), file);
        let is_ours = noted.iter().any(|undo| undo.has_given(file, &value));
        let was_limited = noted.iter().any(|undo| undo.kind == Kind::Limit);
        let is_lower = value.parse().is_ok_and(|held: u64| held < whole(bytes));
        if !is_ours && (was_limited || is_lower) {
            return Err(ThrottleError::Taken {
                path: file.to_owned(),
                value,
            });
        }
        Ok(())
    }

    /// Removes a limit.
    ///
    /// # Errors
    /// The file cannot be written; [`Ledger::undo_throttles`] tries again.
    pub fn unlimit(&mut self, cgroup: &Cgroup) -> Result<(), FileError> {
        self.take_back(cgroup, Kind::Limit)
    }

    /// Whether a limit of ours is set, or could not be removed yet.
    pub fn has_limit(&self, cgroup: &Cgroup) -> bool {
        self.ledger.has(&cgroup.dir(), Kind::Limit)
    }

    /// Leaves a limit in place for good, so that it is not undone.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn keep_limit(&mut self, cgroup: &Cgroup) -> Result<(), FileError> {
        self.let_go(cgroup.dir(), Kind::Limit);
        self.ledger.forget(&cgroup.dir(), Kind::Limit)
    }

    /// Lowers the limit in a file of a cgroup that was checked. If another kind of action uses the
    /// same file, the lower value applies.
    fn set(
        &mut self,
        cgroup: &Cgroup,
        kind: Kind,
        file: &str,
        limit_bytes: u64,
    ) -> Result<PathBuf, ThrottleError> {
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
                // Another program has set it since, so that is the value to restore from now on.
                for undo in &others {
                    self.let_go(dir.clone(), undo.kind);
                    let forgotten = self.ledger.forget(&dir, undo.kind);
                    forgotten.map_err(LedgerError::from)?;
                }
                (back_to(&file, &now), wanted)
            }
        };
        // Includes the current value, which remains if this program ends before it writes the new
        // one.
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
        if cgroup.hierarchy().version == Version::V1 {
            self.keep_fresh(cgroup)?;
        }
        error::write(&file, &value.to_string())?;
        self.hold(dir, kind);
        Ok(file)
    }

    /// Keeps the kernel from killing although swap has room.
    fn keep_fresh(&mut self, cgroup: &Cgroup) -> Result<(), FileError> {
        self.fresh.add(cgroup).map_err(|source| FileError::Read {
            path: cgroup.dir().join("memory.stat"),
            source,
        })
    }

    /// Removes a squeeze.
    ///
    /// # Errors
    /// The file cannot be written; [`Ledger::undo_throttles`] tries again.
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
        let active = &self.active;
        self.fresh
            .retain(|dir| active.iter().any(|(active, _)| active == dir));
    }

    /// Stops all tasks of a cgroup, until [`thaw`](Self::thaw).
    ///
    /// In v1 the freezer is a separate hierarchy: processes that do not have a freezer cgroup to
    /// themselves are moved into a temporary one.
    ///
    /// # Errors
    /// [`ThrottleError`]; everything keeps running then.
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
            // A partly frozen cgroup must run again; if thawing fails, it is retried later.
            let _ = self.thaw(cgroup);
        } else {
            self.hold(cgroup.dir(), Kind::Freeze);
        }
        result
    }

    fn freeze_v2(&self, cgroup: &Cgroup) -> Result<(), ThrottleError> {
        let file = cgroup.dir().join("cgroup.freeze");
        if error::read(&file)?.trim() == "1" {
            // Frozen by another program, which will thaw it.
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

    fn freeze_v1(&self, cgroup: &Cgroup) -> Result<(), ThrottleError> {
        let freezer = Freezer::find(&self.proc, cgroup)?;
        if freezer.is_frozen_already()? {
            return Ok(());
        }
        let steps = freezer.undo_steps();
        self.note(cgroup, Kind::Freeze, steps)?;
        freezer.freeze()
    }

    /// Thaws a frozen cgroup.
    ///
    /// # Errors
    /// A file cannot be written; [`Ledger::undo_throttles`] tries again.
    pub fn thaw(&mut self, cgroup: &Cgroup) -> Result<(), FileError> {
        self.take_back(cgroup, Kind::Freeze)
    }

    /// Kills all processes of a cgroup and of those below it, including those forked in the
    /// meantime, for up to two seconds. Reports which processes have ended, and which have not.
    ///
    /// # Errors
    /// [`ThrottleError`]; some processes may have been killed.
    pub fn kill(&mut self, cgroup: &Cgroup) -> Result<Killed, ThrottleError> {
        self.check(cgroup)?;
        // A frozen process would die only when thawed (v1). That this cannot be recorded does not
        // matter here.
        if let Err(error) = self.thaw(cgroup)
            && self.ledger.has(&cgroup.dir(), Kind::Freeze)
        {
            return Err(error.into());
        }
        kill::kill_all(&self.proc, cgroup)
    }

    /// Undoes everything it did.
    pub fn undo_all(&mut self) -> Undone {
        for (dir, kind) in self.active.drain() {
            self.ledger.hold(&dir, kind, false);
        }
        self.ledger.undo_throttles()
    }

    fn check(&self, cgroup: &Cgroup) -> Result<(), ThrottleError> {
        cgroup.check()?;
        match untouchable(&self.proc, cgroup)? {
            Some(why) => Err(ThrottleError::Untouchable {
                path: cgroup.name(),
                why,
            }),
            None => Ok(()),
        }
    }

    fn note(&self, cgroup: &Cgroup, kind: Kind, steps: Vec<Step>) -> Result<(), ThrottleError> {
        Ok(self.ledger.add(Undo {
            dir: cgroup.dir(),
            inode: cgroup.id(),
            kind,
            steps,
        })?)
    }
}

fn limit_file(cgroup: &Cgroup) -> &'static str {
    match cgroup.hierarchy().version {
        Version::V2 => "memory.high",
        Version::V1 => "memory.limit_in_bytes",
    }
}

/// The step that restores the current value of a file.
fn back_to(file: &Path, now: &str) -> Step {
    // v1 reports "no limit" as a number, but accepts it only as -1.
    let is_none = now.parse::<u64>().is_ok_and(|bytes| bytes >= 1 << 62);
    Step::Write {
        file: file.to_owned(),
        value: if is_none { "-1" } else { now }.to_owned(),
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        for error in self.undo_all().failures {
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
            return Err(slow(cgroup));
        }
        std::thread::sleep(FREEZE_STEP);
    }
    Ok(())
}

fn slow(cgroup: &Cgroup) -> ThrottleError {
    ThrottleError::Slow {
        path: cgroup.name(),
    }
}

#[cfg(test)]
mod tests;
