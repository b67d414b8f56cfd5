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
    /// Mode of files that can be written, like 0o600 or 0o644; histograms are never writable.
    /// Directories can be entered by everyone who may read.
    pub mode: u16,
}

impl Default for Access {
    /// The daemon's user alone (and root).
    fn default() -> Self {
        Access {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o600,
        }
    }
}

impl Access {
    /// Of a directory.
    pub(super) fn directory_mode(self) -> u16 {
        (self.mode & 0o444) | ((self.mode & 0o444) >> 2)
    }
}
