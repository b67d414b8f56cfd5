// SPDX-License-Identifier: Apache-2.0
//! The kernel's files on the simulated machine: read and written by path, with the kernel's formats
//! and error numbers.

use agewise_kernel::ids::MemcgId;
use agewise_kernel::mglru::{self, MemcgNames, WriteError, sysfs};
use agewise_policy::table::PAGE_BYTES;
use agewise_policy::units::size_bytes;
use agewise_policy::workingset::report::{File, GroupFile, NodeFile, ReportError};
use thiserror::Error;

use super::Machine;
use super::memcg::UNLIMITED;
use agewise_kernel::reclaim::scope::ListScope;

const LRU_GEN_DIR: &str = "/sys/kernel/mm/lru_gen/";
const DEBUG_DIR: &str = "/sys/kernel/debug/";
const CGROUP_DIR: &str = "/sys/fs/cgroup";
const NODE_DIR: &str = "/sys/devices/system/node/node";

/// The error for a file that cannot be read or written, as the kernel reports it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FileError {
    /// No such file (`ENOENT`).
    #[error("no such file (ENOENT)")]
    NotFound,
    /// Reading or writing is not allowed (`EACCES`).
    #[error("the file does not allow that (EACCES)")]
    Denied,
    /// The file does not accept this value (`EINVAL`).
    #[error("invalid argument (EINVAL)")]
    Invalid,
    /// Less was reclaimed than was asked for (`EAGAIN`).
    #[error("not everything could be reclaimed (EAGAIN)")]
    Again,
    #[error("the working-set report refuses it (errno {errno})")]
    Report { errno: i32 },
    /// A write to `lru_gen` failed.
    #[error(transparent)]
    LruGen(#[from] WriteError),
}

impl FileError {
    /// The error number.
    pub fn errno(self) -> i32 {
        match self {
            FileError::NotFound => 2,
            FileError::Again => 11,
            FileError::Denied => 13,
            FileError::Invalid => 22,
            FileError::Report { errno } => errno,
            FileError::LruGen(error) => error.errno(),
        }
    }
}

/// Cgroups by number, as the files show them: the root is 1, the others follow in order of
/// creation.
struct Names {
    paths: Vec<Option<String>>,
}

impl MemcgNames for Names {
    fn id(&self, memcg: MemcgId) -> u64 {
        u64::from(memcg.0) + 1
    }

    fn path(&self, memcg: MemcgId) -> String {
        self.paths
            .get(memcg.index())
            .cloned()
            .flatten()
            .unwrap_or_default()
    }

    fn by_id(&self, id: u64) -> Option<MemcgId> {
        let index = usize::try_from(id.checked_sub(1)?).ok()?;
        let known = self.paths.get(index)?.is_some();
        known.then(|| u32::try_from(index).ok().map(MemcgId))?
    }
}

impl Machine {
    fn names(&self) -> Names {
        let of = |index| {
            let group = &self.sys.memcgs[MemcgId(index)];
            group.online.then(|| group.path.clone())
        };
        Names {
            paths: (0..self.sys.memcgs.len() as u32).map(of).collect(),
        }
    }

    /// Paths of all files.
    pub fn file_paths(&self) -> Vec<String> {
        let mut paths = vec![
            "/proc/sys/vm/swappiness".to_owned(),
            "/proc/vmstat".to_owned(),
            "/proc/zoneinfo".to_owned(),
        ];
        paths.extend(["lru_gen", "lru_gen_full"].map(|name| format!("{DEBUG_DIR}{name}")));
        paths.extend(["enabled", "min_ttl_ms"].map(|name| format!("{LRU_GEN_DIR}{name}")));
        for node in 0..self.config.all_nodes() {
            let names = NodeFile::ALL.map(NodeFile::name);
            paths.extend(names.map(|name| format!("{NODE_DIR}{node}/workingset_report/{name}")));
        }
        for path in self.names().paths.into_iter().flatten() {
            let directory = path.trim_end_matches('/');
            for name in CGROUP_FILES {
                paths.push(format!("{CGROUP_DIR}{directory}/{name}"));
            }
            if path != "/" {
                let names = GroupFile::ALL.map(GroupFile::name);
                paths.extend(names.map(|name| format!("{CGROUP_DIR}{directory}/{name}")));
            }
        }
        paths
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`FileError`] if it does not exist or cannot be read.
    pub fn read_file(&mut self, path: &str) -> Result<String, FileError> {
        let now_ns = self.sys.now_ns;
        match path {
            "/sys/kernel/mm/lru_gen/enabled" => Ok(sysfs::enabled_show(&self.lru)),
            "/sys/kernel/mm/lru_gen/min_ttl_ms" => Ok(sysfs::min_ttl_show(&self.lru)),
            "/sys/kernel/debug/lru_gen" | "/sys/kernel/debug/lru_gen_full" => {
                let full = path.ends_with("_full");
                Ok(mglru::render(&self.lru, &self.names(), now_ns, full))
            }
            "/proc/vmstat" => Ok(lines(&self.vmstat())),
            "/proc/zoneinfo" => Ok(self.zoneinfo()),
            "/proc/sys/vm/swappiness" => {
                let root = &self.lru.memcgs[MemcgId::ROOT.index()];
                Ok(format!("{}\n", root.swappiness))
            }
            _ => match self.find_report(path)? {
                Some(file) => self.read_report(&file).map_err(refused),
                None => {
                    let (memcg, file) = self.find_cgroup_file(path)?;
                    self.read_cgroup_file(memcg, file)
                }
            },
        }
    }

    /// Writes a file; returns the number of bytes accepted.
    ///
    /// # Errors
    /// [`FileError`] with the kernel's error number.
    pub fn write_file(&mut self, path: &str, text: &[u8]) -> Result<usize, FileError> {
        let written = match path {
            // Generations are per node: a machine with lists per zone can have no other LRU.
            "/sys/kernel/mm/lru_gen/enabled" if self.sys.list_scope == ListScope::Zone => {
                return Err(FileError::Invalid);
            }
            "/sys/kernel/mm/lru_gen/enabled" => sysfs::enabled_store(&mut self.lru, text)?,
            "/sys/kernel/mm/lru_gen/min_ttl_ms" => sysfs::min_ttl_store(&mut self.lru, text)?,
            "/sys/kernel/debug/lru_gen" => {
                let names = self.names();
                let begun = self.begin_work();
                let result = mglru::write(&mut self.lru, &mut self.sys, &names, text);
                self.pay_for_work(&begun);
                result?
            }
            // The file's mode is 0444, but root may open it: only the write is refused.
            "/sys/kernel/debug/lru_gen_full" => return Err(FileError::Invalid),
            "/proc/vmstat" | "/proc/zoneinfo" => return Err(FileError::Denied),
            "/proc/sys/vm/swappiness" => {
                let value = parse_number(text).filter(|&value| value <= 200);
                let value = value.ok_or(FileError::Invalid)?;
                for index in 0..self.lru.memcgs.len() as u32 {
                    self.set_swappiness(MemcgId(index), value as u32);
                }
                text.len()
            }
            _ => {
                match self.find_report(path)? {
                    Some(file) => self.write_report(&file, text).map_err(refused)?,
                    None => {
                        let (memcg, file) = self.find_cgroup_file(path)?;
                        self.write_cgroup_file(memcg, file, text)?;
                    }
                }
                text.len()
            }
        };
        self.note_mode();
        self.end_victims();
        Ok(written)
    }

    /// The working-set report file at a path; the root cgroup has none.
    fn find_report(&self, path: &str) -> Result<Option<File<MemcgId>>, FileError> {
        if let Some(below) = path.strip_prefix(NODE_DIR) {
            let (node, name) = below
                .split_once("/workingset_report/")
                .ok_or(FileError::NotFound)?;
            let node = node
                .parse()
                .ok()
                .filter(|node| *node < self.config.all_nodes());
            let kind = NodeFile::ALL.into_iter().find(|kind| kind.name() == name);
            let (node, kind) = node.zip(kind).ok_or(FileError::NotFound)?;
            return Ok(Some(File::Node(node, kind)));
        }
        let (memcg, name) = match self.find_cgroup_file(path) {
            Ok((memcg, name)) if memcg != MemcgId::ROOT => (memcg, name),
            _ => return Ok(None),
        };
        let kind = GroupFile::ALL.into_iter().find(|kind| kind.name() == name);
        Ok(kind.map(|kind| File::Group(memcg, kind)))
    }

    fn find_cgroup_file<'a>(&self, path: &'a str) -> Result<(MemcgId, &'a str), FileError> {
        let below = path.strip_prefix(CGROUP_DIR).ok_or(FileError::NotFound)?;
        let (directory, file) = below.rsplit_once('/').ok_or(FileError::NotFound)?;
        let directory = if directory.is_empty() { "/" } else { directory };
        let names = self.names();
        let memcg = names
            .paths
            .iter()
            .position(|path| path.as_deref() == Some(directory))
            .ok_or(FileError::NotFound)?;
        Ok((MemcgId(memcg as u32), file))
    }

    fn read_cgroup_file(&mut self, memcg: MemcgId, file: &str) -> Result<String, FileError> {
        let limits = self.limits(memcg);
        let limit = |pages: u64| match pages {
            UNLIMITED => "max\n".to_owned(),
            pages => format!("{}\n", pages.saturating_mul(PAGE_BYTES)),
        };
        let group = &self.sys.memcgs[memcg];
        Ok(match file {
            "memory.current" => format!("{}\n", group.usage_pages * PAGE_BYTES),
            "memory.swap.current" => format!("{}\n", group.swap_pages * PAGE_BYTES),
            "memory.min" => limit(limits.min_pages),
            "memory.low" => limit(limits.low_pages),
            "memory.high" => limit(limits.high_pages),
            "memory.max" => limit(limits.max_pages),
            "memory.swap.max" => limit(limits.swap_max_pages),
            "memory.events" => {
                let events = self.memcg_limit_events(memcg);
                lines(&[
                    ("low", events.low),
                    ("high", events.high),
                    ("max", events.max),
                    ("oom", events.oom),
                    ("oom_kill", events.oom_kill),
                ])
            }
            "memory.pressure" => {
                let pressure = self.pressure(memcg);
                let line = |kind, ns: u64, averages: [f64; 3]| {
                    let [a, b, c] = averages;
                    let total_us = ns / 1000;
                    format!("{kind} avg10={a:.2} avg60={b:.2} avg300={c:.2} total={total_us}\n")
                };
                let [some, full] = pressure.averages(self.sys.now_ns);
                line("some", pressure.some_ns, some) + &line("full", pressure.full_ns, full)
            }
            "memory.stat" => {
                self.flush_stats();
                lines(&self.memory_stat(memcg))
            }
            "memory.reclaim" => return Err(FileError::Denied),
            _ => return Err(FileError::NotFound),
        })
    }

    fn write_cgroup_file(
        &mut self,
        memcg: MemcgId,
        file: &str,
        text: &[u8],
    ) -> Result<(), FileError> {
        let mut limits = self.limits(memcg);
        let place = match file {
            "memory.min" => &mut limits.min_pages,
            "memory.low" => &mut limits.low_pages,
            "memory.high" => &mut limits.high_pages,
            "memory.max" => &mut limits.max_pages,
            "memory.swap.max" => &mut limits.swap_max_pages,
            "memory.reclaim" => return self.write_reclaim(memcg, text),
            name if CGROUP_FILES.contains(&name) => return Err(FileError::Denied),
            _ => return Err(FileError::NotFound),
        };
        if memcg == MemcgId::ROOT {
            return Err(FileError::NotFound); // The root has no limits.
        }
        let text = std::str::from_utf8(text).map_err(|_| FileError::Invalid)?;
        *place = match text.trim() {
            "max" => UNLIMITED,
            size => size_bytes(size).map_err(|_| FileError::Invalid)? / PAGE_BYTES,
        };
        if limits != self.limits(memcg) {
            self.set_limits(memcg, limits);
            return Ok(());
        }
        // The kernel also reclaims if the limit was the same before.
        match file {
            "memory.max" => self.shrink_to(memcg, limits.max_pages, true),
            "memory.high" => self.shrink_to(memcg, limits.high_pages, false),
            _ => {}
        }
        Ok(())
    }

    /// Handles a write to `memory.reclaim`: bytes, and `swappiness=` a number up to 200, or `max`
    /// in 7.2.
    fn write_reclaim(&mut self, memcg: MemcgId, text: &[u8]) -> Result<(), FileError> {
        let text = std::str::from_utf8(text).map_err(|_| FileError::Invalid)?;
        let mut words = text.split_whitespace();
        let size = words.next().ok_or(FileError::Invalid)?;
        let pages = size_bytes(size).map_err(|_| FileError::Invalid)? / PAGE_BYTES;
        let mut swappiness = None;
        for word in words {
            let value = word.strip_prefix("swappiness=").ok_or(FileError::Invalid)?;
            swappiness = Some(match value {
                "max" if self.lru.mglru.profile.has_swappiness_max => 201,
                _ => parse_number(value.as_bytes())
                    .filter(|&value| value <= 200)
                    .ok_or(FileError::Invalid)? as u32,
            });
        }
        match self.reclaim_memcg(memcg, pages, swappiness) {
            Ok(_) => Ok(()),
            Err(_) => Err(FileError::Again),
        }
    }
}

/// Files in the directory of every cgroup.
const CGROUP_FILES: [&str; 11] = [
    "memory.current",
    "memory.events",
    "memory.high",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.pressure",
    "memory.reclaim",
    "memory.stat",
    "memory.swap.current",
    "memory.swap.max",
];

fn refused(error: ReportError) -> FileError {
    FileError::Report {
        errno: error.errno(),
    }
}

fn lines(lines: &[(&str, u64)]) -> String {
    lines
        .iter()
        .map(|(name, value)| format!("{name} {value}\n"))
        .collect()
}

fn parse_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}
