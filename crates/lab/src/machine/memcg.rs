// SPDX-License-Identifier: Apache-2.0
//! Memory cgroups as counters: usage along the tree, limits, protection and the per-CPU stock.

use agewise_kernel::ids::MemcgId;
use agewise_kernel::reclaim::charge::CHARGE_BATCH;
use agewise_kernel::world::Protection;
use agewise_policy::table::PAGE_BYTES;

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;

/// Limits of one cgroup, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `memory.min`.
    pub min_pages: u64,
    /// `memory.low`.
    pub low_pages: u64,
    /// `memory.high`.
    pub high_pages: u64,
    /// `memory.max`.
    pub max_pages: u64,
    /// `memory.swap.max`.
    pub swap_max_pages: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            min_pages: 0,
            low_pages: 0,
            high_pages: UNLIMITED,
            max_pages: UNLIMITED,
            swap_max_pages: UNLIMITED,
        }
    }
}

/// `memory.events` (of a cgroup alone, where it is counted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemcgEvents {
    /// Reclaims although usage was below `memory.low`.
    pub low: u64,
    /// Times usage was over `memory.high`.
    pub high: u64,
    /// Times usage was about to exceed `memory.max`.
    pub max: u64,
    /// Times the limit was reached and nothing could be reclaimed.
    pub oom: u64,
    /// Tasks killed.
    pub oom_kill: u64,
}

/// Counters of one cgroup.
#[derive(Clone, Debug)]
pub struct MemcgCounters {
    /// Path from the root of the hierarchy.
    pub path: String,
    parent: MemcgId,
    children: Vec<MemcgId>,
    pub limits: Limits,
    /// Pages charged in the subtree.
    pub usage_pages: u64,
    /// Swap slots charged in the subtree.
    pub swap_pages: u64,
    /// Pages in memory charged to this cgroup alone, anon and file.
    pub resident_pages: [u64; 2],
    /// Dirty file pages charged to this cgroup alone.
    pub dirty_pages: u64,
    /// Page-table pages charged to this cgroup alone.
    pub table_pages: u64,
    /// Bytes of kernel objects charged to this cgroup alone.
    pub slab_bytes: u64,
    /// Bytes charged as whole pages but not yet used by an object (`obj_stock`).
    object_stock_bytes: u64,
    /// `memory.events`.
    pub events: MemcgEvents,
    /// Tasks in the cgroup.
    pub tasks: u32,
    /// False once removed.
    pub online: bool,
    /// Deferred work of the shadow shrinker.
    pub shrinker_deferred: u64,
    /// Nodes with only shadows, in the order they lost their last page (`list_lru`): file and
    /// first entry.
    pub shadow_nodes: std::collections::VecDeque<(u32, u32)>,
    /// Number of listed nodes that still have only shadows.
    pub shadow_node_count: u64,
    /// Listed nodes dropped by their shrinker.
    pub shadow_nodes_dropped: u64,
}

/// All cgroups and the stocks of all CPUs.
#[derive(Clone, Debug)]
pub struct Memcgs {
    groups: Vec<MemcgCounters>,
    /// Pages each CPU keeps in stock, by cgroup.
    stocks: Vec<Vec<(MemcgId, u64)>>,
    /// Number of cgroups whose charges a CPU can keep: 1 in 6.12, 7 in 7.2.
    stock_slots: usize,
}

impl Memcgs {
    /// The root cgroup alone.
    pub fn new(cpus: usize, stock_slots: usize) -> Memcgs {
        let mut memcgs = Memcgs {
            groups: Vec::new(),
            stocks: vec![Vec::new(); cpus],
            stock_slots,
        };
        memcgs.add(MemcgId::NONE, "/".to_owned());
        memcgs
    }

    /// Adds a child of `parent` with the given path.
    pub fn add(&mut self, parent: MemcgId, path: String) -> MemcgId {
        let id = MemcgId(self.groups.len() as u32);
        self.groups.push(MemcgCounters {
            path,
            parent,
            children: Vec::new(),
            limits: Limits::default(),
            usage_pages: 0,
            swap_pages: 0,
            resident_pages: [0; 2],
            dirty_pages: 0,
            table_pages: 0,
            slab_bytes: 0,
            object_stock_bytes: 0,
            events: MemcgEvents::default(),
            tasks: 0,
            online: true,
            shrinker_deferred: 0,
            shadow_nodes: std::collections::VecDeque::new(),
            shadow_node_count: 0,
            shadow_nodes_dropped: 0,
        });
        if parent != MemcgId::NONE {
            self[parent].children.push(id);
        }
        id
    }

    /// Removes a cgroup from its parent's children and marks it offline.
    pub fn detach(&mut self, memcg: MemcgId) {
        let parent = self[memcg].parent;
        self[memcg].online = false;
        if parent != MemcgId::NONE {
            self[parent].children.retain(|&child| child != memcg);
        }
    }

    /// Number of cgroups created so far.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Parent of a cgroup; `NONE` for the root.
    pub fn parent(&self, memcg: MemcgId) -> MemcgId {
        self[memcg].parent
    }

    /// Children of a cgroup.
    pub fn children(&self, memcg: MemcgId) -> &[MemcgId] {
        &self[memcg].children
    }

    /// The cgroup and its ancestors.
    pub fn ancestry(&self, memcg: MemcgId) -> impl Iterator<Item = MemcgId> + '_ {
        std::iter::successors(Some(memcg), |&at| {
            Some(self[at].parent).filter(|&parent| parent != MemcgId::NONE)
        })
    }

    /// Whether `memcg` is `root` or below it.
    pub fn is_descendant(&self, memcg: MemcgId, root: MemcgId) -> bool {
        root == MemcgId::ROOT || self.ancestry(memcg).any(|at| at == root)
    }

    /// Takes `pages` from this CPU's stock. Returns false if it has too few.
    pub fn consume_stock(&mut self, cpu: usize, memcg: MemcgId, pages: u64) -> bool {
        match self.stocks[cpu].iter_mut().find(|(id, _)| *id == memcg) {
            Some((_, stock)) if *stock >= pages => {
                *stock -= pages;
                true
            }
            _ => false,
        }
    }

    /// Charges `pages` to the cgroup and its ancestors.
    ///
    /// # Errors
    /// Returns the cgroup whose `memory.max` would be exceeded; nothing is charged then.
    pub fn try_charge(&mut self, memcg: MemcgId, pages: u64) -> Result<(), MemcgId> {
        let over = self
            .ancestry(memcg)
            .find(|&at| self[at].usage_pages.saturating_add(pages) > self[at].limits.max_pages);
        match over {
            Some(over) => Err(over),
            None => {
                self.charge(memcg, pages);
                Ok(())
            }
        }
    }

    /// Charges the cgroup and its ancestors regardless of the limits.
    pub fn charge(&mut self, memcg: MemcgId, pages: u64) {
        let mut at = memcg;
        while at != MemcgId::NONE {
            self[at].usage_pages += pages;
            at = self[at].parent;
        }
    }

    /// Uncharges the cgroup and its ancestors.
    pub fn uncharge(&mut self, memcg: MemcgId, pages: u64) {
        let mut at = memcg;
        while at != MemcgId::NONE {
            debug_assert!(self[at].usage_pages >= pages, "uncharge without a charge");
            self[at].usage_pages = self[at].usage_pages.saturating_sub(pages);
            at = self[at].parent;
        }
    }

    /// Puts charged pages into this CPU's stock. Stock of another cgroup in its place, or beyond a
    /// batch, is uncharged.
    pub fn refill_stock(&mut self, cpu: usize, memcg: MemcgId, pages: u64) {
        if let Some((_, stock)) = self.stocks[cpu].iter_mut().find(|(id, _)| *id == memcg) {
            *stock += pages;
            let excess = std::mem::take(stock);
            if excess <= CHARGE_BATCH {
                *stock = excess;
            } else {
                self.uncharge(memcg, excess);
            }
            return;
        }
        if self.stocks[cpu].len() >= self.stock_slots {
            let (old, stock) = self.stocks[cpu].remove(0);
            self.uncharge(old, stock);
        }
        self.stocks[cpu].push((memcg, pages));
    }

    /// Uncharges all stocks of `root` and its descendants (`drain_all_stock`).
    pub fn drain_stocks(&mut self, root: MemcgId) {
        for cpu in 0..self.stocks.len() {
            for (memcg, stock) in std::mem::take(&mut self.stocks[cpu]) {
                if self.is_descendant(memcg, root) {
                    self.uncharge(memcg, stock);
                } else {
                    self.stocks[cpu].push((memcg, stock));
                }
            }
        }
    }

    /// Pages that can still be charged below the cgroup's own limit (`mem_cgroup_margin`).
    pub fn margin(&self, memcg: MemcgId) -> u64 {
        let group = &self[memcg];
        group.limits.max_pages.saturating_sub(group.usage_pages)
    }

    /// Swap slots the limits still allow the cgroup, regardless of what is free in the area.
    pub fn swap_margin(&self, memcg: MemcgId) -> u64 {
        self.ancestry(memcg)
            .map(|at| {
                self[at]
                    .limits
                    .swap_max_pages
                    .saturating_sub(self[at].swap_pages)
            })
            .min()
            .unwrap_or(UNLIMITED)
    }

    /// Whether the cgroup or an ancestor has used half of the swap that it is allowed.
    pub fn swap_is_half_used(&self, memcg: MemcgId) -> bool {
        self.ancestry(memcg)
            .filter(|&at| at != MemcgId::ROOT)
            .any(|at| self[at].swap_pages.saturating_mul(2) >= self[at].limits.swap_max_pages)
    }

    /// Charges swap slots to the cgroup and its ancestors; a negative number uncharges.
    pub fn charge_swap(&mut self, memcg: MemcgId, slots: i64) {
        let mut at = memcg;
        while at != MemcgId::NONE {
            self[at].swap_pages = self[at].swap_pages.saturating_add_signed(slots);
            at = self[at].parent;
        }
    }

    /// Pages that must be charged before an object of `bytes` can be made.
    pub fn object_needs_pages(&self, memcg: MemcgId, bytes: u64) -> u64 {
        let short = bytes.saturating_sub(self[memcg].object_stock_bytes);
        short.div_ceil(PAGE_BYTES)
    }

    /// Adds an object of `bytes` whose pages were charged.
    pub fn add_object(&mut self, memcg: MemcgId, bytes: u64, charged_pages: u64) {
        let group = &mut self[memcg];
        group.slab_bytes += bytes;
        group.object_stock_bytes += charged_pages * PAGE_BYTES;
        group.object_stock_bytes = group.object_stock_bytes.saturating_sub(bytes);
    }

    /// Frees objects of `bytes` in total; whole pages go back to the cgroup.
    pub fn free_objects(&mut self, memcg: MemcgId, bytes: u64) {
        let group = &mut self[memcg];
        group.slab_bytes = group.slab_bytes.saturating_sub(bytes);
        group.object_stock_bytes += bytes;
        let pages = group.object_stock_bytes / PAGE_BYTES;
        group.object_stock_bytes %= PAGE_BYTES;
        self.uncharge(memcg, pages);
    }

    /// Moves kernel objects and the list of shadow-only nodes of a removed cgroup to its parent
    /// (`memcg_reparent_objcgs`, `memcg_reparent_list_lrus`).
    pub fn move_objects(&mut self, memcg: MemcgId) {
        let parent = self[memcg].parent;
        let group = &mut self[memcg];
        let kept_pages = (group.slab_bytes + group.object_stock_bytes) / PAGE_BYTES;
        group.usage_pages = group.usage_pages.saturating_sub(kept_pages);
        let slab_bytes = std::mem::take(&mut group.slab_bytes);
        let stock_bytes = std::mem::take(&mut group.object_stock_bytes);
        let nodes = std::mem::take(&mut group.shadow_nodes);
        let node_count = std::mem::take(&mut group.shadow_node_count);
        let above = &mut self[parent];
        above.slab_bytes += slab_bytes;
        above.object_stock_bytes += stock_bytes;
        above.shadow_nodes.extend(nodes);
        above.shadow_node_count += node_count;
    }

    /// Kernel memory charged to the cgroup alone, in pages (`kernel` of `memory.stat`).
    pub fn kernel_pages(&self, memcg: MemcgId) -> u64 {
        let group = &self[memcg];
        group.table_pages + (group.slab_bytes + group.object_stock_bytes).div_ceil(PAGE_BYTES)
    }

    /// Effective protection of `memcg` when `target` is reclaimed
    /// (`mem_cgroup_calculate_protection`, without `memory_recursiveprot`).
    pub fn protection(&self, target: MemcgId, memcg: MemcgId) -> Protection {
        let usage_pages = self[memcg].usage_pages;
        if memcg == target || memcg == MemcgId::ROOT {
            return Protection {
                usage_pages,
                ..Protection::default()
            };
        }
        Protection {
            min_pages: self.effective(target, memcg, |limits| limits.min_pages),
            low_pages: self.effective(target, memcg, |limits| limits.low_pages),
            usage_pages,
        }
    }

    fn effective(&self, target: MemcgId, memcg: MemcgId, of: fn(&Limits) -> u64) -> u64 {
        let own = |id: MemcgId| self[id].usage_pages.min(of(&self[id].limits));
        let parent = self[memcg].parent;
        if parent == target || parent == MemcgId::ROOT || parent == MemcgId::NONE {
            return of(&self[memcg].limits);
        }
        let above = self.effective(target, parent, of);
        let siblings: u64 = self[parent].children.iter().map(|&id| own(id)).sum();
        if siblings > above {
            let share = u128::from(own(memcg)) * u128::from(above) / u128::from(siblings);
            return u64::try_from(share).unwrap_or(u64::MAX);
        }
        own(memcg)
    }

    /// Records that a tree node has nothing but shadows.
    pub fn list_shadow_node(&mut self, memcg: MemcgId, file: u32, first: u32) {
        self[memcg].shadow_nodes.push_back((file, first));
        self[memcg].shadow_node_count += 1;
    }
}

impl std::ops::Index<MemcgId> for Memcgs {
    type Output = MemcgCounters;
    #[inline]
    fn index(&self, memcg: MemcgId) -> &MemcgCounters {
        &self.groups[memcg.index()]
    }
}

impl std::ops::IndexMut<MemcgId> for Memcgs {
    #[inline]
    fn index_mut(&mut self, memcg: MemcgId) -> &mut MemcgCounters {
        &mut self.groups[memcg.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::super::page_cache::NODE_BYTES;
    use super::*;

    fn tree() -> (Memcgs, [MemcgId; 3]) {
        let mut memcgs = Memcgs::new(1, 1);
        let top = memcgs.add(MemcgId::ROOT, "/top".to_owned());
        let first = memcgs.add(top, "/top/a".to_owned());
        let second = memcgs.add(top, "/top/b".to_owned());
        (memcgs, [top, first, second])
    }

    #[test]
    fn the_nearest_limit_in_the_way_is_named() {
        let (mut memcgs, [top, first, _]) = tree();
        memcgs[top].limits.max_pages = 10;
        memcgs[first].limits.max_pages = 100;
        assert_eq!(memcgs.try_charge(first, 11), Err(top));
        assert_eq!(memcgs[first].usage_pages, 0);
        assert_eq!(memcgs.try_charge(first, 10), Ok(()));
        assert_eq!(memcgs[MemcgId::ROOT].usage_pages, 10);
        memcgs.uncharge(first, 4);
        assert_eq!((memcgs[top].usage_pages, memcgs.margin(top)), (6, 4));
    }

    #[test]
    fn one_stock_a_cpu_in_6_12() {
        let (mut memcgs, [top, first, second]) = tree();
        memcgs.charge(first, 64);
        memcgs.refill_stock(0, first, 63);
        assert!(memcgs.consume_stock(0, first, 1));
        memcgs.charge(second, 64);
        memcgs.refill_stock(0, second, 63);
        assert_eq!(memcgs[first].usage_pages, 2);
        memcgs.drain_stocks(top);
        assert_eq!(memcgs[second].usage_pages, 1);
    }

    #[test]
    fn objects_are_paid_for_in_pages() {
        let (mut memcgs, [_, first, _]) = tree();
        for _ in 0..261 {
            let pages = memcgs.object_needs_pages(first, NODE_BYTES);
            memcgs.charge(first, pages);
            memcgs.add_object(first, NODE_BYTES, pages);
        }
        assert_eq!(memcgs[first].usage_pages, (261 * NODE_BYTES).div_ceil(4096));
        memcgs.free_objects(first, 261 * NODE_BYTES);
        assert_eq!(memcgs[first].usage_pages, 0);
    }

    #[test]
    fn protection_is_shared_out_by_usage() {
        let (mut memcgs, [top, first, second]) = tree();
        memcgs[top].limits.low_pages = 100;
        for group in [first, second] {
            memcgs[group].limits.low_pages = 150;
            memcgs.charge(group, 300);
        }
        let protection = memcgs.protection(MemcgId::ROOT, first);
        assert_eq!((protection.low_pages, protection.min_pages), (50, 0));
        assert_eq!(memcgs.protection(top, first).low_pages, 150);
        assert_eq!(memcgs.protection(first, first).low_pages, 0);
    }
}
