// SPDX-License-Identifier: Apache-2.0
//! A serving process: it reads lines from standard input, and clients come to its standard output,
//! which the daemon opened.

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd};

pub(crate) use super::sandbox::Calls;
use super::{Heard, LINE_MAX_BYTES, Setup, Task, sandbox};
use crate::state::{Hub, Settings};

/// Serves until standard input ends.
///
/// # Errors
/// If the daemon did not start it, or it cannot give up its rights.
pub fn run() -> io::Result<()> {
    let mut lines = BufReader::new(
        io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map(std::fs::File::from)?,
    );
    let setup: Setup = read(&mut lines)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    sandbox::give_up_rights(setup.parent)?;
    let hub = Hub::new(Settings::default());
    let clients = io::stdout().as_fd().try_clone_to_owned()?;
    let calls = Calls::Answer {
        clients: clients.as_raw_fd(),
    };
    let served = match setup.task {
        #[cfg(feature = "web")]
        Task::Web {
            any_host,
            hosts,
            subjects_max,
            containers_max,
            depth_max,
        } => {
            use crate::http::{Hosts, Listener, Server};
            let limits = crate::metrics::shown::Limits {
                subjects_max,
                containers_max,
                depth_max,
            };
            let hosts = Hosts {
                any: any_host,
                names: hosts,
            };
            let pages = crate::page::Pages::new(hub.clone(), limits);
            Served::Web(Server::start(Listener::given(clients)?, hosts, pages)?)
        }
        #[cfg(feature = "otlp")]
        Task::Otlp(sending) => Served::Otlp(crate::otlp::send::start(*sending, hub.clone())?),
        #[cfg(feature = "fuse")]
        Task::Files { access } => {
            let asking = super::wish::Asking::new(hub.clone());
            crate::files::serve_mounted(&hub, clients, access)?;
            let daemon = std::fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
            let asks = asking.clone();
            // The thread ends with the daemon, like the whole process.
            std::thread::spawn(move || asks.ask(daemon));
            Served::Files(asking)
        }
    };
    if served.is_ready() {
        lock_in(calls);
    }
    while let Some(heard) = read::<Heard>(&mut lines)? {
        served.hear(&hub, heard)?;
    }
    Ok(())
}

/// Restricts the process to these system calls, for good.
pub(crate) fn lock_in(calls: Calls) {
    if let Err(error) = sandbox::lock_in(calls) {
        agewise_cli::note!(
            "a process that serves has no privileges, but may make any system call ({error}): \
             this kernel has no seccomp filters, or a filter of systemd forbids them"
        );
    }
}

/// What answers requests.
enum Served {
    #[cfg(feature = "web")]
    Web(#[expect(dead_code, reason = "it serves as long as it is there")] crate::http::Server),
    #[cfg(feature = "otlp")]
    Otlp(std::thread::JoinHandle<()>),
    #[cfg(feature = "fuse")]
    Files(super::wish::Asking),
}

impl Served {
    /// Whether it needs no more than answering takes. What sends metrics has to look up where to
    /// first, and locks itself in.
    fn is_ready(&self) -> bool {
        match self {
            #[cfg(feature = "otlp")]
            Served::Otlp(_) => false,
            #[cfg(any(feature = "fuse", feature = "web"))]
            _ => true,
        }
    }

    fn hear(&self, hub: &Hub, heard: Heard) -> io::Result<()> {
        #[cfg(feature = "otlp")]
        if let Served::Otlp(thread) = self
            && thread.is_finished()
        {
            return Err(io::Error::other(
                "its name may have another address by now, or the thread that sends has failed",
            ));
        }
        hub.health().replace(heard.troubles);
        #[cfg(feature = "fuse")]
        let files = match (self, heard.files) {
            (Served::Files(asking), Some(files)) => {
                asking.hear(files.taken, files.settings);
                files.pressed
            }
            _ => Vec::new(),
        };
        if heard.snapshot.sequence != hub.snapshot().sequence {
            hub.publish(heard.snapshot);
        }
        #[cfg(feature = "fuse")]
        if !files.is_empty() {
            let scopes = files.into_iter().map(Into::into).collect();
            hub.tell(crate::state::Event::Pressure(scopes));
        }
        Ok(())
    }
}

/// The next line; `None` at the end.
fn read<T: serde::de::DeserializeOwned>(lines: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let most = LINE_MAX_BYTES as u64 + 1;
    lines.by_ref().take(most).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        // Half a line: its writer was killed.
        Some(_) => Ok(None),
    }
}
