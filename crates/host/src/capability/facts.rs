// SPDX-License-Identifier: Apache-2.0
//! The facts behind the table, gathered once: files below roots, and system calls behind a trait,
//! so that tests can simulate any machine.

use std::os::fd::AsRawFd;

use crate::access::AccessError;
use crate::cgroup::{CgroupError, Hierarchy, Layout, Mounts};
use crate::damon::{Availability, Damon};
use crate::error::{self, FileError};
use crate::faults::{Faults, RING_BYTES_MIN};
use crate::kernel_source::FRAME_FILES;
use crate::lru_gen::LruGen;
use crate::memory::{self, MemInfo};
use crate::pagecache::hooks::Hook;
use crate::pagecache::{Accessed, CacheWalk, has_cachestat};
use crate::pagewalk::PageWalk;
use crate::root::Roots;
use crate::swap::{SwapArea, ZramStat};

use super::version::KernelVersion;

/// A system call that the kernel may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syscall {
    /// `pidfd_open`, 5.3.
    PidfdOpen,
    /// `process_madvise` with `MADV_PAGEOUT` and `MADV_COLD`, 5.10.
    ProcessMadvise,
    /// The `PAGEMAP_SCAN` ioctl, 6.7.
    PagemapScan,
    /// `bpf`, 3.18.
    Bpf,
    /// `cachestat`, 6.5.
    Cachestat,
}

/// Facts about the page-table walker, known once it has been loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkerFacts {
    /// Which entry point the kernel accepted.
    pub flavour: String,
    /// Levels of the page tables.
    pub levels: u32,
}

/// Facts that have to be found by trying rather than reading.
pub trait Calls {
    /// The architecture by its Rust name, such as `x86_64`.
    fn arch(&self) -> &'static str;
    /// The page size, in bytes.
    fn page_bytes(&self) -> u64;
    /// Whether the kernel has the call.
    fn has(&self, call: Syscall) -> bool;
    /// Loads the page-table walker and releases it.
    fn load_walker(&self) -> Result<WalkerFacts, AccessError>;
    /// Attaches the page-fault programs and releases them.
    fn load_faults(&self) -> Result<(), AccessError>;
    /// Loads the page-cache walker and the access-tracing programs, and releases them. Returns the
    /// hooks where accesses were traced.
    fn load_page_cache(&self) -> Result<Vec<&'static Hook>, AccessError>;
}

/// The running kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveCalls;

impl Calls for LiveCalls {
    fn arch(&self) -> &'static str {
        std::env::consts::ARCH
    }

    fn page_bytes(&self) -> u64 {
        rustix::param::page_size() as u64
    }

    fn has(&self, call: Syscall) -> bool {
        match call {
            Syscall::PidfdOpen => answers(libc::SYS_pidfd_open, [-1, 0, 0, 0, 0]),
            // An empty vector and no process: any result but ENOSYS means the call exists.
            Syscall::ProcessMadvise => {
                let advice = libc::c_long::from(libc::MADV_PAGEOUT);
                answers(libc::SYS_process_madvise, [-1, 0, 0, advice, 0])
            }
            Syscall::PagemapScan => has_pagemap_scan(),
            Syscall::Bpf => answers(libc::SYS_bpf, [-1, 0, 0, 0, 0]),
            Syscall::Cachestat => has_cachestat(),
        }
    }

    fn load_walker(&self) -> Result<WalkerFacts, AccessError> {
        let walk = PageWalk::open()?;
        Ok(WalkerFacts {
            flavour: format!("{:?}", walk.flavour()).to_lowercase(),
            levels: walk.levels(),
        })
    }

    fn load_faults(&self) -> Result<(), AccessError> {
        Faults::with_ring(RING_BYTES_MIN).map(drop)
    }

    fn load_page_cache(&self) -> Result<Vec<&'static Hook>, AccessError> {
        CacheWalk::open()?;
        Ok(Accessed::open()?.attached().to_vec())
    }
}

/// Whether the kernel has a call, tested with arguments it rejects.
fn answers(number: libc::c_long, arguments: [libc::c_long; 5]) -> bool {
    let [a, b, c, d, e] = arguments;
    // SAFETY: callers pass only calls that reject these arguments (an invalid descriptor or
    // command) before they access any memory.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    result >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

/// Tries `PAGEMAP_SCAN` on an empty range of our own.
fn has_pagemap_scan() -> bool {
    /// `struct pm_scan_arg`: twelve 64-bit words, the first its size.
    type ScanArg = [u64; 12];
    let Ok(pagemap) = std::fs::File::open("/proc/self/pagemap") else {
        return false;
    };
    let mut arg: ScanArg = [0; 12];
    arg[0] = size_of::<ScanArg>() as u64;
    // _IOWR('f', 16, struct pm_scan_arg)
    let request = (3u64 << 30) | ((size_of::<ScanArg>() as u64) << 16) | (0x66 << 8) | 16;
    // SAFETY: the argument is a valid structure of the size encoded in the request; the range 0..0
    // is empty and no output is requested.
    unsafe { libc::ioctl(pagemap.as_raw_fd(), request as _, arg.as_mut_ptr()) >= 0 }
}

/// A machine to examine.
pub struct System {
    /// Its files.
    pub roots: Roots,
    /// Its kernel.
    pub calls: Box<dyn Calls>,
}

impl Default for System {
    fn default() -> Self {
        Self {
            roots: Roots::default(),
            calls: Box::new(LiveCalls),
        }
    }
}

/// Effective capabilities of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Privileges {
    /// Effective user id.
    pub euid: u32,
    /// `CapEff` of `/proc/self/status`.
    pub effective: u64,
}

/// Numbers of include/uapi/linux/capability.h.
const CAPABILITIES: [(u32, &str); 6] = [
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
    (23, "CAP_SYS_NICE"),
    (24, "CAP_SYS_RESOURCE"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
];

impl Privileges {
    /// Whether a capability is effective. `CAP_SYS_ADMIN` includes `CAP_BPF` and `CAP_PERFMON`,
    /// which were split from it in 5.8.
    pub fn has(self, name: &str) -> bool {
        let bit = |name: &str| {
            CAPABILITIES
                .iter()
                .find(|(_, known)| *known == name)
                .map(|(number, _)| 1u64 << number)
        };
        let held = |name| bit(name).is_some_and(|bit| self.effective & bit != 0);
        held(name) || (matches!(name, "CAP_BPF" | "CAP_PERFMON") && held("CAP_SYS_ADMIN"))
    }

    /// Those of `names` that are missing.
    pub fn missing(self, names: &[&'static str]) -> Vec<&'static str> {
        names
            .iter()
            .copied()
            .filter(|name| !self.has(name))
            .collect()
    }

    fn read(roots: &Roots) -> Self {
        let text = error::read(&roots.proc.join("self/status")).unwrap_or_default();
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.map(str::trim).unwrap_or_default().to_owned()
        };
        let euid = value("Uid:")
            .split_ascii_whitespace()
            .nth(1)
            .and_then(|id| id.parse().ok());
        Self {
            euid: euid.unwrap_or(u32::MAX),
            effective: u64::from_str_radix(&value("CapEff:"), 16).unwrap_or(0),
        }
    }
}

pub(crate) struct Facts {
    pub release: String,
    pub version: Option<KernelVersion>,
    pub arch: &'static str,
    pub page_bytes: u64,
    pub privileges: Privileges,
    pub has_btf: bool,
    /// `none`, `integrity` or `confidentiality`.
    pub lockdown: Option<String>,
    pub unprivileged_bpf: Option<String>,
    pub syscalls: Vec<Syscall>,
    pub walker: Result<WalkerFacts, AccessError>,
    pub faults: Result<(), AccessError>,
    pub page_cache: Result<Vec<&'static Hook>, AccessError>,
    /// Processes that run KVM guests.
    pub guest_hosts: Vec<u32>,
    pub layout: Layout,
    pub memory_hierarchy: Result<Hierarchy, CgroupError>,
    pub unified: Option<Hierarchy>,
    pub meminfo: Result<MemInfo, FileError>,
    pub nodes: usize,
    pub swaps: Vec<(SwapArea, Option<ZramStat>)>,
    pub has_psi: bool,
    pub thp: Option<String>,
    pub has_clear_refs: bool,
    pub damon: Availability,
    /// Whether the cgroup of a physical page can be read.
    pub has_frame_owners: bool,
    /// Operation sets of the running monitors: `paddr`, `vaddr`, `fvaddr`.
    pub damon_operations: Vec<String>,
    pub lru_gen: Result<Option<bool>, FileError>,
    pub lru_gen_debugfs: bool,
    pub debugfs_mounted: bool,
    /// Whether the hierarchy that accounts memory has `memory.reclaim`.
    pub has_memory_reclaim: bool,
}

impl Facts {
    pub fn gather(system: &System) -> Self {
        let (roots, calls) = (&system.roots, system.calls.as_ref());
        let release = text(roots, "sys/kernel/osrelease").unwrap_or_default();
        let mounts = Mounts::read(&roots.proc).unwrap_or_default();
        let memory_hierarchy = mounts.memory();
        let all = [
            Syscall::PidfdOpen,
            Syscall::ProcessMadvise,
            Syscall::PagemapScan,
            Syscall::Bpf,
            Syscall::Cachestat,
        ];
        let sys_has = |path: &str| roots.sys.join(path).exists();
        Self {
            version: KernelVersion::parse(&release),
            release,
            arch: calls.arch(),
            page_bytes: calls.page_bytes(),
            privileges: Privileges::read(roots),
            has_btf: sys_has("kernel/btf/vmlinux"),
            lockdown: sys_text(roots, "kernel/security/lockdown")
                .as_deref()
                .and_then(bracketed),
            unprivileged_bpf: text(roots, "sys/kernel/unprivileged_bpf_disabled"),
            syscalls: all.into_iter().filter(|call| calls.has(*call)).collect(),
            walker: calls.load_walker(),
            faults: calls.load_faults(),
            page_cache: calls.load_page_cache(),
            guest_hosts: crate::guest::hosts(&roots.proc),
            layout: mounts.layout(),
            has_memory_reclaim: memory_hierarchy.as_ref().is_ok_and(has_memory_reclaim),
            memory_hierarchy,
            unified: mounts.unified(),
            meminfo: MemInfo::of_machine(&roots.proc),
            nodes: memory::online_nodes(&roots.sys).map_or(1, |nodes| nodes.len()),
            swaps: swaps(roots),
            has_psi: roots.proc.join("pressure/memory").exists(),
            thp: sys_text(roots, "kernel/mm/transparent_hugepage/enabled")
                .as_deref()
                .and_then(bracketed),
            has_clear_refs: roots.proc.join("self/clear_refs").exists()
                && roots.proc.join("self/pagemap").exists(),
            has_frame_owners: FRAME_FILES
                .iter()
                .all(|name| roots.proc.join(name).exists()),
            damon: Damon::new(roots.sys.clone()).probe(),
            damon_operations: damon_operations(roots),
            lru_gen: LruGen::new(roots.sys.clone()).is_on(),
            lru_gen_debugfs: sys_has("kernel/debug/lru_gen"),
            debugfs_mounted: is_mounted(roots, "debugfs"),
        }
    }

    pub fn has(&self, call: Syscall) -> bool {
        self.syscalls.contains(&call)
    }

    pub fn swap_free_bytes(&self) -> u64 {
        self.swaps
            .iter()
            .map(|(area, _)| area.free_bytes())
            .fold(0, u64::saturating_add)
    }
}

fn text(roots: &Roots, path: &str) -> Option<String> {
    error::read(&roots.proc.join(path))
        .ok()
        .map(|text| text.trim().to_owned())
}

fn sys_text(roots: &Roots, path: &str) -> Option<String> {
    error::read(&roots.sys.join(path)).ok()
}

/// Returns the bracketed word in text like `always [madvise] never`.
fn bracketed(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// Since 5.19 the root cgroup has the file, as does every other cgroup.
fn has_memory_reclaim(hierarchy: &Hierarchy) -> bool {
    let at = |dir: &std::path::Path| dir.join("memory.reclaim").exists();
    at(&hierarchy.root)
        || std::fs::read_dir(&hierarchy.root)
            .is_ok_and(|entries| entries.flatten().any(|entry| at(&entry.path())))
}

fn swaps(roots: &Roots) -> Vec<(SwapArea, Option<ZramStat>)> {
    let areas = SwapArea::all(&roots.proc).unwrap_or_default();
    let with_zram = |area: SwapArea| {
        let stat = area.zram_id().and_then(|id| ZramStat::read(roots, id).ok());
        (area, stat)
    };
    areas.into_iter().map(with_zram).collect()
}

fn damon_operations(roots: &Roots) -> Vec<String> {
    let admin = roots.sys.join("kernel/mm/damon/admin/kdamonds");
    let mut operations = Vec::new();
    for kdamond in crate::root::numbers_in(&admin).unwrap_or_default() {
        let contexts = admin.join(format!("{kdamond}/contexts"));
        for context in crate::root::numbers_in(&contexts).unwrap_or_default() {
            let path = contexts.join(format!("{context}/operations"));
            operations.extend(error::read(&path).ok().map(|text| text.trim().to_owned()));
        }
    }
    operations.dedup();
    operations
}

fn is_mounted(roots: &Roots, kind: &str) -> bool {
    let mounts = text(roots, "self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| {
        line.split_once(" - ")
            .is_some_and(|(_, rest)| rest.split(' ').next() == Some(kind))
    })
}
