// SPDX-License-Identifier: Apache-2.0
//! A process to look at, for tests.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use crate::access::TABLE_BYTES;

/// A process that does nothing.
pub(crate) struct Sleeper(Child);

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self::by(&mut Command::new("sleep"))
    }

    pub(crate) fn by(sleep: &mut Command) -> Self {
        let sleeper = Sleeper(sleep.arg("60").spawn().expect("sleep starts"));
        // `spawn` may return while the kernel has not yet replaced our memory, which is shared
        // until then (`exec_mmap` completes a vfork first), or not yet placed the stack.
        for _ in 0..20_000 {
            if sleeper.exe() != std::env::current_exe().ok() && sleeper.stack().is_some() {
                return sleeper;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("sleep does not run");
    }

    fn exe(&self) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/exe", self.pid())).ok()
    }

    /// Where its stack begins; `None` before it has one.
    fn stack(&self) -> Option<u64> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let line = maps.lines().find(|line| line.ends_with("[stack]"))?;
        Some(u64::from_str_radix(line.split('-').next()?, 16).unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The table in which its stack begins: every process has a stack.
    pub(crate) fn table(&self) -> u64 {
        self.stack().expect("a stack") / TABLE_BYTES * TABLE_BYTES
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
