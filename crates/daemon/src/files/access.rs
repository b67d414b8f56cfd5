// SPDX-License-Identifier: Apache-2.0
//! Who may use the report files: the daemon's user, and root.

use serde::{Deserialize, Serialize};

/// The mode of files that can be written.
pub(super) const FILE_MODE: u16 = 0o600;
/// The mode of directories.
pub(super) const DIRECTORY_MODE: u16 = 0o500;

/// The owner of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    pub uid: u32,
    pub gid: u32,
}

#[cfg(feature = "fuse")]
impl Access {
    /// The user of this process.
    pub(super) fn of_daemon() -> Self {
        Access {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }
}
