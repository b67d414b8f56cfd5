// SPDX-License-Identifier: Apache-2.0
//! A parallel compile of C files made for it: many short processes, as a build has them.

use std::fmt::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agewise_host::cgroup::Cgroup;
use anyhow::{Context, ensure};
use tempfile::TempDir;

use super::group;

/// Compilers at a time, in a run of so many files.
pub const JOBS: usize = 2;

/// How soon a compiler ends once it is to.
const STOP_EVERY: Duration = Duration::from_millis(100);

/// C files made for it, in a directory of their own.
pub struct Files {
    directory: TempDir,
    count: usize,
}

impl Files {
    /// Writes so many.
    pub fn make(count: usize) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        for file in 0..count {
            let path = directory.path().join(format!("{file}.c"));
            std::fs::write(path, source(file))?;
        }
        Ok(Files { directory, count })
    }

    /// Compiles them in turn in the cgroup, `jobs` at a time, until `done` has counted `until`.
    ///
    /// # Errors
    /// Stopped, which kills the compilers, or one of them failed.
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

    /// The shell joins the cgroup before it becomes the compiler, so that all is charged there.
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

/// Some hundred functions of loops and branches.
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
