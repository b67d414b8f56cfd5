// SPDX-License-Identifier: Apache-2.0
//! Page frames: nodes, zones, free lists and watermarks, and for each frame in use its owner and
//! where it is mapped.

use agewise_engine::folio::Pfn;
use agewise_engine::ids::{MmId, NodeId};
use agewise_engine::page_table::Mapping;
use agewise_engine::world::ZoneState;

/// Frames of one 2 MiB block.
const BLOCK: u32 = 512;

/// Who a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Free, or anonymous memory outside the swap cache.
    None,
    /// A page of a file.
    File {
        /// The file.
        file: u32,
        /// Its page.
        index: u32,
    },
    /// Anonymous memory in the swap cache.
    Swap {
        /// Its slot.
        slot: u32,
    },
}

const OWNER_NONE: u64 = u64::MAX;
const OWNER_FILE: u64 = 1 << 63;

const UNMAPPED: u64 = u64::MAX;
const MANY: u64 = 1 << 63;
const VPN_BITS: u32 = 40;

#[derive(Clone, Copy, Debug)]
struct Frame {
    owner: u64,
    /// One mapping inline, or an index into the side table when there are more.
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

/// One zone of a node.
#[derive(Clone, Debug, Default)]
pub struct Zone {
    /// First frame.
    start: u32,
    /// Frames it has.
    managed: u32,
    /// Frames given back, to be given out again first.
    returned: Vec<u32>,
    /// Frames from here on were never given out.
    untouched: u32,
    /// Watermarks in pages: min, low, high.
    marks: [u64; 3],
}

impl Zone {
    fn end(&self) -> u32 {
        self.start + self.managed
    }

    fn free(&self) -> u64 {
        self.returned.len() as u64 + u64::from(self.end() - self.untouched)
    }

    fn state(&self) -> ZoneState {
        let [min, low, high] = self.marks;
        ZoneState {
            managed_pages: self.managed.into(),
            free_pages: self.free(),
            min_pages: min,
            low_pages: low,
            high_pages: high,
        }
    }
}

/// How far an allocation may go into a zone's reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Keep the low watermark: the fast path, which wakes kswapd when it fails.
    Low,
    /// Keep the min watermark: after kswapd was woken.
    Min,
    /// Take what there is: reclaimers and victims of the OOM killer.
    None,
}

/// All frames of the machine.
pub struct Frames {
    frames: Vec<Frame>,
    nodes: Vec<[Zone; 4]>,
    many: Vec<Vec<Mapping>>,
    free_many: Vec<u32>,
}

impl Frames {
    /// Lays out `zone_pages[node][zone]` frames, nodes one after another, and sets the watermarks
    /// (`min_free_kbytes` 0: the kernel's own rule).
    pub fn new(zone_pages: &[[u32; 4]], min_free_kbytes: u64, scale_factor: u64) -> Frames {
        let mut start = 0;
        let mut nodes = Vec::with_capacity(zone_pages.len());
        for pages in zone_pages {
            nodes.push(pages.map(|managed| {
                let zone = Zone {
                    start,
                    managed,
                    untouched: start,
                    ..Zone::default()
                };
                start += managed;
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
        };
        frames.set_watermarks(min_free_kbytes, scale_factor);
        frames
    }

    /// `__setup_per_zone_wmarks`: min is shared out by size, the distances are the larger of a
    /// quarter of it and the scale factor's share.
    fn set_watermarks(&mut self, min_free_kbytes: u64, scale_factor: u64) {
        let all = || self.nodes.iter().flatten();
        let low_pages: u64 = all().map(|zone| u64::from(zone.managed)).sum();
        let min_kbytes = match min_free_kbytes {
            0 => (16 * low_pages * 4).isqrt().clamp(128, 262_144),
            kbytes => kbytes,
        };
        let min_pages = min_kbytes / 4;
        for (index, zone) in self.nodes.iter_mut().flatten().enumerate() {
            let managed = u64::from(zone.managed);
            let share = (min_pages * managed).checked_div(low_pages).unwrap_or(0);
            let movable = index % 4 == 3;
            let min = if movable {
                (managed / 1024).clamp(32, 128).min(managed)
            } else {
                share
            };
            let distance = (share / 4).max(managed * scale_factor / 10_000);
            zone.marks = [min, min + distance, min + 2 * distance];
        }
    }

    /// Number of frames.
    pub fn len(&self) -> u32 {
        self.frames.len() as u32
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Zones of a node.
    pub fn zones(&self, node: NodeId) -> [ZoneState; 4] {
        std::array::from_fn(|zone| self.nodes[node.index()][zone].state())
    }

    /// Free pages of the machine.
    pub fn total_free(&self) -> u64 {
        self.nodes.iter().flatten().map(Zone::free).sum()
    }

    /// Takes a frame from the highest zone that may give one. Returns it with its zone.
    pub fn allocate(&mut self, node: NodeId, reserve: Reserve) -> Option<(Pfn, usize)> {
        (0..4).rev().find_map(|index| {
            let zone = &mut self.nodes[node.index()][index];
            let keep = match reserve {
                Reserve::Low => zone.marks[1],
                Reserve::Min => zone.marks[0],
                Reserve::None => 0,
            };
            if zone.free() <= keep {
                return None;
            }
            let frame = zone.returned.pop().unwrap_or_else(|| {
                zone.untouched += 1;
                zone.untouched - 1
            });
            Some((Pfn(frame), index))
        })
    }

    /// Takes an aligned block of 512 frames that was never given out. None when there is none:
    /// the lab does not compact memory.
    pub fn allocate_huge(&mut self, node: NodeId) -> Option<(Pfn, usize)> {
        (0..4).rev().find_map(|index| {
            let zone = &mut self.nodes[node.index()][index];
            let first = zone.untouched.next_multiple_of(BLOCK);
            let fits = first
                .checked_add(BLOCK)
                .is_some_and(|end| end <= zone.end());
            if !fits || zone.free() < zone.marks[1] + u64::from(first - zone.untouched + BLOCK) {
                return None;
            }
            zone.returned.extend(zone.untouched..first);
            zone.untouched = first + BLOCK;
            Some((Pfn(first), index))
        })
    }

    /// Gives a frame back.
    pub fn free(&mut self, pfn: Pfn) {
        self.frames[pfn.index()] = Frame {
            owner: OWNER_NONE,
            mapping: UNMAPPED,
        };
        let zone = self
            .nodes
            .iter_mut()
            .flatten()
            .find(|zone| (zone.start..zone.end()).contains(&pfn.0));
        debug_assert!(zone.is_some(), "frame outside all zones");
        if let Some(zone) = zone {
            zone.returned.push(pfn.0);
        }
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

    /// Says who the frame belongs to.
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

    /// Adds a mapping.
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

    /// Removes a mapping; true when it was the last one.
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

    /// Bytes the simulator spends on frames.
    pub fn footprint_bytes(&self) -> usize {
        let returned: usize = self
            .nodes
            .iter()
            .flatten()
            .map(|zone| zone.returned.capacity() * 4)
            .sum();
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
        // 1 GiB: isqrt(16 * 1048576 KiB) = 4096 KiB = 1024 pages, a quarter of it between marks.
        let frames = Frames::new(&[[0, 0, 262_144, 0]], 0, 10);
        let zone = frames.zones(NODE)[2];
        assert_eq!(
            (zone.min_pages, zone.low_pages, zone.high_pages),
            (1024, 1286, 1548)
        );
    }

    #[test]
    fn the_reserve_is_kept_by_who_must_keep_it() {
        let mut frames = Frames::new(&[[0, 0, 100, 0]], 40, 10);
        let mut count = |reserve| std::iter::from_fn(|| frames.allocate(NODE, reserve)).count();
        assert_eq!(count(Reserve::Low), 88);
        assert_eq!(count(Reserve::Min), 2);
        assert_eq!(count(Reserve::None), 10);
    }

    #[test]
    fn owners_and_huge_blocks() {
        let mut frames = Frames::new(&[[0, 100, 2048, 0]], 4, 10);
        let (pfn, zone) = frames.allocate_huge(NODE).unwrap();
        assert_eq!((pfn.0 % 512, zone), (0, 2));
        frames.set_owner(pfn, Owner::File { file: 3, index: 9 });
        assert_eq!(frames.owner(pfn), Owner::File { file: 3, index: 9 });
        frames.set_owner(pfn, Owner::Swap { slot: 5 });
        assert_eq!(frames.owner(pfn), Owner::Swap { slot: 5 });
        frames.free(pfn);
        assert_eq!(frames.owner(pfn), Owner::None);
    }

    proptest! {
        /// Mappings of two frames against plain vectors.
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
