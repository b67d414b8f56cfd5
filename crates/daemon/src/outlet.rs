// SPDX-License-Identifier: Apache-2.0
//! Serves the daemon's results over HTTP, as configured: opened, moved, closed, and served by a
//! separate process. Another one sends them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use agewise_cli::units::unix_ms;
use agewise_host::throttle::{Ledger, Undo};

use super::config::{Listen, Metrics, SocketMode};
use super::http::{Hosts, Listener, ServeError, Server};
use super::metrics::shown::Limits;
use super::noted::Noted;
use super::otlp::{self, Sender};
use super::page::Pages;
use super::serve::{Apart, Stall, Task};
use super::state::Hub;
use super::textfile::Textfile;

/// The server, the file and the sender, as far as they are configured.
#[derive(Debug)]
pub struct Outlet {
    server: Option<Open>,
    textfile: Option<Textfile>,
    sender: Option<Sender>,
    since_unix_ms: u64,
    ledger: Option<Ledger>,
    is_apart: bool,
}

/// Why a configuration of metrics cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum OutletError {
    /// They cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// They cannot be sent.
    #[error("metrics.otlp: {0}")]
    Send(#[from] otlp::StartError),
}

/// A server, and the record of its socket, which must be dropped after it.
#[derive(Debug)]
struct Open {
    serving: Serving,
    door: Door,
    _noted: Option<Noted>,
}

/// Where and to whom what is served.
#[derive(Debug, PartialEq)]
struct Serving {
    listen: Listen,
    allow_remote: bool,
    socket_mode: SocketMode,
    hosts: Vec<String>,
    limits: Limits,
}

impl Serving {
    fn of(config: &Metrics) -> Self {
        Serving {
            listen: config.listen.clone(),
            allow_remote: config.allow_remote,
            socket_mode: config.socket_mode,
            hosts: config.hosts.clone(),
            limits: limits(config),
        }
    }
}

/// Who answers requests.
#[derive(Debug)]
enum Door {
    /// A thread of this process.
    Here(Server),
    /// A process without privileges.
    Apart(Box<Apart<Web>>),
}

/// A port or socket, and what is shown there.
#[derive(Debug)]
struct Web {
    listener: Listener,
    hosts: Hosts,
    limits: Limits,
}

impl Stall for Web {
    fn task(&self) -> Task {
        Task::Web {
            any_host: self.hosts.any,
            hosts: self.hosts.names.clone(),
            subjects_max: self.limits.subjects_max,
            containers_max: self.limits.containers_max,
            depth_max: self.limits.depth_max,
        }
    }

    fn open(&mut self) -> io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }
}

impl Default for Outlet {
    /// Starts closed. Counters begin now.
    fn default() -> Self {
        Outlet {
            server: None,
            textfile: None,
            sender: None,
            since_unix_ms: unix_ms(),
            ledger: None,
            is_apart: false,
        }
    }
}

impl Outlet {
    /// Starts closed. A separate process will serve. Sockets in the file system are recorded in the
    /// ledger.
    pub fn apart(ledger: Option<Ledger>) -> Self {
        Outlet {
            ledger,
            is_apart: true,
            ..Outlet::default()
        }
    }

    /// Passes on the results of a tick. Returns messages about the serving process.
    pub fn publish(&mut self, hub: &Hub) -> Option<String> {
        let file = self.textfile.as_mut();
        let file = file.and_then(|textfile| textfile.publish(hub));
        let server = match self.server.as_mut().map(|open| &mut open.door) {
            Some(Door::Apart(apart)) => apart.publish(hub),
            Some(Door::Here(_)) | None => None,
        };
        let sender = self.sender.as_mut();
        let sender = sender.and_then(|sender| sender.publish(hub));
        joined([file, server, sender])
    }

    fn write_to(&mut self, path: Option<&Path>, limits: Limits) {
        let old = self.textfile.take();
        self.textfile = path.map(|path| match old {
            Some(old) => old.moved_to(path, limits),
            None => Textfile::new(path, limits),
        });
    }

    /// Restarts processes that have ended. Returns messages about that.
    pub fn tend(&mut self, hub: &Hub) -> Option<String> {
        let server = match self.server.as_mut().map(|open| &mut open.door) {
            Some(Door::Apart(apart)) => apart.tend(hub),
            Some(Door::Here(_)) | None => None,
        };
        let sender = self.sender.as_mut().and_then(|sender| sender.tend(hub));
        joined([server, sender])
    }

    /// Applies the configuration. A server that is already open as configured stays.
    ///
    /// # Errors
    /// [`OutletError`]; what was open before stays open then.
    pub fn follow(&mut self, config: &Metrics, hub: &Hub) -> Result<(), OutletError> {
        let (now, since_unix_ms) = (self.sender.as_ref(), self.since_unix_ms);
        let sender = otlp::replaced(now, config, limits(config), since_unix_ms)?;
        self.follow_served(config.enabled.then(|| Serving::of(config)), hub)?;
        self.write_to(config.textfile.as_deref(), limits(config));
        if let Some(sender) = sender {
            self.sender = sender;
        }
        Ok(())
    }

    fn follow_served(&mut self, new: Option<Serving>, hub: &Hub) -> Result<(), ServeError> {
        let Some(new) = new else {
            self.server = None;
            return Ok(());
        };
        let server = &mut self.server;
        if server.as_ref().is_some_and(|open| open.serving == new) {
            return Ok(());
        }
        // The same address can only be bound after it was released.
        let before = server.take_if(|open| open.serving.listen == new.listen);
        let before = before.map(|open| open.serving);
        match self.serve(new, hub) {
            Ok(server) => {
                self.server = Some(server);
                Ok(())
            }
            Err(error) => {
                if let Some(before) = before {
                    // If not even this succeeds, the next call tries again.
                    self.server = self.serve(before, hub).ok();
                }
                Err(error)
            }
        }
    }

    /// One line for people: where the results can be read.
    pub fn describe(&self) -> Option<String> {
        let sender = self.sender.as_ref().map(Sender::describe);
        joined([self.describe_served(), sender])
    }

    fn describe_served(&self) -> Option<String> {
        let open = self.server.as_ref()?;
        let address = match &open.door {
            Door::Here(server) => server.address(),
            Door::Apart(apart) => apart.stall().listener.address(),
        };
        Some(match address {
            Some(address) => format!("the page at http://{address}/, metrics at /metrics"),
            None => format!("the page and metrics at {}", open.serving.listen),
        })
    }

    fn serve(&self, serving: Serving, hub: &Hub) -> Result<Open, ServeError> {
        let noted = match (&serving.listen, &self.ledger) {
            (Listen::Unix(path), Some(ledger)) => std::path::absolute(path)
                .ok()
                .and_then(|path| Noted::new(ledger, Undo::socket(&path))),
            _ => None,
        };
        let (listen, mode) = (&serving.listen, serving.socket_mode.0);
        let listener = Listener::bind(listen, serving.allow_remote, mode)?;
        let hosts = Hosts {
            any: matches!(listen, Listen::Unix(_)),
            names: serving.hosts.clone(),
        };
        let limits = serving.limits;
        let started = if self.is_apart {
            let web = Web {
                listener,
                hosts,
                limits,
            };
            Apart::start(web).map(|apart| Door::Apart(Box::new(apart)))
        } else {
            Server::start(listener, hosts, Pages::new(hub.clone(), limits)).map(Door::Here)
        };
        let door = started.map_err(|source| ServeError::Listen {
            listen: listen.clone(),
            source,
        })?;
        Ok(Open {
            serving,
            door,
            _noted: noted,
        })
    }
}

/// All messages as one.
fn joined(messages: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let messages: Vec<String> = messages.into_iter().flatten().collect();
    (!messages.is_empty()).then(|| messages.join("; "))
}

fn limits(config: &Metrics) -> Limits {
    Limits {
        subjects_max: usize::try_from(config.cgroups_max.0).unwrap_or(usize::MAX),
        containers_max: usize::try_from(config.containers_max.0).unwrap_or(usize::MAX),
        depth_max: usize::try_from(config.depth_max.0).unwrap_or(usize::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::demo;

    fn metrics(text: &str) -> Metrics {
        Config::parse(&format!("[metrics]\nenabled = true\n{text}"))
            .unwrap()
            .metrics
    }

    #[test]
    fn modes_of_sockets_are_octal_and_run_nothing() {
        assert_eq!(metrics("socket_mode = '0660'").socket_mode.0, 0o660);
        for wrong in ["'0755'", "'+600'", "'rw'", "''", "660"] {
            let text = format!("[metrics]\nsocket_mode = {wrong}\n");
            let error = Config::parse(&text).unwrap_err();
            assert!(error.contains("line 2"), "{wrong}: {error}");
        }
    }

    #[test]
    fn it_moves_with_the_configuration_and_stays_when_it_cannot() {
        let hub = Hub::new(demo::settings());
        let mut outlet = Outlet::default();
        outlet.follow(&Metrics::default(), &hub).unwrap();
        assert_eq!(outlet.describe(), None, "off unless asked for");
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let at = |name: &str| metrics(&format!("listen = 'unix:{}'", path(name).display()));
        outlet.follow(&at("a"), &hub).unwrap();
        assert!(path("a").exists() && outlet.describe().unwrap().contains("unix:"));
        outlet.follow(&at("b"), &hub).unwrap();
        assert!(path("b").exists() && !path("a").exists());
        std::fs::write(path("c"), "").unwrap();
        assert!(outlet.follow(&at("c"), &hub).is_err());
        assert!(path("b").exists());
        let mut deeper = at("b");
        deeper.depth_max.0 = 5;
        outlet.follow(&deeper, &hub).unwrap();
        assert!(path("b").exists());
        // Neither the new one nor the one before can be opened at this address any more.
        std::fs::remove_file(path("b")).unwrap();
        std::fs::create_dir(path("b")).unwrap();
        assert!(outlet.follow(&at("b"), &hub).is_err());
        assert_eq!(outlet.describe(), None);
        std::fs::remove_dir(path("b")).unwrap();
        outlet.follow(&deeper, &hub).unwrap();
        assert!(path("b").exists() && outlet.describe().is_some());
        outlet.follow(&Metrics::default(), &hub).unwrap();
        assert!(!path("b").exists());
    }
}
