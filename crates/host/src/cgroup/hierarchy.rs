// SPDX-License-Identifier: Apache-2.0
//! Finds the cgroup hierarchy that accounts memory, in `/proc/self/mountinfo`.

use std::path::{Component, Path, PathBuf};

use super::{CgroupError, name};
use crate::error;
use crate::octal::unescape;
use crate::process::{Membership, Process};
use crate::root::ProcRoot;

/// The two interfaces of the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// cgroup v1: `memory.usage_in_bytes`, `total_*` in `memory.stat`.
    V1,
    /// cgroup v2: `memory.current`, hierarchical counters.
    V2,
}

/// How cgroups are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// No cgroup hierarchy is mounted.
    None,
    /// Only v1 hierarchies.
    V1,
    /// Only v2.
    V2,
    /// v2 along with v1 hierarchies: each controller works in only one of the two.
    Hybrid,
}

impl Layout {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::V1 => "v1",
            Self::V2 => "v2",
            Self::Hybrid => "hybrid",
        }
    }
}

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The cgroup at the mount point: `/`, unless a container sees only a part.
    subtree: PathBuf,
    point: PathBuf,
    /// The v1 controllers.
    controllers: Vec<String>,
}

/// All cgroup mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts(Vec<Mount>);

impl Mounts {
    /// Reads the cgroup mounts from `/proc/self/mountinfo`.
    pub fn read(root: &ProcRoot) -> Result<Self, CgroupError> {
        let text = error::read_bytes(&root.join("self/mountinfo"))?;
        Ok(Self::parse(&text))
    }

    pub(crate) fn parse(text: &[u8]) -> Self {
        let lines = text.split(|byte| *byte == b'\n');
        Self(lines.filter_map(parse_mount).collect())
    }

    /// The layout of the mounts.
    pub fn layout(&self) -> Layout {
        let has = |version| self.0.iter().any(|m| m.version == version);
        match (has(Version::V1), has(Version::V2)) {
            (false, false) => Layout::None,
            (true, false) => Layout::V1,
            (false, true) => Layout::V2,
            (true, true) => Layout::Hybrid,
        }
    }

    /// The v2 hierarchy, with or without a memory controller (it always has `memory.pressure` if
    /// the kernel has PSI).
    pub fn unified(&self) -> Option<Hierarchy> {
        self.0
            .iter()
            .find(|m| m.version == Version::V2)
            .map(Hierarchy::from_mount)
    }

    /// The mount point of a v1 controller's hierarchy.
    pub fn controller_dir(&self, name: &str) -> Option<PathBuf> {
        let mount = self
            .0
            .iter()
            .find(|m| m.controllers.iter().any(|c| c == name));
        mount.map(|mount| mount.point.clone())
    }

    /// The hierarchy that accounts memory: v1 if mounted there, otherwise v2 if it has the
    /// controller.
    pub fn memory(&self) -> Result<Hierarchy, CgroupError> {
        let v1 = self
            .0
            .iter()
            .find(|m| m.controllers.iter().any(|c| c == "memory"));
        if let Some(mount) = v1 {
            return Ok(Hierarchy::from_mount(mount));
        }
        let unified = self.unified().ok_or(CgroupError::NoMemoryController {
            layout: self.layout(),
        })?;
        let available = error::read_optional(&unified.root.join("cgroup.controllers"))?;
        if available.is_some_and(|line| line.split_ascii_whitespace().any(|c| c == "memory")) {
            Ok(unified)
        } else {
            Err(CgroupError::NoMemoryController {
                layout: self.layout(),
            })
        }
    }
}

/// Parses a line of mountinfo (proc(5)); the optional fields end with a lone dash.
fn parse_mount(line: &[u8]) -> Option<Mount> {
    const DASH: &[u8] = b" - ";
    let dash = line.windows(DASH.len()).position(|part| part == DASH)?;
    let (left, right) = (&line[..dash], &line[dash + DASH.len()..]);
    let mut fields = left.split(|byte| *byte == b' ').skip(3);
    let mut path = || fields.next().map(unescape);
    let (subtree, point) = (path()?, path()?);
    let mut right = right.split(|byte| *byte == b' ');
    let kind = right.next()?;
    let options = String::from_utf8_lossy(right.nth(1).unwrap_or_default());
    let version = match kind {
        b"cgroup" => Version::V1,
        b"cgroup2" => Version::V2,
        _ => return None,
    };
    let controllers = match version {
        Version::V1 => options.split(',').map(str::to_owned).collect(),
        Version::V2 => Vec::new(),
    };
    Some(Mount {
        version,
        subtree: subtree.into(),
        point: point.into(),
        controllers,
    })
}

/// The hierarchy that accounts memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// The interface of its files.
    pub version: Version,
    /// Where it is mounted.
    pub root: PathBuf,
    /// The cgroup at the mount point, as named in `/proc/PID/cgroup`.
    subtree: PathBuf,
}

impl Hierarchy {
    /// Finds the hierarchy of this machine that accounts memory.
    pub fn discover(root: &ProcRoot) -> Result<Self, CgroupError> {
        Mounts::read(root)?.memory()
    }

    /// A hierarchy at a given path, for trees that are not mounted (tests, another root).
    pub fn at(version: Version, root: impl Into<PathBuf>) -> Self {
        Self {
            version,
            root: root.into(),
            subtree: "/".into(),
        }
    }

    fn from_mount(mount: &Mount) -> Self {
        Self {
            version: mount.version,
            root: mount.point.clone(),
            subtree: mount.subtree.clone(),
        }
    }

    /// Converts user input into a path below the hierarchy that starts with `/`. Accepts a path
    /// below the mount point (`/sys/fs/cgroup/memory/web`) and one relative to it (`web`, `/web`).
    pub fn resolve(&self, given: impl AsRef<Path>) -> Result<PathBuf, CgroupError> {
        let path = given.as_ref();
        let outside = || CgroupError::Outside {
            given: name::text(path),
            root: self.root.clone(),
        };
        let inner = match path.strip_prefix(&self.root) {
            Ok(inner) => inner,
            // Below the usual mount point of all hierarchies, but not in this one.
            Err(_) if path.starts_with("/sys/fs/cgroup") => return Err(outside()),
            Err(_) => path,
        };
        let mut clean = PathBuf::from("/");
        for component in inner.components() {
            match component {
                Component::Normal(name) => clean.push(name),
                Component::RootDir | Component::CurDir => {}
                Component::ParentDir | Component::Prefix(_) => return Err(outside()),
            }
        }
        Ok(clean)
    }

    /// The path of a process in this hierarchy, from its memberships; `None` if that part is not
    /// visible here.
    pub fn path_of(&self, memberships: &[Membership]) -> Option<PathBuf> {
        let membership = memberships.iter().find(|m| match self.version {
            Version::V1 => m.controllers.iter().any(|c| c == "memory"),
            Version::V2 => m.hierarchy == 0,
        })?;
        let inner = membership.path.strip_prefix(&self.subtree).ok()?;
        Some(Path::new("/").join(inner))
    }

    /// Whether the kernel kills all processes of a cgroup when asked to (`cgroup.kill`, v2 since
    /// Linux 5.14). The root of all cgroups has no such file.
    pub fn has_kill(&self) -> bool {
        let below = std::fs::read_dir(&self.root).into_iter().flatten();
        let mut dirs = below.flatten().map(|entry| entry.path());
        let has = |dir: &Path| dir.join("cgroup.kill").exists();
        self.version == Version::V2 && (has(&self.root) || dirs.any(|dir| has(&dir)))
    }

    /// The path of this program; `None` if it is not visible here.
    pub fn own_path(&self, root: &ProcRoot) -> Option<PathBuf> {
        let process = Process::open_in(root, std::process::id()).ok()?;
        self.path_of(&process.cgroups().ok()?)
    }

    /// The directory of a resolved path.
    pub(super) fn dir(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
        22 1 0:20 / / rw - ext4 /dev/vda rw\n\
        30 22 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:3 master:1 - cgroup cgroup rw,cpu\n\
        31 22 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        32 22 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn layouts_are_told_apart() {
        let layout = |text: &str| Mounts::parse(text.as_bytes()).layout();
        assert_eq!(layout(HYBRID), Layout::Hybrid);
        assert_eq!(
            layout("31 22 0:27 / /m rw - cgroup cgroup rw,memory\n"),
            Layout::V1
        );
        assert_eq!(
            layout("31 22 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            Layout::V2
        );
        assert_eq!(
            layout("22 1 0:20 / / rw - ext4 /dev/vda rw\n"),
            Layout::None
        );
    }

    #[test]
    fn in_a_hybrid_layout_memory_is_where_its_controller_is() {
        let mounts = Mounts::parse(HYBRID.as_bytes());
        let memory = mounts.memory().unwrap();
        assert_eq!(
            (memory.version, memory.root),
            (Version::V1, "/sys/fs/cgroup/memory".into())
        );
        assert_eq!(mounts.unified().unwrap().version, Version::V2);
    }

    #[test]
    fn a_unified_hierarchy_without_the_controller_is_said_to_be_so() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "31 22 0:27 / {} rw - cgroup2 cgroup2 rw\n",
            dir.path().display()
        );
        std::fs::write(dir.path().join("cgroup.controllers"), "cpu io\n").unwrap();
        let error = Mounts::parse(text.as_bytes()).memory().unwrap_err();
        assert!(matches!(
            error,
            CgroupError::NoMemoryController { layout: Layout::V2 }
        ));
        std::fs::write(dir.path().join("cgroup.controllers"), "cpu io memory\n").unwrap();
        assert_eq!(
            Mounts::parse(text.as_bytes()).memory().unwrap().version,
            Version::V2
        );
    }

    #[test]
    fn user_paths_resolve_or_are_refused() {
        let hierarchy = Hierarchy::at(Version::V1, "/sys/fs/cgroup/memory");
        for given in [
            "web/a",
            "/web/a",
            "/sys/fs/cgroup/memory/web/a/",
            "./web//a",
        ] {
            assert_eq!(
                hierarchy.resolve(given).unwrap(),
                Path::new("/web/a"),
                "{given}"
            );
        }
        for given in ["", "/", "/sys/fs/cgroup/memory"] {
            assert_eq!(hierarchy.resolve(given).unwrap(), Path::new("/"), "{given}");
        }
        for given in ["../x", "/web/../../x", "/sys/fs/cgroup/cpu/web"] {
            assert!(
                matches!(hierarchy.resolve(given), Err(CgroupError::Outside { .. })),
                "{given}"
            );
        }
    }

    #[test]
    fn a_container_sees_its_part_of_the_hierarchy() {
        let text = "31 22 0:27 /docker/abc /sys/fs/cgroup rw - cgroup cgroup rw,memory\n";
        let hierarchy = Mounts::parse(text.as_bytes()).memory().unwrap();
        let inside = |path: &str| {
            let membership = Membership {
                hierarchy: 4,
                controllers: vec!["memory".to_owned()],
                path: path.into(),
                removed: false,
            };
            hierarchy.path_of(&[membership])
        };
        assert_eq!(inside("/docker/abc").unwrap(), Path::new("/"));
        assert_eq!(inside("/docker/abc/x").unwrap(), Path::new("/x"));
        assert_eq!(inside("/docker/abcd"), None);
        assert_eq!(inside("/other"), None);
    }
}
