// SPDX-License-Identifier: Apache-2.0
//! Walks over the cgroups below a root (`mem_cgroup_iter`).

use crate::ids::{MemcgId, NodeId};
use crate::lru::Lru;

/// A walk over a cgroup and its descendants, parents first, children in creation order.
#[derive(Clone, Copy, Debug)]
pub struct TreeWalk {
    root: MemcgId,
    /// The node whose shared cursor a partial walk moves; `None` for a full walk.
    shared: Option<NodeId>,
    last: MemcgId,
    round: u64,
}

impl TreeWalk {
    /// Visits all cgroups, starting with the root.
    #[must_use]
    pub fn full(root: MemcgId) -> TreeWalk {
        TreeWalk {
            root,
            shared: None,
            last: MemcgId::NONE,
            round: 0,
        }
    }

    /// Continues from the shared cursor of `node` to the end of the tree; may be abandoned at any
    /// time.
    #[must_use]
    pub fn partial(root: MemcgId, node: NodeId) -> TreeWalk {
        TreeWalk {
            shared: Some(node),
            ..TreeWalk::full(root)
        }
    }

    /// The next cgroup.
    pub fn next(&mut self, lru: &mut Lru) -> Option<MemcgId> {
        let Some(node) = self.shared else {
            self.last = next_descendant(lru, self.root, self.last)?;
            return Some(self.last);
        };
        let lruvec = lru.lruvec_id(self.root, node).index();
        let first = self.last == MemcgId::NONE;
        if !first && self.round != lru.lruvecs[lruvec].reclaim.cursor.round {
            // Another walker completed the round.
            return None;
        }
        let position = lru.lruvecs[lruvec].reclaim.cursor.position;
        let mut next = next_descendant(lru, self.root, position);
        if next.is_none() {
            lru.lruvecs[lruvec].reclaim.cursor.round += 1;
            if first {
                // At the end already: a new walker starts the next round.
                next = Some(self.root);
            }
        }
        let cursor = &mut lru.lruvecs[lruvec].reclaim.cursor;
        cursor.position = next.unwrap_or(MemcgId::NONE);
        if first {
            self.round = cursor.round;
        }
        self.last = next?;
        next
    }
}

/// The cgroup after `position` below `root`, parents first (`css_next_descendant_pre`). Restarts if
/// `position` is no longer in the tree.
fn next_descendant(lru: &Lru, root: MemcgId, position: MemcgId) -> Option<MemcgId> {
    if position == MemcgId::NONE {
        return Some(root);
    }
    if let Some(&child) = lru.memcgs[position.index()].children.first() {
        return Some(child);
    }
    let mut at = position;
    while at != root {
        let parent = lru.memcgs[at.index()].parent;
        if parent == MemcgId::NONE {
            return Some(root);
        }
        let siblings = &lru.memcgs[parent.index()].children;
        // Ids are in creation order.
        let Ok(place) = siblings.binary_search(&at) else {
            return Some(root);
        };
        if let Some(&sibling) = siblings.get(place + 1) {
            return Some(sibling);
        }
        at = parent;
    }
    None
}
