// SPDX-License-Identifier: Apache-2.0
//! The FUSE session: mounted, notified, unmounted.

use std::io;
use std::path::Path;
use std::sync::Arc;

use agewise_host::throttle::stale::SOURCE;
use fuser::{BackgroundSession, Config, MountOption, Notifier, Session, SessionACL};

use super::fuse::{Polled, Tree, notify};
use super::source::{ReportFile, Source};
use super::{Access, mount};

/// Threads that answer: one that waits for a scan does not hold up the others.
const THREADS: usize = 4;

/// A mounted file system.
pub struct Mounted {
    session: Option<BackgroundSession>,
    notifier: Notifier,
    polled: Polled,
}

impl Mounted {
    /// Mounts the tree of a source at a directory.
    ///
    /// # Errors
    /// There is no FUSE here, or it may not be used.
    pub fn new(dir: &Path, source: &Arc<Source>, access: Access) -> io::Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(SOURCE.to_owned()),
            MountOption::Subtype(SOURCE.to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::NoExec,
            MountOption::NoAtime,
        ];
        config.acl = acl(access);
        config.n_threads = Some(THREADS);
        let (tree, polled) = Tree::new(Arc::clone(source), access);
        let session = Session::new(tree, dir, &config)?.spawn()?;
        Ok(Mounted {
            notifier: session.notifier(),
            session: Some(session),
            polled,
        })
    }

    /// Wakes the programs that poll a file.
    pub fn notify(&self, file: &ReportFile) {
        notify(&self.polled, &self.notifier, file);
    }

    /// Unmounts. Files that are still open keep the session alive, but nobody new comes in; it ends
    /// with the process. Unmounting without detaching would fail while a file is being read.
    pub fn unmount(&mut self, dir: &Path) {
        match mount::detach(dir) {
            Ok(()) => drop(self.session.take()),
            // It was unmounted by hand.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => drop(self.session.take()),
            Err(error) => agewise_cli::note!("cannot unmount {}: {error}", dir.display()),
        }
    }
}

/// FUSE admits only the user who mounted, unless others may read or write the files.
fn acl(access: Access) -> SessionACL {
    match access.mode & 0o066 {
        0 => SessionACL::RootAndOwner,
        _ => SessionACL::All,
    }
}
