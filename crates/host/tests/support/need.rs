// SPDX-License-Identifier: Apache-2.0
//! What tests need from the machine, for tests of several crates. They skip themselves without it,
//! unless `AGEWISE_REQUIRE` names it: a list of `pagewalk`, `pagecache`, `faults`, `zram`, `fuse`
//! and `memcg`, for machines that are known to have them.

#![allow(dead_code, reason = "each test program uses its part of it")]

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use agewise_host::access::AccessError;
use agewise_host::cgroup::{Hierarchy, OwnCgroup};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::swap::{ZramDevice, ZramError, ZramOptions};

/// Why a test cannot run here; panics if the machine is required to have what is missing.
pub fn lacks(need: &str, why: impl Display) -> String {
    let required = std::env::var("AGEWISE_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|name| name == need);
    assert!(!is_required, "AGEWISE_REQUIRE names {need}: {why}");
    why.to_string()
}

/// Returns the source, or prints why there is none here.
pub fn opened<T>(need: &str, test: &str, source: Result<T, AccessError>) -> Option<T> {
    match source {
        Ok(source) => Some(source),
        Err(error @ (AccessError::NoPrivilege { .. } | AccessError::Unsupported { .. })) => {
            println!("SKIPPED {test}: {}", lacks(need, error));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A swap device of the test's own, or why there is none.
pub fn zram(bytes: u64) -> Result<ZramDevice, String> {
    ZramDevice::create(&ZramOptions::new(bytes)).map_err(|error| {
        // A container may show the files, but not let them be written.
        let is_lacking = match &error {
            ZramError::NotSupported { .. } | ZramError::Denied { .. } => true,
            ZramError::File(file) => file.is_denied() || file.raw_os_error() == Some(libc::EROFS),
            ZramError::System { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        };
        assert!(is_lacking, "{error}");
        lacks("zram", error)
    })
}

/// A memory cgroup of the test's own, removed on drop, or why there is none.
pub fn memcg(name: &str) -> Result<OwnCgroup, String> {
    let name = format!("agewise-test-{}-{name}", std::process::id());
    let made = Hierarchy::discover(&ProcRoot::default())
        .and_then(|hierarchy| OwnCgroup::make(&hierarchy, Path::new("/"), &name));
    made.map_err(|error| lacks("memcg", error))
}

/// Whether the process gets CPU time, for which it may have to wait on a busy machine.
pub fn runs(pid: u32) -> bool {
    let cpu_ns = || Process::open(pid).unwrap().stat().unwrap().cpu_ns();
    let (before, began) = (cpu_ns(), Instant::now());
    while began.elapsed() < Duration::from_millis(700) {
        std::thread::sleep(Duration::from_millis(20));
        if cpu_ns() > before {
            return true;
        }
    }
    false
}

pub fn runs_again(pid: u32) -> bool {
    (0..20).any(|_| runs(pid))
}
