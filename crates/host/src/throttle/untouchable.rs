// SPDX-License-Identifier: Apache-2.0
//! Cgroups that must not be touched.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use super::login::Logins;
use crate::cgroup::{Cgroup, CgroupError, TreeLimits, Version};
use crate::mover::lineage;
use crate::process::Process;
use crate::root::ProcRoot;

/// Why a cgroup must not be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untouchable {
    /// It is the root cgroup: all others are below it.
    Root,
    /// It contains init.
    Init,
    /// It contains this program.
    Ourselves,
    /// It contains an ancestor of this program: the shell or service that started it.
    Ancestor,
    /// It contains a process of this program's session.
    Session,
    /// It contains a login shell at a terminal.
    LoginShell,
    /// It contains a process of another pid namespace, which may be any of the others.
    Unseen,
    /// It contains more cgroups than are listed, so not all of its processes are known.
    Unlisted,
}

impl Untouchable {
    /// An explanation for messages.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Root => "it is the root of all cgroups",
            Self::Init => "it holds the init process",
            Self::Ourselves => "it holds agewise itself",
            Self::Ancestor => "it holds a process that agewise was started by",
            Self::Session => "it holds a process of the session of agewise",
            Self::LoginShell => "it holds the shell of a login session",
            Self::Unseen => {
                "it holds processes of another pid namespace, which cannot be seen here"
            }
            Self::Unlisted => "it holds more cgroups than are listed",
        }
    }
}

/// Whether a cgroup, or one below it, contains processes that must never be squeezed, frozen or
/// killed.
///
/// # Errors
/// Its processes cannot be listed. Then nothing is known, and it must not be touched either.
pub fn untouchable(root: &ProcRoot, cgroup: &Cgroup) -> Result<Option<Untouchable>, CgroupError> {
    Ok(touchable(root, cgroup)?.err())
}

/// As [`untouchable`]. If it may be touched, the paths of the cgroups below it; of those that are
/// too many to be listed, only the ones that hold processes.
///
/// # Errors
/// As `untouchable`.
pub fn touchable(
    root: &ProcRoot,
    cgroup: &Cgroup,
) -> Result<Result<Vec<PathBuf>, Untouchable>, CgroupError> {
    within(root, cgroup, TreeLimits::WHOLE)
}

/// As [`touchable`]; these are the limits of listing cgroups.
fn within(
    root: &ProcRoot,
    cgroup: &Cgroup,
    limits: TreeLimits,
) -> Result<Result<Vec<PathBuf>, Untouchable>, CgroupError> {
    if cgroup.is_root() {
        return Ok(Err(Untouchable::Root));
    }
    let Some(Contents { pids, below }) = contents(root, cgroup, limits)? else {
        return Ok(Err(Untouchable::Unlisted));
    };
    let line = lineage(root, std::process::id());
    let stat = |pid| Process::open_in(root, pid).and_then(|process| process.stat());
    let logins = Logins {
        proc: root,
        run: Path::new("/run"),
        dev: Path::new("/dev"),
        names: Path::new("/sys/dev/char"),
        sessions: OnceCell::new(),
    };
    let own_session = stat(std::process::id()).ok().map(|stat| stat.session);
    let reason = |pid: u32| {
        if pid == 1 {
            Some(Untouchable::Init)
        } else if pid == std::process::id() {
            Some(Untouchable::Ourselves)
        } else if line.contains(&pid) {
            Some(Untouchable::Ancestor)
        } else {
            // A process that has gone in the meantime is not an obstacle.
            let stat = stat(pid).ok()?;
            if Some(stat.session) == own_session {
                Some(Untouchable::Session)
            } else {
                let is_login = logins.is_login(pid, &stat);
                is_login.then_some(Untouchable::LoginShell)
            }
        }
    };
    let is_unseen = pids.contains(&0);
    let found = pids.into_iter().filter(|pid| *pid != 0).find_map(reason);
    let found = found.or(is_unseen.then_some(Untouchable::Unseen));
    Ok(found.map_or(Ok(below), Err))
}

/// What a cgroup holds.
struct Contents {
    /// Its processes and those of the cgroups below it, 0 for those that cannot be seen.
    pids: Vec<u32>,
    /// Paths of cgroups below it.
    below: Vec<PathBuf>,
}

/// What a cgroup holds; `None` if not all of its processes are known.
fn contents(
    root: &ProcRoot,
    cgroup: &Cgroup,
    limits: TreeLimits,
) -> Result<Option<Contents>, CgroupError> {
    let listed = cgroup.descendants(limits)?;
    let paths = listed.cgroups.iter().map(|below| below.path().to_owned());
    if !listed.truncated {
        let (pids, below) = (cgroup.listed(true)?, paths.collect());
        return Ok(Some(Contents { pids, below }));
    }
    // The kernel limits, freezes and kills all of a v2 cgroup; in v1 it takes lists of processes.
    if cgroup.hierarchy().version == Version::V1 {
        return Ok(None);
    }
    let members = cgroup.members(root)?;
    Ok(members.map(|members| {
        let (pids, unlisted): (_, Vec<PathBuf>) = members.into_iter().unzip();
        let below = paths.chain(unlisted).collect();
        Contents { pids, below }
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cgroup::Hierarchy;

    /// PF_KTHREAD (`linux/sched.h`).
    const KERNEL_THREAD: u32 = 0x0020_0000;
    /// A terminal that has no name, so that it counts as one of a login.
    const TERMINAL: u32 = 5000 << 8;

    /// A user who may create cgroups can create more than anybody lists.
    #[test]
    fn one_with_more_cgroups_than_are_listed_is_known_by_its_processes() {
        let top = tempfile::tempdir().unwrap();
        for path in ["job/1", "job/2/deep", "job/3"] {
            fs::create_dir_all(top.path().join("cgroup").join(path)).unwrap();
        }
        let root = ProcRoot::new(top.path().join("proc"));
        let add = |pid: u32, cgroup: &str, flags: u32, terminal: u32| {
            fs::create_dir_all(root.of(pid)).unwrap();
            let stat = format!(
                "{pid} (x) S 1 {pid} {pid} {terminal} -1 {flags} 1 2 3 4 5 6 7 8 20 0 1 0 9 1 50\n"
            );
            let cgroup = format!("5:memory:{cgroup}\n0::{cgroup}\n");
            for (file, text) in [("stat", stat), ("cgroup", cgroup)] {
                fs::write(root.of(pid).join(file), text).unwrap();
            }
        };
        let why = |version| {
            let hierarchy = Hierarchy::at(version, top.path().join("cgroup"));
            let cgroup = Cgroup::open(&hierarchy, "/job").unwrap();
            let limits = TreeLimits {
                count_max: 3,
                ..TreeLimits::WHOLE
            };
            within(&root, &cgroup, limits).unwrap()
        };
        // In a container not all processes are known.
        add(2, "/", 0, 0);
        add(7, "/job/3", 0, 0);
        assert_eq!(why(Version::V2), Err(Untouchable::Unlisted));
        add(2, "/", KERNEL_THREAD, 0);
        let below = why(Version::V2).unwrap();
        assert!(below.contains(&PathBuf::from("/job/3")), "{below:?}");
        assert_eq!(why(Version::V1), Err(Untouchable::Unlisted));
        add(50, "/job/2/deep", 0, TERMINAL);
        assert_eq!(why(Version::V2), Err(Untouchable::LoginShell));
        add(50, "/jobs", 0, TERMINAL);
        assert!(why(Version::V2).is_ok());
    }
}
