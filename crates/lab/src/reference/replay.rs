// SPDX-License-Identifier: Apache-2.0
//! Runs a trace as the reference did: a process alone in a cgroup at its limit, with compressed
//! swap and a file read without read-ahead, in three phases.

use agewise_policy::table::PAGE_BYTES;
use std::collections::BTreeMap;

use agewise_kernel::ids::MemcgId;
use thiserror::Error;

use super::cell::{Cell, Phase, TURN};
use crate::machine::address_space::{Advice, MapOptions};
use crate::machine::config::{MachineConfig, Policy, SwapConfig};
use crate::machine::cost::CostModel;
use crate::machine::device::{DeviceKind, DeviceModel};
use crate::machine::{Access, FileId, Limits, Machine, ProcessId, UNLIMITED};
use crate::workload::kernel_trace::{FILE_BIT, Medium, TraceError, TraceGenerator, TraceSpec};

/// A cell that cannot be replayed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ReplayError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("kernel {0} is none of those the lab has a profile of (6.12, 7.2)")]
    Kernel(String),
    #[error("{0} pages do not fit into an address space")]
    TooLarge(u32),
    #[error("stopped")]
    Stopped,
    #[error("trace hash {found:016x}, the reference has {expected:016x}")]
    Hash {
        /// Hash of what was replayed.
        found: u64,
        expected: u64,
    },
}

/// Conditions that affect the counts but are not in the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Time per miss in each phase, in ns.
    pub miss_ns: [u64; 3],
    /// Time of the first flush of memcg statistics, in ns after the start of the process.
    pub flush_phase_ns: u64,
    /// Probability, 0 to 1, that a walk of the multi-gen LRU visits a process that has not run
    /// since the previous walk.
    pub reschedule_chance: f64,
    /// Kernel pages charged in addition to the model: a few pages vary from boot to boot.
    pub extra_kernel_pages: u64,
    /// Seed of the policies' random choices.
    pub seed: u64,
    /// Whether statistics are always exact.
    pub exact_stats: bool,
}

impl Default for Conditions {
    fn default() -> Self {
        Conditions {
            miss_ns: [50_000, 100_000, 100_000],
            flush_phase_ns: 1_000_000_000,
            reschedule_chance: 0.0,
            extra_kernel_pages: 0,
            seed: 1,
            exact_stats: false,
        }
    }
}

/// Time of a touch that hits, in ns, from the notes of the reference.
pub const HIT_NS: u64 = 170;

/// Counts of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Simulated {
    /// Misses, counted as in the reference.
    pub misses: u64,
    /// Pages isolated for reclaim.
    pub scanned: u64,
    /// Pages sorted or deactivated.
    pub refilled: u64,
    /// Refaults, anon and file.
    pub refaults: [u64; 2],
}

/// Result of a run: its phases until it ended or was killed.
pub type Outcome = BTreeMap<Phase, Simulated>;

struct Replay {
    machine: Machine,
    members: Vec<Member>,
}

/// One of the programs, in its own cgroup.
struct Member {
    process: ProcessId,
    memcg: MemcgId,
    medium: Medium,
    generator: TraceGenerator,
    anon_vpn: u64,
    mapped_vpn: u64,
    file: FileId,
    /// Anonymous pages of the program itself: buffers for statistics, and one for read().
    own_vpn: u64,
    reads: bool,
}

/// Size of the program's buffer for statistics, in pages.
const STAT_BUFFER_PAGES: u64 = 2;

/// Replays a cell under the given conditions.
///
/// # Errors
/// [`ReplayError`] if the cell is invalid or the trace is not the reference's.
pub fn replay(cell: &Cell, conditions: &Conditions) -> Result<Outcome, ReplayError> {
    let mut replay = Replay::start(cell, conditions)?;
    let this = cell.members.this as usize;
    let mut outcome = Outcome::new();
    for (phase, miss_ns) in Phase::ALL.into_iter().zip(conditions.miss_ns) {
        replay.machine.set_speed(miss_ns, HIT_NS);
        match replay.measure(phase, cell) {
            Some(simulated) => outcome.insert(phase, simulated),
            None => return Ok(outcome),
        };
    }
    let found = replay.members[this].generator.hash();
    match cell.trace_hash {
        Some(expected) if expected != found => Err(ReplayError::Hash { found, expected }),
        _ => Ok(outcome),
    }
}

fn machine_config(cell: &Cell, conditions: &Conditions) -> Result<MachineConfig, ReplayError> {
    let family = if cell.lru_gen & 1 != 0 {
        "mglru"
    } else {
        "classic"
    };
    let mut policy = Policy::parse(&format!("{family}:{}", cell.kernel))
        .map_err(|_| ReplayError::Kernel(cell.kernel.clone()))?;
    policy.kernel = cell.rules.unwrap_or(policy.kernel);
    // The measured time of a miss includes all costs; the devices add nothing.
    let free = DeviceModel {
        read_ns: 0,
        write_ns: 0,
        sequential_ns: 0,
        ..DeviceKind::Zram.model()
    };
    let limit_pages = (cell.limit_bytes / PAGE_BYTES).min(1 << 30) as u32;
    let total = cell.trace.pages.saturating_add(cell.trace.hot);
    let total = total.saturating_mul(cell.members.count);
    // As in the guests, there is plenty of memory outside the cgroup, including blocks for huge
    // pages: the machine does not merge freed pages into blocks.
    let blocks = if cell.guest.thp { total } else { 0 };
    let plenty = limit_pages.saturating_add(blocks).saturating_mul(2);
    let plenty = plenty.max(1 << 14);
    let zones = cell.guest.free_pages.clone();
    let zones = zones.map(|zones| left_by_tables(zones, total));
    let pages = zones
        .as_ref()
        .map_or(plenty, |zones| zones.iter().flatten().sum());
    Ok(MachineConfig {
        policy,
        swap: Some(SwapConfig {
            device: free,
            pages: total.saturating_add(1024),
            compression: zones.as_ref().map(|_| COMPRESSION),
            on_file_disk: false,
        }),
        nodes: cell.guest.nodes(),
        interleave: cell.guest.interleave > 1,
        min_free_kbytes: if zones.is_some() { MIN_FREE_KB } else { 0 },
        zones,
        cpus: cell.guest.cpus as usize,
        min_ttl_ms: cell.guest.min_ttl_ms,
        file_device: free,
        cost: CostModel::FREE,
        stat_flush_ns: if conditions.exact_stats {
            0
        } else {
            2_000_000_000
        },
        stat_flush_phase_ns: conditions.flush_phase_ns,
        swappiness: cell.swappiness,
        readahead_pages: 0,
        reschedule_chance: conditions.reschedule_chance,
        seed: conditions.seed,
        ..MachineConfig::new(pages)
    })
}

/// `vm.min_free_kbytes` of the guests.
const MIN_FREE_KB: u64 = 2048;
/// Pages that contain a single word take 62 bytes of compressed memory each (`mm_stat` of the
/// guests).
const COMPRESSION: f64 = PAGE_BYTES as f64 / 62.0;

/// Zones without the frames of page tables, which the machine does not take from its zones. They
/// are shared out among the nodes, as the memory that they map is.
fn left_by_tables(mut nodes: Vec<[u32; 4]>, pages: u32) -> Vec<[u32; 4]> {
    let tables = pages.div_ceil(512) / nodes.len() as u32;
    for largest in nodes.iter_mut().filter_map(|zones| zones.iter_mut().max()) {
        *largest = largest.saturating_sub(tables).max(1);
    }
    nodes
}

impl Replay {
    fn start(cell: &Cell, conditions: &Conditions) -> Result<Replay, ReplayError> {
        let mut machine = Machine::new(machine_config(cell, conditions)?);
        machine.set_lru_gen_bits(cell.lru_gen);
        let limits = Limits {
            max_pages: match cell.limit_bytes {
                0 => UNLIMITED,
                bytes => bytes / PAGE_BYTES,
            },
            ..Limits::default()
        };
        let limited = machine.add_memcg(MemcgId::ROOT, "t", limits);
        let mut replay = Replay {
            machine,
            members: Vec::new(),
        };
        let memcgs = replay.add_memcgs(cell, limited);
        let first_seed = cell.trace.seed.wrapping_sub(cell.members.this.into());
        for (number, memcg) in (0..).zip(memcgs) {
            let trace = TraceSpec {
                seed: first_seed.wrapping_add(number),
                ..cell.trace.clone()
            };
            replay.add_member(&trace, memcg, cell)?;
        }
        let first = replay.members[0].memcg;
        replay
            .machine
            .charge_kernel_pages(first, conditions.extra_kernel_pages);
        Ok(replay)
    }

    /// A single program runs in the limited cgroup; several run in one cgroup each below it.
    fn add_memcgs(&mut self, cell: &Cell, limited: MemcgId) -> Vec<MemcgId> {
        if cell.members.count == 1 {
            return vec![limited];
        }
        let limits = |number: u32| match number {
            0 => Limits {
                min_pages: cell.members.min_bytes / PAGE_BYTES,
                low_pages: cell.members.low_bytes / PAGE_BYTES,
                ..Limits::default()
            },
            _ => Limits::default(),
        };
        let add = |number: u32| {
            let name = format!("m{number}");
            let memcg = self.machine.add_memcg(limited, &name, limits(number));
            self.machine.charge_cgroup_objects(limited);
            memcg
        };
        (0..cell.members.count).map(add).collect()
    }

    fn add_member(
        &mut self,
        trace: &TraceSpec,
        memcg: MemcgId,
        cell: &Cell,
    ) -> Result<(), ReplayError> {
        let generator = TraceGenerator::new(trace)?;
        let machine = &mut self.machine;
        let process = machine.add_process(memcg);
        machine.charge_process_objects(process);
        let medium = generator.pattern().medium;
        let (pages, hot) = (trace.pages, trace.hot);
        let advice = if cell.nomadv {
            Advice::Normal
        } else {
            Advice::Random
        };
        let anon_pages = match medium {
            Medium::Anon => pages,
            Medium::Mixed => hot,
            Medium::File | Medium::Mmap => 0,
        };
        let too_large = ReplayError::TooLarge(pages);
        let own = machine
            .map(process, &MapOptions::anon(16))
            .ok_or(too_large.clone())?;
        let anon = MapOptions {
            huge: cell.guest.thp,
            ..MapOptions::anon(anon_pages.into())
        };
        let anon = machine.map(process, &anon).ok_or(too_large.clone())?;
        let uses_file = medium != Medium::Anon;
        let file_pages = if uses_file { pages } else { 0 };
        // All members use the same file. Its pages are charged to those who read them first.
        let opened = self.members.first().map(|first| first.file);
        let file = opened.unwrap_or_else(|| machine.add_file(file_pages, memcg, Advice::Random));
        let mapping = MapOptions {
            advice,
            ..MapOptions::file(file.number(), file_pages.into())
        };
        let mapped = machine.map(process, &mapping).ok_or(too_large)?;
        if uses_file && opened.is_none() {
            open_file(machine, process);
        }
        self.members.push(Member {
            process,
            memcg,
            medium,
            generator,
            anon_vpn: anon,
            mapped_vpn: mapped,
            file,
            own_vpn: own,
            reads: matches!(medium, Medium::File | Medium::Mixed),
        });
        Ok(())
    }

    /// Every program reads statistics into a buffer between phases, which flushes them.
    fn snapshot(&mut self) {
        self.machine.flush_stats();
        for member in &self.members {
            for page in 0..STAT_BUFFER_PAGES {
                self.machine
                    .access(member.process, member.own_vpn + page, true);
            }
        }
    }

    /// Runs a phase of all members in turns, until one is killed.
    fn run(&mut self, phase: Phase, cell: &Cell) {
        let touches = match phase {
            Phase::Populate if self.members[0].medium == Medium::Mixed => cell.trace.hot.into(),
            Phase::Populate => cell.trace.pages.into(),
            Phase::Warm => cell.trace.touches / 4,
            Phase::Main => cell.trace.touches,
        };
        let is_alone = self.members.len() == 1;
        let turn = if is_alone { touches.max(1) } else { TURN };
        let mut from = 0;
        while from < touches {
            let until = touches.min(from + turn);
            for member in &mut self.members {
                if !is_alone {
                    self.machine.schedule(member.process);
                }
                for t in from..until {
                    let (code, write) = match phase {
                        Phase::Populate => (t as u32, cell.writes || !member.is_file()),
                        Phase::Warm | Phase::Main => {
                            (member.generator.next(t, touches), cell.writes)
                        }
                    };
                    if member.touch(&mut self.machine, code, write) == Access::Killed {
                        return;
                    }
                }
            }
            from = until;
        }
    }

    /// Runs a phase and returns its counts for the cell's member; None if a process was killed.
    fn measure(&mut self, phase: Phase, cell: &Cell) -> Option<Simulated> {
        let this = cell.members.this as usize;
        self.snapshot();
        let (process, memcg) = (self.members[this].process, self.members[this].memcg);
        let stats = self.machine.process_stats(process);
        let events = self.machine.memcg_events(memcg);
        self.run(phase, cell);
        self.snapshot();
        let mut members = self.members.iter();
        if !members.all(|member| self.machine.is_alive(member.process)) {
            return None;
        }
        let after = self.machine.process_stats(process);
        let now = self.machine.memcg_events(memcg);
        let counts_reads = self.members[this].reads && phase != Phase::Populate;
        let misses = if counts_reads {
            after.read_pages - stats.read_pages
        } else {
            after.major_faults - stats.major_faults
        };
        Some(Simulated {
            misses,
            scanned: now.scanned() - events.scanned(),
            refilled: now.pgrefill - events.pgrefill,
            refaults: std::array::from_fn(|t| {
                now.workingset_refault[t] - events.workingset_refault[t]
            }),
        })
    }
}

/// Opens a file on ext4 for the first time: charges its inode, and leaves two pages of the block
/// device in the group that are read often enough to be active.
fn open_file(machine: &mut Machine, process: ProcessId) {
    machine.charge_file_objects(process);
    let metadata = machine.add_file(2, MemcgId::ROOT, Advice::Random);
    for _ in 0..3 {
        for page in 0..2 {
            machine.read(process, metadata, page, 1);
        }
    }
}

impl Member {
    #[inline]
    fn touch(&self, machine: &mut Machine, code: u32, write: bool) -> Access {
        let page = u64::from(code & !FILE_BIT);
        match self.medium {
            Medium::Anon => machine.access(self.process, self.anon_vpn + page, write),
            Medium::Mixed if code & FILE_BIT == 0 => {
                machine.access(self.process, self.anon_vpn + page, write)
            }
            Medium::Mmap => machine.access(self.process, self.mapped_vpn + page, write),
            Medium::File if write => machine.write_part(self.process, self.file, page as u32),
            Medium::File | Medium::Mixed => self.read(machine, code & !FILE_BIT),
        }
    }

    /// Whether all its pages are file pages.
    fn is_file(&self) -> bool {
        matches!(self.medium, Medium::File | Medium::Mmap)
    }

    /// Reads a page; pread() copies it into a buffer of the program and so touches the buffer.
    fn read(&self, machine: &mut Machine, page: u32) -> Access {
        let access = machine.read(self.process, self.file, page, 1);
        if self.reads {
            let buffer = self.own_vpn + STAT_BUFFER_PAGES;
            machine.access(self.process, buffer, true);
        }
        access
    }
}
