// SPDX-License-Identifier: Apache-2.0
//! Injects faults around a daemon, one at a time.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agewise_cli::output;
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use super::super::super::service::{CONFIG, SOCKET};

/// Hanging clients at a time.
const CLIENTS: usize = 30;
/// Short-lived programs, and readers of a file, at a time.
const PROGRAMS: usize = 20;
/// Short-lived cgroups at a time.
const CGROUPS: usize = 100;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    DiskFull,
    ConfigurationBroken,
    Stopped,
    ClientsHang,
    ReadersHang,
    ServersKilled,
    CgroupsCome,
    ProgramsCome,
}

const ALL: [Fault; 8] = [
    Fault::DiskFull,
    Fault::ConfigurationBroken,
    Fault::Stopped,
    Fault::ClientsHang,
    Fault::ReadersHang,
    Fault::ServersKilled,
    Fault::CgroupsCome,
    Fault::ProgramsCome,
];

/// Number of kinds.
pub const KINDS: usize = ALL.len();

/// Ends a fault.
type Mend = Box<dyn FnOnce() -> anyhow::Result<()>>;

/// Where faults are injected.
#[derive(Clone, Debug)]
pub struct Place {
    /// Pid of the daemon.
    pub pid: u32,
    /// The daemon's directory, with configuration, socket and files.
    pub directory: PathBuf,
    /// The small disk with its journal and ledger.
    pub disk: PathBuf,
    /// A cgroup that it follows with all descendants.
    pub top: PathBuf,
}

/// Injects one fault after another; each lasts half of the time until the next.
pub struct Faults {
    place: Place,
    every: Duration,
    due: Instant,
    mend: Option<(Instant, Mend)>,
    /// Number of faults so far.
    pub count: usize,
}

impl Faults {
    /// Creates the sequence; the first fault comes after one period.
    pub fn new(place: Place, every: Duration) -> Self {
        Faults {
            place,
            every,
            due: Instant::now() + every,
            mend: None,
            count: 0,
        }
    }

    /// Starts the next fault or ends the current one if due.
    ///
    /// # Errors
    /// A fault could not be injected or undone.
    pub fn turn(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.mend.as_ref().is_some_and(|(at, _)| *at <= now) {
            self.mend()?;
        }
        if self.mend.is_none() && self.due <= now {
            let fault = ALL[self.count % KINDS];
            let mend = begin(fault, &self.place).with_context(|| format!("fault {fault:?}"))?;
            self.mend = Some((now + self.every / 2, mend));
            self.due = now + self.every;
            self.count += 1;
        }
        Ok(())
    }

    /// Ends the current fault, if any.
    ///
    /// # Errors
    /// The fault could not be undone.
    pub fn mend(&mut self) -> anyhow::Result<()> {
        match self.mend.take() {
            Some((_, mend)) => mend(),
            None => Ok(()),
        }
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        if let Err(error) = self.mend() {
            agewise_cli::note!("a fault is left: {}", output::chain(&error));
        }
    }
}

fn begin(fault: Fault, place: &Place) -> anyhow::Result<Mend> {
    let place = place.clone();
    match fault {
        Fault::DiskFull => {
            let ballast = place.disk.join("ballast");
            fill(&ballast)?;
            Ok(Box::new(move || Ok(fs::remove_file(ballast)?)))
        }
        Fault::ConfigurationBroken => {
            let path = place.directory.join(CONFIG);
            let good = fs::read(&path)?;
            fs::write(&path, "oops = [")?;
            signal(place.pid, Signal::HUP)?;
            Ok(Box::new(move || {
                fs::write(&path, good)?;
                signal(place.pid, Signal::HUP)
            }))
        }
        Fault::Stopped => {
            signal(place.pid, Signal::STOP)?;
            Ok(Box::new(move || signal(place.pid, Signal::CONT)))
        }
        Fault::ClientsHang => {
            let clients = hang(&place.directory.join(SOCKET))?;
            Ok(Box::new(move || {
                drop(clients);
                Ok(())
            }))
        }
        Fault::ReadersHang => {
            let file = "files/node0/workingset_report/page_age";
            let path = place.directory.join(file);
            let mut readers = Vec::new();
            for _ in 0..PROGRAMS {
                let mut command = Command::new("cat");
                command
                    .arg(&path)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
                readers.push(command.spawn().context("cat")?);
            }
            Ok(Box::new(move || end(readers)))
        }
        Fault::ServersKilled => {
            for server in servers_of(place.pid) {
                // It may have ended by itself.
                let _ = signal(server, Signal::KILL);
            }
            Ok(Box::new(|| Ok(())))
        }
        Fault::CgroupsCome => {
            let dirs: Vec<PathBuf> = (0..CGROUPS)
                .map(|number| place.top.join(format!("burst-{number}")))
                .collect();
            for dir in &dirs {
                fs::create_dir(dir)?;
            }
            Ok(Box::new(move || {
                dirs.iter().try_for_each(|dir| Ok(fs::remove_dir(dir)?))
            }))
        }
        Fault::ProgramsCome => programs(&place.top),
    }
}

/// Starts programs that enter a cgroup, fork, execute another program, and end.
fn programs(top: &Path) -> anyhow::Result<Mend> {
    let dir = top.join("programs");
    fs::create_dir(&dir)?;
    let script = "echo 0 > \"$1/cgroup.procs\"; (sleep 0.3 & sleep 0.1); exec sleep 0.5";
    let mut children = Vec::new();
    for _ in 0..PROGRAMS {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(&dir);
        children.push(command.spawn().context("sh")?);
    }
    Ok(Box::new(move || {
        end(children)?;
        // Orphaned children end within a moment.
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match fs::remove_dir(&dir) {
                Err(error)
                    if error.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                done => return Ok(done?),
            }
        }
    }))
}

fn end(children: Vec<Child>) -> anyhow::Result<()> {
    for mut child in children {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

/// Writes until the disk is full.
fn fill(path: &Path) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    let block = vec![0; 1 << 20];
    for size in [block.len(), 1] {
        loop {
            match file.write_all(&block[..size]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Connects clients: half of them never finish their request, the others never read the answer.
fn hang(socket: &Path) -> anyhow::Result<Vec<UnixStream>> {
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let mut client = UnixStream::connect(socket)?;
        client.set_write_timeout(Some(Duration::from_secs(1)))?;
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let length = if number % 2 == 0 { 20 } else { request.len() };
        // A client that is disconnected at once does not hang, which is fine.
        let _ = client.write_all(&request.as_bytes()[..length]);
        clients.push(client);
    }
    Ok(clients)
}

fn signal(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("no pid")?;
    Ok(kill_process(pid, signal)?)
}

/// The serving processes of a daemon.
pub fn servers_of(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let pids = children.unwrap_or_default();
    pids.split_ascii_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
