// SPDX-License-Identifier: Apache-2.0
//! A thread that makes system calls for another one, which waits as long as they go on.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use crate::clock;
use crate::error;
use crate::root::ProcRoot;

/// A call that goes on may sleep for so many times the patience in all: who takes the lock again
/// and again, each time for less than the patience, makes every part of a list wait for it.
const SLEEPS: u32 = 4;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// A thread that makes calls. It ends when nobody holds this any more.
pub(super) struct Thread {
    jobs: Sender<Job>,
    /// The CPU time in ns that a job took, once it is done.
    done: Receiver<u64>,
    /// What the kernel says about it.
    task: PathBuf,
}

impl Thread {
    pub fn start() -> io::Result<Self> {
        let (jobs, asked) = channel::<Job>();
        let (say, done) = channel();
        let (tell, told) = channel();
        std::thread::Builder::new()
            .name("agewise-calls".to_owned())
            .stack_size(64 << 10)
            .spawn(move || {
                let _ = tell.send(rustix::thread::gettid());
                let mut counted_ns = 0;
                for job in asked {
                    job();
                    let used_ns = clock::thread_cpu_ns();
                    if say.send(used_ns.saturating_sub(counted_ns)).is_err() {
                        return;
                    }
                    counted_ns = used_ns;
                }
            })?;
        let tid = told.recv().map_err(io::Error::other)?;
        let task = format!("self/task/{}", tid.as_raw_nonzero());
        Ok(Thread {
            jobs,
            done,
            task: ProcRoot::default().join(task),
        })
    }

    /// Makes it run a job and waits for that. Returns the CPU time in ns that it took.
    pub fn run(&self, job: Job, patience: Duration) -> Result<u64, RecvTimeoutError> {
        // If it has ended, so has the wait for it.
        let _ = self.jobs.send(job);
        self.wait(patience)
    }

    /// Whether it has done, or has ended, what it was left behind with.
    pub fn is_back(&self) -> bool {
        self.done.try_recv() != Err(TryRecvError::Empty)
    }

    /// Waits until the job is done, has neither used nor waited for a CPU for half of `patience`,
    /// or has slept too long in all: paging out to a slow device takes long but goes on.
    fn wait(&self, patience: Duration) -> Result<u64, RecvTimeoutError> {
        let mut first = None;
        let mut before = None;
        loop {
            match self.done.recv_timeout(patience / 2) {
                Err(RecvTimeoutError::Timeout) => {
                    let wanted = self.wanted();
                    // In all, not since the last time: a wait for a CPU counts once it is over.
                    let (since, at_first) = *first.get_or_insert((Instant::now(), wanted));
                    let worked = wanted.saturating_sub(at_first);
                    let slept = since.elapsed().saturating_sub(worked);
                    let has_stopped = before.replace(wanted) == Some(wanted);
                    if (has_stopped || slept >= patience * SLEEPS) && !self.is_runnable() {
                        return Err(RecvTimeoutError::Timeout);
                    }
                }
                done => return done,
            }
        }
    }

    /// How long it has been on a CPU, or waited for one before. Always 0 where the kernel does not
    /// say.
    fn wanted(&self) -> Duration {
        let usage = error::read(&self.task.join("schedstat")).unwrap_or_default();
        let times = usage.split_whitespace().take(2);
        Duration::from_nanos(times.filter_map(|ns| ns.parse::<u64>().ok()).sum())
    }

    /// Whether it is on a CPU or waits for one, which on a busy machine may take long.
    fn is_runnable(&self) -> bool {
        let stat = error::read(&self.task.join("stat")).unwrap_or_default();
        stat.contains(") R ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel counts a wait for a CPU only once it is over.
    #[test]
    fn a_thread_that_waits_for_a_cpu_does_not_hang() {
        let top = tempfile::tempdir().unwrap();
        let patience = Duration::from_millis(10);
        let waits = |state: &str| {
            let stat = format!("7 (agewise-calls) {state} 1 7 7 0\n");
            std::fs::write(top.path().join("stat"), stat).unwrap();
            std::fs::write(top.path().join("schedstat"), "500 0 1\n").unwrap();
            let (say, done) = channel();
            let thread = Thread {
                jobs: channel().0,
                done,
                task: top.path().to_owned(),
            };
            std::thread::scope(|scope| {
                let waiting = scope.spawn(move || thread.wait(patience));
                std::thread::sleep(patience * SLEEPS * 4);
                // It may have given up.
                let _ = say.send(7);
                waiting.join().unwrap()
            })
        };
        assert_eq!(waits("R"), Ok(7));
        assert_eq!(waits("D"), Err(RecvTimeoutError::Timeout));
    }
}
