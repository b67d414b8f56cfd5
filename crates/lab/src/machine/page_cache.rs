// SPDX-License-Identifier: Apache-2.0
//! The page cache of one file: pages in memory, shadows of evicted pages, and the tree nodes that
//! hold both.
//!
//! The kernel keeps both in an xarray of 64 slots per node. The lab keeps a flat array and, per
//! node, the counts that the kernel's shadow shrinker needs.

use agewise_kernel::folio::Pfn;

/// Entries of one tree node (`XA_CHUNK_SIZE`).
pub const NODE_ENTRIES: u32 = 64;

/// Bytes charged for a tree node to the cgroup that made it: the node (576) and its object pointer.
pub const NODE_BYTES: u64 = 584;

/// Contents of one slot of a file's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Neither a page nor a shadow.
    Empty,
    /// In memory.
    Present(Pfn),
    /// Evicted; the shadow that reclaim left.
    Shadow(u64),
}

/// Bit 0 distinguishes a shadow (63 bits above it) from a frame (its number plus one).
const SHADOW: u64 = 1;

/// Occupancy of one leaf node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node {
    present: u8,
    shadows: u8,
    /// On the shrinker's list of nodes with nothing but shadows.
    pub listed: bool,
}

impl Node {
    fn in_use(self) -> bool {
        self.present != 0 || self.shadows != 0
    }

    /// Whether it holds shadows and no page.
    pub fn only_shadows(self) -> bool {
        self.present == 0 && self.shadows != 0
    }
}

/// The cache of one file.
#[derive(Clone, Debug, Default)]
pub struct PageCache {
    entries: Vec<u64>,
    nodes: Vec<Node>,
    /// Leaf nodes in use under each node of the next level.
    parents: Vec<u8>,
    present: u64,
    /// Pages accessed since the last look, in words of 64; empty if nothing was recorded.
    accessed: Vec<u64>,
}

/// Tree nodes an operation creates or frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeChange {
    /// Nodes that have to be created first.
    pub made: u32,
    /// Nodes that became empty.
    pub freed: u32,
}

impl PageCache {
    /// The cache of a file of `pages` pages.
    pub fn new(pages: u32) -> PageCache {
        let leaves = pages.div_ceil(NODE_ENTRIES) as usize;
        PageCache {
            entries: vec![0; pages as usize],
            nodes: vec![Node::default(); leaves],
            parents: vec![0; leaves.div_ceil(NODE_ENTRIES as usize)],
            present: 0,
            accessed: Vec::new(),
        }
    }

    /// Pages of the file.
    pub fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Pages in memory.
    #[cfg(test)]
    pub fn present(&self) -> u64 {
        self.present
    }

    /// The entry at `index`.
    #[inline]
    pub fn get(&self, index: u32) -> Entry {
        match self.entries[index as usize] {
            0 => Entry::Empty,
            raw if raw & SHADOW != 0 => Entry::Shadow(raw >> 1),
            raw => Entry::Present(Pfn((raw >> 1) as u32 - 1)),
        }
    }

    /// Records an access to a page.
    pub fn note_access(&mut self, index: u32) {
        self.accessed.resize(self.nodes.len(), 0);
        self.accessed[(index / NODE_ENTRIES) as usize] |= 1 << (index % NODE_ENTRIES);
    }

    /// Whether a page was accessed since accesses were cleared.
    pub fn was_accessed(&self, index: u32) -> bool {
        let word = self.accessed.get((index / NODE_ENTRIES) as usize);
        word.is_some_and(|word| word >> (index % NODE_ENTRIES) & 1 == 1)
    }

    /// Clears all recorded accesses.
    pub fn clear_accesses(&mut self) {
        self.accessed.clear();
    }

    /// Pages in memory, in ascending order.
    pub fn pages(&self) -> impl Iterator<Item = (u32, Pfn)> + '_ {
        let nodes = self.nodes.iter().zip(0u32..);
        let in_use = nodes.filter(|(node, _)| node.present > 0);
        in_use.flat_map(|(_, at)| {
            let first = at * NODE_ENTRIES;
            let indices = first..(first + NODE_ENTRIES).min(self.len());
            indices.filter_map(|index| match self.get(index) {
                Entry::Present(pfn) => Some((index, pfn)),
                Entry::Empty | Entry::Shadow(_) => None,
            })
        })
    }

    /// The leaf node of `index`.
    pub fn node(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[(index / NODE_ENTRIES) as usize]
    }

    /// Tree nodes that [`PageCache::set`] would have to create to store something at `index`.
    pub fn nodes_missing(&self, index: u32) -> u32 {
        let leaf = (index / NODE_ENTRIES) as usize;
        if self.nodes[leaf].in_use() {
            return 0;
        }
        let parent = leaf / NODE_ENTRIES as usize;
        // A file of one node has no upper level.
        if self.nodes.len() == 1 || self.parents[parent] != 0 {
            return 1;
        }
        let first_of_all = self.parents.iter().all(|&leaves| leaves == 0);
        2 + u32::from(self.parents.len() > 1 && first_of_all)
    }

    /// Stores `entry` at `index`; returns the nodes this created or freed.
    pub fn set(&mut self, index: u32, entry: Entry) -> NodeChange {
        let before = self.get(index);
        let made = match entry {
            Entry::Empty => 0,
            _ => self.nodes_missing(index),
        };
        let leaf = (index / NODE_ENTRIES) as usize;
        let was_in_use = self.nodes[leaf].in_use();
        self.count(leaf, before, -1);
        self.count(leaf, entry, 1);
        self.entries[index as usize] = match entry {
            Entry::Empty => 0,
            Entry::Present(pfn) => (u64::from(pfn.0) + 1) << 1,
            Entry::Shadow(shadow) => {
                debug_assert!(shadow < 1 << 63, "a shadow has 63 bits");
                (shadow << 1) | SHADOW
            }
        };
        let freed = self.note_use(leaf, was_in_use);
        NodeChange { made, freed }
    }

    fn count(&mut self, leaf: usize, entry: Entry, by: i8) {
        let node = &mut self.nodes[leaf];
        match entry {
            Entry::Empty => {}
            Entry::Present(_) => {
                node.present = node.present.wrapping_add_signed(by);
                self.present = self.present.wrapping_add_signed(by.into());
            }
            Entry::Shadow(_) => node.shadows = node.shadows.wrapping_add_signed(by),
        }
    }

    fn note_use(&mut self, leaf: usize, was_in_use: bool) -> u32 {
        let is_in_use = self.nodes[leaf].in_use();
        let parent = leaf / NODE_ENTRIES as usize;
        match (was_in_use, is_in_use) {
            (false, true) => self.parents[parent] += 1,
            (true, false) => {
                self.parents[parent] -= 1;
                let alone = self.nodes.len() == 1;
                let parent_gone = !alone && self.parents[parent] == 0;
                let root_gone = parent_gone
                    && self.parents.len() > 1
                    && self.parents.iter().all(|&leaves| leaves == 0);
                return 1 + u32::from(parent_gone) + u32::from(root_gone);
            }
            _ => {}
        }
        0
    }

    /// Removes all shadows from the node of `index`; returns the nodes freed.
    pub fn drop_shadows(&mut self, index: u32) -> NodeChange {
        let first = index / NODE_ENTRIES * NODE_ENTRIES;
        let mut change = NodeChange::default();
        for at in first..(first + NODE_ENTRIES).min(self.len()) {
            if matches!(self.get(at), Entry::Shadow(_)) {
                change.freed += self.set(at, Entry::Empty).freed;
            }
        }
        change
    }

    /// Bytes the simulator needs for the file.
    pub fn footprint_bytes(&self) -> usize {
        (self.entries.capacity() + self.accessed.capacity()) * 8
            + self.nodes.capacity() * size_of::<Node>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nodes_come_and_go_with_their_entries() {
        // 16384 pages: 256 leaves, 4 nodes above them, one root.
        let mut cache = PageCache::new(16384);
        let made: u32 = (0..16384)
            .map(|index| cache.set(index, Entry::Present(Pfn(index))).made)
            .sum();
        assert_eq!(made, 256 + 4 + 1);
        let freed: u32 = (0..16384)
            .map(|index| cache.set(index, Entry::Empty).freed)
            .sum();
        assert_eq!(freed, made);
    }

    #[test]
    fn a_node_of_shadows_only_is_told() {
        let mut cache = PageCache::new(200);
        cache.set(64, Entry::Present(Pfn(1)));
        cache.set(65, Entry::Shadow(77));
        assert!(!cache.node(64).only_shadows());
        cache.set(64, Entry::Shadow(78));
        assert!(cache.node(64).only_shadows());
        assert_eq!(cache.drop_shadows(70).freed, 2);
        assert_eq!(cache.get(65), Entry::Empty);
    }

    proptest! {
        #[test]
        fn the_cache_behaves_like_a_map(
            steps in prop::collection::vec((0u8..3, 0u32..5000, 0u64..1 << 63), 0..200)
        ) {
            let mut cache = PageCache::new(5000);
            let mut model = BTreeMap::new();
            let mut nodes = 0;
            for (step, index, value) in steps {
                let entry = match step {
                    0 => Entry::Empty,
                    1 => Entry::Present(Pfn(value as u32 >> 1)),
                    _ => Entry::Shadow(value),
                };
                let missing = cache.nodes_missing(index);
                let change = cache.set(index, entry);
                if entry != Entry::Empty {
                    prop_assert_eq!(change.made, missing);
                }
                nodes += change.made;
                nodes -= change.freed;
                model.insert(index, entry);
                prop_assert_eq!(cache.get(index), entry);
            }
            model.retain(|_, entry| *entry != Entry::Empty);
            let leaves: std::collections::BTreeSet<_> = model.keys().map(|i| i / 64).collect();
            let parents: std::collections::BTreeSet<_> = leaves.iter().map(|i| i / 64).collect();
            let root = usize::from(!parents.is_empty());
            prop_assert_eq!(nodes as usize, leaves.len() + parents.len() + root);
            let present = model.values().filter(|e| matches!(e, Entry::Present(_))).count();
            prop_assert_eq!(cache.present(), present as u64);
        }
    }
}
