// SPDX-License-Identifier: Apache-2.0
//! zram statistics (Documentation/admin-guide/blockdev/zram.rst), and a zram device of our own that
//! is removed again.
//!
//! A device is created by `hot_add` (since 4.2), never by taking an existing one. Its swap header
//! names the process that created it, so that the next run recognises and removes a device left
//! behind by a killed process.

mod header;
mod stat;

use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::{self, FileError};
use crate::root::Roots;
use crate::swap::SwapArea;

pub use stat::ZramStat;

/// Why no zram device could be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZramError {
    /// The kernel has no zram, or has not loaded it.
    #[error("this kernel has no {}: load it with `modprobe zram`, or build with \
             CONFIG_ZRAM", path.display())]
    NotSupported {
        /// The file that is missing.
        path: PathBuf,
    },
    #[error("no permission to {action}: run as root (CAP_SYS_ADMIN)")]
    Denied {
        /// The action that was denied.
        action: &'static str,
    },
    #[error("cannot {action} {}: {source}", path.display())]
    System {
        /// The action, as a verb.
        action: &'static str,
        path: PathBuf,
        /// The error the system returned.
        source: std::io::Error,
    },
    #[error(
        "cannot swap off {}: not enough memory to bring back what is stored there; free some, then \
         `swapoff {0}` by hand", path.display()
    )]
    CannotEmpty { path: PathBuf },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Options for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZramOptions {
    /// Uncompressed capacity.
    pub size_bytes: u64,
    /// The compressor; if the kernel lacks it, its default is used.
    pub algorithm: String,
    /// Swap priority, 0 to 32767; the highest fills first.
    pub priority: u16,
}

impl ZramOptions {
    /// lz4, with priority over all other swap.
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            algorithm: "lz4".to_owned(),
            priority: 32_767,
        }
    }
}

/// A zram swap device of our own: swapped off and removed on drop.
///
/// Drop does not run when a signal kills the process, so a command that creates one must handle
/// SIGINT and SIGTERM and end normally. After SIGKILL, [`ZramDevice::remove_stale`] finds the
/// device.
#[derive(Debug)]
pub struct ZramDevice {
    roots: Roots,
    id: u32,
    /// Whether we created the device node (no devtmpfs).
    own_node: bool,
    swapped_on: bool,
    removed: bool,
}

impl ZramDevice {
    /// Creates a device and swaps on it, after removing agewise's own stale devices.
    pub fn create(options: &ZramOptions) -> Result<Self, ZramError> {
        let roots = Roots::default();
        // A stale device that cannot be removed does no harm.
        let _ = Self::remove_stale();
        let control = roots.sys.join("class/zram-control/hot_add");
        let text = error::read(&control).map_err(|error| {
            if error.is_not_found() {
                ZramError::NotSupported {
                    path: control.clone(),
                }
            } else if error.is_denied() {
                ZramError::Denied {
                    action: "add a zram device",
                }
            } else {
                ZramError::File(error)
            }
        })?;
        let id = text
            .trim()
            .parse()
            .map_err(|_| FileError::format(&control, "a device number", &text))?;
        // From here on, any failure removes the device again.
        let mut device = Self {
            roots,
            id,
            own_node: false,
            swapped_on: false,
            removed: false,
        };
        device.set_up(options)?;
        Ok(device)
    }

    /// The number of the device.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The device node.
    pub fn path(&self) -> PathBuf {
        node(&self.roots, self.id)
    }

    /// Its statistics.
    pub fn stat(&self) -> Result<ZramStat, FileError> {
        ZramStat::read(&self.roots, self.id)
    }

    /// Swaps off and removes the device, and returns any error; dropping it ignores errors.
    pub fn remove(mut self) -> Result<(), ZramError> {
        self.tear_down()
    }

    /// Removes agewise's own devices whose creator no longer runs, and returns how many. Does not
    /// touch others.
    pub fn remove_stale() -> Result<usize, ZramError> {
        let roots = Roots::default();
        let swapped: Vec<u32> = SwapArea::all(&roots.proc)?
            .iter()
            .filter_map(SwapArea::zram_id)
            .collect();
        let mut removed = 0;
        for id in device_ids(&roots) {
            let maker = File::open(node(&roots, id)).and_then(|file| {
                let mut page = vec![0; header::bytes()];
                file.read_exact_at(&mut page, 0)
                    .map(|()| header::maker_of(&page))
            });
            // Unreadable or not ours: leave it alone.
            if let Ok(Some(maker)) = maker
                && maker.is_dead(&roots.proc)
            {
                let swapped_on = swapped.contains(&id);
                let roots = roots.clone();
                let stale = Self {
                    roots,
                    id,
                    own_node: false,
                    swapped_on,
                    removed: false,
                };
                let dir = stale.sys_dir();
                match stale.remove() {
                    // Another process removed it at the same time.
                    Err(_) if !dir.exists() => continue,
                    result => result?,
                }
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn set_up(&mut self, options: &ZramOptions) -> Result<(), ZramError> {
        let dir = self.sys_dir();
        match error::write(&dir.join("comp_algorithm"), &options.algorithm) {
            // What the file lists is no help: Linux 6.1 also lists what it has no module for.
            Err(FileError::Write { source, .. })
                if source.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
            result => result?,
        }
        error::write(&dir.join("disksize"), &options.size_bytes.to_string())?;
        self.own_node = ensure_node(&dir, &self.path())?;
        let maker = header::Maker::ourselves(&self.roots.proc);
        let page = header::page(options.size_bytes, maker);
        let path = self.path();
        let failed = |action| {
            let path = path.clone();
            move |source| ZramError::System {
                action,
                path,
                source,
            }
        };
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| file.write_all_at(&page, 0).and_then(|()| file.sync_all()))
            .map_err(failed("write the swap header of"))?;
        swap_on(&path, options.priority).map_err(failed("swap on"))?;
        self.swapped_on = true;
        Ok(())
    }

    fn tear_down(&mut self) -> Result<(), ZramError> {
        if self.removed {
            return Ok(());
        }
        let path = self.path();
        if self.swapped_on {
            swap_off(&path).map_err(|source| match source.raw_os_error() {
                Some(libc::ENOMEM) => ZramError::CannotEmpty { path: path.clone() },
                _ => ZramError::System {
                    action: "swap off",
                    path: path.clone(),
                    source,
                },
            })?;
            self.swapped_on = false;
        }
        error::write(&self.sys_dir().join("reset"), "1")?;
        let control = self.roots.sys.join("class/zram-control/hot_remove");
        error::write(&control, &self.id.to_string())?;
        if self.own_node {
            // The device is gone; a leftover node is harmless.
            let _ = std::fs::remove_file(&path);
        }
        self.removed = true;
        Ok(())
    }

    fn sys_dir(&self) -> PathBuf {
        self.roots.sys.join(format!("block/zram{}", self.id))
    }
}

impl Drop for ZramDevice {
    fn drop(&mut self) {
        // Errors are ignored here; callers that need them use `remove`.
        let _ = self.tear_down();
    }
}

fn node(roots: &Roots, id: u32) -> PathBuf {
    roots.dev.join(format!("zram{id}"))
}

/// The numbers of the existing zram devices.
fn device_ids(roots: &Roots) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(roots.sys.join("block")) else {
        return Vec::new();
    };
    let id = |name: &std::ffi::OsStr| name.to_str()?.strip_prefix("zram")?.parse().ok();
    entries
        .flatten()
        .filter_map(|entry| id(&entry.file_name()))
        .collect()
}

/// Creates the node unless devtmpfs did (it does not in a container's /dev). Returns whether it was
/// created.
fn ensure_node(sys_dir: &Path, path: &Path) -> Result<bool, ZramError> {
    let number_file = sys_dir.join("dev");
    let text = error::read(&number_file)?;
    let (major, minor) = text
        .trim()
        .split_once(':')
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))
        .ok_or_else(|| FileError::format(&number_file, "major:minor", &text))?;
    let number = rustix::fs::makedev(major, minor);
    match std::fs::metadata(path) {
        Ok(meta) if meta.file_type().is_block_device() && meta.rdev() == number => {
            return Ok(false);
        }
        Ok(_) => {
            let source = std::io::Error::from_raw_os_error(libc::EEXIST);
            return Err(ZramError::System {
                action: "use",
                path: path.to_owned(),
                source,
            });
        }
        Err(_) => {}
    }
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let kind = rustix::fs::FileType::BlockDevice;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, number)
        .map(|()| true)
        .map_err(|errno| ZramError::System {
            action: "make",
            path: path.to_owned(),
            source: errno.into(),
        })
}

fn swap_on(path: &Path, priority: u16) -> std::io::Result<()> {
    const PREFER: i32 = 0x8000;
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    let flags = PREFER | i32::from(priority & 0x7fff);
    // SAFETY: a valid NUL-terminated path; the call keeps no reference to it.
    match unsafe { libc::swapon(path.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn swap_off(path: &Path) -> std::io::Result<()> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    loop {
        // SAFETY: a valid NUL-terminated path; the call keeps no reference to it.
        if unsafe { libc::swapoff(path.as_ptr()) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        // A signal interrupts it half-way. Pages already brought back stay in memory, so retrying
        // ends.
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::ProcRoot;

    #[test]
    fn live_a_device_of_our_own_comes_and_goes() {
        let device = match ZramDevice::create(&ZramOptions::new(16 << 20)) {
            Ok(device) => device,
            Err(error) => return println!("SKIPPED live zram test: {error}"),
        };
        let id = device.id();
        let areas = || SwapArea::all(&ProcRoot::default()).unwrap();
        let ours = areas()
            .into_iter()
            .find(|a| a.zram_id() == Some(id))
            .unwrap();
        assert_eq!(ours.size_bytes, (16 << 20) - 4096);
        assert_eq!(ours.priority, 32_767);
        assert!(!device.stat().unwrap().algorithm.is_empty());
        // Its creator runs, so nobody else removes it.
        ZramDevice::remove_stale().unwrap();
        assert!(areas().iter().any(|a| a.zram_id() == Some(id)));
        device.remove().unwrap();
        assert!(!areas().iter().any(|a| a.zram_id() == Some(id)));
        assert!(!Path::new(&format!("/sys/block/zram{id}")).exists());
    }
}
