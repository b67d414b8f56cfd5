// SPDX-License-Identifier: Apache-2.0
//! Cgroups that must not be touched.

use std::cell::OnceCell;
use std::path::Path;

use super::login::Logins;
use crate::cgroup::{Cgroup, CgroupError};
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
        }
    }
}

/// Whether a cgroup, or one below it, contains processes that must never be squeezed, frozen or
/// killed.
///
/// # Errors
/// Its processes cannot be listed. Then nothing is known, and it must not be touched either.
pub fn untouchable(root: &ProcRoot, cgroup: &Cgroup) -> Result<Option<Untouchable>, CgroupError> {
    if cgroup.is_root() {
        return Ok(Some(Untouchable::Root));
    }
    let pids = cgroup.listed(true)?;
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
    Ok(found.or(is_unseen.then_some(Untouchable::Unseen)))
}
