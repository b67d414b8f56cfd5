// SPDX-License-Identifier: Apache-2.0
//! Memory charged to a cgroup, for callers that read it hundreds of times per second.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{Cgroup, CgroupError};
use crate::error::FileError;

/// The file behind [`Cgroup::usage_bytes`], kept open because finding and opening it takes longer
/// than reading it. An open file does not prevent the removal of the cgroup.
#[derive(Debug)]
pub struct Usage(File);

impl Usage {
    /// Opens the file.
    ///
    /// # Errors
    /// The cgroup is gone, or has no such file (the v2 root).
    pub fn open(cgroup: &Cgroup) -> Result<Self, CgroupError> {
        let path = cgroup.dir().join(cgroup.usage_file());
        match File::open(&path) {
            Ok(file) => Ok(Usage(file)),
            Err(source) => Err(FileError::Read { path, source }.into()),
        }
    }

    /// Returns the current usage in bytes; `None` if the cgroup is gone.
    pub fn bytes(&self) -> Option<u64> {
        let mut text = [0; 32];
        let length = self.0.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..length])
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Hierarchy, Version};
    use super::*;

    #[test]
    fn it_is_read_anew_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let held = dir.path().join("held");
        std::fs::create_dir(&held).unwrap();
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        let cgroup = Cgroup::open(&hierarchy, "/held").unwrap();
        assert!(Usage::open(&cgroup).is_err(), "as in the root");
        let write = |text: &str| std::fs::write(held.join("memory.current"), text).unwrap();
        write("4096\n");
        let usage = Usage::open(&cgroup).unwrap();
        assert_eq!(usage.bytes(), Some(4096));
        write("18446744073709551615\n");
        assert_eq!(usage.bytes(), Some(u64::MAX));
        write("");
        assert_eq!(usage.bytes(), None);
    }
}
