// SPDX-License-Identifier: Apache-2.0
//! A machine of plain files: `/proc`, cgroups of version 2, and page tables shown by a fake source.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use agewise_host::access::fake::{FakeSource, FakeTable};
use agewise_host::access::{
    Abilities, AccessError, AccessSource, AddressRange, Leaf, Resolution, SightSink, Target,
};
use agewise_host::agent::{Agent, AgentConfig, Targets};
use agewise_host::root::Roots;
use agewise_policy::table::{PageSet, TableBits};

/// Larger than any pid of Linux: no system call can affect a real process.
const FIRST_PID: u32 = 1 << 23;
/// The address of every process's memory.
const VA: u64 = 0x7f00_0000_0000;
/// Paths of cgroups that may exist, below the hierarchy; parents come first.
pub const NAMES: [&[u8]; 9] = [
    b"/web",
    b"/web/worker",
    b"/batch",
    b"/batch/job",
    b"/batch/job/deep",
    b"/spared",
    b"/own",
    b"/hog\xff",
    b"/other",
];
/// The memory of a new cgroup.
pub const FULL_BYTES: u64 = 256 << 20;
/// The cgroup of the daemon.
pub const OWN: usize = 6;

thread_local! {
    static SOURCE: RefCell<FakeSource> = RefCell::default();
    static NOW_MS: Cell<u64> = const { Cell::new(0) };
    static TELLS_PAGES: Cell<bool> = const { Cell::new(true) };
}

/// Sets whether sources opened from now on distinguish pages, or only mappings.
pub fn tell_pages(tells: bool) {
    TELLS_PAGES.set(tells);
}

/// The clock of this thread's machine.
pub fn now_ms() -> u64 {
    NOW_MS.get()
}

/// Opens an agent that sees the pages of this thread's machine.
pub fn open_agent(
    roots: &Roots,
    targets: Targets,
    config: AgentConfig,
) -> anyhow::Result<(Agent, Option<String>)> {
    Ok((
        Agent::new(Box::new(Shown), roots.clone(), targets, config)?,
        None,
    ))
}

/// Sets the page table at an address of a process.
pub fn map(pid: u32, va: u64, bits: TableBits) {
    let leaf = Leaf::Page;
    SOURCE.with_borrow_mut(|source| source.set(pid, va, FakeTable { bits, leaf }));
}

/// The source of this thread's machine.
struct Shown;

impl AccessSource for Shown {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn abilities(&self) -> Abilities {
        let pages = SOURCE.with_borrow(FakeSource::abilities);
        if TELLS_PAGES.get() {
            return pages;
        }
        Abilities {
            resolution: Resolution::Mapping,
            ..pages
        }
    }

    fn scan(
        &mut self,
        target: &Target,
        ranges: &[AddressRange],
        sink: &mut dyn SightSink,
    ) -> Result<u64, AccessError> {
        SOURCE.with_borrow_mut(|source| source.scan(target, ranges, sink))
    }
}

/// The counters of a cgroup, and what others than the daemon set on it.
#[derive(Clone, Debug)]
pub struct Group {
    pub inode: u64,
    /// `memory.high` as last set by others.
    pub high: String,
    /// Whether others froze it.
    pub is_frozen: bool,
    pub used_bytes: u64,
    pub refaults: u64,
    pub stalled_us: u64,
}

/// A file that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The limit of a cgroup.
    High(usize),
    /// The freezer of a cgroup.
    Freeze(usize),
    /// The counters of a cgroup.
    Stat(usize),
    /// The processes of a cgroup.
    Procs(usize),
    /// A new ledger cannot be written: the disk is full.
    Ledger,
}

pub struct Machine {
    top: tempfile::TempDir,
    pub groups: BTreeMap<usize, Group>,
    /// The cgroup of each process.
    pub processes: BTreeMap<u32, usize>,
    pub faults: BTreeMap<Fault, PathBuf>,
    next_pid: u32,
    starts: u64,
}

impl Machine {
    pub fn new() -> Self {
        SOURCE.set(FakeSource::new());
        NOW_MS.set(1_000_000);
        let memory = Path::new("/dev/shm");
        let top = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        }
        .unwrap();
        let machine = Machine {
            top,
            groups: BTreeMap::new(),
            processes: BTreeMap::new(),
            faults: BTreeMap::new(),
            next_pid: FIRST_PID,
            starts: 100,
        };
        let root = machine.hierarchy();
        for dir in [
            &root,
            &machine.state(),
            &machine.path("proc/self"),
            &machine.path("sys"),
        ] {
            fs::create_dir_all(dir).unwrap();
        }
        let mounted = format!("30 20 0:1 / {} rw - cgroup2 cgroup2 rw\n", root.display());
        fs::write(machine.path("proc/self/mountinfo"), mounted).unwrap();
        let memory = "MemTotal: 8000000 kB\nMemFree: 100 kB\nMemAvailable: 100 kB\n\
                      SwapTotal: 8000000 kB\nSwapFree: 7000000 kB\n";
        fs::write(machine.path("proc/meminfo"), memory).unwrap();
        fs::write(machine.path("proc/vmstat"), "pgscan_kswapd 1\n").unwrap();
        fs::write(root.join("cgroup.controllers"), "memory\n").unwrap();
        fs::write(root.join("cgroup.procs"), "").unwrap();
        machine
    }

    fn path(&self, below: &str) -> PathBuf {
        self.top.path().join(below)
    }

    pub fn roots(&self) -> Roots {
        Roots::below(self.top.path())
    }

    pub fn hierarchy(&self) -> PathBuf {
        self.path("cgroup")
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// A file outside the machine, for configurations and journals.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path(name)
    }

    /// The directory of a cgroup, whether or not it exists.
    pub fn dir(&self, name: usize) -> PathBuf {
        self.hierarchy().join(OsStr::from_bytes(&NAMES[name][1..]))
    }

    fn parent(name: usize) -> Option<usize> {
        let cut = NAMES[name].iter().rposition(|byte| *byte == b'/')?;
        NAMES.iter().position(|other| *other == &NAMES[name][..cut])
    }

    /// This cgroup and those below it.
    pub fn within(name: usize) -> impl Iterator<Item = usize> {
        (0..NAMES.len()).filter(move |other| {
            let rest = NAMES[*other].strip_prefix(NAMES[name]);
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        })
    }

    pub fn pass(&self, ms: u64) {
        NOW_MS.set(NOW_MS.get().saturating_add(ms));
    }

    /// Creates a cgroup if it does not exist and its parent does.
    pub fn make(&mut self, name: usize) {
        let has_place = Self::parent(name).is_none_or(|parent| self.groups.contains_key(&parent));
        if self.groups.contains_key(&name) || !has_place {
            return;
        }
        let dir = self.dir(name);
        fs::create_dir(&dir).unwrap();
        let group = Group {
            inode: fs::metadata(&dir).unwrap().ino(),
            high: "max".to_owned(),
            is_frozen: false,
            used_bytes: FULL_BYTES,
            refaults: 0,
            stalled_us: 0,
        };
        for (file, text) in [
            ("memory.high", "max"),
            ("memory.max", "max"),
            ("memory.swap.max", "max"),
            ("memory.swap.current", "0"),
            ("cgroup.freeze", "0"),
            // The kernel freezes and kills at once.
            ("cgroup.events", "populated 0\nfrozen 1\n"),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
        self.groups.insert(name, group);
        self.count(name);
        self.list(name);
    }

    /// Removes a cgroup, all below it, and their processes.
    pub fn remove(&mut self, name: usize) {
        for below in Self::within(name).collect::<Vec<_>>() {
            let pids = self
                .processes
                .iter()
                .filter(|(_, at)| **at == below)
                .map(|(pid, _)| *pid);
            for pid in pids.collect::<Vec<_>>() {
                self.exit(pid);
            }
            self.groups.remove(&below);
            self.faults.retain(|fault, _| fault.group() != Some(below));
        }
        let _ = fs::remove_dir_all(self.dir(name));
    }

    /// Writes the counters of a cgroup, if it exists.
    pub fn count(&self, name: usize) {
        if let Some(group) = self.groups.get(&name) {
            self.show(name, group.used_bytes);
        }
    }

    /// Reclaims what a cgroup has above its limit, like the kernel.
    pub fn reclaim(&self, name: usize) {
        if let Some(group) = self.groups.get(&name) {
            let high = self.value(name, Fault::High(name), "memory.high");
            self.show(name, high.parse().unwrap_or(u64::MAX).min(group.used_bytes));
        }
    }

    fn show(&self, name: usize, used_bytes: u64) {
        let group = &self.groups[&name];
        let stat = format!(
            "anon {used_bytes}\nfile 0\nworkingset_refault_anon {}\n",
            group.refaults
        );
        let stall = format!("avg10=0.00 avg60=0.00 total={}", group.stalled_us);
        let write = |file: &str, text: String| fs::write(self.dir(name).join(file), text).unwrap();
        if !self.faults.contains_key(&Fault::Stat(name)) {
            write("memory.stat", stat);
        }
        write("memory.current", used_bytes.to_string());
        write("memory.pressure", format!("some {stall}\nfull {stall}\n"));
    }

    fn list(&self, name: usize) {
        if !self.groups.contains_key(&name) || self.faults.contains_key(&Fault::Procs(name)) {
            return;
        }
        let mut pids: Vec<u32> = self
            .processes
            .iter()
            .filter(|(_, at)| **at == name)
            .map(|(pid, _)| *pid)
            .collect();
        if name == OWN {
            pids.push(std::process::id());
        }
        let text: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        fs::write(self.dir(name).join("cgroup.procs"), text).unwrap();
    }

    pub fn fork(&mut self, name: usize) {
        if !self.groups.contains_key(&name) {
            return;
        }
        let pid = self.next_pid;
        self.next_pid += 1;
        self.processes.insert(pid, name);
        fs::create_dir_all(self.path(&format!("proc/{pid}/task/{pid}"))).unwrap();
        self.exec(pid);
        self.list(name);
    }

    /// The process runs another program: the same process with other memory.
    pub fn exec(&mut self, pid: u32) {
        self.starts += 1;
        let dir = self.path(&format!("proc/{pid}"));
        let stat = |state: char, threads: u32| {
            format!(
                "{pid} (worker) {state} 1 {pid} {pid} 0 -1 0 0 0 0 0 1 1 0 0 20 0 {threads} 0 \
                 {} 2097152 512\n",
                u64::from(pid)
            )
        };
        fs::write(dir.join("stat"), stat('S', 1)).unwrap();
        fs::write(dir.join("comm"), "worker\n").unwrap();
        fs::write(dir.join("clear_refs"), "").unwrap();
        let va = VA + (self.starts % 64) * (64 << 20);
        let maps = format!("{va:x}-{:x} rw-p 00000000 00:00 0 \n", va + (2 << 20));
        fs::write(dir.join("maps"), maps).unwrap();
        let bits = TableBits {
            present: PageSet::ALL,
            young: if self.starts.is_multiple_of(2) {
                PageSet::ALL
            } else {
                PageSet::default()
            },
            ..TableBits::default()
        };
        map(pid, va, bits);
    }

    /// The first thread of a process ends; another one lives on.
    pub fn lose_leader(&mut self, pid: u32) {
        let dir = self.path(&format!("proc/{pid}"));
        let thread = dir.join(format!("task/{}", pid + (1 << 20)));
        fs::create_dir_all(&thread).unwrap();
        let stat = |id: u32, state: char| {
            format!(
                "{id} (worker) {state} 1 {pid} {pid} 0 -1 0 0 0 0 0 1 1 0 0 20 0 2 0 {pid} 2097152 \
                 512\n"
            )
        };
        fs::write(dir.join("stat"), stat(pid, 'Z')).unwrap();
        let maps = fs::read(dir.join("maps")).unwrap();
        fs::write(dir.join("maps"), "").unwrap();
        if !maps.is_empty() {
            fs::write(thread.join("maps"), maps).unwrap();
        }
        fs::write(thread.join("stat"), stat(pid + (1 << 20), 'S')).unwrap();
    }

    pub fn exit(&mut self, pid: u32) {
        let Some(name) = self.processes.remove(&pid) else {
            return;
        };
        fs::remove_dir_all(self.path(&format!("proc/{pid}"))).unwrap();
        self.list(name);
    }

    /// Moves a process to another cgroup.
    pub fn migrate(&mut self, pid: u32, name: usize) {
        if !self.groups.contains_key(&name) {
            return;
        }
        if let Some(from) = self.processes.insert(pid, name) {
            self.list(from);
        }
        self.list(name);
    }

    /// Others freeze or thaw the cgroup. A single bit cannot record that two want it frozen.
    pub fn freeze(&mut self, name: usize, on: bool) {
        if self.faults.contains_key(&Fault::Freeze(name)) {
            return;
        }
        let file = self.dir(name).join("cgroup.freeze");
        let is_frozen = fs::read_to_string(&file).is_ok_and(|text| text == "1");
        if let Some(group) = self.groups.get_mut(&name)
            && is_frozen != on
        {
            group.is_frozen = on;
            fs::write(file, if on { "1" } else { "0" }).unwrap();
        }
    }

    fn broken(&self, fault: Fault) -> PathBuf {
        match fault {
            Fault::High(name) => self.dir(name).join("memory.high"),
            Fault::Freeze(name) => self.dir(name).join("cgroup.freeze"),
            Fault::Stat(name) => self.dir(name).join("memory.stat"),
            Fault::Procs(name) => self.dir(name).join("cgroup.procs"),
            Fault::Ledger => self.state().join("ledger.new"),
        }
    }

    /// Makes a file unusable; its contents are kept.
    pub fn break_file(&mut self, fault: Fault) {
        let is_there = fault
            .group()
            .is_none_or(|name| self.groups.contains_key(&name));
        if self.faults.contains_key(&fault) || !is_there {
            return;
        }
        let path = self.broken(fault);
        let kept = self.file(&format!("kept-{fault:?}"));
        let _ = fs::rename(&path, &kept);
        if fault == Fault::Ledger {
            // A directory that is not empty can be neither unlinked nor replaced.
            fs::create_dir(&path).unwrap();
            fs::write(path.join("in the way"), "").unwrap();
        } else {
            // A link to itself can be neither read nor written.
            symlink(&path, &path).unwrap();
        }
        self.faults.insert(fault, kept);
    }

    /// Makes all files usable again, with their contents.
    pub fn mend(&mut self) {
        for (fault, kept) in std::mem::take(&mut self.faults) {
            let path = self.broken(fault);
            if fault == Fault::Ledger {
                fs::remove_dir_all(&path).unwrap();
            } else {
                fs::rename(&kept, &path).unwrap();
            }
            if let Fault::Procs(name) = fault {
                self.list(name);
            }
            if let Fault::Stat(name) = fault {
                self.count(name);
            }
        }
    }

    /// The contents of a cgroup's file as if there were no fault.
    pub fn value(&self, name: usize, fault: Fault, file: &str) -> String {
        let path = match self.faults.get(&fault) {
            Some(kept) => kept.clone(),
            None => self.dir(name).join(file),
        };
        fs::read_to_string(path).unwrap()
    }

    /// Others set the limit.
    pub fn limit(&mut self, name: usize, high: &str) {
        if self.faults.contains_key(&Fault::High(name)) {
            return;
        }
        if let Some(group) = self.groups.get_mut(&name) {
            high.clone_into(&mut group.high);
            fs::write(self.dir(name).join("memory.high"), high).unwrap();
        }
    }
}

impl Fault {
    pub fn group(self) -> Option<usize> {
        match self {
            Fault::High(name) | Fault::Freeze(name) | Fault::Stat(name) | Fault::Procs(name) => {
                Some(name)
            }
            Fault::Ledger => None,
        }
    }
}
