// SPDX-License-Identifier: Apache-2.0
//! Replaces `session.rs` in a build without the feature `fuse`: mounting always fails, and plain
//! files are served.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::source::{ReportFile, Source};

/// A mounted file system; does not exist in this build.
pub struct Mounted(Infallible);

impl Mounted {
    /// Refuses.
    ///
    /// # Errors
    /// Always: this build has no FUSE.
    pub fn new(_dir: &Path, _source: &Arc<Source>) -> io::Result<Self> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this agewise was built without the feature `fuse`",
        ))
    }

    /// Never called.
    pub fn notify(&self, _file: &ReportFile) {
        match self.0 {}
    }

    /// Never called.
    pub fn unmount(&mut self, _dir: &Path) {
        match self.0 {}
    }
}
