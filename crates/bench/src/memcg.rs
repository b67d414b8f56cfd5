// SPDX-License-Identifier: Apache-2.0
//! A memory cgroup of our own, v1 or v2: made for one measurement, removed with it.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agewise_host::cgroup::{Cgroup, Hierarchy, MemoryStat, Version};
use anyhow::{Context, bail};

/// How often removing is tried: a process that was just waited for may still be leaving.
const REMOVE_TRIES: u32 = 100;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A cgroup below the root of the hierarchy that accounts memory; removed when dropped, which needs
/// its processes to have ended.
#[derive(Debug)]
pub struct OwnMemcg {
    dir: PathBuf,
    cgroup: Option<Cgroup>,
    version: Version,
}

impl OwnMemcg {
    /// Makes one.
    ///
    /// # Errors
    /// No memory controller, no privilege, or (v2) the root does not hand the controller down.
    pub fn create(hierarchy: &Hierarchy) -> anyhow::Result<Self> {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("agewise-bench-{}-{number}", std::process::id());
        let root = &hierarchy.root;
        if hierarchy.version == Version::V2 {
            let path = root.join("cgroup.subtree_control");
            let handed = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            if !handed.split_ascii_whitespace().any(|one| one == "memory") {
                bail!(
                    "{} does not name memory: `echo +memory > {0}` lets cgroups below have limits",
                    path.display()
                );
            }
        }
        let dir = root.join(&name);
        std::fs::create_dir(&dir)
            .with_context(|| format!("cannot make a cgroup {}", dir.display()))?;
        // From here on whatever fails removes it again.
        let mut own = Self {
            dir,
            cgroup: None,
            version: hierarchy.version,
        };
        own.cgroup = Some(Cgroup::open(hierarchy, format!("/{name}"))?);
        Ok(own)
    }

    /// `cgroup.procs`, open for a process to write itself into.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn entrance(&self) -> anyhow::Result<File> {
        let path = self.dir.join("cgroup.procs");
        let file = OpenOptions::new().write(true).open(&path);
        file.with_context(|| format!("cannot open {}", path.display()))
    }

    /// Lowers the limit; the kernel reclaims within the call.
    ///
    /// # Errors
    /// It cannot be written, or (v1) memory cannot be reclaimed down to it (`EBUSY`).
    pub fn set_limit(&self, bytes: u64) -> anyhow::Result<()> {
        let path = self.dir.join(match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        });
        std::fs::write(&path, bytes.to_string())
            .with_context(|| format!("cannot write {bytes} to {}", path.display()))
    }

    /// Its counts.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn stat(&self) -> anyhow::Result<MemoryStat> {
        let cgroup = self.cgroup.as_ref().context("the cgroup was not made")?;
        Ok(cgroup.stat()?)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for OwnMemcg {
    fn drop(&mut self) {
        for _ in 0..REMOVE_TRIES {
            match std::fs::remove_dir(&self.dir) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                _ => return,
            }
        }
        agewise_cli::note!(
            "cgroup {} still has processes: remove it with rmdir when they have ended",
            self.dir.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agewise_host::root::ProcRoot;

    #[test]
    fn live_a_cgroup_of_our_own_comes_and_goes() {
        let own = Hierarchy::discover(&ProcRoot::default())
            .map_err(anyhow::Error::from)
            .and_then(|hierarchy| OwnMemcg::create(&hierarchy));
        let own = match own {
            Ok(own) => own,
            Err(error) => return println!("SKIP live cgroup test: {error:#}"),
        };
        let dir = own.dir().to_owned();
        own.set_limit(64 << 20).expect("nothing is in it yet");
        let limits = own.cgroup.as_ref().expect("open").limits().expect("told");
        assert_eq!(limits.max_bytes, Some(64 << 20));
        assert_eq!(own.stat().expect("told").anon_bytes, 0);
        drop(own);
        assert!(!dir.exists());
    }

    #[test]
    fn without_the_controller_it_says_what_to_do() {
        let fake = tempfile::tempdir().expect("a directory");
        std::fs::write(fake.path().join("cgroup.subtree_control"), "cpu io\n").expect("written");
        let hierarchy = Hierarchy::at(Version::V2, fake.path());
        let error = OwnMemcg::create(&hierarchy).expect_err("no controller");
        assert!(error.to_string().contains("echo +memory >"), "{error}");
        let entries = std::fs::read_dir(fake.path()).expect("readable").count();
        assert_eq!(entries, 1, "nothing was made");
    }
}
