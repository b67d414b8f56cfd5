// SPDX-License-Identifier: Apache-2.0
//! Background aging: what kswapd does to the lists of a node before it reclaims from them.

use super::migration::demotion_target;
use super::tree::TreeWalk;
use super::{SWAP_CLUSTER_MAX, ScanControl};
use crate::classic::List;
use crate::classic::active::shrink_active;
use crate::classic::balance::lruvec_inactive_is_low;
use crate::folio::FolioType;
use crate::ids::{MemcgId, NodeId};
use crate::lru::{Lru, Mode};
use crate::mglru;
use crate::world::World;

/// Background aging before each priority, so that anon pages have a chance to be used again before
/// they are reclaimed (`kswapd_age_node`).
pub(super) fn age_node<W: World>(lru: &mut Lru, world: &mut W, node: NodeId, sc: &mut ScanControl) {
    if lru.mode != Mode::Classic {
        mglru::age_node(lru, world, node, sc);
        return;
    }
    let root = lru.lruvec_id(MemcgId::ROOT, node);
    let leaves = world.has_swap() || demotion_target(lru, world, node, sc).is_some();
    if !leaves || !lruvec_inactive_is_low(lru, root, FolioType::Anon) {
        return;
    }
    let mut walk = TreeWalk::full(MemcgId::ROOT);
    while let Some(memcg) = walk.next(lru) {
        let lruvec = lru.lruvec_id(memcg, node);
        shrink_active(lru, world, lruvec, List::ActiveAnon, SWAP_CLUSTER_MAX, sc);
    }
}
