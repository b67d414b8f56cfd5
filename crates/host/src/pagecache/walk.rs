// SPDX-License-Identifier: Apache-2.0
//! The walk: super blocks, their inodes, and the trees of their pages, by a BPF program that is
//! bounded in each call and goes on where it stopped.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File as OpenFile;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use libbpf_rs::{Object, ObjectBuilder};

use super::layout::{
    Ctl, DEPTH, FILE_VOID, FILE_WHOLE, File, Leaf, Names, RC_DONE, RC_FULL, RC_LOST, RC_NOT_HERE,
    SHOWN, Super,
};
use crate::access::AccessError;
use crate::bpf::{Mapping, run_syscall};
use crate::clock::thread_cpu_ns;
use crate::complaints;

/// `make bpf` builds it, `make bpf-check` proves that it matches its source.
static OBJECT: &[u8] = include_bytes!("../../bpf/cachewalk.bpf.o");

/// Shown by one call at most: 64 bytes each.
const LEAVES: usize = 4096;
/// Inodes with pages shown by one call at most: 48 bytes each.
const FILES: usize = 2048;
/// Inodes looked at by one call at most: some milliseconds.
const VISITS: u32 = 16 << 10;
/// Super blocks shown by one call at most.
const SUPERS: usize = 1024;
/// Super blocks listed at most: a machine with more has their rest unseen, and is told so.
const SUPERS_MAX: usize = 1 << 16;
/// A walk begins anew so often in one super block, when inodes go away under it.
const RESTARTS_MAX: u32 = 16;
/// Places to begin anew at.
const CHECKPOINTS: usize = 64;

/// Of `include/uapi/linux/magic.h`.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
const BDEVFS_MAGIC: u64 = 0x6264_6576;

/// What cached pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    /// Of a file on a device or the network: can be read again.
    File,
    /// tmpfs, memfd and shared memory: memory with a name, which only swap can take.
    Shmem,
    /// Of a block device itself: `Buffers` of `/proc/meminfo`.
    Device,
}

/// A file system instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperBlock {
    address: u64,
    /// Type as in `/proc/filesystems`.
    pub fs_type: String,
    /// Device of its files, `major << 20 | minor`.
    pub device: u32,
    /// What its pages are.
    pub kind: CacheKind,
}

impl SuperBlock {
    /// What the record says; nothing for huge pages, which are no page cache.
    fn new(record: &Super) -> Option<Self> {
        let end = record.kind.iter().position(|byte| *byte == 0);
        let name = &record.kind[..end.unwrap_or(record.kind.len())];
        let kind = match record.magic {
            HUGETLBFS_MAGIC => return None,
            TMPFS_MAGIC => CacheKind::Shmem,
            BDEVFS_MAGIC => CacheKind::Device,
            _ => CacheKind::File,
        };
        Some(SuperBlock {
            address: record.address,
            fs_type: String::from_utf8_lossy(name).into_owned(),
            device: record.device,
            kind,
        })
    }
}

/// An inode as the walk found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Kernel address: names the inode while it lives.
    pub address: u64,
    /// Inode number.
    pub number: u64,
    /// Generation, where the file system has them.
    pub generation: u32,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Hard links: none once it was deleted.
    pub links: u32,
    /// Pages in the cache by the kernel's own count, when its walk began.
    pub pages: u64,
}

impl Inode {
    fn new(file: &File) -> Self {
        Inode {
            address: file.inode,
            number: file.number,
            generation: file.generation,
            size_bytes: file.size_bytes,
            links: file.links,
            pages: file.pages,
        }
    }
}

/// Takes what a walk shows.
pub trait CacheSink {
    /// Some leaves of an inode, in rising order of index. More may follow.
    fn leaves(&mut self, on: &Arc<SuperBlock>, inode: &Inode, leaves: &[Leaf]);

    /// The inode has been shown. Not `valid`: it became another one meanwhile, and its leaves are
    /// nobody's.
    fn end(&mut self, on: &Arc<SuperBlock>, inode: &Inode, valid: bool);
}

/// What a walk met and cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct WalkReport {
    /// File system instances.
    pub super_blocks: u64,
    /// Inodes looked at, with pages or without.
    pub inodes: u64,
    /// Inodes with pages.
    pub files: u64,
    /// Pages shown.
    pub pages: u64,
    /// Nodes of trees given up: they changed under the read again and again.
    pub unreadable: u64,
    /// Times that the inode at hand went away, and the walk went on from one passed before.
    pub steps_back: u64,
    /// Times that a list of inodes was entered again, because the place in it was gone.
    pub restarts: u64,
    /// File system instances not walked to their end: unmounted, or changing faster than read.
    pub incomplete: u64,
    /// CPU time, ns.
    pub cpu_ns: u64,
}

/// The walker of the page cache, loaded.
pub struct CacheWalk {
    // Field order: the mappings go before the object that owns the maps.
    ctl: Mapping<Ctl>,
    supers: Mapping<Super>,
    files: Mapping<File>,
    leaves: Mapping<Leaf>,
    names: Mapping<Names>,
    list_supers: RawFd,
    walk_inodes: RawFd,
    name_inode: RawFd,
    /// Any file: where the list of super blocks is entered.
    anchor: OpenFile,
    /// Owns the programs and maps.
    _object: Object,
}

impl CacheWalk {
    /// Loads the walker.
    ///
    /// # Errors
    /// [`AccessError::NoPrivilege`], [`AccessError::Unsupported`] with the reason.
    pub fn open() -> Result<Self, AccessError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(AccessError::Unsupported {
                what: WALKER,
                why: format!("not tried on {}", std::env::consts::ARCH),
            });
        }
        let anchor = OpenFile::open("/").map_err(|error| AccessError::io("/", error))?;
        let (loaded, said) = complaints::collected(|| Self::load(anchor));
        loaded.map_err(|error| match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => AccessError::NoPrivilege {
                what: "loading the BPF page-cache walker".into(),
                hint: "run as root, or with CAP_BPF and CAP_PERFMON (and without kernel lockdown \
                       in confidentiality mode)",
            },
            _ => AccessError::Unsupported {
                what: WALKER,
                why: format!("{error:#} ({said})"),
            },
        })
    }

    fn load(anchor: OpenFile) -> libbpf_rs::Result<Self> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        for mut map in open.maps_mut() {
            match map.name().to_str() {
                Some("supers") => map.set_max_entries(SUPERS as u32)?,
                Some("files") => map.set_max_entries(FILES as u32)?,
                Some("leaves") => map.set_max_entries(LEAVES as u32)?,
                _ => {}
            }
        }
        let object = open.load()?;
        let program = |name: &str| {
            let found = object.progs().find(|program| program.name() == name);
            found
                .map(|program| program.as_fd().as_raw_fd())
                .ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))
        };
        Ok(CacheWalk {
            ctl: Mapping::of(&object, ".data.ctl", 1)?,
            supers: Mapping::of(&object, "supers", SUPERS)?,
            files: Mapping::of(&object, "files", FILES)?,
            leaves: Mapping::of(&object, "leaves", LEAVES)?,
            names: Mapping::of(&object, "path", 1)?,
            list_supers: program("list_supers")?,
            walk_inodes: program("walk_inodes")?,
            name_inode: program("name_inode")?,
            anchor,
            _object: object,
        })
    }

    fn run(&mut self, program: RawFd, ctl: Ctl) -> Result<Ctl, AccessError> {
        let rc = RC_NOT_HERE;
        self.ctl.write(0, Ctl { rc, ..ctl });
        run_syscall(program).map_err(|error| AccessError::io("bpf(2), page-cache walk", error))?;
        Ok(self.ctl.read(0))
    }

    /// The file systems there are, mounted or internal.
    ///
    /// # Errors
    /// The program does not run, or the list makes no sense.
    pub fn super_blocks(&mut self) -> Result<Vec<Arc<SuperBlock>>, AccessError> {
        let mut found = Vec::new();
        let ctl = Ctl {
            fd: self.anchor.as_raw_fd() as u32,
            ..Ctl::default()
        };
        let out = self.run(self.list_supers, ctl)?;
        let records = self.supers.slice(out.n_supers as usize);
        found.extend(records.iter().filter_map(SuperBlock::new).map(Arc::new));
        found.truncate(SUPERS_MAX);
        if out.rc != RC_DONE && out.rc != RC_FULL {
            return Err(AccessError::Unsupported {
                what: WALKER,
                why: "the list of super blocks could not be followed".into(),
            });
        }
        Ok(found)
    }

    /// Shows all of the page cache once: what `wanted` says yes to.
    ///
    /// # Errors
    /// The program does not run. File systems that go away meanwhile are no error.
    pub fn walk(
        &mut self,
        wanted: &dyn Fn(&SuperBlock) -> bool,
        sink: &mut dyn CacheSink,
    ) -> Result<WalkReport, AccessError> {
        let began_ns = thread_cpu_ns();
        let mut report = WalkReport::default();
        for on in self.super_blocks()? {
            if wanted(&on) {
                report.super_blocks += 1;
                self.walk_super(&on, sink, &mut report)?;
            }
        }
        report.cpu_ns = thread_cpu_ns().saturating_sub(began_ns);
        Ok(report)
    }

    /// The path of an inode below the root of its file system, by one of its directory entries in
    /// memory; none where it has none, or more than 64 directories above it. It may have been
    /// renamed since: look before it is used.
    ///
    /// # Errors
    /// The program does not run.
    pub fn path(&mut self, on: &SuperBlock, inode: &Inode) -> Result<Option<PathBuf>, AccessError> {
        let ctl = Ctl {
            super_block: on.address,
            inode: inode.address,
            number: inode.number,
            ..Ctl::default()
        };
        let out = self.run(self.name_inode, ctl)?;
        if out.rc != RC_DONE {
            return Ok(None);
        }
        let names = &self.names.get(0)[..(out.names as usize).min(DEPTH)];
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend(name.iter().take_while(|byte| **byte != 0));
        }
        Ok(Some(OsString::from_vec(path).into()))
    }

    fn walk_super(
        &mut self,
        on: &Arc<SuperBlock>,
        sink: &mut dyn CacheSink,
        report: &mut WalkReport,
    ) -> Result<(), AccessError> {
        let mut progress = Progress::default();
        let mut ctl = Ctl {
            super_block: on.address,
            visits_max: VISITS,
            ..Ctl::default()
        };
        loop {
            ctl = self.run(self.walk_inodes, ctl)?;
            report.inodes += u64::from(ctl.visited);
            report.unreadable += u64::from(ctl.retries);
            report.steps_back += u64::from(ctl.steps_back);
            let files = self.files.slice(ctl.n_files as usize);
            let mut leaves = self.leaves.slice(ctl.n_leaves as usize);
            for file in files {
                let (own, rest) = leaves.split_at((file.n_leaves as usize).min(leaves.len()));
                leaves = rest;
                progress.show(on, file, own, sink, report);
            }
            match ctl.rc {
                RC_DONE => break,
                RC_FULL => progress.passed(&ctl),
                RC_LOST if progress.restarts < RESTARTS_MAX => progress.begin_anew(&mut ctl),
                _ => {
                    report.incomplete += 1;
                    break;
                }
            }
        }
        progress.close(on, sink);
        report.restarts += u64::from(progress.restarts);
        Ok(())
    }
}

const WALKER: &str = "the BPF page-cache walker";

/// How far the walk of one super block is.
#[derive(Default)]
struct Progress {
    /// Inodes shown: after a restart they come again.
    shown: HashSet<(u64, u64)>,
    /// The one of which more is to come.
    open: Option<Inode>,
    /// Inodes at which calls ended, the last one last.
    passed: Vec<(u64, u64)>,
    restarts: u32,
}

impl Progress {
    fn show(
        &mut self,
        on: &Arc<SuperBlock>,
        file: &File,
        leaves: &[Leaf],
        sink: &mut dyn CacheSink,
        report: &mut WalkReport,
    ) {
        let inode = Inode::new(file);
        let is_open = |open: &Inode| (open.address, open.number) == (inode.address, inode.number);
        if !self.open.is_some_and(|open| is_open(&open)) {
            self.close(on, sink);
            if !self.shown.insert((inode.address, inode.number)) {
                return;
            }
            report.files += 1;
        }
        if file.state != FILE_VOID {
            report.pages += leaves.iter().map(Leaf::pages).sum::<u64>();
            sink.leaves(on, &inode, leaves);
        }
        self.open = match file.state {
            FILE_WHOLE | FILE_VOID => {
                sink.end(on, &inode, file.state == FILE_WHOLE);
                None
            }
            _ => Some(inode),
        };
    }

    /// Of an inode of which more was to come nothing came any more.
    fn close(&mut self, on: &Arc<SuperBlock>, sink: &mut dyn CacheSink) {
        if let Some(open) = self.open.take() {
            sink.end(on, &open, false);
        }
    }

    fn passed(&mut self, ctl: &Ctl) {
        if self.passed.len() == CHECKPOINTS {
            self.passed.remove(0);
        }
        self.passed.push((ctl.inode, ctl.number));
    }

    /// The place is gone: on behind the inode passed before it, or from the first. New inodes are
    /// put in front, so what comes behind was there.
    fn begin_anew(&mut self, ctl: &mut Ctl) {
        self.restarts += 1;
        (ctl.inode, ctl.number) = self.passed.pop().unwrap_or_default();
        ctl.page = SHOWN;
    }
}
