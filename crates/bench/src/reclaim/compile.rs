// SPDX-License-Identifier: Apache-2.0
//! A parallel compile of C files made for it: many short processes, as a build has them.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};

use super::group::Group;
use agewise_cli::signal::Stop;

/// Compilers at a time.
const JOBS: usize = 2;

/// How soon a compiler ends once it is to.
const STOP_EVERY: Duration = Duration::from_millis(100);

/// Compiles `files` files in the cgroup; kills the compilers when interrupted.
pub fn run(group: &Group, files: usize, stop: &Stop) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    for file in 0..files {
        let path = directory.path().join(format!("{file}.c"));
        std::fs::write(path, source(file))?;
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..JOBS)
            .map(|_| scope.spawn(|| work(group, directory.path(), files, &next, stop)))
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            if stop.requested().is_some() {
                group.kill();
            }
            std::thread::sleep(STOP_EVERY);
        }
        for worker in workers {
            worker.join().expect("a worker does not panic")?;
        }
        Ok(())
    })
}

fn work(
    group: &Group,
    directory: &Path,
    files: usize,
    next: &AtomicUsize,
    stop: &Stop,
) -> anyhow::Result<()> {
    loop {
        ensure!(stop.requested().is_none(), "interrupted");
        let file = next.fetch_add(1, Ordering::Relaxed);
        if file >= files {
            return Ok(());
        }
        // The shell joins the cgroup before it becomes the compiler, so that all is charged there.
        let status = Command::new("sh")
            .arg("-c")
            .arg("echo $$ > \"$0\" && exec cc -O2 -c \"$1\" -o \"$1.o\"")
            .arg(group.procs_file())
            .arg(directory.join(format!("{file}.c")))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("sh does not start")?;
        ensure!(stop.requested().is_none(), "interrupted");
        ensure!(status.success(), "cc failed on a file made for it");
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
