// SPDX-License-Identifier: Apache-2.0
//! The kernel's own multi-gen LRU (`CONFIG_LRU_GEN`, since 6.1), read and aged through
//! `/sys/kernel/debug/lru_gen` (Documentation/admin-guide/mm/multigen_lru.rst).
//!
//! It reports the ages of whole cgroups at no cost to agewise, including unmapped page cache, but
//! not of single pages or processes. It needs root and a mounted debugfs; under lockdown the file
//! cannot be opened.

pub(crate) mod table;

use std::path::PathBuf;

use crate::error::{self, FileError};
use crate::root::SysRoot;

pub use table::{Generation, Lruvec, Memcg, Table};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// EINVAL: the cgroup or node is unknown, or the sequence number is out of range.
    #[error(
        "the kernel refused '{command}': memory cgroup or node unknown, or the generation no \
         longer exists; read the generations again"
    )]
    Invalid { command: String },
    /// ERANGE (before 6.14): an aging without `force` would push out the oldest generation.
    #[error("the kernel refused '{command}': all generations are in use; age with force")]
    NoRoom { command: String },
    /// EEXIST (since 6.15): another program aged at the same time.
    #[error("'{command}' lost a race: another program has just aged this cgroup")]
    Raced { command: String },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Access to the multi-gen LRU's files.
#[derive(Clone, Debug)]
pub struct LruGen {
    sys: SysRoot,
}

impl LruGen {
    /// Uses the files of this tree. Nothing is opened yet.
    #[must_use]
    pub fn new(sys: SysRoot) -> LruGen {
        LruGen { sys }
    }

    fn debugfs(&self) -> PathBuf {
        self.sys.join("kernel/debug/lru_gen")
    }

    /// Whether it is in use: 0x1 in `enabled`. `None` if the kernel was built without it.
    ///
    /// # Errors
    /// The file cannot be read or is not `0x` and a hexadecimal number.
    pub fn is_on(&self) -> Result<Option<bool>, FileError> {
        let path = self.sys.join("kernel/mm/lru_gen/enabled");
        let Some(text) = error::read_optional(&path)? else {
            return Ok(None);
        };
        let bits = text
            .trim()
            .strip_prefix("0x")
            .and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let Some(bits) = bits else {
            return Err(FileError::format(
                &path,
                "0x and a hexadecimal number",
                &text,
            ));
        };
        Ok(Some(bits & 1 != 0))
    }

    /// Reads the generations of every cgroup on every node.
    ///
    /// # Errors
    /// The file cannot be read (no debugfs, no privilege, lockdown) or has another format.
    pub fn read(&self) -> Result<Table, FileError> {
        let path = self.debugfs();
        table::parse(&path, &error::read(&path)?)
    }

    /// Starts a new generation. `swappiness` decides whether anon is walked (6.12: zero or not;
    /// 7.2: as in reclaim). `force` walks every page table, so that no page is missed.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub fn age(
        &self,
        memcg: u64,
        node: u32,
        max_seq: u64,
        swappiness: u32,
        force: bool,
    ) -> Result<(), CommandError> {
        self.command(format!(
            "+ {memcg} {node} {max_seq} {swappiness} {}",
            u8::from(force)
        ))
    }

    fn command(&self, command: String) -> Result<(), CommandError> {
        match error::write(&self.debugfs(), &command) {
            Ok(()) => Ok(()),
            Err(error) => Err(match error.raw_os_error() {
                Some(libc::EINVAL) => CommandError::Invalid { command },
                Some(libc::ERANGE) => CommandError::NoRoom { command },
                Some(libc::EEXIST) => CommandError::Raced { command },
                _ => error.into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Roots;

    fn fake(files: &[(&str, &str)]) -> (tempfile::TempDir, LruGen) {
        let dir = tempfile::tempdir().unwrap();
        let sys = Roots::below(dir.path()).sys;
        for (name, content) in files {
            let path = sys.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        (dir, LruGen::new(sys))
    }

    #[test]
    fn it_is_on_or_off_on_kernels_with_and_without_it() {
        let (_dir, without) = fake(&[]);
        assert_eq!(without.is_on().unwrap(), None);
        let (_dir, full) = fake(&[("kernel/mm/lru_gen/enabled", "0x0007\n")]);
        assert_eq!(full.is_on().unwrap(), Some(true));
        let (_dir, off) = fake(&[("kernel/mm/lru_gen/enabled", "0x0000\n")]);
        assert_eq!(off.is_on().unwrap(), Some(false));
        let (_dir, odd) = fake(&[("kernel/mm/lru_gen/enabled", "yes\n")]);
        assert!(odd.is_on().unwrap_err().to_string().contains("found 'yes'"));
    }

    #[test]
    fn commands_have_the_documented_form() {
        let (_dir, lru_gen) = fake(&[("kernel/debug/lru_gen", "")]);
        let written = || std::fs::read_to_string(lru_gen.debugfs()).unwrap();
        lru_gen.age(28, 0, 3, 200, true).unwrap();
        assert_eq!(written(), "+ 28 0 3 200 1");
    }

    #[test]
    fn a_missing_debugfs_is_a_clear_error() {
        let (_dir, lru_gen) = fake(&[]);
        assert!(lru_gen.read().unwrap_err().is_not_found());
        assert!(matches!(
            lru_gen.age(1, 0, 3, 1, true),
            Err(CommandError::File(_))
        ));
    }
}
