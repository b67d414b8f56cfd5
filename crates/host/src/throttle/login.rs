// SPDX-License-Identifier: Apache-2.0
//! Finds out who is logged in. That a process leads a session with a terminal proves nothing, since
//! anybody can open a pseudoterminal (`script`), and some can open serial lines (`dialout`). What
//! counts is what only root can cause: a record of logind, a login program among its ancestors, or
//! a console or serial line that belongs to its user. A record in utmp proves nothing: utempter
//! writes one for any process that asks.

use std::cell::OnceCell;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::patient;
use crate::process::{Process, Stat};
use crate::root::ProcRoot;

/// Login programs. A name counts only for a file that nobody but root can change.
const PROGRAMS: [&str; 16] = [
    "agetty",
    "dropbear",
    "gdm-session-worker",
    "getty",
    "in.rlogind",
    "in.telnetd",
    "lightdm",
    "login",
    "mgetty",
    "mingetty",
    "sddm-helper",
    "sshd",
    "sshd-auth",
    "sshd-session",
    "systemd-logind",
    "telnetd",
];
/// How many ancestors of a shell are searched: sshd has three processes per login.
const LEVELS_MAX: usize = 6;
/// Most records read.
const RECORDS_MAX: usize = 65_536;
/// Major device numbers of Unix 98 pseudoterminals (Documentation/admin-guide/devices.txt).
const PTY_MAJORS: std::ops::RangeInclusive<u32> = 136..=143;

/// Where login records are found.
#[derive(Debug)]
pub(super) struct Logins<'a> {
    pub proc: &'a ProcRoot,
    /// Usually `/run`.
    pub run: &'a Path,
    /// Usually `/dev`.
    pub dev: &'a Path,
    /// Links from device numbers to names, usually `/sys/dev/char`.
    pub names: &'a Path,
    /// What logind knows, read once: a user may have thousands of shells to look up.
    pub sessions: OnceCell<Vec<Session>>,
}

/// A session with a terminal in which somebody is logged in, as logind records it.
#[derive(Debug)]
pub(super) struct Session {
    terminal: String,
    leader: u32,
}

impl Logins<'_> {
    /// Whether the process leads a session in which somebody is logged in.
    pub fn is_login(&self, pid: u32, stat: &Stat) -> bool {
        if stat.session != pid || !stat.has_terminal {
            return false;
        }
        let pty = pty_name(stat.terminal);
        let is_pty = pty.is_some();
        let Some(terminal) = pty.or_else(|| self.device_name(stat.terminal)) else {
            // No login is to be harmed where names of devices are not known.
            return true;
        };
        let above = self.line_of(pid, stat.ppid);
        self.is_let_in(&above)
            || self.logind_knows(&terminal, pid, &above)
            || !is_pty && self.is_owner(pid, &terminal)
    }

    /// The name below `/dev` of a terminal that is not a pseudoterminal.
    fn device_name(&self, device: u32) -> Option<String> {
        let (major, minor) = numbers(device);
        let link = fs::read_link(self.names.join(format!("{major}:{minor}"))).ok()?;
        Some(link.file_name()?.to_str()?.to_owned())
    }

    /// Whether a terminal belongs to the user of the process: login programs give a console or
    /// serial line to whom they let in. The real user counts: anybody may run a program as root's
    /// there. If this cannot be determined it counts as such.
    fn is_owner(&self, pid: u32, terminal: &str) -> bool {
        let user = Process::open_in(self.proc, pid).and_then(|process| process.uid());
        let owner = fs::metadata(self.dev.join(terminal)).map(|meta| meta.uid());
        match (user, owner) {
            (Ok(user), Ok(owner)) => user == owner,
            _ => true,
        }
    }

    /// The ancestors, nearest first.
    fn line_of(&self, pid: u32, ppid: u32) -> Vec<(u32, Option<Process>)> {
        let mut line: Vec<(u32, Option<Process>)> = Vec::new();
        let mut next = ppid;
        while next > 1 && next != pid && line.len() < LEVELS_MAX {
            let process = Process::open_in(self.proc, next).ok();
            let above = process.as_ref().and_then(|process| process.stat().ok());
            line.push((next, process));
            next = above.map_or(0, |stat| stat.ppid);
        }
        line
    }

    /// Whether the nearest ancestors are login programs, one of which runs as root.
    fn is_let_in(&self, above: &[(u32, Option<Process>)]) -> bool {
        above
            .iter()
            .map_while(|(_, process)| process.as_ref().filter(|process| lets_in(process)))
            .any(|process| process.euid().is_ok_and(|uid| uid == 0))
    }

    /// Whether a file in `/run/systemd/sessions` names the terminal, and as leader this process or
    /// an ancestor.
    fn logind_knows(&self, terminal: &str, pid: u32, above: &[(u32, Option<Process>)]) -> bool {
        let is_above = |leader| leader == pid || above.iter().any(|(above, _)| *above == leader);
        let mut sessions = self.sessions.get_or_init(|| sessions(self.run)).iter();
        sessions.any(|of| of.terminal == terminal && is_above(of.leader))
    }
}

fn sessions(run: &Path) -> Vec<Session> {
    let entries = fs::read_dir(run.join("systemd/sessions"));
    let entries = entries.into_iter().flatten().flatten().take(RECORDS_MAX);
    // Beside its record each session has a pipe (`1.ref`), which is read until the session ends.
    let records = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let texts = records.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts.filter_map(|text| Session::parse(&text)).collect()
}

impl Session {
    /// `None` without a terminal, or if its leader has ended (`closing`): a program that was left
    /// behind keeps such a record for as long as it lives, and the leader's pid and terminal are
    /// given to others.
    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        };
        let session = Session {
            terminal: value("TTY")?.to_owned(),
            leader: value("LEADER")?.parse().ok()?,
        };
        (value("STATE") != Some("closing")).then_some(session)
    }
}

/// `pts/N` for a device number in `stat`; `None` for other terminals.
fn pty_name(device: u32) -> Option<String> {
    let (major, minor) = numbers(device);
    PTY_MAJORS
        .contains(&major)
        .then(|| format!("pts/{}", (major - PTY_MAJORS.start()) * 256 + minor))
}

/// Major and minor number of a device.
fn numbers(device: u32) -> (u32, u32) {
    // include/linux/kdev_t.h, new_encode_dev: 8 bits of the minor, 12 of the major, 12 of the
    // minor.
    let minor = (device & 0xff) | ((device >> 12) & 0xf_ff00);
    ((device >> 8) & 0xfff, minor)
}

/// Whether it runs a login program, from a file that only root can change. If this cannot be
/// determined it counts as one, so that no login is harmed.
fn lets_in(process: &Process) -> bool {
    let path = process.path("exe");
    let Ok(target) = fs::read_link(&path) else {
        return process.is_alive();
    };
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    // The file was replaced by an update while the program runs.
    let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
    let is_roots = |meta: Metadata| meta.uid() == 0 && meta.mode() & 0o022 == 0;
    // Its file system may hang.
    let meta = || patient::call(process.pid(), || fs::metadata(path)).flatten();
    PROGRAMS.contains(&name) && meta().is_ok_and(is_roots)
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
