// SPDX-License-Identifier: Apache-2.0
//! Which thread does the work of a process, and on which CPU.

use std::collections::BTreeMap;

use super::{Process, ProcessError, Stat};

/// A process with more threads is not asked: it runs on several CPUs, and asking costs 5 us each.
const THREADS_MAX: usize = 64;
/// Less CPU time than this between two looks, in clock ticks, is no work.
const TICKS_MIN: u64 = 2;

/// Follows the threads of one process.
#[derive(Clone, Debug, Default)]
pub struct Worker {
    /// CPU time of each thread at the last look, in clock ticks.
    ticks: BTreeMap<u32, u64>,
    thread: Option<u32>,
}

impl Worker {
    /// Looks which thread took at least three quarters of the CPU time since the last look; the first
    /// one counts from when the process began. Without such a thread, with more threads than can be
    /// asked, and where next to nothing ran, there is none.
    ///
    /// # Errors
    /// The process is gone or may not be looked at.
    pub fn look(&mut self, process: &Process) -> Result<(), ProcessError> {
        self.thread = None;
        let threads = process.threads()?;
        if threads.len() > THREADS_MAX {
            self.ticks.clear();
            return Ok(());
        }
        let mut ticks = BTreeMap::new();
        let (mut sum, mut most) = (0, (0, None));
        for thread in threads {
            // One that has just ended did the work before.
            let Ok(stat) = thread_stat(process, thread) else {
                continue;
            };
            let now = stat.user_ticks.saturating_add(stat.system_ticks);
            let before = self.ticks.get(&thread).copied().unwrap_or(0);
            let ran = now.saturating_sub(before);
            sum += ran;
            most = most.max((ran, Some(thread)));
            ticks.insert(thread, now);
        }
        self.ticks = ticks;
        if sum >= TICKS_MIN && most.0 >= sum - sum / 4 {
            self.thread = most.1;
        }
        Ok(())
    }

    /// The CPU on which that thread runs, or ran last. None for a real-time thread: beside it nobody
    /// else gets to run.
    pub fn cpu(&self, process: &Process) -> Option<usize> {
        let stat = thread_stat(process, self.thread?).ok()?;
        let cpu = stat.cpu.filter(|_| !stat.is_realtime)?;
        usize::try_from(cpu).ok()
    }
}

fn thread_stat(process: &Process, thread: u32) -> Result<Stat, ProcessError> {
    process.stat_at(&process.own_path(&format!("task/{thread}/stat")))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::root::ProcRoot;

    fn write(dir: &Path, thread: u32, ticks: u64, cpu: u32) {
        write_as(dir, thread, ticks, cpu, 0);
    }

    fn write_as(dir: &Path, thread: u32, ticks: u64, cpu: u32, policy: u32) {
        let zeros = "0 ".repeat(16);
        let line = format!(
            "{thread} (work er) R 1 7 7 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 3 0 99 {zeros}{cpu} 0 {policy} 0\n"
        );
        let task = dir.join(format!("5/task/{thread}"));
        fs::create_dir_all(&task).unwrap();
        fs::write(task.join("stat"), &line).unwrap();
        if thread == 5 {
            fs::write(dir.join("5/stat"), line).unwrap();
        }
    }

    fn found(worker: &mut Worker, process: &Process) -> Option<usize> {
        worker.look(process).unwrap();
        worker.cpu(process)
    }

    #[test]
    fn the_thread_that_did_most_since_the_last_look_is_it() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 5, 10, 1);
        write(dir.path(), 6, 90, 3);
        let process = Process::open_in(&ProcRoot::new(dir.path()), 5).unwrap();
        let mut worker = Worker::default();
        assert_eq!(found(&mut worker, &process), Some(3));
        // It moves.
        write(dir.path(), 6, 95, 0);
        assert_eq!(worker.cpu(&process), Some(0));
        // It is made to run before all others.
        write_as(dir.path(), 6, 95, 0, 1);
        assert_eq!(worker.cpu(&process), None);
        write(dir.path(), 6, 95, 0);
        // The other one takes over.
        write(dir.path(), 5, 60, 1);
        assert_eq!(found(&mut worker, &process), Some(1));
        // Both run.
        write(dir.path(), 5, 90, 1);
        write(dir.path(), 6, 110, 0);
        assert_eq!(found(&mut worker, &process), None);
        // Next to nothing runs.
        write(dir.path(), 5, 91, 1);
        assert_eq!(found(&mut worker, &process), None);
    }

    #[test]
    fn a_crowd_is_not_asked() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 5, 100, 1);
        let process = Process::open_in(&ProcRoot::new(dir.path()), 5).unwrap();
        let mut worker = Worker::default();
        assert_eq!(found(&mut worker, &process), Some(1));
        for thread in 6..=5 + THREADS_MAX as u32 {
            write(dir.path(), thread, 0, 0);
        }
        write(dir.path(), 5, 200, 1);
        assert_eq!(found(&mut worker, &process), None);
    }

    #[test]
    fn a_real_process_that_spins_has_one() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let process = Process::open(child.id()).unwrap();
        let mut worker = Worker::default();
        let cpu = loop {
            std::thread::sleep(std::time::Duration::from_millis(50));
            if let Some(cpu) = found(&mut worker, &process) {
                break cpu;
            }
        };
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed());
        let allowed = rustix::thread::sched_getaffinity(pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(allowed.is_set(cpu), "{cpu}");
        assert!(worker.look(&process).is_err());
    }
}
