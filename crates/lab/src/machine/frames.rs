// SPDX-License-Identifier: Apache-2.0
//! Page frames: nodes, zones, free lists and watermarks, and the owner and mappings of each frame
//! in use.

use agewise_kernel::folio::Pfn;
use agewise_kernel::ids::{MmId, NodeId};
use agewise_kernel::page_table::Mapping;
use agewise_kernel::reclaim::watermark::{ZoneSpan, lowmem_reserves, min_free_kb, watermarks};
use agewise_kernel::world::ZoneState;

use super::alloc_work::AllocWork;
use super::zone::Zone;

/// Who a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Free, or anonymous memory outside the swap cache.
    None,
    /// A page of a file.
    File {
        file: u32,
        /// Its page.
        index: u32,
    },
    /// Anonymous memory in the swap cache.
    Swap { slot: u32 },
}

const OWNER_NONE: u64 = u64::MAX;
const OWNER_FILE: u64 = 1 << 63;

const UNMAPPED: u64 = u64::MAX;
const MANY: u64 = 1 << 63;
const VPN_BITS: u32 = 40;

#[derive(Clone, Copy, Debug)]
struct Frame {
    owner: u64,
    /// One mapping inline, or an index into the side table if there are more.
    mapping: u64,
}

fn pack(mapping: Mapping) -> u64 {
    (u64::from(mapping.mm.0) << VPN_BITS) | mapping.vpn
}

fn unpack(raw: u64) -> Mapping {
    Mapping {
        mm: MmId((raw >> VPN_BITS) as u32),
        vpn: raw & ((1 << VPN_BITS) - 1),
    }
}

/// All frames of the machine.
pub struct Frames {
    frames: Vec<Frame>,
    pub(super) nodes: Vec<[Zone; 4]>,
    many: Vec<Vec<Mapping>>,
    free_many: Vec<u32>,
    /// First slow frame; u32::MAX without any.
    first_slow: u32,
    /// Whether zones take turns in proportion to their size (`NR_ALLOC_BATCH`).
    pub(super) fair: bool,
    /// Work of the allocator so far.
    pub work: AllocWork,
}

impl Frames {
    /// Lays out `zone_pages[node][zone]` frames, nodes one after another, and sets the watermarks;
    /// `min_free_kbytes` 0 selects the kernel's own rule.
    pub fn new(zone_pages: &[[u32; 4]], min_free_kbytes: u64, scale_factor: u64) -> Frames {
        let mut start = 0;
        let mut nodes = Vec::with_capacity(zone_pages.len());
        for pages in zone_pages {
            let reserves = lowmem_reserves(pages.map(u64::from));
            nodes.push(std::array::from_fn(|index| {
                let zone = Zone::new(start, pages[index], reserves[index]);
                start += pages[index];
                zone
            }));
        }
        let mut frames = Frames {
            frames: vec![
                Frame {
                    owner: OWNER_NONE,
                    mapping: UNMAPPED
                };
                start as usize
            ],
            nodes,
            many: Vec::new(),
            free_many: Vec::new(),
            first_slow: u32::MAX,
            fair: false,
            work: AllocWork::default(),
        };
        frames.set_watermarks(min_free_kbytes, scale_factor);
        frames
    }

    /// `__setup_per_zone_wmarks`; absent zones have none.
    fn set_watermarks(&mut self, min_free_kbytes: u64, scale_factor: u64) {
        let spans: Vec<ZoneSpan> = self
            .nodes
            .iter()
            .flatten()
            .enumerate()
            .map(|(index, zone)| ZoneSpan {
                managed_pages: zone.managed_pages(),
                movable: index % 4 == 3,
            })
            .collect();
        let lowmem = spans.iter().filter(|zone| !zone.movable);
        let lowmem_kb = 4 * lowmem.map(|zone| zone.managed_pages).sum::<u64>();
        let min_free_kb = match min_free_kbytes {
            0 => min_free_kb(lowmem_kb),
            kbytes => kbytes,
        };
        let marks = watermarks(&spans, min_free_kb, scale_factor);
        for (zone, marks) in self.nodes.iter_mut().flatten().zip(marks) {
            if zone.managed_pages() > 0 {
                zone.set_marks(marks);
            }
        }
    }

    /// Declares this many frames at the end, those of the last node, to be slow.
    pub fn set_slow(&mut self, pages: u32) {
        self.first_slow = self.len() - pages;
    }

    /// Whether there are slow frames.
    #[inline]
    pub fn has_slow(&self) -> bool {
        self.first_slow < self.len()
    }

    /// Whether a frame is slow.
    pub fn is_slow(&self, pfn: Pfn) -> bool {
        pfn.0 >= self.first_slow
    }

    /// Moves owner and mappings to a frame that has none; the other one has none afterwards.
    pub fn take_over(&mut self, from: Pfn, to: Pfn) {
        self.frames.swap(from.index(), to.index());
    }

    /// Number of frames.
    pub fn len(&self) -> u32 {
        self.frames.len() as u32
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub fn zones(&self, node: NodeId) -> [ZoneState; 4] {
        std::array::from_fn(|zone| self.nodes[node.index()][zone].state())
    }

    /// Sets whether zones take turns in proportion to their size.
    pub fn set_fair(&mut self, fair: bool) {
        self.fair = fair;
    }

    /// The zones of a node, for their counters.
    pub fn node_zones(&self, node: NodeId) -> &[Zone; 4] {
        &self.nodes[node.index()]
    }

    /// Free pages of the machine.
    pub fn total_free(&self) -> u64 {
        self.nodes.iter().flatten().map(Zone::free).sum()
    }

    /// Frees a frame.
    pub fn free(&mut self, pfn: Pfn) {
        self.frames[pfn.index()] = Frame {
            owner: OWNER_NONE,
            mapping: UNMAPPED,
        };
        let zone = self
            .nodes
            .iter_mut()
            .flatten()
            .find(|zone| zone.contains(pfn.0));
        debug_assert!(zone.is_some(), "frame outside all zones");
        if let Some(zone) = zone {
            zone.give_back(pfn.0);
        }
        self.work.frees += 1;
    }

    /// The node of a frame.
    pub fn node_of(&self, pfn: Pfn) -> NodeId {
        let node = self
            .nodes
            .iter()
            .position(|zones| pfn.0 < zones[3].end())
            .unwrap_or(0);
        NodeId(node as u32)
    }

    /// The zone of a frame.
    pub fn zone_of(&self, pfn: Pfn) -> usize {
        let zones = self.nodes.iter().flatten();
        zones
            .enumerate()
            .find(|(_, zone)| zone.contains(pfn.0))
            .map_or(0, |(index, _)| index % 4)
    }

    /// Who the frame belongs to.
    #[inline]
    pub fn owner(&self, pfn: Pfn) -> Owner {
        let raw = self.frames[pfn.index()].owner;
        if raw == OWNER_NONE {
            Owner::None
        } else if raw & OWNER_FILE != 0 {
            Owner::File {
                file: ((raw & !OWNER_FILE) >> 32) as u32,
                index: raw as u32,
            }
        } else {
            Owner::Swap { slot: raw as u32 }
        }
    }

    /// Records the owner of the frame.
    #[inline]
    pub fn set_owner(&mut self, pfn: Pfn, owner: Owner) {
        self.frames[pfn.index()].owner = match owner {
            Owner::None => OWNER_NONE,
            Owner::File { file, index } => OWNER_FILE | (u64::from(file) << 32) | u64::from(index),
            Owner::Swap { slot } => slot.into(),
        };
    }

    /// The `index`-th mapping of a frame, oldest first.
    #[inline]
    pub fn mapping(&self, pfn: Pfn, index: usize) -> Option<Mapping> {
        let raw = self.frames[pfn.index()].mapping;
        if raw == UNMAPPED {
            None
        } else if raw & MANY == 0 {
            (index == 0).then(|| unpack(raw))
        } else {
            self.many[(raw & !MANY) as usize].get(index).copied()
        }
    }

    /// Number of mappings.
    pub fn mapcount(&self, pfn: Pfn) -> usize {
        let raw = self.frames[pfn.index()].mapping;
        if raw == UNMAPPED {
            0
        } else if raw & MANY == 0 {
            1
        } else {
            self.many[(raw & !MANY) as usize].len()
        }
    }

    #[inline]
    pub fn add_mapping(&mut self, pfn: Pfn, mapping: Mapping) {
        let raw = self.frames[pfn.index()].mapping;
        if raw == UNMAPPED {
            self.frames[pfn.index()].mapping = pack(mapping);
        } else if raw & MANY != 0 {
            self.many[(raw & !MANY) as usize].push(mapping);
        } else {
            let both = vec![unpack(raw), mapping];
            let index = match self.free_many.pop() {
                Some(index) => {
                    self.many[index as usize] = both;
                    index
                }
                None => {
                    self.many.push(both);
                    self.many.len() as u32 - 1
                }
            };
            self.frames[pfn.index()].mapping = MANY | u64::from(index);
        }
    }

    /// Removes a mapping; returns true if it was the last one.
    pub fn remove_mapping(&mut self, pfn: Pfn, mapping: Mapping) -> bool {
        let raw = self.frames[pfn.index()].mapping;
        if raw == UNMAPPED {
            return true;
        }
        if raw & MANY == 0 {
            debug_assert_eq!(raw, pack(mapping));
            self.frames[pfn.index()].mapping = UNMAPPED;
            return true;
        }
        let index = (raw & !MANY) as usize;
        self.many[index].retain(|&other| other != mapping);
        if let [last] = self.many[index][..] {
            self.frames[pfn.index()].mapping = pack(last);
            self.many[index] = Vec::new();
            self.free_many.push(index as u32);
        }
        false
    }

    /// Bytes the simulator needs for frames.
    pub fn footprint_bytes(&self) -> usize {
        let returned: usize = self.nodes.iter().flatten().map(Zone::footprint_bytes).sum();
        let many: usize = self.many.iter().map(|list| 24 + list.capacity() * 16).sum();
        self.frames.capacity() * size_of::<Frame>() + returned + many
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NODE: NodeId = NodeId(0);

    #[test]
    fn watermarks_follow_the_kernels_rule() {
        // 1 GiB: isqrt(16 * 1048576 KiB) = 4096 KiB = 1024 pages, a quarter of that between marks.
        let frames = Frames::new(&[[0, 0, 262_144, 0]], 0, 10);
        let zone = frames.zones(NODE)[2];
        assert_eq!(
            (zone.min_pages, zone.low_pages, zone.high_pages),
            (1024, 1286, 1548)
        );
    }

    #[test]
    fn owners_and_huge_blocks() {
        let mut frames = Frames::new(&[[0, 100, 2048, 0]], 4, 10);
        let (pfn, zone) = frames.allocate_huge(NODE, 3).unwrap();
        assert_eq!((pfn.0 % 512, zone), (0, 2));
        frames.set_owner(pfn, Owner::File { file: 3, index: 9 });
        assert_eq!(frames.owner(pfn), Owner::File { file: 3, index: 9 });
        frames.set_owner(pfn, Owner::Swap { slot: 5 });
        assert_eq!(frames.owner(pfn), Owner::Swap { slot: 5 });
        frames.free(pfn);
        assert_eq!(frames.owner(pfn), Owner::None);
    }

    proptest! {
        /// Compares the mappings of two frames with plain vectors.
        #[test]
        fn the_reverse_map_keeps_every_mapping(
            steps in prop::collection::vec((any::<bool>(), 0u32..2, 0u32..4, 0u64..5), 0..80)
        ) {
            let mut frames = Frames::new(&[[0, 0, 8, 0]], 4, 10);
            let mut model: [Vec<Mapping>; 2] = Default::default();
            for (add, frame, mm, vpn) in steps {
                let mapping = Mapping { mm: MmId(mm), vpn };
                let list = &mut model[frame as usize];
                if add && !list.contains(&mapping) {
                    frames.add_mapping(Pfn(frame), mapping);
                    list.push(mapping);
                } else if let Some(at) = list.iter().position(|&other| other == mapping) {
                    list.remove(at);
                    let last = frames.remove_mapping(Pfn(frame), mapping);
                    prop_assert_eq!(last, list.is_empty());
                }
                for (frame, list) in model.iter().enumerate() {
                    let pfn = Pfn(frame as u32);
                    prop_assert_eq!(frames.mapcount(pfn), list.len());
                    for (index, &mapping) in list.iter().enumerate() {
                        prop_assert_eq!(frames.mapping(pfn, index), Some(mapping));
                    }
                }
            }
        }
    }
}
