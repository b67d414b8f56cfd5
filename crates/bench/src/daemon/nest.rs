// SPDX-License-Identifier: Apache-2.0
//! Many small processes forked by one parent: thousands can start and end per minute without
//! starting a program each time.

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::super::PAGE_BYTES;
use crate::servant::{self, Servant};

/// The forking parent, as seen by the benchmark. Its processes get a signal from the kernel when it
/// ends.
#[derive(Debug)]
pub struct Nest(Servant);

impl Nest {
    /// Starts the parent.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(program: &Path) -> anyhow::Result<Self> {
        Servant::start(program, "nest", &[]).map(Nest)
    }

    /// Starts a process in the cgroup of this `cgroup.procs`, which maps and touches this much
    /// memory. Returns its pid once it has touched it.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn spawn(&mut self, procs: &Path, mapped: u64, touched: u64) -> anyhow::Result<u32> {
        let order = format!("start {mapped} {touched} {}", procs.display());
        Ok(u32::try_from(self.0.ask(&order)?)?)
    }

    /// Ends a process and waits for it.
    ///
    /// # Errors
    /// The process does not belong to the nest.
    pub fn end(&mut self, pid: u32) -> anyhow::Result<()> {
        self.0.ask(&format!("end {pid}")).map(drop)
    }
}

/// Executes commands from standard input until it ends.
///
/// # Errors
/// Standard input or output failed.
pub fn serve() -> anyhow::Result<ExitCode> {
    servant::serve(|line| obey(line).map(u64::from))
}

fn obey(line: &str) -> anyhow::Result<u32> {
    let mut words = line.splitn(4, ' ');
    let mut word = || words.next().context("a word is missing");
    match word()? {
        "start" => {
            let (mapped, touched) = (word()?.parse()?, word()?.parse()?);
            fork(Path::new(word()?), mapped, touched)
        }
        "end" => {
            let pid: u32 = word()?.parse()?;
            let child = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let child = child.context("no pid")?;
            kill_process(child, Signal::KILL)?;
            waitpid(Some(child), WaitOptions::empty())?;
            Ok(pid)
        }
        other => bail!("no order: {other}"),
    }
}

fn fork(procs: &Path, mapped: u64, touched: u64) -> anyhow::Result<u32> {
    let (mut ready, tell) = std::io::pipe()?;
    // SAFETY: this process is single-threaded, so the child may run any code.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            drop(ready);
            let status = live(procs, mapped, touched, tell);
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(status.is_err())) }
        }
        pid => {
            drop(tell);
            let mut byte = [0];
            if ready.read(&mut byte)? == 0 {
                let child = Pid::from_raw(pid);
                waitpid(child, WaitOptions::empty())?;
                bail!(
                    "a process could not enter {} or map memory",
                    procs.display()
                );
            }
            Ok(u32::try_from(pid)?)
        }
    }
}

/// A process of the nest: enters its cgroup, maps and touches memory, and waits to be ended.
fn live(procs: &Path, mapped: u64, touched: u64, mut tell: impl Write) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    std::fs::write(procs, "0")?;
    let mut memory = memmap2::MmapMut::map_anon(usize::try_from(mapped)?)?;
    // With huge pages more would be resident than is touched.
    memory.advise(memmap2::Advice::NoHugePage)?;
    for at in (0..touched.min(mapped)).step_by(usize::try_from(PAGE_BYTES)?) {
        memory[usize::try_from(at)?] = 1;
    }
    tell.write_all(&[1])?;
    drop(tell);
    loop {
        std::thread::park();
        std::thread::sleep(std::time::Duration::from_secs(3600));
    }
}
