// SPDX-License-Identifier: Apache-2.0
//! Shadows: what eviction leaves in place of a folio (`pack_shadow`, `mm/workingset.c`).
//!
//! From low to high: a workingset bit, the node, the memory cgroup id, and a token whose meaning
//! depends on the policy: an age (classic) or a generation and usage count (multi-gen). All fields
//! are truncated to the kernel's widths, so old shadows wrap around and ids collide as in the
//! kernel.

use crate::ids::{MemcgId, NodeId};

const NODE_BITS: u32 = 10;
const MEMCG_BITS: u32 = 16;
const NODE_SHIFT: u32 = 1;
const MEMCG_SHIFT: u32 = NODE_SHIFT + NODE_BITS;
const TOKEN_SHIFT: u32 = MEMCG_SHIFT + MEMCG_BITS;

/// Bits of a token in the page cache; a swap table may keep fewer.
pub const TOKEN_BITS: u32 = 63 - TOKEN_SHIFT;

/// An unpacked shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// Node that evicted the folio.
    pub node: NodeId,
    /// Cgroup that evicted it; only the low 16 bits survive packing.
    pub memcg: MemcgId,
    /// The policy's token.
    pub token: u64,
    /// Whether the folio belonged to the working set.
    pub workingset: bool,
}

impl Shadow {
    /// Packs for storage.
    #[inline]
    #[must_use]
    pub fn pack(self) -> u64 {
        let low = |value: u64, bits: u32| value & ((1 << bits) - 1);
        u64::from(self.workingset)
            | low(self.node.0.into(), NODE_BITS) << NODE_SHIFT
            | low(self.memcg.0.into(), MEMCG_BITS) << MEMCG_SHIFT
            | low(self.token, TOKEN_BITS) << TOKEN_SHIFT
    }

    /// Unpacks a stored shadow.
    #[inline]
    #[must_use]
    pub fn unpack(word: u64) -> Shadow {
        let field = |shift: u32, bits: u32| (word >> shift) & ((1 << bits) - 1);
        Shadow {
            node: NodeId(field(NODE_SHIFT, NODE_BITS) as u32),
            memcg: MemcgId(field(MEMCG_SHIFT, MEMCG_BITS) as u32),
            token: field(TOKEN_SHIFT, TOKEN_BITS),
            workingset: word & 1 != 0,
        }
    }

    /// Whether the shadow is of this cgroup, as far as the stored bits tell.
    #[inline]
    #[must_use]
    pub fn names(&self, memcg: MemcgId) -> bool {
        self.memcg.0 == memcg.0 & ((1 << MEMCG_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn survives_packing_up_to_its_widths(
            node in 0u32..1024,
            memcg in any::<u32>(),
            token in any::<u64>(),
            workingset in any::<bool>(),
        ) {
            let shadow = Shadow { node: NodeId(node), memcg: MemcgId(memcg), token, workingset };
            let back = Shadow::unpack(shadow.pack());
            prop_assert_eq!(back.node, shadow.node);
            prop_assert!(back.names(shadow.memcg));
            prop_assert_eq!(back.token, token & ((1 << TOKEN_BITS) - 1));
            prop_assert_eq!(back.workingset, workingset);
        }
    }
}
