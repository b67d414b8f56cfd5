// SPDX-License-Identifier: Apache-2.0
//! How lruvecs enter, leave and move in the order of global reclaim.

use rand::RngExt;

use super::memcg_lru::{MEMCG_NR_BINS, Position, Segment};
use crate::ids::{LruvecId, MemcgId};
use crate::lru::Lru;

/// A move of a lruvec in the order (`MEMCG_LRU_*`, without that of soft limits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    /// To the back of its generation: visit it once more.
    Tail,
    /// To the old generation.
    Old,
    /// To the young generation.
    Young,
}

/// Adds the lruvecs of a new cgroup at the back of the old generation.
pub(crate) fn memcg_lru_online(lru: &mut Lru, memcg: MemcgId) {
    for lruvec in lru.memcgs[memcg.index()].lruvecs.clone() {
        let bin = lru.mglru_machine.rng.random_range(0..MEMCG_NR_BINS);
        let state = &mut lru.lruvecs[lruvec.index()];
        let order = &mut lru.memcg_lrus[state.node.index()];
        let generation = order.old();
        order.bins[generation][bin].push(lruvec);
        state.mglru.position = Position {
            generation,
            bin,
            segment: Segment::Default,
            listed: true,
        };
    }
}

/// Removes the lruvecs of a removed cgroup from the order if its folios move to the parent;
/// otherwise queues them for reclaim.
pub(crate) fn memcg_lru_offline(lru: &mut Lru, memcg: MemcgId) {
    for lruvec in lru.memcgs[memcg.index()].lruvecs.clone() {
        if lru.mglru.profile.reparents_on_offline {
            unlist(lru, lruvec);
        } else {
            rotate(lru, lruvec, Rotation::Old);
        }
    }
}

/// Removes a lruvec from the order.
fn unlist(lru: &mut Lru, lruvec: LruvecId) {
    let state = &mut lru.lruvecs[lruvec.index()];
    let Position {
        generation, bin, ..
    } = state.mglru.position;
    state.mglru.position.listed = false;
    let order = &mut lru.memcg_lrus[state.node.index()];
    order.bins[generation][bin].retain(|&other| other != lruvec);
    if generation == order.old() && order.is_empty(generation) {
        order.seq += 1;
    }
}

/// Moves a lruvec in the order of its node (`lru_gen_rotate_memcg`).
pub(super) fn rotate(lru: &mut Lru, lruvec: LruvecId, rotation: Rotation) {
    let bin = lru.mglru_machine.rng.random_range(0..MEMCG_NR_BINS);
    let state = &mut lru.lruvecs[lruvec.index()];
    if !state.mglru.position.listed {
        return;
    }
    let order = &mut lru.memcg_lrus[state.node.index()];
    let left = state.mglru.position;
    let (generation, segment, front) = match rotation {
        Rotation::Tail => (left.generation, Segment::Tail, false),
        Rotation::Old => (order.old(), Segment::Default, true),
        Rotation::Young => (order.young(), Segment::Default, false),
    };
    order.bins[left.generation][left.bin].retain(|&other| other != lruvec);
    let target = &mut order.bins[generation][bin];
    if front {
        target.insert(0, lruvec);
    } else {
        target.push(lruvec);
    }
    state.mglru.position = Position {
        generation,
        bin,
        segment,
        listed: true,
    };
    if left.generation == order.old() && order.is_empty(left.generation) {
        order.seq += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MIN_NR_GENS, machine_for_tests};
    use super::*;
    use crate::ids::NodeId;
    use crate::lru::Mode;

    fn machine(profile: &str, cgroups: u32) -> Lru {
        let mut lru = machine_for_tests::machine(profile, 1, 2, Mode::MultiGen);
        for _ in 0..cgroups {
            lru.memcg_online(MemcgId::ROOT, 60, 0);
        }
        lru
    }

    /// Checks that every listed lruvec is in exactly the bin it records, and that the third
    /// generation is empty.
    fn check(lru: &Lru) {
        for (node, order) in lru.memcg_lrus.iter().enumerate() {
            let mut listed = 0;
            for (generation, bins) in order.bins.iter().enumerate() {
                for (bin, lruvecs) in bins.iter().enumerate() {
                    listed += lruvecs.len();
                    for lruvec in lruvecs {
                        let position = lru.lruvecs[lruvec.index()].mglru.position;
                        assert_eq!((position.generation, position.bin), (generation, bin));
                        assert!(position.listed);
                        assert!(generation == order.old() || generation == order.young());
                    }
                }
            }
            let on_node = |lruvec: &&crate::lru::Lruvec| lruvec.node.index() == node;
            let believed = lru.lruvecs.iter().filter(on_node);
            assert_eq!(believed.filter(|l| l.mglru.position.listed).count(), listed);
        }
    }

    #[test]
    fn the_old_generation_moves_on_when_it_is_empty() {
        let mut lru = machine("7.2", 3);
        for memcg in 0..4 {
            assert_eq!(lru.memcg_lrus[0].seq, 0);
            let lruvec = lru.lruvec_id(MemcgId(memcg), NodeId(0));
            rotate(&mut lru, lruvec, Rotation::Young);
        }
        assert_eq!(lru.memcg_lrus[0].seq, 1, "all four are old again");
        assert_eq!(lru.memcg_lrus[1].seq, 0, "nodes are apart");
        check(&lru);
    }

    #[test]
    fn a_removed_cgroup_is_scraped_or_gone() {
        let mut lru = machine("6.12", 2);
        let lruvec = lru.lruvec_id(MemcgId(1), NodeId(0));
        rotate(&mut lru, lruvec, Rotation::Young);
        lru.memcg_offline(MemcgId(1), 0);
        let position = lru.lruvecs[lruvec.index()].mglru.position;
        assert_eq!(position.generation, lru.memcg_lrus[0].old());
        assert_eq!(lru.tree_order(MemcgId::ROOT).len(), 3);

        let mut lru = machine("7.2", 2);
        lru.memcg_offline(MemcgId(1), 0);
        let lruvec = lru.lruvec_id(MemcgId(1), NodeId(1));
        assert!(!lru.lruvecs[lruvec.index()].mglru.position.listed);
        assert_eq!(lru.tree_order(MemcgId::ROOT).len(), 2);
        assert_eq!(
            lru.lruvecs[0].mglru.max_seq,
            MIN_NR_GENS as u64 + 1,
            "nothing to adopt"
        );
        check(&lru);
    }

    proptest! {
        #[test]
        fn rotations_keep_the_order_sound(
            steps in prop::collection::vec((0u8..4, 1u32..8, 0u32..2), 0..200),
        ) {
            let mut lru = machine("7.2", 7);
            for (step, memcg, node) in steps {
                let memcg = MemcgId(memcg);
                let lruvec = lru.lruvec_id(memcg, NodeId(node));
                match step {
                    0 => rotate(&mut lru, lruvec, Rotation::Tail),
                    1 => rotate(&mut lru, lruvec, Rotation::Young),
                    2 => rotate(&mut lru, lruvec, Rotation::Old),
                    _ if lru.memcgs[memcg.index()].online => lru.memcg_offline(memcg, 0),
                    _ => {}
                }
                check(&lru);
            }
        }
    }
}
