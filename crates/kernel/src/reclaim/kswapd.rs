// SPDX-License-Identifier: Apache-2.0
//! kswapd: the background thread of a node that keeps free memory above the watermarks.
//!
//! It is a state machine driven by the world, so that the rest of the machine continues between two
//! priorities: [`Kswapd::wake`] when an allocation fails the low watermark, and [`Kswapd::step`]
//! until it returns that it waits.

use super::kswapd_zones::{self, Step};
use super::node::shrink_node;
use super::scope::{ListScope, ZONES};
use super::watermark::node_is_balanced;
use super::{DEF_PRIORITY, Reclaimer, SWAP_CLUSTER_MAX, ScanControl, TOP_ZONE};
use super::{background_aging::age_node, zone_facts};
use crate::classic::balance::snapshot_refaults;
use crate::ids::{MemcgId, NodeId};
use crate::lru::Lru;
use crate::tracepoint::Tracepoint;
use crate::world::World;

/// How long kswapd naps before it goes to sleep for good, in ns.
pub const NAP_NS: u64 = 100_000_000;

/// A request to kswapd: the maximum of all requests since it last checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    order: u32,
    highest_zone: usize,
}

/// The next action of kswapd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Step again after the CPU time of this step.
    Run,
    /// Step again after [`NAP_NS`], or as soon as it is woken.
    Nap,
    /// Nothing to do until woken.
    Sleep,
}

/// Counters of kswapd, under their kernel names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Runs (`pageoutrun`).
    pub pageoutrun: u64,
    /// Woken before the nap was over.
    pub kswapd_low_wmark_hit_quickly: u64,
    /// Unbalanced again at the end of the nap.
    pub kswapd_high_wmark_hit_quickly: u64,
}

#[derive(Clone, Debug)]
enum State {
    Sleeping,
    /// Napping; the flag says whether it was woken meanwhile.
    Napping {
        woken: bool,
    },
    /// About to start a run.
    Starting,
    /// Between two priorities of a run.
    Running(Box<ScanControl>),
    /// After a run: checks whether the node is balanced enough to nap.
    Finished,
}

/// The kswapd of one node.
#[derive(Clone, Debug)]
pub struct Kswapd {
    node: NodeId,
    cpu: usize,
    /// A request not yet started.
    pending: Option<Request>,
    /// The current run, or the last one.
    current: Request,
    /// The highest order for which the last run could make progress.
    reclaim_order: u32,
    state: State,
    /// Its event counters.
    pub counters: Counters,
}

impl Kswapd {
    /// The kswapd of `node`, asleep; it runs on `cpu`.
    #[must_use]
    pub fn new(node: NodeId, cpu: usize) -> Kswapd {
        Kswapd {
            node,
            cpu,
            pending: None,
            current: Request {
                order: 0,
                highest_zone: TOP_ZONE,
            },
            reclaim_order: 0,
            state: State::Sleeping,
            counters: Counters::default(),
        }
    }

    /// Whether it waits for a wake-up or for the end of its nap.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(
            self.state,
            State::Sleeping | State::Napping { woken: false }
        )
    }

    /// An allocation of `2^order` pages up to zone `highest_zone` found no zone above its low
    /// watermark (`wakeup_kswapd`). Returns true if kswapd was waiting and must be stepped now (if
    /// it was napping, instead of at the end of its nap).
    pub fn wake<W: World>(
        &mut self,
        lru: &Lru,
        world: &W,
        order: u32,
        highest_zone: usize,
    ) -> bool {
        let asked = self.pending.unwrap_or(Request {
            order: 0,
            highest_zone: 0,
        });
        self.pending = Some(Request {
            order: asked.order.max(order),
            highest_zone: asked.highest_zone.max(highest_zone),
        });
        if !self.is_waiting() {
            return false;
        }
        if self.is_hopeless(lru) || self.is_balanced(lru, world, order, highest_zone) {
            return false;
        }
        self.state = match self.state {
            State::Napping { .. } => State::Napping { woken: true },
            _ => State::Starting,
        };
        true
    }

    /// One step: a priority of a run, or the decision whether to sleep.
    pub fn step<W: World>(&mut self, lru: &mut Lru, world: &mut W) -> Next {
        match std::mem::replace(&mut self.state, State::Sleeping) {
            State::Sleeping => Next::Sleep,
            State::Napping { woken } => self.end_nap(lru, world, woken),
            State::Starting => self.start(lru, world),
            State::Running(sc) => self.run(lru, world, sc),
            State::Finished => self.try_to_sleep(lru, world),
        }
    }

    fn start<W: World>(&mut self, lru: &mut Lru, world: &mut W) -> Next {
        self.take_request();
        self.pending = None;
        self.counters.pageoutrun += 1;
        world.trace(&Tracepoint::KswapdWake {
            node: self.node,
            order: self.current.order,
        });
        let sc = ScanControl {
            order: self.current.order,
            reclaim_idx: self.current.highest_zone,
            cpu: self.cpu,
            local_node: self.node,
            ..ScanControl::new(Reclaimer::Kswapd, MemcgId::ROOT, 0)
        };
        self.run(lru, world, Box::new(sc))
    }

    /// Whether it has given up the node. With lists per zone, zones are given up individually.
    fn is_hopeless(&self, lru: &Lru) -> bool {
        lru.classic.list_scope == ListScope::Node && lru.nodes[self.node.index()].is_hopeless()
    }

    fn is_balanced(&self, lru: &Lru, world: &impl World, order: u32, highest_zone: usize) -> bool {
        match lru.classic.list_scope {
            ListScope::Node => node_is_balanced(&world.zones(self.node), order, highest_zone),
            ListScope::Zone => {
                zone_facts::node_is_balanced(lru, world, self.node, order, highest_zone)
            }
        }
    }

    fn run<W: World>(&mut self, lru: &mut Lru, world: &mut W, sc: Box<ScanControl>) -> Next {
        match lru.classic.list_scope {
            ListScope::Node => self.run_node(lru, world, sc),
            ListScope::Zone => self.run_zones(lru, world, sc),
        }
    }

    /// Runs one priority with lists per zone.
    fn run_zones<W: World>(
        &mut self,
        lru: &mut Lru,
        world: &mut W,
        mut sc: Box<ScanControl>,
    ) -> Next {
        let step = kswapd_zones::step(lru, world, self.node, &mut sc);
        if step == Step::TooLittle {
            sc.priority -= 1;
        }
        let highest = self.current.highest_zone;
        if step == Step::Balanced
            || sc.priority == 0
            || self.is_balanced(lru, world, sc.order, highest)
        {
            return self.finish(lru, sc.order);
        }
        self.state = State::Running(sc);
        Next::Run
    }

    /// The priority of the current pass; `None` between runs.
    pub fn priority(&self) -> Option<u32> {
        match &self.state {
            State::Running(sc) => Some(sc.priority),
            _ => None,
        }
    }

    /// Runs one priority of `balance_pgdat`.
    fn run_node<W: World>(
        &mut self,
        lru: &mut Lru,
        world: &mut W,
        mut sc: Box<ScanControl>,
    ) -> Next {
        let zones = world.zones(self.node);
        if node_is_balanced(&zones, sc.order, sc.reclaim_idx) {
            return self.finish(lru, sc.order);
        }
        let before = sc.nr_reclaimed;
        age_node(lru, world, self.node, &mut sc);
        sc.nr_scanned = 0;
        sc.nr_to_reclaim = zones[..=sc.reclaim_idx]
            .iter()
            .filter(|zone| zone.managed_pages > 0)
            .map(|zone| zone.high_pages.max(SWAP_CLUSTER_MAX))
            .sum();
        shrink_node(lru, world, self.node, &mut sc);
        // Enough pages for this order, even if not contiguous: continue with single pages.
        if sc.order > 0 && sc.nr_reclaimed >= 2 << sc.order {
            sc.order = 0;
        }
        let reclaimed = sc.nr_reclaimed - before;
        let scanned_enough = sc.nr_scanned.max(reclaimed) >= sc.nr_to_reclaim;
        if !scanned_enough || reclaimed == 0 {
            if sc.priority == 1 {
                return self.end_of_priorities(lru, sc);
            }
            sc.priority -= 1;
        }
        self.state = State::Running(sc);
        Next::Run
    }

    /// Handles the end of the last priority with the node still not balanced.
    fn end_of_priorities(&mut self, lru: &mut Lru, mut sc: Box<ScanControl>) -> Next {
        if sc.nr_reclaimed > 0 {
            return self.finish(lru, sc.order);
        }
        if sc.classic.cache_trim_mode_failed && !sc.classic.no_cache_trim_mode {
            sc.classic.no_cache_trim_mode = true;
            sc.priority = DEF_PRIORITY;
            self.state = State::Running(sc);
            return Next::Run;
        }
        lru.nodes[self.node.index()].kswapd_failures += 1;
        self.finish(lru, sc.order)
    }

    fn finish(&mut self, lru: &mut Lru, order: u32) -> Next {
        match lru.classic.list_scope {
            ListScope::Node => snapshot_refaults(lru, MemcgId::ROOT, self.node),
            ListScope::Zone => {
                for zone in 0..ZONES as usize {
                    let id = ListScope::Zone.reclaim_node(self.node, zone);
                    snapshot_refaults(lru, MemcgId::ROOT, id);
                }
            }
        }
        self.reclaim_order = order;
        self.state = State::Finished;
        Next::Run
    }

    /// Takes the requests that arrived meanwhile; defaults to single pages.
    fn take_request(&mut self) {
        self.current = Request {
            order: self.pending.map_or(0, |asked| asked.order),
            highest_zone: self
                .pending
                .map_or(self.current.highest_zone, |asked| asked.highest_zone),
        };
        self.reclaim_order = self.current.order;
    }

    /// Between runs: naps if the node is balanced or hopeless (`kswapd_try_to_sleep`).
    fn try_to_sleep<W: World>(&mut self, lru: &mut Lru, world: &mut W) -> Next {
        if self.reclaim_order >= self.current.order {
            self.take_request();
        }
        if self.may_sleep(lru, world) {
            self.state = State::Napping { woken: false };
            return Next::Nap;
        }
        self.counters.kswapd_high_wmark_hit_quickly += 1;
        self.state = State::Starting;
        Next::Run
    }

    fn end_nap<W: World>(&mut self, lru: &mut Lru, world: &mut W, woken: bool) -> Next {
        if woken {
            self.counters.kswapd_low_wmark_hit_quickly += 1;
        } else if self.may_sleep(lru, world) {
            self.state = State::Sleeping;
            world.trace(&Tracepoint::KswapdSleep { node: self.node });
            return Next::Sleep;
        } else {
            self.counters.kswapd_high_wmark_hit_quickly += 1;
        }
        self.state = State::Starting;
        Next::Run
    }

    /// Whether the node does not need kswapd now (`prepare_kswapd_sleep`). If it is balanced, its
    /// congestion flags are cleared.
    fn may_sleep<W: World>(&mut self, lru: &mut Lru, world: &mut W) -> bool {
        if self.is_hopeless(lru) {
            return true;
        }
        if !self.is_balanced(lru, world, self.reclaim_order, self.current.highest_zone) {
            return false;
        }
        if lru.classic.list_scope == ListScope::Zone {
            kswapd_zones::calm(lru, self.node);
            return true;
        }
        let root = lru.lruvec_id(MemcgId::ROOT, self.node).index();
        lru.lruvecs[root].reclaim.node_congested = false;
        lru.lruvecs[root].reclaim.cgroup_congested = false;
        lru.node_flags[self.node.index()] = crate::lru::NodeFlags::default();
        true
    }
}
