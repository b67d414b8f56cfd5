// SPDX-License-Identifier: Apache-2.0
//! All policy state of one machine: folios, lruvecs, memory cgroups and per-CPU batches; and the
//! facts a world reports to it.
//!
//! A world owns one [`Lru`] beside its own mechanism and passes itself as `&mut impl World` to the
//! functions that decide. Classic and multi-gen state sit side by side in each lruvec, as in the
//! kernel, so that switching at run time loses no page. Which of the two holds a folio shows in the
//! folio itself: a generation means multi-gen.

use crate::batch::CpuBatches;
use crate::classic;
use crate::folio::{Flag, FolioList, FolioTable, FolioType, Pfn};
use crate::ids::{LruvecId, MemcgId, MmId, NodeId};
use crate::mglru;
use crate::reclaim::{self, ScanControl};
use crate::refault_distance;
use crate::work::{Events, Work};
use crate::world::World;

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
    /// What happened on it.
    pub events: Events,
    /// Folios that cannot be reclaimed, shared by both structures.
    pub unevictable: FolioList,
    /// Active and inactive lists, costs and ages.
    pub classic: classic::State,
    /// Generations, controller and walk state.
    pub mglru: mglru::State,
    /// Cursor and congestion of the reclaims that target it.
    pub reclaim: reclaim::LruvecState,
    /// What the refault-distance rule may promote under multi-gen.
    pub promotion_credit: refault_distance::PromotionCredit,
}

/// A memory cgroup as the policies know it; limits and usage are the world's.
#[derive(Clone, Debug)]
pub struct Memcg {
    /// Parent; [`MemcgId::NONE`] for the root.
    pub parent: MemcgId,
    /// Children in creation order; removed ones as long as they may hold folios.
    pub children: Vec<MemcgId>,
    /// One lruvec a node, in node order.
    pub lruvecs: Vec<LruvecId>,
    /// Address spaces whose owner lives here, oldest first (`lru_gen_mm_list`).
    pub mms: mglru::MmList,
    /// `memory.swappiness` or the system's, 0..=200.
    pub swappiness: u32,
    /// False once removed; it lingers while pages are charged to it.
    pub online: bool,
    /// Times it was reclaimed although within `memory.low` (`memory.events` low).
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

/// How a folio enters the lists.
#[derive(Clone, Copy, Debug)]
pub struct AddContext {
    /// CPU whose batch it joins.
    pub cpu: usize,
    /// It was brought in by a page fault in a mapping with recency (`lru_gen_in_fault`).
    pub fault_with_recency: bool,
    /// The task itself is reclaiming (`PF_MEMALLOC`).
    pub reclaiming: bool,
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
    /// One a CPU.
    pub cpus: Vec<CpuBatches>,
    /// One a reclaim node: a node, or a zone where each has lists of its own
    /// ([`crate::reclaim::scope`]).
    pub node_flags: Vec<NodeFlags>,
    /// One a reclaim node: what reclaim remembers between calls.
    pub nodes: Vec<reclaim::NodeState>,
    /// Which LRU decides.
    pub mode: Mode,
    /// Multi-gen: what differs between kernel versions, and run-time settings.
    pub mglru: mglru::Settings,
    /// Multi-gen: walk object, buffers and random numbers of the machine.
    pub mglru_machine: mglru::Machine,
    /// Classic: settings.
    pub classic: classic::Settings,
    /// One memcg LRU a node (order of global reclaim).
    pub memcg_lrus: Vec<mglru::MemcgLru>,
    /// CPU work done so far.
    pub work: Work,
}

/// Size and policy of a new machine.
#[derive(Clone, Debug)]
pub struct LruConfig {
    /// Page frames, numbered from 0.
    pub frames: u32,
    /// NUMA nodes.
    pub nodes: u32,
    /// CPUs.
    pub cpus: usize,
    /// Which LRU decides; not [`Mode::Switching`].
    pub mode: Mode,
    /// The clock, in ns: birth of the root's first generations.
    pub now_ns: u64,
    /// Seed of the policies' random choices.
    pub seed: u64,
    /// Multi-gen settings.
    pub mglru: mglru::Settings,
    /// Classic settings.
    pub classic: classic::Settings,
}

impl Lru {
    /// An empty machine with the root cgroup.
    #[must_use]
    pub fn new(config: LruConfig) -> Lru {
        let nodes = config.classic.list_scope.reclaim_nodes(config.nodes.max(1)) as usize;
        let mut lru = Lru {
            folios: FolioTable::new(config.frames),
            lruvecs: Vec::new(),
            memcgs: Vec::new(),
            mms: mglru::MmTable::default(),
            cpus: vec![CpuBatches::default(); config.cpus.max(1)],
            node_flags: vec![NodeFlags::default(); nodes],
            nodes: vec![reclaim::NodeState::default(); nodes],
            mode: config.mode,
            mglru: config.mglru,
            mglru_machine: mglru::Machine::new(config.seed),
            classic: config.classic,
            memcg_lrus: vec![mglru::MemcgLru::default(); nodes],
            work: Work::default(),
        };
        lru.memcg_online(MemcgId::NONE, mglru::DEFAULT_SWAPPINESS, config.now_ns);
        lru
    }

    /// A cgroup was made under `parent` at `now_ns`.
    pub fn memcg_online(&mut self, parent: MemcgId, swappiness: u32, now_ns: u64) -> MemcgId {
        let memcg = MemcgId(u32::try_from(self.memcgs.len()).expect("fewer than 2^32 cgroups"));
        let nodes = u32::try_from(self.node_flags.len()).expect("fewer than 2^32 nodes");
        let first = u32::try_from(self.lruvecs.len()).expect("fewer than 2^32 lruvecs");
        for node in 0..nodes {
            self.lruvecs.push(Lruvec {
                memcg,
                node: NodeId(node),
                events: Events::default(),
                unevictable: FolioList::default(),
                classic: classic::State::default(),
                mglru: mglru::State::new(now_ns, self.mode.is_multi_gen()),
                reclaim: reclaim::LruvecState::default(),
                promotion_credit: refault_distance::PromotionCredit::default(),
            });
        }
        self.memcgs.push(Memcg {
            parent,
            children: Vec::new(),
            lruvecs: (first..first + nodes).map(LruvecId).collect(),
            mms: mglru::MmList::default(),
            swappiness,
            online: true,
            low_events: 0,
        });
        if parent != MemcgId::NONE {
            self.memcgs[parent.index()].children.push(memcg);
        }
        mglru::memcg_lru_online(self, memcg);
        memcg
    }

    /// A cgroup was removed: it has no tasks and no children. In 7.2 its folios move to the parent;
    /// in 6.12 they stay until reclaim has scraped them off.
    pub fn memcg_offline(&mut self, memcg: MemcgId, now_ns: u64) {
        debug_assert!(memcg != MemcgId::ROOT, "the root cannot be removed");
        let parent = self.memcgs[memcg.index()].parent;
        self.memcgs[memcg.index()].online = false;
        mglru::memcg_lru_offline(self, memcg);
        if self.mglru.profile.reparents_on_offline {
            self.memcgs[parent.index()]
                .children
                .retain(|&child| child != memcg);
            self.reparent(memcg, parent, now_ns);
        }
    }

    fn reparent(&mut self, memcg: MemcgId, parent: MemcgId, now_ns: u64) {
        self.drain_all();
        let pairs: Vec<_> = self.memcgs[memcg.index()]
            .lruvecs
            .iter()
            .copied()
            .zip(self.memcgs[parent.index()].lruvecs.iter().copied())
            .collect();
        for (from, to) in pairs {
            mglru::reparent(self, from, to, now_ns);
            classic::reparent(self, from, to);
            let mut unevictable = std::mem::take(&mut self.lruvecs[from.index()].unevictable);
            self.adopt(&unevictable, to);
            self.lruvecs[to.index()]
                .unevictable
                .append_tail(&mut self.folios, &mut unevictable);
        }
    }

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
    /// (`mem_cgroup_iter`). Where folios do not move to the parent, removed ones stay in their place.
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

    /// Pages of the "active" or "inactive" kind on all lists of a lruvec, as `memory.stat` tells
    /// them: generations `max_seq` and `max_seq - 1` count as active.
    #[must_use]
    pub fn lru_pages(&self, lruvec: LruvecId, folio_type: FolioType, active: bool) -> u64 {
        let lruvec = &self.lruvecs[lruvec.index()];
        lruvec.mglru.pages(folio_type, active) + lruvec.classic.pages(folio_type, active)
    }

    // ---- address spaces

    /// An address space was made and its owner lives in `memcg`.
    pub fn mm_add(&mut self, mm: MmId, memcg: MemcgId) {
        mglru::mm_add(self, mm, memcg);
    }

    /// An address space goes away.
    pub fn mm_del(&mut self, mm: MmId) {
        mglru::mm_del(self, mm);
    }

    /// A context switch to a thread of this address space: its page tables may hold news.
    #[inline]
    pub fn mm_scheduled(&mut self, mm: MmId) {
        self.mms.scheduled(mm);
    }

    // ---- folios

    /// A folio the world has started ([`FolioTable::start`]) and, for a refault, passed to
    /// [`Lru::refault`], joins the add batch (`folio_add_lru`). The place is chosen when the batch
    /// is drained, which is now if this folio fills it. A swap-in that frees its swap-cache entry
    /// right after mapping (zram) clears `Swapcache` after this call.
    pub fn folio_add(&mut self, pfn: Pfn, context: AddContext) {
        if self.mode.is_multi_gen() && context.fault_with_recency && !context.reclaiming {
            let profile = self.mglru.profile;
            profile.mark_faulted(&mut self.folios[pfn], self.mglru.ablation);
        }
        self.batch_add(context.cpu, pfn);
    }

    /// A read, write or other access through a file descriptor, or the accessed bit of a mapping
    /// that goes away (`mark_page_accessed`). The world leaves out repeated reads of one page
    /// through one open file.
    #[inline]
    pub fn mark_accessed(&mut self, pfn: Pfn, cpu: usize) {
        if self.mode == Mode::Classic {
            classic::mark_accessed(self, pfn, cpu);
        } else {
            let folio = &mut self.folios[pfn];
            let (refs, again) = (folio.refs(), folio.has(Flag::Referenced));
            self.mglru.profile.mark_accessed(folio);
            if self.mglru.keep_restored_refs && !again {
                folio.set_refs(refs);
            }
        }
    }

    /// An evicted page is back in a new folio, not yet added; `shadow` is what eviction left
    /// behind. `fault_with_recency` as in [`AddContext`].
    pub fn refault<W: World>(
        &mut self,
        world: &W,
        pfn: Pfn,
        shadow: u64,
        fault_with_recency: bool,
    ) {
        if self.mode == Mode::Classic {
            classic::refault(self, world, pfn, shadow);
        } else {
            mglru::refault(self, world, pfn, shadow, fault_with_recency);
        }
    }

    /// The token to leave behind for a folio that is evicted now on behalf of `target`.
    pub fn eviction_shadow(&mut self, pfn: Pfn, target: MemcgId) -> u64 {
        if self.mode == Mode::Classic {
            classic::eviction_shadow(self, pfn, target)
        } else {
            mglru::eviction_shadow(self, pfn)
        }
    }

    /// Hot advice for one folio (`folio_activate`): it joins the active list, or the second youngest
    /// generation (the youngest if its workingset flag is set), whatever its references.
    pub fn activate(&mut self, pfn: Pfn, cpu: usize) {
        self.batch_activate(cpu, pfn);
    }

    /// Cold advice for one folio (`folio_deactivate`).
    pub fn deactivate(&mut self, pfn: Pfn, cpu: usize) {
        let folio = &mut self.folios[pfn];
        if folio.has(Flag::Unevictable) || !folio.has(Flag::Lru) {
            return;
        }
        let skip = if self.mode == Mode::Classic {
            !folio.has(Flag::Active)
        } else {
            let min_seq = self.lruvecs[folio.lruvec.index()].mglru.min_seq;
            self.mglru.profile.deactivate_in_place(folio, min_seq)
        };
        if !skip {
            self.batch_deactivate(cpu, pfn);
        }
    }

    /// A folio was freed without reclaim (munmap, exit, truncate, swap slot reused): takes it off
    /// its list or out of its batch. Its frame may be started again afterwards.
    pub fn folio_removed(&mut self, pfn: Pfn) {
        self.batch_forget(pfn);
        let lruvec = self.folios[pfn].lruvec;
        if let Some(lruvec) = self.lruvecs.get(lruvec.index()) {
            self.nodes[lruvec.node.index()].scanned_since_free = 0;
        }
        if self.folios[pfn].test_clear(Flag::Lru) {
            self.list_del(pfn);
        }
        self.folios[pfn].clear(Flag::Active);
    }

    /// A folio became mlocked or otherwise unevictable.
    pub fn make_unevictable(&mut self, pfn: Pfn) {
        self.folios[pfn].set(Flag::Mlocked);
        if self.folios[pfn].has(Flag::Lru) && !self.folios[pfn].has(Flag::Unevictable) {
            self.list_del(pfn);
            self.folios[pfn].clear(Flag::Active);
            self.folios[pfn].set(Flag::Unevictable);
            self.list_add(pfn, false);
        }
    }

    /// A folio can be reclaimed again.
    pub fn make_evictable(&mut self, pfn: Pfn) {
        self.folios[pfn].clear(Flag::Mlocked);
        if self.folios[pfn].has(Flag::Lru) && self.folios[pfn].has(Flag::Unevictable) {
            self.list_del(pfn);
            self.folios[pfn].clear(Flag::Unevictable);
            self.list_add(pfn, false);
        }
    }

    /// Writeback of a folio ended (the world has cleared `Writeback`): one that reclaim waits for
    /// is rotated to the tail (`folio_rotate_reclaimable`).
    pub fn writeback_end(&mut self, pfn: Pfn, cpu: usize) {
        let folio = &mut self.folios[pfn];
        if folio.test_clear(Flag::Reclaim)
            && folio.has(Flag::Lru)
            && !folio.has_any(Flag::Locked as u32 | Flag::Dirty as u32 | Flag::Unevictable as u32)
        {
            self.batch_rotate(cpu, pfn);
        }
    }

    // ---- lists

    /// Puts a folio on a list of its lruvec (`lruvec_add_folio`, or `lruvec_add_folio_tail`).
    /// The caller keeps `Flag::Lru`.
    pub(crate) fn list_add(&mut self, pfn: Pfn, tail: bool) {
        self.work.list_moves += 1;
        let folios = &mut self.folios;
        let lruvec = &mut self.lruvecs[folios[pfn].lruvec.index()];
        if folios[pfn].has(Flag::Unevictable) {
            lruvec.unevictable.push_head(folios, pfn);
        } else if lruvec.mglru.enabled {
            mglru::add_folio(folios, lruvec, &self.mglru.profile, pfn, tail);
        } else {
            classic::add_folio(folios, lruvec, pfn, tail);
        }
    }

    /// Takes a folio off the list of its lruvec (`lruvec_del_folio`), not for reclaim.
    pub(crate) fn list_del(&mut self, pfn: Pfn) {
        self.work.list_moves += 1;
        let folios = &mut self.folios;
        let lruvec = &mut self.lruvecs[folios[pfn].lruvec.index()];
        if folios[pfn].has(Flag::Unevictable) {
            lruvec.unevictable.remove(folios, pfn);
        } else if folios[pfn].generation().is_some() {
            mglru::del_folio(folios, lruvec, pfn, false);
        } else {
            classic::del_folio(folios, lruvec, pfn);
        }
    }

    // ---- reclaim

    /// Reclaims from one lruvec at the priority of `sc` (`shrink_lruvec`). Global reclaim under
    /// multi-gen goes through [`mglru::shrink_node`] instead.
    pub fn shrink_lruvec<W: World>(
        &mut self,
        world: &mut W,
        lruvec: LruvecId,
        sc: &mut ScanControl,
    ) {
        if self.mode != Mode::Classic {
            mglru::shrink_lruvec(self, world, lruvec, sc);
            if self.mode != Mode::Switching {
                return;
            }
        }
        classic::shrink_lruvec(self, world, lruvec, sc);
    }
}
