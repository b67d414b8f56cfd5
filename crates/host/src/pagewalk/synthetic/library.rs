// SPDX-License-Identifier: Apache-2.0
//! The walk of `bpf/walk.h`, compiled for user space.

use std::ffi::{CString, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use crate::pagewalk::layout::{Ctl, Entry, Range, Table};

/// `struct machine` of walk_test.c.
#[repr(C)]
pub(super) struct Machine {
    pub memory: *mut u8,
    pub bytes: u64,
    pub ctl: *mut Ctl,
    pub ranges: *const Range,
    pub entries: *mut Entry,
    pub n_entries: u32,
    pub tables: *mut Table,
    pub n_tables: u32,
    pub race_at: u32,
    pub race_times: u32,
    pub race_address: u64,
    pub race_value: u64,
    pub table_reads: u32,
}

pub(super) struct Library {
    pub walk: extern "C" fn(*mut Machine, u64),
    pub layout: extern "C" fn(u32) -> u64,
    pub is_wanted: extern "C" fn(u64, u64) -> i32,
}

/// One walk at a time: the C code has globals.
pub(super) static TURN: Mutex<()> = Mutex::new(());

/// Compiles and loads the test build of the walk. A C compiler is available, since libbpf was
/// built.
pub(super) fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf/walk_test.c");
        let dir = tempfile::tempdir().unwrap();
        let built = dir.path().join("walk.so");
        let compiler = std::env::var_os("CC").unwrap_or("cc".into());
        let status = Command::new(compiler)
            .args([
                "-shared",
                "-fPIC",
                "-O1",
                "-Wall",
                "-Werror",
                "-Wno-unused-parameter",
                "-o",
            ])
            .args([&built, &source])
            .status()
            .expect("a C compiler, as for libbpf");
        assert!(status.success());
        let path = CString::new(built.to_str().unwrap()).unwrap();
        // SAFETY: our own library, which stays loaded; the symbols have these types.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let symbol = |name: &str| {
                let at = libc::dlsym(handle, CString::new(name).unwrap().as_ptr());
                assert!(!at.is_null(), "{name}");
                at
            };
            Library {
                walk: std::mem::transmute::<*mut c_void, extern "C" fn(*mut Machine, u64)>(symbol(
                    "synthetic_walk",
                )),
                layout: std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> u64>(symbol(
                    "synthetic_layout",
                )),
                is_wanted: std::mem::transmute::<*mut c_void, extern "C" fn(u64, u64) -> i32>(
                    symbol("synthetic_is_wanted"),
                ),
            }
        }
    })
}
