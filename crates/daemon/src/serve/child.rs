// SPDX-License-Identifier: Apache-2.0
//! The process that serves: lines come in at standard input, connections at standard output, which
//! is the socket that the daemon opened.

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;

use super::{Heard, LINE_MAX_BYTES, Setup, sandbox};
use crate::http::{Hosts, Listener, Server};
use crate::metrics::shown::Limits;
use crate::page::Pages;
use crate::state::{Hub, Settings};

/// Serves until standard input ends.
///
/// # Errors
/// It was not started by the daemon, or cannot give up its rights.
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
    let limits = Limits {
        subjects_max: setup.subjects_max,
        containers_max: setup.containers_max,
        depth_max: setup.depth_max,
    };
    let hosts = Hosts {
        any: setup.any_host,
        names: setup.hosts,
    };
    let listener = Listener::given(io::stdout().as_fd().try_clone_to_owned()?);
    let _server = Server::start(listener, hosts, Pages::new(hub.clone(), limits))?;
    if let Err(error) = sandbox::lock_in() {
        agewise_cli::note!(
            "the process that serves has no privileges, but may make any system call ({error}): \
             this kernel has no seccomp filters, or a filter of systemd forbids them"
        );
    }
    while let Some(heard) = read::<Heard>(&mut lines)? {
        hub.health().replace(heard.troubles);
        if heard.snapshot.sequence != hub.snapshot().sequence {
            hub.publish(heard.snapshot);
        }
    }
    Ok(())
}

/// The next line; `None` at the end.
fn read<T: serde::de::DeserializeOwned>(lines: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let most = LINE_MAX_BYTES as u64 + 1;
    lines.by_ref().take(most).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        // Half a line: whoever wrote it was killed.
        Some(_) => Ok(None),
    }
}
