// SPDX-License-Identifier: Apache-2.0
//! A daemon of our own for measurements.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agewise_host::process::Process;
use anyhow::{Context, bail, ensure};

use agewise_cli::children;
use agewise_cli::signal::Stop;

/// Timeout for its start and its exit.
const PATIENCE: Duration = Duration::from_secs(60);
/// File name of its configuration.
pub const CONFIG: &str = "agewise.toml";
/// File name of its socket.
pub const SOCKET: &str = "socket";

/// Runs `program` in a session of its own, since cgroups with processes of the caller's session are
/// left alone. `setsid` of util-linux executes it without forking.
pub fn apart(program: &Path) -> Command {
    let mut command = Command::new("setsid");
    command.arg(program);
    command
}

/// A running daemon; when dropped it is asked to exit, and killed if it does not.
#[derive(Debug)]
pub struct Service {
    child: Child,
    directory: PathBuf,
}

impl Service {
    /// Starts a daemon configured by [`CONFIG`] in `directory`. Its standard error goes to the
    /// journal.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(program: &Path, directory: &Path) -> anyhow::Result<Self> {
        let child = apart(program)
            .args(["daemon", "--config"])
            .arg(directory.join(CONFIG))
            .env("STATE_DIRECTORY", directory.join("state"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the daemon")?;
        Ok(Service {
            child,
            directory: directory.to_owned(),
        })
    }

    /// Its latest snapshot; `None` before the first one, or if it does not listen at [`SOCKET`].
    pub fn snapshot(&self) -> Option<serde_json::Value> {
        use std::io::{Read, Write};
        let mut socket =
            std::os::unix::net::UnixStream::connect(self.directory.join(SOCKET)).ok()?;
        socket.set_read_timeout(Some(PATIENCE)).ok()?;
        socket
            .write_all(
                b"GET /api/snapshot HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            )
            .ok()?;
        let mut text = String::new();
        socket.read_to_string(&mut text).ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }

    /// Waits for a complete look.
    ///
    /// # Errors
    /// The daemon has exited or takes too long, or a signal arrived.
    pub fn wait_for_look(&mut self, stop: &Stop) -> anyhow::Result<serde_json::Value> {
        let began = Instant::now();
        loop {
            self.check()?;
            let snapshot = self.snapshot();
            if let Some(snapshot) = snapshot.filter(|s| s["sequence"].as_u64() > Some(0)) {
                return Ok(snapshot);
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "the daemon did not look in time"
            );
            ensure!(
                !stop.wait_until(Instant::now() + Duration::from_millis(20)),
                "interrupted"
            );
        }
    }

    /// Checks that the daemon is alive: otherwise its cost would appear to be zero.
    ///
    /// # Errors
    /// The daemon has exited.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the daemon has ended: {status}"),
            None => Ok(()),
        }
    }

    /// The pid of the daemon.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process of the daemon.
    ///
    /// # Errors
    /// The daemon has exited.
    pub fn process(&self) -> anyhow::Result<Process> {
        Ok(Process::open(self.child.id())?)
    }

    /// Asks it to exit, and waits for that.
    ///
    /// # Errors
    /// It does not exit in time.
    pub fn end(&mut self) -> anyhow::Result<()> {
        let in_time = children::end(&mut self.child, PATIENCE);
        ensure!(in_time, "the daemon did not end in time, and was killed");
        Ok(())
    }

    /// Kills it.
    ///
    /// # Errors
    /// The operating system refused.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        children::end(&mut self.child, PATIENCE);
    }
}
