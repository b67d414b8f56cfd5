// SPDX-License-Identifier: Apache-2.0
//! How much of a trace has been read, for those who show it.

use std::fmt;
use std::sync::Arc;

/// A function that is called while a trace is read, with the bytes read so far and the length of
/// the file. If a trace is read twice, it begins again at 0.
#[derive(Clone)]
pub struct ReadProgress(Arc<dyn Fn(u64, u64) + Send + Sync>);

impl ReadProgress {
    /// Calls `tell` with both after every 64 KiB or so.
    #[must_use]
    pub fn new(tell: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn tell(&self, read_bytes: u64, file_bytes: u64) {
        (self.0)(read_bytes, file_bytes);
    }
}

impl fmt::Debug for ReadProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadProgress")
    }
}
