// SPDX-License-Identifier: Apache-2.0
//! Who may use the report files.

use serde::{Deserialize, Serialize};

/// Who may read and write the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Mode of files that can be written, such as 0o600 or 0o644; histograms are never writable.
    /// Everyone who may read can enter directories.
    pub mode: u16,
}

impl Default for Access {
    /// Only the daemon's user (and root).
    fn default() -> Self {
        Access {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o600,
        }
    }
}

impl Access {
    /// The mode of directories.
    pub(super) fn directory_mode(self) -> u16 {
        (self.mode & 0o444) | ((self.mode & 0o444) >> 2)
    }
}
