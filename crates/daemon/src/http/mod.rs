// SPDX-License-Identifier: Apache-2.0
//! A small read-only HTTP server: GET and HEAD, on a TCP port or a UNIX socket.
//!
//! One thread, sockets that never block, and a deadline for everything: a slow client costs a few
//! KiB and delays nobody. `httparse` parses requests; each connection gets one answer. Nothing that
//! arrives here reaches anything except an [`Answer`].

mod connection;
mod listener;
mod request;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use caps::CapSet;
use connection::{Connection, Progress};
pub use listener::Listener;
pub use request::{Hosts, Request};

use super::config::Listen;

/// Maximum number of connections. If there are more, the one that has been silent longest is
/// closed.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of connections accepted before the existing ones are served again.
const ACCEPTS_MAX: usize = 16;
/// After a failure to accept (no file descriptor left), the listener is ignored for this long.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    #[error(
        "metrics.listen: {listen} is in use by another program (or another agewise daemon): stop \
         it, or choose another address"
    )]
    InUse { listen: Listen },
    #[error(
        "metrics.listen: {address} can be reached from other machines; set metrics.allow_remote = \
         true if that is intended"
    )]
    NotLoopback { address: SocketAddr },
    #[error("metrics.listen: {} exists and is not a socket: choose another path", path.display())]
    NoSocket { path: PathBuf },
    #[error("metrics.listen: cannot listen on {listen}: {source}")]
    Listen {
        listen: Listen,
        /// The error of the system.
        source: io::Error,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The type of the body.
    pub media_type: &'static str,
    pub body: Arc<[u8]>,
}

impl Response {
    /// A successful answer with a body of this type.
    pub fn ok(media_type: &'static str, body: impl Into<Arc<[u8]>>) -> Self {
        Response {
            status: 200,
            media_type,
            body: body.into(),
        }
    }

    /// An answer with this status and a line for people.
    pub fn plain(status: u16, text: &str) -> Self {
        Response {
            status,
            media_type: "text/plain; charset=utf-8",
            body: format!("{text}\n").into_bytes().into(),
        }
    }
}

/// Answers requests that are well-formed, for one of our hosts, and read-only.
pub trait Answer: Send + 'static {
    fn answer(&mut self, request: &Request) -> Response;
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: Option<SocketAddr>,
    wake: Arc<OwnedFd>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves the connections of this listener.
    ///
    /// # Errors
    /// If no file descriptor or thread is left.
    pub fn start(listener: Listener, hosts: Hosts, answer: impl Answer) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let is_stopped = Arc::new(AtomicBool::new(false));
        let address = listener.address();
        let mut serving = Serving {
            listener,
            hosts,
            answer,
            wake: Arc::clone(&wake),
            is_stopped: Arc::clone(&is_stopped),
            connections: Vec::new(),
            paused_until: None,
        };
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || serving.serve())?;
        Ok(Server {
            address,
            wake,
            is_stopped,
            thread: Some(thread),
        })
    }

    /// The address, with the actual port; `None` for a socket in the file system.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Serving<A> {
    listener: Listener,
    hosts: Hosts,
    answer: A,
    wake: Arc<OwnedFd>,
    is_stopped: Arc<AtomicBool>,
    connections: Vec<Connection>,
    paused_until: Option<Instant>,
}

impl<A: Answer> Serving<A> {
    fn serve(&mut self) {
        drop_privileges();
        while !self.is_stopped.load(Ordering::SeqCst) {
            let ready = self.wait();
            let now = Instant::now();
            let mut at = 0;
            self.connections.retain_mut(|connection| {
                let is_ready = ready.get(at).copied().unwrap_or(false);
                at += 1;
                let progress = if is_ready {
                    connection.go_on(now, &self.hosts, &mut self.answer)
                } else {
                    Progress::Wait
                };
                progress == Progress::Wait && connection.keeps_time(now)
            });
            if self.paused_until.is_none_or(|until| now >= until) {
                self.accept(now);
            }
        }
    }

    /// Waits until something can be done; returns which connections are ready.
    fn wait(&self) -> Vec<bool> {
        let now = Instant::now();
        let deadlines = self.connections.iter().map(Connection::deadline);
        let timeout = deadlines
            .chain(self.paused_until.filter(|until| *until > now))
            .min()
            .map(|deadline| deadline.saturating_duration_since(now))
            .and_then(|left| Timespec::try_from(left).ok());
        let is_paused = self.paused_until.is_some_and(|until| now < until);
        let accepts = if is_paused {
            PollFlags::empty()
        } else {
            PollFlags::IN
        };
        let mut fds = vec![
            PollFd::new(&*self.wake, PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), accepts),
        ];
        for connection in &self.connections {
            fds.push(PollFd::from_borrowed_fd(
                connection.as_fd(),
                connection.waits_for(),
            ));
        }
        // An error means EINTR: the next turn waits again.
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect()
    }

    fn accept(&mut self, now: Instant) {
        self.paused_until = None;
        for _ in 0..ACCEPTS_MAX {
            match self.listener.accept() {
                Ok(Some(socket)) => {
                    if self.connections.len() >= CONNECTIONS_MAX {
                        self.drop_slowest();
                    }
                    self.connections.push(Connection::new(socket, now));
                }
                Ok(None) => return,
                Err(_) => {
                    self.paused_until = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn drop_slowest(&mut self) {
        let places = self.connections.iter().enumerate();
        if let Some((at, _)) = places.min_by_key(|(_, connection)| connection.deadline()) {
            self.connections.remove(at);
        }
    }
}

/// Parses a head, whole and in halves, and answers it.
#[cfg(feature = "testing")]
pub(crate) fn fuzzed_request(bytes: &[u8], answer: &mut impl Answer) {
    let bytes = &bytes[..bytes.len().min(request::HEAD_MAX_BYTES)];
    let hosts = Hosts::default();
    let _ = request::parse(&bytes[..bytes.len() / 2], &hosts);
    if let request::Parsed::Complete(request) = request::parse(bytes, &hosts) {
        let response = answer.answer(&request);
        assert!(!connection::head(&response).is_empty());
    }
}

/// A thread that talks to others needs no privileges. Each thread has its own capabilities; before,
/// the daemon dropped as many as it could of those that cannot be dropped here.
fn drop_privileges() {
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        let _ = caps::clear(None, set);
    }
}

#[cfg(test)]
mod tests;
