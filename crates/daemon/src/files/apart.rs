// SPDX-License-Identifier: Apache-2.0
//! A file system that the daemon mounts and a separate process serves.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use super::{Access, mount, session};
use crate::serve::wish::{self, FilesNews};
use crate::serve::{Stall, Task};
use crate::state::{Event, Hub, Scope};

/// The mount, unmounted when dropped.
pub struct Place {
    dir: PathBuf,
    access: Access,
    hub: Hub,
    is_mounted: bool,
    events: Receiver<Event>,
    /// Where the kernel has reclaimed since the process was last notified. Bounded: the hub keeps
    /// few events, and if some are lost the cgroups with settings are added.
    pressed: BTreeSet<Scope>,
    /// Number of wishes accepted from the current process.
    taken: Arc<AtomicU64>,
}

impl Place {
    /// Uses a directory that was prepared.
    ///
    /// # Errors
    /// If the hub has too many subscribers.
    pub fn new(dir: PathBuf, hub: &Hub) -> io::Result<Self> {
        let events = hub.subscribe();
        Ok(Place {
            dir,
            access: Access::of_daemon(),
            hub: hub.clone(),
            is_mounted: false,
            events: events.ok_or_else(|| io::Error::other("too many subscribers"))?,
            pressed: BTreeSet::new(),
            taken: Arc::default(),
        })
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn unmount(&mut self) {
        if !std::mem::take(&mut self.is_mounted) {
            return;
        }
        match mount::detach(&self.dir) {
            // The user has already unmounted it.
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => {
                agewise_cli::note!("cannot unmount {}: {error}", self.dir.display());
            }
            _ => {}
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.unmount();
    }
}

impl Stall for Place {
    fn task(&self) -> Task {
        Task::Files {
            access: self.access,
        }
    }

    /// A device serves one mount from its first request on, so a new process needs a new one.
    fn open(&mut self) -> io::Result<OwnedFd> {
        self.unmount();
        let device = session::mount_device(&self.dir)?;
        self.is_mounted = true;
        Ok(device)
    }

    fn channel(&mut self) -> io::Result<(OwnedFd, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        let (hub, taken) = (self.hub.clone(), Arc::default());
        self.taken = Arc::clone(&taken);
        let reads = ours.try_clone()?;
        std::thread::Builder::new()
            .name("files-wishes".to_owned())
            .spawn(move || wish::listen(&reads, &hub, &taken))?;
        Ok((ours.into(), theirs.into()))
    }

    fn news(&mut self, hub: &Hub) -> Option<FilesNews> {
        for event in self.events.try_iter() {
            match event {
                Event::Pressure(scopes) => self.pressed.extend(scopes.iter().cloned()),
                // Which ones were lost is unknown: take all with settings.
                Event::Lost(_) => {
                    let settings = hub.settings();
                    self.pressed.extend(settings.reports.keys().cloned());
                }
                Event::Tick { .. } => {}
            }
        }
        // Count first: settings made after this are sent with the next news.
        let taken = self.taken.load(Ordering::SeqCst);
        Some(FilesNews {
            taken,
            settings: wish::written(&hub.settings()),
            pressed: std::mem::take(&mut self.pressed)
                .iter()
                .map(Into::into)
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Settings;

    #[test]
    fn every_cgroup_under_pressure_is_passed_on() {
        let hub = Hub::new(Settings::default());
        let mut place = Place::new(PathBuf::new(), &hub).unwrap();
        let scopes = (0..5000).map(|number| Scope {
            cgroup: Some(format!("/job/{number}").into()),
            node: 0,
        });
        hub.tell(Event::Pressure(scopes.collect()));
        let news = place.news(&hub).unwrap();
        assert_eq!(news.pressed.len(), 5000);
        assert!(place.news(&hub).unwrap().pressed.is_empty());
    }
}
