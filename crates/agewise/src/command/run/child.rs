// SPDX-License-Identifier: Apache-2.0
//! The command that `agewise run` starts. It shares the standard streams and the process group of
//! agewise, so the terminal's job control treats both as one program; signals sent only to agewise
//! are passed on.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child as StdChild, Command, ExitStatus};
use std::thread::JoinHandle;
use std::time::Instant;

use agewise_host::cgroup::OwnCgroup;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::Cause;

/// Signals passed on to the command.
const FORWARDED: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM];

/// Exit status of shells if a command is not found.
pub const NOT_FOUND: u8 = 127;
/// Exit status of shells if a command cannot be run.
pub const NOT_RUNNABLE: u8 = 126;

/// A command that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {}: {source}", program.display())]
pub struct SpawnError {
    program: OsString,
    source: io::Error,
}

impl SpawnError {
    /// The exit status that a shell would return: 127 if there is no such command, else 126.
    pub fn exit_code(&self) -> u8 {
        match self.source.kind() {
            io::ErrorKind::NotFound => NOT_FOUND,
            _ => NOT_RUNNABLE,
        }
    }
}

/// Signals that wait for a command to be passed on to: none is missed, and none ends agewise.
#[derive(Debug)]
pub struct Waiting(SignalsInfo<WithOrigin>);

impl Waiting {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// That of the operating system if no file descriptor is available.
    pub fn install() -> io::Result<Self> {
        Ok(Waiting(SignalsInfo::new(FORWARDED)?))
    }

    /// A signal that has arrived, if any.
    pub fn arrived(&mut self) -> Option<i32> {
        self.0.pending().next().map(|origin| origin.signal)
    }
}

/// A running command.
#[derive(Debug)]
pub struct Child {
    child: StdChild,
    pidfd: OwnedFd,
    signals: Handle,
    forwarder: Option<JoinHandle<()>>,
}

impl Child {
    /// Starts `command` (the first word is the program) and passes signals on to it from then on.
    ///
    /// # Errors
    /// The program does not exist or cannot be run, or the system is out of processes.
    pub fn spawn(command: &[OsString]) -> Result<Self, SpawnError> {
        let waiting = Waiting::install().map_err(|source| SpawnError {
            program: command.first().cloned().unwrap_or_default(),
            source,
        })?;
        Self::spawn_in(None, command, waiting)
    }

    /// As [`spawn`](Self::spawn), in the given cgroup if any, with signals that already wait.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn spawn_in(
        own: Option<&OwnCgroup>,
        command: &[OsString],
        waiting: Waiting,
    ) -> Result<Self, SpawnError> {
        let (program, arguments) = command.split_first().expect("clap requires a command");
        let failed = |source| SpawnError {
            program: program.clone(),
            source,
        };
        // Make orphans of the command our children, so that their memory is still counted and
        // reclaimed.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|errno| failed(errno.into()))?;
        let Waiting(mut signals) = waiting;
        let handle = signals.handle();
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(own) = own {
            own.enter(&mut command).map_err(failed)?;
        }
        let mut child = command.spawn().map_err(failed)?;
        // Only now: the command would inherit it.
        crate::raise_file_limit();
        let pid = Pid::from_child(&child);
        let opened = pidfd_open(pid, PidfdFlags::empty())
            .and_then(|pidfd| Ok((rustix::io::fcntl_dupfd_cloexec(&pidfd, 0)?, pidfd)));
        let (target, pidfd) = match opened {
            Ok(pair) => pair,
            Err(errno) => {
                // Without the thread that passes on signals, the command could outlive us
                // unnoticed.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(errno.into()));
            }
        };
        let forwarder = std::thread::spawn(move || {
            for origin in signals.forever() {
                // Signals from the terminal go to the whole process group, so the command already
                // has them.
                if origin.cause == Cause::Kernel {
                    continue;
                }
                if let Some(signal) = Signal::from_named_raw(origin.signal) {
                    let _ = pidfd_send_signal(&target, signal);
                }
            }
        });
        Ok(Self {
            child,
            pidfd,
            signals: handle,
            forwarder: Some(forwarder),
        })
    }

    /// The pid of the command.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `deadline` for the command to end.
    ///
    /// # Errors
    /// Those of waitpid.
    pub fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec::try_from(left).ok();
            // After EINTR the loop waits for the rest of the time.
            let _ = poll(
                &mut [PollFd::new(&self.pidfd, PollFlags::IN)],
                timeout.as_ref(),
            );
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signals.close();
        if let Some(forwarder) = self.forwarder.take() {
            let _ = forwarder.join();
        }
    }
}

/// The exit status of agewise after that of the command: the same, or 128 plus the signal.
pub fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => agewise_cli::signal::Stop::exit_code(signal),
        (None, None) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn status_of(words: &[&str]) -> u8 {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let mut child = Child::spawn(&words).expect("spawn");
        let deadline = Instant::now() + Duration::from_secs(60);
        exit_code(child.wait_until(deadline).expect("wait").expect("ended"))
    }

    #[test]
    fn the_status_is_the_commands() {
        assert_eq!(status_of(&["true"]), 0);
        assert_eq!(status_of(&["sh", "-c", "exit 42"]), 42);
        assert_eq!(status_of(&["sh", "-c", "kill -9 $$"]), 137);
    }

    #[test]
    fn what_cannot_start_says_why() {
        let error = Child::spawn(&["/nonexistent/program".into()]).expect_err("no such program");
        assert_eq!(error.exit_code(), NOT_FOUND);
        assert!(error.to_string().contains("/nonexistent/program"));
        assert_eq!(
            Child::spawn(&["/".into()])
                .expect_err("a directory")
                .exit_code(),
            NOT_RUNNABLE
        );
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let mut child = Child::spawn(&["sleep".into(), "60".into()]).expect("spawn");
        let deadline = Instant::now() + Duration::from_millis(30);
        assert!(child.wait_until(deadline).expect("wait").is_none());
        child.child.kill().expect("kill");
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(child.wait_until(deadline).expect("wait").is_some());
    }
}
