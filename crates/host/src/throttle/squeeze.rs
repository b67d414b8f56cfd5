// SPDX-License-Identifier: Apache-2.0
//! Squeezing a cgroup, step by step.
//!
//! Whoever writes a value below what a cgroup has to `memory.high` waits until the kernel has
//! reclaimed the difference (without `O_NONBLOCK`, known since Linux 6.16, there is no other way):
//! with a fifth of a large cgroup and a slow disk, for minutes. So the value goes down in steps.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Kind, Throttle, ThrottleError, Undo, whole};
use crate::cgroup::{Cgroup, Version};
use crate::error;

/// The first step below what a cgroup has. Each step is twice as large as the previous one.
const STEP_BYTES: u64 = 8 << 20;
/// Steps are made for this long at a time: the last one takes about as long as all before it, and
/// whoever squeezes looks at counters each second.
pub(super) const STEPS_FOR: Duration = Duration::from_millis(250);

impl Throttle {
    /// Keeps the memory of a cgroup low: `memory.high`, or in v1 the soft limit, which takes effect
    /// when the machine is short of memory. Neither makes the kernel kill. A lower limit set by
    /// another program stays. Returns the file with the limit, which may be higher at first:
    /// [`squeeze_on`](Self::squeeze_on) lowers it further.
    ///
    /// # Errors
    /// [`ThrottleError`]; nothing has been done then.
    pub fn squeeze(&mut self, cgroup: &Cgroup, limit_bytes: u64) -> Result<PathBuf, ThrottleError> {
        let file = file_of(cgroup);
        let path = cgroup.dir().join(file);
        self.check(cgroup)?;
        let now = error::read(&path)?.trim().to_owned();
        if self.is_lower(cgroup, &path, &now, limit_bytes) {
            return Ok(path);
        }
        match cgroup.hierarchy().version {
            Version::V2 => self.step_down(cgroup, now.parse().ok(), limit_bytes)?,
            Version::V1 => drop(self.set(cgroup, Kind::Squeeze, file, limit_bytes)?),
        }
        Ok(path)
    }

    /// Lowers the limit of a squeeze further, unless it is there, or somebody else has set another.
    ///
    /// # Errors
    /// [`ThrottleError`]; what was done stays.
    pub fn squeeze_on(&mut self, cgroup: &Cgroup, limit_bytes: u64) -> Result<(), ThrottleError> {
        let held = self.held_by_squeeze(cgroup)?;
        if held.is_none_or(|bytes| bytes <= whole(limit_bytes)) {
            return Ok(());
        }
        self.check(cgroup)?;
        self.step_down(cgroup, held, limit_bytes)
    }

    /// The limit of a squeezed cgroup, while nobody else has changed it. It may be a lower one of
    /// ours, which a rule set in the meantime.
    fn held_by_squeeze(&self, cgroup: &Cgroup) -> Result<Option<u64>, ThrottleError> {
        let path = cgroup.dir().join(file_of(cgroup));
        let now = error::read(&path)?.trim().to_owned();
        let noted = self.ledger.writing(&cgroup.dir(), cgroup.id(), &path);
        let is_squeezed = noted.iter().any(|undo| undo.kind == Kind::Squeeze);
        let is_ours = noted.iter().any(|undo| undo.has_given(&path, &now));
        Ok(now.parse().ok().filter(|_| is_squeezed && is_ours))
    }

    /// Makes steps towards a limit, at least one, until the limit is reached, time is up, or
    /// somebody else sets another. `held` is the current limit, if there is one. Only an error of
    /// the first step counts.
    fn step_down(
        &mut self,
        cgroup: &Cgroup,
        held: Option<u64>,
        limit_bytes: u64,
    ) -> Result<(), ThrottleError> {
        let began = Instant::now();
        let mut step_bytes = STEP_BYTES;
        let mut at_bytes = self.step(cgroup, held, step_bytes, limit_bytes)?;
        while at_bytes > limit_bytes && began.elapsed() < self.steps_for {
            step_bytes = step_bytes.saturating_mul(2);
            let Ok(held @ Some(_)) = self.held_by_squeeze(cgroup) else {
                break;
            };
            match self.step(cgroup, held, step_bytes, limit_bytes) {
                Ok(next_bytes) => at_bytes = next_bytes,
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Goes one step below what a cgroup has, or may have, but not below the limit. Returns the new
    /// value.
    fn step(
        &mut self,
        cgroup: &Cgroup,
        held: Option<u64>,
        step_bytes: u64,
        limit_bytes: u64,
    ) -> Result<u64, ThrottleError> {
        let has_bytes = cgroup.usage_bytes()?.unwrap_or(0);
        let at_bytes = has_bytes.min(held.unwrap_or(u64::MAX));
        let next_bytes = at_bytes.saturating_sub(step_bytes).max(limit_bytes);
        self.set(cgroup, Kind::Squeeze, file_of(cgroup), next_bytes)?;
        Ok(next_bytes)
    }

    /// Whether a file is already this low, and stays so without a squeeze, or because of an active
    /// squeeze. If the value is from our own limit, that may be removed before the squeeze.
    fn is_lower(&self, cgroup: &Cgroup, file: &Path, now: &str, limit_bytes: u64) -> bool {
        let is_low = |bytes: u64| bytes <= whole(limit_bytes);
        let noted = self.ledger.writing(&cgroup.dir(), cgroup.id(), file);
        let (squeezes, others): (Vec<&Undo>, Vec<&Undo>) =
            noted.iter().partition(|undo| undo.kind == Kind::Squeeze);
        let may_go = others.iter().any(|undo| undo.has_given(file, now));
        let squeezed = squeezes.first().and_then(|undo| undo.wanted(file));
        now.parse().is_ok_and(is_low) && (!may_go || squeezed.is_some_and(is_low))
    }
}

fn file_of(cgroup: &Cgroup) -> &'static str {
    match cgroup.hierarchy().version {
        Version::V2 => "memory.high",
        Version::V1 => "memory.soft_limit_in_bytes",
    }
}

#[cfg(test)]
#[path = "squeeze_tests.rs"]
mod tests;
