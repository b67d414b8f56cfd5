// SPDX-License-Identifier: Apache-2.0
//! The page and metrics, and the report files, are each served by a separate process without
//! privileges; so are metrics sent.
//!
//! The daemon opens the port or socket, or mounts the file system, starts this program again, and
//! writes a line of JSON at each tick. It writes to the server of the page through a one-way pipe:
//! nothing that a client sends or that the process does reaches the daemon, which reads no byte of
//! either. The server of the files can send requests back (`wish`), but these can express no more
//! than what a writer of the files can do. A process that ends is restarted.

mod child;
mod sandbox;
#[cfg(all(test, feature = "web"))]
mod tests;
#[cfg(feature = "fuse")]
pub(crate) mod wish;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use child::run as run_child;
#[cfg(feature = "otlp")]
pub(crate) use child::{Calls, lock_in};

use super::state::{Hub, Snapshot};

/// Longest line: a snapshot of as many cgroups as the daemon may follow (`observe.cgroups_max`),
/// with 4 KiB for each.
const LINE_MAX_BYTES: usize = 65_536 * 4096;
/// The pipe has room for a line about a few hundred cgroups.
const PIPE_BYTES: usize = 1 << 20;
/// How long a tick waits for a process that reads slowly. The remainder waits for the next tick.
const PATIENCE: Duration = Duration::from_millis(50);
/// After a failure the process is restarted after this time, then after twice as long, and so on.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// A process that lived for this long resets the pauses.
const LIVED: Duration = Duration::from_secs(60);
/// How long the process may take to end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The first message to a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Setup {
    parent: u32,
    task: Task,
}

/// What a process serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Page and metrics, to connections that come to its standard output.
    #[cfg(feature = "web")]
    Web {
        /// Whether requests for any host are answered.
        any_host: bool,
        /// Otherwise only requests for these hosts, `localhost` and bare addresses are.
        hosts: Vec<String>,
        /// Maximum number of subjects shown.
        subjects_max: usize,
        /// Maximum number of containers shown.
        containers_max: usize,
        /// Maximum number of levels shown.
        depth_max: usize,
    },
    /// Nothing: it sends metrics.
    #[cfg(feature = "otlp")]
    Otlp(Box<super::otlp::sending::Sending>),
    /// Report files, for requests that come to its standard output, a FUSE device.
    #[cfg(feature = "fuse")]
    Files {
        /// Who may use them.
        access: super::files::access::Access,
    },
}

/// The message of each tick.
#[derive(Debug, Serialize)]
struct News<'a> {
    snapshot: &'a Snapshot,
    troubles: Vec<String>,
    #[cfg(feature = "fuse")]
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<wish::FilesNews>,
}

/// The same message, as the process reads it.
#[derive(Debug, Deserialize)]
struct Heard {
    snapshot: Snapshot,
    troubles: Vec<String>,
    #[cfg(feature = "fuse")]
    #[serde(default)]
    files: Option<wish::FilesNews>,
}

/// What the daemon opens for a process, and keeps when the process is replaced.
pub trait Stall {
    /// What the process serves.
    fn task(&self) -> Task;

    /// What messages call the process.
    fn name(&self) -> &'static str {
        "the process that serves"
    }

    /// Opens what clients come to, which becomes the standard output of the process.
    ///
    /// # Errors
    /// The error of the system.
    fn open(&mut self) -> io::Result<OwnedFd>;

    /// Both ends of the channel to the process: the daemon's end, and its standard input.
    ///
    /// # Errors
    /// The error of the system.
    fn channel(&mut self) -> io::Result<(OwnedFd, OwnedFd)> {
        let (reads, pipe) = io::pipe()?;
        // If this fails, the pipe is smaller, and a line takes more ticks.
        // SAFETY: no pointers; the descriptor is open.
        unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
        Ok((pipe.into(), reads.into()))
    }

    /// Additional data for a process that serves files.
    #[cfg(feature = "fuse")]
    fn news(&mut self, _hub: &Hub) -> Option<wish::FilesNews> {
        None
    }
}

/// A serving process, restarted whenever it ends. Dropping this ends it.
#[derive(Debug)]
pub struct Apart<S: Stall> {
    program: Vec<String>,
    // Must be dropped before what it serves.
    running: Option<Running>,
    stall: S,
    failures: u32,
    again: Instant,
}

#[derive(Debug)]
struct Running {
    child: Child,
    pipe: OwnedFd,
    since: Instant,
    /// Bytes that the pipe has not accepted yet.
    waiting: VecDeque<u8>,
}

impl<S: Stall> Apart<S> {
    /// Starts the process.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(stall: S) -> io::Result<Self> {
        let program = ["/proc/self/exe", "daemon", "--server"].map(str::to_owned);
        Self::start_program(program.to_vec(), stall)
    }

    fn start_program(program: Vec<String>, stall: S) -> io::Result<Self> {
        let mut apart = Apart {
            program,
            running: None,
            stall,
            failures: 0,
            again: Instant::now(),
        };
        apart.running = Some(apart.spawn()?);
        Ok(apart)
    }

    /// What the process serves.
    pub fn stall(&self) -> &S {
        &self.stall
    }

    /// Passes the results of a tick to the process. Returns messages about it.
    pub fn publish(&mut self, hub: &Hub) -> Option<String> {
        let said = self.tend(hub);
        self.tell(hub).or(said)
    }

    /// Restarts the process if it has ended, and the pause is over. Returns messages about that.
    pub fn tend(&mut self, hub: &Hub) -> Option<String> {
        let ended = self.reap();
        if self.running.is_some() || Instant::now() < self.again {
            return ended;
        }
        Some(match self.spawn() {
            Ok(running) => {
                self.running = Some(running);
                let broken = self.tell(hub);
                broken.unwrap_or_else(|| format!("{} was started again", self.stall.name()))
            }
            Err(error) => self.failed(&error.to_string()),
        })
    }

    fn tell(&mut self, hub: &Hub) -> Option<String> {
        let running = self.running.as_mut()?;
        let error = running.tell(hub, &mut self.stall).err()?;
        if let Some(running) = self.running.take() {
            running.end();
        }
        Some(self.failed(&error.to_string()))
    }

    /// Checks whether the process has ended.
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
            "{} has ended ({why}); another one is started in {} s",
            self.stall.name(),
            pause.as_secs()
        )
    }

    fn spawn(&mut self) -> io::Result<Running> {
        let (pipe, reads) = self.stall.channel()?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let clients = self.stall.open()?;
        let child = Command::new(&self.program[0])
            .args(&self.program[1..])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(reads))
            .stdout(Stdio::from(clients))
            .spawn()?;
        let mut running = Running {
            child,
            pipe,
            since: Instant::now(),
            waiting: VecDeque::new(),
        };
        running.send(&Setup {
            parent: std::process::id(),
            task: self.stall.task(),
        })?;
        Ok(running)
    }
}

impl<S: Stall> Drop for Apart<S> {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.end();
        }
    }
}

impl Running {
    /// Kills the process. Without CAP_KILL it may have another user, whose processes the daemon may
    /// not signal: then the end of its input ends it.
    fn end(mut self) {
        let _ = self.child.kill();
        // Ends a socket even if others hold it; it has no effect on a pipe.
        let _ = rustix::net::shutdown(&self.pipe, rustix::net::Shutdown::Both);
        drop(self.pipe);
        let deadline = Instant::now() + LAST_WORDS;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[cfg_attr(not(feature = "fuse"), expect(unused_variables))]
    fn tell(&mut self, hub: &Hub, stall: &mut impl Stall) -> io::Result<()> {
        self.flush()?;
        // The process is behind: the next message will be newer anyway.
        if !self.waiting.is_empty() {
            return Ok(());
        }
        self.send(&News {
            snapshot: &hub.snapshot(),
            troubles: hub.health().reasons(),
            #[cfg(feature = "fuse")]
            files: stall.news(hub),
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

    /// Writes what the pipe accepts within [`PATIENCE`].
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
                // The process has ended; `reap` notices that.
                Err(Errno::PIPE) => self.waiting.clear(),
                Err(error) => return Err(error.into()),
            }
        }
        // It is as large as the message was.
        self.waiting = VecDeque::new();
        Ok(())
    }
}

/// Reads a line as the serving process does, and displays its contents.
#[cfg(feature = "testing")]
pub(crate) fn fuzzed_line(bytes: &[u8]) {
    use super::http::{Answer, Request};
    use super::metrics::shown::Limits;
    let Ok(heard) = serde_json::from_slice::<Heard>(bytes) else {
        return;
    };
    let hub = Hub::new(Default::default());
    hub.keep_timeline();
    hub.health().replace(heard.troubles);
    hub.publish(heard.snapshot);
    let limits = Limits {
        subjects_max: 4,
        containers_max: 4,
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
