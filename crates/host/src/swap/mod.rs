// SPDX-License-Identifier: Apache-2.0
//! Swap space: the areas and how full they are, and a zram device of our own for demonstrations,
//! benchmarks and tests.

mod probe;
mod zram;

use std::path::{Path, PathBuf};

pub use probe::{SwapPrice, price};
pub use zram::{ZramDevice, ZramError, ZramOptions, ZramStat};

use crate::error::{self, FileError};
use crate::octal::unescape;
use crate::process::kib;
use crate::root::{ProcRoot, SysRoot};

/// What swap lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapDevice {
    Zram,
    Nvme,
    Ssd,
    /// A rotating disk.
    Hdd,
}

/// One line of `/proc/swaps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapArea {
    /// The device or file.
    pub path: PathBuf,
    pub size_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Areas with a higher priority fill first.
    pub priority: i32,
}

impl SwapArea {
    /// Reads all areas in use.
    pub fn all(root: &ProcRoot) -> Result<Vec<Self>, FileError> {
        let path = root.join("swaps");
        // A kernel built without swap does not have this file.
        match error::read_optional(&path)? {
            Some(text) => Self::parse(&path, &text),
            None => Ok(Vec::new()),
        }
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Vec<Self>, FileError> {
        text.lines()
            .skip(1)
            .map(|line| {
                let fields: Vec<&str> = line.split_ascii_whitespace().collect();
                let [name, _kind, size, used, priority] = fields[..] else {
                    return Err(FileError::format(path, "five columns", line));
                };
                Ok(Self {
                    path: unescape(name.as_bytes()).into(),
                    size_bytes: kib(path, line, &format!("{size} kB"))?,
                    used_bytes: kib(path, line, &format!("{used} kB"))?,
                    priority: priority
                        .parse()
                        .map_err(|_| FileError::format(path, "a priority", line))?,
                })
            })
            .collect()
    }

    /// Free space in bytes.
    pub fn free_bytes(&self) -> u64 {
        self.size_bytes.saturating_sub(self.used_bytes)
    }

    /// The number of the zram device behind it, if it is one.
    pub fn zram_id(&self) -> Option<u32> {
        self.path
            .file_name()?
            .to_str()?
            .strip_prefix("zram")?
            .parse()
            .ok()
    }

    /// What it lies on. A swap file is assumed to lie on an SSD, like most files.
    pub fn device(&self, sys: &SysRoot) -> SwapDevice {
        if self.zram_id().is_some() {
            return SwapDevice::Zram;
        }
        let name = self.path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|_| self.path.starts_with("/dev")) else {
            return SwapDevice::Ssd;
        };
        if name.starts_with("nvme") {
            return SwapDevice::Nvme;
        }
        // A partition has the type of its disk.
        let block = sys.join("class/block").join(name);
        let is_rotational = ["queue/rotational", "../queue/rotational"]
            .iter()
            .find_map(|file| std::fs::read_to_string(block.join(file)).ok())
            .is_some_and(|text| text.trim() == "1");
        match is_rotational {
            true => SwapDevice::Hdd,
            false => SwapDevice::Ssd,
        }
    }
}

/// Free space in all areas. Without any, anonymous memory cannot be paged out.
pub fn free_bytes(root: &ProcRoot) -> Result<u64, FileError> {
    Ok(SwapArea::all(root)?
        .iter()
        .map(SwapArea::free_bytes)
        .fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_parse_with_odd_names() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                    /dev/zram3                              partition\t1048572\t\t1024\t\t100\n\
                    /my\\040swap\\040file\\040(deleted)      file\t\t2048\t\t2048\t\t-2\n";
        let areas = SwapArea::parse(Path::new("swaps"), text).unwrap();
        assert_eq!(areas[0].zram_id(), Some(3));
        assert_eq!(
            (areas[0].size_bytes, areas[0].priority),
            (1_048_572 * 1024, 100)
        );
        assert_eq!(areas[0].free_bytes(), 1_047_548 * 1024);
        assert_eq!(areas[1].path, Path::new("/my swap file (deleted)"));
        assert_eq!(
            (areas[1].zram_id(), areas[1].free_bytes(), areas[1].priority),
            (None, 0, -2)
        );
        assert!(SwapArea::parse(Path::new("swaps"), "head\n/dev/x partition 1\n").is_err());
    }

    #[test]
    fn a_partition_lies_on_what_its_disk_is() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("class/block/sda");
        std::fs::create_dir_all(disk.join("queue")).unwrap();
        std::fs::create_dir_all(disk.join("sda2")).unwrap();
        std::fs::write(disk.join("queue/rotational"), "1\n").unwrap();
        let link = dir.path().join("class/block/sda2");
        std::os::unix::fs::symlink(disk.join("sda2"), link).unwrap();
        let on = |path: &str| {
            let text = format!("head\n{path} partition 8 0 -2\n");
            let area = SwapArea::parse(Path::new("swaps"), &text)
                .unwrap()
                .remove(0);
            area.device(&SysRoot::new(dir.path()))
        };
        assert_eq!(on("/dev/sda"), SwapDevice::Hdd);
        assert_eq!(on("/dev/sda2"), SwapDevice::Hdd);
        assert_eq!(on("/dev/nvme0n1p3"), SwapDevice::Nvme);
        assert_eq!(on("/dev/zram0"), SwapDevice::Zram);
        assert_eq!(on("/dev/dm-0"), SwapDevice::Ssd);
        assert_eq!(on("/swap/sda"), SwapDevice::Ssd);
    }

    #[test]
    fn no_file_is_no_swap() {
        let dir = tempfile::tempdir().unwrap();
        let root = ProcRoot::new(dir.path());
        assert_eq!(free_bytes(&root).unwrap(), 0);
        std::fs::write(
            dir.path().join("swaps"),
            "Filename Type Size Used Priority\n",
        )
        .unwrap();
        assert!(SwapArea::all(&root).unwrap().is_empty());
    }
}
