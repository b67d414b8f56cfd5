// SPDX-License-Identifier: Apache-2.0
//! All policy state of one machine: folios, lruvecs, memory cgroups and per-CPU batches.
//!
//! A world owns one [`Lru`] beside its own mechanism and passes itself as `&mut impl World` to the
//! functions that decide. Classic and multi-gen state sit side by side in each lruvec, as in the
//! kernel, so that switching at run time loses no page.

use crate::classic;
use crate::folio::{FolioTable, Pfn};
use crate::ids::{LruvecId, MemcgId, NodeId};
use crate::mglru;
use crate::work::{Events, Work};

/// Which LRU decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Active and inactive lists.
    Classic,
    /// Generations.
    MultiGen,
    /// Being switched: pages are on either structure and reclaim tries both (7.2).
    Switching,
}

/// The lists of one memory cgroup on one node.
#[derive(Clone, Debug)]
pub struct Lruvec {
    /// Its cgroup.
    pub memcg: MemcgId,
    /// Its node.
    pub node: NodeId,
    /// What happened on it.
    pub events: Events,
    /// Active, inactive and unevictable lists, costs and ages.
    pub classic: classic::State,
    /// Generations, controller and walk state.
    pub mglru: mglru::State,
}

/// A memory cgroup as the policies know it; limits and usage are the world's.
#[derive(Clone, Debug)]
pub struct Memcg {
    /// Parent; [`MemcgId::NONE`] for the root.
    pub parent: MemcgId,
    /// Children in creation order, dead ones removed.
    pub children: Vec<MemcgId>,
    /// One lruvec a node.
    pub lruvecs: Vec<LruvecId>,
    /// Address spaces whose owner lives here, oldest first (`lru_gen_mm_list`).
    pub mms: mglru::MmList,
    /// `memory.swappiness` or the system's, 0..=200.
    pub swappiness: u32,
    /// False once removed; it lingers while pages are charged to it.
    pub online: bool,
}

/// Per-CPU batches of up to 31 pages (`struct cpu_fbatches`).
#[derive(Clone, Debug, Default)]
pub struct CpuBatches {
    /// New folios not yet on a list.
    pub add: Vec<Pfn>,
    /// Folios to activate.
    pub activate: Vec<Pfn>,
    /// Folios to deactivate (cold advice).
    pub deactivate: Vec<Pfn>,
}

/// The policy state of a machine.
#[derive(Clone, Debug)]
pub struct Lru {
    /// Every frame.
    pub folios: FolioTable,
    /// Every lruvec ever made; ids are indices.
    pub lruvecs: Vec<Lruvec>,
    /// Every cgroup ever made; ids are indices.
    pub memcgs: Vec<Memcg>,
    /// One a CPU.
    pub cpus: Vec<CpuBatches>,
    /// Which LRU decides.
    pub mode: Mode,
    /// Multi-gen: what differs between kernel versions, and run-time settings.
    pub mglru: mglru::Settings,
    /// Classic: settings.
    pub classic: classic::Settings,
    /// One memcg LRU a node (order of global reclaim).
    pub memcg_lrus: Vec<mglru::MemcgLru>,
    /// CPU work done so far.
    pub work: Work,
}
