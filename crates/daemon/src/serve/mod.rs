// SPDX-License-Identifier: Apache-2.0
//! The page and metrics are served by a process of their own, which holds no privileges.
//!
//! The daemon opens the port or socket, starts this program again, and writes a line of JSON into a
//! pipe at each tick. The pipe leads one way: nothing that a client sends, and nothing that the
//! process does, reaches the daemon, which reads no byte of either. A process that ends is started
//! again.

mod child;
mod sandbox;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use child::run as run_child;

use super::http::{Hosts, Listener};
use super::metrics::shown::Limits;
use super::state::{Hub, Snapshot};

/// Longest line: a snapshot of all the cgroups and processes that the daemon may follow.
const LINE_MAX_BYTES: usize = 64 << 20;
/// The pipe holds a line of a few hundred cgroups.
const PIPE_BYTES: usize = 1 << 20;
/// So long a tick waits for a process that is slow to read. What is left waits for the next one.
const PATIENCE: Duration = Duration::from_millis(50);
/// After a failure it is started again after so long, then twice as long, and so on.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// A process that lived for so long starts the pauses anew.
const LIVED: Duration = Duration::from_secs(60);
/// How long it may take to end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// `nobody` and `nogroup`.
const NOBODY: u32 = 65_534;

/// The first message to the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Setup {
    parent: u32,
    any_host: bool,
    hosts: Vec<String>,
    subjects_max: usize,
    containers_max: usize,
    depth_max: usize,
}

/// The message of each tick.
#[derive(Debug, Serialize)]
struct News<'a> {
    snapshot: &'a Snapshot,
    troubles: Vec<String>,
}

/// The same as it is read.
#[derive(Debug, Deserialize)]
struct Heard {
    snapshot: Snapshot,
    troubles: Vec<String>,
}

/// The process that serves, started again whenever it ends. Dropped, it ends.
#[derive(Debug)]
pub struct Apart {
    program: Vec<String>,
    listener: Listener,
    setup: Setup,
    running: Option<Running>,
    failures: u32,
    again: Instant,
}

#[derive(Debug)]
struct Running {
    child: Child,
    pipe: OwnedFd,
    since: Instant,
    /// What the pipe did not take yet.
    waiting: VecDeque<u8>,
}

impl Apart {
    /// Starts it. Connections come to `listener`, which stays open while the process is replaced.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(listener: Listener, hosts: Hosts, limits: Limits) -> io::Result<Self> {
        let program = ["/proc/self/exe", "daemon", "--server"].map(str::to_owned);
        Self::start_program(program.to_vec(), listener, hosts, limits)
    }

    fn start_program(
        program: Vec<String>,
        listener: Listener,
        hosts: Hosts,
        limits: Limits,
    ) -> io::Result<Self> {
        let mut apart = Apart {
            program,
            listener,
            setup: Setup {
                parent: std::process::id(),
                any_host: hosts.any,
                hosts: hosts.names,
                subjects_max: limits.subjects_max,
                containers_max: limits.containers_max,
                depth_max: limits.depth_max,
            },
            running: None,
            failures: 0,
            again: Instant::now(),
        };
        apart.running = Some(apart.spawn()?);
        Ok(apart)
    }

    /// Where connections come to.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Tells the process what there is after a tick, and starts it if it is not there. Returns what
    /// is to be said of that.
    pub fn publish(&mut self, hub: &Hub) -> Option<String> {
        let ended = self.reap();
        let mut started = None;
        if self.running.is_none() && Instant::now() >= self.again {
            started = match self.spawn() {
                Ok(running) => {
                    self.running = Some(running);
                    Some("the process that serves was started again".to_owned())
                }
                Err(error) => Some(self.failed(&error.to_string())),
            };
        }
        let broken = match &mut self.running {
            Some(running) => running.tell(hub).err(),
            None => None,
        };
        if let Some(error) = broken {
            if let Some(running) = self.running.take() {
                running.end();
            }
            return Some(self.failed(&error.to_string()));
        }
        ended.or(started)
    }

    /// Finds out whether it has ended.
    fn reap(&mut self) -> Option<String> {
        let running = self.running.as_mut()?;
        let status = running.child.try_wait().ok()??;
        if running.since.elapsed() >= LIVED {
            self.failures = 0;
        }
        self.running = None;
        Some(self.failed(&status.to_string()))
    }

    fn failed(&mut self, why: &str) -> String {
        let pause = PAUSE
            .saturating_mul(1 << self.failures.min(16))
            .min(PAUSE_MAX);
        self.failures += 1;
        self.again = Instant::now() + pause;
        format!(
            "the process that serves has ended ({why}); another one is started in {} s",
            pause.as_secs()
        )
    }

    fn spawn(&self) -> io::Result<Running> {
        let (reads, pipe) = io::pipe()?;
        // A smaller pipe takes more ticks.
        // SAFETY: no pointers; the descriptor is open.
        unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let spawn = |user: Option<u32>| {
            let mut command = Command::new(&self.program[0]);
            command
                .args(&self.program[1..])
                .env_clear()
                .current_dir("/")
                .stdin(Stdio::from(reads.try_clone()?))
                .stdout(Stdio::from(self.listener.as_fd().try_clone_to_owned()?));
            if let Some(user) = user {
                command.uid(user).gid(user);
            }
            command.spawn()
        };
        let child = match can_change_user() {
            // The program may be one that only its owner can execute.
            true => spawn(Some(NOBODY)).or_else(|_| spawn(None)),
            false => spawn(None),
        };
        let mut running = Running {
            child: child?,
            pipe: pipe.into(),
            since: Instant::now(),
            waiting: VecDeque::new(),
        };
        running.send(&self.setup)?;
        Ok(running)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.end();
        }
    }
}

impl Running {
    /// Ends it, by the end of its input: it has another user, whom the daemon may not signal. One
    /// that goes on all the same is killed by the kernel when the daemon ends.
    fn end(mut self) {
        let _ = self.child.kill();
        drop(self.pipe);
        let deadline = Instant::now() + LAST_WORDS;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn tell(&mut self, hub: &Hub) -> io::Result<()> {
        self.flush()?;
        // It is behind: what comes next is newer anyway.
        if !self.waiting.is_empty() {
            return Ok(());
        }
        self.send(&News {
            snapshot: &hub.snapshot(),
            troubles: hub.health().reasons(),
        })
    }

    fn send(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut bytes = Vec::new();
        agewise_cli::output::json_line(&mut bytes, line)?;
        if bytes.len() > LINE_MAX_BYTES {
            let text = format!("{} bytes are more than it reads at once", bytes.len());
            return Err(io::Error::other(text));
        }
        self.waiting = bytes.into();
        self.flush()
    }

    /// Writes what the pipe takes within [`PATIENCE`].
    fn flush(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.waiting.is_empty() {
            match rustix::io::write(&self.pipe, self.waiting.as_slices().0) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let mut fds = [PollFd::new(&self.pipe, PollFlags::OUT)];
                    let left = Timespec::try_from(left).unwrap_or_default();
                    if poll(&mut fds, Some(&left)) == Ok(0) {
                        return Ok(());
                    }
                }
                // It has ended, which is found out by itself.
                Err(Errno::PIPE) => self.waiting.clear(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Reads lines as the process does that serves, and shows what they say.
#[cfg(feature = "testing")]
pub(crate) fn fuzzed_line(bytes: &[u8]) {
    use super::http::{Answer, Request};
    let Ok(heard) = serde_json::from_slice::<Heard>(bytes) else {
        return;
    };
    let hub = Hub::new(Default::default());
    hub.health().replace(heard.troubles);
    hub.publish(heard.snapshot);
    let limits = Limits {
        subjects_max: 4,
        depth_max: 3,
    };
    let mut pages = super::page::Pages::new(hub, limits);
    for path in ["/metrics", "/api/snapshot", "/api/timeline", "/healthz"] {
        let request = Request {
            path: path.to_owned(),
            ..Request::default()
        };
        assert!(pages.answer(&request).status < 600);
    }
}

/// Whether it can run as a user of its own; else it keeps the user, and loses all rights the same.
fn can_change_user() -> bool {
    let may = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    may(Capability::CAP_SETUID) && may(Capability::CAP_SETGID)
}
