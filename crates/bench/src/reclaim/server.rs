// SPDX-License-Identifier: Apache-2.0
//! A redis server of our own: no network, nothing written to disk.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use super::group::Group;

/// The server; killed when dropped.
pub struct Server {
    child: Child,
    directory: TempDir,
}

impl Server {
    /// Starts it in a cgroup.
    pub fn start(group: &Group) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("redis.sock");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .args(["--loglevel", "warning", "--daemonize", "no", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("redis-server does not start")?;
        let server = Server { child, directory };
        group.take_in(server.pid())?;
        let began = Instant::now();
        while !socket.exists() {
            if began.elapsed() > Duration::from_secs(20) {
                bail!("redis-server made no socket within 20 s");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
