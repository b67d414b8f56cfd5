// SPDX-License-Identifier: Apache-2.0
//! Creating a machine; adding and removing cgroups and address spaces.

use crate::batch::CpuBatches;
use crate::classic;
use crate::folio::{FolioList, FolioTable};
use crate::ids::{LruvecId, MemcgId, MmId, NodeId};
use crate::lru::{Lru, Lruvec, Memcg, Mode, NodeFlags};
use crate::mglru;
use crate::reclaim;
use crate::refault_distance;
use crate::work::{Events, Work};

/// Size and policy of a new machine.
#[derive(Clone, Debug)]
pub struct LruConfig {
    /// Page frames, numbered from 0.
    pub frames: u32,
    /// NUMA nodes.
    pub nodes: u32,
    /// CPUs.
    pub cpus: usize,
    /// The LRU in use; not [`Mode::Switching`].
    pub mode: Mode,
    /// The clock in ns, which is the birth time of the root's first generations.
    pub now_ns: u64,
    /// Seed of the policies' random choices.
    pub seed: u64,
    /// Multi-gen settings.
    pub mglru: mglru::Settings,
    /// Classic settings.
    pub classic: classic::Settings,
}

impl Lru {
    /// Creates an empty machine with the root cgroup.
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
            migration: reclaim::migration_profile::Profile::default(),
            memcg_lrus: vec![mglru::MemcgLru::default(); nodes],
            work: Work::default(),
        };
        lru.memcg_online(MemcgId::NONE, mglru::DEFAULT_SWAPPINESS, config.now_ns);
        lru
    }

    /// A cgroup was created under `parent` at `now_ns`.
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
                mglru: mglru::State::new(
                    now_ns,
                    self.mode.is_multi_gen(),
                    self.mglru.profile.generations,
                ),
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

    /// A cgroup without tasks and children was removed. In 7.2 its folios move to the parent; in
    /// 6.12 they stay until reclaim has evicted them.
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

    /// An address space was created and its owner is in `memcg`.
    pub fn mm_add(&mut self, mm: MmId, memcg: MemcgId) {
        mglru::mm_add(self, mm, memcg);
    }

    /// An address space is being removed.
    pub fn mm_del(&mut self, mm: MmId) {
        mglru::mm_del(self, mm);
    }

    /// A thread of this address space was scheduled, so its page tables may have new accessed bits.
    #[inline]
    pub fn mm_scheduled(&mut self, mm: MmId) {
        self.mms.scheduled(mm);
    }
}
