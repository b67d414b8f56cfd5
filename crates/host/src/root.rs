// SPDX-License-Identifier: Apache-2.0
//! Where `/proc`, `/sys` and `/dev` are. Every reader takes them from here, so that tests can use
//! fake trees without privileges, and a container can be given the host's.

use std::path::{Path, PathBuf};

use crate::error::FileError;

macro_rules! root {
    ($(#[$doc:meta])* $name:ident, $default:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(PathBuf);

        impl $name {
            /// A tree at another path.
            pub fn new(path: impl Into<PathBuf>) -> Self {
                Self(path.into())
            }

            /// The top of the tree.
            pub fn path(&self) -> &Path {
                &self.0
            }

            /// The path of a file below the top; `relative` has no leading slash.
            pub fn join(&self, relative: impl AsRef<Path>) -> PathBuf {
                self.0.join(relative)
            }

            /// Whether this is the running kernel's own tree, so that system calls and files refer
            /// to the same objects.
            pub fn is_live(&self) -> bool {
                self.0 == Path::new($default)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new($default)
            }
        }
    };
}

root!(
    /// The proc file system, usually `/proc`.
    ProcRoot,
    "/proc"
);
root!(
    /// The sys file system, usually `/sys`.
    SysRoot,
    "/sys"
);
root!(
    /// The device nodes, usually `/dev`.
    DevRoot,
    "/dev"
);

/// All three roots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// `/proc`.
    pub proc: ProcRoot,
    /// `/sys`.
    pub sys: SysRoot,
    /// `/dev`.
    pub dev: DevRoot,
}

impl Roots {
    /// A fake machine: `proc`, `sys` and `dev` below one directory.
    pub fn below(top: &Path) -> Self {
        Self {
            proc: ProcRoot::new(top.join("proc")),
            sys: SysRoot::new(top.join("sys")),
            dev: DevRoot::new(top.join("dev")),
        }
    }
}

impl ProcRoot {
    /// The directory of a process.
    pub fn of(&self, pid: u32) -> PathBuf {
        self.join(pid.to_string())
    }

    /// The pids of all processes (thread group leaders), ascending. Any of them may be gone by the
    /// time the caller looks at it.
    pub fn pids(&self) -> Result<Vec<u32>, FileError> {
        numbers_in(self.path())
    }
}

/// The entries of a directory whose names are numbers, ascending.
pub(crate) fn numbers_in(dir: &Path) -> Result<Vec<u32>, FileError> {
    let failed = |source| FileError::Read {
        path: dir.to_owned(),
        source,
    };
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        if let Some(number) = entry
            .map_err(failed)?
            .file_name()
            .to_str()
            .and_then(|n| n.parse().ok())
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}
