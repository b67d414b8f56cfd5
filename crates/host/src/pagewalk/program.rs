// SPDX-License-Identifier: Apache-2.0
//! The loaded BPF object: its maps as memory, and how to run it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use libbpf_rs::{Object, ObjectBuilder, libbpf_sys};

use super::layout::{Ctl, Entry, MAX_RANGES, RC_NO_TASK, Range, Table};
use crate::access::AccessError;
use crate::bpf::{self, Mapping, run_syscall};

/// The compiled walker: `make bpf` builds it; `make bpf-check` verifies that it matches its source.
static OBJECT: &[u8] = include_bytes!("../../bpf/pagewalk.bpf.o");

/// Which of the two entry points is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Flavour {
    /// A syscall program (Linux 6.10 and later: task kfuncs).
    Syscall,
    /// A task iterator (Linux 5.17 and later: `bpf_loop`).
    Iterator,
}

/// How much one call reads. Takes 4 KiB of memory per table and 24 bytes per entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Most last-level tables.
    pub tables: u32,
    /// Most tables, leaves and unreadable places together.
    pub entries: u32,
}

impl Default for Capacity {
    /// 64 MiB of base pages per call. Accesses between the read of a table and its clear are lost,
    /// and if the observer is preempted in between, that time is long: so one call reads little. A
    /// call costs about 6 us, 0.1 ms/GiB.
    fn default() -> Self {
        Capacity {
            tables: 32,
            entries: 256,
        }
    }
}

/// A loaded walker.
pub(super) struct Program {
    // Field order: the mappings are dropped before the object that owns the maps.
    ctl: Mapping<Ctl>,
    ranges: Mapping<Range>,
    entries: Mapping<Entry>,
    tables: Mapping<Table>,
    walk: Entrance,
    search: Entrance,
    flavour: Flavour,
    /// Owns the programs and maps.
    _object: Object,
}

enum Entrance {
    Syscall(RawFd),
    Iterator(RawFd),
}

impl Program {
    /// Loads the requested flavour, or the first one this kernel accepts.
    pub fn load(flavour: Option<Flavour>, capacity: Capacity) -> Result<Self, AccessError> {
        let mut refusals = Vec::new();
        for candidate in [Flavour::Syscall, Flavour::Iterator] {
            if flavour.is_some_and(|asked| asked != candidate) {
                continue;
            }
            match bpf::collected(|| Self::load_flavour(candidate, capacity)) {
                (Ok(program), _) => return Ok(program),
                (Err(error), said) => refusals.push((candidate, error, said)),
            }
        }
        let denied = refusals
            .iter()
            .any(|(_, error, _)| error.kind() == libbpf_rs::ErrorKind::PermissionDenied);
        if denied {
            return Err(bpf::denied("the BPF page-table walker"));
        }
        let why: Vec<String> = refusals
            .iter()
            .map(|(flavour, error, said)| format!("{flavour:?}: {error:#} ({said})"))
            .collect();
        Err(AccessError::Unsupported {
            what: "the BPF page-table walker",
            why: why.join("; "),
        })
    }

    fn load_flavour(flavour: Flavour, capacity: Capacity) -> libbpf_rs::Result<Self> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        let suffix = match flavour {
            Flavour::Syscall => "_syscall",
            Flavour::Iterator => "_iter",
        };
        for mut program in open.progs_mut() {
            let wanted = program.name().to_string_lossy().ends_with(suffix);
            program.set_autoload(wanted);
        }
        for mut map in open.maps_mut() {
            match map.name().to_str() {
                Some("tables") => map.set_max_entries(capacity.tables.max(1))?,
                Some("entries") => map.set_max_entries(capacity.entries.max(1))?,
                _ => {}
            }
        }
        let object = open.load()?;
        let entrance = |name: &str| -> libbpf_rs::Result<Entrance> {
            let program = object
                .progs()
                .find(|program| program.name().to_str() == Some(&format!("{name}{suffix}")))
                .ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))?;
            let fd = program.as_fd().as_raw_fd();
            Ok(match flavour {
                Flavour::Syscall => Entrance::Syscall(fd),
                Flavour::Iterator => Entrance::Iterator(fd),
            })
        };
        let walk = entrance("walk")?;
        let search = entrance("search")?;
        Ok(Program {
            ctl: Mapping::of(&object, ".data.ctl", 1)?,
            ranges: Mapping::of(&object, "ranges", MAX_RANGES)?,
            entries: Mapping::of(&object, "entries", capacity.entries.max(1) as usize)?,
            tables: Mapping::of(&object, "tables", capacity.tables.max(1) as usize)?,
            walk,
            search,
            flavour,
            _object: object,
        })
    }

    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Sets the ranges of the walk; at most [`MAX_RANGES`].
    pub fn set_ranges(&mut self, ranges: &[Range]) {
        for (slot, range) in ranges.iter().take(MAX_RANGES).enumerate() {
            self.ranges.write(slot, *range);
        }
    }

    /// Runs the walk with `ctl`, and returns the control block afterwards.
    pub fn walk(&mut self, ctl: Ctl) -> Result<Ctl, AccessError> {
        self.ctl.write(
            0,
            Ctl {
                rc: RC_NO_TASK,
                ..ctl
            },
        );
        self.walk
            .run(ctl.tid)
            .map_err(|error| AccessError::io("bpf(2), page-table walk", error))?;
        Ok(self.ctl.read(0))
    }

    /// Runs the search for the direct map.
    pub fn search(&mut self, ctl: Ctl) -> Result<Ctl, AccessError> {
        self.ctl.write(
            0,
            Ctl {
                rc: RC_NO_TASK,
                ..ctl
            },
        );
        self.search
            .run(ctl.tid)
            .map_err(|error| AccessError::io("bpf(2), direct map", error))?;
        Ok(self.ctl.read(0))
    }

    /// The first `count` findings of the last walk.
    pub fn entries(&self, count: u32) -> &[Entry] {
        self.entries.slice(count as usize)
    }

    /// A table copied by the last walk.
    pub fn table(&self, slot: u32) -> &Table {
        self.tables.get(slot as usize)
    }
}

impl Entrance {
    fn run(&self, tid: u32) -> io::Result<()> {
        match *self {
            Entrance::Syscall(fd) => run_syscall(fd),
            Entrance::Iterator(fd) => run_iterator(fd, tid),
        }
    }
}

fn run_iterator(fd: RawFd, tid: u32) -> io::Result<()> {
    // Kernels before 6.1 cannot restrict the iteration to one task; the program checks the id
    // anyway.
    let link = iterator_link(fd, Some(tid)).or_else(|_| iterator_link(fd, None))?;
    // SAFETY: `link` is an iterator link we own.
    let iterator = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
    if iterator < 0 {
        return Err(io::Error::from_raw_os_error(-iterator));
    }
    // SAFETY: a new descriptor that nobody else owns.
    let iterator = unsafe { OwnedFd::from_raw_fd(iterator) };
    // The program prints nothing; reading runs it. EAGAIN means too many tasks for one read.
    let mut sink = [0u8; 64];
    loop {
        match rustix::io::read(&iterator, &mut sink) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn iterator_link(fd: RawFd, tid: Option<u32>) -> io::Result<OwnedFd> {
    let mut info = libbpf_sys::bpf_iter_link_info::default();
    info.task.tid = tid.unwrap_or(0);
    let mut opts = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        ..Default::default()
    };
    if tid.is_some() {
        opts.iter_info = &mut info;
        opts.iter_info_len = size_of_val(&info) as u32;
    }
    // SAFETY: `fd` is a program of an object we own; `opts` and `info` outlive the call.
    let link = unsafe { libbpf_sys::bpf_link_create(fd, 0, libbpf_sys::BPF_TRACE_ITER, &opts) };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}
