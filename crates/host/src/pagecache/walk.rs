// SPDX-License-Identifier: Apache-2.0
//! The walk: super blocks, their inodes, and the trees of their pages, read by a BPF program that
//! does a bounded amount of work per call and continues where it stopped.

use std::ffi::OsString;
use std::fs::File as OpenFile;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use libbpf_rs::{Object, ObjectBuilder};

use super::frames::{self, Folios, Frames};
use super::layout::{
    Ctl, DEPTH, File, Leaf, Names, RC_DONE, RC_FULL, RC_LOST, RC_NOT_HERE, SHOWN, Slots, Super,
};
use super::progress::{KnownSupers, Place, Progress, SuperList};
use super::readers::CacheReader;
use super::shown::{CacheSink, Inode, SuperBlock, WalkReport};
use crate::access::{AccessError, check_page_size};
use crate::bpf::{self, Mapping, run_syscall};
use crate::cgroup::{Cgroup, Hierarchy};
use crate::clock::thread_cpu_ns;
use crate::pagewalk::PageWalk;
use crate::process::Process;
use crate::root::ProcRoot;

/// `make bpf` builds it; `make bpf-check` verifies that it matches its source.
static OBJECT: &[u8] = include_bytes!("../../bpf/cachewalk.bpf.o");

/// Most leaves per call: 48 bytes each, and 512 more if frames are wanted.
const LEAVES: usize = 512;
/// Most inodes with pages per call: 40 bytes each.
const FILES: usize = 2048;
/// Most inodes visited per call: takes a few milliseconds.
const VISITS: u32 = 16 << 10;
/// Most super blocks per call: 40 bytes each.
const SUPERS: usize = 1024;

/// The loaded page-cache walker.
pub struct CacheWalk {
    // Field order: the mappings are dropped before the object that owns the maps.
    ctl: Mapping<Ctl>,
    supers: Mapping<Super>,
    files: Mapping<File>,
    leaves: Mapping<Leaf>,
    folios: Mapping<Slots>,
    names: Mapping<Names>,
    list_supers: RawFd,
    walk_inodes: RawFd,
    name_inode: RawFd,
    folio_of: RawFd,
    /// Known if frames are wanted.
    frames: Option<Frames>,
    known_supers: KnownSupers,
    /// Any open file: the entry point to the list of super blocks.
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
        Self::open_with(false)
    }

    /// Like [`open`](Self::open), and also shows the frames of pages.
    ///
    /// # Errors
    /// As [`open`](Self::open); also if frames cannot be derived.
    pub fn with_frames() -> Result<Self, AccessError> {
        let mut walk = Self::open_with(true)?;
        walk.frames = Some(walk.find_frames()?);
        Ok(walk)
    }

    fn open_with(with_frames: bool) -> Result<Self, AccessError> {
        check_page_size("looking at the page cache")?;
        if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            return Err(AccessError::Unsupported {
                what: WALKER,
                why: format!("not tried on {}", std::env::consts::ARCH),
            });
        }
        let anchor = OpenFile::open("/").map_err(|error| AccessError::io("/", error))?;
        let mut walk = bpf::load(WALKER, WALKER, || Self::load(anchor, with_frames))?;
        walk.check_owner()?;
        Ok(walk)
    }

    fn load(anchor: OpenFile, with_frames: bool) -> libbpf_rs::Result<Self> {
        let slots = if with_frames { LEAVES } else { 1 };
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        for mut map in open.maps_mut() {
            match map.name().to_str() {
                Some("supers") => map.set_max_entries(SUPERS as u32)?,
                Some("files") => map.set_max_entries(FILES as u32)?,
                Some("leaves") => map.set_max_entries(LEAVES as u32)?,
                Some("folios") => map.set_max_entries(slots as u32)?,
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
            folios: Mapping::of(&object, "folios", slots)?,
            names: Mapping::of(&object, "path", 1)?,
            list_supers: program("list_supers")?,
            walk_inodes: program("walk_inodes")?,
            name_inode: program("name_inode")?,
            folio_of: program("folio_of")?,
            frames: None,
            known_supers: KnownSupers::default(),
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

    /// The first page of a file of our own.
    fn first_page(&mut self, file: &OpenFile) -> Result<Ctl, AccessError> {
        let ctl = Ctl {
            fd: file.as_raw_fd() as u32,
            ..Ctl::default()
        };
        self.run(self.folio_of, ctl)
    }

    /// Refuses a kernel that records the cgroup of a page in an unknown way, with a page of our
    /// own. All file memory would seem to belong to no cgroup.
    fn check_owner(&mut self) -> Result<(), AccessError> {
        let file = frames::own_file()
            .map_err(|error| AccessError::io("a page of our own in the page cache", error))?;
        let out = self.first_page(&file)?;
        match own_cgroups() {
            Some(ours) if out.rc == RC_DONE && !ours.contains(&out.cgroup) => {
                Err(AccessError::Unsupported {
                    what: WALKER,
                    why: format!(
                        "this kernel records the cgroup of a page in an unknown way: a page of \
                         agewise itself seems to be charged to cgroup {} (not {ours:?}); report \
                         its version",
                        out.cgroup
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    /// Finds out how to derive frames from folios, with two pages of our own.
    fn find_frames(&mut self) -> Result<Frames, AccessError> {
        let mut found = Vec::new();
        let mut tables = PageWalk::open()?;
        for _ in 0..2 {
            let (file, frame) = frames::own_page(&mut tables)?;
            let out = self.first_page(&file)?;
            let bytes = u64::from(out.page_struct_bytes);
            found.push(match out.rc {
                RC_DONE => Frames::new(out.page, frame, bytes),
                _ => None,
            });
        }
        match found[..] {
            [Some(one), Some(other)] if one == other => Ok(one),
            _ => Err(AccessError::Unsupported {
                what: WALKER,
                why: "frames of cached pages cannot be determined: no array of struct page".into(),
            }),
        }
    }

    /// Lists the existing file systems, mounted or internal.
    ///
    /// # Errors
    /// The program cannot run, or the list is inconsistent.
    pub fn super_blocks(&mut self) -> Result<Vec<Arc<SuperBlock>>, AccessError> {
        let mut listed = SuperList::default();
        let mut ctl = Ctl {
            fd: self.anchor.as_raw_fd() as u32,
            ..Ctl::default()
        };
        loop {
            ctl = self.run(self.list_supers, ctl)?;
            match listed.take(ctl.rc, self.supers.slice(ctl.n_supers as usize)) {
                Ok(ControlFlow::Continue(Place::Next)) => {}
                Ok(ControlFlow::Continue(Place::First)) => ctl.super_block = 0,
                Ok(ControlFlow::Break(())) => return Ok(listed.found),
                Err(why) => return Err(AccessError::Unsupported { what: WALKER, why }),
            }
        }
    }

    /// Shows the whole page cache once, for file systems for which `wanted` returns true.
    ///
    /// # Errors
    /// The program cannot run. File systems that go away in the meantime are not an error.
    pub fn walk(
        &mut self,
        wanted: &dyn Fn(&SuperBlock) -> bool,
        sink: &mut dyn CacheSink,
    ) -> Result<WalkReport, AccessError> {
        let began_ns = thread_cpu_ns();
        let mut report = WalkReport::default();
        let all = self.super_blocks()?;
        self.known_supers = KnownSupers(all.clone());
        for on in all {
            if wanted(&on) {
                report.super_blocks += 1;
                self.walk_super(&on, sink, &mut report)?;
            }
        }
        report.cpu_ns = thread_cpu_ns().saturating_sub(began_ns);
        Ok(report)
    }

    /// Passes the output of a call on to the sink.
    fn show(
        &self,
        on: &Arc<SuperBlock>,
        ctl: &Ctl,
        progress: &mut Progress,
        sink: &mut dyn CacheSink,
        report: &mut WalkReport,
    ) {
        let files = self.files.slice(ctl.n_files as usize);
        let leaves = self.leaves.slice(ctl.n_leaves as usize);
        let slots = self.folios.slice(match self.frames {
            Some(_) => leaves.len(),
            None => 0,
        });
        let mut at = 0;
        for file in files {
            let own = at..leaves.len().min(at + file.n_leaves as usize);
            at = own.end;
            let folios = slots.get(own.clone()).unwrap_or_default();
            let folios = Folios::new(folios, self.frames);
            progress.show(on, file, (&leaves[own], folios), sink, report);
        }
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
            with_folios: self.frames.is_some().into(),
            ..Ctl::default()
        };
        loop {
            ctl = self.run(self.walk_inodes, ctl)?;
            report.inodes += u64::from(ctl.visited);
            report.unreadable += u64::from(ctl.retries);
            report.steps_back += u64::from(ctl.steps_back);
            self.show(on, &ctl, &mut progress, sink, report);
            match ctl.rc {
                RC_DONE => break,
                RC_FULL => progress.passed(&ctl),
                RC_LOST if progress.may_begin_anew() => progress.begin_anew(&mut ctl),
                _ => {
                    report.incomplete += 1;
                    if ctl.rc != RC_NOT_HERE {
                        sink.cut_short(on);
                    }
                    break;
                }
            }
        }
        progress.close(on, sink);
        report.restarts += u64::from(progress.restarts());
        Ok(())
    }
}

impl CacheReader for CacheWalk {
    fn walk(&mut self, sink: &mut dyn CacheSink) -> Result<WalkReport, AccessError> {
        CacheWalk::walk(self, &|_| true, sink)
    }

    fn walk_inode(&mut self, address: u64, sink: &mut dyn CacheSink) -> Result<u64, AccessError> {
        let mut ctl = Ctl {
            inode: address,
            with_folios: self.frames.is_some().into(),
            ..Ctl::default()
        };
        let mut progress = Progress::default();
        let mut report = WalkReport::default();
        loop {
            ctl = self.run(self.walk_inodes, ctl)?;
            let mut known = std::mem::take(&mut self.known_supers);
            let on = known.find(&ctl, || self.super_blocks());
            self.known_supers = known;
            let Some(on) = on? else {
                return Ok(report.pages);
            };
            self.show(&on, &ctl, &mut progress, sink, &mut report);
            // No other inode is visited: if the output is full it is from this one, and if it is
            // empty the inode is gone.
            if ctl.rc != RC_FULL || ctl.page == SHOWN || ctl.n_files == 0 {
                progress.close(&on, sink);
                return Ok(report.pages);
            }
        }
    }

    fn path(&mut self, on: &SuperBlock, inode: &Inode) -> Result<Option<PathBuf>, AccessError> {
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
}

/// Kernfs ids of our own cgroup and those above it: our pages are charged to the lowest that has
/// the memory controller. `None` if no cgroup accounts memory, or ours is not visible.
fn own_cgroups() -> Option<Vec<u64>> {
    let proc = ProcRoot::default();
    let hierarchy = Hierarchy::discover(&proc).ok()?;
    let process = Process::open_in(&proc, std::process::id()).ok()?;
    let ours = Cgroup::of_process(&hierarchy, &process).ok()??;
    let above = ours.path().ancestors();
    let ids = above.map(|path| Cgroup::open(&hierarchy, path).map(|cgroup| cgroup.id()));
    ids.collect::<Result<_, _>>().ok()
}

const WALKER: &str = "the BPF page-cache walker";
