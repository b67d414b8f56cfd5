// SPDX-License-Identifier: Apache-2.0
//! Working-set reports as files, so that programs written for the kernel's proposed interface work
//! unchanged: `DIR/nodeX/workingset_report/…` and `DIR/cgroup/PATH/memory.workingset.…`, with the
//! formats, ranges and errors of the document. They can be read, written and polled.
//!
//! The directory is a FUSE file system. If this process may mount, a separate process without
//! privileges serves it. Without FUSE, it contains plain files that are rewritten, and a socket for
//! writing and waiting. No access to it can cause memory to be moved.

pub(crate) mod access;
#[cfg(feature = "fuse")]
mod apart;
#[cfg(feature = "fuse")]
mod fuse;
mod handles;
#[cfg(feature = "fuse")]
mod inodes;
mod mount;
mod plain;
#[cfg(feature = "fuse")]
mod session;
#[cfg(not(feature = "fuse"))]
#[path = "no_session.rs"]
mod session;
pub(crate) mod source;
mod tree;

#[cfg(all(test, feature = "fuse"))]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use agewise_policy::workingset::report::{File, GroupFile, NodeFile, Notice};

use self::plain::Plain;
use self::session::Mounted;
use super::state::{Event, Hub};

pub use access::Access;
pub(crate) use mount::{is_below_cgroups, is_occupied};
pub use source::{Group, ReportFile, Source};

/// The default directory.
pub const DEFAULT_DIR: &str = "/run/agewise";

/// How long a read waits for a new look by the daemon.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest sleep of the aging thread; events wake it.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// How the files are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Means {
    /// FUSE if it works, otherwise plain files.
    #[default]
    Any,
    /// FUSE or nothing.
    Fuse,
    /// Plain files and a socket.
    Plain,
}

/// What to serve, and how.
#[derive(Clone, Debug)]
pub struct FilesConfig {
    /// The directory. It is created if it does not exist, and must be empty.
    pub dir: PathBuf,
    /// How to serve it.
    pub means: Means,
}

impl Default for FilesConfig {
    fn default() -> Self {
        FilesConfig {
            dir: DEFAULT_DIR.into(),
            means: Means::Any,
        }
    }
}

/// Why there are no files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    #[error("another agewise daemon serves {}: stop it, or give this one another \
             directory", dir.display())]
    Served { dir: PathBuf },
    #[error("{} is not empty, not a directory, or mounted by another program: give another \
             one", dir.display())]
    Occupied { dir: PathBuf },
    #[error("{} would be a cgroup: give another directory", dir.display())]
    Cgroup { dir: PathBuf },
    #[error("cannot {what} {}: {source}", dir.display())]
    Directory {
        what: &'static str,
        dir: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    #[error("cannot mount a FUSE file system at {}: {source}; load the fuse module, make /dev/fuse \
             accessible, or let the files be plain", dir.display())]
    NoFuse {
        dir: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    #[error("cannot start serving files: {0}")]
    Start(io::Error),
}

/// The files of a daemon: served by a separate process, or by threads of this one.
pub enum Shop {
    /// A file system that this process mounted and another one serves.
    #[cfg(feature = "fuse")]
    Apart(crate::serve::Apart<apart::Place>),
    /// A file system that another program mounts for this process, or plain files.
    Here(Files),
}

impl Shop {
    /// Serves the contents of the hub, with a separate process if this one may mount.
    ///
    /// # Errors
    /// [`FilesError`]; nothing is left behind then.
    pub fn open(hub: &Hub, config: &FilesConfig, clock: fn() -> u64) -> Result<Self, FilesError> {
        #[cfg(feature = "fuse")]
        if config.means != Means::Plain && crate::privileges::can_mount() {
            let dir = mount::prepare(&config.dir)?;
            let place = apart::Place::new(dir, hub).map_err(FilesError::Start)?;
            if let Ok(apart) = crate::serve::Apart::start(place) {
                return Ok(Shop::Apart(apart));
            }
        }
        Files::start(hub, config, clock).map(Shop::Here)
    }

    /// Passes on the results of a tick. Returns messages about the serving process.
    #[cfg_attr(not(feature = "fuse"), expect(unused_variables))]
    pub fn publish(&mut self, hub: &Hub) -> Option<String> {
        match self {
            #[cfg(feature = "fuse")]
            Shop::Apart(apart) => apart.publish(hub),
            Shop::Here(_) => None,
        }
    }

    /// Restarts the serving process if it has ended. Returns messages about it.
    #[cfg_attr(not(feature = "fuse"), expect(unused_variables))]
    pub fn tend(&mut self, hub: &Hub) -> Option<String> {
        match self {
            #[cfg(feature = "fuse")]
            Shop::Apart(apart) => apart.tend(hub),
            Shop::Here(_) => None,
        }
    }

    /// One line for people: where the files are, and how they are served.
    pub fn describe(&self) -> String {
        match self {
            #[cfg(feature = "fuse")]
            Shop::Apart(apart) => {
                let dir = apart.stall().dir().display();
                format!("working-set reports in {dir} (FUSE, by a process without privileges)")
            }
            Shop::Here(files) => files.describe(),
        }
    }
}

/// Serves a file system that another process mounted, from threads that have all started when this
/// returns, until the process ends.
///
/// # Errors
/// If the device is not such a device, or is no longer mounted.
#[cfg(feature = "fuse")]
pub(crate) fn serve_mounted(
    hub: &Hub,
    device: std::os::fd::OwnedFd,
    access: Access,
) -> io::Result<()> {
    let clock = agewise_host::agent::Agent::now_ms;
    let source = Arc::new(Source::new(hub.clone(), clock, LOOK_TIMEOUT));
    let server = Server::Fuse(Mounted::given(device, &source, access)?);
    let events = hub.subscribe();
    let mut keeper = Keeper {
        source,
        server,
        events: events.ok_or_else(|| io::Error::other("too many subscribers"))?,
        is_stopped: Arc::default(),
        dir: PathBuf::new(),
    };
    std::thread::Builder::new()
        .name("files".to_owned())
        .spawn(move || keeper.keep())?;
    Ok(())
}

enum Server {
    Fuse(Mounted),
    Plain(Plain),
}

/// The served files. Dropping this unmounts or removes them.
pub struct Files {
    dir: PathBuf,
    hub: Hub,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    served: Served,
}

/// How files are served.
enum Served {
    ByFuse,
    /// Plain, with the error of FUSE if that was tried.
    Plain(Option<io::Error>),
}

impl Files {
    /// Serves the contents of the hub. `clock` returns the time that its ages refer to, ms.
    ///
    /// # Errors
    /// [`FilesError`]; nothing is left behind then.
    pub fn start(hub: &Hub, config: &FilesConfig, clock: fn() -> u64) -> Result<Self, FilesError> {
        let dir = mount::prepare(&config.dir)?;
        let source = Arc::new(Source::new(hub.clone(), clock, LOOK_TIMEOUT));
        let plain = || {
            let plain = Plain::new(&dir, Arc::clone(&source));
            let plain = plain.map_err(|error| FilesError::Directory {
                what: "fill",
                dir: dir.clone(),
                source: error,
            })?;
            Ok(Server::Plain(plain))
        };
        let (server, served) = match config.means {
            Means::Plain => (plain()?, Served::Plain(None)),
            Means::Any | Means::Fuse => match Mounted::new(&dir, &source) {
                Ok(mounted) => (Server::Fuse(mounted), Served::ByFuse),
                Err(error) if config.means == Means::Fuse => {
                    return Err(FilesError::NoFuse { dir, source: error });
                }
                Err(error) => (plain()?, Served::Plain(Some(error))),
            },
        };
        let events = hub
            .subscribe()
            .ok_or_else(|| FilesError::Start(io::Error::other("too many subscribers")))?;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let mut keeper = Keeper {
            source,
            server,
            events,
            is_stopped: Arc::clone(&is_stopped),
            dir: dir.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("files".to_owned())
            .spawn(move || keeper.keep())
            .map_err(FilesError::Start)?;
        Ok(Files {
            dir,
            hub: hub.clone(),
            is_stopped,
            thread: Some(thread),
            served,
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it is a FUSE file system; otherwise plain files.
    pub fn is_fuse(&self) -> bool {
        matches!(self.served, Served::ByFuse)
    }

    /// One line for people: where the files are, how they are served, and why not by FUSE.
    pub fn describe(&self) -> String {
        let dir = self.dir.display();
        match &self.served {
            Served::ByFuse => format!("working-set reports in {dir} (FUSE)"),
            Served::Plain(Some(error)) => format!(
                "working-set reports in {dir} as plain files, rewritten after each look, written \
                 and waited for through {dir}/{}: no FUSE here ({error})",
                mount::CONTROL
            ),
            Served::Plain(None) => format!(
                "working-set reports in {dir} as plain files, written and waited for through \
                 {dir}/{}",
                mount::CONTROL
            ),
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the thread; it means nothing to others.
        self.hub.tell(Event::Lost(0));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The aging thread: refreshes what has expired, and notifies pollers of pressure.
struct Keeper {
    source: Arc<Source>,
    server: Server,
    events: Receiver<Event>,
    is_stopped: Arc<AtomicBool>,
    dir: PathBuf,
}

impl Keeper {
    fn keep(&mut self) {
        let mut was_written = true;
        while !self.is_stopped.load(Ordering::SeqCst) {
            let sleep = self.source.age().unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
            match self.events.recv_timeout(sleep) {
                Ok(Event::Pressure(scopes)) => {
                    scopes.iter().for_each(|scope| self.tell_pressure(scope));
                }
                Ok(Event::Lost(lost)) if lost > 0 => {
                    // Which ones were lost is unknown: check all with settings.
                    for scope in self.source.hub().settings().reports.keys() {
                        self.tell_pressure(scope);
                    }
                }
                Ok(Event::Tick { .. }) => was_written = self.rewrite(was_written),
                Ok(Event::Lost(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    fn tell_pressure(&self, scope: &super::state::Scope) {
        for notice in self.source.pressure(scope) {
            let file = match notice {
                Notice::Node(node) => File::Node(node, NodeFile::PageAge),
                Notice::Group(group) => File::Group(group, GroupFile::PageAge),
                Notice::Receiver(_) => continue,
            };
            match &self.server {
                Server::Fuse(mounted) => mounted.notify(&file),
                Server::Plain(plain) => plain.notify(&file),
            }
        }
    }

    /// Updates plain files; reports once if that fails.
    fn rewrite(&mut self, was_written: bool) -> bool {
        let Server::Plain(plain) = &mut self.server else {
            return true;
        };
        match plain.rewrite() {
            Ok(()) => true,
            Err(error) => {
                if was_written {
                    agewise_cli::note!("cannot write the files in {}: {error}", self.dir.display());
                }
                false
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Server::Fuse(mounted) = &mut self.server {
            mounted.unmount(&self.dir);
        }
    }
}
