// SPDX-License-Identifier: Apache-2.0
//! zram: its figures (Documentation/admin-guide/blockdev/zram.rst), and a device of our own that is
//! removed again.
//!
//! A device is made by `hot_add` (since 4.2), never by taking one that exists. The swap header we
//! write names the process that made it, so that a device left behind by one that was killed is
//! recognised and removed by the next.

use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{self, FileError};
use crate::process::Process;
use crate::root::{ProcRoot, Roots};
use crate::swap::SwapArea;

/// The figures of one zram device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZramStat {
    /// Uncompressed capacity; 0 when not set up.
    pub disksize_bytes: u64,
    /// The compressor in use.
    pub algorithm: String,
    /// All compressors this kernel offers for zram.
    pub algorithms: Vec<String>,
    /// Uncompressed size of what is stored, without pages of one repeated value.
    pub original_bytes: u64,
    /// The same, compressed.
    pub compressed_bytes: u64,
    /// Memory it takes, with the allocator's overhead: what swapping to it really costs.
    pub memory_bytes: u64,
    /// Pages of one repeated value, which take no memory.
    pub same_pages: u64,
    /// Pages that did not compress.
    pub huge_pages: u64,
}

impl ZramStat {
    /// Reads `/sys/block/zramN`.
    pub fn read(roots: &Roots, id: u32) -> Result<Self, FileError> {
        let dir = roots.sys.join(format!("block/zram{id}"));
        let algorithms = error::read(&dir.join("comp_algorithm"))?;
        let mut stat = Self {
            disksize_bytes: error::read_u64(&dir.join("disksize"))?,
            ..Self::default()
        };
        for word in algorithms.split_ascii_whitespace() {
            let name = word.trim_matches(['[', ']']).to_owned();
            if word.starts_with('[') {
                stat.algorithm.clone_from(&name);
            }
            stat.algorithms.push(name);
        }
        let path = dir.join("mm_stat");
        let text = error::read(&path)?;
        let numbers: Vec<u64> = text
            .split_ascii_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let [
            original,
            compressed,
            memory,
            _limit,
            _peak,
            same,
            _compacted,
            rest @ ..,
        ] = &numbers[..]
        else {
            return Err(FileError::format(&path, "seven numbers or more", &text));
        };
        stat.original_bytes = *original;
        stat.compressed_bytes = *compressed;
        stat.memory_bytes = *memory;
        stat.same_pages = *same;
        // Since 4.20.
        stat.huge_pages = rest.first().copied().unwrap_or(0);
        Ok(stat)
    }
}

/// Why there is no zram device for us.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZramError {
    /// The kernel has no zram (yet).
    #[error("this kernel has no {}: load it with `modprobe zram`, or build with CONFIG_ZRAM", path.display())]
    NotSupported {
        /// The file that is missing.
        path: PathBuf,
    },
    /// Only root may.
    #[error("no permission to {action}: run as root (CAP_SYS_ADMIN)")]
    Denied {
        /// What was tried.
        action: &'static str,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    System {
        /// What was tried, as a verb.
        action: &'static str,
        /// The device.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Swapping off needs memory for what is stored.
    #[error(
        "cannot swap off {}: not enough memory to bring back what is stored there; free some, then \
         `swapoff {0}` by hand", path.display()
    )]
    CannotEmpty {
        /// The device.
        path: PathBuf,
    },
    /// A file of the device.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What device to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZramOptions {
    /// Uncompressed capacity.
    pub size_bytes: u64,
    /// The compressor wanted; if the kernel does not have it, its default is used.
    pub algorithm: String,
    /// Swap priority, 0 to 32767; the highest fills first.
    pub priority: u16,
}

impl ZramOptions {
    /// lz4, before all other swap.
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            algorithm: "lz4".to_owned(),
            priority: 32_767,
        }
    }
}

/// A zram swap device of our own: swapped off and removed when dropped.
///
/// Drop does not run when a signal kills the process: a command that makes one turns SIGINT and
/// SIGTERM into an orderly end. After SIGKILL, [`ZramDevice::remove_stale`] finds it.
#[derive(Debug)]
pub struct ZramDevice {
    roots: Roots,
    id: u32,
    /// We made the device node (no devtmpfs).
    own_node: bool,
    swapped_on: bool,
    removed: bool,
}

impl ZramDevice {
    /// Makes a device and swaps on it. Stale devices of ours go first.
    pub fn create(options: &ZramOptions) -> Result<Self, ZramError> {
        let roots = Roots::default();
        // One that cannot be removed is in nobody's way.
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
        // From here on whatever fails removes the device again.
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

    /// What it holds.
    pub fn stat(&self) -> Result<ZramStat, FileError> {
        ZramStat::read(&self.roots, self.id)
    }

    /// Swaps off and removes, and says what failed; dropping does the same silently.
    pub fn remove(mut self) -> Result<(), ZramError> {
        self.tear_down()
    }

    /// Removes devices of ours whose maker no longer runs; returns how many. Others are not touched.
    pub fn remove_stale() -> Result<usize, ZramError> {
        let roots = Roots::default();
        let swapped: Vec<u32> = SwapArea::all(&roots.proc)?
            .iter()
            .filter_map(SwapArea::zram_id)
            .collect();
        let mut removed = 0;
        for id in device_ids(&roots) {
            let maker = File::open(node(&roots, id)).and_then(|file| {
                let mut page = vec![0; PAGE];
                file.read_exact_at(&mut page, 0)
                    .map(|()| header::maker(&page))
            });
            // Not readable, or not ours: leave it alone.
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
                    // Somebody else found it at the same time.
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
        let known = error::read(&dir.join("comp_algorithm"))?;
        if known
            .split_ascii_whitespace()
            .any(|w| w.trim_matches(['[', ']']) == options.algorithm)
        {
            error::write(&dir.join("comp_algorithm"), &options.algorithm)?;
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
            // The device is gone; a node that stays behind leads nowhere.
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
        // Nobody is left to tell; `remove` is for those who want to know.
        let _ = self.tear_down();
    }
}

const PAGE: usize = 4096;

fn node(roots: &Roots, id: u32) -> PathBuf {
    roots.dev.join(format!("zram{id}"))
}

/// The zram devices there are.
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

/// devtmpfs makes the node by itself; elsewhere (a container's /dev) we do. Returns whether we did.
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
        // A signal interrupts it half-way; what was brought back stays, so going on ends.
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

/// The swap header (include/linux/swap.h, `union swap_header`), and our mark in it.
mod header {
    use super::{PAGE, ProcRoot, Process};
    use std::os::unix::fs::MetadataExt;

    const VERSION: usize = 1024;
    const LAST_PAGE: usize = 1028;
    const UUID: usize = 1036;
    const LABEL: usize = 1052;
    const MARK: &[u8; 16] = b"agewise\0\0\0\0\0\0\0\0\0";

    /// Who made a device: kept in the 16 bytes of the header's UUID.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Maker {
        pub pid: u32,
        /// A pid means something in its own pid namespace only.
        pub namespace: u32,
        pub start_ticks: u64,
    }

    impl Maker {
        pub fn ourselves(root: &ProcRoot) -> Self {
            let pid = std::process::id();
            let start_ticks = Process::open_in(root, pid).map_or(0, |p| p.start_ticks());
            Self {
                pid,
                namespace: namespace(root),
                start_ticks,
            }
        }

        /// Certain that it no longer runs. One of another namespace never is.
        pub fn is_dead(self, root: &ProcRoot) -> bool {
            self.namespace == namespace(root)
                && match Process::open_in(root, self.pid) {
                    Ok(process) => process.start_ticks() != self.start_ticks || !process.is_alive(),
                    Err(error) => error.is_gone(),
                }
        }
    }

    fn namespace(root: &ProcRoot) -> u32 {
        std::fs::metadata(root.join("self/ns/pid")).map_or(0, |meta| meta.ino() as u32)
    }

    pub fn page(size_bytes: u64, maker: Maker) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        let last = u32::try_from((size_bytes / PAGE as u64).saturating_sub(1)).unwrap_or(u32::MAX);
        page[VERSION..VERSION + 4].copy_from_slice(&1u32.to_ne_bytes());
        page[LAST_PAGE..LAST_PAGE + 4].copy_from_slice(&last.to_ne_bytes());
        page[UUID..UUID + 4].copy_from_slice(&maker.pid.to_ne_bytes());
        page[UUID + 4..UUID + 8].copy_from_slice(&maker.namespace.to_ne_bytes());
        page[UUID + 8..UUID + 16].copy_from_slice(&maker.start_ticks.to_ne_bytes());
        page[LABEL..LABEL + 16].copy_from_slice(MARK);
        page[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
        page
    }

    pub fn maker(page: &[u8]) -> Option<Maker> {
        let word = |at: usize| Some(u32::from_ne_bytes(page.get(at..at + 4)?.try_into().ok()?));
        let ours = page.get(PAGE - 10..)? == b"SWAPSPACE2" && page.get(LABEL..LABEL + 16)? == MARK;
        if !ours {
            return None;
        }
        Some(Maker {
            pid: word(UUID)?,
            namespace: word(UUID + 4)?,
            start_ticks: u64::from_ne_bytes(page[UUID + 8..UUID + 16].try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_parse() {
        let top = tempfile::tempdir().unwrap();
        let roots = Roots::below(top.path());
        let dir = top.path().join("sys/block/zram4");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("comp_algorithm"), "lzo-rle lzo [lz4]\n").unwrap();
        std::fs::write(dir.join("disksize"), "1048576\n").unwrap();
        std::fs::write(dir.join("mm_stat"), " 8192 100 12288 0 12288 3 0 1 2\n").unwrap();
        let stat = ZramStat::read(&roots, 4).unwrap();
        assert_eq!((stat.algorithm.as_str(), stat.algorithms.len()), ("lz4", 3));
        assert_eq!((stat.original_bytes, stat.compressed_bytes), (8192, 100));
        assert_eq!(
            (stat.memory_bytes, stat.same_pages, stat.huge_pages),
            (12288, 3, 1)
        );
        std::fs::write(dir.join("mm_stat"), "1 2 3\n").unwrap();
        assert!(
            ZramStat::read(&roots, 4)
                .unwrap_err()
                .to_string()
                .contains("zram4/mm_stat")
        );
    }

    #[test]
    fn a_header_names_its_maker_and_foreign_headers_name_none() {
        let root = ProcRoot::default();
        let maker = header::Maker::ourselves(&root);
        let mut page = header::page(1 << 20, maker);
        assert_eq!(header::maker(&page), Some(maker));
        assert_eq!(
            u32::from_ne_bytes(page[1028..1032].try_into().unwrap()),
            255
        );
        assert!(!maker.is_dead(&root));
        assert!(
            header::Maker {
                start_ticks: maker.start_ticks + 1,
                ..maker
            }
            .is_dead(&root)
        );
        // Elsewhere the same pid is somebody else, of whom we know nothing.
        let elsewhere = header::Maker {
            namespace: maker.namespace ^ 1,
            start_ticks: 0,
            ..maker
        };
        assert!(!elsewhere.is_dead(&root));
        page[1052] = b'x';
        assert_eq!(header::maker(&page), None);
        assert_eq!(header::maker(&[0; 100]), None);
    }

    #[test]
    fn live_a_device_of_our_own_comes_and_goes() {
        let device = match ZramDevice::create(&ZramOptions::new(16 << 20)) {
            Ok(device) => device,
            Err(error) => return println!("SKIP live zram test: {error}"),
        };
        let id = device.id();
        let areas = || SwapArea::all(&ProcRoot::default()).unwrap();
        let ours = areas()
            .into_iter()
            .find(|a| a.zram_id() == Some(id))
            .unwrap();
        assert_eq!(ours.size_bytes, (16 << 20) - 4096);
        assert_eq!(ours.priority, 32_767);
        let stat = device.stat().unwrap();
        assert_eq!(stat.disksize_bytes, 16 << 20);
        assert!(!stat.algorithms.contains(&"lz4".to_owned()) || stat.algorithm == "lz4");
        // Its maker runs, so nobody else takes it away.
        ZramDevice::remove_stale().unwrap();
        assert!(areas().iter().any(|a| a.zram_id() == Some(id)));
        device.remove().unwrap();
        assert!(!areas().iter().any(|a| a.zram_id() == Some(id)));
        assert!(!Path::new(&format!("/sys/block/zram{id}")).exists());
    }
}
