// SPDX-License-Identifier: Apache-2.0
//! A daemon of our own, as measurements need one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agewise_host::process::Process;
use anyhow::{Context, bail, ensure};

use agewise_cli::children;
use agewise_cli::signal::Stop;

/// How long it may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Name of its configuration.
pub const CONFIG: &str = "agewise.toml";
/// Name of its socket.
pub const SOCKET: &str = "socket";

/// `program` in a session of its own: cgroups that hold processes of the session of whoever limits
/// are left alone. `setsid` of util-linux executes it in place of itself.
pub fn apart(program: &Path) -> Command {
    let mut command = Command::new("setsid");
    command.arg(program);
    command
}

/// A daemon; ended when dropped, killed if it does not end.
#[derive(Debug)]
pub struct Service {
    child: Child,
    directory: PathBuf,
}

impl Service {
    /// Starts one that is configured by [`CONFIG`] in `directory`. Its own words go to the journal.
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

    /// Its latest snapshot; `None` before the first, and where it does not listen at [`SOCKET`].
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

    /// Waits for a look at all of it.
    ///
    /// # Errors
    /// It has ended, or takes too long, or a signal came.
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

    /// Makes sure that it has not ended: what it took would be nothing.
    ///
    /// # Errors
    /// It has.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the daemon has ended: {status}"),
            None => Ok(()),
        }
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process.
    ///
    /// # Errors
    /// It has ended.
    pub fn process(&self) -> anyhow::Result<Process> {
        Ok(Process::open(self.child.id())?)
    }

    /// Asks it to end, and waits for that.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn end(&mut self) -> anyhow::Result<()> {
        let in_time = children::end(&mut self.child, PATIENCE);
        ensure!(in_time, "the daemon did not end in time, and was killed");
        Ok(())
    }

    /// Kills it.
    ///
    /// # Errors
    /// The system refused.
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
