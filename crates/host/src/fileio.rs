// SPDX-License-Identifier: Apache-2.0
//! Which file pages processes read and write through file descriptors, in exact order: BPF programs
//! on the tracepoints that all such system calls pass, or on functions.

use std::collections::HashMap;

use libbpf_rs::{Link, Object, ObjectBuilder};

use crate::access::AccessError;
use crate::bpf::{
    self, KernelTypes,
    watched::{Watched, set_ring_bytes},
};
use crate::cgroup::Cgroup;
use crate::pagecache::{Accessed, hooks};

/// `make bpf` builds it; `make bpf-check` verifies that it matches its source.
static OBJECT: &[u8] = include_bytes!("../bpf/fileio.bpf.o");

/// Space for the events between two drains: about 260 000 reads and writes.
const RING_BYTES: u32 = 16 << 20;
/// Bytes in `struct fio_event`.
const EVENT_BYTES: usize = 56;
/// Longest time from one batch of a read to the next. Copying 15 folios of 2 MiB takes 10 ms; the
/// rest is for a slow device. A batch that takes longer counts as a read of its own.
const BATCH_NS: u64 = 1_000_000_000;
/// Most threads whose last read is remembered.
const THREADS_MAX: usize = 1 << 16;

/// Programs on tracepoints of file systems, skipped if the kernel lacks them.
const OF_FILE_SYSTEMS: [(&str, &str); 4] = [
    ("ext4_write", "ext4_write_end"),
    ("ext4_da_write", "ext4_da_write_end"),
    ("ext4_j_write", "ext4_journalled_write_end"),
    ("xfs_write", "xfs_file_buffered_write"),
];

/// How writes are seen on file systems without tracepoints of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherWrites {
    /// At a function that all of them pass.
    ByFunction,
    /// When a folio becomes dirty, where functions cannot be traced.
    ByFolio,
}

impl OtherWrites {
    /// The program that is not needed.
    fn unneeded(self) -> &'static str {
        match self {
            OtherWrites::ByFunction => "dirty",
            OtherWrites::ByFolio => "checked",
        }
    }
}

/// `told` in fileio.bpf.c.
#[derive(Clone, Copy)]
struct Told {
    /// The cgroup whose processes are watched; 0 means the processes in the map.
    cgroup: u64,
    reader: u32,
    exclusive: bool,
    ext4: bool,
    xfs: bool,
}

impl Told {
    fn bytes(self) -> Vec<u8> {
        let halves = [
            self.reader,
            self.exclusive.into(),
            self.ext4.into(),
            self.xfs.into(),
        ];
        let halves = halves.into_iter().flat_map(u32::to_ne_bytes);
        self.cgroup
            .to_ne_bytes()
            .into_iter()
            .chain(halves)
            .collect()
    }
}

/// One read, or one write; on ext4, the part of a write that went into one folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIo {
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Device of the file, `major << 20 | minor`.
    pub device: u32,
    /// Inode number.
    pub inode: u64,
    /// Tells files that reuse the same inode number apart.
    pub generation: u32,
    /// First page.
    pub first: u64,
    /// Last page, not below the first.
    pub last: u64,
    pub write: bool,
}

impl FileIo {
    /// Whether this is the rest of a read: the kernel reports each batch of folios, each time with
    /// all that is left to read. A second read that ends at the same page looks alike, so it has to
    /// come later than a batch takes.
    fn continues(&self, before: &FileIo) -> bool {
        let file = |io: &FileIo| (io.device, io.inode, io.generation);
        let is_soon = self.time_ns.saturating_sub(before.time_ns) < BATCH_NS;
        let is_rest = self.last == before.last && self.first > before.first && is_soon;
        file(self) == file(before) && is_rest && !self.write && !before.write
    }
}

/// BPF programs that report reads and writes. Dropping it detaches them.
pub struct FileIoSource {
    // Field order: the links are dropped first, so that nothing writes to the fields after them.
    _links: Vec<Link>,
    watched: Watched<FileIo>,
    /// The last read of each thread, because a read can be reported more than once.
    reads: Option<HashMap<u32, FileIo>>,
    others: OtherWrites,
    /// The file systems whose own tracepoints are used.
    traced: Vec<&'static str>,
    object: Object,
}

/// Which processes to watch along with a given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The process alone.
    Alone,
    /// The process, all processes it starts from now on, and their children in turn.
    WithChildren,
}

impl FileIoSource {
    /// Loads and attaches the programs. No process is watched yet.
    ///
    /// # Errors
    /// [`AccessError::NoPrivilege`]; [`AccessError::Unsupported`] without BTF.
    pub fn open() -> Result<Self, AccessError> {
        Self::with_ring(RING_BYTES)
    }

    /// Like [`open`](Self::open), for all processes in a memory cgroup or below it, from the moment
    /// they enter to the moment they leave. Other processes and agewise itself are not watched.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of_cgroup(cgroup: &Cgroup) -> Result<Self, AccessError> {
        Self::open_for(cgroup.id(), RING_BYTES)
    }

    /// Like [`open`](Self::open), with a ring of this many bytes (a power of two, in whole pages).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_ring(ring_bytes: u32) -> Result<Self, AccessError> {
        Self::open_for(0, ring_bytes)
    }

    fn open_for(cgroup: u64, ring_bytes: u32) -> Result<Self, AccessError> {
        // Loading it finds out how this kernel counts `last_index`, or says what is missing.
        let exclusive = Accessed::open()?.is_exclusive();
        bpf::load(
            "reads and writes of files",
            "the BPF programs on reads and writes of files",
            || {
                let attach = |others| Self::attach(ring_bytes, (cgroup, exclusive), others);
                attach(OtherWrites::ByFunction).or_else(|_| attach(OtherWrites::ByFolio))
            },
        )
    }

    fn attach(
        ring_bytes: u32,
        (cgroup, exclusive): (u64, bool),
        others: OtherWrites,
    ) -> libbpf_rs::Result<Self> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        let hooks = hooks::of_kernel();
        hooks::select(&mut open, &hooks);
        // A tracepoint fires for each batch of folios, a function is entered once.
        let in_batches = hooks::reads_by_tracepoint(&hooks);
        let kernel = KernelTypes::read();
        let lacks = |name: &str| {
            let mut all = OF_FILE_SYSTEMS.iter();
            all.any(|(program, at)| *program == name && !kernel.have_tracepoint(at))
        };
        for mut program in open.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            if lacks(&name) || name == others.unneeded() {
                program.set_autoload(false);
            }
        }
        let told = Told {
            cgroup,
            reader: std::process::id(),
            exclusive,
            ext4: !["ext4_write", "ext4_da_write", "ext4_j_write"]
                .into_iter()
                .any(lacks),
            xfs: !lacks("xfs_write"),
        };
        set_ring_bytes(&mut open, ring_bytes)?;
        for mut map in open.maps_mut() {
            if map
                .name()
                .to_str()
                .is_some_and(|name| name.ends_with(".rodata"))
                && let Some(bytes) = map.initial_value_mut()
            {
                for (place, byte) in bytes.iter_mut().zip(told.bytes()) {
                    *place = byte;
                }
            }
        }
        let object = open.load()?;
        Ok(FileIoSource {
            _links: hooks::attach(&object)?,
            watched: Watched::of(&object, "reads and writes of files", EVENT_BYTES, event)?,
            reads: in_batches.then(HashMap::new),
            others,
            traced: [(told.ext4, "ext4"), (told.xfs, "xfs")]
                .into_iter()
                .filter_map(|(is_traced, name)| is_traced.then_some(name))
                .collect(),
            object,
        })
    }

    /// What is not reported because the kernel cannot trace functions.
    pub fn unseen(&self) -> Option<String> {
        let what = "overwrites, and all but one page of a first write to a large folio";
        match (self.others, &self.traced[..]) {
            (OtherWrites::ByFunction, _) => None,
            (OtherWrites::ByFolio, []) => Some(what.to_owned()),
            (OtherWrites::ByFolio, traced) => {
                Some(format!("{what} (except on {})", traced.join(" and ")))
            }
        }
    }

    /// Starts watching a process.
    ///
    /// # Errors
    /// Too many processes are watched.
    pub fn watch(&mut self, pid: u32, whose: Whose) -> Result<(), AccessError> {
        let value: u32 = match whose {
            Whose::WithChildren => 1,
            Whose::Alone => 2,
        };
        self.watched.watch(pid, value)
    }

    /// Stops watching a process.
    pub fn forget(&mut self, pid: u32) {
        self.watched.forget(pid);
    }

    /// Whether any watched process is still running.
    pub fn has_watched(&self) -> bool {
        self.watched.has_any()
    }

    /// Returns the reads and writes since the last call, in order.
    ///
    /// # Errors
    /// The ring cannot be read.
    pub fn drain(&mut self) -> Result<Vec<FileIo>, AccessError> {
        let mut events = self.watched.drain()?;
        events.retain(|io| !self.is_rest(io));
        Ok(events)
    }

    /// Whether it continues the last read of its thread.
    fn is_rest(&mut self, io: &FileIo) -> bool {
        let Some(reads) = &mut self.reads else {
            return false;
        };
        if reads.len() >= THREADS_MAX {
            reads.clear();
        }
        let before = reads.insert(io.tid, *io);
        before.is_some_and(|before| io.continues(&before))
    }

    /// Reads and writes lost since it was opened, because the ring was full.
    pub fn dropped(&self) -> u64 {
        self.watched.dropped()
    }

    /// Times a program did not run since then, because it was running on that CPU already: at most
    /// as many reads and writes were lost, fewer if some were of processes that are not watched.
    pub fn missed(&self) -> u64 {
        bpf::recursion_misses(&self.object)
    }
}

/// Parses `struct fio_event` of fileio.bpf.c; `None` if there are too few bytes.
fn event(bytes: &[u8]) -> Option<FileIo> {
    let bytes: &[u8; EVENT_BYTES] = bytes.get(..EVENT_BYTES)?.try_into().ok()?;
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
    let io = FileIo {
        time_ns: word(0),
        inode: word(8),
        first: word(16),
        last: word(24),
        device: half(32),
        pid: half(36),
        tid: half(40),
        write: half(44) != 0,
        generation: half(48),
    };
    (io.first <= io.last).then_some(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io(first: u64, last: u64) -> FileIo {
        FileIo {
            time_ns: 77,
            pid: 42,
            tid: 43,
            device: 254 << 20 | 1,
            inode: 12,
            generation: 5,
            first,
            last,
            write: false,
        }
    }

    #[test]
    fn events_are_as_the_kernel_side_writes_them() {
        let mut bytes = Vec::new();
        for word in [77u64, 12, 3, 9] {
            bytes.extend(word.to_ne_bytes());
        }
        for half in [254u32 << 20 | 1, 42, 43, 0, 5, 0] {
            bytes.extend(half.to_ne_bytes());
        }
        assert_eq!(event(&bytes), Some(io(3, 9)));
        assert_eq!(event(&bytes[..55]), None);
        bytes[16] = 10;
        assert_eq!(event(&bytes), None, "no page at all");
    }

    #[test]
    fn kernels_that_cannot_trace_functions_show_the_first_write_to_a_folio() {
        let attach = |others| FileIoSource::attach(RING_BYTES, (0, false), others);
        let mut source = match attach(OtherWrites::ByFolio) {
            Ok(source) => source,
            Err(error) => return println!("SKIPPED writes by folio: {error}"),
        };
        assert!(source.unseen().unwrap().contains("overwrites"));
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let own = std::process::id();
        source.watch(own, Whose::Alone).unwrap();
        std::fs::write(dir.path().join("file"), [1]).unwrap();
        let writes = source.drain().unwrap();
        let writes = writes.iter().filter(|io| io.write && io.pid == own);
        assert!(writes.count() > 0);
    }

    #[test]
    fn batches_of_one_read_are_one() {
        assert!(io(31, 60).continues(&io(0, 60)));
        assert!(!io(0, 60).continues(&io(0, 60)), "the same again");
        assert!(!io(61, 90).continues(&io(0, 60)), "the next one");
        let later = FileIo {
            time_ns: 77 + 600 * 1_000_000_000,
            ..io(31, 60)
        };
        assert!(!later.continues(&io(0, 60)), "read again, to the same end");
        let write = FileIo {
            write: true,
            ..io(31, 60)
        };
        assert!(!write.continues(&io(0, 60)));
        let other = FileIo {
            inode: 13,
            ..io(31, 60)
        };
        assert!(!other.continues(&io(0, 60)));
    }
}
