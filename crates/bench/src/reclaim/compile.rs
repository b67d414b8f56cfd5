// SPDX-License-Identifier: Apache-2.0
//! A parallel compile of generated C files: many short-lived processes, as in a build.

use std::fmt::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agewise_host::cgroup::Cgroup;
use anyhow::{Context, ensure};
use tempfile::TempDir;

use super::group;

/// Parallel compilers in a run over a given number of files.
pub const JOBS: usize = 2;

/// How often to check whether a compiler must be stopped.
const STOP_EVERY: Duration = Duration::from_millis(100);

/// Generated C files in a directory of their own.
pub struct Files {
    directory: TempDir,
    count: usize,
}

impl Files {
    /// Writes `count` files.
    pub fn make(count: usize) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        for file in 0..count {
            let path = directory.path().join(format!("{file}.c"));
            std::fs::write(path, source(file))?;
        }
        Ok(Files { directory, count })
    }

    /// Compiles the files cyclically in the cgroup, `jobs` at a time, until `done` reaches `until`.
    ///
    /// # Errors
    /// Stopped (the compilers are killed), or a compiler failed.
    pub fn compile(
        &self,
        cgroup: &Cgroup,
        jobs: usize,
        until: u64,
        done: &AtomicU64,
        is_stopped: impl Fn() -> bool + Sync,
    ) -> anyhow::Result<()> {
        let next = AtomicU64::new(0);
        let work = || {
            while let file = next.fetch_add(1, Ordering::Relaxed)
                && file < until
            {
                ensure!(!is_stopped(), "interrupted");
                let status = self.compiler(cgroup, file).status();
                let status = status.context("sh does not start")?;
                ensure!(!is_stopped(), "interrupted");
                ensure!(status.success(), "cc failed on a file made for it");
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
            while workers.iter().any(|worker| !worker.is_finished()) {
                if is_stopped() {
                    group::kill(cgroup);
                }
                std::thread::sleep(STOP_EVERY);
            }
            for worker in workers {
                worker.join().expect("a worker does not panic")?;
            }
            Ok(())
        })
    }

    /// The shell enters the cgroup before it executes the compiler, so that all memory is charged
    /// there.
    fn compiler(&self, cgroup: &Cgroup, file: u64) -> Command {
        let file = file % self.count as u64;
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "echo $$ > \"$0\" && exec cc -O2 -c \"$1\" -o \"$1.o\"",
            ])
            .arg(cgroup.dir().join("cgroup.procs"))
            .arg(self.directory.path().join(format!("{file}.c")))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

/// Generates some hundred functions with loops and branches.
fn source(file: usize) -> String {
    let mut text = String::new();
    for function in 0..400 {
        let k = file * 400 + function;
        let _ = writeln!(
            text,
            "int f{k}(int *a, int n) {{ int s = {k}; for (int i = 0; i < n; i++) {{ \
             if (a[i] % {} == {}) s += a[i] * {}; else s ^= a[n - i - 1] + {}; \
             switch (s & 7) {{ case 0: s += i; break; case 3: s -= {k}; break; \
             case 5: a[i] = s; break; default: s = s * 31 + i; }} }} return s; }}",
            k % 17 + 2,
            k % 3,
            k % 29,
            k % 101
        );
    }
    text
}
