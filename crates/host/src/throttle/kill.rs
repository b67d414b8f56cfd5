// SPDX-License-Identifier: Apache-2.0
//! Kills all processes of a cgroup and of those below it, and reports which are left.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, pidfd_send_signal};

use super::ThrottleError;
use crate::cgroup::{Cgroup, Version};
use crate::error;
use crate::process::{Process, ProcessError};
use crate::root::ProcRoot;

/// How long to keep trying: processes forked in the meantime are killed as well, and a process that
/// waits for a disk dies once the disk has answered.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two checks.
const STEP: Duration = Duration::from_millis(5);

/// The result of a kill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Killed {
    /// Number of processes that were signalled and have ended.
    pub ended: usize,
    /// Pids of those still alive, ascending.
    pub left: Vec<u32>,
    /// Whether the kernel reports more processes than are visible: those of another pid namespace,
    /// for example.
    pub holds_unseen: bool,
}

impl Killed {
    /// Whether no process is left.
    pub fn is_complete(&self) -> bool {
        self.left.is_empty() && !self.holds_unseen
    }
}

impl std::fmt::Display for Killed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        /// A longer list of pids would hide what matters.
        const SHOWN: usize = 8;
        let shown: Vec<String> = self
            .left
            .iter()
            .take(SHOWN)
            .map(ToString::to_string)
            .collect();
        let more = match self.left.len() > SHOWN {
            true => ", ...",
            false => "",
        };
        match self.left.len() {
            0 if self.holds_unseen => f.write_str("processes that cannot be seen still live"),
            0 => f.write_str("all have ended"),
            count => write!(f, "{count} still live: {}{more}", shown.join(", ")),
        }
    }
}

/// Kills until no process is left, for [`PATIENCE`] at most.
pub(super) fn kill_all(proc: &ProcRoot, cgroup: &Cgroup) -> Result<Killed, ThrottleError> {
    let began = Instant::now();
    let all_at_once = cgroup.dir().join("cgroup.kill");
    let is_v2 = cgroup.hierarchy().version == Version::V2;
    let kills_at_once = is_v2 && all_at_once.exists();
    let mut signalled = BTreeSet::new();
    loop {
        let living = living(proc, cgroup)?;
        let holds_unseen = living.is_empty() && is_populated(cgroup);
        if (living.is_empty() && !holds_unseen) || began.elapsed() > PATIENCE {
            let is_left = |(pid, start): &&(u32, u64)| {
                let mut left = living.iter();
                left.any(|process| (process.pid(), process.start_ticks()) == (*pid, *start))
            };
            return Ok(Killed {
                ended: signalled.len() - signalled.iter().filter(is_left).count(),
                left: living.iter().map(Process::pid).collect(),
                holds_unseen,
            });
        }
        if kills_at_once {
            match error::write(&all_at_once, "1") {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        for process in &living {
            if kills_at_once {
                // Not every kernel kills one without its first thread where the others were moved.
                // If it is denied here, it is left.
                if process.has_lost_leader() {
                    let _ = signal_kill(process);
                }
            } else if !signal_kill(process)? {
                continue;
            }
            // A process that takes long to die is signalled again, but counts once.
            signalled.insert((process.pid(), process.start_ticks()));
        }
        std::thread::sleep(STEP);
    }
}

/// The processes of the cgroup and those below it that have not ended. They are opened first and
/// then looked up again: if a process is still listed then, its pid was not reused in between.
fn living(proc: &ProcRoot, cgroup: &Cgroup) -> Result<Vec<Process>, ThrottleError> {
    let pids = || {
        let listed = match cgroup.procs(true) {
            Ok(pids) if pids.is_empty() && is_populated(cgroup) => cgroup.owners(proc),
            other => other,
        };
        match listed {
            // Removed, so it contains no process.
            Err(error) if error.is_gone() => Ok(Vec::new()),
            other => other,
        }
    };
    let mut opened = Vec::new();
    for pid in pids()? {
        match Process::open_user(proc, pid) {
            Ok(process) => opened.push(process),
            Err(ProcessError::KernelThread { .. }) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error.into()),
        }
    }
    if !opened.is_empty() {
        let still = pids()?;
        opened.retain(|process| still.binary_search(&process.pid()).is_ok() && process.is_alive());
    }
    Ok(opened)
}

/// Whether the kernel reports processes in a v2 cgroup; v1 has no such report.
fn is_populated(cgroup: &Cgroup) -> bool {
    let events = error::read(&cgroup.dir().join("cgroup.events"));
    events.is_ok_and(|text| text.lines().any(|line| line == "populated 1"))
}

/// Sends SIGKILL. Returns false if the process had already ended.
fn signal_kill(process: &Process) -> Result<bool, ThrottleError> {
    let sent = match process.pidfd() {
        Some(pidfd) => pidfd_send_signal(pidfd, Signal::KILL),
        // Before Linux 5.3.
        None => match i32::try_from(process.pid()).ok().and_then(Pid::from_raw) {
            Some(pid) if process.is_alive() => kill_process(pid, Signal::KILL),
            _ => Err(Errno::SRCH),
        },
    };
    match sent {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(_) => Err(ProcessError::Denied {
            pid: process.pid(),
            action: "kill",
            advice: "run as root, or with CAP_KILL",
        }
        .into()),
    }
}
