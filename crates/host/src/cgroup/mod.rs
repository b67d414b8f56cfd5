// SPDX-License-Identifier: Apache-2.0
//! Memory cgroups, v1 and v2, accessed through their files. A cgroup is identified by path and
//! inode: one that was removed and recreated under the same name is reported as a different one.

mod charged;
mod fresh;
mod hierarchy;
mod members;
pub mod name;
mod own;
mod stat;
mod tree;
mod unified;
mod usage;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub use fresh::FreshStatistics;
pub use hierarchy::{Hierarchy, Layout, Mounts, Version};
pub use own::OwnCgroup;
pub use stat::MemoryStat;
pub use tree::{Listing, TreeLimits};
pub use usage::Usage;

use crate::error::{self, FileError};
use crate::process::{Process, ProcessError};
use crate::untrusted;

/// Why a cgroup cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    #[error(
        "no mounted cgroup hierarchy has the memory controller (layout: {}): mount cgroup2 at \
         /sys/fs/cgroup, and boot without cgroup_disable=memory; processes can still be given by \
         --pid",
        layout.name()
    )]
    NoMemoryController { layout: Layout },
    #[error("no cgroup {path} below {}: `ls` there shows what exists", root.display())]
    NotFound {
        /// The path below the hierarchy.
        path: String,
        root: PathBuf,
    },
    #[error("{given} is not below {}, the hierarchy that accounts memory", root.display())]
    Outside { given: String, root: PathBuf },
    #[error("cgroup {path} has been removed")]
    Gone {
        /// The path below the hierarchy.
        path: String,
    },
    /// The cgroup was removed and another one created in its place.
    #[error("cgroup {path} has been removed and recreated: the current one is a different cgroup")]
    Recreated {
        /// The path below the hierarchy.
        path: String,
    },
    /// The cgroup does not enable the memory controller for its children.
    #[error(
        "cgroup {path} does not pass the memory controller down: write +memory to its \
         cgroup.subtree_control, or start agewise in a cgroup of its own (systemd-run --scope)"
    )]
    NotHandedDown {
        /// The path below the hierarchy.
        path: String,
    },
    #[error(
        "no memory is charged to cgroup {path}, which has no memory controller of its own: give \
         {charged}, which is charged instead"
    )]
    NoMemory {
        /// The path below the hierarchy.
        path: String,
        charged: String,
    },
    /// A threaded v2 cgroup contains threads, whose memory belongs to a cgroup above.
    #[error("cgroup {path} is threaded: memory belongs to its domain, the nearest cgroup above")]
    Threaded {
        /// The path below the hierarchy.
        path: String,
    },
    /// A file of the cgroup could not be read or parsed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl CgroupError {
    /// Whether the cgroup no longer exists. A scan over many cgroups skips it.
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::Gone { .. } | Self::Recreated { .. } | Self::NotFound { .. }
        )
    }
}

/// The limits set on a cgroup; `None` if there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The OOM killer acts above it (`memory.max`, v1 `memory.limit_in_bytes`).
    pub max_bytes: Option<u64>,
    /// Allocations are throttled above it (`memory.high`; v2 only).
    pub high_bytes: Option<u64>,
    /// Reclaimed only if nothing else is left (`memory.low`; v2 only); 0 if not set.
    pub low_bytes: u64,
    /// Never reclaimed (`memory.min`; v2 only); 0 if not set.
    pub min_bytes: u64,
}

impl Limits {
    /// The limit at which the kernel reclaims.
    pub fn lowest_bytes(&self) -> Option<u64> {
        self.max_bytes.into_iter().chain(self.high_bytes).min()
    }
}

/// A memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    hierarchy: Hierarchy,
    path: PathBuf,
    id: u64,
}

impl Cgroup {
    /// Opens a cgroup from user input (see [`Hierarchy::resolve`]): its path, or the text that
    /// represents it in reports ([`name`](Self::name)), as it is or as a terminal shows it.
    pub fn open(hierarchy: &Hierarchy, given: impl AsRef<Path>) -> Result<Self, CgroupError> {
        let given = given.as_ref();
        let path = hierarchy.resolve(given)?;
        let readings = [
            given.to_owned(),
            name::from_text(given.as_os_str()),
            untrusted::from_shown(given.as_os_str()).as_os_str().into(),
        ];
        for reading in readings {
            let path = hierarchy.resolve(reading)?;
            if let Some(id) = inode(&hierarchy.dir(&path))? {
                return Ok(Self {
                    hierarchy: hierarchy.clone(),
                    path,
                    id,
                });
            }
        }
        Err(CgroupError::NotFound {
            path: name::text(&path),
            root: hierarchy.root.clone(),
        })
    }

    /// Opens the cgroup a process is charged to; `None` if it is not visible from here.
    pub fn of_process(
        hierarchy: &Hierarchy,
        process: &Process,
    ) -> Result<Option<Self>, OfProcessError> {
        match hierarchy.path_of(&process.cgroups()?) {
            Some(path) => Ok(Some(Self::open(hierarchy, path)?.charged()?)),
            None => Ok(None),
        }
    }

    /// The path below the hierarchy, `/` for the root.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path as text, unique for every path; see [`name::text`].
    pub fn name(&self) -> String {
        name::text(&self.path)
    }

    /// The hierarchy it belongs to.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Its directory.
    pub fn dir(&self) -> PathBuf {
        self.hierarchy.dir(&self.path)
    }

    /// The inode of its directory, which is the kernel's cgroup id since 5.5. Unlike the path it is
    /// not reused for another cgroup.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether this is the root of the hierarchy.
    pub fn is_root(&self) -> bool {
        self.path == Path::new("/")
    }

    /// Checks that the cgroup that was opened still exists.
    pub fn check(&self) -> Result<(), CgroupError> {
        match inode(&self.dir())? {
            Some(id) if id == self.id => Ok(()),
            Some(_) => Err(CgroupError::Recreated { path: self.name() }),
            None => Err(CgroupError::Gone { path: self.name() }),
        }
    }

    /// The pids of its processes, ascending, without duplicates. With `descendants`, includes the
    /// cgroups below, within [`TreeLimits::WHOLE`].
    pub fn procs(&self, descendants: bool) -> Result<Vec<u32>, CgroupError> {
        let mut pids = self.listed(descendants)?;
        pids.retain(|pid| *pid != 0);
        Ok(pids)
    }

    /// As [`procs`](Self::procs), with a 0 if there are processes of another pid namespace (v1 does
    /// not list those).
    pub(crate) fn listed(&self, descendants: bool) -> Result<Vec<u32>, CgroupError> {
        let mut pids = self.ids("cgroup.procs")?;
        if descendants {
            for below in self.descendants(TreeLimits::WHOLE)?.cgroups {
                match below.ids("cgroup.procs") {
                    Ok(more) => pids.extend(more),
                    Err(CgroupError::Threaded { .. }) => {}
                    Err(error) if error.is_gone() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// All processes of it and of those below it. `None` if not all are known: they are of another
    /// pid namespace, or it has more cgroups than are listed.
    pub fn all_procs(&self) -> Result<Option<Vec<u32>>, CgroupError> {
        let is_cut = self.descendants(TreeLimits::WHOLE)?.truncated;
        let pids = self.listed(true)?;
        Ok((!is_cut && !pids.contains(&0)).then_some(pids))
    }

    /// Memory charged to it and the cgroups below. `None` for the v2 root, which has no such file.
    pub fn usage_bytes(&self) -> Result<Option<u64>, CgroupError> {
        self.number(self.usage_file())
    }

    fn usage_file(&self) -> &'static str {
        match self.hierarchy.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        }
    }

    /// Swap charged to it; `None` if swap is not accounted.
    pub fn swap_bytes(&self) -> Result<Option<u64>, CgroupError> {
        match self.hierarchy.version {
            Version::V1 => Ok(self.stat()?.swap_bytes),
            Version::V2 => self.number("memory.swap.current"),
        }
    }

    /// Memory charged to it that is only in swap, given its [`stat`](Self::stat); `None` if swap is
    /// not accounted.
    pub fn out_bytes(&self, stat: &MemoryStat) -> Option<u64> {
        match self.hierarchy.version {
            // A charge that has come back is no longer counted.
            Version::V1 => stat.swap_bytes,
            Version::V2 => {
                let charged = self.swap_bytes().ok()??;
                Some(charged.saturating_sub(stat.swap_cached_bytes))
            }
        }
    }

    /// Its memory by kind.
    pub fn stat(&self) -> Result<MemoryStat, CgroupError> {
        let path = self.dir().join("memory.stat");
        let text = error::read(&path).map_err(|e| self.vanished(e))?;
        Ok(MemoryStat::parse(self.hierarchy.version, &path, &text)?)
    }

    /// The limits set on the cgroup itself (those of its ancestors apply as well).
    pub fn limits(&self) -> Result<Limits, CgroupError> {
        // v1 represents "no limit" by the largest multiple of the page size, v2 by the word `max`.
        const V1_NO_LIMIT: u64 = 0x7fff_ffff_ffff_0000;
        let bounded = |n: Option<u64>| n.filter(|&n| n < V1_NO_LIMIT);
        Ok(match self.hierarchy.version {
            Version::V1 => Limits {
                max_bytes: bounded(self.number("memory.limit_in_bytes")?),
                ..Limits::default()
            },
            Version::V2 => Limits {
                max_bytes: self.number("memory.max")?,
                high_bytes: self.number("memory.high")?,
                low_bytes: self.protection("memory.low")?,
                min_bytes: self.protection("memory.min")?,
            },
        })
    }

    /// How much more of it may go to swap by its own limit and those of its ancestors
    /// (`memory.swap.max`); `None` without a limit. v1 only limits memory and swap together, which
    /// swapping does not change.
    pub fn swap_room_bytes(&self) -> Result<Option<u64>, CgroupError> {
        let mut least = None;
        if self.hierarchy.version == Version::V1 {
            return Ok(least);
        }
        for path in self.path.ancestors() {
            let of = Self::open(&self.hierarchy, path)?;
            if let Some(max_bytes) = of.number("memory.swap.max")? {
                let room_bytes = max_bytes.saturating_sub(of.swap_bytes()?.unwrap_or(0));
                least = Some(least.map_or(room_bytes, |least: u64| least.min(room_bytes)));
            }
        }
        Ok(least)
    }

    /// How often its memory hit its own limit: `memory.failcnt` (v1), `high` and `max` of
    /// `memory.events` (v2 since Linux 5.2: also that of cgroups below it hit theirs). `None` if
    /// there is no such file.
    pub fn limit_hits(&self) -> Result<Option<u64>, CgroupError> {
        if self.hierarchy.version == Version::V1 {
            return self.number("memory.failcnt");
        }
        self.events("memory.events", &["high", "max"])
    }

    /// As [`limit_hits`](Self::limit_hits), never with those of cgroups below it.
    pub fn own_limit_hits(&self) -> Result<Option<u64>, CgroupError> {
        let own = match self.hierarchy.version {
            Version::V1 => None,
            // Since Linux 5.3.
            Version::V2 => self.events("memory.events.local", &["high", "max"])?,
        };
        own.map_or_else(|| self.limit_hits(), |hits| Ok(Some(hits)))
    }

    /// How many of its processes the kernel killed because memory ran out, here or below its limit:
    /// `oom_kill` of `memory.oom_control` (v1) and `memory.events` (v2). `None` if there is no such
    /// file.
    pub fn oom_kills(&self) -> Result<Option<u64>, CgroupError> {
        let file = match self.hierarchy.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        self.events(file, &["oom_kill"])
    }

    /// Sums some counters in a file of names and counts.
    fn events(&self, file: &str, names: &[&str]) -> Result<Option<u64>, CgroupError> {
        let path = self.dir().join(file);
        let Some(text) = error::read_optional(&path)? else {
            return self.check().map(|()| None);
        };
        let mut sum = None;
        for line in text.lines() {
            let Some((_, count)) = line.split_once(' ').filter(|of| names.contains(&of.0)) else {
                continue;
            };
            let count: u64 = count
                .trim()
                .parse()
                .map_err(|_| FileError::format(&path, "a name and a number", line))?;
            sum = Some(sum.unwrap_or(0u64).saturating_add(count));
        }
        Ok(sum)
    }

    /// Whether the kernel can be asked to reclaim from it ([`reclaim`](Self::reclaim)).
    pub fn can_reclaim(&self) -> bool {
        self.dir().join("memory.reclaim").exists()
    }

    /// Asks the kernel to reclaim `bytes`, from pages of its own choice (`memory.reclaim`, v2 since
    /// Linux 5.19). Without `anon`, only page cache may be reclaimed (`swappiness=0`, since 6.8).
    /// Returns false if it reclaimed less, or a signal ended it early.
    pub fn reclaim(&self, bytes: u64, anon: bool) -> Result<bool, CgroupError> {
        self.check()?;
        let text = match anon {
            true => format!("{bytes}"),
            false => format!("{bytes} swappiness=0"),
        };
        match error::write_once(&self.dir().join("memory.reclaim"), &text) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
                Ok(false)
            }
            Err(error) => Err(self.vanished(error)),
        }
    }

    /// Lists all cgroups below it, without itself.
    pub fn descendants(&self, limits: TreeLimits) -> Result<Listing, CgroupError> {
        tree::descendants(self, limits)
    }

    /// Kernfs ids of it and of all cgroups below it, as pages are charged to them, within
    /// [`TreeLimits::WIDE`].
    pub fn subtree_ids(&self) -> Result<HashSet<u64>, CgroupError> {
        let below = self.descendants(TreeLimits::WIDE)?.cgroups;
        Ok(below.iter().chain([self]).map(Cgroup::id).collect())
    }

    /// Reads a protection, where the word `max` means "all of it".
    fn protection(&self, file: &str) -> Result<u64, CgroupError> {
        match error::read_optional(&self.dir().join(file))? {
            Some(text) if text.trim() == "max" => Ok(u64::MAX),
            _ => Ok(self.number(file)?.unwrap_or(0)),
        }
    }

    /// Reads a file that contains a number or the word `max`. `None` for `max`, or if the cgroup
    /// exists but the file does not.
    fn number(&self, file: &str) -> Result<Option<u64>, CgroupError> {
        let path = self.dir().join(file);
        match error::read(&path) {
            Ok(text) if text.trim() == "max" => Ok(None),
            Ok(text) => match text.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(FileError::format(&path, "a number or max", &text).into()),
            },
            Err(error) if error.is_not_found() => self.check().map(|()| None),
            Err(error) => Err(error.into()),
        }
    }

    fn ids(&self, file: &str) -> Result<Vec<u32>, CgroupError> {
        let path = self.dir().join(file);
        let text = error::read(&path).map_err(|e| match e.raw_os_error() {
            Some(libc::EOPNOTSUPP) => CgroupError::Threaded { path: self.name() },
            _ => self.vanished(e),
        })?;
        let mut ids = text
            .lines()
            .map(|line| {
                line.trim()
                    .parse()
                    .map_err(|_| FileError::format(&path, "a pid", line))
            })
            .collect::<Result<Vec<u32>, _>>()?;
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// If the file is missing because the cgroup is gone, returns that error instead.
    fn vanished(&self, error: FileError) -> CgroupError {
        match self.check() {
            Err(gone) if error.is_not_found() => gone,
            _ => error.into(),
        }
    }

    fn child(&self, name: &OsStr, id: u64) -> Self {
        Self {
            hierarchy: self.hierarchy.clone(),
            path: self.path.join(name),
            id,
        }
    }
}

/// Why the cgroup of a process could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum OfProcessError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

/// The inode of a directory; `None` if there is no such directory.
fn inode(dir: &Path) -> Result<Option<u64>, FileError> {
    match std::fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => Ok(Some(meta.ino())),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FileError::Read {
            path: dir.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests;
