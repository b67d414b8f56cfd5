// SPDX-License-Identifier: Apache-2.0
//! All policy state of one machine: folios, lruvecs, memory cgroups and per-CPU batches.
//!
//! A world owns one [`Lru`] next to its own mechanism, and passes itself as `&mut impl World` to
//! the functions that decide. Each lruvec has both classic and multi-gen state, as in the kernel,
//! so that switching at run time loses no page. Each folio shows in which of the two it is: a folio
//! with a generation is in the multi-gen LRU.

use crate::batch::CpuBatches;
use crate::classic;
use crate::folio::{FolioList, FolioTable, FolioType};
use crate::ids::{LruvecId, MemcgId, NodeId};
use crate::mglru;
use crate::reclaim;
use crate::refault_distance;
use crate::work::{Events, Work};

/// The LRU in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Active and inactive lists.
    Classic,
    /// Generations.
    MultiGen,
    /// Being switched: pages are in either structure, and reclaim tries both (7.2).
    Switching,
}

impl Mode {
    /// Whether new folios, access marks and reference checks follow the multi-gen rules
    /// (`lru_gen_enabled() && !lru_gen_switching()`).
    #[inline]
    #[must_use]
    pub fn is_multi_gen(self) -> bool {
        self == Mode::MultiGen
    }
}

/// The lists of one memory cgroup on one node.
#[derive(Clone, Debug)]
pub struct Lruvec {
    /// Its cgroup.
    pub memcg: MemcgId,
    /// Its node.
    pub node: NodeId,
    /// Its event counters.
    pub events: Events,
    /// Folios that cannot be reclaimed, shared by both structures.
    pub unevictable: FolioList,
    /// Active and inactive lists, costs and ages.
    pub classic: classic::State,
    /// Generations, controller and walk state.
    pub mglru: mglru::State,
    /// Cursor and congestion state of reclaims that target it.
    pub reclaim: reclaim::LruvecState,
    /// What the refault-distance rule may promote under multi-gen.
    pub promotion_credit: refault_distance::PromotionCredit,
}

/// A memory cgroup as the policies see it; limits and usage belong to the world.
#[derive(Clone, Debug)]
pub struct Memcg {
    /// Parent; [`MemcgId::NONE`] for the root.
    pub parent: MemcgId,
    /// Children in creation order, including removed ones while they may have folios.
    pub children: Vec<MemcgId>,
    /// One lruvec per node, in node order.
    pub lruvecs: Vec<LruvecId>,
    /// Address spaces whose owner lives here, oldest first (`lru_gen_mm_list`).
    pub mms: mglru::MmList,
    /// `memory.swappiness` or the system's, 0..=200.
    pub swappiness: u32,
    /// False once removed; a removed cgroup lingers while pages are charged to it.
    pub online: bool,
    /// Number of times it was reclaimed although within `memory.low` (`memory.events` low).
    pub low_events: u64,
}

/// Reclaim flags of a node (`PGDAT_*`), set and used by the classic path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFlags {
    /// Many dirty file folios at the tail: kswapd may write them (6.12).
    pub dirty: bool,
    /// Many folios under writeback at the tail.
    pub writeback: bool,
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
    /// Every address space; ids are indices.
    pub mms: mglru::MmTable,
    /// One per CPU.
    pub cpus: Vec<CpuBatches>,
    /// One per reclaim node: a node, or a zone if zones have their own lists
    /// ([`crate::reclaim::scope`]).
    pub node_flags: Vec<NodeFlags>,
    /// One per reclaim node: reclaim state kept between calls.
    pub nodes: Vec<reclaim::NodeState>,
    /// The LRU in use.
    pub mode: Mode,
    /// Multi-gen: differences between kernel versions, and run-time settings.
    pub mglru: mglru::Settings,
    /// Multi-gen: walk object, buffers and random numbers of the machine.
    pub mglru_machine: mglru::Machine,
    /// Classic: settings.
    pub classic: classic::Settings,
    /// Moves between nodes: differences between kernel versions.
    pub migration: reclaim::migration_profile::Profile,
    /// One memcg LRU per node (the order of global reclaim).
    pub memcg_lrus: Vec<mglru::MemcgLru>,
    /// CPU work done so far.
    pub work: Work,
}

impl Lru {
    /// Charges every folio of a list to another lruvec.
    pub(crate) fn adopt(&mut self, list: &FolioList, to: LruvecId) {
        let mut pfn = list.tail();
        while pfn.is_some() {
            self.folios[pfn].lruvec = to;
            pfn = FolioList::newer(&self.folios, pfn);
        }
    }

    /// The lruvec of a cgroup on a node.
    #[inline]
    #[must_use]
    pub fn lruvec_id(&self, memcg: MemcgId, node: NodeId) -> LruvecId {
        self.memcgs[memcg.index()].lruvecs[node.index()]
    }

    /// Whether `memcg` is `root` or below it.
    #[must_use]
    pub fn is_descendant(&self, memcg: MemcgId, root: MemcgId) -> bool {
        let mut at = memcg;
        while at != root {
            if at == MemcgId::NONE {
                return false;
            }
            at = self.memcgs[at.index()].parent;
        }
        true
    }

    /// The cgroups at and below `root`, parents first, children in creation order
    /// (`mem_cgroup_iter`). Removed cgroups are included unless their folios move to the parent.
    #[must_use]
    pub fn tree_order(&self, root: MemcgId) -> Vec<MemcgId> {
        let mut order = Vec::with_capacity(self.memcgs.len());
        let mut pending = vec![root];
        while let Some(memcg) = pending.pop() {
            order.push(memcg);
            pending.extend(self.memcgs[memcg.index()].children.iter().rev());
        }
        order
    }

    /// Pages of a type on the active or inactive lists of a lruvec, as `memory.stat` reports them:
    /// generations `max_seq` and `max_seq - 1` count as active.
    #[must_use]
    pub fn lru_pages(&self, lruvec: LruvecId, folio_type: FolioType, active: bool) -> u64 {
        let lruvec = &self.lruvecs[lruvec.index()];
        lruvec.mglru.pages(folio_type, active) + lruvec.classic.pages(folio_type, active)
    }
}
