// SPDX-License-Identifier: Apache-2.0
//! The FUSE session: mounts, notifies, unmounts.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agewise_host::throttle::stale::SOURCE;
use fuser::{BackgroundSession, Config, MountOption, Notifier, Session, SessionACL};
use rustix::mount::MountFlags;

use super::fuse::{Polled, Tree, notify};
use super::source::{ReportFile, Source};
use super::{Access, mount};

/// Threads that answer requests: one that waits for a scan does not block the others.
const THREADS: usize = 4;
/// How long the threads may take to start.
const PATIENCE: Duration = Duration::from_secs(10);

/// A mounted file system.
pub struct Mounted {
    session: Option<BackgroundSession>,
    notifier: Notifier,
    polled: Polled,
}

impl Mounted {
    /// Mounts the tree of a source on a directory.
    ///
    /// # Errors
    /// If FUSE is not available, or may not be used.
    pub fn new(dir: &Path, source: &Arc<Source>) -> io::Result<Self> {
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
        config.acl = SessionACL::RootAndOwner;
        config.n_threads = Some(THREADS);
        let (tree, polled) = Tree::new(Arc::clone(source), Access::of_daemon());
        Self::spawn(Session::new(tree, dir, &config)?, polled)
    }

    /// Serves a tree that [`mount_device`] mounted. All threads have started when this returns.
    ///
    /// # Errors
    /// If it is not such a device, or is no longer mounted.
    pub fn given(device: OwnedFd, source: &Arc<Source>, access: Access) -> io::Result<Self> {
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        // The kernel compares users with the modes of files.
        config.acl = SessionACL::All;
        let (tree, polled) = Tree::new(Arc::clone(source), access);
        let session = Session::from_fd(tree, device, SessionACL::All, config)?;
        let before = threads()?;
        let mounted = Self::spawn(session, polled)?;
        let deadline = Instant::now() + PATIENCE;
        // One thread that starts the others and waits for them.
        while threads()? < before + 1 + THREADS {
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(mounted)
    }

    fn spawn(session: Session<Tree>, polled: Polled) -> io::Result<Self> {
        let session = session.spawn()?;
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

    /// Unmounts. Files that are still open keep the session alive until the process ends, but no
    /// new clients can enter. Unmounting without detaching would fail while a file is being read.
    pub fn unmount(&mut self, dir: &Path) {
        match mount::detach(dir) {
            Ok(()) => drop(self.session.take()),
            // The user has already unmounted it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => drop(self.session.take()),
            Err(error) => agewise_cli::note!("cannot unmount {}: {error}", dir.display()),
        }
    }
}

/// Mounts a file system that the holder of the device serves. When nobody holds the device any
/// more, clients get errors, but the file system stays mounted.
///
/// # Errors
/// If FUSE is not available, or may not be used.
pub fn mount_device(dir: &Path) -> io::Result<OwnedFd> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    // With default_permissions, the modes of files decide about other users; without allow_other,
    // not even root would have access.
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        user.as_raw(),
        group.as_raw()
    );
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    let kind = format!("fuse.{SOURCE}");
    rustix::mount::mount(
        SOURCE,
        dir,
        kind,
        flags,
        Some(CString::new(options)?.as_c_str()),
    )?;
    Ok(device.into())
}

fn threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}
